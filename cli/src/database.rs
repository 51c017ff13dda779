//! The database to use: the one that the arguments name, or a private server.

use std::ffi::OsString;
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};

use crate::{CliError, Progress, Result, output};
use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::{Error, KeySecret, Limiter, LimiterConfig, Limits, Schema};

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub(super) struct DatabaseArgs {
    /// URL of the database, such as postgres://user:password@host/name [default: the environment variable DATABASE_URL]
    #[arg(long, global = true, help_heading = "The database", value_name = "URL")]
    pub(super) database_url: Option<String>,
    /// Schema of the limiter's tables and functions (`demo`, `replay` and `simulate` create their own)
    #[arg(long, global = true, help_heading = "The database", value_name = "NAME", default_value = "rate_limit")]
    pub(super) schema: String,
}

/// The database that the arguments name. No server is started and no connection is open until a command asks for one.
#[derive(Debug)]
pub(super) struct Database {
    /// `None`: a private server. It is parsed when it is used, because some commands need no database.
    url: Option<String>,
    pub(super) schema: Schema,
    /// Whether an argument names it, and not only the environment.
    pub(super) is_argument: bool,
    /// The private server, if there is one, and the pool of [`limiter`](Self::limiter).
    opened: OnceLock<(Running, PgPool)>,
}

/// A database that accepts connections. Dropping this stops the private server.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) options: PgConnectOptions,
    pub(super) schema: Schema,
    server: Option<Server>,
}

impl Database {
    pub(super) fn new(args: DatabaseArgs) -> Result<Self> {
        let schema = Schema::new(&args.schema).map_err(CliError::usage)?;
        let given = args.database_url;
        let is_argument = given.is_some();
        // A script passed a variable that is not set. A private server would then allow everything.
        let is_empty = given.as_ref().is_some_and(|url| url.trim().is_empty());
        let why = "--database-url is empty: give a URL, or omit the option to use a private server";
        CliError::refuse_if(is_empty, why)?;
        let url = given.map(OsString::from).or_else(|| std::env::var_os("DATABASE_URL")).map(OsString::into_string);
        let url = url.transpose().map_err(|_| CliError::usage("DATABASE_URL is not UTF-8"))?;
        // An empty variable counts as unset.
        let url = url.map(|url| url.trim().to_owned()).filter(|url| !url.is_empty());
        Ok(Self { url, schema, is_argument, opened: OnceLock::new() })
    }

    /// Connects, until the database is closed.
    pub(super) async fn limiter(&self, limits: Limits, key_secret: Option<KeySecret>) -> Result<Limiter> {
        let running = self.start(false).await?;
        let limiter = running.limiter(limits, key_secret).await?;
        let _ = self.opened.set((running, limiter.pool().clone()));
        Ok(limiter)
    }

    pub(super) async fn close(self) {
        if let Some((_, pool)) = self.opened.get() {
            pool.close().await;
        }
    }

    pub(super) const fn is_named(&self) -> bool {
        self.url.is_some()
    }

    /// The limits that are stored in the named database. A private server has none.
    pub(super) async fn stored_limits(&self) -> Result<Limits> {
        let Some(url) = &self.url else { return Ok(Limits::new()) };
        match read_limits(connect_with(&parse(url)?).await.map_err(cannot_connect)?, &self.schema).await {
            Err(Error::SchemaMissing { .. }) => Ok(Limits::new()),
            limits => Ok(limits?),
        }
    }

    /// The named database. Returns an error if there is none: a new private server has nothing to inspect.
    pub(super) fn named(&self) -> Result<Running> {
        match &self.url {
            Some(url) => Ok(Running { options: parse(url)?, schema: self.schema.clone(), server: None }),
            None => Err(CliError::usage("no database given: use --database-url URL, or set DATABASE_URL")),
        }
    }

    /// Starts the private server, for this run only, if no database was named. `durable`: it waits for the disk, to be measured.
    pub(super) async fn start(&self, durable: bool) -> Result<Running> {
        if self.is_named() {
            return self.named();
        }
        let running = self.start_private(durable).await?;
        let (why, source) = ("neither --database-url nor DATABASE_URL is set", running.private_source());
        output::note(format!("{why}: using a private {}, for this run only", source.unwrap_or_default()));
        Ok(running)
    }

