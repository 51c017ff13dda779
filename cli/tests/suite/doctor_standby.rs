//! `pg-limiter doctor` of a server with standbys or with logical replication; and the tool on a standby.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};

use crate::binary::{files, run};
use crate::doctor::{examine, version};
use crate::lines::{EVENT, replay};
use crate::support::Database;
use crate::support::node::Node;

/// The connection of a standby with `hot_standby_feedback`, whose oldest query needs the row versions from `xmin` on.
struct Standby(TcpStream);

impl Standby {
    fn connect(url: &str, slot: &str, lsn: &str, xmin: u32) -> Self {
        let place = url.split(['@', '/']).nth(3).expect("a host and a port");
        let mut standby = Self(TcpStream::connect(place).expect("a connection"));
        standby.send(b"", b"\0\x03\0\0user\0postgres\0replication\0true\0\0");
        standby.read_until(b'Z');
        standby.send(b"Q", format!("START_REPLICATION {slot} PHYSICAL {lsn}\0").as_bytes());
        standby.read_until(b'W');
        standby.send(b"d", &[&b"h"[..], &[0; 8], &xmin.to_be_bytes(), &[0; 12]].concat());
        standby
    }

    fn send(&mut self, kind: &[u8], body: &[u8]) {
        let length = u32::try_from(body.len() + 4).expect("a length").to_be_bytes();
        self.0.write_all(&[kind, &length, body].concat()).expect("send");
    }

    fn read_until(&mut self, kind: u8) {
        let mut head = [0; 5];
        while head[0] != kind {
            self.0.read_exact(&mut head).expect("a message");
            let length = u64::from(u32::from_be_bytes([head[1], head[2], head[3], head[4]]));
            std::io::copy(&mut (&mut self.0).take(length - 4), &mut std::io::sink()).expect("its body");
        }
    }
}

async fn text(conn: &mut PgConnection, sql: &str) -> String {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(conn).await.expect("a text")
}

