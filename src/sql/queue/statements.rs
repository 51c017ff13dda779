use crate::sql::{NamedStatements, Schema, Sql};

/// The current time, in microseconds since the Unix epoch. An expression, because roles that run jobs may not call
/// `_clock`.
const CLOCK: &str = "(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint";

/// The time, which a test clock may have advanced.
fn clock(schema: &Schema) -> String {
    if cfg!(feature = "testing") {
        let sequence = format!("pg_catalog.to_regclass($name${}._test_clock$name$)", schema.quoted());
        format!("({CLOCK} + coalesce(pg_catalog.pg_sequence_last_value({sequence}), 0))")
    } else {
        CLOCK.to_owned()
    }
}

/// The columns that a worker needs to run a job.
const CLAIMED: &str = "id, key, payload::text AS payload, unique_id, priority, run_at, enqueued_at, started_at, failures, \
                       max_attempts, limit_names, limit_keys, counts, waits, slot_names, slot_keys, slot_counts, slot_lease";

/// The results of enqueueing jobs.
const ENQUEUED: &str =
    "job_outcomes, job_ids, job_run_ats, job_waits, job_aheads, item_refused, item_values, job_states";

/// The queue's SQL for one schema. Only a quoted identifier varies.
#[derive(Clone, Debug)]
pub(crate) struct QueueStatements {
    pub(crate) schema: Schema,
    pub(super) enqueue: Sql,
    pub(super) claim: Sql,
    pub(super) claimed: Sql,
    pub(super) failures: Sql,
    pub(super) again: Sql,
    pub(super) done: Sql,
    pub(super) extend: Sql,
    pub(super) lapsed: Sql,
    pub(super) cancel: Sql,
    pub(super) settle: Sql,
    pub(super) requeue: Sql,
    pub(super) requeue_dead: Sql,
    pub(super) pause: Sql,
    pub(super) resume: Sql,
    pub(super) drain: Sql,
    pub(super) retime: Sql,
    pub(super) prune: Sql,
    pub(super) prune_dead: Sql,
    pub(super) discard: Sql,
    #[cfg(feature = "metrics")]
    pub(super) gauges: Sql,
    pub(super) groups: Sql,
    pub(super) jobs: Sql,
    pub(super) job: Sql,
}

