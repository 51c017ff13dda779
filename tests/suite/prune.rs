//! Pruning deletes exactly the rows that mean the same as no row, step by step.

use std::cell::Cell;

use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use pg_limiter::{Error, Limiter, Limits};
use proptest::prelude::*;

use crate::model::{Kind, Rule};
use crate::properties::{ALL, NOW, check, rule};
use crate::support::{Answer, Database, Step, decide};

/// Stops the limiter's clock, so that the test chooses which rows are idle.
async fn stop_the_clock(conn: &mut PgConnection) {
    let clock = "CREATE OR REPLACE FUNCTION rate_limit._clock() RETURNS bigint LANGUAGE sql AS";
    sqlx::query(AssertSqlSafe(format!("{clock} 'SELECT {NOW}::bigint'"))).execute(conn).await.expect("a clock");
}

async fn prune(conn: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT pruned FROM rate_limit.prune(100000)").fetch_one(conn).await.expect("pruned")
}

async fn names(conn: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar("SELECT name FROM rate_limit.rate_limits ORDER BY name").fetch_all(conn).await.expect("names")
}

/// A sample of decisions from now on: the balance, the whole capacity at once and reserved, later calls, and one long after.
async fn probe(conn: &mut PgConnection, name: &str, rule: &Rule) -> Vec<Answer> {
    let most = rule.capacity.unwrap_or(rule.rate);
    let step = |op, count, reserve, after: i64| Step {
        leaves: Vec::new(),
        op,
        reserve: reserve && rule.kind != Kind::SlidingWindow,
        at: Some(NOW + after),
        items: vec![(name, "k", rule, count)],
    };
    let part = rule.period_us / 5;
    let steps = [
        step("check", 0.0, false, 0),
        step("check", most, false, 0),
        step("check", most, true, 1),
        step("check", 0.0, false, part),
        step("limit", most / 3.0, false, part),
        step("limit", most, false, part),
        step("limit", most, true, 2 * part),
        step("check", most, false, 9 * part),
    ];
    let mut tx = conn.begin().await.expect("begin");
    let answers = decide(&mut tx, &steps).await.expect("decisions");
    tx.rollback().await.expect("rollback");
    answers
}

/// Equal up to rounding within a microsecond.
fn alike(one: &[Answer], other: &[Answer]) -> bool {
    one.iter().zip(other).all(|(one, other)| {
        let near = |(one, other): (Option<i64>, Option<i64>)| match (one, other) {
            (Some(one), Some(other)) => (one - other).abs() <= 2,
            (one, other) => one == other,
        };
        one.ok == other.ok
            && near((one.wait, other.wait))
            && (one.value - other.value).abs() <= 1e-9 * (1.0 + one.value.abs())
    })
}

