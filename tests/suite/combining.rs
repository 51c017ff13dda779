//! Calls that wait at the same time are decided in one batch, each as if it had been made alone.

use std::time::Duration;

use futures_util::FutureExt;
use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Error, Isolation, Item, Limit, Limiter, Limits, RetryPolicy};

use crate::support::Database;
use crate::support::gate::{CENTURY, Gate, backends, hold, lazy_pool, limiter, until_waiting};

const CAPACITY: u32 = 300;

/// Nearly nothing flows in while a test runs.
fn limits() -> Limits {
    Limits::new().define("a", Limit::token_bucket(CAPACITY, CENTURY)).expect("a limit")
}

fn one_lane(pool: &PgPool) -> Limiter {
    limiter(pool, limits(), |config| config.lanes = 1)
}

async fn taken(limiter: &Limiter, key: &str) -> f64 {
    f64::from(CAPACITY) - limiter.peek(("a", key)).await.expect("a balance").remaining().round()
}

async fn clock(database: &Database) -> i64 {
    sqlx::query_scalar("SELECT rate_limit._clock()").fetch_one(&database.pool).await.expect("the clock")
}

#[tokio::test]
async fn many_callers_need_few_batches_and_are_served_in_order() {
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        let database = Database::migrated().await;
        let limiter = limiter(&database.pool, limits(), |config| config.isolation = isolation);
        limiter.charge(("a", "k", 0)).await.expect("a row");
        let holder = hold(&database, "a", &["k"]).await;
        let before = limiter.batches();
        let first = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.limit(("a", "k")).await }
        });
        until_waiting(&database, 1).await;
        let began = clock(&database).await;
        let others = futures_util::future::join_all((1..500).map(|_| limiter.limit(("a", "k"))));
        let (others, released) = tokio::join!(others, holder.rollback());
        released.expect("rollback");
        let first = first.await.expect("a task");
        let decisions: Vec<_> = std::iter::once(first).chain(others).map(|said| said.expect("a decision")).collect();
        assert!(limiter.batches() - before <= 2, "{isolation:?}: {} batches", limiter.batches() - before);
        for (nth, decision) in (1..=CAPACITY).zip(&decisions) {
            let left = f64::from(CAPACITY - nth);
            assert!(decision.is_allowed() && (decision.remaining() - left).abs() < 1e-3, "{nth}: {decision:?}");
        }
        let ended = clock(&database).await;
        let sql = "SELECT value, ts FROM rate_limit.rate_limits WHERE name = 'a'";
        let (value, ts): (f64, i64) = sqlx::query_as(sql).fetch_one(&database.pool).await.expect("the row");
        let token = CENTURY.as_micros() as f64 / f64::from(CAPACITY);
        let full = ts as f64 + (1.0 - value) * token;
        for decision in &decisions[CAPACITY as usize..] {
            assert!(decision.is_denied() && decision.remaining().abs() < 1e-3, "{isolation:?}: {decision:?}");
            let asked = full - decision.retry_after().expect("a time").as_micros() as f64;
            assert!(asked > began as f64 - 9.0 && asked < ended as f64 + 9.0, "{asked} in {began}..{ended}");
        }
    }
}

#[tokio::test]
async fn a_batch_is_bounded() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(), |config| (config.lanes, config.max_batch) = (1, 4));
    let gate = Gate::close(&database, &limiter, 1).await;
    let decisions = gate.gathered((0..20).map(|_| limiter.limit(("a", "k")))).await;
    assert!(decisions.into_iter().all(|decision| decision.expect("a decision").is_allowed()));
    assert_eq!(limiter.batches(), 1 + 20 / 4);
}

#[tokio::test]
async fn a_full_queue_rejects_new_calls_and_serves_waiting_ones() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(), |config| (config.lanes, config.max_waiting) = (1, 10));
    let gate = Gate::close(&database, &limiter, 1).await;
    let decisions = gate.gathered((0..15).map(|_| limiter.limit(("a", "k")))).await;
    for (nth, decision) in decisions.into_iter().enumerate() {
        match decision {
            Ok(decision) => assert!(nth < 10 && decision.is_allowed(), "{nth}"),
            Err(Error::Overloaded { waiting: 10 }) => assert!(nth >= 10, "{nth}"),
            Err(error) => panic!("{nth}: {error}"),
        }
    }
    assert_eq!(taken(&limiter, "k").await, 10.0);
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed(), "the queue has room again");
}

