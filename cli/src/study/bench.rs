//! `bench` measures a server with real calls on its own rows: the concurrent callers, and the report, as JSON and as text.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{iter, slice};

use clap::Args;
use fastrand::Rng;
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::json;
use sqlx::Connection;
use tokio::task::JoinSet;

use crate::study::cleaned;
use crate::text::{grouped, many, one_line, plain, shortened, shown};
use crate::{CliError, Database, Progress, Result, Running, json, output};
use pg_limiter::{Decision, Durability, Error, Isolation, Item, Limit, Limiter, LimiterConfig, Limits};

pub(crate) const BENCH_EXIT_CODES: &str = "\
Exit codes:
  0  done
  2  the arguments are invalid
  3  the database is unavailable or lacks the schema, another error occurred, or the run was interrupted

Without --database-url and DATABASE_URL, the run starts a private PostgreSQL server, and removes it at the end.";

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// The length of each measurement. There are 5, or 9 with both isolation levels
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, allow_negative_numbers = true)]
    seconds: Duration,
    /// The number of concurrent callers
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    callers: u32,
    /// The isolation level of the limiter's transactions
    #[arg(long, default_value = "both", value_parser = ["serializable", "read-committed", "both"])]
    isolation: String,
    /// full: a commit waits for the disk, if the server is configured so; relaxed: it does not
    #[arg(long, default_value = "full", value_parser = ["full", "relaxed"])]
    durability: String,
    /// The number of batches that may run concurrently, each over its own connection
    #[arg(long, value_name = "N", default_value_t = LimiterConfig::default().lanes as u16, value_parser = clap::value_parser!(u16).range(1..=128))]
    lanes: u16,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The longest measurement. It bounds the time until the rows of a killed run are idle.
const LONGEST: Duration = Duration::from_secs(30);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let is_valid = |seconds: &Duration| !seconds.is_zero() && *seconds <= LONGEST;
    seconds.filter(is_valid).ok_or_else(|| "must be a number above 0 and at most 30".to_owned())
}

/// The time before each measurement in which the server caches plans and pages.
const WARM_UP: Duration = Duration::from_millis(250);
/// The most time to spend on creating the rows.
const WALK: Duration = Duration::from_secs(10);
const WALKERS: u32 = 512;
const TURNS: u32 = 4;

pub(crate) async fn run(args: BenchArgs, database: Database) -> Result<()> {
    let running = database.start(true).await?;
    let setup = BenchSetup::open(&running, &args).await?;
    let left = setup.left_behind();
    cleaned(setup, async |setup| bench(&args, &running, setup).await, BenchSetup::clear, &left).await
}

async fn bench(args: &BenchArgs, running: &Running, setup: &BenchSetup) -> Result<()> {
    let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(setup.clearing.pool()).await?;
    // Without a distribution's suffix: `18.4`.
    let version = version.split(' ').next().unwrap_or_default();
    let is_private = running.private_source().is_some();
    let (schema, seconds) = (running.schema.name(), args.seconds.as_secs_f64());
    let place = if is_private { "started for this run".to_owned() } else { format!("schema {}", shown(schema, 30)) };
    let (lanes, durability) = (many(args.lanes.into(), "lane"), &args.durability);
    // As JSON, everything is printed at the end.
    let show = |lines: &[String]| if args.json { Ok(()) } else { output::lines(lines) };
    show(&[
        format!("PostgreSQL {version}, {place}: {lanes}, durability {durability}, {} s per line", plain(seconds)),
        String::new(),
        row("", ["decisions/s", "p50 ms", "p99 ms", "calls/batch", "retries"].map(str::to_owned)),
    ])?;
    let works = works(args.callers);
    let progress = Progress::parts("measuring the round trip", 1 + works.len() * setup.limiters.len() * TURNS as usize);
    let round_trip = round_trip(running, args.seconds).await?;
    progress.add(1);
    let [p50, p99] = [round_trip.p50_ms, round_trip.p99_ms].map(|time| format!("{time:.3}"));
    show(&[row("SELECT 1 (round trip)", [String::new(), p50, p99, String::new(), String::new()])])?;
    let mut measurements = Vec::new();
    for work in works {
        progress.now(format!("measuring {}", work.title));
        show(slice::from_ref(&work.title))?;
        let figures = measure(setup, &work, args.seconds, &progress).await?;
        show(&figures.iter().flat_map(rows).collect::<Vec<_>>())?;
        measurements.extend(figures);
    }
    drop(progress);
    if !args.json {
        return output::lines(meaning(is_private, round_trip, &measurements));
    }
    output::line(json::line(&json!({
        "postgresql": version,
        "private": is_private,
        "schema": schema,
        "seconds": seconds,
        "durability": durability,
        "lanes": args.lanes,
        "round_trip": round_trip,
        "measurements": measurements,
    })))
}

