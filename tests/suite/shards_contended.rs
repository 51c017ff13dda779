//! Sharded buckets under several concurrent sessions, step by step: which session waits for which, and what it then finds.

use std::time::Duration;

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, Executor, PgConnection, Row};
use tokio::task::JoinHandle;

use crate::support::Database;
use crate::support::gate::until_waiting;

pub const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
const OURS: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

/// Calls on the buckets (n, key), which hardly refill while the test runs.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    pub kind: &'a str,
    pub op: &'a str,
    pub shards: i32,
    pub capacity: f64,
    pub max_reserved: Option<f64>,
    pub keys: &'a [&'a str],
    pub count: f64,
}

impl<'a> Ask<'a> {
    pub fn limit(keys: &'a [&'a str], count: f64, shards: i32, capacity: f64) -> Self {
        Self { kind: "token_bucket", op: "limit", shards, capacity, max_reserved: None, keys, count }
    }

    /// One group, as a client sends it.
    pub fn group(&self) -> String {
        let Self { kind, op, shards, capacity, max_reserved, keys, count } = self;
        let n = keys.len();
        let start = if *kind == "token_bucket" { "NULL" } else { "ARRAY[0::bigint]" };
        let reserve = max_reserved.map_or("NULL".to_owned(), |_| "ARRAY[true]".to_owned());
        let bound = max_reserved.map_or("NULL".to_owned(), |most| format!("ARRAY[{most}::float8]"));
        let items: Vec<String> = (1..=n).map(|nth| nth.to_string()).collect();
        let plain = *op == "limit" && max_reserved.is_none();
        let items = if plain { "NULL".to_owned() } else { format!("ARRAY[{}]", items.join(",")) };
        format!(
            "SELECT coalesce(call_admitted[1], 1) = 1 AS ok, call_waits[1] AS wait, item_values[1] AS value
             FROM rate_limit._decide(ARRAY['{kind}'], ARRAY[{capacity}::float8], ARRAY[3155760000000000], NULL, {bound},
               {start}, NULL, ARRAY[{shards}], array_fill('n'::text, ARRAY[{n}]), ARRAY['{}'], {items}, NULL,
               array_fill({count}::float8, ARRAY[{n}]), ARRAY['{op}'], {reserve}, ARRAY[{n}], NULL, NULL)",
            keys.join("','")
        )
        .replace("ARRAY['limit']", if plain { "NULL" } else { "ARRAY['limit']" })
    }
}

#[derive(Debug)]
pub struct Said {
    pub ok: bool,
    pub wait: Option<i64>,
    pub value: f64,
}

pub async fn run(conn: &mut PgConnection, sql: &str) -> Result<Said, String> {
    match conn.fetch_one(AssertSqlSafe(sql.to_owned())).await {
        Ok(row) => Ok(Said { ok: row.get("ok"), wait: row.get("wait"), value: row.get("value") }),
        Err(error) => Err(code(&error)),
    }
}

pub fn code(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).map_or_else(|| error.to_string(), |code| code.into_owned())
}

pub async fn session(database: &Database, level: &str) -> PgConnection {
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let sql = format!("SET default_transaction_isolation = '{level}'; SET deadlock_timeout = '200ms'");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.expect("settings");
    conn
}

/// Runs the statement in its own session.
fn spawn(mut conn: PgConnection, sql: String) -> JoinHandle<Result<Said, String>> {
    tokio::spawn(async move { run(&mut conn, &sql).await })
}

/// Inserts a bucket with one row for each balance.
async fn bucket(database: &Database, key: &str, balances: &[f64]) {
    let values: Vec<String> =
        balances.iter().enumerate().map(|(shard, value)| format!("({shard},{value}::float8)")).collect();
    let sql = format!(
        "INSERT INTO rate_limit.rate_limits (name, key, shard, shards, value, ts, idle_at)
         SELECT 'n', '{key}', shard, {}, value, rate_limit._clock(), 9e17 FROM (VALUES {}) AS v (shard, value)",
        balances.len(),
        values.join(",")
    );
    database.execute(&sql).await;
}

