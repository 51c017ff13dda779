//! `pg-limiter doctor` on a database that reports to be another engine. The tests replace functions of their server, so they
//! show what the doctor queries and reports, not how those engines behave.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use crate::doctor::{examine, examine_with};
use crate::support::Database;

async fn replace(database: &Database, function: &str, kind: &str, body: &str) {
    let aside = format!("ALTER FUNCTION pg_catalog.{function}() RENAME TO real_{function}");
    database.execute(&aside).await;
    add(database, function, kind, body).await;
}

async fn add(database: &Database, function: &str, kind: &str, body: &str) {
    let create = "CREATE FUNCTION pg_catalog.";
    database.execute(&format!("{create}{function}() RETURNS {kind} LANGUAGE sql STABLE AS $$ SELECT {body} $$")).await;
}

/// Serves a web page with these lines to one client; returns its address.
fn page(lines: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a visitor");
        let mut request = BufReader::new(&stream).lines().map_while(Result::ok);
        assert_eq!(request.next().as_deref(), Some("GET /varz?raw HTTP/1.0"));
        assert!(request.next().is_some_and(|line| line.starts_with("Host: 127.0.0.1:")));
        assert!(request.any(|line| line.is_empty()), "the end of the request");
        write!(&stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{lines}", lines.len()).expect("answer");
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_queries_yugabytedb_for_levels_and_flags() {
    let database = Database::migrated().await;
    replace(&database, "version", "text", "'PostgreSQL 15.12-YB-2025.2.0.0-b131 on x86_64'::text").await;
    let level = "CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 'repeatable read' \
                 ELSE current_setting('transaction_isolation') END";
    add(&database, "yb_get_effective_transaction_isolation_level", "text", level).await;
    let address =
        page("--skip_prefix_locks=true\n--yb_enable_read_committed_isolation=false\n--enable_wait_queues=true\n");
    let found = examine_with(&database.url, &["--tserver", &address]);
    found
        .has("engine", "note", &["YugabyteDB 2025.2.0.0-b131", "has not been run on it"])
        .has("isolation", "warning", &["READ COMMITTED is repeatable read", "yb_enable_read_committed_isolation=true"])
        .has("skip_prefix_locks", "warning", &["skip_prefix_locks=false", "LimiterConfig::isolation"])
        .has("skip_prefix_locks", "warning", &["Isolation::ReadCommitted"])
        .has("yb_enable_read_committed_isolation", "note", &["snapshot"])
        .has("enable_wait_queues", "ok", &[])
        .has("durability", "ok", &["replicas"])
        .has("table", "note", &["not checked"])
        .has("idle rows", "ok", &["0 of 0"]);
    assert_eq!(found.code, Some(1));
    let other = page("--skip_prefix_locks=false\n--max_clock_skew_usec=500000\n");
    examine_with(&database.url, &["--tserver", &other]).has("skip_prefix_locks", "ok", &[]).has(
        "max_clock_skew_usec",
        "ok",
        &["500 ms"],
    );
    // No server listens on port 1.
    let command = "curl -s 'http://127.0.0.1:1/varz?raw' | grep -E 'skip_prefix_locks|";
    let unseen = ["http://127.0.0.1:1/varz?raw cannot be read: Connection refused", "--tserver", command];
    let found = examine_with(&database.url, &["--tserver", "127.0.0.1:1"]);
    found.has("tserver flags", "note", &unseen);
    assert!(!found.by_check.contains_key("skip_prefix_locks"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsupported_engine_is_a_problem() {
    let database = Database::migrated().await;
    replace(&database, "version", "text", "'CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)'::text").await;
    let found = examine(&database.url);
    found.has("engine", "problem", &["CockroachDB: not supported", "Use PostgreSQL"]);
    assert_eq!(found.code, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_a_problem() {
    let database = Database::migrated().await;
    examine(&database.url).has("writing", "ok", &["a primary"]);
    replace(&database, "pg_is_in_recovery", "boolean", "true").await;
    examine(&database.url).has("writing", "problem", &["a standby", "primary"]);
}
