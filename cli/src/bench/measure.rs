//! The measurements, and the concurrent callers that make them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hdrhistogram::Histogram as Recorded;
use sqlx::Connection;
use tokio::task::JoinSet;

use crate::bench::report::{Figures, RoundTrip, milliseconds, rounded};
use crate::bench::setup::{BenchArgs, BenchSetup, Target, Work};
use crate::database::Running;
use crate::error::CliError;
use crate::output::Progress;
use pg_limiter::Limiter;

/// The time before each measurement in which the server caches plans and pages.
const WARM_UP: Duration = Duration::from_millis(250);
/// The most time to spend on creating the rows.
const WALK: Duration = Duration::from_secs(10);
const TURNS: u32 = 4;

/// Measures the round trip to the server with `SELECT 1`.
pub(super) async fn round_trip(running: &Running, time: Duration) -> Result<RoundTrip, CliError> {
    let mut connection = running.connect().await?;
    let warm = WARM_UP.min(time / 4);
    let times = Histogram::default();
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        sqlx::query("SELECT 1").execute(&mut connection).await?;
        let answered = Instant::now();
        let at = answered.duration_since(began);
        if at >= warm {
            times.record(answered.duration_since(asked));
        }
        if at >= warm + time {
            break;
        }
    }
    let _ = connection.close().await; // An error does not matter here: the measurement is done.
    Ok(RoundTrip { p50_ms: milliseconds(times.percentile(0.5)), p99_ms: milliseconds(times.percentile(0.99)) })
}

/// The number of parts of one [`measure`].
pub(super) fn parts(setup: &BenchSetup) -> usize {
    setup.limiters.len() * TURNS as usize
}

/// Measures at each isolation level. The levels take turns, so that a server that becomes slower or faster affects all of
/// them.
pub(super) async fn measure(
    setup: &BenchSetup,
    work: Work,
    args: &BenchArgs,
    progress: &Progress,
) -> Result<Vec<Figures>, CliError> {
    let callers = work.callers(args.callers);
    let target = Arc::new(setup.target(work).await?);
    let mut series: Vec<Series<'_>> = setup.limiters.iter().map(Series::new).collect();
    if let Some(Series { limiter, .. }) = series.first() {
        walk(limiter, &target, WALK).await?;
    }
    for Series { limiter, .. } in &series {
        load(limiter, &target, callers, WARM_UP.min(args.seconds / 4), &Arc::new(Answers::default())).await?;
    }
    for _ in 0..TURNS {
        for series in &mut series {
            series.go_on(&target, callers, args.seconds / TURNS).await?;
            progress.add(1);
        }
    }
    series.iter().map(|series| series.figures(work, callers)).collect()
}

/// The results of one limiter so far.
struct Series<'a> {
    isolation: &'static str,
    limiter: &'a Limiter,
    answers: Arc<Answers>,
    took: Duration,
    batches: u64,
    retries: u64,
}

impl<'a> Series<'a> {
    fn new((isolation, limiter): &'a (&'static str, Limiter)) -> Self {
        let answers = Arc::new(Answers::default());
        Self { isolation, limiter, answers, took: Duration::ZERO, batches: 0, retries: 0 }
    }

    async fn go_on(&mut self, target: &Arc<Target>, callers: u32, time: Duration) -> Result<(), CliError> {
        let (batches, retries) = (self.limiter.batches(), self.limiter.retries());
        self.took += load(self.limiter, target, callers, time, &self.answers).await?;
        self.batches += self.limiter.batches() - batches;
        self.retries += self.limiter.retries() - retries;
        Ok(())
    }

    fn figures(&self, work: Work, callers: u32) -> Result<Figures, CliError> {
        let Answers { times, denied, errors, first_error } = &*self.answers;
        let decisions = times.count();
        let first_error = first_error.get().cloned();
        if decisions == 0 {
            let why = first_error.unwrap_or_default();
            return Err(CliError::failed(format!("{}: every call failed: {why}", work.title(callers))));
        }
        Ok(Figures {
            isolation: self.isolation,
            work,
            callers,
            keys: work.keys(),
            decisions,
            denied: denied.load(Ordering::Relaxed),
            errors: errors.load(Ordering::Relaxed),
            first_error,
            decisions_per_second: rounded(decisions as f64 / self.took.as_secs_f64()),
            p50_ms: milliseconds(times.percentile(0.5)),
            p99_ms: milliseconds(times.percentile(0.99)),
            calls_per_batch: rounded(decisions as f64 / self.batches.max(1) as f64),
            retries_per_decision: rounded(self.retries as f64 / decisions as f64),
        })
    }
}

/// The pause after an error, so that failing calls are not repeated at full speed.
const AFTER_ERROR: Duration = Duration::from_millis(50);

/// The results of the calls.
#[derive(Default)]
pub(super) struct Answers {
    /// The latencies of the calls that were decided.
    pub(super) times: Histogram,
    pub(super) denied: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) first_error: OnceLock<String>,
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

/// The latencies of concurrent calls. Percentiles are within 1 % of the recorded values.
pub(super) struct Histogram(Mutex<Recorded<u64>>);

/// In nanoseconds. Longer calls count as calls of an hour.
const LONGEST: u64 = 3_600_000_000_000;

impl Default for Histogram {
    fn default() -> Self {
        let recorded = Recorded::new_with_bounds(1, LONGEST, 2).expect("2 digits and an upper bound above 2 are valid");
        Self(Mutex::new(recorded))
    }
}

impl Histogram {
    fn recorded(&self) -> MutexGuard<'_, Recorded<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self, took: Duration) {
        self.recorded().saturating_record(u64::try_from(took.as_nanos()).unwrap_or(LONGEST));
    }

    /// The number of recorded calls.
    pub(super) fn count(&self) -> u64 {
        self.recorded().len()
    }

    /// The time within which this part of the calls (0 to 1) returned. 0 if there was no call.
    pub(super) fn percentile(&self, part: f64) -> Duration {
        Duration::from_nanos(self.recorded().value_at_quantile(part))
    }
}
