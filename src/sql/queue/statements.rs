use crate::sql::{Names, Schema, Sql};

/// SQL of the queue for one schema; what varies is a quoted identifier.
#[derive(Clone, Debug)]
pub(crate) struct QueueStatements {
    pub(crate) schema: Schema,
    pub(super) enqueue: Sql,
    pub(super) claim: Sql,
    pub(super) claimed: Sql,
    pub(super) again: Sql,
    pub(super) done: Sql,
    pub(super) extend: Sql,
    pub(super) lapsed: Sql,
    pub(super) cancel: Sql,
    pub(super) settle: Sql,
    pub(super) requeue: Sql,
    pub(super) prune: Sql,
    pub(super) groups: Sql,
    pub(super) jobs: Sql,
    #[cfg(feature = "cli")]
    pub(super) dead: Sql,
}

impl QueueStatements {
    pub(crate) fn new(schema: Schema, names: &Names) -> Self {
        let quoted = schema.quoted();
        let text = |sql: String| Sql::new(sql, names);
        let call = |columns: &str, function: &str, arguments: usize| {
            let arguments: Vec<String> = (1..=arguments).map(|nth| format!("${nth}")).collect();
            text(format!("SELECT {columns} FROM {quoted}.{function}({})", arguments.join(", ")))
        };
        let groups = format!(
            "SELECT queue, key, \
               pg_catalog.count(*) FILTER (WHERE state = 'scheduled') AS scheduled, \
               pg_catalog.count(*) FILTER (WHERE state = 'available') AS available, \
               pg_catalog.count(*) FILTER (WHERE state = 'running') AS running, \
               pg_catalog.count(*) FILTER (WHERE state = 'done') AS done, \
               pg_catalog.count(*) FILTER (WHERE state = 'dead') AS dead, \
               pg_catalog.count(*) FILTER (WHERE state = 'cancelled') AS cancelled, \
               (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint AS clock, \
               pg_catalog.min(enqueued_at) FILTER (WHERE state IN ('scheduled', 'available')) AS oldest, \
               pg_catalog.min(run_at) FILTER (WHERE state IN ('scheduled', 'available')) AS next_at \
             FROM {quoted}.rate_limit_jobs WHERE queue = coalesce($1, queue) GROUP BY queue, key ORDER BY queue, key"
        );
        let jobs = format!(
            "SELECT id, queue, key, state, priority, run_at, payload::text AS payload, unique_id, limit_names, \
               limit_keys, counts, used_counts, max_attempts, failures, last_error, worker, \
               enqueued_at, started_at, finished_at \
             FROM {quoted}.rate_limit_jobs \
             WHERE queue = coalesce($1, queue) AND key = coalesce($2, key) AND state = coalesce($3, state) \
               AND id = coalesce($4, id) \
             ORDER BY run_at, id LIMIT $5"
        );
        Self {
            enqueue: call(
                "job_outcomes, job_ids, job_run_ats, job_waits, job_aheads, item_refused, item_values",
                "rate_limit_enqueue",
                23,
            ),
            claim: call(
                "*, (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint AS clock",
                "rate_limit_claim",
                12,
            ),
            claimed: call("*", "rate_limit_claimed", 2),
            again: call("job_states", "rate_limit_job_again", 12),
            done: call("*", "rate_limit_job_done", 8),
            extend: call("*", "rate_limit_job_extend", 3),
            lapsed: call("job_id, job_starts", "rate_limit_jobs_lapsed", 2),
            cancel: call("*", "rate_limit_job_cancel", 9),
            settle: call("*", "rate_limit_job_settle", 12),
            requeue: call("*", "rate_limit_job_requeue", 9),
            prune: call("*", "rate_limit_jobs_prune", 3),
            groups: text(groups),
            jobs: text(jobs),
            #[cfg(feature = "cli")]
            dead: text(format!(
                "SELECT id FROM {quoted}.rate_limit_jobs WHERE queue = $1 AND state = 'dead' ORDER BY run_at, id"
            )),
            schema,
        }
    }
}
