//! Queries that change nothing.

use sqlx::{PgConnection, Row};

use crate::sql::queue::{QueueStatements, SlotItem};

#[derive(Clone, Debug)]
pub(crate) struct GroupRow {
    pub(crate) queue: String,
    pub(crate) key: String,
    /// The numbers of jobs that are scheduled, available, running, done, dead and cancelled.
    pub(crate) counts: [i64; 6],
    pub(crate) clock: i64,
    pub(crate) oldest: Option<i64>,
    pub(crate) next_at: Option<i64>,
    pub(crate) waits_until: Option<i64>,
    pub(crate) blocked: i64,
    pub(crate) is_paused: bool,
    pub(crate) is_draining: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct JobRow {
    pub(crate) id: i64,
    pub(crate) queue: String,
    pub(crate) key: String,
    pub(crate) state: String,
    pub(crate) priority: i32,
    pub(crate) run_at: i64,
    pub(crate) payload: String,
    pub(crate) unique_id: Option<String>,
    pub(crate) limit_names: Vec<String>,
    pub(crate) limit_keys: Vec<String>,
    pub(crate) counts: Vec<f64>,
    pub(crate) used_counts: Option<Vec<Option<f64>>>,
    pub(crate) slots: Vec<SlotItem>,
    pub(crate) max_attempts: i32,
    pub(crate) failures: i32,
    pub(crate) last_error: Option<String>,
    pub(crate) worker: Option<String>,
    pub(crate) enqueued_at: i64,
    pub(crate) started_at: Option<i64>,
    pub(crate) finished_at: Option<i64>,
    pub(crate) waits: i32,
    pub(crate) waits_until: Option<i64>,
    pub(crate) blocked_by: Option<String>,
    pub(crate) awaits_turn: bool,
}

/// Selects jobs; `None` matches any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JobFilter<'a> {
    pub(crate) queue: Option<&'a str>,
    pub(crate) key: Option<&'a str>,
    pub(crate) state: Option<&'a str>,
    pub(crate) id: Option<i64>,
}

/// Returns the groups of a queue, or of all queues.
pub(crate) async fn group_rows(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: Option<&str>,
) -> Result<Vec<GroupRow>, sqlx::Error> {
    let rows = statements.groups.query().bind(queue).fetch_all(conn).await?;
    let group = |row: &sqlx::postgres::PgRow| {
        let mut counts = [0; 6];
        for (count, state) in counts.iter_mut().zip(["scheduled", "available", "running", "done", "dead", "cancelled"])
        {
            *count = row.try_get(state)?;
        }
        Ok(GroupRow {
            queue: row.try_get("queue")?,
            key: row.try_get("key")?,
            counts,
            clock: row.try_get("clock")?,
            oldest: row.try_get("oldest")?,
            next_at: row.try_get("next_at")?,
            waits_until: row.try_get("waits_until")?,
            blocked: row.try_get("blocked")?,
            is_paused: row.try_get("is_paused")?,
            is_draining: row.try_get("is_draining")?,
        })
    };
    rows.iter().map(group).collect()
}

/// Returns the first jobs in order of their run time.
pub(crate) async fn job_rows(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    filter: JobFilter<'_>,
    most: i64,
) -> Result<Vec<JobRow>, sqlx::Error> {
    let sql = if filter.id.is_some() { &statements.job } else { &statements.jobs };
    let mut query = sql.query().bind(filter.queue).bind(filter.key).bind(filter.state).bind(most);
    if let Some(id) = filter.id {
        query = query.bind(id);
    }
    let rows = query.fetch_all(conn).await?;
    let job = |row: &sqlx::postgres::PgRow| {
        Ok(JobRow {
            id: row.try_get("id")?,
            queue: row.try_get("queue")?,
            key: row.try_get("key")?,
            state: row.try_get("state")?,
            priority: row.try_get("priority")?,
            run_at: row.try_get("run_at")?,
            payload: row.try_get("payload")?,
            unique_id: row.try_get("unique_id")?,
            limit_names: row.try_get("limit_names")?,
            limit_keys: row.try_get("limit_keys")?,
            counts: row.try_get("counts")?,
            used_counts: row.try_get("used_counts")?,
            slots: SlotItem::all(row)?,
            max_attempts: row.try_get("max_attempts")?,
            failures: row.try_get("failures")?,
            last_error: row.try_get("last_error")?,
            worker: row.try_get("worker")?,
            enqueued_at: row.try_get("enqueued_at")?,
            started_at: row.try_get("started_at")?,
            finished_at: row.try_get("finished_at")?,
            waits: row.try_get("waits")?,
            waits_until: row.try_get("waits_until")?,
            blocked_by: row.try_get("blocked_by")?,
            awaits_turn: row.try_get("awaits_turn")?,
        })
    };
    rows.iter().map(job).collect()
}

/// The numbers of jobs of a queue by state, and its lag.
#[cfg(feature = "metrics")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gauges {
    pub(crate) scheduled: i64,
    pub(crate) available: i64,
    pub(crate) running: i64,
    pub(crate) dead: i64,
    pub(crate) blocked: i64,
    /// In microseconds.
    pub(crate) lag: i64,
}

#[cfg(feature = "metrics")]
pub(crate) async fn gauges(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
) -> Result<Gauges, sqlx::Error> {
    let row = statements.gauges.query().bind(queue).fetch_one(conn).await?;
    Ok(Gauges {
        scheduled: row.try_get("scheduled")?,
        available: row.try_get("available")?,
        running: row.try_get("running")?,
        dead: row.try_get("dead")?,
        blocked: row.try_get("blocked")?,
        lag: row.try_get("lag")?,
    })
}
