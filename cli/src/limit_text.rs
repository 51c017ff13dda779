//! Describes limits for people.

use crate::text::shown;
use pg_limiter::Limit;

pub(super) const WIDEST_NAME: usize = 30;

/// Describes a limit: `api: token_bucket, 10 per 1m, capacity 20`. Omits a name that equals the kind.
pub(super) fn describe(name: &str, limit: &Limit) -> String {
    let mut text =
        if name == limit.kind().as_str() { String::new() } else { format!("{}: ", shown(name, WIDEST_NAME)) };
    text.push_str(&limit.to_string());
    text
}