    /// A private server, even if a database was named.
    pub(super) async fn start_private(&self, durable: bool) -> Result<Running> {
        let mut config = ServerConfig::default();
        config.durable = durable;
        let _progress = Progress::of("starting a private PostgreSQL server");
        let started = tokio::task::spawn_blocking(move || Server::start(&config)).await.map_err(CliError::failed)?;
        let server = started.map_err(CliError::failed)?;
        Ok(Running { options: parse(&server.url("postgres"))?, schema: self.schema.clone(), server: Some(server) })
    }
}

/// No message shows the URL: it may contain a password. Without a name in it or in `PGAPPNAME`, connections are named `pg-limiter`.
fn parse(url: &str) -> Result<PgConnectOptions> {
    let is_postgres = ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme));
    let why = "the database URL does not begin with postgres://: use postgres://user:password@host/name";
    CliError::refuse_if(!is_postgres, why)?;
    refuse_ignored(url)?;
    let options: PgConnectOptions =
        with_host(url).parse().map_err(|error| CliError::usage(format!("the database URL is invalid: {error}")))?;
    // sqlx keeps the brackets around an IPv6 address, with which it is no host.
    let host = options.get_host().trim_matches(['[', ']']).to_owned();
    let options = options.host(&host).disable_statement_logging();
    Ok(if options.get_application_name().is_some() { options } else { options.application_name("pg-limiter") })
}

/// As libpq does, accepts a user or a port without a host, if the host is a parameter: it replaces the one that is added here.
fn with_host(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    let (before, after) = url.split_at(url[..end].rfind('@').map_or(start, |at| at + 1));
    let has_none = before.ends_with('@') && before.len() == end || after.starts_with(':');
    let host = if has_none && after.contains("host=") { "localhost" } else { "" };
    [before, host, after].concat()
}

/// The parameters of a URL that sqlx reads; then others of libpq, which may be in a URL that other programs use, too.
const PARAMETERS: &str = "sslmode ssl-mode sslrootcert ssl-root-cert ssl-ca sslcert ssl-cert sslkey ssl-key statement-cache-capacity \
    host hostaddr port dbname user password application_name options \
    channel_binding client_encoding connect_timeout fallback_application_name gssencmode keepalives keepalives_count keepalives_idle \
    keepalives_interval load_balance_hosts target_session_attrs tcp_user_timeout";

/// Refuses what sqlx ignores: with a typo in `sslmode`, no certificate would be checked. And lists of hosts, which it cannot read.
fn refuse_ignored(url: &str) -> Result<()> {
    let query = url.split('#').next().and_then(|url| url.split_once('?')).map_or("", |(_, query)| query);
    let one_host = "the database URL names several hosts: keep only the host and the port of the primary";
    for parameter in query.split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        // Part of a password would follow in the message below.
        let why = "the database URL has a ? before its host: in a password, write it as %3F";
        CliError::refuse_if(name.contains('@'), why)?;
        let setting = name.replace("%5B", "[").replace("%5D", "]");
        let is_setting = setting.starts_with("options[") && setting.ends_with(']');
        let is_list =
            matches!(name, "host" | "hostaddr" | "port") && value.to_lowercase().replace("%2c", ",").contains(',');
        CliError::refuse_if(is_list, one_host)?;
        let selects = name == "target_session_attrs" && value != "any";
        let is_known = is_setting || name.is_empty() || !selects && PARAMETERS.split(' ').any(|known| known == name);
        let why = format!("the database URL has the parameter \"{name}\", which has no effect: correct or remove it");
        CliError::refuse_if(!is_known, why)?;
    }
    let authority = url.split(['/', '?', '#']).nth(2).and_then(|authority| authority.rsplit('@').next());
    CliError::refuse_if(authority.is_some_and(|hosts| hosts.contains(',')), one_host)?;
    let mode = std::env::var_os("PGSSLMODE").unwrap_or_default();
    let is_valid = mode.is_empty() || mode.to_str().is_some_and(|mode| mode.parse::<PgSslMode>().is_ok());
    let mode = mode.to_string_lossy();
    let why = format!("PGSSLMODE is \"{mode}\": use disable, allow, prefer, require, verify-ca or verify-full");
    CliError::refuse_if(!is_valid, why)
}

