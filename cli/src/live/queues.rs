//! The queues: groups, and jobs by state. Each query reads one of the queue's indexes, up to a bound.

use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};

use crate::error::CliError;
use crate::export::now;
use crate::live::live::Live;
use crate::live::view::Counted;
use pg_limiter::queue::JobState;

/// Jobs are counted up to this number, for each state of a queue.
const COUNTED: u64 = 10_000;
/// Groups that are listed.
const GROUPS: u32 = 200;
/// Queues that are listed.
const QUEUES: u32 = 200;

/// One queue.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct QueueView {
    pub(crate) queue: String,
    /// In the order of [`JobState::ALL`].
    pub(crate) jobs: Vec<(&'static str, Counted)>,
}

/// A group in which jobs wait. Times are in microseconds since the Unix epoch.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GroupView {
    pub(crate) queue: String,
    /// As stored.
    pub(crate) group: String,
    pub(crate) scheduled: Counted,
    pub(crate) available: Counted,
    /// No waiting job of the group starts before.
    pub(crate) next_start: Option<i64>,
    /// How far its line is behind the reserved times, in microseconds.
    pub(crate) lag: Option<i64>,
    /// Its first job waits for slots of this limit and key.
    pub(crate) waits_for: Option<(String, String)>,
}

/// Tokens that a job reserved, or slots that it takes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReservedView {
    pub(crate) limit: String,
    pub(crate) key: String,
    pub(crate) count: f64,
    pub(crate) used: Option<f64>,
    pub(crate) is_slots: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct JobView {
    pub(crate) id: i64,
    pub(crate) queue: String,
    pub(crate) group: String,
    pub(crate) state: String,
    pub(crate) priority: i32,
    pub(crate) enqueued_at: i64,
    pub(crate) run_at: i64,
    pub(crate) started_at: Option<i64>,
    pub(crate) lease_until: Option<i64>,
    pub(crate) finished_at: Option<i64>,
    pub(crate) worker: Option<String>,
    pub(crate) starts: i32,
    pub(crate) waits: i32,
    pub(crate) failures: i32,
    pub(crate) max_attempts: i32,
    pub(crate) last_error: Option<String>,
    pub(crate) unique_id: Option<String>,
    /// JSON. `None` in lists.
    pub(crate) payload: Option<String>,
    /// Empty in lists.
    pub(crate) reserved: Vec<ReservedView>,
}

impl Live {
    /// The database's clock, in microseconds since the Unix epoch.
    pub(crate) async fn now(&self) -> Result<i64, CliError> {
        let mut tx = self.begin().await?;
        now(&mut tx).await.map_err(|error| self.failed(error))
    }

    /// All queues that have jobs; none if the queue is not installed.
    pub(crate) async fn queues(&self) -> Result<Vec<QueueView>, CliError> {
        if !self.has_queue().await? {
            return Ok(Vec::new());
        }
        let jobs = format!("{}.jobs", self.schema.quoted());
        // One look-up for each queue, in each of the partial indexes.
        let of_index = |condition: &str| {
            format!(
                "(SELECT q.queue FROM ( \
                   WITH RECURSIVE q AS ( \
                     (SELECT j.queue FROM {jobs} AS j WHERE {condition} ORDER BY j.queue LIMIT 1) \
                     UNION ALL \
                     SELECT (SELECT j.queue FROM {jobs} AS j WHERE {condition} AND j.queue > q.queue ORDER BY j.queue LIMIT 1) \
                     FROM q WHERE q.queue IS NOT NULL) \
                   SELECT q.queue FROM q WHERE q.queue IS NOT NULL LIMIT {QUEUES}) AS q)"
            )
        };
        let conditions = [
            "j.state IN ('scheduled', 'available')",
            "j.state = 'running'",
            "j.state IN ('done', 'cancelled')",
            "j.state = 'dead'",
        ];
        let names = conditions.map(of_index).join(" UNION ");
        let counts = JobState::ALL.iter().map(|state| {
            let (source, order) = index_of(*state);
            format!(
                "(SELECT count(*) FILTER (WHERE j.state = '{state}') FROM (SELECT j.state FROM {jobs} AS j \
                   WHERE j.queue = n.queue AND {source} ORDER BY {order} LIMIT {}) AS j)",
                COUNTED + 1
            )
        });
        let counts: Vec<String> = counts.collect();
        let sql = format!(
            "SELECT n.queue, {} FROM ({names}) AS n (queue) ORDER BY n.queue LIMIT {QUEUES}",
            counts.join(", ")
        );
        let read = |row: &PgRow| {
            let count = |(place, state): (usize, &JobState)| {
                let number: i64 = row.try_get(place + 1)?;
                Ok((state.as_str(), Counted::up_to(COUNTED, number.unsigned_abs())))
            };
            let jobs = JobState::ALL.iter().enumerate().map(count).collect::<Result<_, sqlx::Error>>()?;
            Ok(QueueView { queue: row.try_get(0)?, jobs })
        };
        let mut tx = self.begin().await?;
        let rows = sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_all(&mut *tx).await;
        rows.and_then(|rows| rows.iter().map(read).collect()).map_err(|error| self.failed(error))
    }

