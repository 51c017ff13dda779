//! Pruning beside callers: no call waits or fails because of it, and nothing is granted twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pg_limiter::sqlx::{self, AssertSqlSafe};
use pg_limiter::{Error, Item, Limit, Limiter, LimiterConfig, Limits};

use crate::prune::fill;
use crate::support::Database;

const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

/// 10 tokens a day: almost none flow in while a test runs, and a row from the year 1970 is full again.
fn ten() -> Limit {
    Limit::token_bucket(10, Duration::from_secs(86_400)).build().expect("a limit")
}

#[tokio::test]
async fn prune_skips_locked_rows_without_waiting() {
    let database = Database::migrated().await;
    fill(&database, 20, "false").await;
    let mut config = LimiterConfig::default();
    config.retry.deadline = Duration::from_secs(2);
    let limiter = Limiter::with_config(database.pool.clone(), Limits::new(), config);
    let mut user = database.pool.begin().await.expect("begin");
    assert!(limiter.within(&mut user).limit(Item::new(("a", ten()), "k7")).await.expect("a decision").is_allowed());
    let mut reader = database.pool.begin().await.expect("begin");
    let lock = "SELECT FROM rate_limit.rate_limits WHERE key = 'k9' FOR KEY SHARE";
    sqlx::query(lock).execute(&mut *reader).await.expect("a lock");
    assert_eq!(limiter.prune().await.expect("it does not wait"), 18);
    assert_eq!(database.rows().await, 2);
    reader.rollback().await.expect("rollback");
    assert_eq!(limiter.prune().await.expect("pruned"), 1);
    // The tokens taken meanwhile stay taken.
    user.commit().await.expect("commit");
    assert_eq!(limiter.prune().await.expect("pruned"), 0);
    let left = limiter.peek(Item::new(("a", ten()), "k7")).await.expect("a balance").remaining();
    assert!((left - 9.0).abs() < 0.05, "{left}");
}

/// Calls on idle keys beside several pruners: each key admits what its limit grants, and no more.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: run tests/long"]
async fn nothing_is_granted_twice_while_rows_are_pruned() {
    const KEYS: u32 = 150;
    const ROUNDS: u32 = 3;
    const CAPACITY: u32 = 2;
    let limit = Limit::token_bucket(1e-6, CENTURY).capacity(CAPACITY).build().expect("a limit");
    for level in ["own", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let database = Database::migrated().await;
        let pool = Database::pool(&database.url, 12).await;
        let mut config = LimiterConfig::default();
        config.retry.max_attempts = 10_000;
        config.retry.deadline = Duration::from_secs(60);
        let limiter = Limiter::with_config(pool, Limits::new(), config);
        let (mut pruned, mut admitted) = (0, 0);
        for _ in 0..ROUNDS {
            // The rows have long been full: with a row or without, the key has its whole capacity.
            database.execute("TRUNCATE rate_limit.rate_limits").await;
            fill(&database, KEYS, "false").await;
            database.execute(&format!("UPDATE rate_limit.rate_limits SET value = {CAPACITY}")).await;
            let done = Arc::new(AtomicBool::new(false));
            let pruners: Vec<_> = (0..2)
                .map(|_| {
                    let (limiter, done) = (limiter.clone(), done.clone());
                    tokio::spawn(async move {
                        let mut pruned = 0;
                        while !done.load(Ordering::Relaxed) {
                            pruned += limiter.prune().await.expect("pruned");
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        pruned
                    })
                })
                .collect();
            let callers: Vec<_> = (0..4)
                .map(|nth| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        let mut admitted = 0;
                        for key in 0..KEYS {
                            // From both ends, so that some keys are being pruned at that moment.
                            let key = if nth % 2 == 0 { KEYS - key } else { key + 1 };
                            while ask(&limiter, level, || Item::new(("a", limit), format!("k{key}"))).await {
                                admitted += 1;
                            }
                        }
                        admitted
                    })
                })
                .collect();
            for caller in callers {
                admitted += caller.await.expect("a task");
            }
            done.store(true, Ordering::Relaxed);
            for pruner in pruners {
                pruned += pruner.await.expect("a task");
            }
            assert_eq!(database.rows().await, i64::from(KEYS), "{level}: all keys are in use now");
        }
        assert_eq!(admitted, ROUNDS * KEYS * CAPACITY, "{level}");
        assert!(pruned > 0, "{level}: nothing was pruned");
    }
}

