//! A statement that decides calls together.

use tracing::{Level, Span, debug_span, field, span_enabled};

use crate::observability::TARGET;

/// The span of the call that is being made, for the batch that it will be in.
pub(crate) fn asking() -> Span {
    if span_enabled!(target: TARGET, Level::DEBUG) { Span::current() } else { Span::none() }
}

/// A batch of these calls, in its nth attempt.
pub(crate) fn deciding<'a>(
    what: &'static str,
    calls: usize,
    attempt: u32,
    spans: impl Iterator<Item = &'a Span>,
) -> Span {
    let batch = debug_span!(
        target: TARGET,
        parent: None,
        "pg_limiter.batch",
        op = what,
        calls,
        attempt,
        outcome = field::Empty,
    );
    if !batch.is_disabled() {
        spans.for_each(|span| {
            batch.follows_from(span);
        });
    }
    batch
}
