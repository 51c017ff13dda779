//! `demo` shows what the limits do, with real calls: its scenes, and the stage: the schema of the demo, and its output.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool, Row};
use tokio::task::JoinSet;

use crate::study::cleaned;
use crate::text::{grouped, tokens};
use crate::{CliError, Database, Progress, Result, Running, json, output};
use pg_limiter::migrate::Migrator;
use pg_limiter::{Call, Decision, Error, InvalidLimit, Item, Limit, LimitState, Limiter, Limits, Schema};

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Print JSON: one object per line, first the server, then each call with the number of its scene
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &DemoArgs, database: Database) -> Result<()> {
    let running = database.start(true).await?;
    let stage = Stage::open(running, args.json).await?;
    let left = format!("the schema {} may remain: drop it", stage.running.schema);
    cleaned(stage, show, Stage::strike, &left).await
}

async fn show(stage: &mut Stage) -> Result<()> {
    let server = stage.set().await?;
    let schema = &stage.running.schema;
    let line = format!(
        "Every line below is a real call on {server}.\nThe demo runs in the schema {schema}, and drops it at the end."
    );
    stage.show(line, None, json!({"server": server, "schema": schema.name()}))?;
    token_bucket(stage).await?;
    sliding_window(stage).await?;
    reservation(stage).await?;
    together(stage).await?;
    hammer(stage).await
}

/// A bucket of tokens for each user, which refills continuously, as in F. Pachot's article on rate limiting in YugabyteDB.
async fn token_bucket(stage: &mut Stage) -> Result<()> {
    let limit = Limit::token_bucket(2, Duration::from_secs(1)).capacity(10);
    let about = "2 tokens per second for each user, at most 10";
    let limiter = stage.scene("Token bucket", about, Limits::new().define("requests", limit)).await?;
    for call in 1..=20 {
        if stage.call(&format!("call {call}"), &limiter, ("requests", "franck")).await?.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
    for halves in 1..=6 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let balances = limiter.peek(("requests", "franck")).await?;
        let step = format!("{:.1} s later", f64::from(halves) / 2.0);
        let line = format!("  {step:<14}           {}", bar(balances.limits()));
        stage.show(line, Some(&step), json!({"value": balances.remaining()}))?;
    }
    stage.call("3 tokens", &limiter, ("requests", "franck", 3.0)).await?;
    stage.call("another user", &limiter, ("requests", "somebody else")).await.map(drop)
}