    async fn has_queue(&self) -> Result<bool, CliError> {
        let sql = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";
        let jobs = format!("{}.jobs", self.schema.quoted());
        let mut tx = self.begin().await?;
        let found = sqlx::query_scalar(sql).bind(jobs).persistent(false).fetch_one(&mut *tx).await;
        found.map_err(|error| self.failed(error))
    }

    /// The groups of a queue in which jobs wait, by name, after the group `after`.
    pub(crate) async fn groups(&self, queue: &str, after: Option<&str>) -> Result<Vec<GroupView>, CliError> {
        let schema = self.schema.quoted();
        let jobs = format!("{schema}.jobs");
        let waiting = "j.queue = $1 AND j.state IN ('scheduled', 'available')";
        let next =
            |after: &str| format!("SELECT j.key FROM {jobs} AS j WHERE {waiting} AND ({after}) ORDER BY j.key LIMIT 1");
        let bound = COUNTED + 1;
        let sql = format!(
            "WITH RECURSIVE k AS ( \
               ({}) UNION ALL SELECT ({}) FROM k WHERE k.key IS NOT NULL \
             ), k_few AS (SELECT k.key FROM k WHERE k.key IS NOT NULL LIMIT {GROUPS}) \
             SELECT k.key, c.scheduled, c.available, greatest(c.first_at, g.held_until), \
               CASE WHEN g.has_line THEN g.lag END, g.slot_name, g.slot_key \
             FROM k_few AS k CROSS JOIN LATERAL ( \
               SELECT count(*) FILTER (WHERE w.state = 'scheduled') AS scheduled, \
                 count(*) FILTER (WHERE w.state = 'available') AS available, min(w.first_at) AS first_at \
               FROM ((SELECT j.state, greatest(j.run_at, j.paid_until) AS first_at FROM {jobs} AS j \
                      WHERE j.queue = $1 AND j.key = k.key AND j.state = 'available' ORDER BY j.priority DESC, j.run_at, j.id LIMIT {bound}) \
                 UNION ALL \
                     (SELECT j.state, greatest(j.run_at, j.paid_until) FROM {jobs} AS j \
                      WHERE j.queue = $1 AND j.key = k.key AND j.state = 'scheduled' ORDER BY j.priority DESC, j.run_at, j.id LIMIT {bound}) \
                ) AS w) AS c \
             LEFT JOIN {schema}.groups AS g ON g.queue = $1 AND g.key = k.key",
            next("$2::text IS NULL OR j.key > $2"),
            next("j.key > k.key")
        );
        type Columns = (String, i64, i64, Option<i64>, Option<i64>, Option<String>, Option<String>);
        let view = |(group, scheduled, available, next_start, lag, limit, key): Columns| GroupView {
            queue: queue.to_owned(),
            group,
            scheduled: Counted::up_to(COUNTED, scheduled.unsigned_abs()),
            available: Counted::up_to(COUNTED, available.unsigned_abs()),
            next_start,
            lag,
            waits_for: limit.map(|limit| (limit, key.unwrap_or_default())),
        };
        let mut tx = self.begin().await?;
        let query = sqlx::query_as(AssertSqlSafe(sql)).bind(queue).bind(after).persistent(false);
        let groups = query.fetch_all(&mut *tx).await.map_err(|error| self.failed(error))?;
        Ok(groups.into_iter().map(view).collect())
    }