/// A dropped call frees its place in the queue.
#[tokio::test]
async fn dropped_calls_do_not_fill_the_queue() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(), |config| (config.lanes, config.max_waiting) = (1, 10));
    let gate = Gate::close(&database, &limiter, 1).await;
    for _ in 0..25 {
        assert!(limiter.limit(("a", "k")).now_or_never().is_none(), "enqueued, and dropped");
    }
    let decisions = gate.gathered([limiter.limit(("a", "k"))]).await;
    assert!(decisions.into_iter().all(|decision| decision.expect("a decision").is_allowed()));
    assert_eq!(taken(&limiter, "k").await, 1.0);
}

async fn bad_key(database: &Database, code: &str, times: u32) {
    database
        .execute(&format!(
            "CREATE SEQUENCE tries;
             CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF nextval('public.tries') <= {times} THEN RAISE EXCEPTION 'spoilt' USING ERRCODE = '{code}'; END IF;
               RETURN NEW;
             END $$;
             CREATE TRIGGER spoil BEFORE INSERT OR UPDATE ON rate_limit.rate_limits FOR EACH ROW WHEN (NEW.key = 'bad')
             EXECUTE FUNCTION spoil()"
        ))
        .await;
}

#[tokio::test]
async fn a_bad_call_fails_alone() {
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        for lanes in [1, 4] {
            let database = Database::migrated().await;
            bad_key(&database, "22023", 1_000_000).await;
            let limiter = limiter(&database.pool, limits(), |config| {
                (config.isolation, config.lanes) = (isolation, lanes);
            });
            let gate = Gate::close(&database, &limiter, lanes).await;
            let calls = (0..50).map(|nth| match nth {
                25 => vec![Item::new("a", "bad")],
                nth if nth % 5 == 0 => vec![Item::new("a", "k"), Item::new("a", "l")],
                _ => vec![Item::new("a", "k")],
            });
            let said = gate.gathered(calls.map(|items| limiter.limit(items))).await;
            for (nth, said) in said.into_iter().enumerate() {
                match (nth, said) {
                    (25, Err(Error::Database { source })) => {
                        let database = source.as_database_error().expect("the server's error");
                        assert_eq!((database.code().as_deref(), database.message()), (Some("22023"), "spoilt"));
                    }
                    (25, other) => panic!("the bad one: {other:?}"),
                    (nth, said) => assert!(said.expect("a decision").is_allowed(), "{nth}"),
                }
            }
            assert_eq!((taken(&limiter, "k").await, taken(&limiter, "l").await), (49.0, 9.0));
        }
    }
}

/// A batch that succeeds on a retry fails no call and charges no call twice.
#[tokio::test]
async fn a_conflict_is_retried_for_the_whole_batch() {
    let database = Database::migrated().await;
    bad_key(&database, "40001", 3).await;
    let limiter = one_lane(&database.pool);
    let gate = Gate::close(&database, &limiter, 1).await;
    let keys = (0..50).map(|nth| if nth == 25 { "bad" } else { "k" });
    let decisions = gate.gathered(keys.map(|key| limiter.limit(("a", key)))).await;
    assert!(decisions.into_iter().all(|decision| decision.expect("a decision").is_allowed()));
    assert_eq!((taken(&limiter, "k").await, taken(&limiter, "bad").await, limiter.retries()), (49.0, 1.0, 3));
}

fn with_retries(pool: &PgPool, change: impl FnOnce(&mut RetryPolicy)) -> Limiter {
    limiter(pool, limits(), |config| {
        config.lanes = 1;
        change(&mut config.retry);
    })
}

/// Behind a locked row, each call has the whole time until its own deadline, however long the others in its batch have
/// waited.
#[tokio::test]
async fn each_call_has_its_own_deadline() {
    let database = Database::migrated().await;
    // Several keys, because chance decides which time limit ends first: the client's or the server's.
    futures_util::future::join_all(["k", "l", "m", "n"].map(|key| outlives_an_older_one(&database, key))).await;
}