async fn sliding_window(stage: &mut Stage) -> Result<()> {
    let limit = Limit::sliding_window(5, Duration::from_secs(2)).resolution(4);
    let about = "at most 5 calls in the last 2 seconds, counted in 4 sub-intervals";
    let limiter = stage.scene("Sliding window", about, Limits::new().define("searches", limit)).await?;
    let mut promise = None;
    for call in 1..=7 {
        let retry_after = stage.call(&format!("call {call}"), &limiter, ("searches", "u1")).await?;
        promise = retry_after.map(|wait| (tokio::time::Instant::now() + wait, wait));
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    // After its `retry_after`, the denied call is allowed.
    if let Some((at, wait)) = promise {
        tokio::time::sleep_until(at).await;
        stage.call(&format!("{} later", seconds(wait)), &limiter, ("searches", "u1")).await?;
    }
    Ok(())
}

async fn reservation(stage: &mut Stage) -> Result<()> {
    let limit = Limit::token_bucket(2, Duration::from_secs(1)).capacity(1);
    let about = "2 jobs per second, at most 1 at once; the others wait for their reservation";
    let limiter = stage.scene("Reservations", about, Limits::new().define("jobs", limit)).await?;
    let begin = Instant::now();
    let mut waiting = Vec::new();
    for job in 1..=5 {
        let decision = limiter.limit(Item::global("jobs").reserve()).await?;
        let wait = decision.wait().unwrap_or_default();
        let (verdict, shown) = (verdict(&decision), seconds(wait));
        let line = format!("  job {job:<10} {verdict}  wait {shown}, {:.1} tokens left", decision.remaining());
        stage.show(line, Some(&format!("job {job}")), json::decision(&decision))?;
        waiting.push((job, begin.elapsed() + wait));
    }
    for (job, due) in waiting {
        tokio::time::sleep(due.saturating_sub(begin.elapsed())).await;
        let took = begin.elapsed();
        let line = format!("  job {job:<10} done at       {}  {}", seconds(took), "■".repeat(job));
        stage.show(line, Some(&format!("job {job}")), json!({"done_after_ms": json::milliseconds(took)}))?;
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Limit(#[from] Error),
    #[error("the app failed")]
    Failed,
}

async fn together(stage: &mut Stage) -> Result<()> {
    let limit = |capacity: u32| Limit::token_bucket(1, Duration::from_secs(3600)).capacity(capacity);
    let about = "a limit per user, a limit per organisation and an INSERT, in one transaction";
    let limits = Limits::new().define("per_user", limit(2)).and_then(|limits| limits.define("per_org", limit(5)));
    let limiter = stage.scene("With your own writes", about, limits).await?;
    let table = format!("{}.messages", stage.running.schema.quoted());
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE TABLE {table} (author text)"))).execute(&stage.pool).await?;

    show_state(stage, &limiter, &table, "before", &[]).await?;
    for (what, fails) in [
        ("limit both, INSERT, COMMIT", false),
        ("limit both, INSERT, the app fails: ROLLBACK", true),
        ("limit both, INSERT, COMMIT", false),
        ("the same again", false),
    ] {
        let result = limiter
            .transaction(async |tx| {
                let both = [Item::new("per_user", "u1"), Item::new("per_org", "o7")];
                limiter.within(tx).limit(both).await?.enforce()?;
                let insert = format!("INSERT INTO {table} VALUES ('u1')");
                let inserted = sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut *tx).await;
                inserted.map_err(|error| Error::from_sql(error, Schema::default().name()))?;
                if fails { Err(AppError::Failed) } else { Ok(()) }
            })
            .await;
        let denied_by = match result {
            Ok(()) | Err(AppError::Failed) => Vec::new(),
            Err(AppError::Limit(Error::Denied(denied))) => denied.limits,
            Err(AppError::Limit(error)) => return Err(error.into()),
        };
        show_state(stage, &limiter, &table, what, &denied_by).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}

async fn show_state(stage: &Stage, limiter: &Limiter, table: &str, step: &str, denied_by: &[Arc<str>]) -> Result<()> {
    let count = format!("SELECT count(*) FROM {table}");
    let rows: i64 = sqlx::raw_sql(AssertSqlSafe(count)).fetch_one(&stage.pool).await?.try_get(0)?;
    // Rounded down: the hourly rate refills a fraction of a token meanwhile.
    let user = limiter.peek(("per_user", "u1")).await?.remaining().floor();
    let organisation = limiter.peek(("per_org", "o7")).await?.remaining().floor();
    let denied_by: Vec<&str> = denied_by.iter().map(|limit| &**limit).collect();
    let title =
        if denied_by.is_empty() { step.to_owned() } else { format!("{step}: denied by {}", denied_by.join(", ")) };
    let (of_user, of_organisation) = (tokens(user), tokens(organisation));
    stage.show(
        format!("  {title:<46} rows {rows}   user {of_user}   organisation {of_organisation}"),
        Some(step),
        json!({"denied_by": denied_by, "rows": rows, "user": user, "organisation": organisation}),
    )
}

const TASKS: u64 = 64;
const CALLS: u64 = 16;
const ALLOWS: u32 = 250;

/// Many concurrent tasks on one key: exactly as many calls are allowed as the limit has tokens.
async fn hammer(stage: &mut Stage) -> Result<()> {
    // The rate is so slow that no token is refilled during the demo.
    let limit = Limit::token_bucket(1, Duration::from_secs(86_400)).capacity(ALLOWS);
    let about = format!("{TASKS} concurrent tasks on one key with {ALLOWS} tokens");
    let limiter = stage.scene("Exact under load", &about, Limits::new().define("tickets", limit)).await?;
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut allowed = 0;
            for _ in 0..CALLS {
                allowed += u64::from(limiter.limit(("tickets", "concert")).await?.is_allowed());
            }
            Ok::<u64, Error>(allowed)
        });
    }
    let mut allowed = 0;
    while let Some(task) = tasks.join_next().await {
        allowed += task.map_err(CliError::failed)??;
    }
    let took = begin.elapsed().as_secs_f64();

    let (calls, denied) = (TASKS * CALLS, TASKS * CALLS - allowed);
    let exact = allowed == u64::from(ALLOWS);
    let verdict = format!("admitted {allowed}, the limit allows {ALLOWS}: {}", if exact { "exact" } else { "WRONG" });
    let [all, admitted, refused] = [calls, allowed, denied].map(grouped);
    let painted = paint(if exact { GREEN } else { RED }, &verdict);
    let line = format!("  {all} calls in {took:.2} s: {admitted} allowed, {refused} denied\n  {painted}");
    stage.show(line, None, json!({"calls": calls, "allowed": allowed, "denied": denied, "exact": exact}))?;
    if exact { Ok(()) } else { Err(CliError::failed(verdict)) }
}

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";
const BOLD: &str = "1";

