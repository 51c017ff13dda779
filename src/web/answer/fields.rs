//! The header fields that describe limits.

use std::time::{Duration, Instant};

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use sfv::{Integer, KeyRef, ListSerializer, StringRef, key_ref};

use crate::web::answer::standing::whole_seconds;
use crate::web::answer::{Standing, is_denial};

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Which fields are added to responses, besides `Retry-After`.
#[derive(Clone, Copy, Debug)]
pub(in crate::web) struct Fields {
    pub(in crate::web) draft: bool,
    pub(in crate::web) x_ratelimit: bool,
}

impl Fields {
    /// Adds the fields to a response at this moment. If another layer has already added some, the lists continue in further lines. A `t` later
    /// than the response's `Retry-After` is left out, as the draft requires.
    pub(in crate::web) fn add<B>(self, response: &mut Response<B>, standings: &[Standing], now: Instant) {
        // If a handler denies for reasons of its own, limits that allowed the request do not describe the denial.
        let is_described = !is_denial(response) || standings.iter().any(|standing| standing.denied);
        let headers = response.headers_mut();
        if self.draft {
            let policies =
                standings.iter().map(|standing| (standing, [(Q, Some(standing.quota)), (W, standing.window)]));
            if let Some(value) = list(policies) {
                headers.append(RATELIMIT_POLICY, value);
            }
            let latest = whole_number(headers, &RETRY_AFTER).unwrap_or(i64::MAX);
            let states = standings.iter().map(|standing| {
                let reset = standing.known_reset(now).filter(|reset| *reset <= latest);
                (standing, [(R, Some(standing.remaining)), (T, reset)])
            });
            if let Some(value) = list(states) {
                headers.append(RATELIMIT, value);
            }
        }
        if self.x_ratelimit
            && is_described
            && let Some(standing) = standings.iter().min_by_key(|standing| (!standing.denied, standing.remaining))
        {
            add_x_ratelimit(headers, standing, now);
        }
    }
}

const Q: &KeyRef = key_ref("q");
const W: &KeyRef = key_ref("w");
const R: &KeyRef = key_ref("r");
const T: &KeyRef = key_ref("t");

type Parameters = [(&'static KeyRef, Option<i64>); 2];

/// A List of Strings with Integers as parameters (RFC 9651).
fn list<'s>(members: impl Iterator<Item = (&'s Standing, Parameters)>) -> Option<HeaderValue> {
    let mut list = ListSerializer::new();
    for (standing, parameters) in members {
        // The name is printable: see `policy_name`.
        let Ok(name) = StringRef::from_str(&standing.policy) else { continue };
        let mut member = list.bare_item(name);
        for (name, value) in parameters {
            if let Some(value) = value.and_then(|value| Integer::try_from(value).ok()) {
                member = member.parameter(name, value);
            }
        }
    }
    HeaderValue::try_from(list.finish()?).ok()
}

/// The older fields describe one limit: the limit that denied the request, or the limit with the fewest tokens left. The
/// limits of other layers are compared, too.
fn add_x_ratelimit(headers: &mut HeaderMap, standing: &Standing, now: Instant) {
    let present = whole_number(headers, &X_RATELIMIT_REMAINING);
    if !standing.denied && present.is_some_and(|present| present <= standing.remaining) {
        return;
    }
    headers.insert(X_RATELIMIT_LIMIT, standing.quota.into());
    headers.insert(X_RATELIMIT_REMAINING, standing.remaining.into());
    headers.insert(X_RATELIMIT_RESET, standing.any_reset(now).into());
}

fn whole_number(headers: &HeaderMap, name: &HeaderName) -> Option<i64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Adds `Retry-After`, in whole seconds, unless the response already has it.
pub(in crate::web) fn set_retry_after(headers: &mut HeaderMap, wait: Duration) {
    headers.entry(RETRY_AFTER).or_insert_with(|| whole_seconds(wait).into());
}
