//! Checks whether the connection is encrypted, and whether the server's certificate is verified.

use std::net::IpAddr;

use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::doctor::report::Finding;
use crate::doctor::session::Session;

const VERIFY: &str = "Add sslmode=verify-full&sslrootcert=FILE to the URL, with the certificate of the server's CA.";

pub(super) async fn check(session: &mut Session, options: &PgConnectOptions) -> Result<Finding, sqlx::Error> {
    let sql = "SELECT s.version, s.cipher FROM pg_stat_ssl AS s WHERE s.pid = pg_backend_pid() AND s.ssl";
    let encrypted = session.rows::<(String, String)>(sql).await?.pop();
    let encrypted = encrypted.map(|(version, cipher)| format!("{version}, {cipher}"));
    let is_local = options.get_socket().is_some() || is_local(options.get_host());
    let is_verified = matches!(options.get_ssl_mode(), PgSslMode::VerifyCa | PgSslMode::VerifyFull);
    Ok(judge(encrypted, is_local, is_verified))
}

fn judge(encrypted: Option<String>, is_local: bool, is_verified: bool) -> Finding {
    match encrypted {
        Some(how) if is_verified => Finding::ok(format!("{how}; the server's certificate is checked")),
        Some(how) if is_local => Finding::ok(format!("{how}; the server is on this machine")),
        Some(how) => Finding::note(format!("{how}; the server's certificate is not checked"))
            .advise("Another server could impersonate it and read passwords.")
            .advise(VERIFY),
        None if is_local => Finding::ok("not encrypted; the server is on this machine"),
        None => Finding::note("not encrypted on the last hop to the server")
            .advise("Keys and balances can be read on the network. If the server supports TLS, use it.")
            .advise(VERIFY),
    }
}

/// Decides by the name of the host. It cannot see the rest of the path behind a local tunnel or pooler.
fn is_local(host: &str) -> bool {
    host == "localhost" || host.starts_with('/') || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State::{Note, Ok};

    #[test]
    fn unencrypted_or_unverified_remote_connections_are_noted() {
        let judge = |encrypted: bool, host, is_verified| {
            judge(encrypted.then(|| "TLSv1.3".to_owned()), is_local(host), is_verified).state
        };
        assert_eq!([judge(true, "db.example.com", true), judge(true, "db.example.com", false)], [Ok, Note]);
        assert_eq!([judge(false, "db.example.com", false), judge(false, "10.0.0.1", false)], [Note, Note]);
        assert_eq!([judge(false, "127.0.0.1", false), judge(false, "localhost", false)], [Ok, Ok]);
        assert_eq!([judge(false, "/run/postgresql", false), judge(true, "::1", false)], [Ok, Ok]);
    }
}