async fn balances(database: &Database, key: &str) -> Vec<f64> {
    let sql = "SELECT value FROM rate_limit.rate_limits WHERE name = 'n' AND key = $1 ORDER BY shard";
    sqlx::query_scalar(sql).bind(key).fetch_all(&database.pool).await.expect("balances")
}

async fn hold(database: &Database, key: &str, shard: i32) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut holder = database.pool.begin().await.expect("begin");
    let sql = "SELECT FROM rate_limit.rate_limits WHERE key = $1 AND shard = $2 FOR UPDATE";
    sqlx::query(sql).bind(key).bind(shard).execute(&mut *holder).await.expect("a lock");
    holder
}

/// Each bucket has as many rows as each of its rows states, and no others.
pub async fn all_rows_or_none(database: &Database) {
    let sql = "SELECT key FROM rate_limit.rate_limits GROUP BY name, key
        HAVING count(*) <> max(shards) OR min(shards) <> max(shards) OR max(shard) <> max(shards) - 1";
    let broken: Vec<String> = sqlx::query_scalar(sql).fetch_all(&database.pool).await.expect("rows");
    assert_eq!(broken, [""; 0], "these buckets lack rows or have extra ones");
}

pub async fn peek(database: &Database, kind: &str, key: &str, shards: i32, capacity: f64) -> f64 {
    let mut conn = session(database, "READ COMMITTED").await;
    let keys = [key];
    let ask = Ask { kind, op: "check", count: 0.0, ..Ask::limit(&keys, 0.0, shards, capacity) };
    run(&mut conn, &ask.group()).await.expect("a balance").value
}

/// If the tokens of a bucket have to be gathered from all of its rows, the first UPDATE skips the buckets that come after it.
#[tokio::test]
async fn a_batch_that_gathers_a_bucket_locks_rows_in_the_common_order() {
    for level in LEVELS {
        let database = Database::migrated().await;
        bucket(&database, "a", &[0.6; 4]).await;
        bucket(&database, "b", &[10.0]).await;
        bucket(&database, "c", &[10.0]).await;
        let batch = |keys: &str, sizes: &str| {
            let n = keys.split(',').count();
            let limits = if n == 3 { "ARRAY[1,2,2]" } else { "ARRAY[1,2]" };
            format!(
                "SELECT true AS ok, NULL::bigint AS wait, 0::float8 AS value FROM rate_limit._decide(
                   '{{token_bucket,token_bucket}}', '{{10,10}}', '{{3155760000000000,3155760000000000}}', NULL, NULL, NULL,
                   NULL, '{{4,1}}', array_fill('n'::text, ARRAY[{n}]), '{{{keys}}}', NULL, {limits}, NULL, NULL, NULL,
                   {sizes}, NULL, NULL)"
            )
        };
        let gate = hold(&database, "b", 0).await;
        let group = spawn(session(&database, level).await, batch("a,b,c", "ARRAY[3]"));
        until_waiting(&database, 1).await;
        let calls = spawn(session(&database, level).await, batch("a,c", "NULL"));
        until_waiting(&database, 2).await;
        gate.rollback().await.expect("rollback");
        for task in [group, calls] {
            match task.await.expect("a task") {
                Ok(_) => {}
                Err(code) => assert!(code == "40001" && level != "READ COMMITTED", "{level}: {code}"),
            }
        }
        all_rows_or_none(&database).await;
    }
}

