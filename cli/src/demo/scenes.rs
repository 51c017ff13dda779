//! The scenes of the demo.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tokio::task::JoinSet;

use crate::demo::stage::{Stage, decided, seconds};
use crate::error::CliError;
use crate::json;
use crate::text::{grouped, tokens};
use pg_limiter::{Error, Item, Limit, Limiter, Limits};

const CAPACITY: f64 = 10.0;

/// A bucket of tokens for each user, which refills continuously, as in F. Pachot's article on rate limiting in YugabyteDB.
pub(super) async fn token_bucket(stage: &Stage) -> Result<(), CliError> {
    let screen = &stage.screen;
    screen.heading(1, "Token bucket", "2 tokens per second for each user, at most 10")?;
    let limit = Limit::token_bucket(2, Duration::from_secs(1)).capacity(CAPACITY);
    let limiter = stage.limiter(Limits::new().define("requests", limit).map_err(CliError::usage)?);

    // One call after another, slow enough to watch, until the bucket is empty.
    for call in 1..=20 {
        let decision = limiter.limit(("requests", "franck")).await?;
        screen.decision(&format!("call {call}"), &decision, CAPACITY)?;
        if decision.is_denied() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
    for halves in 1..=6 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let balance = limiter.peek(("requests", "franck")).await?.remaining();
        screen.balance(&format!("{:.1} s later", f64::from(halves) / 2.0), balance, CAPACITY)?;
    }
    let decision = limiter.limit(("requests", "franck", 3.0)).await?;
    screen.decision("3 tokens", &decision, CAPACITY)?;
    let decision = limiter.limit(("requests", "somebody else")).await?;
    screen.decision("another user", &decision, CAPACITY)
}

const RATE: f64 = 5.0;

pub(super) async fn sliding_window(stage: &Stage) -> Result<(), CliError> {
    let screen = &stage.screen;
    screen.heading(2, "Sliding window", "at most 5 calls in the last 2 seconds, counted in 4 sub-intervals")?;
    let limit = Limit::sliding_window(RATE, Duration::from_secs(2)).resolution(4);
    let limiter = stage.limiter(Limits::new().define("searches", limit).map_err(CliError::usage)?);

    let mut promise = None;
    for call in 1..=7 {
        let decision = limiter.limit(("searches", "u1")).await?;
        promise = decision.retry_after().map(|wait| (tokio::time::Instant::now() + wait, wait));
        screen.decision(&format!("call {call}"), &decision, RATE)?;
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    // After its `retry_after`, the denied call is allowed.
    if let Some((at, wait)) = promise {
        tokio::time::sleep_until(at).await;
        let decision = limiter.limit(("searches", "u1")).await?;
        screen.decision(&format!("{} later", seconds(wait)), &decision, RATE)?;
    }
    Ok(())
}

const JOBS: usize = 5;

/// Jobs that come all at once get reservations for later times, instead of denials.
pub(super) async fn reservation(stage: &Stage) -> Result<(), CliError> {
    let screen = &stage.screen;
    screen.heading(3, "Reservations", "2 jobs per second, at most 1 at once; the others wait for their reservation")?;
    let limit = Limit::token_bucket(2, Duration::from_secs(1)).capacity(1);
    let limiter = stage.limiter(Limits::new().define("jobs", limit).map_err(CliError::usage)?);

    let begin = Instant::now();
    let mut waiting = Vec::new();
    for job in 1..=JOBS {
        let decision = limiter.limit(Item::global("jobs").reserve()).await?;
        let wait = decision.wait().unwrap_or_default();
        let line = format!(
            "  job {job:<10} {}  wait {}, {:.1} tokens left",
            screen.verdict(&decision),
            seconds(wait),
            decision.remaining()
        );
        screen.show(line, decided(&format!("job {job}"), &decision))?;
        waiting.push((job, begin.elapsed() + wait));
    }
    for (job, due) in waiting {
        tokio::time::sleep(due.saturating_sub(begin.elapsed())).await;
        let took = begin.elapsed();
        let line = format!("  job {job:<10} done at       {}  {}", seconds(took), "■".repeat(job));
        screen.show(line, json!({"step": format!("job {job}"), "done_after_ms": json::milliseconds(took)}))?;
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Limit(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error("the app failed")]
    Failed,
}

/// Two limits and the app's own INSERT in one transaction, all or nothing.
pub(super) async fn together(stage: &Stage) -> Result<(), CliError> {
    let screen = &stage.screen;
    screen.heading(
        4,
        "With your own writes",
        "a limit per user, a limit per organisation and an INSERT, in one transaction",
    )?;
    let hour = Duration::from_secs(3600);
    let limits = Limits::new()
        .define("per_user", Limit::token_bucket(1, hour).capacity(2))
        .and_then(|limits| limits.define("per_org", Limit::token_bucket(1, hour).capacity(5)))
        .map_err(CliError::usage)?;
    let limiter = stage.limiter(limits);
    let table = format!("{}.messages", stage.schema.quoted());
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE TABLE {table} (author text)"))).execute(&stage.pool).await?;

    let before = state(stage, &limiter, &table).await?;
    screen.show(before.line("before"), before.object("before", &[]))?;
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
                sqlx::query(AssertSqlSafe(insert)).execute(&mut *tx).await?;
                if fails { Err(AppError::Failed) } else { Ok(()) }
            })
            .await;
        let denied_by = match result {
            Ok(()) | Err(AppError::Failed) => Vec::new(),
            Err(AppError::Limit(Error::Denied(denied))) => denied.limits,
            Err(AppError::Limit(error)) => return Err(error.into()),
            Err(AppError::Database(error)) => return Err(error.into()),
        };
        let after = state(stage, &limiter, &table).await?;
        let title =
            if denied_by.is_empty() { what.to_owned() } else { format!("{what}: denied by {}", denied_by.join(", ")) };
        screen.show(after.line(&title), after.object(what, &denied_by))?;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}

