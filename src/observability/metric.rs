//! The names and meanings of all metrics. The [tables](super#metrics) list their labels.

use metrics::Unit;

/// Counter: decisions about tokens, for each limit of a call.
pub const DECISIONS: &str = "pg_limiter_decisions_total";
/// Histogram, in seconds: the time from making a call to its answer.
pub const CALL_DURATION: &str = "pg_limiter_call_duration_seconds";
/// Counter: calls that returned an error.
pub const ERRORS: &str = "pg_limiter_errors_total";
/// Histogram: how many calls one statement decided.
pub const BATCH_CALLS: &str = "pg_limiter_batch_calls";
/// Counter: retries of transactions.
pub const RETRIES: &str = "pg_limiter_retries_total";
/// Counter: denials that were not enforced.
pub const SHADOW_DENIALS: &str = "pg_limiter_shadow_denials_total";
/// Counter: leases that ended before their release, for each concurrency limit of the lease.
pub const LOST_LEASES: &str = "pg_limiter_lost_leases_total";
/// Counter: changes of a watched limits file.
pub const LIMITS_RELOADS: &str = "pg_limiter_limits_reloads_total";
/// Counter: pauses that third parties demanded of requests.
pub const PAUSES: &str = "pg_limiter_pauses_total";
/// Counter: requests with an address that could not be read from the header of a proxy.
pub const UNREADABLE_CLIENTS: &str = "pg_limiter_unreadable_clients_total";
/// Counter: rows that `prune` deleted.
pub const PRUNED_ROWS: &str = "pg_limiter_pruned_rows_total";
/// Counter: jobs that were enqueued or denied.
pub const ENQUEUED: &str = "pg_limiter_enqueued_total";
/// Histogram, in seconds: the time from a job's reserved time to the start of its handler.
pub const QUEUE_LAG: &str = "pg_limiter_queue_lag_seconds";
/// Histogram, in seconds: how long jobs ran.
pub const JOB_DURATION: &str = "pg_limiter_job_duration_seconds";
/// Gauge: how many jobs of a queue are scheduled, available, running or dead.
pub const QUEUE_JOBS: &str = "pg_limiter_queue_jobs";
/// Gauge, in seconds: for how long the first waiting job has been due.
pub const QUEUE_OVERDUE: &str = "pg_limiter_queue_overdue_seconds";
/// Gauge: how many scheduled jobs no worker can start, because of a limit that the workers do not define.
pub const QUEUE_BLOCKED: &str = "pg_limiter_queue_blocked_jobs";

/// Describes each metric to the installed recorder: its unit and meaning. Without this call, metrics are recorded
/// without them. Call it once, after installing the recorder.
pub fn describe() {
    let counters = [
        (DECISIONS, "Decisions about tokens, for each limit of a call."),
        (ERRORS, "Calls that returned an error."),
        (RETRIES, "Retries of transactions."),
        (SHADOW_DENIALS, "Denials that were not enforced, for each limit that denied."),
        (LOST_LEASES, "Leases that ended before their release, for each concurrency limit."),
        (LIMITS_RELOADS, "Changes of a watched limits file."),
        (PAUSES, "Pauses that third parties demanded of requests, for each gate."),
        (UNREADABLE_CLIENTS, "Requests with an address that could not be read from the header of a proxy."),
        (PRUNED_ROWS, "Rows that prune deleted."),
        (ENQUEUED, "Jobs that were enqueued or denied."),
    ];
    for (name, text) in counters {
        metrics::describe_counter!(name, Unit::Count, text);
    }
    let histograms = [
        (CALL_DURATION, Unit::Seconds, "Time from making a call to its answer."),
        (BATCH_CALLS, Unit::Count, "How many calls one statement decided."),
        (QUEUE_LAG, Unit::Seconds, "Time from a job's reserved time to the start of its handler."),
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
    metrics::describe_gauge!(QUEUE_OVERDUE, Unit::Seconds, "For how long the first waiting job has been due.");
    metrics::describe_gauge!(QUEUE_BLOCKED, Unit::Count, "Scheduled jobs that no worker can start.");
}
