//! Takes a sample of the counters, the memory and the tables at regular intervals.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, PgPool};

use super::flat::{is_flat, quarters};
use super::report::{Event, Growth, Sample};
use super::setup::SoakSetup;
use super::stats::Stats;

const LOOKS: Duration = Duration::from_secs(10);
/// The least number of samples, however short the run is.
const AT_LEAST: u32 = 20;
const TO_LOOK: Duration = Duration::from_secs(5);

/// The samples so far.
pub(super) struct Watch {
    setup: Arc<SoakSetup>,
    stats: Arc<Stats>,
    began: Instant,
    before: (Instant, u64),
    rss: Vec<u64>,
    table: Vec<u64>,
    answers: Vec<u64>,
}

impl Watch {
    pub(super) fn new(setup: Arc<SoakSetup>, stats: Arc<Stats>) -> Self {
        let began = Instant::now();
        let (rss, table, answers) = Default::default();
        Self { setup, stats, began, before: (began, 0), rss, table, answers }
    }

    /// Takes samples until the time is up.
    pub(super) async fn until(&mut self, time: Duration) {
        let every = LOOKS.min(time / AT_LEAST);
        let mut looks = 0;
        loop {
            looks += 1;
            let next = (every * looks).min(time);
            tokio::time::sleep_until((self.began + next).into()).await;
            if next == time {
                return;
            }
            self.look().await;
            // If a sample took longer than the interval, the samples in between are skipped.
            looks = looks.max((self.began.elapsed().as_micros() / every.as_micros().max(1)) as u32);
        }
    }

    pub(super) async fn look(&mut self) -> Sample {
        let sample = self.sample().await;
        self.rss.extend(sample.rss_bytes);
        self.table.extend(sample.table_bytes);
        self.answers.extend(sample.answers_bytes);
        self.stats.show(Event::Sample(&sample));
        sample
    }

    async fn sample(&mut self) -> Sample {
        let pool = self.setup.audit_pool();
        let schema = self.setup.schema();
        let (table_bytes, answers_bytes, rows) = tokio::join!(
            number(pool, format!("SELECT pg_catalog.pg_total_relation_size('{}.rate_limits')", quoted(schema)), None),
            number(pool, format!("SELECT pg_catalog.pg_total_relation_size('{}.answers')", quoted(schema)), None),
            rows(pool, schema, self.setup.name())
        );
        let counts = self.stats.count();
        let now = Instant::now();
        let (at, decisions) = self.before;
        let seconds = now.duration_since(at).as_secs_f64().max(0.001);
        self.before = (now, counts.decisions);
        Sample {
            elapsed_ms: now.duration_since(self.began).as_millis() as u64,
            decisions: counts.decisions,
            decisions_per_second: ((counts.decisions - decisions) as f64 / seconds).round() as u64,
            retries: self.setup.retries(),
            faults: counts.faults,
            cancelled: counts.cancelled,
            errors: counts.errors,
            rss_bytes: rss(),
            table_bytes,
            answers_bytes,
            rows,
            audits: counts.audits,
            violations: counts.violations,
        }
    }

    /// The growth of the memory, of the table of limits, and of the table of answers.
    pub(super) fn growth(&self) -> [Option<Growth>; 3] {
        [&self.rss, &self.table, &self.answers].map(|samples| {
            let (second_quarter, last_quarter) = quarters(samples)?;
            Some(Growth { second_quarter, last_quarter, is_flat: is_flat((second_quarter, last_quarter)) })
        })
    }
}

/// Escapes an identifier for use within a string literal.
fn quoted(identifier: &str) -> String {
    identifier.replace('\'', "''")
}

async fn number(pool: &PgPool, sql: String, name: Option<&str>) -> Option<u64> {
    let mut query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql));
    if let Some(name) = name {
        query = query.bind(name.to_owned());
    }
    let answer = tokio::time::timeout(TO_LOOK, query.fetch_one(pool)).await.ok()?;
    answer.ok().map(i64::unsigned_abs)
}

/// Counts the rows of this soak. If the role may not read them, it estimates the rows of the whole table.
async fn rows(pool: &PgPool, schema: &str, name: &str) -> Option<u64> {
    let own = format!(
        "SELECT pg_catalog.count(*) FROM {schema}.rate_limits AS r WHERE r.name > $1 AND r.name < $1 || '~' COLLATE \"C\""
    );
    if let Some(rows) = number(pool, own, Some(name)).await {
        return Some(rows);
    }
    let all = format!("SELECT pg_catalog.pg_stat_get_live_tuples('{}.rate_limits'::regclass)", quoted(schema));
    number(pool, all, None).await
}

/// The resident memory of this process. `status` reports it in KiB; `statm` reports it in pages of a size that it omits.
fn rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[test]
#[cfg(target_os = "linux")]
fn linux_reports_the_memory_of_a_process() {
    assert!(rss().is_some_and(|bytes| bytes > 100_000));
}
