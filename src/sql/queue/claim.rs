use std::collections::HashMap;
use std::time::{Duration, Instant};

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::call::LeaseId;
use crate::sql::queue::{KnownLimits, QueueStatements};

/// A worker's request for jobs.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) queue: &'a str,
    pub(crate) worker: &'a str,
    pub(crate) most: i32,
    /// In microseconds.
    pub(crate) ahead: i64,
    /// In microseconds.
    pub(crate) lease: i64,
    /// In microseconds.
    pub(crate) sleep: i64,
    pub(crate) limits: &'a KnownLimits,
    /// Whether the worker hears notifications now.
    pub(crate) listens: bool,
    /// How many other jobs it has started while one of the lowest priority was due.
    pub(crate) passed_over: i32,
}

/// The response to a claim.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    /// The claimed jobs. Empty until [`read`] fills it.
    pub(crate) jobs: Vec<ClaimedJob>,
    /// The jobs that the worker now owns, and how often they have been started.
    starts: Vec<(i64, i32)>,
    /// The time until there may be work, in microseconds; `None` if none is known to come.
    pub(crate) next_in: Option<i64>,
    pub(crate) lapsed: bool,
    pub(crate) look_again: bool,
    /// Limits that due jobs need and that this worker does not know, or knows of another kind.
    pub(crate) blocked_names: Vec<String>,
    /// The `passed_over` of the worker's next claim; `None` if it stays.
    pub(crate) passed: Option<i32>,
}

/// A job that the worker now owns.
#[derive(Clone, Debug)]
pub(crate) struct ClaimedJob {
    pub(crate) id: i64,
    pub(crate) key: String,
    pub(crate) payload: String,
    pub(crate) unique_id: Option<String>,
    pub(crate) priority: i32,
    pub(crate) run_at: i64,
    pub(crate) enqueued_at: i64,
    pub(crate) starts: i32,
    pub(crate) failures: i32,
    pub(crate) waits: i32,
    pub(crate) max_attempts: i32,
    pub(crate) limit_names: Vec<String>,
    pub(crate) limit_keys: Vec<String>,
    pub(crate) counts: Vec<f64>,
    pub(crate) slots: Vec<SlotItem>,
    /// The lease that holds the slots.
    pub(crate) slot_lease: Option<LeaseId>,
    started_at: i64,
    /// The database's clock when it read the claimed jobs, and the local time when they arrived. Between the two is no commit, as in
    /// the claim itself, so the local time of the start is known closely.
    clock: i64,
    arrived: Instant,
}

/// Slots that a job needs.
#[derive(Clone, Debug)]
pub(crate) struct SlotItem {
    pub(crate) name: String,
    /// As stored.
    pub(crate) key: String,
    pub(crate) count: f64,
}

impl SlotItem {
    pub(super) fn all(row: &PgRow) -> Result<Vec<Self>, sqlx::Error> {
        let names: Option<Vec<String>> = row.try_get("slot_names")?;
        let keys: Option<Vec<String>> = row.try_get("slot_keys")?;
        let counts: Option<Vec<f64>> = row.try_get("slot_counts")?;
        let items = names.unwrap_or_default().into_iter().zip(keys.unwrap_or_default()).zip(counts.unwrap_or_default());
        Ok(items.map(|((name, key), count)| Self { name, key, count }).collect())
    }
}

impl ClaimedJob {
    /// The local time at which the job starts, or somewhat later: never earlier.
    pub(crate) fn at(&self) -> Instant {
        let wait = self.started_at.saturating_sub(self.clock).max(0);
        self.arrived + Duration::from_micros(wait.unsigned_abs())
    }

    /// Returns how late the job is, relative to its reserved time.
    pub(crate) fn lag(&self, now: Instant) -> Duration {
        let since = i64::try_from(now.saturating_duration_since(self.arrived).as_micros()).unwrap_or(i64::MAX);
        let lag = self.clock.saturating_sub(self.run_at).saturating_add(since);
        Duration::from_micros(lag.max(0).unsigned_abs())
    }
}

/// Claims jobs. The answer is small, whatever the jobs contain: it fits into the connection's buffers even if the
/// client does not read it, so that the transaction can always end.
pub(crate) async fn claim(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    claim: &Claim<'_>,
) -> Result<Claimed, sqlx::Error> {
    let query = statements
        .claim
        .query()
        .bind(claim.queue)
        .bind(claim.worker)
        .bind(claim.most)
        .bind(claim.ahead)
        .bind(claim.lease)
        .bind(claim.sleep);
    let mut claimed = Claimed::default();
    let query = claim.limits.bind_with_slots(query).bind(claim.listens).bind(claim.passed_over);
    for row in claim.limits.bind_shards_with_slots(query).fetch_all(conn).await? {
        let Some(id) = row.try_get("job_id")? else {
            claimed.next_in = row.try_get("next_in")?;
            claimed.lapsed = row.try_get("lapsed")?;
            claimed.look_again = row.try_get("look_again")?;
            claimed.passed = row.try_get("passed")?;
            claimed.blocked_names = row.try_get::<Option<_>, _>("blocked_names")?.unwrap_or_default();
            continue;
        };
        claimed.starts.push((id, row.try_get("job_starts")?));
    }
    Ok(claimed)
}

/// Reads the claimed jobs, once the claim is committed.
pub(crate) async fn read(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    claimed: &mut Claimed,
) -> Result<(), sqlx::Error> {
    if claimed.starts.is_empty() {
        return Ok(());
    }
    let (ids, starts): (Vec<i64>, Vec<i32>) = claimed.starts.iter().copied().unzip();
    let rows = statements.claimed.query().bind(ids).bind(starts).fetch_all(conn).await?;
    let arrived = Instant::now();
    // One time for all, so that jobs of the same time keep their order.
    let clocks = rows.iter().map(|row| row.try_get("clock")).collect::<Result<Vec<i64>, _>>()?;
    let clock = clocks.into_iter().min().unwrap_or_default();
    let mut rows =
        rows.iter().map(|row| Ok((row.try_get("id")?, row))).collect::<Result<HashMap<i64, _>, sqlx::Error>>()?;
    for &(id, starts) in &claimed.starts {
        let Some(row) = rows.remove(&id) else { continue }; // Another worker already owns it.
        claimed.jobs.push(ClaimedJob {
            id,
            key: row.try_get("key")?,
            payload: row.try_get("payload")?,
            unique_id: row.try_get("unique_id")?,
            priority: row.try_get("priority")?,
            run_at: row.try_get("run_at")?,
            enqueued_at: row.try_get("enqueued_at")?,
            starts,
            waits: row.try_get("waits")?,
            failures: row.try_get("failures")?,
            max_attempts: row.try_get("max_attempts")?,
            limit_names: row.try_get("limit_names")?,
            limit_keys: row.try_get("limit_keys")?,
            counts: row.try_get("counts")?,
            slots: SlotItem::all(row)?,
            slot_lease: row.try_get::<Option<i64>, _>("slot_lease")?.and_then(LeaseId::new),
            started_at: row.try_get("started_at")?,
            clock,
            arrived,
        });
    }
    Ok(())
}