#[test]
fn prune_deletes_exactly_the_rows_without_effect() {
    // When a key was used, in thousandths of the period before now; the share of the capacity; the operation.
    let use_ = (0..3_000_i64, 1..5_u32, prop_oneof![6 => Just("limit"), 1 => Just("charge"), 2 => Just("credit")]);
    let key = (rule(ALL), proptest::collection::vec(use_, 1..4), 1..1_000_i64).prop_map(|(mut rule, uses, odd)| {
        // No grid ends so close to NOW that the remaining effect would be lost in rounding.
        rule.start_us += 10_000;
        (rule, uses, odd)
    });
    let (gone, kept) = (Cell::new(0), Cell::new(0));
    check(12, &proptest::collection::vec(key, 20..60), async |conn: &mut PgConnection, keys| {
        stop_the_clock(conn).await;
        let named: Vec<_> = keys.iter().enumerate().map(|(nth, key)| (format!("limit {nth:02}"), key)).collect();
        for (name, (rule, uses, odd)) in &named {
            let most = rule.capacity.unwrap_or(rule.rate);
            let mut uses = uses.clone();
            uses.sort_unstable_by_key(|(ago, ..)| -ago);
            for (ago, quarters, op) in uses {
                let at = Some(NOW - (ago * rule.period_us / 1000 + odd * rule.period_us / 1_000_000));
                let items = vec![(name.as_str(), "k", rule, most * f64::from(quarters) / 4.0)];
                decide(conn, &[Step { leaves: Vec::new(), op, reserve: false, at, items }]).await.expect("a decision");
            }
        }
        let with_rows = names(conn).await;
        let mut before = Vec::new();
        let mut without_effect = Vec::new();
        for (name, (rule, ..)) in &named {
            let answers = probe(conn, name, rule).await;
            let full = probe(conn, "no row", rule).await;
            if with_rows.contains(name) && alike(&answers, &full) {
                without_effect.push(name.clone());
            }
            before.push(answers);
        }
        let pruned = prune(conn).await;
        let left = names(conn).await;
        let removed: Vec<String> = with_rows.iter().filter(|name| !left.contains(name)).cloned().collect();
        assert_eq!(removed, without_effect);
        assert_eq!(pruned, removed.len() as i64);
        for ((name, (rule, ..)), before) in named.iter().zip(&before) {
            let after = probe(conn, name, rule).await;
            assert!(alike(before, &after), "{name} {rule:?}: {before:?}, then {after:?}");
        }
        gone.set(gone.get() + removed.len());
        kept.set(kept.get() + left.len());
    });
    assert!(gone.get() > 50 && kept.get() > 50, "{gone:?} gone, {kept:?} kept");
}

/// To the microsecond, for each kind.
#[tokio::test]
async fn a_row_is_pruned_from_the_moment_it_means_the_same_as_no_row() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    stop_the_clock(&mut conn).await;
    // When the last effect ends: 10 tokens have flowed in, the next window has begun, the sub-interval has left the window.
    for (kind, resolution, lasts) in
        [(Kind::TokenBucket, 1, 10), (Kind::FixedWindow, 1, 10), (Kind::SlidingWindow, 5, 12)]
    {
        for late in [0, 1] {
            let (capacity, max_reserved) = (None, None);
            // NOW is a multiple of the period; the grid is shifted with the time of use.
            let rule =
                Rule { kind, rate: 10.0, period_us: 10, capacity, max_reserved, start_us: late, resolution, shards: 1 };
            let items = vec![("a", "k", &rule, 10.0)];
            let used = Step { leaves: Vec::new(), op: "limit", reserve: false, at: Some(NOW - lasts + late), items };
            assert!(decide(&mut conn, &[used]).await.expect("a decision")[0].ok);
            assert_eq!((prune(&mut conn).await, database.rows().await), (1 - late, late), "{kind:?}");
        }
        sqlx::query("TRUNCATE rate_limit.rate_limits").execute(&mut conn).await.expect("truncate");
    }
}

/// Rows of the limit `a`, with a balance of 0; the idle ones mean the same as no row.
pub async fn fill(database: &Database, keys: u32, idle_unless: &str) {
    let idle_at = format!("CASE WHEN {idle_unless} THEN 9000000000000000000 ELSE {NOW} END");
    let keys = format!("generate_series(1, {keys}) AS i");
    let columns = "(name, key, value, ts, idle_at)";
    database
        .execute(&format!(
            "INSERT INTO rate_limit.rate_limits {columns} SELECT 'a', 'k' || i, 0, 0, {idle_at} FROM {keys}"
        ))
        .await;
}

