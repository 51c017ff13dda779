//! How many rows a call reads and writes when it is decided row by row, as on YugabyteDB, where each costs a message to the node
//! that holds the row. The guide has these numbers in a table.

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};

use crate::support::{Database, guide};

/// The arguments of `_decide` for one call. A call on one bucket comes from `_decide_one`, which counts its
/// times, and which decides nothing itself on YugabyteDB.
fn decide(limit: &str, names: &[&str], count: &str, reserves: &str) -> String {
    let buckets = names.len();
    let list = |value: String| format!("ARRAY[{}]", vec![value; buckets].join(", "));
    let (keys, limits, counts) = (list("'k'".into()), list("1".into()), list(format!("{count}::float8")));
    let items = (1..=buckets).map(|item| item.to_string()).collect::<Vec<_>>().join(", ");
    let times = if buckets == 1 { "ARRAY[1]" } else { "NULL" };
    format!(
        "SELECT rate_limit._decide({limit}, ARRAY['{}'], {keys}, ARRAY[{items}], {limits}, {counts}, NULL, {reserves}, \
         ARRAY[{buckets}], {times}, NULL)",
        names.join("', '")
    )
}

/// 10 tokens an hour: the kind, rate, period, capacity, max_reserved, start, resolution and shards.
const TOKENS: &str = "ARRAY['token_bucket'], ARRAY[10], ARRAY[3600000000], NULL, NULL, NULL, NULL, NULL";
const RESERVED: &str = "ARRAY['token_bucket'], ARRAY[10], ARRAY[3600000000], NULL, ARRAY[10], NULL, NULL, NULL";
const WINDOW: &str = "ARRAY['sliding_window'], ARRAY[10], ARRAY[3600000000], NULL, NULL, ARRAY[0], ARRAY[1], NULL";
const SHARDED: &str = "ARRAY['token_bucket'], ARRAY[100], ARRAY[3600000000], NULL, NULL, NULL, NULL, ARRAY[5]";

/// The name of a call in the guide, what runs before it, and the call.
fn calls() -> Vec<(&'static str, String, String)> {
    let take = |limit: &str, names: &[&str], count: &str| decide(limit, names, count, "NULL");
    let one = || take(TOKENS, &["a"], "1");
    let acquire = || "SELECT rate_limit.acquire_with('a', 'k', 3)".to_owned();
    let (two, four) = (["a", "b"], ["a", "b", "c", "d"]);
    vec![
        ("first call of a key", "SELECT".to_owned(), one()),
        ("one limit, allowed", one(), one()),
        ("sliding window, allowed", take(WINDOW, &["a"], "1"), take(WINDOW, &["a"], "1")),
        ("one limit, denied", take(TOKENS, &["a"], "10"), one()),
        ("`peek`, `check` with a count of 0", one(), take(TOKENS, &["a"], "0")),
        ("one limit, reserved", take(TOKENS, &["a"], "10"), decide(RESERVED, &["a"], "1", "ARRAY[true]")),
        ("two limits, allowed", take(TOKENS, &two, "1"), take(TOKENS, &two, "1")),
        ("two limits, denied by one", take(TOKENS, &["b"], "10"), take(TOKENS, &two, "1")),
        ("four limits, allowed", take(TOKENS, &four, "1"), take(TOKENS, &four, "1")),
        ("5 shards, allowed", take(SHARDED, &["a"], "1"), take(SHARDED, &["a"], "1")),
        ("5 shards, denied", take(SHARDED, &["a"], "100"), take(SHARDED, &["a"], "1")),
        ("a slot of a concurrency limit, acquired", acquire(), acquire()),
        ("`reset` of a key", one(), "SELECT rate_limit.reset('a', 'k')".to_owned()),
    ]
}

/// The reads by the primary key, and the rows written. A scan of the whole table fails.
async fn measured(conn: &mut PgConnection, call: &str) -> (i64, i64) {
    let mut transaction = conn.begin().await.expect("begin");
    let (scans, reads, writes) = counted(&mut transaction).await; // of earlier transactions, too
    sqlx::query(AssertSqlSafe(call)).execute(&mut *transaction).await.expect(call);
    let after = counted(&mut transaction).await;
    transaction.commit().await.expect("commit");
    assert_eq!(after.0, scans, "{call}");
    (after.1 - reads, after.2 - writes)
}

async fn counted(conn: &mut PgConnection) -> (i64, i64, i64) {
    let sql = "SELECT seq_scan, idx_scan, n_tup_ins + n_tup_upd + n_tup_del
        FROM pg_stat_xact_user_tables WHERE relname = 'rate_limits'";
    sqlx::query_as(sql).fetch_one(conn).await.expect("the counts")
}

#[tokio::test]
async fn the_guide_lists_the_reads_and_writes_of_every_call() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    let mut found = Vec::new();
    for (name, before, call) in calls() {
        let mut counts = (i64::MAX, i64::MAX);
        // A slow decision is made twice: the first one on a connection, and any one on a busy machine.
        for _ in 0..5 {
            sqlx::query("TRUNCATE rate_limit.rate_limits").execute(&mut conn).await.expect("truncate");
            sqlx::query(AssertSqlSafe(&*before)).execute(&mut conn).await.expect(name);
            counts = counts.min(measured(&mut conn, &call).await);
        }
        found.push(format!("| {name} | {} | {} |", counts.0, counts.1));
    }
    let rows = guide::chapter("yugabytedb").lines().filter(|line| line.starts_with("| "));
    assert_eq!(rows.skip(1).collect::<Vec<_>>(), found);
}
