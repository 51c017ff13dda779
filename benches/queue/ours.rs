//! pg-limiter's queue.

use std::convert::Infallible;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use pg_limiter::queue::{Finish, Job, Queue, RunningJob, WorkerConfig, handler_fn};
use sqlx::PgConnection;
use tokio::sync::{Notify, mpsc};

use crate::Failure;
use crate::names::{CONCURRENCY, FREE, PACED};
use crate::options::Options;
use crate::tables::{QueueTables, connect, queue};
use crate::timed::per_second;

/// Returns the next job. The jobs go to the groups in turn.
pub(crate) fn job(nth: &AtomicU64, groups: u64) -> Result<Job, Failure> {
    let group = nth.fetch_add(1, Ordering::Relaxed) % groups;
    Ok(Job::new((FREE, group.to_string()), &serde_json::json!({ "n": 1 }))?)
}

pub(crate) async fn enqueue(
    tables: &QueueTables,
    options: &Options,
    groups: u64,
    at_once: usize,
) -> Result<f64, Failure> {
    let (queue, nth) = (tables.queue.clone(), Arc::new(AtomicU64::new(0)));
    per_second(options, move || {
        let (queue, nth) = (queue.clone(), Arc::clone(&nth));
        async move {
            if at_once == 1 {
                queue.enqueue(job(&nth, groups)?).await?.enforce()?;
            } else {
                let jobs = (0..at_once).map(|_| job(&nth, groups)).collect::<Result<Vec<_>, _>>()?;
                for enqueued in queue.enqueue_all(jobs).await? {
                    enqueued.enforce()?;
                }
            }
            Ok(at_once)
        }
    })
    .await
}

pub(crate) async fn enqueue_within(tables: &QueueTables, options: &Options) -> Result<f64, Failure> {
    let (queue, pool, nth) = (tables.queue.clone(), tables.pool.clone(), Arc::new(AtomicU64::new(0)));
    per_second(options, move || {
        let (queue, pool, nth) = (queue.clone(), pool.clone(), Arc::clone(&nth));
        async move {
            let mut tx = pool.begin().await?;
            queue.within(&mut tx).enqueue(job(&nth, 1000)?).await?.enforce()?;
            tx.commit().await?;
            Ok(1)
        }
    })
    .await
}

pub(crate) async fn fill(tables: &QueueTables, jobs: i64, groups: u64) -> Result<(), Failure> {
    let nth = AtomicU64::new(0);
    let jobs = (0..jobs).map(|_| job(&nth, groups)).collect::<Result<Vec<_>, _>>()?;
    for some in jobs.chunks(1000) {
        for enqueued in tables.queue.enqueue_all(some.to_vec()).await? {
            enqueued.enforce()?;
        }
    }
    sqlx::raw_sql("ANALYZE rate_limit.jobs").execute(&tables.pool).await?;
    Ok(())
}

pub(crate) fn config() -> WorkerConfig {
    let mut config = WorkerConfig::default();
    config.concurrency = CONCURRENCY;
    config
}

/// Returns the jobs per second.
pub(crate) async fn work(tables: &QueueTables, jobs: i64) -> Result<f64, Failure> {
    let (left, all) = (Arc::new(AtomicI64::new(jobs)), Arc::new(Notify::new()));
    let done = Arc::clone(&all);
    let handler = handler_fn(move |_: &RunningJob, _: &mut PgConnection| {
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            done.notify_one();
        }
        Box::pin(async { Ok(Finish::Done) })
    });
    let began = Instant::now();
    let report = tables.queue.worker(config(), handler)?.run(all.notified()).await?;
    let elapsed = began.elapsed();
    assert_eq!(i64::try_from(report.done)?, jobs, "every job must run once: {report:?}");
    Ok(jobs as f64 / elapsed.as_secs_f64())
}

/// The longest time from one small commit to the next. A job is late if the machine stands still, and so are all later ones of
/// its group, because they keep their distance.
async fn longest_pause(tables: &QueueTables, longest: &Mutex<Duration>) -> Result<Infallible, Failure> {
    loop {
        let began = Instant::now();
        tokio::time::sleep(Duration::from_millis(20)).await;
        sqlx::query("INSERT INTO pauses VALUES (1)").execute(&tables.pool).await?;
        let mut longest = longest.lock().unwrap_or_else(PoisonError::into_inner);
        *longest = longest.max(began.elapsed());
    }
}

/// Returns the delays from the reserved times of jobs to the start of their handlers, and the longest pause of the machine beside
/// them, in milliseconds.
pub(crate) async fn delays(tables: &QueueTables, options: &Options) -> Result<(Vec<f64>, f64), Failure> {
    let longest = Mutex::default();
    let delays = tokio::select! {
        delays = delays_of_jobs(tables, options) => delays?,
        failed = longest_pause(tables, &longest) => match failed? {},
    };
    let longest: Duration = longest.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((delays, longest.as_secs_f64() * 1000.0))
}

async fn delays_of_jobs(tables: &QueueTables, options: &Options) -> Result<Vec<f64>, Failure> {
    let (started, mut delays) = mpsc::unbounded_channel();
    let handler = handler_fn(move |job: &RunningJob, _: &mut PgConnection| {
        // The server runs on this machine, so both use the same clock.
        let delay = SystemTime::now().duration_since(job.run_at).unwrap_or(Duration::ZERO);
        let _ = started.send(delay.as_secs_f64() * 1000.0);
        Box::pin(async { Ok(Finish::Done) })
    });
    let connections = CONCURRENCY as u32 + 2;
    let queue = queue(&connect(&tables.server, connections).await?)?;
    let worker = queue.worker(config(), handler)?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(worker.run(async { stopped.await.unwrap_or_default() }));
    // The work that each connection does once is not measured.
    for nth in 0..3 * connections {
        enqueue_paced(&queue, &format!("warm-up {nth}"), 1).await?;
        delays.recv().await.ok_or("the worker ended early")?;
        asleep(tables).await?;
    }
    let each = if options.quick { 3 } else { 20 };
    for group in 0..20 {
        enqueue_paced(&queue, &group.to_string(), each).await?;
    }
    let mut seen = Vec::new();
    while seen.len() < 20 * each {
        seen.push(delays.recv().await.ok_or("the worker ended early")?);
    }
    let _ = stop.send(());
    running.await??;
    Ok(seen)
}

async fn enqueue_paced(queue: &Queue, group: &str, jobs: usize) -> Result<(), Failure> {
    let jobs = (0..jobs).map(|nth| Ok(Job::new((PACED, group), &nth)?)).collect::<Result<Vec<_>, Failure>>()?;
    for enqueued in queue.enqueue_all(jobs).await? {
        enqueued.enforce()?;
    }
    Ok(())
}

/// Waits until the worker sleeps.
async fn asleep(tables: &QueueTables) -> Result<(), Failure> {
    let asleep = "SELECT EXISTS (SELECT FROM rate_limit.workers WHERE asleep_until > rate_limit._clock())";
    while !sqlx::query_scalar::<_, bool>(asleep).fetch_one(&tables.pool).await? {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
