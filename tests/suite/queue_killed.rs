//! Workers that are killed at random: every job is done exactly once, and no group exceeds its rate.

use std::time::Duration;

use pg_limiter::queue::{Finish, Job, JobState, Queue, WorkerConfig, handler_fn};
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Limit, Limiter, Limits};
use tokio::process::Child;

use crate::queue::in_state;
use crate::support::scheduled;
use crate::support::starts::{assert_within, record, recorded};
use crate::support::{Database, process};

const URL: &str = "PG_LIMITER_TEST_QUEUE";
const SECOND: Duration = Duration::from_secs(1);
const JOBS: u32 = 10_000;
const GROUPS: u32 = 25;
const RATE: f64 = 100.0;
const CAPACITY: f64 = 10.0;
const PROCESSES: usize = 3;

async fn queue(url: &str) -> Queue {
    let pool = Database::pool(url, 8).await;
    let limits = Limits::new().define("l", Limit::token_bucket(RATE, SECOND).capacity(CAPACITY)).expect("limits");
    Queue::new(&Limiter::new(pool, limits), "killed").expect("a queue")
}

/// The entry point of a worker process: [`start`] runs this binary again. The process ends by being killed.
#[test]
fn worker_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let queue = queue(&url).await;
        let mut config = WorkerConfig::default();
        config.concurrency = 6;
        config.lease = SECOND;
        config.poll = Duration::from_millis(100);
        config.backoff = Duration::from_millis(10);
        let handler = handler_fn(|job, tx| {
            Box::pin(async move {
                sqlx::query("INSERT INTO effects (job) VALUES ($1)").bind(job.id).execute(&mut *tx).await?;
                // One job in fifty fails once after it has written.
                if job.attempt == 1 && job.id % 50 == 0 {
                    return Err("once more".into());
                }
                Ok(Finish::Done)
            })
        });
        let worker = queue.worker(config, handler).expect("a worker");
        worker.run(std::future::pending()).await.expect("no end");
    });
}

fn start(database: &Database) -> Child {
    process("queue_killed::worker_process", URL, &database.url)
}

async fn one(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn killed_workers_lose_no_job_and_complete_none_twice() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    database.execute("CREATE TABLE effects (job bigint NOT NULL)").await;
    let queue = queue(&database.url).await;
    let jobs: Vec<Job> = (0..JOBS)
        .map(|nth| Job::new(("l", format!("{}", nth % GROUPS)), &nth).expect("a job").max_attempts(1_000_000))
        .collect();
    for some in jobs.chunks(1000) {
        for enqueued in queue.enqueue_all(some.to_vec()).await.expect("answers") {
            let _ = scheduled(&enqueued);
        }
    }
    let mut workers: Vec<Child> = (0..PROCESSES).map(|_| start(&database)).collect();
    let mut killed = 0;
    let mut seed = u64::from(std::process::id());
    let mut done = 0;
    while done < i64::from(JOBS) {
        // Wait until another job is done: otherwise no job might ever be.
        let before = done;
        while done == before {
            tokio::time::sleep(Duration::from_millis(100)).await;
            done = in_state(&queue, JobState::Done).await;
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tokio::time::sleep(Duration::from_millis(seed >> 55)).await;
        let nth = usize::try_from(seed >> 33).expect("small") % PROCESSES;
        workers[nth].kill().await.expect("kill"); // SIGKILL
        killed += 1;
        workers[nth] = start(&database);
    }
    for mut worker in workers {
        worker.kill().await.expect("kill");
    }
    assert!(killed >= 5, "{killed} workers were killed");
    let pool = &database.pool;
    assert_eq!(one(pool, "SELECT count(*) FROM rate_limit.jobs WHERE state = 'done'").await, i64::from(JOBS));
    assert_eq!(one(pool, "SELECT count(*) FROM rate_limit.jobs").await, i64::from(JOBS));
    assert_eq!(one(pool, "SELECT count(*) FROM effects").await, i64::from(JOBS));
    assert_eq!(one(pool, "SELECT count(DISTINCT job) FROM effects").await, i64::from(JOBS));
    let starts = recorded(pool).await;
    assert!(starts.len() > JOBS as usize, "nothing was started again");
    assert_within(pool, &starts, RATE, SECOND, CAPACITY, 0.0).await;
}