#[tokio::test]
async fn pruning_step_by_step_visits_every_row() {
    let database = Database::migrated().await;
    fill(&database, 3_500, "i % 7 = 0").await;
    // Names and keys that differ little, and shards.
    let others = "INSERT INTO rate_limit.rate_limits (name, key, shard, value, ts, idle_at) SELECT n, k, s, 0, 0, 0 FROM unnest(ARRAY['a', 'a ', 'b', 'k1']) AS n, \
                  unnest(ARRAY['', ' ', 'Z', 'ä']) AS k, generate_series(0, 2) AS s";
    database.execute(others).await;
    let limiter = database.limiter(Limits::new());
    let mut tx = database.pool.begin().await.expect("begin");
    let (mut steps, mut pruned) = (0, 0);
    let mut after: (Option<String>, Option<String>, Option<i32>) = (None, None, None);
    loop {
        let (rows, name, key, shard): (i64, Option<String>, Option<String>, Option<i32>) =
            sqlx::query_as("SELECT * FROM rate_limit.prune(10, $1, $2, $3)")
                .bind(&after.0)
                .bind(&after.1)
                .bind(after.2)
                .fetch_one(&mut *tx)
                .await
                .expect("a step");
        assert!(rows <= 10, "{rows} in a step");
        pruned += rows;
        steps += 1;
        after = (name, key, shard);
        if after.0.is_none() {
            break;
        }
    }
    assert_eq!((steps, pruned), (355, 3_048));
    tx.rollback().await.expect("rollback");
    assert_eq!(limiter.prune().await.expect("pruned"), 3_048);
    assert_eq!(database.rows().await, 500);
    assert_eq!(limiter.prune().await.expect("pruned"), 0);
    for step in ["0", "-1", "NULL"] {
        let sql = AssertSqlSafe(format!("SELECT rate_limit.prune({step})"));
        let error = sqlx::query(sql).execute(&database.pool).await.expect_err("no step");
        assert!(error.to_string().contains("invalid_step"), "{error}");
    }
}

#[tokio::test]
async fn a_role_needs_only_execute_to_prune() {
    let database = Database::migrated().await;
    fill(&database, 3, "i = 1").await;
    let role = format!("pruner_{}", std::process::id());
    database.execute(&format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role}")).await;
    let set = format!("SET ROLE {role}");
    let options = PgPoolOptions::new().max_connections(2).after_connect(move |conn, _| {
        let set = AssertSqlSafe(set.clone());
        Box::pin(async move { sqlx::query(set).execute(conn).await.map(|_| ()) })
    });
    let pool = options.connect(&database.url).await.expect("connect");
    let limiter = Limiter::new(pool.clone(), Limits::new());
    let error = limiter.prune().await.expect_err("no privilege");
    assert!(matches!(error, Error::Database { .. }) && error.to_string().contains("permission denied"), "{error}");
    database
        .execute(&format!(
            "GRANT USAGE ON SCHEMA rate_limit TO {role}; GRANT EXECUTE ON FUNCTION rate_limit.prune, rate_limit._prune_answers TO {role}"
        ))
        .await;
    assert_eq!(limiter.prune().await.expect("pruned"), 2);
    let refused = sqlx::query("DELETE FROM rate_limit.rate_limits").execute(&pool).await.expect_err("out of reach");
    assert!(refused.to_string().contains("permission denied"), "{refused}");
    pool.close().await;
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// The step is planned on an empty table and run on a large one. It reads only its own rows, by the primary key.
#[tokio::test]
async fn no_step_reads_more_than_its_rows() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    database
        .execute("ALTER TABLE rate_limit.rate_limits SET (autovacuum_enabled = off); ANALYZE rate_limit.rate_limits")
        .await;
    let step = "SELECT pruned FROM rate_limit.prune(100, 'a', 'k5', 0)";
    for _ in 0..12 {
        sqlx::query(step).execute(&mut conn).await.expect("a step");
    }
    fill(&database, 20_000, "i % 2 = 0").await;
    let reads =
        "SELECT seq_scan + seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'rate_limits'";
    let mut tx = conn.begin().await.expect("begin");
    let pruned: i64 = sqlx::query_scalar(step).fetch_one(&mut *tx).await.expect("a step");
    assert!((30..=70).contains(&pruned), "{pruned}");
    let (scanned, fetched): (i64, i64) = sqlx::query_as(reads).fetch_one(&mut *tx).await.expect("statistics");
    // Each of the 100 rows is read; each deleted one is also locked and deleted.
    assert!(scanned == 0 && fetched <= 100 + 2 * pruned, "{scanned} scanned, {fetched} fetched");
    tx.rollback().await.expect("rollback");
}
