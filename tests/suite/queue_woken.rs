//! Whatever ends a group's reason to wait lets workers look at the group again, long before a lease ends or a worker polls.

use std::time::Duration;

use pg_limiter::queue::{Finish, Handler, Job, JobState, Queue, RunningJob, WorkerConfig, handler_fn};
use pg_limiter::sqlx::PgConnection;
use pg_limiter::{Lease, Limit, Limits};

use crate::queue::{queue_with, quick, until_in_state};
use crate::support::gate::CENTURY;
use crate::support::{Database, scheduled, sqlx};

const HOUR: Duration = Duration::from_secs(3600);

fn limits(slots: u32) -> Limits {
    Limits::new()
        .define("slots", Limit::concurrency(slots).lease(HOUR))
        .and_then(|limits| limits.define("fast", Limit::token_bucket(1_000_000, Duration::from_secs(1))))
        .and_then(|limits| limits.define("slow", Limit::token_bucket(1, CENTURY)))
        .expect("limits")
}

async fn enqueue(queue: &Queue, limit: &str, group: &str) -> i64 {
    let job = Job::new((limit, "k"), &1).expect("a job").group(group);
    scheduled(&queue.enqueue(job).await.expect("an answer")).id
}

fn done() -> impl Handler {
    handler_fn(|_: &RunningJob, _: &mut PgConnection| Box::pin(async { Ok(Finish::Done) }))
}

/// Waits until so many jobs wait, and the worker counts as asleep. An earlier change sends no notification, and a worker that
/// never polls would miss it.
pub async fn until_waiting_for_a_wake(database: &Database, queue: &Queue, jobs: i64) {
    until_in_state(queue, JobState::Available, jobs).await;
    until_asleep(database).await;
}

/// Waits until a worker sleeps, which has then seen all jobs that were committed before. A job that is enqueued while it falls asleep
/// may neither be seen nor wake it.
pub async fn until_asleep(database: &Database) {
    let asleep = "SELECT EXISTS (SELECT FROM rate_limit.workers WHERE asleep_until > rate_limit._clock() + 1000000000)";
    while !sqlx::query_scalar::<bool>(asleep).fetch_one(&database.pool).await.expect(asleep) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a worker that never polls while `changes` runs, until this number of jobs is done.
async fn work(queue: &Queue, jobs: i64, changes: impl Future<Output = ()> + Send) {
    let mut config: WorkerConfig = quick();
    config.poll = HOUR;
    let worker = queue.worker(config, done()).expect("a worker");
    let running = worker.run(async {
        changes.await;
        until_in_state(queue, JobState::Done, jobs).await;
    });
    let report = tokio::time::timeout(Duration::from_secs(120), running).await;
    assert!(report.is_ok(), "not woken: {:?}", queue.jobs(None, 100).await);
}

async fn take_slot(queue: &Queue) -> Lease {
    queue.limiter().acquire(("slots", "k")).await.expect("an answer").enforce().expect("a slot")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_job_no_longer_holds_up_its_group() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits(1)).await;
    let _held = take_slot(&queue).await;
    // The first job waits for a slot, and the first of the other group for tokens.
    let spent = enqueue(&queue, "slow", "spent").await;
    let (slot, tokens) = (enqueue(&queue, "slots", "g").await, enqueue(&queue, "slow", "h").await);
    database
        .execute(&format!(
            "UPDATE rate_limit.jobs AS j SET run_at = s.run_at + 1 FROM rate_limit.jobs AS s
             WHERE j.id = {tokens} AND s.id = {spent}"
        ))
        .await;
    enqueue(&queue, "fast", "g").await;
    enqueue(&queue, "fast", "h").await;
    work(&queue, 3, async {
        until_waiting_for_a_wake(&database, &queue, 4).await;
        for id in [slot, tokens] {
            assert_eq!(queue.cancel(id).await.expect("an answer"), JobState::Available);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancellation_that_is_not_committed_blocks_no_other_group() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits(1)).await;
    let _held = take_slot(&queue).await;
    let first = enqueue(&queue, "slots", "g").await;
    enqueue(&queue, "fast", "g").await;
    work(&queue, 2, async {
        until_waiting_for_a_wake(&database, &queue, 2).await;
        let mut tx = database.app.begin().await.expect("begin");
        queue.within(&mut tx).cancel(first).await.expect("an answer");
        enqueue(&queue, "fast", "other").await;
        until_in_state(&queue, JobState::Done, 1).await;
        tx.commit().await.expect("commit");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgetting_a_key_wakes_the_groups_that_wait_for_it() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits(1)).await;
    let _held = take_slot(&queue).await;
    enqueue(&queue, "slots", "g").await;
    let others = Job::new(("fast", "other"), &1).expect("a job").group("g");
    let _ = scheduled(&queue.enqueue(others).await.expect("an answer"));
    work(&queue, 1, async {
        until_waiting_for_a_wake(&database, &queue, 2).await;
        // The job of the key goes, and the other one of its group stays.
        database.execute("SELECT rate_limit.forget('k')").await;
    })
    .await;
    let _again = take_slot(&queue).await;
    enqueue(&queue, "slots", "gone").await;
    enqueue(&queue, "slots", "stays").await;
    work(&queue, 2, async {
        until_waiting_for_a_wake(&database, &queue, 2).await;
        database.execute("SELECT rate_limit.forget('gone')").await;
        // The next group looks when the lease ends, not some leases later.
        let first = "SELECT count(*) FROM rate_limit.groups WHERE key = 'stays' AND not_before < rate_limit._clock() + 3700000000";
        while sqlx::query_scalar::<i64>(first).fetch_one(&database.pool).await.expect("a count") < 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        queue.limiter().reset(("slots", "k")).await.expect("a reset");
    })
    .await;
}

/// One claim starts both jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_of_a_job_behind_one_without_slots_is_released() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits(1)).await;
    enqueue(&queue, "fast", "g").await;
    enqueue(&queue, "slots", "g").await;
    work(&queue, 2, async {}).await;
    let leases = "SELECT count(*) FROM rate_limit.jobs WHERE (slot_lease IS NULL) <> (slot_names IS NULL)";
    assert_eq!(sqlx::query_scalar::<i64>(leases).fetch_one(&database.pool).await.expect("a count"), 0);
    assert!(take_slot(&queue).await.release().await.expect("a release"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_of_all_keys_wakes_the_groups_that_wait_for_slots() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits(1)).await;
    let _held = take_slot(&queue).await;
    for group in ["a", "b"] {
        enqueue(&queue, "slots", group).await;
    }
    work(&queue, 2, async {
        until_waiting_for_a_wake(&database, &queue, 2).await;
        database.execute("SELECT rate_limit.reset('slots')").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_slots_wake_the_groups_that_wait_for_them() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits(1)).await;
    let _held = take_slot(&queue).await;
    for group in ["a", "b"] {
        enqueue(&queue, "slots", group).await;
    }
    work(&queue, 3, async {
        until_waiting_for_a_wake(&database, &queue, 2).await;
        queue.limiter().replace_limits(limits(2));
        enqueue(&queue, "fast", "other").await; // It wakes the worker, which would otherwise poll.
    })
    .await;
}