/// The rows of the table, and the tokens that are left.
struct State {
    rows: i64,
    user: f64,
    organisation: f64,
}

impl State {
    fn line(&self, title: &str) -> String {
        let Self { rows, user, organisation } = self;
        format!("  {title:<46} rows {rows}   user {}   organisation {}", tokens(*user), tokens(*organisation))
    }

    fn object(&self, step: &str, denied_by: &[Arc<str>]) -> Value {
        let Self { rows, user, organisation } = self;
        let denied_by: Vec<&str> = denied_by.iter().map(|limit| &**limit).collect();
        json!({"step": step, "denied_by": denied_by, "rows": rows, "user": user, "organisation": organisation})
    }
}

async fn state(stage: &Stage, limiter: &Limiter, table: &str) -> Result<State, CliError> {
    let count = format!("SELECT count(*) FROM {table}");
    let rows: i64 = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&stage.pool).await?;
    let user = limiter.peek(("per_user", "u1")).await?.remaining();
    let org = limiter.peek(("per_org", "o7")).await?.remaining();
    // Rounded down: the hourly rate refills a fraction of a token meanwhile.
    Ok(State { rows, user: user.floor(), organisation: org.floor() })
}

const TASKS: u64 = 64;
const CALLS: u64 = 16;
const ALLOWS: u32 = 250;

/// Many concurrent tasks on one key: exactly as many calls are allowed as the limit has tokens.
pub(super) async fn hammer(stage: &Stage) -> Result<(), CliError> {
    let screen = &stage.screen;
    screen.heading(5, "Exact under load", &format!("{TASKS} concurrent tasks on one key with {ALLOWS} tokens"))?;
    // The rate is so slow that no token is refilled during the demo.
    let limit = Limit::token_bucket(1, Duration::from_secs(86_400)).capacity(ALLOWS);
    let limiter = stage.limiter(Limits::new().define("tickets", limit).map_err(CliError::usage)?);

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

    let calls = TASKS * CALLS;
    let denied = calls - allowed;
    let exact = allowed == u64::from(ALLOWS);
    let verdict = format!("admitted {allowed}, the limit allows {ALLOWS}: {}", if exact { "exact" } else { "WRONG" });
    let line = format!(
        "  {} calls in {took:.2} s: {} allowed, {} denied\n  {}",
        grouped(calls),
        grouped(allowed),
        grouped(denied),
        screen.right_or_wrong(exact, &verdict)
    );
    screen.show(line, json!({"calls": calls, "allowed": allowed, "denied": denied, "exact": exact}))?;
    if exact { Ok(()) } else { Err(CliError::failed(verdict)) }
}
