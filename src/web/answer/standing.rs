//! The state of each limit for a client, in the whole numbers of HTTP fields.

use std::time::Duration;

use percent_encoding::{CONTROLS, utf8_percent_encode};

use crate::call::{Decision, LimitState};
use crate::limit::{Kind, Limit};
use crate::web::answer::Calendars;

/// The largest Integer of Structured Fields (RFC 9651).
const LARGEST: f64 = 999_999_999_999_999.0;
/// The tolerance of decisions: a balance of 8.9999999999 counts as 9.
const FORGIVEN: f64 = 1e-9;

/// The state of one policy.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::web) struct Standing {
    pub(super) policy: String,
    pub(super) quota: i64,
    /// In seconds.
    pub(super) window: Option<i64>,
    pub(super) remaining: i64,
    /// In seconds.
    pub(super) reset: Option<i64>,
    /// The time after which the whole quota is available in any case, in seconds.
    pub(super) whole: i64,
    pub(super) denied: bool,
}

/// The limit's name in printable ASCII, as a String of Structured Fields requires.
pub(super) fn policy_name(limit: &str) -> String {
    utf8_percent_encode(limit, CONTROLS).to_string()
}

/// Rounds up, to at least 1: a request that comes a moment too early would be denied again.
pub(super) fn whole_seconds(time: Duration) -> i64 {
    up(time.as_secs_f64()).max(1)
}

fn down(number: f64) -> i64 {
    (number + FORGIVEN).floor().clamp(0.0, LARGEST) as i64
}

fn up(number: f64) -> i64 {
    (number - FORGIVEN).ceil().clamp(0.0, LARGEST) as i64
}

/// One state for each policy, in the order of the call. A limit with several keys is represented by the key with the fewest
/// tokens left. A gate has no tokens, and is left out.
pub(in crate::web) fn standings(limits: &[Limit], decision: &Decision, calendars: &Calendars) -> Vec<Standing> {
    let mut standings: Vec<Standing> = Vec::with_capacity(limits.len());
    for (limit, state) in limits.iter().zip(decision.limits()).filter(|(limit, _)| !limit.is_gate()) {
        let standing = Standing::new(limit, state, decision, calendars);
        match standings.iter_mut().find(|other| other.policy == standing.policy) {
            Some(other) if (!standing.denied, standing.remaining) < (!other.denied, other.remaining) => {
                *other = standing;
            }
            Some(_) => {}
            None => standings.push(standing),
        }
    }
    standings
}

impl Standing {
    fn new(limit: &Limit, state: &LimitState, decision: &Decision, calendars: &Calendars) -> Self {
        let usual = window(limit);
        let (window, whole) = match limit.kind() {
            Kind::CalendarWindow => match calendars.window(limit) {
                Some((length, filled_in)) => (Some(up(length.as_secs_f64())), up(filled_in.as_secs_f64())),
                None => (None, up(usual)),
            },
            _ => ((usual >= 1.0).then(|| up(usual)), up(usual)),
        };
        let reset = match decision.retry_after().filter(|_| state.denied) {
            Some(wait) => Some(whole_seconds(wait)),
            None => until_as_many(limit, state.remaining),
        };
        Self {
            policy: policy_name(&state.limit),
            quota: down(limit.capacity()),
            window,
            remaining: down(state.remaining),
            reset,
            whole: whole.max(1),
            denied: state.denied,
        }
    }
}

/// The seconds in which an empty bucket fills; for a calendar window, on average.
fn window(limit: &Limit) -> f64 {
    let period = limit.period().as_secs_f64();
    match limit.kind() {
        Kind::TokenBucket => period * (limit.capacity() / limit.rate()),
        Kind::FixedWindow | Kind::CalendarWindow => period * limit.windows_to_fill(),
        Kind::SlidingWindow | Kind::Gate => period,
        Kind::Concurrency => 0.0, // Slots have no window.
    }
}

