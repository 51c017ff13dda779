//! The span of a batch: a statement that decides calls together.

use tracing::{Level, Span, debug_span, field, span_enabled};

use crate::observability::TARGET;

/// Returns the span of the current call, to be linked to the span of its batch.
pub(crate) fn asking() -> Span {
    if span_enabled!(target: TARGET, Level::DEBUG) { Span::current() } else { Span::none() }
}

/// Creates the span of one attempt at a batch of calls.
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