/// How much longer than planned the measurements may take. Soon after that, the rows of a killed run are idle.
const OVERTIME: Duration = Duration::from_secs(15);
const TO_CLEAR: Duration = Duration::from_secs(10);

/// The limits that are measured. Their names are random, so their rows belong to this run only.
struct BenchSetup {
    /// The name of a limit that never denies. Its rows are idle immediately.
    open: String,
    /// The name of a limit that owes tokens for the time `owed`: longer than all measurements take.
    owing: String,
    owed: Duration,
    limiters: Vec<(&'static str, Limiter)>,
    clearing: Limiter,
}

impl BenchSetup {
    /// Prepares the limiters. This writes nothing, but verifies that rows can be removed again.
    async fn open(running: &Running, args: &BenchArgs) -> Result<Self> {
        let pool = running.ready_pool(u32::from(args.lanes) + 1).await?;
        // A random name cannot collide with an existing limit.
        let random = RandomState::new().hash_one(std::process::id());
        let [open, owing] = ["open", "owing"].map(|what| format!("pg-limiter bench {random:016x} {what}"));
        let mut config = LimiterConfig::default();
        config.schema = running.schema.clone();
        config.durability = if args.durability == "relaxed" { Durability::Relaxed } else { Durability::Full };
        config.lanes = args.lanes.into();
        let second = Duration::from_secs(1);
        let limits = Limits::new().define(&open, Limit::token_bucket(1e12, second)).map_err(CliError::usage)?;
        let limits = limits.define(&owing, Limit::token_bucket(1, second)).map_err(CliError::usage)?;
        let limiter = |config| Limiter::with_config(pool.clone(), limits.clone(), config);
        let with = |(name, isolation)| {
            let mut config = config.clone();
            config.isolation = isolation;
            ["both", name].contains(&args.isolation.as_str()).then(|| (name, limiter(config)))
        };
        let levels = [("serializable", Isolation::Serializable), ("read-committed", Isolation::ReadCommitted)];
        let limiters: Vec<_> = levels.into_iter().filter_map(with).collect();
        let owed = limiters.iter().fold(OVERTIME, |owed, _| owed + args.seconds);
        config.isolation = Isolation::ReadCommitted;
        config.retry.deadline = TO_CLEAR;
        let clearing = limiter(config);
        let setup = Self { open, owing, owed, limiters, clearing };
        setup.forget().await?;
        Ok(setup)
    }

    /// Returns an item for each key of this work, after setting their balances up for it.
    async fn items(&self, work: &Work) -> Result<Vec<Item>> {
        let is_denied = work.name == DENIED;
        let limit: Arc<str> = if is_denied { &*self.owing } else { &*self.open }.into();
        // Each kind of work has its own keys.
        let item = |nth: usize| Item::new(Arc::clone(&limit), format!("{} {nth}", work.name));
        let items: Vec<Item> = (0..work.keys).map(item).collect();
        if is_denied {
            self.clearing.reset_all_keys(&self.owing).await?;
            for item in items.iter().cloned() {
                self.clearing.charge(item.count(self.owed.as_secs_f64())).await?;
            }
        }
        Ok(items)
    }

    /// Waits for calls in flight, and removes every row.
    async fn clear(self) -> Result<()> {
        let _progress = Progress::of("removing the rows");
        for (_, limiter) in &self.limiters {
            limiter.close().await;
        }
        let forgotten = self.forget().await;
        self.clearing.close().await;
        self.clearing.pool().close().await;
        forgotten.map_err(|error| CliError::failed(format!("{error}\n{}", self.left_behind())))
    }

    fn left_behind(&self) -> String {
        let Self { open, owing, .. } = self;
        format!(
            "rows of the limits \"{open}\" and \"{owing}\" may remain; within two minutes they are idle, and `prune` removes them"
        )
    }

