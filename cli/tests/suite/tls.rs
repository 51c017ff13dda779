//! The library and the tool with a server that requires TLS, as managed databases do.
#![cfg_attr(not(feature = "rustls"), allow(dead_code, unused_imports))]

use std::time::Duration;

use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Limit, Limiter, Limits};

use crate::binary::run;
use crate::doctor::examine;
use crate::support::Database;
use crate::tls_server::TlsServer;

#[cfg(feature = "rustls")]
#[tokio::test(flavor = "multi_thread")]
async fn the_tool_and_the_library_work_with_the_servers_ca() {
    let server = TlsServer::start().await;
    let url = server.verified("localhost", "ca");
    let migrated = run(Some(&url), &["migrate"], "");
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);

    let pool: PgPool = Database::pool(&url, 4).await;
    let limits = Limits::new().define("mails", Limit::token_bucket(1, Duration::from_secs(86_400))).expect("a limit");
    let limiter = Limiter::new(pool.clone(), limits);
    assert!(limiter.limit(("mails", "u1")).await.expect("an answer").is_allowed());
    assert!(limiter.limit(("mails", "u1")).await.expect("an answer").is_denied());
    // This includes the limiter's own connections.
    let plain = "SELECT count(*) FROM pg_stat_ssl AS s JOIN pg_stat_activity AS a USING (pid) \
                 WHERE NOT s.ssl AND a.backend_type = 'client backend'";
    assert_eq!(sqlx::query_scalar::<_, i64>(plain).fetch_one(&pool).await.expect("a count"), 0);

    examine(&url).has("encryption", "ok", &["TLSv1.3", "certificate is checked"]).has("schema", "ok", &["the newest"]);
    // TLS is used even if the URL does not mention it.
    let unsaid = server.url("127.0.0.1", "application_name=unsaid");
    examine(&unsaid).has("encryption", "ok", &["TLSv1.3", "this machine"]);
    let peeked = run(Some(&unsaid), &["peek", "mails", "u1", "--rate", "1", "--period", "1d"], "");
    assert!(peeked.code == Some(0) && peeked.stdout.starts_with("0 left, full in "), "{}", peeked.stdout);
}

#[cfg(feature = "rustls")]
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_certificate_is_rejected() {
    let server = TlsServer::start().await;
    for command in ["migrate", "doctor"] {
        let other = server.verified("localhost", "other");
        run(Some(&other), &[command], "").refuses(3, &["cannot connect", "UnknownIssuer", "sslrootcert="]);
        let elsewhere = server.verified("127.0.0.1", "ca");
        run(Some(&elsewhere), &[command], "")
            .refuses(3, &["cannot connect", "\"127.0.0.1\"", "localhost", "another host"]);
        let plain = server.url("localhost", "sslmode=disable");
        run(Some(&plain), &[command], "").refuses(3, &["cannot connect", "pg_hba.conf"]);
    }
    for (host, ca, word) in [("localhost", "other", "UnknownIssuer"), ("127.0.0.1", "ca", "not valid for name")] {
        let error =
            PgPool::connect(&server.verified(host, ca)).await.expect_err("a certificate that nothing vouches for");
        assert!(error.to_string().contains(word), "{error}");
        let pool = PgPool::connect_lazy(&server.verified(host, ca)).expect("a pool");
        let limits = Limits::new().define("mails", Limit::token_bucket(1, Duration::from_secs(60))).expect("a limit");
        let error = Limiter::new(pool, limits).limit(("mails", "u1")).await.expect_err("no connection");
        assert_eq!(error.code(), "unavailable", "{error}");
    }
}

/// Run this test with `cargo test -p pg-limiter-cli --test suite tls`.
#[cfg(not(feature = "rustls"))]
#[tokio::test(flavor = "multi_thread")]
async fn without_tls_the_tool_names_the_feature() {
    let server = TlsServer::start().await;
    for options in ["sslmode=prefer", "sslmode=require", "sslmode=verify-full"] {
        let url = server.url("localhost", options);
        for command in ["migrate", "doctor"] {
            run(Some(&url), &[command], "")
                .refuses(3, &["cannot connect", "cargo install pg-limiter-cli --features rustls"]);
        }
    }
}
