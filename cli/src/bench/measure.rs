use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sqlx::Connection;

use crate::bench::args::BenchArgs;
use crate::bench::histogram::Histogram;
use crate::bench::load::{Answers, load, walk};
use crate::bench::report::{Figures, RoundTrip, milliseconds, rounded};
use crate::bench::setup::BenchSetup;
use crate::bench::work::{Target, Work};
use crate::database::Running;
use crate::error::CliError;
use crate::progress::Progress;
use pg_limiter::{Isolation, Limiter};

/// The time before each measurement in which the server caches plans and pages.
const WARM_UP: Duration = Duration::from_millis(250);
/// The most time to spend on creating the rows.
const WALK: Duration = Duration::from_secs(10);
const TURNS: u32 = 4;

/// Measures the round trip to the server with `SELECT 1`.
pub(super) async fn round_trip(running: &Running, time: Duration) -> Result<RoundTrip, CliError> {
    let mut connection = running.connect().await?;
    let warm = WARM_UP.min(time / 4);
    let times = Histogram::new();
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
    setup.limiters().len() * TURNS as usize
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
    let mut series: Vec<Series<'_>> = setup.limiters().iter().map(Series::new).collect();
    if let Some(Series { limiter, .. }) = series.first() {
        walk(limiter, &target, WALK).await?;
    }
    for Series { limiter, .. } in &series {
        load(limiter, &target, callers, WARM_UP.min(args.seconds / 4), &Arc::new(Answers::new())).await?;
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
    isolation: Isolation,
    limiter: &'a Limiter,
    answers: Arc<Answers>,
    took: Duration,
    batches: u64,
    retries: u64,
}

impl<'a> Series<'a> {
    fn new((isolation, limiter): &'a (Isolation, Limiter)) -> Self {
        let answers = Arc::new(Answers::new());
        Self { isolation: *isolation, limiter, answers, took: Duration::ZERO, batches: 0, retries: 0 }
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
            isolation: self.isolation.into(),
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
