//! The queue: enqueueing jobs, when they run, and how they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pg_limiter::queue::{
    EnqueueOutcome, Finish, Handler, Job, JobState, Queue, RunningJob, WorkerConfig, WorkerReport, handler_fn,
};
use pg_limiter::sqlx::PgConnection;
use pg_limiter::{Error, Item, Limit, Limits};

use crate::support::gate::{CENTURY, limiter, until_waiting};
use crate::support::{Database, scheduled, sqlx};

const SECOND: Duration = Duration::from_secs(1);

fn limits() -> Limits {
    Limits::new()
        .define("slow", Limit::token_bucket(1, CENTURY).capacity(2))
        .and_then(|limits| limits.define("fast", Limit::token_bucket(1_000_000, SECOND)))
        .and_then(|limits| limits.define("paced", Limit::token_bucket(20, SECOND).capacity(1)))
        .and_then(|limits| limits.define("bounded", Limit::token_bucket(1, CENTURY).max_reserved(1)))
        .and_then(|limits| limits.define("windows", Limit::fixed_window(3, SECOND)))
        .and_then(|limits| limits.define("tokens", Limit::token_bucket(1000, CENTURY)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(5, SECOND)))
        .expect("limits")
}

pub async fn queue(database: &Database) -> Queue {
    queue_with(database, limits()).await
}

pub async fn queue_with(database: &Database, limits: Limits) -> Queue {
    Queue::new(&limiter(&database.app, limits, |_| {}), "q").expect("a queue")
}

pub fn quick() -> WorkerConfig {
    let mut config = WorkerConfig::default();
    config.concurrency = 4;
    config.backoff = Duration::from_millis(1);
    config
}

/// Runs a worker until this number of jobs is done.
pub async fn work_until_done<H: Handler>(queue: &Queue, config: WorkerConfig, handler: H, jobs: i64) -> WorkerReport {
    let worker = queue.worker(config, handler).expect("a worker");
    let queue = queue.clone();
    let stop = async move { until_in_state(&queue, JobState::Done, jobs).await };
    tokio::time::timeout(Duration::from_secs(120), worker.run(stop)).await.expect("in time").expect("a report")
}

pub async fn in_state(queue: &Queue, state: JobState) -> i64 {
    let mut tx = queue.limiter().pool().begin().await.expect("begin");
    sqlx::query_scalar("SELECT count(*) FROM rate_limit.jobs WHERE queue = $1 AND state = $2")
        .bind(queue.name())
        .bind(state.as_str())
        .fetch_one(&mut *tx)
        .await
        .expect("a count")
}

pub async fn until_in_state(queue: &Queue, state: JobState, jobs: i64) {
    while in_state(queue, state).await < jobs {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_job_and_its_reservation_are_written_together() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let mut tx = database.app.begin().await.expect("begin");
    let job = Job::new(("slow", "g"), &"hello").expect("a job");
    let _ = scheduled(&queue.within(&mut tx).enqueue(job.clone()).await.expect("an answer"));
    tx.rollback().await.expect("rollback");
    assert_eq!(queue.limiter().peek(("slow", "g")).await.expect("a balance").remaining(), 2.0);
    assert!(queue.jobs(None, 10).await.expect("jobs").is_empty());

    let mut tx = database.app.begin().await.expect("begin");
    let ticket = scheduled(&queue.within(&mut tx).enqueue(job).await.expect("an answer"));
    tx.commit().await.expect("commit");
    assert_eq!(ticket.wait, Duration::ZERO);
    let left = queue.limiter().peek(("slow", "g")).await.expect("a balance").remaining();
    assert!((left - 1.0).abs() < 1e-6, "{left}");
    let info = queue.job(ticket.id).await.expect("an answer").expect("a job");
    assert_eq!((info.state, info.group.as_str(), info.payload.as_str()), (JobState::Scheduled, "g", "\"hello\""));
    assert_eq!(info.run_at, ticket.run_at);
    assert_eq!((info.items[0].limit.as_str(), info.items[0].key.as_str(), info.items[0].count), ("slow", "g", 1.0));
}

#[tokio::test]
async fn a_job_runs_when_the_last_of_its_limits_is_ready() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let both = || Job::new([Item::new("fast", "g"), Item::new("slow", "g")], &1).expect("a job");
    for nth in 0..4_u32 {
        let ticket = scheduled(&queue.enqueue(both()).await.expect("an answer"));
        // Two tokens at once, then one each century.
        let centuries = nth.saturating_sub(1);
        let off = ticket.wait.abs_diff(CENTURY * centuries);
        assert!(off < Duration::from_secs(60), "{nth}: {:?}", ticket.wait);
    }
}