async fn outlives_an_older_one(database: &Database, key: &str) {
    let limiter = with_retries(&database.pool, |retry| retry.deadline = Duration::from_secs(3));
    limiter.charge(("a", key, 0)).await.expect("a row");
    let holder = hold(database, "a", &[key]).await;
    let later = async |millis| {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        limiter.limit(("a", key)).await
    };
    let release = async {
        let (first, early) = tokio::join!(limiter.limit(("a", key)), later(300));
        for said in [first, early] {
            let error = said.expect_err("the row is held");
            assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        }
        holder.rollback().await.expect("rollback");
    };
    let (late, ()) = tokio::join!(later(2_400), release);
    assert!(late.expect("2 s were left when the row was unlocked").is_allowed());
    assert_eq!(taken(&limiter, key).await, 1.0);
}

/// The first call has no time left for a retry, but the others have.
#[tokio::test]
async fn an_expired_call_does_not_end_the_retries_of_the_others() {
    let database = Database::migrated().await;
    bad_key(&database, "40001", 1).await;
    let pause = Duration::from_millis(900);
    let limiter = with_retries(&database.pool, |retry| {
        retry.deadline = Duration::from_secs(4);
        (retry.initial, retry.max, retry.jitter) = (pause, pause, 0.0);
    });
    let gate = Gate::close(&database, &limiter, 1).await;
    let old = limiter.limit(("a", "bad"));
    let young = async {
        tokio::time::sleep(Duration::from_millis(3_300)).await;
        tokio::join!(limiter.limit(("a", "k")), gate.open()).0
    };
    let (_, young) = tokio::join!(old, young);
    assert!(young.expect("3 s were left").is_allowed());
}

/// Only the calls that need a locked row wait for it.
#[tokio::test]
async fn a_locked_row_does_not_delay_the_other_calls_of_its_batch() {
    let database = Database::migrated().await;
    let limiter = with_retries(&database.pool, |retry| retry.deadline = Duration::from_secs(4));
    limiter.charge(("a", "held", 0)).await.expect("a row");
    let holder = hold(&database, "a", &["held"]).await;
    let gate = Gate::close(&database, &limiter, 1).await;
    let mut said = gate.gathered(["held", "k", "l"].map(|key| limiter.limit(("a", key)))).await.into_iter();
    let error = said.next().expect("an answer").expect_err("the row is held");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    for neighbour in said {
        assert!(neighbour.expect("that row is not locked").is_allowed());
    }
    holder.rollback().await.expect("rollback");
}

#[tokio::test]
async fn a_call_dropped_before_its_batch_forms_is_not_charged() {
    let database = Database::migrated().await;
    let limiter = one_lane(&database.pool);
    let gate = Gate::close(&database, &limiter, 1).await;
    for _ in 0..7 {
        assert!(limiter.limit(("a", "k")).now_or_never().is_none());
        assert!(limiter.limit([Item::new("a", "k"), Item::new("a", "l")]).now_or_never().is_none());
    }
    let decisions = gate.gathered((0..5).map(|_| limiter.limit(("a", "k")))).await;
    assert!(decisions.into_iter().all(|decision| decision.expect("a decision").is_allowed()));
    assert_eq!((taken(&limiter, "k").await, taken(&limiter, "l").await), (5.0, 0.0));
}

/// A retry forms a new batch.
#[tokio::test]
async fn a_call_dropped_between_two_attempts_is_not_charged() {
    let database = Database::migrated().await;
    bad_key(&database, "40001", 2).await; // The first retry follows without a pause.
    let pause = Duration::from_secs(2);
    let limiter = with_retries(&database.pool, |retry| {
        retry.deadline = Duration::from_secs(60);
        (retry.initial, retry.max) = (pause, pause);
    });
    let stays = futures_util::future::join(limiter.limit(("a", "bad")), limiter.limit(("a", "k")));
    let goes = futures_util::future::join_all((0..20).map(|_| limiter.limit(("a", "k"))));
    let goes = async {
        tokio::select! {
            _ = goes => panic!("two attempts have failed, and the third follows after a pause"),
            () = async {
                while limiter.retries() < 2 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            } => {}
        }
    };
    let ((bad, neighbour), ()) = tokio::join!(stays, goes);
    assert!(bad.expect("a decision").is_allowed() && neighbour.expect("a decision").is_allowed());
    assert_eq!(taken(&limiter, "k").await, 1.0);
}

