//! The schema of the demo, and its output: headings, verdicts and bars, or JSON.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};

use crate::database::Running;
use crate::error::CliError;
use crate::output::{self, Progress};
use crate::{json, text};
use pg_limiter::migrate::Migrator;
use pg_limiter::{Decision, Limiter, LimiterConfig, Limits, Schema};

const CONNECTIONS: u32 = 8;

/// The demo's own schema.
pub(super) struct Stage {
    pub(super) pool: PgPool,
    pub(super) schema: Schema,
    pub(super) screen: Screen,
    private_source: Option<String>,
}

impl Stage {
    /// Creates the schema. Its name contains the time, so it cannot collide with an existing one. (The prefix `pg_` is
    /// reserved.)
    pub(super) async fn set(running: &Running, json: bool) -> Result<Self, CliError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let schema = Schema::new(&format!("limiter_demo_{}", now.as_millis()))?;
        let pool = running.pool(CONNECTIONS).await?;
        let _progress = Progress::of("creating the tables and functions");
        Migrator::new(schema.clone()).run(&pool).await?;
        let private_source = running.private_source().map(str::to_owned);
        Ok(Self { pool, schema, screen: Screen::new(json), private_source })
    }

    pub(super) async fn introduce(&self) -> Result<(), CliError> {
        let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(&self.pool).await?;
        let place = self.private_source.clone().unwrap_or_else(|| format!("your server, version {version}"));
        let line = format!(
            "Every line below is a real call on {place}.\nThe demo runs in the schema {}, and drops it at the end.",
            self.schema
        );
        self.screen.show(line, json!({"server": place, "schema": self.schema.name()}))
    }

    pub(super) fn limiter(&self, limits: Limits) -> Limiter {
        let mut config = LimiterConfig::default();
        config.schema = self.schema.clone();
        Limiter::with_config(self.pool.clone(), limits, config)
    }

    /// Pauses after a scene.
    pub(super) async fn next(&self, progress: &Progress) {
        progress.add(1);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }

    pub(super) async fn strike(self) -> Result<(), CliError> {
        let drop = format!("DROP SCHEMA {} CASCADE", self.schema.quoted());
        let dropped = sqlx::raw_sql(AssertSqlSafe(drop)).execute(&self.pool).await;
        self.pool.close().await;
        dropped
            .map(|_| ())
            .map_err(|error| CliError::failed(format!("cannot drop the schema {0}: {error}; drop it", self.schema)))
    }
}

const MINUTE: Duration = Duration::from_secs(60);
const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";
const BOLD: &str = "1";

pub(super) struct Screen {
    colours: bool,
    json: bool,
    /// The number of the present scene; 0 before the first.
    scene: AtomicU32,
}

impl Screen {
    pub(super) fn new(json: bool) -> Self {
        Self { colours: output::colours(), json, scene: AtomicU32::new(0) }
    }

    pub(super) fn heading(&self, number: u32, title: &str, limit: &str) -> Result<(), CliError> {
        self.scene.store(number, Ordering::Relaxed);
        let line = format!("\n{}  {limit}", self.paint(BOLD, &format!("{number}. {title}")));
        self.show(line, json!({"title": title, "limit": limit}))
    }

    /// Prints the line, or the object after the number of the scene.
    pub(super) fn show(&self, line: String, object: Value) -> Result<(), CliError> {
        if !self.json {
            return output::line(line);
        }
        let mut numbered = json!({"scene": self.scene.load(Ordering::Relaxed)});
        if let (Value::Object(numbered), Value::Object(object)) = (&mut numbered, object) {
            numbered.extend(object);
        }
        output::line(json::line(&numbered))
    }

    /// `allowed  █████░░░░░  5 left`
    pub(super) fn decision(&self, what: &str, decision: &Decision, capacity: f64) -> Result<(), CliError> {
        let bar = bar(decision.remaining(), capacity);
        let left = tenths(decision.remaining());
        let wait = decision.retry_after().map(|wait| format!(", retry after {}", seconds(wait))).unwrap_or_default();
        let line = format!("  {what:<14} {}  {bar}  {left:>4} left{wait}", self.verdict(decision));
        self.show(line, decided(what, decision))
    }

    pub(super) fn balance(&self, what: &str, balance: f64, capacity: f64) -> Result<(), CliError> {
        let bar = bar(balance, capacity);
        let line = format!("  {what:<14}           {bar}  {:>4} left", tenths(balance));
        self.show(line, json!({"step": what, "value": balance}))
    }

    pub(super) fn verdict(&self, decision: &Decision) -> String {
        match (decision.is_denied(), decision.is_allowed()) {
            (true, _) => self.paint(RED, "denied  "),
            (_, true) => self.paint(GREEN, "allowed "),
            _ => self.paint(YELLOW, "reserved"),
        }
    }

    pub(super) fn right_or_wrong(&self, right: bool, line: &str) -> String {
        self.paint(if right { GREEN } else { RED }, line)
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colours { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// A decision for [`Screen::show`].
pub(super) fn decided(step: &str, decision: &Decision) -> Value {
    let mut object = json!({"step": step});
    if let (Value::Object(object), Value::Object(decision)) = (&mut object, json::decided(decision)) {
        object.extend(decision);
    }
    object
}

/// Formats a time in milliseconds, rounded up, so that a call after that time is not too early.
pub(super) fn seconds(time: Duration) -> String {
    if time >= MINUTE {
        return text::wait(time);
    }
    format!("{:.3} s", time.as_micros().div_ceil(1000) as f64 / 1000.0)
}

/// Formats tokens with one decimal, rounded down.
fn tenths(tokens: f64) -> String {
    format!("{:.1}", (tokens * 10.0 + 1e-6).floor() / 10.0 + 0.0)
}

/// A bar with two cells for each token, so that half tokens are visible.
fn bar(tokens: f64, capacity: f64) -> String {
    let width = (capacity * 2.0).round().clamp(0.0, 60.0) as usize;
    let full = (tokens * 2.0 + 1e-6).floor().clamp(0.0, width as f64) as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}
