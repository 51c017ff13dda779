//! Sharded limits: how they behave for callers, and what they cost.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::{self, AssertSqlSafe, PgConnection};
use pg_limiter::{Isolation, Item, Limit, Limiter, Limits};

use crate::support::gate::{CENTURY, limiter};
use crate::support::{Database, Events, watch};

const SHARDS: u32 = 8;

/// One limit of each kind, which hardly refills while a test runs.
fn limits(tokens: u32, shards: u32) -> Limits {
    let limits = || {
        Limits::new()
            .define("bucket", Limit::token_bucket(1e-6, CENTURY).capacity(tokens).shards(shards))?
            .define("fixed", Limit::fixed_window(tokens, CENTURY).shards(shards))?
            .define("sliding", Limit::sliding_window(tokens, CENTURY).resolution(3).shards(shards))
    };
    limits().expect("limits")
}

const KINDS: [&str; 3] = ["bucket", "fixed", "sliding"];

async fn rows(database: &Database, name: &str) -> Vec<(i32, i32, f64)> {
    let sql = "SELECT shard, shards, value FROM rate_limit.rate_limits WHERE name = $1 ORDER BY shard";
    sqlx::query_as(sql).bind(name).fetch_all(&database.pool).await.expect("rows")
}

/// Takes tokens one by one until a denial, and returns how many were taken.
async fn drain(limiter: &Limiter, name: &str) -> u32 {
    let mut admitted = 0;
    loop {
        let decision = limiter.limit((name, "k")).await.expect("a decision");
        if !decision.is_allowed() {
            assert!(decision.retry_after().is_some_and(|wait| wait > Duration::from_secs(1)), "{decision:?}");
            return admitted;
        }
        admitted += 1;
    }
}

#[tokio::test]
async fn no_token_is_stranded() {
    let database = Database::migrated().await;
    for shards in [2, 5, 10, 103] {
        let limiter = Limiter::new(database.pool.clone(), limits(103, shards));
        for name in KINDS {
            assert_eq!(drain(&limiter, name).await, 103, "{name}, {shards} shards");
            assert!(limiter.peek((name, "k")).await.expect("a balance").remaining().abs() < 1e-6);
            assert_eq!(rows(&database, name).await.len(), shards as usize);
            assert_eq!(limiter.reset((name, "k")).await.expect("reset"), ());
            assert_eq!(rows(&database, name).await, [], "{name}, {shards} shards");
            // All at once, on a bucket without rows and on one with some.
            let count = |count| limiter.limit((name, "k", count));
            assert!(count(103).await.expect("a decision").is_allowed());
            limiter.credit((name, "k", 50)).await.expect("credit");
            assert!(count(1).await.expect("a decision").is_allowed());
            assert!(!count(50).await.expect("a decision").is_allowed());
            assert!(count(49).await.expect("a decision").is_allowed(), "{name}, {shards} shards");
            limiter.reset((name, "k")).await.expect("reset");
        }
    }
}

#[tokio::test]
async fn a_charge_beyond_the_balance_is_owed_by_all_shards() {
    let database = Database::migrated().await;
    let limiter = Limiter::new(database.pool.clone(), limits(80, SHARDS));
    for name in KINDS {
        let _ = limiter.limit((name, "k")).await.expect("a decision");
        limiter.charge((name, "k", 5)).await.expect("charge");
        let left = limiter.peek((name, "k")).await.expect("a balance").remaining();
        assert!((left - 74.0).abs() < 1e-6, "{name}: {left}");
        limiter.charge((name, "k", 100)).await.expect("charge");
        let left = limiter.peek((name, "k")).await.expect("a balance").remaining();
        assert!((left + 26.0).abs() < 1e-6, "{name}: {left}");
        assert!(!limiter.limit((name, "k", 0)).await.expect("a decision").is_allowed(), "{name} owes tokens");
        limiter.credit((name, "k", 27)).await.expect("credit");
        assert!(limiter.limit((name, "k")).await.expect("a decision").is_allowed(), "{name}");
        assert!(!limiter.limit((name, "k")).await.expect("a decision").is_allowed(), "{name}");
    }
}

#[tokio::test]
async fn the_load_is_spread_evenly() {
    let database = Database::migrated().await;
    let limiter = Limiter::new(database.pool.clone(), limits(8000, SHARDS));
    for name in KINDS {
        let mut conn = database.pool.acquire().await.expect("a connection");
        for _ in 0..400 {
            assert!(limiter.within(&mut conn).limit((name, "k")).await.expect("a decision").is_allowed());
        }
        let taken: Vec<f64> = rows(&database, name)
            .await
            .iter()
            .map(|(_, _, value)| if name == "sliding" { *value } else { 1000.0 - value })
            .collect();
        assert!((taken.iter().sum::<f64>() - 400.0).abs() < 1e-3, "{name}: {taken:?}");
        // With one random choice they would differ by about 20; with two choices by a little more than log log 8.
        let (least, most) = taken.iter().fold((f64::MAX, 0.0), |(a, b), &x| (f64::min(a, x), f64::max(b, x)));
        assert!(most - least <= 10.0, "{name}: {taken:?}");
    }
}