async fn until(conn: &mut PgConnection, condition: &str) {
    for _ in 0..600 {
        if text(conn, &format!("SELECT ({condition})::text")).await == "true" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it never becomes true: {condition}");
}

#[tokio::test(flavor = "multi_thread")]
async fn standbys_and_slots_that_keep_dead_rows_are_reported() {
    let node = Node::start(&["autovacuum=off", "synchronous_commit=off"]).await;
    let mut conn = PgConnection::connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate_on(&mut conn).await.expect("migrate");
    let begin = "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) VALUES ('a', 'k', 1, 0, 9e18); \
                 SELECT pg_create_physical_replication_slot('spare', true)";
    sqlx::raw_sql(begin).execute(&mut conn).await.expect("a row and a slot");
    let lsn = text(&mut conn, "SELECT pg_current_wal_flush_lsn()::text").await;
    let xmin = text(&mut conn, "SELECT txid_current()::text").await.parse().expect("an xid");

    let standby = Standby::connect(&node.url(), "", &lsn, xmin);
    until(&mut conn, "EXISTS (SELECT FROM pg_stat_replication WHERE backend_xmin IS NOT NULL)").await;
    let quiet = examine(&node.url());
    quiet.has("old transactions", "ok", &[]);
    assert!(!quiet.by_check["old transactions"].to_string().contains("hidden"), "{:?}", quiet.by_check);
    let update =
        "DO $$ BEGIN FOR i IN 1..1500 LOOP UPDATE rate_limit.rate_limits SET value = i; COMMIT; END LOOP; END $$";
    let mut updating = PgConnection::connect(&node.url()).await.expect("connect");
    sqlx::raw_sql(update).execute(&mut updating).await.expect("updates");
    // It reports its statistics when it ends.
    updating.close().await.expect("close");
    until(&mut conn, "(SELECT n_dead_tup > 1000 FROM pg_stat_all_tables WHERE relname = 'rate_limits')").await;
    let words = ["a standby", "pid ", " transactions", "oldest query", "hot_standby_feedback"];
    let found = examine(&node.url());
    found.has("old transactions", "warning", &words);
    assert!(!found.by_check["old transactions"].to_string().contains("pg_terminate_backend"), "{:?}", found.by_check);
    drop(standby);
    until(&mut conn, "NOT EXISTS (SELECT FROM pg_stat_replication)").await;

    let standby = Standby::connect(&node.url(), "SLOT spare", &lsn, xmin);
    until(&mut conn, "EXISTS (SELECT FROM pg_replication_slots WHERE xmin IS NOT NULL)").await;
    let words = ["the active replication slot 'spare'", "oldest query", "hot_standby_feedback"];
    examine(&node.url()).has("old transactions", "warning", &words);
    drop(standby);
    until(&mut conn, "EXISTS (SELECT FROM pg_replication_slots WHERE NOT active)").await;
    let words = ["the inactive replication slot 'spare'", "pg_drop_replication_slot('spare')"];
    examine(&node.url()).has("old transactions", "warning", &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_standby_the_primary_is_advised() {
    let mut node = Node::start(&[]).await;
    let mut conn = PgConnection::connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate_on(&mut conn).await.expect("migrate");
    conn.close().await.expect("close");
    node.fail_over().await;
    let tool = |args: &[&str]| run(Some(&node.url()), &[args, &["--rate", "1", "--period", "1s"]].concat(), "");
    let replayed = replay(Some(&node.url()), "events.jsonl", EVENT.as_bytes(), &[]);
    for run in [tool(&["limit", "a", "k"]), tool(&["simulate", "--for", "1s"]), replayed] {
        run.refuses(3, &["0A000", "standby", "connect to the primary"]);
    }
    let (_dir, path) = files(&[("limits.toml", "[limits.a]\nkind = \"gate\"\n")]);
    run(Some(&node.url()), &["limits", "diff", &path("limits.toml")], "").says(1, "+ a: gate");
    let found = examine(&node.url());
    found.has("isolation", "note", &["not checked", "0A000"]).has("writing", "problem", &["a standby"]);
    // The role may read everything.
    assert!(!found.by_check["isolation"].to_string().contains("owner"), "{:?}", found.by_check);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_synchronous_standby_doctor_names_the_setting_and_a_command_says_whether_to_repeat_it() {
    let node = Node::start(&[]).await;
    let mut conn = PgConnection::connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate_on(&mut conn).await.expect("migrate");
    assert!(!examine(&node.url()).by_check.contains_key("standbys"));
    for sql in ["ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"] {
        sqlx::raw_sql(sql).execute(&mut conn).await.expect("configured");
    }
    until(&mut conn, "current_setting('synchronous_standby_names') = 'nobody'").await;
    let tool = |args: &[&str]| run(Some(&node.url()), args, "");
    for args in [&["queue", "pause", "q"][..], &["block", "ban", "k", "1h"], &["prune"]] {
        let run = tool(args);
        assert!(!run.stderr.contains("tokens"), "{args:?}: {}", run.stderr);
        if args[0] != "prune" {
            run.refuses(3, &["the outcome of a commit is unknown", "may have taken effect: run it again"]);
        }
    }
    let spent = "count the tokens as spent";
    tool(&["limit", "a", "k", "--rate", "1", "--period", "1s"]).refuses(3, &[spent]);
    let words = [
        "synchronous_standby_names=nobody",
        "synchronous standbys: 0",
        "ALTER SYSTEM SET synchronous_standby_names = ''",
    ];
    examine(&node.url()).has("standbys", "problem", &words);
}

/// Logical replication: publications of parts of rows, and a sequence that is behind.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_replication_are_found() {
    let database = Database::migrated().await;
    let pool = &database.pool;
    if version(pool).await >= 150_000 {
        for part in ["rate_limit.rate_limits WHERE (value > 10)", "rate_limit.jobs (queue)"] {
            database.execute(&format!("CREATE PUBLICATION \"a part\" FOR TABLE {part}")).await;
            let found = examine(&database.url);
            found.has("publications", "problem", &["a part", "42P10", "ALTER PUBLICATION \"a part\" DROP TABLE"]);
            database.execute("DROP PUBLICATION \"a part\"").await;
        }
        database.execute("CREATE PUBLICATION a FOR TABLE rate_limit.rate_limits WHERE (name = 'b')").await;
    }
    database
        .execute(
            "INSERT INTO rate_limit.jobs (queue, key, priority, run_at, payload, limit_names, limit_keys, counts,
               max_attempts, enqueued_at)
             SELECT 'q', 'k', 0, 1, '1', '{a}', '{k}', '{1}', 1, 1 FROM generate_series(1, 3);
             SELECT setval('rate_limit.jobs_id_seq', 1)",
        )
        .await;
    let found = examine(&database.url);
    found.has("ids of jobs", "problem", &["sequence is behind", "setval('rate_limit.jobs_id_seq'"]);
    assert!(!run(Some(&database.url), &["doctor"], "").stdout.contains("publications"));
    // A sequence that was never used returns its value itself.
    database.execute("SELECT setval('rate_limit.jobs_id_seq', 3, false)").await;
    examine(&database.url).has("ids of jobs", "problem", &["the next job gets the id 3 "]);
    database.execute("SELECT setval('rate_limit.jobs_id_seq', 3)").await;
    assert!(!run(Some(&database.url), &["doctor"], "").stdout.contains("ids of jobs"));
}