#[tokio::test]
async fn a_job_beyond_the_bound_is_denied_with_a_retry_after() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let job = || Job::new([Item::new("bounded", "g"), Item::new("fast", "g")], &1).expect("a job");
    for _ in 0..2 {
        let _ = scheduled(&queue.enqueue(job()).await.expect("an answer"));
    }
    let refused = queue.enqueue(job()).await.expect("an answer");
    assert!(refused.is_denied());
    assert_eq!(refused.denied_by(), ["bounded"]);
    let EnqueueOutcome::Denied { retry_after } = refused.outcome() else { panic!("{refused:?}") };
    assert!(retry_after.abs_diff(CENTURY) < Duration::from_secs(60), "{retry_after:?}");
    match refused.enforce() {
        Err(Error::Denied(denied)) => assert_eq!(denied.retry_after, retry_after),
        other => panic!("{other:?}"),
    }
    assert_eq!(queue.jobs(None, 10).await.expect("jobs").len(), 2);
    let fast = queue.limiter().peek(("fast", "g")).await.expect("a balance").remaining();
    assert!(fast >= 999_998.0, "{fast}");
}

#[tokio::test]
async fn a_unique_id_names_one_job() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let job = |key: &str| Job::new(("slow", key), &1).expect("a job").unique_id("once");
    let first = scheduled(&queue.enqueue(job("g")).await.expect("an answer"));
    for key in ["g", "other"] {
        match queue.enqueue(job(key)).await.expect("an answer").outcome() {
            EnqueueOutcome::Duplicate(ticket) => assert_eq!((ticket.id, ticket.run_at), (first.id, first.run_at)),
            other => panic!("{other:?}"),
        }
    }
    let all =
        queue.enqueue_all([job("g"), Job::new(("slow", "g"), &2).expect("a job"), job("g")]).await.expect("answers");
    assert!(matches!(all[0].outcome(), EnqueueOutcome::Duplicate(ticket) if ticket.id == first.id));
    assert!(matches!(all[1].outcome(), EnqueueOutcome::Scheduled(_)));
    assert!(matches!(all[2].outcome(), EnqueueOutcome::Duplicate(ticket) if ticket.id == first.id));
    let new = |id: &str| Job::new(("slow", "new"), &1).expect("a job").unique_id(id);
    let all = queue.enqueue_all([new("a"), new("a"), new("b")]).await.expect("answers");
    let (a, b) = (scheduled(&all[0]), scheduled(&all[2]));
    assert!(matches!(all[1].outcome(), EnqueueOutcome::Duplicate(ticket) if ticket.id == a.id));
    assert_ne!(a.id, b.id);
    for (key, balance) in [("g", 0.0), ("other", 2.0), ("new", 0.0)] {
        let left = queue.limiter().peek(("slow", key)).await.expect("a balance").remaining();
        assert!((left - balance).abs() < 1e-6, "{key}: {left}");
    }
}

#[tokio::test]
async fn concurrent_jobs_of_one_id_take_its_tokens_once() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    for round in 0..20 {
        // The jobs are in different groups, so they do not wait for each other's tokens.
        let job = |key: &str| Job::new(("slow", key), &1).expect("a job").unique_id(format!("{round}"));
        let mut first = database.app.begin().await.expect("begin");
        let a = scheduled(&queue.within(&mut first).enqueue(job(&format!("a{round}"))).await.expect("an answer"));
        let second = tokio::spawn({
            let (queue, job) = (queue.clone(), job(&format!("b{round}")));
            async move { queue.enqueue(job).await }
        });
        until_waiting(&database, 1).await;
        first.commit().await.expect("commit");
        match second.await.expect("a task").expect("an answer").outcome() {
            EnqueueOutcome::Duplicate(ticket) => assert_eq!(ticket.id, a.id),
            other => panic!("{other:?}"),
        }
        for (key, balance) in [("a", 1.0), ("b", 2.0)] {
            let left = queue.limiter().peek(("slow", format!("{key}{round}"))).await.expect("a balance").remaining();
            assert!((left - balance).abs() < 1e-6, "{key}: {left}");
        }
    }
}

