//! Jobs with concurrency limits: how many run at the same time, in which order, and when they start.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pg_limiter::queue::{Finish, Handler, Job, JobState, Queue, RunningJob, Worker, WorkerConfig, handler_fn};
use pg_limiter::sqlx::{PgConnection, PgPool};
use pg_limiter::{Item, Limit, Limits};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::queue::{in_state, queue_with, quick, until_in_state as until, work_until_done};
use crate::queue_woken::{until_asleep, until_waiting_for_a_wake};
use crate::support::gate::{CENTURY, limiter};
use crate::support::{Database, scheduled, sqlx};

const HOUR: Duration = Duration::from_secs(3600);

pub fn limits() -> Limits {
    Limits::new()
        .define("one", Limit::concurrency(1).lease(HOUR))
        .and_then(|limits| limits.define("two", Limit::concurrency(2).lease(HOUR)))
        .and_then(|limits| limits.define("short", Limit::concurrency(1).lease(Duration::from_millis(300))))
        .and_then(|limits| limits.define("fast", Limit::token_bucket(1_000_000, Duration::from_secs(1))))
        .and_then(|limits| limits.define("slow", Limit::token_bucket(1, CENTURY).capacity(2)))
        .expect("limits")
}

/// Looks only when it is woken, or when there is something to do.
pub fn sleepy() -> WorkerConfig {
    let mut config = quick();
    config.poll = HOUR;
    config
}

pub async fn enqueue(queue: &Queue, job: Job) -> i64 {
    scheduled(&queue.enqueue(job).await.expect("an answer")).id
}

pub async fn slots(queue: &Queue, group: &str, limit: &str, key: &str) -> i64 {
    enqueue(queue, Job::new((limit, key), &1).expect("a job").group(group)).await
}

pub async fn until_in_state(queue: &Queue, state: JobState, jobs: i64) {
    let reached = tokio::time::timeout(Duration::from_secs(120), until(queue, state, jobs)).await;
    assert!(reached.is_ok(), "{jobs} jobs are never {state}: {:?}", queue.jobs(None, 100).await);
}

async fn number(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.expect(sql)
}

pub async fn state(queue: &Queue, id: i64) -> JobState {
    queue.job(id).await.expect("an answer").expect("a job").state
}

pub async fn free(queue: &Queue, limit: &str, key: &str) -> f64 {
    queue.limiter().peek((limit, key)).await.expect("a balance").remaining()
}

/// Records each start, with the number of jobs that run then, by the slots and by the state of the jobs.
async fn record(database: &Database) {
    database
        .execute(
            "CREATE TABLE slot_starts (n bigserial, job bigint, key text, running bigint);
             CREATE FUNCTION note_slot_start() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
             BEGIN
               INSERT INTO slot_starts (job, key, running)
               SELECT NEW.id, NEW.key, count(*) FROM rate_limit.jobs AS j
               WHERE j.state = 'running' AND j.slot_names = NEW.slot_names AND j.slot_keys = NEW.slot_keys;
               RETURN NULL;
             END $$;
             CREATE TRIGGER note_slot_start AFTER UPDATE ON rate_limit.jobs FOR EACH ROW
               WHEN (NEW.state = 'running' AND OLD.state <> 'running') EXECUTE FUNCTION note_slot_start();
             CREATE TABLE slot_writes (n bigserial, at bigint, leases double precision[]);
             CREATE FUNCTION note_slots() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
             BEGIN
               INSERT INTO slot_writes (at, leases) VALUES (NEW.ts, NEW.detail);
               RETURN NULL;
             END $$;
             CREATE TRIGGER note_slots AFTER INSERT OR UPDATE ON rate_limit.rate_limits FOR EACH ROW
               WHEN (NEW.detail[1] = -1) EXECUTE FUNCTION note_slots();",
        )
        .await;
}

/// Asserts that the database never held more slots.
async fn assert_held(pool: &PgPool, most: f64) {
    let writes: Vec<(i64, Vec<f64>)> =
        sqlx::query_as("SELECT at, leases FROM slot_writes ORDER BY n").fetch_all(pool).await.expect("writes");
    let mut reached = 0.0_f64;
    for (at, leases) in &writes {
        let held: f64 = leases[1..].chunks(3).map(|lease| lease[2]).sum();
        assert!(held <= most, "{held} slots were held at {at}");
        reached = reached.max(held);
    }
    assert_eq!(reached, most, "all slots were used at some time");
}

