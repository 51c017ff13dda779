//! The concurrent callers of a measurement.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio::task::JoinSet;

use crate::bench::histogram::Histogram;
use crate::bench::work::Target;
use crate::error::CliError;
use pg_limiter::Limiter;

/// The pause after an error, so that failing calls are not repeated at full speed.
const AFTER_ERROR: Duration = Duration::from_millis(50);

/// The results of the calls.
pub(super) struct Answers {
    /// The latencies of the calls that were decided.
    pub(super) times: Histogram,
    pub(super) denied: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) first_error: OnceLock<String>,
}

impl Answers {
    pub(super) fn new() -> Self {
        Self {
            times: Histogram::new(),
            denied: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            first_error: OnceLock::new(),
        }
    }
}

/// Runs the callers until the time is up. Each caller makes its next call as soon as the last one returns. Returns how long
/// that took in all.
pub(super) async fn load(
    limiter: &Limiter,
    target: &Arc<Target>,
    callers: u32,
    time: Duration,
    answers: &Arc<Answers>,
) -> Result<Duration, CliError> {
    let random = RandomState::new();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let dice = Rng::with_seed(random.hash_one(caller));
        tasks.spawn(call(limiter.clone(), Arc::clone(target), dice, Arc::clone(answers), began + time));
    }
    while let Some(task) = tasks.join_next().await {
        task.map_err(CliError::failed)?;
    }
    Ok(began.elapsed())
}

async fn call(limiter: Limiter, target: Arc<Target>, mut dice: Rng, answers: Arc<Answers>, until: Instant) {
    let mut asked = Instant::now();
    loop {
        let answer = limiter.limit(target.any(&mut dice)).await;
        match answer {
            Ok(decision) => {
                answers.times.record(asked.elapsed());
                answers.denied.fetch_add(decision.is_denied().into(), Ordering::Relaxed);
            }
            Err(error) => {
                answers.errors.fetch_add(1, Ordering::Relaxed);
                let _ = answers.first_error.set(error.to_string()); // Later errors are only counted.
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
        asked = Instant::now();
        if asked >= until {
            return;
        }
    }
}

/// Makes one call for each key, to create its row. Errors are ignored, because the measurement reports them.
pub(super) async fn walk(limiter: &Limiter, target: &Target, at_most: Duration) -> Result<(), CliError> {
    const AT_ONCE: usize = 512;
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for item in target.each() {
        if tasks.len() >= AT_ONCE {
            tasks.join_next().await.transpose().map_err(CliError::failed)?;
        }
        if began.elapsed() >= at_most {
            break;
        }
        let limiter = limiter.clone();
        tasks.spawn(async move { drop(limiter.limit(item).await) });
    }
    while let Some(task) = tasks.join_next().await {
        task.map_err(CliError::failed)?;
    }
    Ok(())
}