/// A decision that is made again after a wait writes the same rows, and no others, if the lock holder rolled back.
#[tokio::test]
async fn a_decision_repeated_after_a_wait_locks_no_rows_out_of_order() {
    for level in OURS {
        let database = Database::migrated().await;
        bucket(&database, "a", &[10.0, 10.0, 20.0, 15.0]).await;
        let gate = hold(&database, "a", 2).await;
        let ask = Ask::limit(&["a"], 28.0, 4, 400.0).group();
        let drains = spawn(session(&database, level).await, ask);
        until_waiting(&database, 1).await;
        let ask = Ask::limit(&["a"], 25.0, 4, 400.0).group();
        let gathers = spawn(session(&database, "READ COMMITTED").await, ask);
        until_waiting(&database, 2).await;
        tokio::time::sleep(Duration::from_millis(20)).await; // Longer than the threshold for a wait.
        gate.rollback().await.expect("rollback");
        let mut taken = 0.0;
        match drains.await.expect("a task") {
            Ok(said) => taken += if said.ok { 28.0 } else { 0.0 },
            Err(code) => assert_eq!(code, "40001", "{level}"),
        }
        assert!(gathers.await.expect("a task").expect("a decision at READ COMMITTED").ok || taken > 0.0);
        all_rows_or_none(&database).await;
        let left: f64 = balances(&database, "a").await.iter().sum();
        assert!((left - 27.0).abs() < 1e-3 || (left - 30.0).abs() < 1e-3 || (left - 2.0).abs() < 1e-3, "{left}");
    }
}

/// The reset's snapshot has four rows of the bucket, and eight exist when the reset goes on.
#[tokio::test]
async fn a_reset_that_waits_for_a_growing_bucket_deletes_all_of_it() {
    for reset in ["rate_limit.reset('n', 'a')", "rate_limit.reset('n')"] {
        let database = Database::migrated().await;
        bucket(&database, "a", &[25.0; 4]).await;
        let mut grows = database.pool.begin().await.expect("begin");
        let ask = Ask::limit(&["a"], 1.0, 8, 100.0).group();
        assert!(run(&mut grows, &ask).await.expect("a decision").ok);
        let sql = format!("SELECT true AS ok, {reset} AS wait, 0::float8 AS value");
        let resets = spawn(session(&database, "READ COMMITTED").await, sql);
        until_waiting(&database, 1).await;
        grows.commit().await.expect("commit");
        resets.await.expect("a task").expect("a reset");
        all_rows_or_none(&database).await;
        // A bucket of one row grants the whole capacity: rows left over from the eight must not grant more.
        let mut conn = session(&database, "READ COMMITTED").await;
        let all = Ask::limit(&["a"], 100.0, 1, 100.0).group();
        assert!(run(&mut conn, &all).await.expect("a decision").ok);
        for _ in 0..60 {
            let said = run(&mut conn, &Ask::limit(&["a"], 1.0, 8, 100.0).group()).await.expect("a decision");
            assert!(!said.ok, "{reset}: more than the capacity was granted");
        }
    }
}

/// The other way round: the surplus rows are deleted, and none stays.
#[tokio::test]
async fn a_reset_that_waits_for_a_shrinking_bucket_deletes_all_of_it() {
    for (to, reset) in [(2, "rate_limit.reset('n', 'a')"), (1, "rate_limit.reset('n')"), (2, "rate_limit.reset('n')")] {
        let database = Database::migrated().await;
        bucket(&database, "a", &[12.5; 8]).await;
        let mut shrinks = database.pool.begin().await.expect("begin");
        assert!(run(&mut shrinks, &Ask::limit(&["a"], 1.0, to, 100.0).group()).await.expect("a decision").ok);
        let sql = format!("SELECT true AS ok, {reset} AS wait, 0::float8 AS value");
        let resets = spawn(session(&database, "READ COMMITTED").await, sql);
        until_waiting(&database, 1).await;
        shrinks.commit().await.expect("commit");
        let gone = resets.await.expect("a task").expect("a reset").wait;
        assert_eq!((gone, database.rows().await), (Some(i64::from(to)), 0));
    }
}

/// The call waits for the fuller row, finds it empty, and reads the others.
#[tokio::test]
async fn under_read_committed_a_small_call_behind_a_large_one_is_decided() {
    let database = Database::migrated().await;
    bucket(&database, "a", &[99.0, 90.0]).await;
    let mut large = session(&database, "READ COMMITTED").await;
    let mut tx = large.begin().await.expect("begin");
    assert!(run(&mut tx, &Ask::limit(&["a"], 110.0, 2, 200.0).group()).await.expect("a decision").ok);
    let small = Ask::limit(&["a"], 1.0, 2, 200.0).group();
    let small = spawn(session(&database, "READ COMMITTED").await, small);
    until_waiting(&database, 1).await;
    tx.commit().await.expect("commit");
    assert!(small.await.expect("a task").expect("a decision").ok, "79 were left");
    let left: f64 = balances(&database, "a").await.iter().sum();
    assert!((left - 78.0).abs() < 1e-3, "{left}");
}

