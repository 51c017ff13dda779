//! The names of all metrics, and what they are. Their labels stand in the [tables](super#metrics).

use metrics::Unit;

/// Counter: what was decided about tokens, for each limit of a call.
pub const DECISIONS: &str = "pg_limiter_decisions_total";
/// Histogram, in seconds: from the asking of a call to its answer.
pub const CALL_DURATION: &str = "pg_limiter_call_duration_seconds";
/// Counter: calls that ended in an error.
pub const ERRORS: &str = "pg_limiter_errors_total";
/// Histogram: how many calls one statement decided.
pub const BATCH_CALLS: &str = "pg_limiter_batch_calls";
/// Counter: transactions that were tried again.
pub const RETRIES: &str = "pg_limiter_retries_total";
/// Counter: denials that were let through.
pub const SHADOW_DENIALS: &str = "pg_limiter_shadow_denials_total";
/// Counter: rows that `prune` removed.
pub const PRUNED_ROWS: &str = "pg_limiter_pruned_rows_total";
/// Counter: jobs that were enqueued, or refused.
pub const ENQUEUED: &str = "pg_limiter_enqueued_total";
/// Histogram, in seconds: from the reserved time of a job to the start of its handler.
pub const QUEUE_LAG: &str = "pg_limiter_queue_lag_seconds";
/// Histogram, in seconds: how long jobs ran.
pub const JOB_DURATION: &str = "pg_limiter_job_duration_seconds";
/// Gauge: how many jobs a queue has in each state that it has still to do with.
pub const QUEUE_JOBS: &str = "pg_limiter_queue_jobs";
/// Gauge, in seconds: how long ago the first job that waits was due.
pub const QUEUE_OVERDUE: &str = "pg_limiter_queue_overdue_seconds";

/// Tells the recorder that is installed what each metric is. Without that they are recorded all the same, without a description
/// and a unit. To be called once, after the recorder was installed.
pub fn describe() {
    let counters = [
        (DECISIONS, "What was decided about tokens, for each limit of a call."),
        (ERRORS, "Calls that ended in an error."),
        (RETRIES, "Transactions that were tried again."),
        (SHADOW_DENIALS, "Denials that were let through, for each limit that refused."),
        (PRUNED_ROWS, "Rows that prune removed."),
        (ENQUEUED, "Jobs that were enqueued, or refused."),
    ];
    for (name, text) in counters {
        metrics::describe_counter!(name, Unit::Count, text);
    }
    let histograms = [
        (CALL_DURATION, Unit::Seconds, "From the asking of a call to its answer."),
        (BATCH_CALLS, Unit::Count, "How many calls one statement decided."),
        (QUEUE_LAG, Unit::Seconds, "From the reserved time of a job to the start of its handler."),
        (JOB_DURATION, Unit::Seconds, "How long jobs ran."),
    ];
    for (name, unit, text) in histograms {
        metrics::describe_histogram!(name, unit, text);
    }
    metrics::describe_gauge!(
        QUEUE_JOBS,
        Unit::Count,
        "Jobs of a queue that are scheduled, available, running or dead."
    );
    metrics::describe_gauge!(QUEUE_OVERDUE, Unit::Seconds, "How long ago the first job that waits was due.");
}