/// The transaction's row counts for the table so far: fetched by an index, inserted, updated, deleted.
async fn touched(conn: &mut PgConnection) -> [i64; 4] {
    let sql = "SELECT ARRAY[idx_tup_fetch, n_tup_ins, n_tup_upd, n_tup_del] FROM pg_stat_xact_user_tables \
               WHERE relname = 'rate_limits'";
    let counts: Vec<i64> = sqlx::query_scalar(sql).fetch_one(conn).await.expect("statistics");
    counts.try_into().expect("four")
}

fn since(before: [i64; 4], after: [i64; 4]) -> [i64; 4] {
    std::array::from_fn(|nth| after[nth] - before[nth])
}

#[tokio::test]
async fn a_decision_far_from_exhaustion_reads_two_rows_and_writes_one() {
    let database = Database::migrated().await;
    let limiter = Limiter::new(database.pool.clone(), limits(8000, SHARDS));
    let all = || KINDS.map(|name| Item::new(name, "k"));
    let _ = limiter.limit(all()).await.expect("rows");
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let calls = KINDS.iter().map(|name| vec![Item::new(*name, "k")]).chain([all().to_vec()]);
        for items in calls {
            let buckets = items.len() as i64;
            let mut least_fetched = i64::MAX;
            // On a busy machine, a decision takes so long that it is made again.
            for _ in 0..3 {
                let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
                let mut tx = database.pool.begin_with(begin).await.expect("begin");
                let before = touched(&mut tx).await;
                let looked = limiter.within(&mut tx).check(items.clone()).await.expect("a decision");
                assert!(looked.is_allowed());
                let [fetched, written @ ..] = since(before, touched(&mut tx).await);
                assert_eq!(written, [0, 0, 0], "a check writes nothing");
                assert!(fetched <= 2 * buckets, "{level}: {items:?}: {fetched} rows");
                let before = touched(&mut tx).await;
                let decision = limiter.within(&mut tx).limit(items.clone()).await.expect("a decision");
                assert!(decision.is_allowed());
                let [fetched, inserted, _, deleted] = since(before, touched(&mut tx).await);
                least_fetched = least_fetched.min(fetched);
                let written = "SELECT count(*) FROM rate_limit.rate_limits WHERE xmin::text = (txid_current() % 4294967296)::text";
                let written: i64 = sqlx::query_scalar(written).fetch_one(&mut *tx).await.expect("a count");
                assert_eq!([inserted, written, deleted], [0, buckets, 0], "{level}: {items:?}");
                tx.rollback().await.expect("rollback");
            }
            // The two drawn rows, the same in a second pass, the locked row, and the written row, perhaps twice.
            assert!(least_fetched <= 7 * buckets, "{level}: {items:?}: {least_fetched} rows");
        }
    }
}

/// All calls that wait in one process are served from few rows.
#[tokio::test]
async fn a_batch_uses_few_shards() {
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        let database = Database::migrated().await;
        let limiter = limiter(&database.pool, limits(80_000, SHARDS), |config| config.isolation = isolation);
        for name in KINDS {
            let _ = limiter.limit((name, "k")).await.expect("rows");
            let versions = async || -> Vec<(i32, String)> {
                let sql = "SELECT shard, xmin::text FROM rate_limit.rate_limits WHERE name = $1 ORDER BY shard";
                sqlx::query_as(sql).bind(name).fetch_all(&database.pool).await.expect("rows")
            };
            let before = versions().await;
            let batches = limiter.batches();
            for said in join_all((0..300).map(|_| limiter.limit((name, "k")))).await {
                assert!(said.expect("a decision").is_allowed());
            }
            let batches = limiter.batches() - batches;
            let changed = before.iter().zip(versions().await).filter(|(before, after)| *before != after).count();
            assert!(changed as u64 <= batches, "{isolation:?}: {name}: {changed} rows by {batches} batches");
            let taken = 80_000.0 - limiter.peek((name, "k")).await.expect("a balance").remaining();
            assert!((taken - 301.0).abs() < 1e-3, "{isolation:?}: {name}: {taken}");
        }
    }
}

