//! Workers that are stopped, continued and killed, with jobs larger than the bucket that they share.

use std::time::{Duration, Instant};

use pg_limiter::queue::{Finish, Job, JobState, Queue, WorkerConfig, handler_fn};
use pg_limiter::{Item, Limit, Limiter, Limits};
use tokio::process::Child;

use crate::queue::in_state;
use crate::support::scheduled;
use crate::support::starts::{assert_times, record, recorded};
use crate::support::{Database, process, signal, sqlx};

const URL: &str = "PG_LIMITER_TEST_STOPPED_QUEUE";
const SECOND: Duration = Duration::from_secs(1);
const JOBS: u32 = 480;
const GROUPS: u32 = 12;
const RATE: f64 = 200.0;
const CAPACITY: f64 = 2.0;
/// The count of the largest job.
const LARGEST: u32 = 10;
const PROCESSES: usize = 3;

async fn queue(url: &str) -> Queue {
    let pool = Database::pool(url, 8).await;
    let limits = Limits::new().define("l", Limit::token_bucket(RATE, SECOND).capacity(CAPACITY)).expect("limits");
    Queue::new(&Limiter::new(pool, limits), "stopped").expect("a queue")
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
        config.lease = 2 * SECOND;
        config.poll = Duration::from_millis(100);
        let handler = handler_fn(|job, tx| {
            Box::pin(async move {
                sqlx::query("INSERT INTO effects (job) VALUES ($1)").bind(job.id).execute(&mut *tx).await?;
                Ok(Finish::Done)
            })
        });
        let worker = queue.worker(config, handler).expect("a worker");
        worker.run(std::future::pending()).await.expect("no end");
    });
}

fn start(database: &Database) -> Child {
    process("queue_stopped::worker_process", URL, &database.url)
}

fn id(worker: &Child) -> u32 {
    worker.id().expect("a process")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn stopped_and_killed_workers_delay_no_others_and_keep_the_rate() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    database.execute("CREATE TABLE effects (job bigint NOT NULL)").await;
    let queue = queue(&database.url).await;
    // Makes answers that do not fit into the buffers of a connection.
    let text = "x".repeat(30_000);
    let jobs: Vec<Job> = (0..JOBS)
        .map(|nth| {
            let count = if nth % 3 == 0 { LARGEST } else { 1 + nth % 3 };
            let job = Job::new(Item::global("l").count(count), &text).expect("a job");
            job.group(format!("{}", nth % GROUPS)).max_attempts(1_000_000)
        })
        .collect();
    for some in jobs.chunks(100) {
        for enqueued in queue.enqueue_all(some.to_vec()).await.expect("answers") {
            let _ = scheduled(&enqueued);
        }
    }
    database.execute("UPDATE rate_limit.jobs SET run_at = 1000000 + id").await;
    let mut workers: Vec<Child> = (0..PROCESSES).map(|_| start(&database)).collect();
    let mut seed = u64::from(std::process::id());
    let (mut stops, mut kills) = (0, 0);
    loop {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tokio::time::sleep(Duration::from_millis(seed >> 56)).await;
        let nth = usize::try_from(seed >> 33).expect("small") % PROCESSES;
        match stops % 4 {
            3 => {
                // Stops all workers: no job starts, and afterwards no more than the rate.
                for worker in &workers {
                    signal(id(worker), "STOP");
                }
                tokio::time::sleep(Duration::from_millis(1_500)).await;
                for worker in &workers {
                    signal(id(worker), "CONT");
                }
            }
            _ => {
                signal(id(&workers[nth]), "STOP");
                let (began, before) = (Instant::now(), in_state(&queue, JobState::Done).await);
                while in_state(&queue, JobState::Done).await == before && before < i64::from(JOBS) {
                    assert!(began.elapsed() < 10 * SECOND, "a stopped worker delays the others");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                if stops % 3 == 0 {
                    workers[nth].kill().await.expect("kill"); // SIGKILL
                    workers[nth] = start(&database);
                    kills += 1;
                } else {
                    signal(id(&workers[nth]), "CONT");
                }
            }
        }
        stops += 1;
        if in_state(&queue, JobState::Done).await == i64::from(JOBS) {
            break;
        }
    }
    for mut worker in workers {
        worker.kill().await.expect("kill");
    }
    assert!(stops >= 5 && kills >= 2, "{stops} stops, {kills} kills");
    let effects: i64 =
        sqlx::query_scalar("SELECT count(DISTINCT job) FROM effects").fetch_one(&database.pool).await.expect("a count");
    assert_eq!(effects, i64::from(JOBS));
    let mut starts = recorded(&database.pool).await;
    starts.iter_mut().for_each(|start| start.key.clear());
    assert_times(&starts, RATE, SECOND, f64::from(LARGEST));
}

const STOPPED: &str = "PG_LIMITER_TEST_STOP_SIGNAL";

/// Another process: it writes a file when it waits, and ends after the signal.
#[cfg(unix)]
#[tokio::test]
async fn waits_for_the_signal_to_stop() {
    let Ok(file) = std::env::var(STOPPED) else { return };
    let mut stopped = std::pin::pin!(pg_limiter::queue::stop_signal());
    let waits = tokio::time::timeout(Duration::from_millis(1), stopped.as_mut()).await;
    assert!(waits.is_err(), "it was not told to stop");
    std::fs::write(file, "").expect("a file");
    stopped.await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_process_is_told_to_stop_by_sigterm_and_by_ctrl_c() {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["TERM", "INT"] {
        let file = dir.path().join(name);
        let test = "queue_stopped::waits_for_the_signal_to_stop";
        let mut child = process(test, STOPPED, file.to_str().expect("UTF-8"));
        while !file.exists() {
            assert!(child.try_wait().expect("a status").is_none(), "it ended by itself");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        signal(child.id().expect("it runs"), name);
        assert!(child.wait().await.expect("a status").success(), "{name}");
    }
}

/// The longest durations, as people write "never".
#[tokio::test]
async fn durations_without_end_are_long_ones() {
    let database = Database::migrated().await;
    let queue = queue(&database.url).await;
    for nth in 0..2 {
        let job = Job::new(("l", "g"), &nth).expect("a job");
        let _ = scheduled(&queue.enqueue(job).await.expect("an answer"));
    }
    let mut config = WorkerConfig::default();
    config.concurrency = 2;
    (config.poll, config.lease, config.patience) = (Duration::MAX, Duration::MAX, Duration::MAX);
    let handler = handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }));
    let report = crate::queue::work_until_done(&queue, config, handler, 2).await;
    assert_eq!(report.done, 2);
}