/// The statement goes on: the other calls get their decisions, and the balance shows what was charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_dropped_during_its_batch_affects_no_other() {
    let database = Database::migrated().await;
    let limiter = one_lane(&database.pool);
    limiter.charge(("a", "k", 0)).await.expect("a row");
    let gate = Gate::close(&database, &limiter, 1).await;
    let holder = hold(&database, "a", &["k"]).await;
    let tasks: Vec<_> = (0..30)
        .map(|nth| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let call = limiter.limit([Item::new("a", "k"), Item::new("a", "l")]);
                match nth % 3 {
                    0 => Some(call.await),
                    1 => tokio::time::timeout(Duration::from_millis(150), call).await.ok(),
                    _ => tokio::select! {
                        said = call => Some(said),
                        () = tokio::time::sleep(Duration::from_millis(100)) => None,
                    },
                }
            })
        })
        .collect();
    gate.open().await;
    until_waiting(&database, 1).await;
    tasks[3].abort();
    tokio::time::sleep(Duration::from_millis(300)).await;
    holder.rollback().await.expect("rollback");
    let mut returned = 0.0;
    for (nth, task) in tasks.into_iter().enumerate() {
        match task.await {
            Ok(Some(said)) => {
                assert!(said.expect("a decision").is_allowed());
                returned += 1.0;
            }
            Ok(None) => assert_ne!(nth % 3, 0),
            Err(error) => assert!(error.is_cancelled() && nth == 3, "{error}"),
        }
    }
    assert!(returned >= 9.0);
    let (k, l) = (taken(&limiter, "k").await, taken(&limiter, "l").await);
    assert!(k == l && (returned..=30.0).contains(&k), "{k} and {l} were taken, {returned} calls returned");
}

#[tokio::test]
async fn close_answers_every_call_and_leaves_no_connection() {
    let database = Database::migrated().await;
    let pool = lazy_pool(&database, "limited");
    let limiter = limiter(&pool, limits(), |config| config.lanes = 4);
    let gate = Gate::close(&database, &limiter, 4).await;
    assert_eq!(backends(&database, "limited").await, 4);
    let keys: Vec<String> = (0..400).map(|nth| (nth % 40).to_string()).collect();
    let calls = futures_util::future::join_all(keys.iter().map(|key| limiter.limit(("a", key.as_str()))));
    let ((), said, ()) = tokio::join!(
        async {
            tokio::task::yield_now().await; // Close after the calls are made.
            limiter.close().await;
        },
        calls,
        gate.open()
    );
    for said in said {
        assert!(said.expect("a decision").is_allowed());
    }
    for _ in 0..100 {
        if backends(&database, "limited").await == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(backends(&database, "limited").await, 0);
    for limiter in [limiter.clone(), limiter.clone()] {
        assert!(matches!(limiter.limit(("a", "k")).await, Err(Error::Closed)));
        assert!(matches!(limiter.peek(("a", "k")).await, Err(Error::Closed)));
        assert!(matches!(limiter.reset_all_keys("a").await, Err(Error::Closed)));
        assert!(matches!(limiter.transaction(async |_| Ok::<_, Error>(())).await, Err(Error::Closed)));
        let queue = Queue::new(&limiter, "q").expect("a queue");
        let job = || Job::new(("a", "k"), &1).expect("a job");
        assert!(matches!(queue.enqueue(job()).await, Err(Error::Closed)));
        assert!(matches!(queue.enqueue_all([job()]).await, Err(Error::Closed)));
    }
    limiter.close().await;
    let mut tx = database.pool.begin().await.expect("begin");
    let balances = limiter.within(&mut tx).peek(("a", "7")).await.expect("balances");
    assert_eq!(balances.remaining().round(), f64::from(CAPACITY) - 10.0);
    tx.commit().await.expect("commit");
}

/// `close` takes effect at its first poll, in all lanes, even if its future is dropped.
#[tokio::test]
async fn close_rejects_new_calls_whichever_lane_is_busy() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(), |config| config.lanes = 4);
    let gate = Gate::close(&database, &limiter, 4).await;
    assert!(limiter.close().now_or_never().is_none(), "calls are under way");
    for nth in 0..64 {
        let said = limiter.limit(("a", nth.to_string())).now_or_never();
        assert!(matches!(said, Some(Err(Error::Closed))), "key {nth} was not rejected: {said:?}");
    }
    gate.open().await;
    limiter.close().await;
}
