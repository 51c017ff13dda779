//! How long a third party asks clients to pause.

use std::time::{Duration, SystemTime};

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};

use crate::outgoing::log;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// Returns the value of `Retry-After`, if the response refuses a request because of too much load.
pub(super) fn retry_after(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    the_only(headers, &RETRY_AFTER, |text| seconds(text).or_else(|| time_until(text, headers, now)))
}

/// Returns the time until the third party has tokens again, if it reports that none are left.
pub(super) fn until_reset(headers: &HeaderMap) -> Option<Duration> {
    ratelimit(headers).or_else(|| {
        let is_empty = the_only(headers, &RATELIMIT_REMAINING, seconds)?.is_zero();
        // Some services send the time of the reset since 1970 instead of the time until then.
        let until_reset = |text: &str| seconds(text).filter(|reset| reset.as_secs() < 1_000_000_000);
        if is_empty { the_only(headers, &RATELIMIT_RESET, until_reset) } else { None }
    })
}

/// Reads a field that must have one value.
fn the_only<T>(headers: &HeaderMap, name: &HeaderName, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() {
        log::repeated(name);
        return None;
    }
    let result = value.to_str().ok().and_then(|text| read(text.trim_ascii()));
    if result.is_none() {
        log::not_valid(name, value);
    }
    result
}

/// Reads a whole number of seconds. One that is too large for the type is as long as the type can express.
fn seconds(text: &str) -> Option<Duration> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)))
}

/// Reads a date, and returns the time until then: from the response's own date on, because clocks differ. Zero if it has passed.
fn time_until(text: &str, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    let sent = headers.get(DATE).and_then(|sent| httpdate::parse_http_date(sent.to_str().ok()?).ok());
    Some(date.duration_since(sent.unwrap_or(now)).unwrap_or_default())
}

/// Reads the field `RateLimit`: a List of the present version of the draft, or a Dictionary of version 7.
fn ratelimit(headers: &HeaderMap) -> Option<Duration> {
    let first = headers.get(RATELIMIT)?;
    let lines: Vec<&[u8]> = headers.get_all(RATELIMIT).iter().map(HeaderValue::as_bytes).collect();
    let text = lines.join(&b", "[..]);
    if let Ok(list) = Parser::new(&text).parse::<List>() {
        if list.iter().any(is_empty_without_a_valid_time) {
            log::not_valid(&RATELIMIT, first);
        }
        return list.iter().filter_map(time_of_member).max();
    }
    if let Ok(dictionary) = Parser::new(&text).parse::<Dictionary>() {
        let number = |name: &str| match dictionary.get(name)? {
            ListEntry::Item(item) => whole(&item.bare_item),
            ListEntry::InnerList(_) => None,
        };
        return (number("remaining") == Some(0)).then(|| number("reset").map(Duration::from_secs)).flatten();
    }
    log::not_valid(&RATELIMIT, first);
    None
}

/// Returns `t` of a member with `r=0`.
fn time_of_member(member: &ListEntry) -> Option<Duration> {
    let ListEntry::Item(item) = member else { return None };
    let number = |parameters: &Parameters, name: &str| whole(parameters.get(name)?);
    (number(&item.params, "r") == Some(0)).then(|| number(&item.params, "t").map(Duration::from_secs)).flatten()
}

/// Whether a member with `r=0` has a `t` that is not valid. A member without `t` says nothing about the time.
fn is_empty_without_a_valid_time(member: &ListEntry) -> bool {
    let ListEntry::Item(item) = member else { return false };
    item.params.get("r").and_then(whole) == Some(0) && item.params.get("t").is_some_and(|time| whole(time).is_none())
}

fn whole(item: &BareItem) -> Option<u64> {
    match item {
        BareItem::Integer(number) => u64::try_from(i64::from(*number)).ok(),
        _ => None,
    }
}
