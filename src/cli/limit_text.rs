//! Describes limits for people.

use crate::Limit;
use crate::cli::text::{plain, shown};
use crate::limit::format_micros;

pub(super) const WIDEST_NAME: usize = 30;

/// Describes a limit: `api: token_bucket, 10 per 1m, capacity 20`. Omits a name that equals the kind.
pub(super) fn describe(name: &str, limit: &Limit) -> String {
    let mut text =
        if name == limit.kind().as_str() { String::new() } else { format!("{}: ", shown(name, WIDEST_NAME)) };
    let period = format_micros(limit.period_micros());
    text.push_str(&format!("{}, {} per {period}", limit.kind(), plain(limit.rate())));
    let options = [
        ("capacity", limit.given_capacity().map(plain)),
        ("max_reserved", limit.max_reserved().map(plain)),
        ("start", limit.start_micros().map(format_micros)),
        ("resolution", limit.given_resolution().map(|parts| parts.to_string())),
        ("shards", limit.given_shards().map(|shards| shards.to_string())),
    ];
    for (option, value) in options {
        if let Some(value) = value {
            text.push_str(&format!(", {option} {value}"));
        }
    }
    text
}
