//! The log events of the web layer. They contain names of limits, and no keys.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{debug, error, info, warn};

use crate::call::{Decision, Item};
use crate::error::Error;
use crate::observability::count_shadow_denial;
use crate::web::keys::NoKey;

/// A request was denied.
pub(super) fn denied(decision: &Decision) {
    debug!(limits = ?decision.denied_by(), retry_after = ?decision.retry_after(), "rate limit exceeded");
}

/// A request would have been denied, but the layer is in shadow mode.
pub(super) fn shadow_denied(counter: &AtomicU64, decision: &Decision) {
    counter.fetch_add(1, Ordering::Relaxed);
    count_shadow_denial(decision);
    info!(limits = ?decision.denied_by(), retry_after = ?decision.retry_after(), "rate limit exceeded, in shadow mode: let through");
}

/// There is no decision, and the response is a 5xx. A misconfiguration is logged at level ERROR, an outage at level WARN.
pub(super) fn failed(error: &Error) {
    match error {
        Error::Invalid(_)
        | Error::InvalidLimit(_)
        | Error::InvalidJob(_)
        | Error::Aborted
        | Error::SchemaMissing { .. }
        | Error::SchemaTooNew { .. }
        | Error::Pooler { .. } => misconfigured(error),
        _ => warn!(%error, "no decision on a rate limit: refused"),
    }
}

/// There is no decision, and the request passes.
pub(super) fn let_through(error: &Error, why: &'static str) {
    warn!(%error, why, "no decision on a rate limit: let through");
}

/// A request has no key, and passes.
pub(super) fn let_through_without_key(no_key: &NoKey) {
    warn!(%no_key, why = "shadow mode", "no key for a rate limit: let through");
}

/// A handler succeeded without charging or waiving these limits.
pub(super) fn not_asked(items: &[Item]) {
    let limits: Vec<&str> = items.iter().map(|item| &*item.limit.name).collect();
    misconfigured(&format_args!(
        "a handler behind in_handler() responded without charging its limits ({}); call enforce() or \
         enforce_within() on its RequestLimits, or waive() to charge nothing",
        limits.join(", ")
    ));
}

/// The server or the layer is misconfigured.
pub(super) fn misconfigured(mistake: &dyn std::fmt::Display) {
    error!("rate limits are set up wrongly: {mistake}");
}
