//! Settings of the database or a role that an administrator made for other statements: the limiter works with them, or
//! returns at once an error that names them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pg_limiter::migrate::{MigrateError, Migrator};
use pg_limiter::queue::{Finish, Handler, Job, JobState, Queue, RunningJob, WorkerConfig, handler_fn};
use pg_limiter::sqlx::{self, PgConnection, PgPool};
use pg_limiter::{Call, Connections, Error, Item, Limit, Limiter, Limits, Schema};

use crate::queue::quick;
use crate::support::Database;
use crate::support::scheduled;
use crate::support::settings::{TIME_LIMITS, TRANSACTION_DEFAULTS, database_with};

const HOUR: Duration = Duration::from_secs(3600);

fn limits() -> Limits {
    let limits = Limits::new()
        .define("bucket", Limit::token_bucket(1000, HOUR))
        .and_then(|limits| limits.define("window", Limit::fixed_window(1000, HOUR)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(1000, HOUR).resolution(6)))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(1000, HOUR).shards(4)));
    limits.expect("limits")
}

fn limiter(pool: &PgPool, connections: Connections) -> Limiter {
    let mut config = Database::config();
    config.retry.deadline = Duration::from_secs(20);
    config.connections = connections;
    Limiter::with_config(pool.clone(), limits(), config)
}

fn group() -> [Item; 4] {
    ["bucket", "window", "sliding", "sharded"].map(|name| Item::new(name, "k"))
}

#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Limiter(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

async fn unit_of_work(limiter: &Limiter, runs: &AtomicU32) -> Result<bool, WorkError> {
    let limits = limiter.clone();
    limiter
        .transaction(async |tx: &mut PgConnection| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok::<_, WorkError>(limits.within(tx).limit(group()).await?.is_allowed())
        })
        .await
}

