//! A wish to wake a worker never fails a transaction: notifications are sent only where they are heard and have room.

use std::time::Duration;

use pg_limiter::queue::{Finish, Handler, Job, JobState, Queue, RunningJob, WorkerConfig, handler_fn};
use pg_limiter::sqlx::postgres::{PgListener, PgPoolOptions};
use pg_limiter::sqlx::{Connection, PgConnection, PgPool};
use pg_limiter::{Limit, Limiter, LimiterConfig, Limits};

use crate::queue::{in_state, quick, until_in_state};
use crate::statistics::OwnServer;
use crate::support::{Database, scheduled, sqlx};

const HOUR: Duration = Duration::from_secs(3600);

fn limits() -> Limits {
    Limits::new()
        .define("fast", Limit::token_bucket(1_000_000, Duration::from_secs(1)))
        .and_then(|limits| limits.define("slots", Limit::concurrency(1).lease(HOUR)))
        .expect("limits")
}

fn done() -> impl Handler {
    handler_fn(|_: &RunningJob, _: &mut PgConnection| Box::pin(async { Ok(Finish::Done) }))
}

async fn enqueue(queue: &Queue, limit: &str) -> i64 {
    scheduled(&queue.enqueue(Job::new((limit, "k"), &1).expect("a job")).await.expect("an answer")).id
}

async fn execute(pool: &PgPool, sql: &'static str) {
    sqlx::raw_sql(sql).execute(pool).await.expect(sql);
}

/// A worker that listens and sleeps for an hour, though there is none.
const SLEEPER: &str =
    "INSERT INTO rate_limit.workers (queue, worker, asleep_until) VALUES ('q', 'w', 9000000000000000)";

/// The number of notifications that the work sends for the queue `q`.
async fn notifications(database: &Database, work: impl Future<Output = ()>) -> usize {
    let mut listener = PgListener::connect(&database.url).await.expect("a session");
    listener.listen("rate_limit_jobs").await.expect("LISTEN");
    work.await;
    // Its own notification comes after all others.
    execute(&database.pool, "SELECT pg_notify('rate_limit_jobs', 'last')").await;
    let mut heard = 0;
    loop {
        let payload = listener.recv().await.expect("a notification").payload().to_owned();
        match payload.as_str() {
            "last" => return heard,
            "q" => heard += 1,
            _ => {} // of another queue
        }
    }
}

#[tokio::test]
async fn a_notification_is_sent_only_if_the_queue_of_notifications_has_room() {
    let database = Database::migrated().await;
    let queue = Queue::new(&database.limiter(limits()), "q").expect("a queue");
    database.execute(SLEEPER).await;
    let one = async || {
        enqueue(&queue, "fast").await;
    };
    // The planner replaces the call of this function by its body. PostgreSQL would call its own function instead.
    let usage = |percent: i64| format!("SELECT setval('public.usage', {percent})");
    database
        .execute(
            "CREATE SEQUENCE public.usage MINVALUE 0; GRANT SELECT ON public.usage TO public;
             CREATE OR REPLACE FUNCTION pg_catalog.pg_notification_queue_usage() RETURNS double precision LANGUAGE sql VOLATILE
             AS $$SELECT pg_catalog.pg_sequence_last_value('public.usage'::regclass)::double precision / 100$$",
        )
        .await;
    database.execute(&usage(0)).await;
    assert_eq!(notifications(&database, one()).await, 1);
    database.execute(&usage(50)).await;
    assert_eq!(notifications(&database, one()).await, 0);
    database.execute(&usage(49)).await;
    assert_eq!(notifications(&database, one()).await, 1);

    // Workers find the jobs when they poll.
    database.execute(&usage(100)).await;
    let mut config = quick();
    config.poll = Duration::from_millis(50);
    let worker = queue.worker(config, done()).expect("a worker");
    let watched = queue.clone();
    let stop = async move {
        until_in_state(&watched, JobState::Done, 3).await;
        enqueue(&watched, "fast").await;
        until_in_state(&watched, JobState::Done, 4).await;
    };
    tokio::time::timeout(Duration::from_secs(120), worker.run(stop)).await.expect("in time").expect("a report");
}