/// The first call takes the last tokens. A concurrent call with the same id waits for it, and is not denied.
#[tokio::test]
async fn a_job_enqueued_twice_at_once_is_not_denied_because_of_itself() {
    let database = Database::migrated().await;
    let limits = Limits::new()
        .define("last", Limit::token_bucket(1, Duration::from_secs(86_400)).max_reserved(0.0))
        .and_then(|limits| limits.define("other", Limit::token_bucket(9, Duration::from_secs(86_400))))
        .expect("limits");
    let queue = Queue::new(&database.limiter(limits), "q").expect("a queue");
    for items in [vec![Item::new("last", "k")], vec![Item::new("last", "g"), Item::new("other", "g")]] {
        let job = || Job::new(items.clone(), &1).expect("a job").unique_id(format!("{}", items.len()));
        let mut first = database.app.begin().await.expect("begin");
        let a = scheduled(&queue.within(&mut first).enqueue(job()).await.expect("an answer"));
        let second = tokio::spawn({
            let (queue, job) = (queue.clone(), job());
            async move { queue.enqueue(job).await }
        });
        until_waiting(&database, 1).await;
        first.commit().await.expect("commit");
        match second.await.expect("a task").expect("an answer").outcome() {
            EnqueueOutcome::Duplicate(ticket) => assert_eq!(ticket.id, a.id),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_handlers_writes_commit_with_the_job() {
    let database = Database::migrated().await;
    sqlx::raw_sql("CREATE TABLE effects (job bigint PRIMARY KEY, attempt integer)")
        .execute(&database.pool)
        .await
        .expect("a table");
    let queue = queue(&database).await;
    for nth in 0..20 {
        let _ = scheduled(&queue.enqueue(Job::new(("fast", "g"), &nth).expect("a job")).await.expect("an answer"));
    }
    // Every second job fails once after it has written.
    let handler = handler_fn(|job, tx| {
        Box::pin(async move {
            sqlx::query("INSERT INTO effects VALUES ($1, $2)")
                .bind(job.id)
                .bind(i32::try_from(job.attempt)?)
                .execute(&mut *tx)
                .await?;
            if job.payload::<i64>()? % 2 == 0 && job.attempt == 1 {
                return Err("once more".into());
            }
            Ok(Finish::Done)
        })
    });
    let report = work_until_done(&queue, quick(), handler, 20).await;
    assert_eq!((report.done, report.failed), (20, 10));
    let attempts: Vec<i32> =
        sqlx::query_scalar("SELECT attempt FROM effects ORDER BY job").fetch_all(&database.pool).await.expect("rows");
    assert_eq!(attempts, [2, 1].repeat(10));
}

#[tokio::test]
async fn a_job_with_too_many_failures_is_dead_until_it_is_requeued() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let job = |payload: &str| Job::new(("fast", "g"), &payload).expect("a job").max_attempts(3);
    let dead = scheduled(&queue.enqueue(job("fails")).await.expect("an answer")).id;
    let panics = scheduled(&queue.enqueue(job("panics").max_attempts(1)).await.expect("an answer")).id;
    let given_up = scheduled(&queue.enqueue(job("gives up")).await.expect("an answer")).id;
    let swallows = scheduled(&queue.enqueue(job("swallows").max_attempts(1)).await.expect("an answer")).id;
    let healed = Arc::new(AtomicU64::new(0));
    let handler = |healed: Arc<AtomicU64>| {
        handler_fn(move |job: &RunningJob, tx: &mut PgConnection| {
            let healed = healed.load(Ordering::SeqCst) == 1;
            Box::pin(async move {
                match job.payload::<String>()?.as_str() {
                    _ if healed => Ok(Finish::Done),
                    "panics" => panic!("at the disco"),
                    "gives up" => Ok(Finish::GiveUp("it is too late".into())),
                    "swallows" => {
                        let _ = sqlx::query("SELECT 1 / 0").execute(&mut *tx).await;
                        Ok(Finish::Done)
                    }
                    _ => Err("no luck".into()),
                }
            })
        })
    };
    let worker = queue.worker(quick(), handler(Arc::clone(&healed))).expect("a worker");
    let watched = queue.clone();
    let report = worker.run(async move { until_in_state(&watched, JobState::Dead, 4).await }).await.expect("a report");
    assert_eq!((report.dead, report.failed, report.done), (4, 2, 0));
    let listed = queue.jobs(Some(JobState::Dead), 10).await.expect("jobs");
    let error = |id| listed.iter().find(|job| job.id == id).and_then(|job| job.last_error.clone()).unwrap_or_default();
    assert_eq!(error(dead), "no luck");
    assert!(error(panics).contains("at the disco"), "{}", error(panics));
    assert_eq!(error(given_up), "it is too late");
    assert!(error(swallows).contains("25P02"), "{}", error(swallows));
    assert_eq!(listed.iter().find(|job| job.id == dead).map(|job| job.failures), Some(3));

    healed.store(1, Ordering::SeqCst);
    for id in [dead, panics, given_up, swallows] {
        assert!(queue.requeue(id).await.expect("an answer").is_some());
    }
    assert_eq!(queue.requeue(dead).await.expect("an answer"), None);
    work_until_done(&queue, quick(), handler(healed), 4).await;
}
