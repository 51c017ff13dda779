//! The queues: groups, and jobs by state. Each query reads one of the queue's indexes, up to a bound.

use serde::{Deserialize, Serialize};
use sqlx::AssertSqlSafe;

use crate::Result;
use crate::operate::export::now;
use crate::operate::live::Live;
use crate::operate::live::sample::distinct;
use crate::operate::live::view::{COUNTED, Counted};
use pg_limiter::queue::JobState;

/// Queues that are listed, and groups of one.
pub(crate) const LISTED: usize = 200;
/// The waiting jobs of each state that are counted in a group: there may be many groups.
const COUNTED_IN_GROUP: usize = 1000;

#[derive(Deserialize)]
pub(crate) struct QueueView {
    pub(crate) queue: String,
    /// By state, in the order of [`JobState::ALL`].
    pub(crate) jobs: Vec<(String, Counted)>,
    pub(crate) paused_at: Option<i64>,
    pub(crate) draining_at: Option<i64>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct GroupView {
    pub(crate) queue: String,
    /// As stored.
    pub(crate) group: String,
    pub(crate) scheduled: Counted,
    pub(crate) available: Counted,
    /// No waiting job of the group starts before. `None` while the group or its queue is paused.
    pub(crate) next_start: Option<i64>,
    /// How far its line is behind the reserved times, in microseconds.
    pub(crate) lag: Option<i64>,
    /// Its first job waits for slots of this limit and key.
    pub(crate) waits_for: Option<(String, String)>,
    /// A limit that no worker defines, or defines as another kind.
    pub(crate) blocked_by: Option<String>,
    /// All its jobs wait for a turn.
    pub(crate) awaits_turn: bool,
    /// No job starts before, because a handler returned `Finish::Wait`.
    pub(crate) waiting_until: Option<i64>,
    pub(crate) is_paused: bool,
}

/// Tokens that a job reserved, or slots that it takes.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ReservedView {
    pub(crate) limit: String,
    pub(crate) key: String,
    pub(crate) count: f64,
    pub(crate) used: Option<f64>,
    pub(crate) is_slots: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct JobView {
    pub(crate) id: i64,
    pub(crate) queue: String,
    pub(crate) group: String,
    pub(crate) state: String,
    pub(crate) priority: i32,
    pub(crate) enqueued_at: i64,
    pub(crate) run_at: i64,
    pub(crate) blocked_by: Option<String>,
    pub(crate) awaits_turn: bool,
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
    #[serde(default)]
    pub(crate) reserved: Vec<ReservedView>,
}

impl Live {
    pub(crate) async fn now(&self) -> Result<i64> {
        self.read(async |tx| now(tx).await).await
    }

    /// All queues that have jobs, or are paused or draining; none if only the queue is not installed.
    pub(crate) async fn queues(&self) -> Result<Vec<QueueView>> {
        let jobs = format!("{}.jobs", self.schema.quoted());
        // Without the limiter's own table, the cast fails.
        let sql = "SELECT pg_catalog.to_json($2::text::regclass IS NOT NULL AND pg_catalog.to_regclass($1) IS NOT NULL)::text";
        let is_installed = sqlx::query_as(sql).bind(&jobs).bind(format!("{}.rate_limits", self.schema.quoted()));
        if self.rows::<bool>(is_installed).await? != [true] {
            return Ok(Vec::new());
        }
        // From each of the partial indexes.
        let names = [JobState::Available, JobState::Running, JobState::Done, JobState::Dead]
            .map(|state| format!("({})", distinct("queue", &jobs, index_of(state).0, "", LISTED)))
            .join(" UNION ");
        let held = format!("{}.queues", self.schema.quoted());
        let count = |state: &JobState| {
            let (source, order) = index_of(*state);
            format!(
                "pg_catalog.json_build_array('{state}', ( \
                   SELECT CASE WHEN c.all > {COUNTED} THEN -1 - least(c.found, {COUNTED}) ELSE c.found END FROM ( \
                     SELECT pg_catalog.count(*) AS all, pg_catalog.count(*) FILTER (WHERE j.state = '{state}') AS found \
                     FROM (SELECT j.state FROM {jobs} AS j \
                       WHERE j.queue = n.queue AND {source} ORDER BY {order} LIMIT {COUNTED} + 1) AS j) AS c))"
            )
        };
        let counts = JobState::ALL.iter().map(count).collect::<Vec<_>>().join(", ");
        let sql = format!(
            "SELECT pg_catalog.to_json(v)::text FROM ( \
               SELECT n.queue, pg_catalog.json_build_array({counts}) AS jobs, q.paused_at, q.draining_at \
               FROM ({names} UNION SELECT h.queue FROM {held} AS h) AS n (queue) \
               LEFT JOIN {held} AS q ON q.queue = n.queue ORDER BY n.queue LIMIT {LISTED}) AS v"
        );
        self.rows(sqlx::query_as(AssertSqlSafe(sql))).await
    }