    async fn forget(&self) -> Result<()> {
        for name in [&self.open, &self.owing] {
            self.clearing.reset_all_keys(name).await?;
        }
        Ok(())
    }
}

/// The calls of one measurement.
#[derive(Clone, Serialize)]
struct Work {
    #[serde(rename = "work")]
    name: &'static str,
    callers: u32,
    keys: usize,
    #[serde(skip)]
    title: String,
}

const DENIED: &str = "all-denied";

fn works(callers: u32) -> [Work; 4] {
    let work = |name, callers, keys, title| Work { name, callers, keys, title };
    let many = many(callers.into(), "caller");
    [
        work("lone-caller", 1, 1, "a lone caller".to_owned()),
        work("one-key", callers, 1, format!("{many}, one key")),
        work("many-keys", callers, 10_000, format!("{many}, 10,000 keys")),
        work(DENIED, callers, 1, format!("{many}, all denied")),
    ]
}

async fn round_trip(running: &Running, time: Duration) -> Result<Latency> {
    let mut connection = running.connect().await?;
    let warm = WARM_UP.min(time / 4);
    let mut answers = Answers::default();
    let began = Instant::now();
    while began.elapsed() < warm + time {
        let asked = Instant::now();
        sqlx::query("SELECT 1").execute(&mut connection).await?;
        let took = asked.elapsed();
        if began.elapsed() >= warm {
            answers.record(took);
        }
    }
    let _ = connection.close().await; // An error does not matter here: the measurement is done.
    Ok(answers.latency())
}

/// Measures at each isolation level. The levels take turns, so that a server that becomes slower affects all of them.
async fn measure(setup: &BenchSetup, work: &Work, time: Duration, progress: &Progress) -> Result<Vec<Figures>> {
    let items: Arc<[Item]> = setup.items(work).await?.into();
    if let Some((_, limiter)) = setup.limiters.first() {
        // One call for each item creates its row. Errors are ignored, because the measurement reports them.
        let share = |caller: u32| {
            let items = Arc::clone(&items);
            (caller as usize..items.len()).step_by(WALKERS as usize).map(move |nth| items[nth].clone())
        };
        load(limiter, WALKERS, share, WALK, &Arc::default()).await?;
    }
    let random = |_| {
        let (items, mut dice) = (Arc::clone(&items), Rng::new());
        iter::repeat_with(move || items[dice.usize(..items.len())].clone())
    };
    let mut series = Vec::new();
    for (isolation, limiter) in &setup.limiters {
        load(limiter, work.callers, random, WARM_UP.min(time / 4), &Arc::default()).await?;
        // With the limiter's counts before the first turn.
        let answers = Arc::<Mutex<Answers>>::default();
        series.push((*isolation, limiter, answers, Duration::ZERO, limiter.batches(), limiter.retries()));
    }
    for _ in 0..TURNS {
        for (_, limiter, answers, took, ..) in &mut series {
            *took += load(limiter, work.callers, random, time / TURNS, answers).await?;
            progress.add(1);
        }
    }
    let figures = series.into_iter().map(|(isolation, limiter, answers, took, batches, retries)| {
        let answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        let decisions = answers.times.len();
        if decisions == 0 {
            let why = answers.first_error.as_deref().unwrap_or_default();
            return Err(CliError::failed(format!("{}: every call failed: {why}", work.title)));
        }
        let (batches, retries) = (limiter.batches() - batches, limiter.retries() - retries);
        Ok(Figures {
            isolation,
            work: work.clone(),
            decisions,
            denied: answers.denied,
            errors: answers.errors,
            first_error: answers.first_error.clone(),
            decisions_per_second: rounded(decisions as f64 / took.as_secs_f64()),
            latency: answers.latency(),
            calls_per_batch: rounded(decisions as f64 / batches.max(1) as f64),
            retries_per_decision: rounded(retries as f64 / decisions as f64),
        })
    });
    figures.collect()
}

/// The pause after an error, so that failing calls are not repeated at full speed.
const AFTER_ERROR: Duration = Duration::from_millis(50);

struct Answers {
    /// How long each decision took, in nanoseconds. Percentiles are within 1 % of the recorded values.
    times: Histogram<u64>,
    denied: u64,
    errors: u64,
    first_error: Option<String>,
}

/// In nanoseconds. Longer calls count as calls of an hour.
const HOUR: u64 = 3_600_000_000_000;

impl Default for Answers {
    fn default() -> Self {
        let times = Histogram::new_with_bounds(1, HOUR, 2).expect("2 digits and an upper bound above 2 are valid");
        Self { times, denied: 0, errors: 0, first_error: None }
    }
}

impl Answers {
    fn add(&mut self, took: Duration, answer: Result<Decision, Error>) {
        match answer {
            Ok(decision) => {
                self.record(took);
                self.denied += u64::from(decision.is_denied());
            }
            Err(error) => {
                self.errors += 1;
                self.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }

    fn record(&mut self, took: Duration) {
        self.times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(HOUR));
    }

    fn latency(&self) -> Latency {
        let milliseconds = |part| rounded(self.times.value_at_quantile(part) as f64 / 1e6);
        Latency { p50_ms: milliseconds(0.5), p99_ms: milliseconds(0.99) }
    }
}

/// Runs the callers until the time is up; each makes its next call when the last one returns. Returns how long that took in all.
async fn load<I: Iterator<Item = Item> + Send + 'static>(
    limiter: &Limiter,
    callers: u32,
    items: impl Fn(u32) -> I,
    time: Duration,
    answers: &Arc<Mutex<Answers>>,
) -> Result<Duration> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        tasks.spawn(call(limiter.clone(), items(caller), Arc::clone(answers), began + time));
    }
    while let Some(task) = tasks.join_next().await {
        task.map_err(CliError::failed)?;
    }
    Ok(began.elapsed())
}