/// A new bucket in a group with a sharded one, whose drawn row is empty once it is locked. The placeholder that was inserted to
/// lock the new bucket does not count as a row.
#[tokio::test]
async fn under_read_committed_a_new_bucket_is_full_however_often_rows_are_read() {
    let database = Database::migrated().await;
    for _ in 0..4 {
        database.execute("DELETE FROM rate_limit.rate_limits").await;
        bucket(&database, "b", &[50.0; 2]).await;
        let mut other = database.pool.begin().await.expect("begin");
        let taken = "UPDATE rate_limit.rate_limits SET value = 0 WHERE shard = 0; SELECT FROM rate_limit.rate_limits WHERE shard = 1 FOR UPDATE";
        sqlx::raw_sql(taken).execute(&mut *other).await.expect("both rows");
        let group = "SELECT coalesce(call_admitted[1], 1) = 1 AS ok, call_waits[1] AS wait, item_values[1] AS value
            FROM rate_limit._decide('{token_bucket,token_bucket}', '{1,100}', '{3153600000000000,3153600000000000}',
              '{100,100}', NULL, NULL, NULL, '{NULL,2}', '{n,n}', '{a,b}', NULL, '{1,2}', '{1,1}', NULL, NULL, '{2}', NULL,
              NULL)";
        let group = spawn(session(&database, "READ COMMITTED").await, group.to_owned());
        until_waiting(&database, 1).await;
        other.commit().await.expect("commit");
        let said = group.await.expect("a task").expect("a decision");
        assert!(said.ok && said.value == 99.0, "{said:?}");
        assert_eq!(balances(&database, "a").await, [99.0]);
    }
}

/// The balance that was gathered before the wait is not used after it.
#[tokio::test]
async fn under_read_committed_a_window_that_was_reset_meanwhile_is_full() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let ask = |count| Ask { kind: "fixed_window", ..Ask::limit(&["a"], count, 4, 12.0) }.group();
    assert!(run(&mut conn, &ask(1.0)).await.expect("a decision").ok);
    let mut resets = database.pool.begin().await.expect("begin");
    sqlx::query("SELECT rate_limit.reset('n', 'a')").execute(&mut *resets).await.expect("a reset");
    let waits = spawn(session(&database, "READ COMMITTED").await, ask(5.0));
    until_waiting(&database, 1).await;
    resets.commit().await.expect("commit");
    assert!(waits.await.expect("a task").expect("a decision").ok);
    assert_eq!(balances(&database, "a").await.iter().sum::<f64>(), 7.0);
    all_rows_or_none(&database).await;
}

/// The same in one statement with a check of another bucket.
#[tokio::test]
async fn under_read_committed_a_reset_window_charges_no_other_bucket() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let both = Ask { kind: "fixed_window", ..Ask::limit(&["a", "b"], 1.0, 4, 12.0) }.group();
    assert!(run(&mut conn, &both).await.expect("a decision").ok);
    let mut resets = database.pool.begin().await.expect("begin");
    sqlx::query("SELECT rate_limit.reset('n', 'a')").execute(&mut *resets).await.expect("a reset");
    let sql = "SELECT true AS ok, NULL::bigint AS wait, 0::float8 AS value
        FROM rate_limit._decide('{fixed_window}', '{12}', '{3155760000000000}', NULL, NULL, '{0}', NULL, '{4}', '{n,n}', '{a,b}',
          '{1,2}', NULL, '{5,5}', '{limit,check}', NULL, NULL, NULL, NULL)";
    let waits = spawn(session(&database, "READ COMMITTED").await, sql.to_owned());
    until_waiting(&database, 1).await;
    resets.commit().await.expect("commit");
    waits.await.expect("a task").expect("a decision");
    all_rows_or_none(&database).await;
    assert_eq!(balances(&database, "b").await.iter().sum::<f64>(), 11.0);
    assert_eq!(balances(&database, "a").await.iter().sum::<f64>(), 7.0);
}