pub(super) async fn connect_with(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let connecting = PgConnection::connect_with(options);
    tokio::time::timeout(PATIENCE, connecting).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

/// Reads in a transaction: outside, a pooler could prepare the statement in one session and run it in another.
pub(super) async fn read_limits(mut conn: PgConnection, schema: &Schema) -> Result<Limits, Error> {
    let mut tx = conn.begin().await.map_err(|error| Error::from_sql(error, schema.name()))?;
    let limits = Limits::stored_in(&mut *tx, schema).await;
    let _ = tx.rollback().await; // They have been read.
    let _ = conn.close().await;
    limits
}

pub(super) fn cannot_connect(error: sqlx::Error) -> CliError {
    if matches!(error, sqlx::Error::PoolTimedOut) {
        let found = format!("the database did not answer within {PATIENCE:?}");
        return CliError::failed(format!("{found}: check that it is running and reachable"));
    }
    let advice = tls_advice(&error, cfg!(feature = "rustls")).map(|advice| format!("\n{advice}")).unwrap_or_default();
    CliError::failed(format!("cannot connect to the database: {}{advice}", Error::database_message(&error)))
}

impl Running {
    pub(super) fn private_source(&self) -> Option<&str> {
        self.server.as_ref().map(Server::source)
    }

    /// The stored limits, for commands that only show. If they cannot be read, a note says why.
    pub(super) async fn shown_limits(&self) -> Result<Limits> {
        let limits = read_limits(self.connect().await?, &self.schema).await;
        Ok(limits.unwrap_or_else(|error| {
            if !matches!(error, Error::SchemaMissing { .. }) {
                output::note(format!("the stored limits are not shown: {error}"));
            }
            Limits::new()
        }))
    }

    pub(super) async fn connect(&self) -> Result<PgConnection> {
        let _progress = Progress::of("connecting to the database");
        connect_with(&self.options).await.map_err(cannot_connect)
    }

    /// Returns a pool, after one connection has succeeded: a pool alone would retry for long.
    pub(super) async fn pool(&self, connections: u32) -> Result<PgPool> {
        self.connect().await?.close().await.map_err(CliError::failed)?;
        let options = PgPoolOptions::new().max_connections(connections).acquire_timeout(PATIENCE);
        Ok(options.connect_lazy_with(self.options.clone()))
    }

    /// Like `pool`, but migrates a private server first. Any other database is migrated only on request.
    pub(super) async fn ready_pool(&self, connections: u32) -> Result<PgPool> {
        let pool = self.pool(connections).await?;
        if self.server.is_some() {
            let _progress = Progress::of("creating the tables and functions");
            pg_limiter::migrate::Migrator::new(self.schema.clone()).run(&pool).await.map_err(CliError::failed)?;
        }
        Ok(pool)
    }

    /// Returns a limiter on such a pool. Close the pool after the last call.
    pub(super) async fn limiter(&self, limits: Limits, key_secret: Option<KeySecret>) -> Result<Limiter> {
        Ok(self.limiter_on(self.ready_pool(1).await?, limits, key_secret))
    }

    pub(super) fn limiter_on(&self, pool: PgPool, limits: Limits, key_secret: Option<KeySecret>) -> Limiter {
        let mut config = LimiterConfig::default();
        config.schema = self.schema.clone();
        // A pooler may not keep prepared statements.
        config.named_statements = false;
        config.key_secret = key_secret;
        Limiter::with_config(pool, limits, config)
    }
}

fn tls_advice(error: &sqlx::Error, has_tls: bool) -> Option<&'static str> {
    let text = error.to_string();
    // Servers word this error differently; sqlx without TLS returns `Tls`.
    let requires_tls = match error {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Database(error) => {
            let text = error.message().to_uppercase();
            // 28000: the server rejects this kind of connection.
            error.code().as_deref() == Some("28000") || text.contains("SSL") || text.contains("TLS")
        }
        _ => false,
    };
    Some(match has_tls {
        false if requires_tls => {
            "This pg-limiter was built without TLS. If the server requires it, install the tool with it: \
             cargo install pg-limiter-cli --features rustls"
        }
        true if text.contains("UnknownIssuer") => {
            "This machine does not trust the CA that signed the server's certificate. Add sslrootcert=FILE to the URL, with \
             the certificate of that CA; providers of managed databases publish it."
        }
        true if text.contains("not valid for name") => {
            "The server's certificate is for another host. Connect with a name that the certificate contains, or check only \
             its CA, with sslmode=verify-ca in the URL."
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_without_brackets_and_the_host_may_be_a_parameter() {
        for (url, host, socket) in [
            ("u@[::1]:5433/db", "::1", None),
            ("u@[2001:db8::7]/db", "2001:db8::7", None),
            ("u@127.0.0.1/db", "127.0.0.1", None),
            ("u@db.example.com/db", "db.example.com", None),
            ("v@/db?user=u&host=h#@/", "h", None),
            ("u@/db?host=/run/x", "", Some("/run/x")),
            ("u:p@/db?host=/run/x", "", Some("/run/x")),
            ("u@:5433/db?host=/run/x", "", Some("/run/x")),
            ("u:p@:5433/db?host=/run/x", "", Some("/run/x")),
        ] {
            let options = parse(&format!("postgres://{url}")).expect(url);
            assert_eq!((options.get_username(), options.get_database()), ("u", Some("db")));
            assert_eq!(options.get_socket().map(|path| path.as_path()), socket.map(std::path::Path::new));
            assert!(socket.is_some() || options.get_host() == host, "{url}");
        }
        let error = parse("postgres://u@/db").expect_err("an error").to_string();
        assert!(error.contains("empty host"), "{error}");
    }

    #[test]
    fn a_parameter_of_the_url_without_effect_is_refused() {
        for (query, name) in [
            ("sslmod=verify-full", "\"sslmod\""),
            ("ssl_mode=require", "\"ssl_mode\""),
            ("sslmode=verify-full&sslcrl=x", "\"sslcrl\""),
            ("user=x&optoins=y", "\"optoins\""),
            ("target_session_attrs=read-write", "\"target_session_attrs\""),
            ("options[geqo=off", "\"options[geqo\""),
            ("%00%1b", "\"%00%1b\""),
        ] {
            let error = parse(&format!("postgres://u:secret@h/db?{query}#?sslmode")).expect_err(query).to_string();
            assert!(error.contains(name) && !error.contains("secret"), "{error}");
        }
        let error = parse("postgres://u:5?secret@h/db").expect_err("an error").to_string();
        assert!(error.contains("%3F") && !error.contains("secret"), "{error}");
        for url in ["u:secret@h:5727,h:5726/db", "h1,h2", "u:a,secret@/db?host=a,b&port=1,2", "u@h/db?hostaddr=1%2c2"] {
            let error = parse(&format!("postgres://{url}")).expect_err(url).to_string();
            assert!(error.contains("several hosts") && !error.contains("secret"), "{error}");
        }
        parse("postgres://u:a,b@h/db?target_session_attrs=any#,").expect("options");
        let known = "sslmode=require&ssl-root-cert=a&application_name=b&options=-c%20x%3d1&options[geqo]=off&options%5Bjit%5D=off\
                     &connect_timeout=10&channel_binding=require&&statement-cache-capacity=0#?odd";
        parse(&format!("postgres://u@h/db?{known}")).expect("options");
        parse("postgres://u@h/db?").expect("options");
    }

    #[test]
    fn a_tool_without_tls_names_the_feature() {
        let refused = || sqlx::Error::Tls("TLS upgrade required by connect options".into());
        assert!(tls_advice(&refused(), false).is_some_and(|advice| advice.contains("--features rustls")));
        assert_eq!(tls_advice(&refused(), true), None);
        assert_eq!(tls_advice(&sqlx::Error::PoolTimedOut, false), None);
    }
}
