//! The log events of the middleware. They contain names of limits and fields, and no keys.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tracing::{debug, warn};

use crate::error::Error;

/// All requests pause.
pub(super) fn paused(gate: &str, pause: Duration, status: u16) {
    debug!(gate, ?pause, status, "a third party demands a pause");
}

/// The third party demands a longer pause than is allowed.
pub(super) fn cut(pause: Duration, max_pause: Duration) {
    warn!(?pause, ?max_pause, "a third party demands a longer pause than max_pause: cut");
}

/// A field of a response is not valid.
pub(super) fn not_valid(field: &HeaderName, value: &HeaderValue) {
    let value: String = value.as_bytes().escape_ascii().map(char::from).take(100).collect();
    warn!(%field, value, "a third party sent a field that is not valid: ignored");
}

/// A refused request is not sent again, and its response is returned.
pub(super) fn not_retried(error: &Error) {
    debug!(%error, "a refused request is not sent again");
}

/// The pause is not stored, so no request waits for its end.
pub(super) fn not_paused(gate: &str, pause: Duration, error: &Error) {
    warn!(gate, ?pause, %error, "a third party demands a pause, and its gate could not be blocked");
}

/// There is no decision, and the request is sent.
pub(super) fn let_through(error: &Error) {
    warn!(%error, "no decision on the rate limits of an outgoing request: sent, because on_failure is Open");
}