struct Stage {
    pool: PgPool,
    running: Running,
    json: bool,
    /// The number of the present scene; 0 before the first.
    scene: u32,
    progress: Progress,
}

#[derive(Serialize)]
struct Shown<'a> {
    scene: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(flatten)]
    object: Value,
}

impl Stage {
    /// Connects. The name of the schema contains the time, so it cannot collide with an existing one. (The prefix `pg_` is
    /// reserved.)
    async fn open(mut running: Running, json: bool) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        running.schema = Schema::new(&format!("limiter_demo_{}", now.as_millis())).map_err(CliError::usage)?;
        let pool = running.pool(8).await?;
        Ok(Self { running, pool, json, scene: 0, progress: Progress::parts("demo", 5) })
    }

    /// Creates the schema. Returns the name of the server.
    async fn set(&self) -> Result<String> {
        let version: String = sqlx::raw_sql("SHOW server_version").fetch_one(&self.pool).await?.try_get(0)?;
        self.progress.now("creating the tables and functions");
        Migrator::new(self.running.schema.clone()).run(&self.pool).await.map_err(CliError::failed)?;
        self.progress.now("demo");
        let source = self.running.private_source();
        Ok(source.map_or_else(|| format!("your server, version {version}"), str::to_owned))
    }

    async fn strike(self) -> Result<()> {
        let statement = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.running.schema.quoted());
        let dropped = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&self.pool).await;
        self.pool.close().await;
        let left = |error| {
            let (schema, error) = (&self.running.schema, Error::database_message(&error));
            CliError::failed(format!("cannot drop the schema {schema}: {error}; drop it"))
        };
        dropped.map(drop).map_err(left)
    }

    async fn scene(&mut self, title: &str, about: &str, limits: Result<Limits, InvalidLimit>) -> Result<Limiter> {
        if self.scene > 0 {
            self.progress.add(1);
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        self.scene += 1;
        let line = format!("\n{}  {about}", paint(BOLD, &format!("{}. {title}", self.scene)));
        self.show(line, None, json!({"title": title, "limit": about}))?;
        Ok(self.running.limiter_on(self.pool.clone(), limits.map_err(CliError::usage)?, None))
    }

    fn show(&self, line: String, step: Option<&str>, object: Value) -> Result<()> {
        output::line(if self.json { json::line(&Shown { scene: self.scene, step, object }) } else { line })
    }

    /// Makes a call, and shows the decision: `allowed  █████░░░░░  5 left`. Returns when a denied call would be allowed.
    async fn call(&self, step: &str, limiter: &Limiter, call: impl Into<Call> + Send) -> Result<Option<Duration>> {
        let decision = limiter.limit(call).await?;
        let retry_after = decision.retry_after();
        let wait = retry_after.map(|wait| format!(", retry after {}", seconds(wait))).unwrap_or_default();
        let line = format!("  {step:<14} {}  {}{wait}", verdict(&decision), bar(decision.limits()));
        self.show(line, Some(step), json::decision(&decision)).map(|()| retry_after)
    }
}

fn verdict(decision: &Decision) -> String {
    match (decision.is_denied(), decision.is_allowed()) {
        (true, _) => paint(RED, "denied  "),
        (_, true) => paint(GREEN, "allowed "),
        _ => paint(YELLOW, "reserved"),
    }
}

fn paint(colour: &str, text: &str) -> String {
    if output::colours() { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// Formats a time in milliseconds, rounded up, so that a call after that time is not too early.
fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_micros().div_ceil(1000) as f64 / 1000.0)
}

/// A bar with two cells for each token, so that half tokens are visible, and the tokens with one decimal, rounded down.
fn bar(limits: &[LimitState]) -> String {
    let (tokens, capacity) = limits.first().map_or((0.0, 0.0), |limit| (limit.remaining, limit.capacity));
    let width = (capacity * 2.0).round().clamp(0.0, 60.0) as usize;
    let full = (tokens * 2.0 + 1e-6).floor().clamp(0.0, width as f64) as usize;
    let left = format!("{:.1}", (tokens * 10.0 + 1e-6).floor() / 10.0 + 0.0);
    format!("{}{}  {left:>4} left", "█".repeat(full), "░".repeat(width - full))
}