#[tokio::test]
async fn notifications_can_be_turned_off() {
    let database = Database::migrated().await;
    let queue = Queue::new(&database.limiter(limits()), "q").expect("a queue");
    database.execute(SLEEPER).await;
    for (setting, expected) in [("off", 0), ("false", 0), ("on", 1)] {
        let transaction = async {
            let mut tx = database.app.begin().await.expect("begin");
            sqlx::query("SELECT set_config('pg_limiter.notify', $1, true)")
                .bind(setting)
                .execute(&mut *tx)
                .await
                .expect("set");
            let job = Job::new(("fast", "k"), &1).expect("a job");
            let _ = scheduled(&queue.within(&mut tx).enqueue(job).await.expect("an answer"));
            tx.commit().await.expect("commit");
        };
        assert_eq!(notifications(&database, transaction).await, expected, "{setting}");
    }
}

#[tokio::test]
async fn workers_that_do_not_listen_cause_no_notification() {
    let database = Database::migrated().await;
    let queue = Queue::new(&database.limiter(limits()), "q").expect("a queue");
    let mut config = quick();
    (config.listen, config.poll) = (false, Duration::from_millis(50));
    let work = async {
        let worker = queue.worker(config, done()).expect("a worker");
        let watched = queue.clone();
        let stop = async move {
            for jobs in 1..4 {
                enqueue(&watched, "fast").await;
                enqueue(&watched, "slots").await;
                until_in_state(&watched, JobState::Done, 2 * jobs).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), worker.run(stop)).await.expect("in time").expect("a report");
    };
    assert_eq!(notifications(&database, work).await, 0);
    let asleep = "SELECT count(*) FROM rate_limit.workers WHERE asleep_until > rate_limit._clock()";
    assert_eq!(sqlx::query_scalar::<i64>(asleep).fetch_one(&database.pool).await.expect("a count"), 0);
}

/// PostgreSQL 17 and later have a setting for the size of the queue of notifications, which is 8 GB in earlier versions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_of_notifications_fails_no_transaction_and_ends_no_worker() {
    let Some(server) = OwnServer::start(&[("max_notify_queue_pages", "64")]).await else { return };
    let mut holder = PgConnection::connect(&server.url).await.expect("a session");
    for sql in ["LISTEN anything", "BEGIN", "SELECT 1"] {
        sqlx::raw_sql(sql).execute(&mut holder).await.expect(sql);
    }
    let fill = "SELECT pg_notify('anything', repeat('x', 7900) || clock_timestamp())";
    let mut last = Ok(());
    for _ in 0..200 {
        last = sqlx::query(fill).execute(&server.pool).await.map(drop);
        if last.is_err() {
            break;
        }
    }
    let full = last.expect_err("the queue is full");
    assert_eq!(full.as_database_error().and_then(|error| error.code()).as_deref(), Some("54000"), "{full}");

    let pool = PgPoolOptions::new().max_connections(16).connect(&server.url).await.expect("connect");
    let limiter = Limiter::with_config(pool.clone(), limits(), LimiterConfig::default());
    let queue = Queue::new(&limiter, "q").expect("a queue");
    execute(&pool, SLEEPER).await;
    let mut tx = pool.begin().await.expect("begin");
    let job = Job::new(("slots", "k"), &1).expect("a job");
    let _ = scheduled(&queue.within(&mut tx).enqueue(job).await.expect("an answer"));
    tx.commit().await.expect("the caller's transaction does not fail");
    let mut config: WorkerConfig = quick();
    config.poll = Duration::from_millis(50);
    let worker = queue.worker(config, done()).expect("a worker");
    let watched = queue.clone();
    let stop = async move {
        enqueue(&watched, "slots").await;
        enqueue(&watched, "fast").await;
        until_in_state(&watched, JobState::Done, 3).await;
    };
    tokio::time::timeout(Duration::from_secs(120), worker.run(stop)).await.expect("in time").expect("a report");
    assert_eq!(in_state(&queue, JobState::Done).await, 3);
    let taken = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a slot");
    assert!(taken.release().await.expect("a release"));
}
