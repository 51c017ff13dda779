//! `pg-limiter doctor` on the rows of `rate_limits`: idle and dead ones, and what keeps them.

use std::time::Duration;

use pg_limiter::sqlx::{self, Connection, PgConnection};

use crate::binary::run;
use crate::doctor::{Role, examine, examine_with};
use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn under_a_hot_row_a_transaction_is_old_after_30_seconds() {
    let database = Database::migrated().await;
    let mut forgetful = PgConnection::connect(&database.url).await.expect("connect");
    let mut tx = forgetful.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.expect("begin");
    sqlx::query("SELECT FROM rate_limit.rate_limits").execute(&mut *tx).await.expect("a snapshot");
    let began = std::time::Instant::now();
    let mut hot = PgConnection::connect(&database.url).await.expect("connect");
    for _ in 0..1_500 {
        let take = "SELECT rate_limit._decide_one('a', 'k', 'token_bucket', 1e6, 3155760000000000, 1e6, NULL, NULL, 1, 1, 1, 1, false)";
        sqlx::query(take).execute(&mut hot).await.expect("a token");
    }
    hot.close().await.expect("close"); // The server has its statistics after that.
    tokio::time::sleep(Duration::from_secs(31).saturating_sub(began.elapsed())).await;
    examine(&database.url).has("old transactions", "warning", &["for 3", "pile up"]);
    tx.rollback().await.expect("rollback");
    examine(&database.url).has("old transactions", "ok", &["30s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn accumulated_rows_are_reported() {
    let database = Database::migrated().await;
    let insert = |from: i64, to: i64, idle_at: &str| {
        format!(
            "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) \
             SELECT 'a', i::text, 1, 0, {idle_at} FROM generate_series({from}, {to}) AS i"
        )
    };
    database.execute(&insert(1, 9_999, "0")).await;
    examine(&database.url).has("idle rows", "ok", &["9,999 of 9,999 rows are idle (100 %)"]);
    database.execute(&insert(10_000, 12_000, "0")).await;
    database.execute(&insert(12_001, 16_000, "rate_limit._clock() + 3600000000")).await;
    examine(&database.url).has("idle rows", "warning", &["12,000 of 16,000 rows are idle (75 %)", "pg-limiter prune"]);
    // Its advice solves the problem.
    assert_eq!(run(Some(&database.url), &["prune"], "").code, Some(0));
    examine(&database.url).has("idle rows", "ok", &["0 of 4,000 rows"]);

    // A larger table is sampled, not read as a whole.
    database.execute(&insert(100_000, 279_999, "CASE WHEN i % 4 = 0 THEN 9e18::bigint ELSE 0 END")).await;
    let found = examine(&database.url);
    found.has("idle rows", "warning", &["about "]);
    let text = found.by_check["idle rows"]["found"].as_str().expect("a text");
    let numbers: Vec<f64> =
        text.replace(',', "").split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
    // The true figures are 135,000 of 184,000. A sample of some hundred pages is within a few percent; the bounds are wider.
    assert!((90_000.0..190_000.0).contains(&numbers[0]), "{text}");
    assert!((130_000.0..250_000.0).contains(&numbers[1]), "{text}");
    assert!((65.0..82.0).contains(&numbers[2]), "{text}");
}

/// Runs the statement in its own session, which reports its statistics when it ends.
async fn once(database: &Database, sql: &'static str) {
    let mut session = PgConnection::connect(&database.url).await.expect("connect");
    sqlx::query(sql).execute(&mut session).await.expect("a statement");
    session.close().await.expect("close");
}

/// Statistics arrive some time later.
async fn until(database: &Database, check: &str, state: &str, words: &[&str]) {
    for _ in 0..100 {
        let finding = examine(&database.url).by_check.remove(check).expect("a finding");
        if finding["state"] == state && words.iter().all(|word| finding.to_string().contains(word)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    examine(&database.url).has(check, state, words);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_vacuum_is_reported() {
    let database = Database::migrated().await;
    database.execute("ALTER TABLE rate_limit.rate_limits SET (autovacuum_enabled = off, fillfactor = 100)").await;
    examine(&database.url)
        .has("autovacuum", "warning", &["off for rate_limit.rate_limits", "RESET (autovacuum_enabled)"])
        .has("updates", "note", &["fillfactor 100", "SET (fillfactor = 70)"]);
    // The pages are full, so updates have no room.
    let insert = "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT 'a', i::text, 1, 0, 9e18 \
                  FROM generate_series(1, 11000) AS i";
    database.execute(insert).await;
    once(&database, "UPDATE rate_limit.rate_limits SET value = 2").await;
    until(&database, "updates", "warning", &["0 % of 11,000 updates", "fillfactor"]).await;
    once(&database, "DELETE FROM rate_limit.rate_limits").await;
    until(&database, "table", "warning", &["dead", "VACUUM rate_limit.rate_limits;"]).await;
    once(&database, "VACUUM rate_limit.rate_limits").await;
    database.execute("ALTER TABLE rate_limit.rate_limits RESET (autovacuum_enabled)").await;
    until(&database, "autovacuum", "ok", &["was vacuumed "]).await;
    database.execute("CREATE INDEX of_mine ON rate_limit.rate_limits (idle_at); CREATE INDEX harmless ON rate_limit.rate_limits (key)").await;
    examine(&database.url).has(
        "updates",
        "warning",
        &["prevented by rate_limit.of_mine", "DROP INDEX rate_limit.of_mine;"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_left_open_is_reported() {
    let database = Database::migrated().await;
    let role = Role::new(&database).await;
    let short = ["--old-transaction", "1us"];
    examine_with(&database.url, &short).has("old transactions", "ok", &["1us"]);
    let mut forgetful = PgConnection::connect(&database.url).await.expect("connect");
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut forgetful).await.expect("a pid");
    let mut tx = forgetful.begin().await.expect("begin");
    let take = "SELECT rate_limit.enforce_with('a', 'k', kind => 'token_bucket', rate => 10, period => '1 minute')";
    sqlx::query(take).execute(&mut *tx).await.expect("a token");
    let end = format!("SELECT pg_terminate_backend({pid});");
    let pid = format!("pid {pid} (");
    examine(&database.url).has("old transactions", "ok", &["5m"]);
    let words = [
        pid.as_str(),
        "idle in transaction",
        "rows of rate_limits locked",
        &end,
        "idle_in_transaction_session_timeout",
    ];
    let found = examine_with(&database.url, &short);
    found.has("old transactions", "warning", &words);
    assert_eq!(found.code, Some(1));
    // The times of another role's transaction are not shown.
    examine_with(&role.url, &short).has(
        "old transactions",
        "ok",
        &["1us or longer; the age of 1 is hidden from this role"],
    );
    tx.rollback().await.expect("rollback");
    examine_with(&database.url, &short).has("old transactions", "ok", &[]);
    role.drop().await;
}
