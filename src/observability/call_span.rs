//! The span and the metrics of a call.

use std::fmt;
use std::time::Duration;

use tracing::{Instrument, Span, debug_span, field};

use crate::call::{Balances, Call, Decision, Forgotten};
use crate::error::Error;
use crate::observability::{TARGET, count};

/// The transaction that a call runs in: the limiter's own, or the caller's.
const OWN: &str = "own";
const CALLERS: &str = "caller";

/// A call, from its start to its answer.
pub(crate) struct CallSpan {
    op: &'static str,
    transaction: &'static str,
    span: Span,
    clock: count::Clock,
}

/// The result of a call.
pub(crate) trait Answered {
    /// The outcome, as one word.
    fn outcome(&self) -> &'static str {
        "done"
    }

    /// How long to wait.
    fn retry_after(&self) -> Option<Duration> {
        None
    }

    /// The limits that denied the call.
    fn denied_by(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Counts the decisions about tokens.
    fn count(&self) {}
}

impl Answered for Decision {
    fn outcome(&self) -> &'static str {
        Self::outcome(self).as_str()
    }

    fn retry_after(&self) -> Option<Duration> {
        Self::retry_after(self)
    }

    fn denied_by(&self) -> Vec<&str> {
        Self::denied_by(self)
    }

    fn count(&self) {
        count::decided(self);
    }
}

impl Answered for Balances {}
impl Answered for () {}
impl Answered for bool {}
impl Answered for u64 {}
impl Answered for Forgotten {}
impl Answered for Duration {}
impl Answered for Option<Duration> {}

/// The names of the limits, separated by commas.
struct LimitNames<'a>(&'a Call);

impl fmt::Display for LimitNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, item) in self.0.items.iter().enumerate() {
            let comma = if nth == 0 { "" } else { "," };
            write!(f, "{comma}{}", item.limit.name)?;
        }
        Ok(())
    }
}

/// Formats nothing unless the span is enabled.
macro_rules! call_span {
    ($op:expr, $transaction:expr, $limits:expr) => {
        debug_span!(
            target: TARGET,
            "pg_limiter.call",
            op = $op,
            transaction = $transaction,
            limits = %$limits,
            outcome = field::Empty,
            denied_by = field::Empty,
            retry_after_ms = field::Empty,
            attempts = field::Empty,
            error = field::Empty,
        )
    };
}

impl CallSpan {
    /// Starts a call in the limiter's own transaction.
    pub(crate) fn own(op: &'static str, call: &Call) -> Self {
        Self::new(op, OWN, call_span!(op, OWN, LimitNames(call)))
    }

    /// Starts a call in the caller's transaction.
    pub(crate) fn callers(op: &'static str, call: &Call) -> Self {
        Self::new(op, CALLERS, call_span!(op, CALLERS, LimitNames(call)))
    }

    /// Starts an operation on all keys of a limit or, without a name, of all limits.
    pub(crate) fn whole(op: &'static str, is_callers: bool, name: &str) -> Self {
        let transaction = if is_callers { CALLERS } else { OWN };
        Self::new(op, transaction, call_span!(op, transaction, name))
    }

    /// Starts a unit of work.
    pub(crate) fn work() -> Self {
        let span = debug_span!(
            target: TARGET,
            "pg_limiter.transaction",
            outcome = field::Empty,
            attempts = field::Empty,
        );
        Self::new("transaction", OWN, span)
    }

    /// Starts an enqueue of this many jobs.
    pub(crate) fn enqueue(is_callers: bool, queue: &str, jobs: usize) -> Self {
        let transaction = if is_callers { CALLERS } else { OWN };
        let span = debug_span!(
            target: TARGET,
            "pg_limiter.enqueue",
            queue,
            jobs,
            transaction,
            outcome = field::Empty,
            denied_by = field::Empty,
            retry_after_ms = field::Empty,
            error = field::Empty,
        );
        Self::new("enqueue", transaction, span)
    }

    fn new(op: &'static str, transaction: &'static str, span: Span) -> Self {
        Self { op, transaction, span, clock: count::Clock::start() }
    }

    /// Records the number of attempts.
    pub(crate) fn attempts(&self, attempts: u32) {
        self.span.record("attempts", attempts);
    }

    /// Runs the call, and records its result. A call that is dropped before its answer has no outcome and is not
    /// counted.
    pub(crate) async fn watch<T: Answered + Send>(
        &self,
        running: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let result = running.instrument(self.span.clone()).await;
        match &result {
            Ok(answer) => {
                if !self.span.is_disabled() {
                    let wait = answer.retry_after().map(|wait| wait.as_secs_f64() * 1e3);
                    self.span.record("retry_after_ms", wait);
                    let denied_by = answer.denied_by();
                    self.span.record("denied_by", (!denied_by.is_empty()).then(|| denied_by.join(",")));
                }
                if self.op != "check" {
                    answer.count();
                }
                self.ended(answer.outcome());
            }
            Err(error) => {
                self.span.record("error", error.code());
                count::failed(self.op, error.code());
                self.ended("error");
            }
        }
        result
    }

    /// Returns the span, for operations that do not use `watch`.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    pub(crate) fn ended(&self, outcome: &'static str) {
        self.span.record("outcome", outcome);
        count::answered(self.op, self.transaction, outcome, &self.clock);
    }
}