/// A worker in the background.
pub struct Background {
    stop: Arc<Semaphore>,
    running: JoinHandle<()>,
}

pub fn background<H: Handler>(worker: Worker<H>) -> Background {
    let stop = Arc::new(Semaphore::new(0));
    let stopped = Arc::clone(&stop);
    let running = tokio::spawn(async move {
        let stop = async move { stopped.acquire().await.map(drop).expect("open") };
        worker.run(stop).await.expect("a report");
    });
    Background { stop, running }
}

impl Background {
    pub async fn stop(self) {
        self.stop.add_permits(1);
        self.running.await.expect("no panic");
    }
}

/// A handler that ends each job when the semaphore has a permit for it.
pub fn gated(gate: &Arc<Semaphore>) -> impl Handler {
    let gate = Arc::clone(gate);
    handler_fn(move |_: &RunningJob, _: &mut PgConnection| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            gate.acquire().await?.forget();
            Ok(Finish::Done)
        })
    })
}

pub fn done() -> impl Handler {
    handler_fn(|_: &RunningJob, _: &mut PgConnection| Box::pin(async { Ok(Finish::Done) }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_workers_run_no_more_jobs_than_slots_and_in_order() {
    let database = Database::migrated().await;
    record(&database).await;
    let queue = queue_with(&database, limits()).await;
    for nth in 0..60 {
        slots(&queue, "g", "two", "k").await;
        if nth % 3 == 0 {
            slots(&queue, "other", "one", "k").await;
        }
    }
    let mut workers = Vec::new();
    for _ in 0..3 {
        let other =
            Queue::new(&limiter(&Database::pool(&database.url, 8).await, limits(), |_| {}), "q").expect("a queue");
        let handler = handler_fn(|job: &RunningJob, _: &mut PgConnection| {
            let pause = Duration::from_millis(job.id.unsigned_abs() % 7);
            Box::pin(async move {
                tokio::time::sleep(pause).await;
                Ok(Finish::Done)
            })
        });
        workers.push(background(other.worker(sleepy(), handler).expect("a worker")));
    }
    until_in_state(&queue, JobState::Done, 80).await;
    for worker in workers {
        worker.stop().await;
    }
    let pool = &database.pool;
    assert_eq!(number(pool, "SELECT max(running) FROM slot_starts WHERE key = 'g'").await, 2);
    assert_eq!(number(pool, "SELECT max(running) FROM slot_starts WHERE key = 'other'").await, 1);
    assert_held(pool, 2.0).await;
    let rows: Vec<(String, i64)> =
        sqlx::query_as("SELECT key, job FROM slot_starts ORDER BY n").fetch_all(pool).await.expect("starts");
    let mut last = HashMap::new();
    for (key, job) in &rows {
        let before = last.insert(key, *job);
        assert!(before.is_none_or(|before| before < *job), "{job} started after {before:?}");
    }
    assert_eq!(rows.len(), 80);
    assert_eq!(number(pool, "SELECT max(failures)::bigint FROM rate_limit.jobs").await, 0);
    assert_eq!(number(pool, "SELECT max(starts)::bigint FROM rate_limit.jobs").await, 1);
    assert_eq!((free(&queue, "two", "k").await, free(&queue, "one", "k").await), (2.0, 1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_share_slots_all_run() {
    let database = Database::migrated().await;
    record(&database).await;
    let queue = queue_with(&database, limits()).await;
    for round in 0..3 {
        for group in 0..25 {
            let count = if group % 10 == 0 { 2 } else { 1 };
            let job = Job::new(("two", "all", count), &round).expect("a job").group(format!("{group}"));
            enqueue(&queue, job).await;
        }
    }
    let mut workers = Vec::new();
    for _ in 0..2 {
        let other =
            Queue::new(&limiter(&Database::pool(&database.url, 8).await, limits(), |_| {}), "q").expect("a queue");
        workers.push(background(other.worker(sleepy(), done()).expect("a worker")));
    }
    until_in_state(&queue, JobState::Done, 75).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_held(&database.pool, 2.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_waits_for_an_outside_holder_and_starts_after_its_release() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let lease = queue.limiter().acquire(("one", "k")).await.expect("an answer").enforce().expect("a slot");
    let first = slots(&queue, "k", "one", "k").await;
    let worker = background(queue.worker(sleepy(), done()).expect("a worker"));
    until_waiting_for_a_wake(&database, &queue, 1).await;
    // Another group, and a job without slots that waits behind the first one of its group.
    slots(&queue, "other", "one", "other").await;
    let second = enqueue(&queue, Job::new(("fast", "k"), &1).expect("a job")).await;
    until_in_state(&queue, JobState::Done, 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((state(&queue, first).await, state(&queue, second).await), (JobState::Available, JobState::Available));
    assert_eq!(number(&database.pool, "SELECT max(starts)::bigint FROM rate_limit.jobs WHERE key = 'k'").await, 0);

    // The lease ends in an hour: only the release wakes the worker.
    assert!(lease.release().await.expect("an answer"));
    until_in_state(&queue, JobState::Done, 3).await;
    worker.stop().await;
    assert_eq!(number(&database.pool, "SELECT count(*) FROM rate_limit.groups WHERE slot_name IS NOT NULL").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_or_reset_in_sql_wakes_a_worker() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let worker = background(queue.worker(sleepy(), done()).expect("a worker"));
    until_asleep(&database).await;
    for (nth, sql) in (1..).zip([
        "SELECT rate_limit.release('one', 'k', (SELECT lease FROM held))::text",
        "SELECT rate_limit.reset('one', 'k')::text",
    ]) {
        database
            .execute(
                "DROP TABLE IF EXISTS held; CREATE TABLE held AS
                 SELECT lease_id AS lease FROM rate_limit.acquire_with('one', 'k', capacity => 1, lease => '1 hour')",
            )
            .await;
        slots(&queue, "k", "one", "k").await;
        until_waiting_for_a_wake(&database, &queue, 1).await;
        database.execute(sql).await;
        until_in_state(&queue, JobState::Done, nth).await;
        while free(&queue, "one", "k").await < 1.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let lease = queue.limiter().acquire(("one", "k")).await.expect("an answer").enforce().expect("a slot");
    slots(&queue, "k", "one", "k").await;
    until_waiting_for_a_wake(&database, &queue, 1).await;
    queue.limiter().reset(("one", "k")).await.expect("a reset");
    until_in_state(&queue, JobState::Done, 3).await;
    assert!(!lease.release().await.expect("an answer"));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_taken_when_the_lease_of_a_silent_holder_ends() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    // Never released nor renewed, like the slot of a killed process.
    let lease = queue.limiter().acquire(("short", "k")).await.expect("an answer").enforce().expect("a slot");
    std::mem::forget(lease);
    slots(&queue, "k", "short", "k").await;
    work_until_done(&queue, sleepy(), done(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_job_keeps_its_slot_beyond_the_lease() {
    let database = Database::migrated().await;
    record(&database).await;
    let limits = Limits::new().define("renewed", Limit::concurrency(1).lease(Duration::from_secs(2))).expect("a limit");
    let queue = queue_with(&database, limits).await;
    for _ in 0..2 {
        slots(&queue, "k", "renewed", "k").await;
    }
    let gate = Arc::new(Semaphore::new(0));
    let worker = background(queue.worker(sleepy(), gated(&gate)).expect("a worker"));
    until_in_state(&queue, JobState::Running, 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((in_state(&queue, JobState::Running).await, in_state(&queue, JobState::Available).await), (1, 1));
    gate.add_permits(2);
    until_in_state(&queue, JobState::Done, 2).await;
    worker.stop().await;
    assert_held(&database.pool, 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_needs_its_tokens_and_its_slots() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let both = || Job::new([Item::new("slow", "k"), Item::new("one", "k")], &1).expect("a job");
    let lease = queue.limiter().acquire(("one", "k")).await.expect("an answer").enforce().expect("a slot");
    let first = enqueue(&queue, both()).await;
    let gate = Arc::new(Semaphore::new(0));
    let worker = background(queue.worker(sleepy(), gated(&gate)).expect("a worker"));
    until_waiting_for_a_wake(&database, &queue, 1).await;
    // While the slot is taken, no token is.
    let taken = "SELECT count(*) FROM rate_limit.rate_limits WHERE name = 'slow/started'";
    assert_eq!(number(&database.pool, taken).await, 0);
    lease.release().await.expect("an answer");
    until_in_state(&queue, JobState::Running, 1).await;
    let info = queue.job(first).await.expect("an answer").expect("a job");
    assert_eq!((info.items.len(), info.slots.len()), (1, 1));
    assert_eq!((info.slots[0].limit.as_str(), info.slots[0].key.as_str(), info.slots[0].count), ("one", "k", 1.0));
    assert_eq!(free(&queue, "one", "k").await, 0.0);
    // The second job takes the last token; the third one waits for a century, and holds no slot.
    enqueue(&queue, both()).await;
    gate.add_permits(3);
    until_in_state(&queue, JobState::Done, 2).await;
    let ticket = scheduled(&queue.enqueue(both()).await.expect("an answer"));
    assert!(ticket.wait > HOUR, "{:?}", ticket.wait);
    database.execute("UPDATE rate_limit.jobs SET run_at = 0 WHERE state = 'scheduled'").await;
    slots(&queue, "other", "one", "other").await; // It wakes the worker.
    until_waiting_for_a_wake(&database, &queue, 1).await;
    until_in_state(&queue, JobState::Done, 3).await;
    worker.stop().await;
    assert_eq!(free(&queue, "one", "k").await, 1.0);
    assert_eq!(state(&queue, ticket.id).await, JobState::Available);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_takes_all_its_slots_or_none() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let lease = queue.limiter().acquire(("one", "k")).await.expect("an answer").enforce().expect("a slot");
    let job = Job::new([Item::new("two", "k").count(2), Item::new("one", "k")], &1).expect("a job").group("both");
    enqueue(&queue, job).await;
    let worker = background(queue.worker(sleepy(), done()).expect("a worker"));
    until_waiting_for_a_wake(&database, &queue, 1).await;
    assert_eq!(free(&queue, "two", "k").await, 2.0);
    slots(&queue, "two", "two", "k").await;
    until_in_state(&queue, JobState::Done, 1).await;
    lease.release().await.expect("an answer");
    until_in_state(&queue, JobState::Done, 2).await;
    worker.stop().await;
    assert_eq!((free(&queue, "two", "k").await, free(&queue, "one", "k").await), (2.0, 1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_job_can_be_cancelled_and_a_running_one_cannot() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let (first, second, third) = (
        slots(&queue, "k", "one", "k").await,
        slots(&queue, "k", "one", "k").await,
        slots(&queue, "k", "one", "k").await,
    );
    let gate = Arc::new(Semaphore::new(0));
    let worker = background(queue.worker(sleepy(), gated(&gate)).expect("a worker"));
    until_in_state(&queue, JobState::Running, 1).await;
    until_waiting_for_a_wake(&database, &queue, 2).await;
    assert_eq!(queue.cancel(first).await.expect("an answer"), JobState::Running);
    assert_eq!(free(&queue, "one", "k").await, 0.0);
    assert_eq!(queue.cancel(second).await.expect("an answer"), JobState::Available);
    gate.add_permits(2);
    until_in_state(&queue, JobState::Done, 2).await;
    assert_eq!((state(&queue, first).await, state(&queue, third).await), (JobState::Done, JobState::Done));
    assert_eq!(state(&queue, second).await, JobState::Cancelled);

    // The only job that waits is cancelled: the slot goes to the next group.
    let lease = queue.limiter().acquire(("one", "k")).await.expect("an answer").enforce().expect("a slot");
    let cancelled = slots(&queue, "first", "one", "k").await;
    until_waiting_for_a_wake(&database, &queue, 1).await;
    let next = slots(&queue, "next", "one", "k").await;
    until_waiting_for_a_wake(&database, &queue, 2).await;
    queue.cancel(cancelled).await.expect("an answer");
    gate.add_permits(1);
    lease.release().await.expect("an answer");
    until_in_state(&queue, JobState::Done, 3).await;
    assert_eq!(state(&queue, next).await, JobState::Done);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_job_gives_its_slot_back_and_waits_for_it_again() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let id = slots(&queue, "k", "one", "k").await;
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let handler = handler_fn(move |job: &RunningJob, _: &mut PgConnection| {
        let (nth, attempt) = (counted.fetch_add(1, Ordering::Relaxed), job.attempt);
        Box::pin(async move {
            match nth {
                0 => Err("once more".into()),
                1 => Ok(Finish::Wait(Duration::from_millis(10))),
                _ => {
                    assert_eq!(attempt, 2);
                    Ok(Finish::Done)
                }
            }
        })
    });
    work_until_done(&queue, sleepy(), handler, 1).await;
    assert_eq!(attempts.load(Ordering::Relaxed), 3);
    assert_eq!(queue.job(id).await.expect("an answer").expect("a job").failures, 1);
    assert_eq!(free(&queue, "one", "k").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_slot_is_lost_is_stopped_and_runs_again() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("lost", Limit::concurrency(1).lease(Duration::from_secs(1))).expect("a limit");
    let queue = queue_with(&database, limits).await;
    let id = slots(&queue, "k", "lost", "k").await;
    let gate = Arc::new(Semaphore::new(0));
    let worker = background(queue.worker(sleepy(), gated(&gate)).expect("a worker"));
    until_in_state(&queue, JobState::Running, 1).await;
    queue.limiter().reset(("lost", "k")).await.expect("a reset");
    while number(&database.pool, "SELECT max(starts)::bigint FROM rate_limit.jobs").await < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gate.add_permits(1);
    until_in_state(&queue, JobState::Done, 1).await;
    worker.stop().await;
    assert_eq!(queue.job(id).await.expect("an answer").expect("a job").failures, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_bucket_of_slots_delays_only_its_own_jobs() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let lease = queue.limiter().acquire(("two", "k")).await.expect("an answer").enforce().expect("a slot");
    let mut tx = database.pool.begin().await.expect("begin");
    let locked =
        sqlx::query("SELECT FROM rate_limit.rate_limits WHERE name = 'two' FOR UPDATE").execute(&mut *tx).await;
    assert_eq!(locked.expect("a lock").rows_affected(), 1);
    let held = slots(&queue, "k", "two", "k").await;
    let worker = background(queue.worker(sleepy(), done()).expect("a worker"));
    until_waiting_for_a_wake(&database, &queue, 1).await;
    slots(&queue, "other", "two", "other").await;
    until_in_state(&queue, JobState::Done, 1).await;
    assert_eq!(state(&queue, held).await, JobState::Available);
    tx.commit().await.expect("commit");
    until_in_state(&queue, JobState::Done, 2).await;
    worker.stop().await;
    lease.release().await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_wait_for_slots_do_not_poll() {
    let database = Database::migrated().await;
    // So that each call of a function is counted.
    database.execute(&format!("ALTER DATABASE {} SET track_functions = 'all'", database.name)).await;
    let queue = queue_with(&database, limits()).await;
    let holder = Database::pool(&database.url, 4).await;
    let holder = limiter(&holder, limits(), |_| {});
    let lease = holder.acquire(("two", "k", 2)).await.expect("an answer").enforce().expect("slots");
    for group in 0..40 {
        slots(&queue, &format!("{group}"), "two", "k").await;
    }
    let mut workers = Vec::new();
    for _ in 0..4 {
        let other =
            Queue::new(&limiter(&Database::pool(&database.url, 8).await, limits(), |_| {}), "q").expect("a queue");
        workers.push(background(other.worker(sleepy(), done()).expect("a worker")));
    }
    until_in_state(&queue, JobState::Available, 40).await;
    // Until the statistics are written, and after that.
    let claims = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_user_functions WHERE funcname = '_claim'";
    let mut before = -1;
    for _ in 0..60 {
        let now = number(&database.pool, claims).await;
        if now == before && now > 0 {
            break;
        }
        before = now;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    let waited = number(&database.pool, claims).await - before;
    assert!(
        waited <= 4,
        "4 workers that waited for slots claimed {waited} times in some seconds, after {before} times"
    );
    lease.release().await.expect("an answer");
    until_in_state(&queue, JobState::Done, 40).await;
    for worker in workers {
        worker.stop().await;
    }
}