    /// The jobs of a queue in one state, without the first `skip`: those that run next, or ended last, first.
    pub(crate) async fn jobs(
        &self,
        queue: &str,
        state: JobState,
        skip: u32,
        most: u32,
    ) -> Result<Vec<JobView>, CliError> {
        let (source, order) = index_of(state);
        let sql = format!(
            "SELECT {JOB} FROM {}.jobs AS j WHERE j.queue = $1 AND {source} AND j.state = '{state}' \
             ORDER BY {order} LIMIT $2 OFFSET $3",
            self.schema.quoted()
        );
        let mut tx = self.begin().await?;
        let rows = sqlx::query(AssertSqlSafe(sql)).bind(queue).bind(i64::from(most)).bind(i64::from(skip));
        let rows = rows.persistent(false).fetch_all(&mut *tx).await;
        rows.and_then(|rows| rows.iter().map(read_job).collect()).map_err(|error| self.failed(error))
    }

    /// One job, with its payload.
    pub(crate) async fn job(&self, id: i64) -> Result<Option<JobView>, CliError> {
        let sql = format!(
            "SELECT {JOB}, j.payload::text, j.limit_names, j.limit_keys, j.counts, j.used_counts, j.slot_names, \
               j.slot_keys, j.slot_counts FROM {}.jobs AS j WHERE j.id = $1",
            self.schema.quoted()
        );
        let read = |row: PgRow| {
            let mut job = read_job(&row)?;
            job.payload = row.try_get(LISTED)?;
            let used: Option<Vec<Option<f64>>> = row.try_get(LISTED + 4)?;
            let used = used.unwrap_or_default();
            let of = |first: usize, is_slots: bool| {
                let names: Option<Vec<String>> = row.try_get(first)?;
                let keys: Option<Vec<String>> = row.try_get(first + 1)?;
                let counts: Option<Vec<f64>> = row.try_get(if is_slots { first + 2 } else { LISTED + 3 })?;
                let items =
                    names.unwrap_or_default().into_iter().zip(keys.unwrap_or_default()).zip(counts.unwrap_or_default());
                let item = |(nth, ((limit, key), count))| ReservedView {
                    limit,
                    key,
                    count,
                    used: used.get(nth).copied().flatten().filter(|_| !is_slots),
                    is_slots,
                };
                Ok::<_, sqlx::Error>(items.enumerate().map(item).collect::<Vec<_>>())
            };
            job.reserved = of(LISTED + 1, false)?;
            job.reserved.extend(of(LISTED + 5, true)?);
            Ok(job)
        };
        let mut tx = self.begin().await?;
        let row = sqlx::query(AssertSqlSafe(sql)).bind(id).persistent(false).fetch_optional(&mut *tx).await;
        row.and_then(|row| row.map(read).transpose()).map_err(|error| self.failed(error))
    }
}

/// The condition of the partial index that has the jobs of a state, and an order that it has.
const fn index_of(state: JobState) -> (&'static str, &'static str) {
    match state {
        JobState::Scheduled => ("j.state = 'scheduled'", "j.priority DESC, j.run_at, j.id"),
        JobState::Running => ("j.state = 'running'", "j.lease_until"),
        JobState::Dead => ("j.state = 'dead'", "j.finished_at DESC"),
        JobState::Done | JobState::Cancelled => ("j.state IN ('done', 'cancelled')", "j.finished_at DESC"),
        _ => ("j.state IN ('scheduled', 'available')", "j.key, j.state, j.priority DESC, j.run_at, j.id"),
    }
}

const JOB: &str = "j.id, j.queue, j.key, j.state, j.priority, j.enqueued_at, greatest(j.run_at, j.paid_until), j.started_at, \
                   j.lease_until, j.finished_at, j.worker, j.starts, j.waits, j.failures, j.max_attempts, j.last_error, j.unique_id";
/// The number of columns in [`JOB`].
const LISTED: usize = 17;

fn read_job(row: &PgRow) -> Result<JobView, sqlx::Error> {
    Ok(JobView {
        id: row.try_get(0)?,
        queue: row.try_get(1)?,
        group: row.try_get(2)?,
        state: row.try_get(3)?,
        priority: row.try_get(4)?,
        enqueued_at: row.try_get(5)?,
        run_at: row.try_get(6)?,
        started_at: row.try_get(7)?,
        lease_until: row.try_get(8)?,
        finished_at: row.try_get(9)?,
        worker: row.try_get(10)?,
        starts: row.try_get(11)?,
        waits: row.try_get(12)?,
        failures: row.try_get(13)?,
        max_attempts: row.try_get(14)?,
        last_error: row.try_get(15)?,
        unique_id: row.try_get(16)?,
        payload: None,
        reserved: Vec::new(),
    })
}