/// Changing the number of shards neither grants nor loses tokens, and leaves no row of the old number.
#[tokio::test]
async fn changing_the_number_of_shards_keeps_the_balance() {
    let database = Database::migrated().await;
    for name in KINDS {
        let mut left = 100.0;
        for shards in [1, 5, 3, 10, 1, 2, 1, 10] {
            let limiter = Limiter::new(database.pool.clone(), limits(100, shards));
            let seen = limiter.peek((name, "k")).await.expect("a balance").remaining();
            assert!((seen - left).abs() < 1e-6, "{name}: {seen} with {shards} shards, not {left}");
            assert!(
                limiter.limit((name, "k", left + 0.5)).await.is_ok_and(|decision| !decision.is_allowed())
                    || left + 0.5 > 100.0
            );
            assert!(limiter.limit((name, "k", 7)).await.expect("a decision").is_allowed(), "{name}: {shards}");
            left -= 7.0;
            let rows = rows(&database, name).await;
            assert_eq!(rows.len(), shards as usize, "{name}: {rows:?}");
            assert!(rows.iter().all(|(_, of, _)| *of == shards as i32), "{name}: {rows:?}");
        }
    }
}

/// Part of a bucket is never pruned, because an idle row still records when it was last used.
#[tokio::test]
async fn a_bucket_is_pruned_as_a_whole() {
    let database = Database::migrated().await;
    let limiter = Limiter::new(database.pool.clone(), limits(80, SHARDS));
    let _ = limiter.limit(("bucket", "k")).await.expect("rows");
    let one_is_busy = "UPDATE rate_limit.rate_limits SET idle_at = CASE WHEN shard = 5 THEN 9e15 ELSE 0 END";
    database.execute(one_is_busy).await;
    for step in [1, 3, 1000] {
        let mut after = (None::<String>, None::<String>, None::<i32>);
        loop {
            let sql = "SELECT pruned, last_name, last_key, last_shard FROM rate_limit.prune($1, $2, $3, $4)";
            let (pruned, name, key, shard): (i64, Option<String>, Option<String>, Option<i32>) = sqlx::query_as(sql)
                .bind(step)
                .bind(after.0)
                .bind(after.1)
                .bind(after.2)
                .fetch_one(&database.pool)
                .await
                .expect("a step");
            assert_eq!(pruned, 0);
            if name.is_none() {
                break;
            }
            after = (name, key, shard);
        }
        assert_eq!(database.rows().await, i64::from(SHARDS));
    }
    database.execute("UPDATE rate_limit.rate_limits SET idle_at = 0").await;
    assert_eq!(limiter.prune().await.expect("pruned"), u64::from(SHARDS));
    assert_eq!(database.rows().await, 0);
}

#[test]
fn the_number_of_shards_is_recommended_and_too_many_are_warned_about() {
    let limit = |tokens: f64, shards| Limit::token_bucket(tokens, CENTURY).shards(shards).build();
    let plain = limit(1000.0, 1).expect("a limit");
    for (peak, shards) in
        [(0.0, 1), (-5.0, 1), (f64::NAN, 1), (2.0, 1), (3.0, 2), (100.0, 50), (1e9, 100), (f64::INFINITY, 100)]
    {
        assert_eq!(plain.recommended_shards(peak), shards, "{peak} a second");
    }
    assert_eq!(limit(15.0, 1).expect("a limit").recommended_shards(1e3), 1);
    assert_eq!(limit(1e9, 1).expect("a limit").recommended_shards(1e9), 1000);
    let error = limit(10.0, 11).expect_err("too many").to_string();
    assert!(error.contains("10 tokens over 11 shards are 0.909") && error.contains("at most 10"), "{error}");
    assert_eq!(limit(10.0, 10).expect("a limit").warnings().len(), 1);
    let warning = limit(24.0, 5).expect("a limit").warnings()[0].to_string();
    assert!(
        warning.contains("24 tokens over 5 shards are 4.8 each") && warning.contains("; use at most 4"),
        "{warning}"
    );
    assert_eq!(limit(25.0, 5).expect("a limit").warnings(), []);
    assert_eq!(limit(0.5, 1).expect("a limit").warnings(), []);
}

#[tokio::test]
async fn a_limiter_traces_its_warnings() {
    let events = Events::default();
    let _traced = watch(events.clone());
    let database = Database::empty().await;
    let _ = Limiter::new(database.pool.clone(), limits(80, SHARDS));
    assert_eq!(events.told(), "");
    let _ = Limiter::new(database.pool.clone(), limits(39, SHARDS));
    assert_eq!(events.told().matches("39 tokens over 8 shards are 4.875 each").count(), 3, "{}", events.told());
}

#[tokio::test]
async fn sql_supports_shards() {
    let database = Database::migrated().await;
    let sql = "SELECT count(*) FILTER (WHERE ok) FROM generate_series(1, 12) AS nth, LATERAL (
        SELECT ok FROM rate_limit.limit_with('b', 'k', kind => 'sliding_window', rate => 10, period => '365 days', shards => 3, count => 1 + 0 * nth)) AS r";
    let admitted: i64 = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("decisions");
    assert_eq!(admitted, 10);
    let reset: i64 =
        sqlx::query_scalar("SELECT rate_limit.reset('b', 'k')").fetch_one(&database.pool).await.expect("reset");
    assert_eq!(reset, 3);
}
