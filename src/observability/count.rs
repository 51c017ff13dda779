//! Metrics. Without the feature `metrics`, these functions record nothing.
#![cfg_attr(not(feature = "metrics"), allow(unused_variables))]

use std::sync::Arc;
use std::time::Duration;

use crate::call::{Decision, LimitState};

use crate::observability::TARGET;
#[cfg(feature = "metrics")]
use crate::observability::metric;

/// Counts a denial that the caller did not enforce, because a limit is only being tried out. It counts once for each
/// limit that denied, in `pg_limiter_shadow_denials_total`. The decision itself is already counted as denied. Does
/// nothing without the feature `metrics`, or if the decision is not a denial.
///
/// ```no_run
/// # use pg_limiter::{Error, Limiter, observability};
/// # async fn f(limiter: Limiter) -> Result<(), Error> {
/// let decision = limiter.limit(("new_limit", "u1")).await?;
/// observability::count_shadow_denial(&decision); // and go ahead in any case
/// # Ok(()) }
/// ```
pub fn count_shadow_denial(decision: &Decision) {
    for state in decision.limits().iter().filter(|state| state.denied && decision.is_denied()) {
        #[cfg(feature = "metrics")]
        metrics::counter!(target: TARGET, metric::SHADOW_DENIALS, "limit" => state.limit.clone()).increment(1);
    }
}

/// The time when a call was made.
pub(crate) struct Clock {
    #[cfg(feature = "metrics")]
    began: std::time::Instant,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self {
            #[cfg(feature = "metrics")]
            began: std::time::Instant::now(),
        }
    }
}

/// Counts a decision for each of its limits.
pub(super) fn decided(decision: &Decision) {
    for LimitState { limit, denied, .. } in decision.limits() {
        let outcome = match decision.is_denied() {
            true if *denied => "denied",
            // This limit did not deny, and nothing was taken from it either.
            true => "unused",
            false => decision.outcome().as_str(),
        };
        limited(limit, outcome);
    }
}

fn limited(limit: &Arc<str>, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, metric::DECISIONS, "limit" => limit.clone(), "outcome" => outcome).increment(1);
}

/// Records the duration of a call that has its answer.
pub(super) fn answered(op: &'static str, transaction: &'static str, outcome: &'static str, clock: &Clock) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(
        target: TARGET, metric::CALL_DURATION, "op" => op, "transaction" => transaction, "outcome" => outcome
    )
    .record(clock.began.elapsed());
}

/// Counts a call that returned an error.
pub(super) fn failed(op: &'static str, kind: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, metric::ERRORS, "op" => op, "kind" => kind).increment(1);
}

/// Records how many calls a statement decided.
pub(crate) fn batch(op: &'static str, calls: usize) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(target: TARGET, metric::BATCH_CALLS, "op" => op).record(calls as f64);
}

/// Counts a retry of a transaction.
pub(crate) fn retried(cause: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, metric::RETRIES, "cause" => cause).increment(1);
}

/// Counts a change of a limits file.
pub(crate) fn limits_reloaded(outcome: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, metric::LIMITS_RELOADS, "outcome" => outcome).increment(1);
}

/// Counts a lease of slots of these limits that ended before its release.
pub(crate) fn lost_lease(limits: &[Arc<str>]) {
    for limit in limits {
        tracing::warn!(target: TARGET, %limit, "a lease was lost: others may hold its slots");
        #[cfg(feature = "metrics")]
        metrics::counter!(target: TARGET, metric::LOST_LEASES, "limit" => limit.clone()).increment(1);
    }
}

/// Counts a pause that a third party demanded.
#[cfg(feature = "reqwest")]
pub(crate) fn paused(gate: &Arc<str>) {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, metric::PAUSES, "limit" => gate.clone()).increment(1);
}

/// Counts an unreadable client: its proxy reports no readable address.
#[cfg(feature = "tower")]
pub(crate) fn unreadable_client(reason: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, metric::UNREADABLE_CLIENTS, "reason" => reason).increment(1);
}

/// Counts deleted rows.
pub(crate) fn pruned(rows: u64) {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, metric::PRUNED_ROWS).increment(rows);
}

/// Counts a job that was enqueued, or denied by some of these limits. (A duplicate charges none of them.)
pub(crate) fn enqueued<'a>(
    queue: &Arc<str>,
    outcome: &'static str,
    limits: impl Iterator<Item = (&'a Arc<str>, bool)>,
) {
    for (limit, denied) in limits {
        match outcome {
            "scheduled" => limited(limit, "reserved"),
            "denied" => limited(limit, if denied { "denied" } else { "unused" }),
            _ => {}
        }
    }
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, metric::ENQUEUED, "queue" => queue.clone(), "outcome" => outcome).increment(1);
}

/// Records how long after its reserved time a job's handler begins.
pub(super) fn job_started(queue: &Arc<str>, lag: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(target: TARGET, metric::QUEUE_LAG, "queue" => queue.clone()).record(lag);
}

/// Records how long a start of a job took.
pub(super) fn job_ended(queue: &Arc<str>, outcome: &'static str, took: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(target: TARGET, metric::JOB_DURATION, "queue" => queue.clone(), "outcome" => outcome)
        .record(took);
}

/// Sets the gauges of a queue: its jobs in each of these states, for how many seconds its first job has been due, and how many
/// jobs no worker can start.
#[cfg(feature = "metrics")]
pub(crate) fn queue_is(queue: &Arc<str>, jobs: [(&'static str, f64); 4], overdue: f64, blocked: f64) {
    for (state, jobs) in jobs {
        metrics::gauge!(target: TARGET, metric::QUEUE_JOBS, "queue" => queue.clone(), "state" => state).set(jobs);
    }
    metrics::gauge!(target: TARGET, metric::QUEUE_OVERDUE, "queue" => queue.clone()).set(overdue);
    metrics::gauge!(target: TARGET, metric::QUEUE_BLOCKED, "queue" => queue.clone()).set(blocked);
}