/// Looks at the jobs through the limiter, which sets its own time limits.
async fn work_until_done<H: Handler>(queue: &Queue, config: WorkerConfig, handler: H, jobs: usize, name: &str) {
    let worker = queue.worker(config, handler).expect("a worker");
    let until_done = async {
        while queue.jobs(Some(JobState::Done), 10).await.expect("the jobs").len() < jobs {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let Ok(report) = tokio::time::timeout(Duration::from_secs(120), worker.run(until_done)).await else {
        panic!("worker, {name}: not done in time: {:?}", queue.jobs(None, 10).await.expect("the jobs"));
    };
    let _ = report.unwrap_or_else(|error| panic!("worker, {name}: {error}"));
}

/// Every way in which a call can run, the queue and its worker, pruning and migrating.
/// Whether a time limit of the caller's transaction ended it: a busy machine may also leave it idle for longer than its limit.
fn is_of_caller(error: &Error) -> bool {
    let text = error.to_string();
    text.contains("raise statement_timeout") || text.contains("idle-in-transaction")
}

async fn everything_works(settings: &[&str]) {
    let (_database, pool) = database_with(settings).await;
    let name = settings.join(", ");
    for connections in [Connections::Own, Connections::Pool] {
        let limiter = limiter(&pool, connections);
        let context = |what: &str| format!("{what}, {connections:?}, {name}");
        for item in group() {
            let decision = limiter.limit([item]).await.unwrap_or_else(|error| panic!("{}: {error}", context("limit")));
            assert!(decision.is_allowed(), "{}", context("limit"));
        }
        assert!(
            limiter.limit(group()).await.unwrap_or_else(|error| panic!("{}: {error}", context("group"))).is_allowed()
        );
        let once = Call::from(group().to_vec()).idempotency_key(format!("{connections:?}"));
        assert!(
            limiter
                .limit(once)
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", context("idempotency key")))
                .is_allowed()
        );
        let _ = limiter.check(group()).await.unwrap_or_else(|error| panic!("{}: {error}", context("check")));
        let _ = limiter.peek(group()).await.unwrap_or_else(|error| panic!("{}: {error}", context("peek")));
        let _ = limiter.credit(group()).await.unwrap_or_else(|error| panic!("{}: {error}", context("credit")));
        let _ = limiter.charge(group()).await.unwrap_or_else(|error| panic!("{}: {error}", context("charge")));
        limiter.reset(group()).await.unwrap_or_else(|error| panic!("{}: {error}", context("reset")));
        // In the caller's transaction, the caller's time limits apply: the error names the one that ended the call.
        let runs = AtomicU32::new(0);
        while let Err(error) = unit_of_work(&limiter, &runs).await {
            assert!(error.to_string().contains("raise statement_timeout"), "{}: {error}", context("unit of work"));
        }
        for round in 0.. {
            assert!(round < 1_000, "{}", context("within"));
            let mut tx = pool.begin().await.expect("begin");
            match limiter.within(&mut tx).limit(group()).await {
                Ok(decision) => {
                    assert!(decision.is_allowed(), "{}", context("within"));
                    // A busy machine may leave the transaction idle for longer than the caller's own limit.
                    match tx.commit().await {
                        Err(error) if error.to_string().contains("idle-in-transaction") => {}
                        committed => {
                            committed.expect("commit");
                            break;
                        }
                    }
                }
                Err(error) => {
                    assert!(is_of_caller(&error), "{}: {error}", context("within"));
                }
            }
        }
        limiter
            .reset_all_keys("sharded")
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", context("reset_all_keys")));
        limiter.prune().await.unwrap_or_else(|error| panic!("{}: {error}", context("prune")));
    }

    let limiter = limiter(&pool, Connections::Own);
    let queue = Queue::new(&limiter, "q").expect("a queue");
    // The database's time limits apply to a job's transaction: on a busy machine they end it often.
    let job = || {
        let job = Job::new([Item::new("bucket", "q"), Item::new("window", "q")].to_vec(), &1).expect("a job");
        job.max_attempts(100_000)
    };
    for _ in 0..3 {
        let _ = queue.enqueue(job()).await.unwrap_or_else(|error| panic!("enqueue, {name}: {error}"));
    }
    let last = loop {
        let mut tx = pool.begin().await.expect("begin");
        match queue.within(&mut tx).enqueue(job()).await {
            Ok(last) => match tx.commit().await {
                Err(error) if error.to_string().contains("idle-in-transaction") => {}
                committed => {
                    committed.expect("commit");
                    break scheduled(&last).id;
                }
            },
            Err(error) => assert!(is_of_caller(&error), "enqueue, {name}: {error}"),
        }
    };
    assert_eq!(queue.cancel(last).await.unwrap_or_else(|error| panic!("cancel, {name}: {error}")), JobState::Scheduled);
    let done = handler_fn(|_: &RunningJob, _: &mut PgConnection| Box::pin(async { Ok(Finish::Done) }));
    let mut config = quick();
    config.max_backoff = Duration::from_millis(50);
    work_until_done(&queue, config, done, 3, &name).await;
    queue.prune(Duration::ZERO).await.unwrap_or_else(|error| panic!("prune, {name}: {error}"));

    let other = Migrator::new(Schema::new("other").expect("a schema"));
    other.run(&pool).await.unwrap_or_else(|error| panic!("migrate, {name}: {error}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_limits_of_the_database_do_not_stop_the_limiter() {
    for setting in TIME_LIMITS {
        everything_works(&[setting]).await;
    }
}

/// A claim, and the reading of the claimed jobs, take longer than the database allows, however often they begin anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_the_database_gives_too_little_time_ends_nevertheless() {
    let (database, pool) = database_with(&["statement_timeout = '100ms'"]).await;
    let limiter = limiter(&pool, Connections::Own);
    let queue = Queue::new(&limiter, "q").expect("a queue");
    for _ in 0..3 {
        let job = Job::new(("bucket", "q"), &1).expect("a job").max_attempts(1000);
        let _ = queue.enqueue(job).await.expect("enqueue");
    }
    database
        .execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$;
             CREATE TRIGGER slow AFTER UPDATE ON rate_limit.jobs EXECUTE PROCEDURE slow();
             CREATE OR REPLACE FUNCTION rate_limit._claimed_jobs(job_ids bigint[], job_starts integer[])
             RETURNS SETOF rate_limit.jobs LANGUAGE plpgsql STABLE AS $$ BEGIN
               PERFORM pg_sleep(0.3);
               RETURN QUERY SELECT j.* FROM unnest(job_ids, job_starts) AS u (id, starts)
                 JOIN rate_limit.jobs AS j ON j.id = u.id AND j.starts = u.starts AND j.state = 'running';
             END $$",
        )
        .await;
    let done = handler_fn(|_: &RunningJob, tx: &mut PgConnection| {
        Box::pin(async move {
            // A job's transaction has the database's time limits; this one asks for more.
            sqlx::query("SET LOCAL statement_timeout = 0").execute(tx).await?;
            Ok(Finish::Done)
        })
    });
    work_until_done(&queue, quick(), done, 3, "statement_timeout").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_defaults_of_the_database_do_not_stop_the_limiter() {
    for settings in TRANSACTION_DEFAULTS {
        everything_works(settings).await;
    }
}

/// An administrator has made the database read-only: calls that take tokens fail at once with an error that names the
/// setting, and calls that only read still work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_fails_at_once_with_the_name_of_the_setting() {
    let (database, pool) = database_with(&["default_transaction_read_only = on"]).await;
    let names_it = |error: &Error, what: &str| {
        let is_named = error.to_string().contains("default_transaction_read_only is on");
        assert!(matches!(error, Error::Database { .. }) && is_named, "{what}: {error}");
        assert!(!error.is_retryable(), "{what}");
    };
    for connections in [Connections::Own, Connections::Pool] {
        let began = Instant::now();
        let limiter = limiter(&pool, connections);
        for item in group() {
            names_it(&limiter.limit([item]).await.expect_err("read-only"), "limit");
        }
        names_it(&limiter.limit(group()).await.expect_err("read-only"), "group");
        // Several callers share one error.
        let several = (0..4).map(|_| limiter.limit(("bucket", "k")));
        for result in futures_util::future::join_all(several).await {
            names_it(&result.expect_err("read-only"), "several");
        }
        let once = Call::from(("bucket", "k")).idempotency_key("1");
        names_it(&limiter.limit(once).await.expect_err("read-only"), "idempotency key");
        names_it(&limiter.charge(("bucket", "k")).await.expect_err("read-only"), "charge");
        names_it(&limiter.reset_all_keys("bucket").await.expect_err("read-only"), "reset_all_keys");
        names_it(&limiter.prune().await.expect_err("read-only"), "prune");
        let queue = Queue::new(&limiter, "q").expect("a queue");
        let job = Job::new(("bucket", "k"), &1).expect("a job");
        names_it(&queue.enqueue(job).await.expect_err("read-only"), "enqueue");
        assert!(limiter.check(("bucket", "k")).await.expect("check only reads").is_allowed());
        assert_eq!(limiter.peek(("bucket", "k")).await.expect("peek only reads").remaining(), 1000.0);

        let runs = AtomicU32::new(0);
        let error = unit_of_work(&limiter, &runs).await.expect_err("read-only");
        assert!(error.to_string().contains("default_transaction_read_only"), "{error}");
        assert_eq!(runs.load(Ordering::Relaxed), 1, "a retry changes nothing");
        let mut tx = pool.begin().await.expect("begin");
        let error = limiter.within(&mut tx).limit(("bucket", "k")).await.expect_err("read-only");
        assert!(error.to_string().contains("default_transaction_read_only"), "{error}");
        tx.rollback().await.expect("rollback");
        assert_eq!(limiter.retries(), 0);
        assert!(began.elapsed() < Duration::from_secs(10), "it kept retrying for {:?}", began.elapsed());
    }
    let began = Instant::now();
    let error = Migrator::new(Schema::new("other").expect("a schema")).run(&pool).await.expect_err("read-only");
    assert!(matches!(error, MigrateError::ReadOnly { .. }), "{error}");
    assert!(error.to_string().contains("default_transaction_read_only = off"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "it kept retrying for {:?}", began.elapsed());

    // After the setting is reset, connections that had it are not used again.
    let own = limiter(&pool, Connections::Own);
    names_it(&own.limit(("bucket", "k")).await.expect_err("read-only"), "limit");
    let mut admin = database.pool.acquire().await.expect("a connection");
    let sql = format!("SET default_transaction_read_only = off; ALTER DATABASE {} RESET ALL", database.name);
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *admin).await.expect("reset");
    assert!(own.limit(("bucket", "k")).await.expect("a decision").is_allowed());
}
