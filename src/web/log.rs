//! The log events of the web layer. They contain names of limits, and no keys.

use http::HeaderName;
use tracing::{debug, error, info, warn};

use crate::call::{Decision, Item};
use crate::error::Error;
use crate::observability::count_shadow_denial;
use crate::web::keys::NoKey;

/// A request was denied.
pub(super) fn denied(decision: &Decision) {
    debug!(limits = ?decision.denied_by(), retry_after = ?decision.retry_after(), "rate limit exceeded");
}

/// The address of a request is in a denied network.
pub(super) fn denied_network(what: &'static str) {
    debug!(what, "the client's address is in a denied network");
}

/// A client's address cannot be read. So many others could not be read since the last event.
pub(super) fn unreadable_client(header: &HeaderName, reason: &'static str, left_out: u64) {
    warn!(
        %header, reason, left_out,
        "a client's address cannot be read: its proxy should report it as the guide's page on addresses describes"
    );
}

/// A request would have been denied, but the layer or the limit is in shadow mode.
pub(super) fn shadow_denied(decision: &Decision) {
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

/// The limits of a request cannot be chosen, and the response is a 503.
pub(super) fn not_chosen(error: &(dyn std::error::Error + Send + Sync)) {
    warn!(%error, "cannot choose the rate limits of a request: refused");
}

/// The limits of a request cannot be chosen, and it passes without them.
pub(super) fn let_through_unchosen(error: &(dyn std::error::Error + Send + Sync), why: &'static str) {
    warn!(%error, why, "cannot choose the rate limits of a request: let through without them");
}

/// The tokens that a request took are not corrected to those that it used. Without an error, the closure has panicked.
pub(super) fn not_settled(limit: &str, error: Option<&Error>) {
    match error {
        Some(error @ Error::Invalid(_)) => misconfigured(&format_args!("the closure given to settle: {error}")),
        Some(error) => warn!(limit, %error, "a request is not settled; its estimate stays charged"),
        None => error!(limit, "a request is not settled, because the closure panicked; its estimate stays charged"),
    }
}

/// A connection was upgraded, and does not hold the slots and tokens of these limits.
pub(super) fn not_held(limits: &[&str]) {
    warn!(
        ?limits,
        "an upgraded connection holds nothing of what its request took: the slots are free again, and the tokens are settled as those \
         of an incomplete response; move a RequestHold into the connection"
    );
}

/// A handler has taken tokens or slots of these limits after its response had been sent.
pub(super) fn taken_too_late(limits: &[&str]) {
    if !limits.is_empty() {
        warn!(
            ?limits,
            "enforce() was called after the response had been sent: its tokens are not settled, and its slots are free again; keep a \
             RequestHold until then"
        );
    }
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
