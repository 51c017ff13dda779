//! The span and metrics of a running job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{Span, debug_span, error, field, warn};

use crate::observability::{TARGET, count};

/// One start of a job, from its claim by this worker to its end.
pub(crate) struct JobSpan {
    queue: Arc<str>,
    span: Span,
    began: Instant,
    outcome: &'static str,
}

impl JobSpan {
    pub(crate) fn new(queue: Arc<str>, id: i64, attempt: u32) -> Self {
        let span = debug_span!(
            target: TARGET,
            parent: None,
            "pg_limiter.job",
            queue = &*queue,
            job = id,
            attempt,
            lag_ms = field::Empty,
            outcome = field::Empty,
        );
        Self { queue, span, began: Instant::now(), outcome: "lost" }
    }

    /// Returns the span in which the handler runs.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Sets the outcome. Without a call, because the task was aborted, the outcome is `lost`.
    pub(crate) const fn ended(&mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for JobSpan {
    fn drop(&mut self) {
        self.span.record("outcome", self.outcome);
        count::job_ended(&self.queue, self.outcome, self.began.elapsed());
    }
}

/// Records in the job's span, and as a metric, how long after its reserved time the handler begins.
pub(crate) fn handler_begins(queue: &Arc<str>, lag: Duration, span: &Span) {
    span.record("lag_ms", lag.as_secs_f64() * 1e3);
    count::job_started(queue, lag);
}

/// Logs that an attempt at a job failed, or that the job is dead. The handler's own error is stored in the job's row, and is not
/// logged: it may contain personal data.
pub(crate) fn attempt_failed(queue: &str, job: i64, attempt: u32, reason: &'static str, is_dead: bool) {
    if is_dead {
        error!(target: TARGET, queue, job, attempt, reason, "a job was not done and is dead; its row has the error; requeue or discard it");
    } else {
        warn!(target: TARGET, queue, job, attempt, reason, "a job was not done; its row has the error; it runs again");
    }
}