async fn call(limiter: Limiter, items: impl Iterator<Item = Item>, answers: Arc<Mutex<Answers>>, until: Instant) {
    for item in items {
        let asked = Instant::now();
        let answer = limiter.limit(item).await;
        let took = asked.elapsed();
        let has_failed = answer.is_err();
        answers.lock().unwrap_or_else(PoisonError::into_inner).add(took, answer);
        if has_failed {
            tokio::time::sleep(AFTER_ERROR).await;
        }
        if Instant::now() >= until {
            return;
        }
    }
}

#[derive(Clone, Copy, Serialize)]
struct Latency {
    p50_ms: f64,
    p99_ms: f64,
}

#[derive(Serialize)]
struct Figures {
    isolation: &'static str,
    #[serde(flatten)]
    work: Work,
    decisions: u64,
    denied: u64,
    /// Calls without a decision.
    errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
    decisions_per_second: f64,
    #[serde(flatten)]
    latency: Latency,
    calls_per_batch: f64,
    retries_per_decision: f64,
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

fn rows(figures: &Figures) -> Vec<String> {
    let title = format!("  {}", figures.isolation.replace('-', " ").to_uppercase());
    let cells = [
        grouped(figures.decisions_per_second.round() as u64),
        format!("{:.3}", figures.latency.p50_ms),
        format!("{:.3}", figures.latency.p99_ms),
        format!("{:.1}", figures.calls_per_batch),
        format!("{:.3}", figures.retries_per_decision),
    ];
    let mut lines = vec![row(&title, cells)];
    if let Some(first) = &figures.first_error {
        let (errors, first) = (grouped(figures.errors), shortened(&one_line(first), 300));
        lines.push(format!("    {errors} calls failed; the first error: {first}"));
    }
    lines
}

fn row(title: &str, [rate, p50, p99, calls, retries]: [String; 5]) -> String {
    format!("{title:<28}{rate:>12}{p50:>9}{p99:>9}{calls:>13}{retries:>9}").trim_end().to_owned()
}

fn meaning(is_private: bool, round_trip: Latency, measurements: &[Figures]) -> Option<String> {
    // The figures of each work at its first isolation level.
    let figures = measurements.chunk_by(|one, next| one.work.name == next.work.name).map(|levels| &levels[0]);
    let [lone, hot, many, denied] = figures.collect::<Vec<_>>()[..] else { return None };
    let [hot, many, denied] = [hot, many, denied].map(|figures| about(figures.decisions_per_second));
    let took = lone.latency.p50_ms;
    let way = round_trip.p50_ms.min(took);
    let mut text = format!(
        "
p50, p99: 50 % and 99 % of the calls took at most this long. retries: per decision.

One hot key: about {hot} decisions/s from this process, or {denied} if all are denied. 10,000 keys: {many}.
A lone call takes {took:.2} ms: {way:.2} ms for the round trip to the server, and the rest to decide and commit."
    );
    if is_private {
        text += "\nThis was a private server with default settings, on the callers' machine. To measure yours, use \
                 --database-url.";
    }
    if cfg!(debug_assertions) {
        text += "\nThis is a debug build of the tool. A release build is faster.";
    }
    Some(text)
}

/// Formats a number with two significant digits.
fn about(number: f64) -> String {
    let unit = 10_f64.powf((number.max(1.0).log10().floor() - 1.0).max(0.0));
    grouped(((number / unit).round() * unit) as u64)
}

#[cfg(test)]
mod tests {
    use super::about;

    #[test]
    fn estimates_have_two_significant_digits() {
        let numbers = [0.0, 7.4, 42.4, 999.0, 1234.0, 238_765.0];
        assert_eq!(numbers.map(about), ["0", "7", "42", "1,000", "1,200", "240,000"]);
    }
}