/// The seconds in which as many tokens arrive as are left, or in which the first one does. `None` for windows: only the
/// database knows where they end.
fn until_as_many(limit: &Limit, remaining: f64) -> Option<i64> {
    if limit.kind() != Kind::TokenBucket {
        return None;
    }
    let left = (remaining + FORGIVEN).floor();
    let tokens = if left >= 1.0 { left } else { 1.0 - remaining };
    Some(up(tokens * (limit.period().as_secs_f64() / limit.rate())).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Outcome;

    const MINUTE: Duration = Duration::from_secs(60);

    fn state(remaining: f64, denied: bool) -> LimitState {
        LimitState {
            limit: "a".into(),
            remaining,
            denied,
            capacity: 10.0,
            taken: 1.0,
            full_in: None,
            window_ends_in: None,
            is_gate: false,
        }
    }

    fn standing(limit: Limit, remaining: f64, retry_after: Option<(Duration, bool)>) -> Standing {
        let outcome = match retry_after {
            Some((retry_after, _)) => Outcome::Denied { retry_after },
            None => Outcome::Allowed,
        };
        let denied = retry_after.is_some_and(|(_, denied)| denied);
        let limits = vec![state(remaining, denied)];
        let decision = Decision { outcome, limits };
        standings(&[limit], &decision, &Calendars::default()).pop().unwrap()
    }

    #[test]
    fn window_of_a_token_bucket_is_its_refill_time() {
        let cases = [
            (Limit::token_bucket(10, MINUTE), (10, Some(60))),
            (Limit::token_bucket(10, MINUTE).capacity(20), (20, Some(120))),
            (Limit::token_bucket(100, MINUTE).capacity(10), (10, Some(6))),
            (Limit::token_bucket(0.5, Duration::from_secs(1)).capacity(1), (1, Some(2))),
            (Limit::token_bucket(3, Duration::from_secs(2)), (3, Some(2))),
            (Limit::token_bucket(100, Duration::from_millis(100)), (100, None)),
            (Limit::token_bucket(10, MINUTE).capacity(0), (0, None)),
            (Limit::token_bucket(10, MINUTE).capacity(2.5), (2, Some(15))),
            (Limit::token_bucket(1e-100, MINUTE).capacity(1e100), (999_999_999_999_999, Some(999_999_999_999_999))),
        ];
        for (limit, (quota, window)) in cases {
            let limit = limit.build().unwrap();
            let standing = standing(limit, limit.capacity(), None);
            assert_eq!((standing.quota, standing.window), (quota, window), "{limit:?}");
            assert_eq!(standing.remaining, quota, "{limit:?}");
        }
    }

    #[test]
    fn window_of_a_window_limit_is_the_periods_that_fill_it() {
        let cases = [
            (Limit::fixed_window(10, MINUTE).build(), (10, Some(60))),
            (Limit::fixed_window(10, MINUTE).capacity(5).build(), (5, Some(60))),
            (Limit::fixed_window(10, MINUTE).capacity(25).build(), (25, Some(180))),
            (Limit::sliding_window(10, MINUTE).resolution(6).build(), (10, Some(60))),
            (Limit::sliding_window(10, Duration::from_millis(1500)).build(), (10, Some(2))),
        ];
        for (limit, (quota, window)) in cases {
            let limit = limit.unwrap();
            let standing = standing(limit, 1.0, None);
            assert_eq!((standing.quota, standing.window, standing.reset), (quota, window, None), "{limit:?}");
        }
    }

    #[test]
    fn spending_remaining_evenly_until_reset_keeps_the_rate() {
        let limit = Limit::token_bucket(10, MINUTE).capacity(20).build().unwrap();
        for (remaining, expected) in [
            (20.0, (20, 120)),
            (9.0, (9, 54)),
            (8.999_999_999_9, (9, 54)),
            (1.7, (1, 6)),
            (0.5, (0, 3)),
            (-1.0, (0, 12)),
        ] {
            let standing = standing(limit, remaining, None);
            assert_eq!((standing.remaining, standing.reset), (expected.0, Some(expected.1)), "{remaining}");
        }
    }

    #[test]
    fn reset_of_a_denying_limit_is_retry_after() {
        let limit = Limit::token_bucket(10, MINUTE).build().unwrap();
        let retry_after = Duration::from_micros(5_000_001);
        assert_eq!(standing(limit, 0.2, Some((retry_after, true))).reset, Some(6));
        assert_eq!(standing(limit, 9.0, Some((retry_after, false))).reset, Some(54));
        assert_eq!(whole_seconds(Duration::from_secs(6)), 6);
        assert_eq!(whole_seconds(Duration::from_micros(1)), 1);
        assert_eq!(whole_seconds(Duration::MAX), 999_999_999_999_999);
    }

    #[test]
    fn a_limit_on_two_keys_is_one_policy_with_the_lowest_balance() {
        let limit = Limit::token_bucket(10, MINUTE).build().unwrap();
        let allowed = Decision { outcome: Outcome::Allowed, limits: vec![state(7.0, false), state(3.0, false)] };
        let shown = standings(&[limit, limit], &allowed, &Calendars::default());
        assert_eq!(shown.iter().map(|standing| standing.remaining).collect::<Vec<_>>(), [3]);
        let outcome = Outcome::Denied { retry_after: MINUTE };
        let denied = Decision { outcome, limits: vec![state(5.0, true), state(3.0, false)] };
        let shown = standings(&[limit, limit], &denied, &Calendars::default());
        assert_eq!((shown.len(), shown[0].remaining, shown[0].reset), (1, 5, Some(60)));
    }

    #[test]
    fn policy_names_are_printable_ascii() {
        assert_eq!(policy_name("per user, \"q\" \\ 50%"), "per user, \"q\" \\ 50%");
        assert_eq!(policy_name("z\u{fc}rich\n\u{7f}"), "z%C3%BCrich%0A%7F");
    }
}