    /// The groups of a queue in which jobs wait, by name, after the group `after`.
    pub(crate) async fn groups(&self, queue: &str, after: Option<&str>) -> Result<Vec<GroupView>> {
        let schema = self.schema.quoted();
        let jobs = format!("{schema}.jobs");
        let waiting = "j.queue = $1 AND j.state IN ('scheduled', 'available')";
        let keys = distinct("key", &jobs, waiting, "AND ($2::text IS NULL OR j.key > $2)", LISTED);
        let of_state = |state: &str| {
            format!(
                "(SELECT j.state, j.blocked_by, j.awaits_turn, greatest(j.run_at, j.paid_until) AS first_at FROM {jobs} AS j \
                  WHERE j.queue = $1 AND j.key = k.key AND j.state = '{state}' \
                  ORDER BY j.awaits_turn, j.priority DESC, j.run_at, j.id LIMIT {COUNTED_IN_GROUP} + 1)"
            )
        };
        let bounded = |count: &str| {
            format!("CASE WHEN {count} > {COUNTED_IN_GROUP} THEN -1 - {COUNTED_IN_GROUP} ELSE {count} END AS {count}")
        };
        let (scheduled, available) = (bounded("scheduled"), bounded("available"));
        let sql = format!(
            "SELECT pg_catalog.to_json(v)::text FROM ( \
               SELECT $1::text AS queue, k.key AS group, {scheduled}, {available}, \
                 CASE WHEN g.held_before IS NULL AND q.paused_at IS NULL THEN greatest(c.first_at, g.held_until) END AS next_start, \
                 CASE WHEN g.has_line THEN g.lag END AS lag, coalesce(g.held_before, g.held_until) AS waiting_until, \
                 g.held_before IS NOT NULL AS is_paused, \
                 CASE WHEN g.slot_name IS NOT NULL THEN pg_catalog.json_build_array(g.slot_name, coalesce(g.slot_key, '')) END AS waits_for, \
                 c.blocked_by, c.awaits_turn \
               FROM ({keys}) AS k (key) CROSS JOIN LATERAL ( \
                 SELECT pg_catalog.count(*) FILTER (WHERE w.state = 'scheduled') AS scheduled, \
                   pg_catalog.count(*) FILTER (WHERE w.state = 'available') AS available, pg_catalog.min(w.first_at) AS first_at, \
                   pg_catalog.min(regexp_replace(w.blocked_by, '/slots$', '')) AS blocked_by, \
                   pg_catalog.bool_and(w.awaits_turn) AS awaits_turn \
                 FROM ({} UNION ALL {}) AS w) AS c \
               LEFT JOIN {schema}.groups AS g ON g.queue = $1 AND g.key = k.key \
               LEFT JOIN {schema}.queues AS q ON q.queue = $1) AS v",
            of_state("available"),
            of_state("scheduled")
        );
        self.rows(sqlx::query_as(AssertSqlSafe(sql)).bind(queue).bind(after)).await
    }

    /// The jobs of a queue in one state, without the first `skip`: those that run next, or ended last, first.
    pub(crate) async fn jobs(&self, queue: &str, state: JobState, skip: u32, most: u32) -> Result<Vec<JobView>> {
        let (source, order) = index_of(state);
        let sql = format!(
            "SELECT pg_catalog.to_json(v)::text FROM ( \
               SELECT {JOB} FROM {}.jobs AS j WHERE j.queue = $1 AND {source} AND j.state = '{state}' \
               ORDER BY {order} LIMIT $2 OFFSET $3) AS v",
            self.schema.quoted()
        );
        self.rows(sqlx::query_as(AssertSqlSafe(sql)).bind(queue).bind(i64::from(most)).bind(i64::from(skip))).await
    }

    /// The limits of the dead jobs of a queue or of a group, which reserve tokens or take slots again when they are requeued.
    pub(crate) async fn limits_of_dead(&self, queue: &str, group: Option<&str>) -> Result<Vec<String>> {
        let sql = format!(
            "SELECT DISTINCT pg_catalog.to_json(u.name)::text \
             FROM {}.jobs AS j CROSS JOIN LATERAL unnest(j.limit_names || j.slot_names) AS u (name) \
             WHERE j.queue = $1 AND j.state = 'dead' AND ($2::text IS NULL OR j.key = $2)",
            self.schema.quoted()
        );
        self.rows(sqlx::query_as(AssertSqlSafe(sql)).bind(queue).bind(group)).await
    }

    pub(crate) async fn job(&self, id: i64) -> Result<Option<JobView>> {
        let sql = format!(
            "SELECT pg_catalog.to_json(v)::text FROM ( \
               SELECT {JOB}, j.payload::text AS payload, ( \
                   SELECT coalesce(pg_catalog.json_agg(i ORDER BY i.is_slots, i.nth), '[]') FROM ( \
                     SELECT u.*, false AS is_slots \
                     FROM unnest(j.limit_names, j.limit_keys, j.counts, j.used_counts) \
                       WITH ORDINALITY AS u (\"limit\", key, count, used, nth) \
                     UNION ALL \
                     SELECT u.limit_name, u.key, u.count, NULL, u.nth, true \
                     FROM unnest(j.slot_names, j.slot_keys, j.slot_counts) WITH ORDINALITY AS u (limit_name, key, count, nth) \
                   ) AS i) AS reserved \
               FROM {}.jobs AS j WHERE j.id = $1) AS v",
            self.schema.quoted()
        );
        Ok(self.rows(sqlx::query_as(AssertSqlSafe(sql)).bind(id)).await?.pop())
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

const JOB: &str = "j.id, j.queue, j.key AS group, j.state, j.priority, j.enqueued_at, greatest(j.run_at, j.paid_until) AS run_at, \
                   regexp_replace(j.blocked_by, '/slots$', '') AS blocked_by, j.awaits_turn, j.started_at, j.lease_until, j.finished_at, \
                   j.worker, j.starts, j.waits, j.failures, j.max_attempts, j.last_error, j.unique_id";