/// Rows that were deleted by hand count as full.
#[tokio::test]
async fn a_bucket_that_lacks_rows_keeps_its_promised_times() {
    let database = Database::migrated().await;
    for gone in ["shard IN (3, 4)", "shard = 2", "shard IN (0, 1)"] {
        database.execute("DELETE FROM rate_limit.rate_limits").await;
        let ask = |function: &str, count: u32, after: i64| {
            format!(
                "SELECT ok, (extract(epoch FROM retry_after) * 1000000)::bigint AS wait, value FROM rate_limit.{function}('n', 'k',
                   kind => 'token_bucket', rate => 10, period => '10 s', shards => 5, count => {count},
                   at => timestamptz '2026-01-01Z' + {after} * interval '1 microsecond')"
            )
        };
        let mut conn = session(&database, "READ COMMITTED").await;
        assert!(run(&mut conn, &ask("limit_with", 10, 0)).await.expect("a decision").ok);
        database.execute(&format!("DELETE FROM rate_limit.rate_limits WHERE {gone}")).await;
        let rows = database.rows().await;
        let said = run(&mut conn, &ask("check_with", 9, 0)).await.expect("a decision");
        assert_eq!(database.rows().await, rows, "{gone}: a check has written");
        let wait = said.wait.expect("a time to wait for");
        assert!(!run(&mut conn, &ask("check_with", 9, wait - 1000)).await.expect("a decision").ok, "{gone}");
        assert!(
            run(&mut conn, &ask("limit_with", 9, wait)).await.expect("a decision").ok,
            "{gone}: {wait} was promised"
        );
        all_rows_or_none(&database).await;
    }
}

/// Far from exhaustion, a decision writes one row; near it, only the rows that it needs.
#[tokio::test]
async fn a_decision_writes_few_rows() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let first = Ask::limit(&["a", "b"], 1.0, 16, 1600.0).group();
    assert!(run(&mut conn, &first).await.expect("a decision").ok);
    let written = "SELECT count(*) FROM rate_limit.rate_limits WHERE xmin::text::bigint = txid_current() % 4294967296";
    for level in LEVELS {
        for (keys, count, most) in [(&["a"][..], 1.0, 1), (&["a", "b"], 3.0, 2), (&["a"], 250.0, 3)] {
            let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
            let mut tx = conn.begin_with(begin).await.expect("begin");
            let ask = Ask::limit(keys, count, 16, 1600.0).group();
            assert!(run(&mut tx, &ask).await.expect("a decision").ok);
            let rows: i64 = sqlx::query_scalar(written).fetch_one(&mut *tx).await.expect("statistics");
            assert!((1..=most).contains(&rows), "{level}: {count} of {keys:?}: {rows} rows");
            tx.rollback().await.expect("rollback");
        }
    }
}

/// A session's first call and JIT are slow. The function takes that for a wait, and decides a second time.
#[tokio::test]
async fn a_reset_on_a_quiet_database_succeeds_at_every_level() {
    let database = Database::migrated().await;
    for level in LEVELS {
        for (kind, jit) in
            [("token_bucket", false), ("token_bucket", true), ("sliding_window", true), ("fixed_window", true)]
        {
            for _ in 0..3 {
                let mut conn = session(&database, level).await;
                if jit {
                    sqlx::raw_sql("SET jit = on; SET jit_above_cost = 0").execute(&mut conn).await.expect("settings");
                }
                let ask = |op, count| Ask { kind, op, count, ..Ask::limit(&["a"], count, 4, 100.0) }.group();
                assert!(run(&mut conn, &ask("limit", 60.0)).await.expect("a decision").ok);
                assert_eq!(database.rows().await, 4);
                // A new session, so that the reset is its first statement of this kind.
                let mut conn = session(&database, level).await;
                let said = run(&mut conn, &ask("reset", 0.0)).await;
                assert!(said.as_ref().is_ok_and(|said| said.value == 100.0), "{level}, {kind}: {said:?}");
                assert_eq!(database.rows().await, 0);
            }
        }
    }
}