async fn ask(limiter: &Limiter, level: &str, item: impl Fn() -> Item) -> bool {
    if level == "own" {
        return limiter.limit(item()).await.expect("a decision").is_allowed();
    }
    loop {
        let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
        let mut tx = limiter.pool().begin_with(begin).await.expect("begin");
        let result = match limiter.within(&mut tx).limit(item()).await {
            Ok(decision) => tx.commit().await.map(|()| decision.is_allowed()),
            Err(Error::Conflict { source }) => Err(source),
            Err(error) => panic!("{level}: {error}"),
        };
        match result {
            Ok(allowed) => return allowed,
            Err(error) => {
                let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
                assert!(level != "READ COMMITTED" && code == "40001", "{level}: {error}");
            }
        }
    }
}

/// A step reads what the caller writes, and deletes what the caller has read. Two SERIALIZABLE transactions would conflict.
#[tokio::test]
async fn pruning_causes_no_conflict_for_a_serializable_caller() {
    let database = Database::migrated().await;
    fill(&database, 20, "i = 2").await;
    let limiter = Limiter::new(database.pool.clone(), Limits::new());
    let mut caller = database.pool.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await.expect("begin");
    let idle = limiter.within(&mut caller).peek(Item::new(("a", ten()), "k1")).await.expect("a balance").remaining();
    assert_eq!(idle, 10.0);
    assert_eq!(limiter.prune().await.expect("pruned"), 19);
    let decision = limiter.within(&mut caller).limit(Item::new(("a", ten()), "k2")).await.expect("a decision");
    assert!(decision.is_allowed());
    caller.commit().await.expect("commit");
}

/// Several pruners find the same idle rows. When one of them has deleted a row, a caller takes the key again: none of the others
/// deletes the new row.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_in_place_of_a_deleted_one_stays() {
    const ROUNDS: i32 = 150;
    let database = Database::migrated().await;
    let done = Arc::new(AtomicBool::new(false));
    let pruners: Vec<_> = (0..4)
        .map(|_| {
            let (pool, done) = (database.pool.clone(), done.clone());
            tokio::spawn(async move {
                let mut pruned = 0;
                while !done.load(Ordering::Relaxed) {
                    let step = sqlx::query_scalar::<_, i64>("SELECT pruned FROM rate_limit.prune(1000)");
                    pruned += step.fetch_one(&pool).await.expect("pruned");
                }
                pruned
            })
        })
        .collect();
    // Each round, idle rows of 20 keys; once a row is gone, one that is not idle. Returns how many of those are gone.
    let lost: i64 = {
        let sql = format!(
            "DO $$
             DECLARE lost integer := 0;
             BEGIN
               FOR round IN 1 .. {ROUNDS} LOOP
                 DELETE FROM rate_limit.rate_limits;
                 INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT 'a', 'k' || n, 1, 0, 0 FROM generate_series(1, 20) n;
                 COMMIT;
                 FOR n IN 1 .. 20 LOOP
                   LOOP
                     INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) VALUES ('a', 'k' || n, 0, 0, 9e15)
                     ON CONFLICT DO NOTHING;
                     EXIT WHEN FOUND;
                     COMMIT;
                   END LOOP;
                   COMMIT;
                 END LOOP;
                 PERFORM pg_sleep(0.001);
                 lost := lost + 20 - (SELECT count(*) FROM rate_limit.rate_limits WHERE idle_at > 0);
                 COMMIT;
               END LOOP;
               PERFORM set_config('test.lost', lost::text, false);
             END $$"
        );
        let mut conn = database.pool.acquire().await.expect("a connection");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *conn).await.expect("the rounds");
        let lost = "SELECT current_setting('test.lost')::bigint";
        sqlx::query_scalar(lost).fetch_one(&mut *conn).await.expect("a count")
    };
    done.store(true, Ordering::Relaxed);
    let mut pruned = 0;
    for pruner in pruners {
        pruned += pruner.await.expect("a task");
    }
    assert_eq!(lost, 0, "rows in use were deleted");
    assert_eq!(pruned, i64::from(ROUNDS) * 20, "every idle row was pruned");
}
