//! A private server that requires TLS, with the test's own CA.
#![cfg_attr(not(feature = "rustls"), allow(dead_code, unused_imports))]

use std::fs;
use std::time::{Duration, Instant};

use pg_limiter::embedded::Server;
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::support::server_config;

type Authority = CertifiedIssuer<'static, KeyPair>;

/// A server whose certificate is valid for the name `localhost` only.
pub struct TlsServer {
    pub server: Server,
    dir: TempDir,
}

impl TlsServer {
    pub async fn start() -> Self {
        let asked_for = server_config();
        // If the server programs were built without TLS, tries those of other versions.
        let mut any = asked_for.clone();
        any.version = None;
        let mut refused = Vec::new();
        for config in [asked_for, any] {
            let server = tokio::task::spawn_blocking(move || Server::start(&config)).await.expect("a task");
            let server = server.unwrap_or_else(|error| panic!("no PostgreSQL for the tests: {error}"));
            let mut admin = PgConnection::connect(&server.url("postgres")).await.expect("connect");
            match sqlx::query("ALTER SYSTEM SET ssl = on").execute(&mut admin).await {
                Ok(_) => return Self::require(server, admin).await,
                Err(error) => refused.push(format!("{}: {error}", server.source())),
            }
        }
        panic!("no server programs with TLS: {}", refused.join("; "));
    }

    /// The server itself writes the files, so that they belong to its user. This also works in a container.
    async fn require(server: Server, mut admin: PgConnection) -> Self {
        let (ca, other) = (authority("the CA of the tests"), authority("another CA"));
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &ca).expect("a certificate");
        let data: String = setting(&mut admin, "data_directory").await;
        let hba: String = setting(&mut admin, "hba_file").await;
        let hba_rules = "hostssl all all all trust\nlocal all all trust\n";
        for (file, text) in [
            (format!("{data}/server.crt"), certificate.pem()),
            (format!("{data}/server.key"), key.serialize_pem()),
            (hba, hba_rules.to_owned()),
        ] {
            let lines: Vec<String> = text.lines().map(|line| format!("('{line}')")).collect();
            let sql = format!("COPY (VALUES {}) TO PROGRAM 'umask 077; cat > {file}'", lines.join(", "));
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.expect("write a file of the server");
        }
        sqlx::query("SELECT pg_reload_conf()").execute(&mut admin).await.expect("reload");
        let dir = tempfile::tempdir().expect("a folder");
        for (name, authority) in [("ca.pem", &ca), ("other.pem", &other)] {
            fs::write(dir.path().join(name), authority.pem()).expect("write a certificate");
        }
        let this = Self { server, dir };
        this.wait_until_required().await;
        this
    }

    /// The server takes some time to reload its files.
    async fn wait_until_required(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while PgConnection::connect(&self.url("localhost", "sslmode=disable")).await.is_ok() {
            assert!(Instant::now() < deadline, "the server does not require TLS");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn url(&self, host: &str, options: &str) -> String {
        format!("postgres://postgres@{host}:{}/postgres?{options}", self.server.port())
    }

    /// A URL that verifies the server with this CA, `ca` or `other`.
    pub fn verified(&self, host: &str, ca: &str) -> String {
        let ca = self.dir.path().join(format!("{ca}.pem"));
        self.url(host, &format!("sslmode=verify-full&sslrootcert={}", ca.display()))
    }
}

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA")
}

async fn setting(admin: &mut PgConnection, name: &str) -> String {
    sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(admin).await.expect("a setting")
}