impl QueueStatements {
    pub(crate) fn new(schema: Schema, named: &NamedStatements) -> Self {
        let (quoted, clock) = (schema.quoted(), clock(&schema));
        let text = |sql: String| Sql::new(sql, named);
        let call = |columns: &str, function: &str, arguments: usize| {
            let arguments: Vec<String> = (1..=arguments).map(|nth| format!("${nth}")).collect();
            text(format!("SELECT {columns} FROM {quoted}.{function}({})", arguments.join(", ")))
        };
        // Until when a handler has asked to wait. The time of a paused group is kept beside.
        let until = format!(
            "CASE WHEN coalesce(g.held_before, g.held_until) > {clock} THEN coalesce(g.held_before, g.held_until) END"
        );
        let groups = format!(
            "SELECT c.*, {clock} AS clock, {until} AS waits_until, g.held_before IS NOT NULL OR q.paused_at IS NOT NULL AS is_paused, \
               q.draining_at IS NOT NULL AS is_draining \
             FROM (SELECT queue, key, \
               pg_catalog.count(*) FILTER (WHERE state = 'scheduled') AS scheduled, \
               pg_catalog.count(*) FILTER (WHERE state = 'available') AS available, \
               pg_catalog.count(*) FILTER (WHERE state = 'running') AS running, \
               pg_catalog.count(*) FILTER (WHERE state = 'done') AS done, \
               pg_catalog.count(*) FILTER (WHERE state = 'dead') AS dead, \
               pg_catalog.count(*) FILTER (WHERE state = 'cancelled') AS cancelled, \
               pg_catalog.min(enqueued_at) FILTER (WHERE state IN ('scheduled', 'available')) AS oldest, \
               pg_catalog.min(run_at) FILTER (WHERE state IN ('scheduled', 'available') AND NOT awaits_turn) AS next_at, \
               pg_catalog.count(*) FILTER (WHERE blocked_by IS NOT NULL) AS blocked \
             FROM {quoted}.jobs WHERE queue = coalesce($1, queue) GROUP BY queue, key \
             UNION SELECT h.queue, h.key, 0, 0, 0, 0, 0, 0, NULL, NULL, 0 \
             FROM (SELECT g.queue, g.key, g.key AS of_jobs FROM {quoted}.groups AS g WHERE g.held_before IS NOT NULL \
               UNION ALL SELECT q.queue, '', NULL FROM {quoted}.queues AS q) AS h \
             WHERE h.queue = coalesce($1, h.queue) AND NOT EXISTS ( \
               SELECT FROM {quoted}.jobs AS j WHERE j.queue = h.queue AND j.key = coalesce(h.of_jobs, j.key)) \
             ) AS c \
             LEFT JOIN {quoted}.groups AS g ON g.queue = c.queue AND g.key = c.key \
             LEFT JOIN {quoted}.queues AS q ON q.queue = c.queue ORDER BY c.queue, c.key"
        );
        // The condition is without an id, or with one: only then it finds its job by the primary key.
        let jobs = |condition: &str| {
            text(format!(
                "SELECT j.id, j.queue, j.key, j.state, j.priority, j.run_at, j.payload::text AS payload, j.unique_id, \
                   j.limit_names, j.limit_keys, j.counts, j.used_counts, j.slot_names, j.slot_keys, j.slot_counts, j.max_attempts, \
                   j.failures, j.last_error, j.worker, j.enqueued_at, j.started_at, j.finished_at, j.waits, \
                   CASE WHEN j.state IN ('scheduled', 'available') AND j.run_at < {until} THEN {until} END AS waits_until, \
                   j.blocked_by, j.awaits_turn \
                 FROM (SELECT * FROM {quoted}.jobs AS j WHERE j.queue = coalesce($1, j.queue) AND j.key = coalesce($2, j.key) \
                   AND j.state = coalesce($3, j.state){condition} ORDER BY j.run_at, j.id LIMIT $4) AS j \
                 LEFT JOIN {quoted}.groups AS g ON g.queue = j.queue AND g.key = j.key ORDER BY j.run_at, j.id"
            ))
        };
        Self {
            enqueue: call(ENQUEUED, "_enqueue", 29),
            claim: call("*", "_claim", 15),
            claimed: call(&format!("{CLAIMED}, {clock} AS clock"), "_claimed_jobs", 2),
            failures: call("id, failures", "_claimed_jobs", 2),
            again: call("job_states", "_job_again", 12),
            done: call("*", "_job_done", 8),
            extend: call("*", "_job_extend", 3),
            lapsed: call("job_id, job_starts", "_jobs_lapsed", 2),
            cancel: call("*", "_job_cancel", 9),
            settle: call("*", "_job_settle", 12),
            requeue: call("*", "_job_requeue", 9),
            requeue_dead: text(format!(
                "SELECT {quoted}.requeue_dead($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, coalesce($11, now.at)), \
                   coalesce($11, now.at) FROM (SELECT {clock} AS at) AS now"
            )),
            pause: call("*", "pause", 2),
            resume: call("*", "resume", 2),
            drain: call("*", "drain", 1),
            retime: call("*", "_retime_jobs", 11),
            prune: call("*", "_jobs_prune", 3),
            prune_dead: call("*", "_dead_jobs_prune", 3),
            discard: call("*", "_jobs_discard", 2),
            #[cfg(feature = "metrics")]
            gauges: call("*", "_queue_gauges", 1),
            groups: text(groups),
            jobs: jobs(""),
            job: jobs(" AND j.id = $5"),
            schema,
        }
    }
}
