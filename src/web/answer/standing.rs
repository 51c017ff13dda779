//! The state of each limit for a client, in the whole numbers of HTTP fields.

use std::sync::Arc;
use std::time::{Duration, Instant};

use percent_encoding::{CONTROLS, utf8_percent_encode};

use crate::call::{Decision, Item, KeySecret, LimitState};
use crate::error::Denied;
use crate::limit::{Kind, Limit};
use crate::web::answer::Windows;

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
    pub(super) reset: Reset,
    pub(super) denied: bool,
    /// When the limit was decided.
    decided_at: Instant,
}

/// When the number of remaining tokens grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reset {
    /// After this time, or the window ends then.
    After(Duration),
    /// After this wait of a denial, which is also in `Retry-After`.
    Denied(Duration),
    /// Never: the bucket is full.
    Full,
    /// At any time within this one: it is not known when.
    Within(Duration),
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

/// The moment of a decision, and what is known then.
#[derive(Clone, Copy)]
pub(in crate::web) struct Context<'a> {
    pub(in crate::web) now: Instant,
    pub(in crate::web) windows: &'a Windows,
    pub(in crate::web) secret: Option<&'a KeySecret>,
}

/// One state for each policy, in the order of the call. The items pass their limits inline. A limit with several keys is
/// represented by the key with the fewest tokens left. A gate has no tokens, and is left out.
pub(in crate::web) fn standings(items: &[Item], decision: &Decision, context: Context<'_>) -> Vec<Standing> {
    let mut standings: Vec<Standing> = Vec::with_capacity(items.len());
    for (item, state) in items.iter().zip(decision.limits()) {
        let Some(limit) = item.limit.inline.filter(|limit| !limit.is_gate()) else { continue };
        let reset = match decision.retry_after().filter(|_| state.denied) {
            Some(wait) => Reset::Denied(wait),
            None => context.reset(&limit, state, item.key.as_str()),
        };
        let standing = context.standing(&limit, state, reset);
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

/// The states of the limits that denied a call of the handler's own. A limit that is not known here has no window.
pub(in crate::web) fn denied_standings(
    denied: &Denied,
    known: impl Fn(&str) -> Option<Limit>,
    context: Context<'_>,
) -> Vec<Standing> {
    let standing = |name: &Arc<str>| {
        let (limit, state) = (known(name), denied.states.iter().find(|state| state.limit == *name));
        if limit.is_some_and(|limit| limit.is_gate()) || state.is_some_and(|state| state.is_gate) {
            return None;
        }
        let window = limit.and_then(|limit| context.window(&limit));
        Some(Standing {
            policy: policy_name(name),
            quota: down(state.map(|state| state.capacity).or_else(|| limit.map(|limit| limit.capacity()))?),
            window,
            remaining: down(state.map_or(denied.remaining, |state| state.remaining)),
            reset: Reset::Denied(denied.retry_after),
            denied: true,
            decided_at: context.now,
        })
    };
    denied.limits.iter().filter_map(standing).collect()
}

/// Adds the states of the limits that denied. Such a state replaces that of the same policy, unless the policy has already denied.
pub(in crate::web) fn add_denied(standings: &mut Vec<Standing>, denied: Vec<Standing>) {
    for state in denied {
        match standings.iter_mut().find(|other| other.policy == state.policy) {
            Some(other) if !other.denied => *other = state,
            Some(_) => {}
            None => standings.push(state),
        }
    }
}

impl Context<'_> {
    fn standing(self, limit: &Limit, state: &LimitState, reset: Reset) -> Standing {
        Standing {
            policy: policy_name(&state.limit),
            quota: down(limit.capacity()),
            window: self.window(limit),
            remaining: down(state.remaining),
            reset,
            denied: state.denied,
            decided_at: self.now,
        }
    }

    /// The seconds in which an empty bucket fills. `None` if that is less than one, or not known.
    fn window(self, limit: &Limit) -> Option<i64> {
        match limit.kind() {
            Kind::CalendarWindow => self.windows.calendar(self.now, limit).map(|now| up(now.length.as_secs_f64())),
            _ => Some(fills_in(limit)).filter(|seconds| *seconds >= 1.0).map(up),
        }
    }

    fn reset(self, limit: &Limit, state: &LimitState, key: &str) -> Reset {
        // The whole number of tokens that is shown, and those that are missing for one more.
        let shown = (state.remaining + FORGIVEN).floor().max(0.0);
        let missing = shown + 1.0 - state.remaining;
        let is_full = shown + 1.0 > limit.capacity() + FORGIVEN;
        let ends_in = match limit.kind() {
            Kind::TokenBucket if is_full => return Reset::Full,
            Kind::TokenBucket => return Reset::After(seconds(missing * (limit.period().as_secs_f64() / limit.rate()))),
            Kind::Concurrency | Kind::Gate => return Reset::Within(Duration::from_secs(1)),
            Kind::CalendarWindow => self.windows.calendar(self.now, limit).map(|now| now.ends_in),
            Kind::FixedWindow | Kind::SlidingWindow => {
                let stored = self.secret.map(|secret| secret.stored_key(&state.limit, key));
                self.windows.ends_in(self.now, limit, &state.limit, stored.as_deref().unwrap_or(key))
            }
        };
        let Some(ends_in) = ends_in else { return Reset::Within(seconds(fills_in(limit))) };
        // Further windows, if each grants less than a token, or tokens are owed.
        let windows = (missing / limit.rate() - FORGIVEN).ceil();
        if limit.kind() == Kind::SlidingWindow || is_full || windows <= 1.0 {
            return Reset::After(ends_in);
        }
        Reset::After(ends_in.saturating_add(seconds((windows - 1.0) * limit.period().as_secs_f64())))
    }
}

impl Standing {
    /// The seconds until the number of remaining tokens grows, for `RateLimit`.
    pub(super) fn known_reset(&self, now: Instant) -> Option<i64> {
        match self.reset {
            Reset::After(time) => {
                Some(up(time.saturating_sub(now.saturating_duration_since(self.decided_at)).as_secs_f64()))
            }
            Reset::Denied(wait) => Some(whole_seconds(wait)),
            Reset::Full | Reset::Within(_) => None,
        }
    }

    /// The same for `X-RateLimit-Reset`, which always has a number.
    pub(super) fn any_reset(&self, now: Instant) -> i64 {
        match self.reset {
            Reset::Full => 0,
            Reset::Within(time) => whole_seconds(time),
            Reset::After(_) | Reset::Denied(_) => self.known_reset(now).unwrap_or_default(),
        }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// The seconds in which an empty bucket fills; for a calendar window, on average.
fn fills_in(limit: &Limit) -> f64 {
    let period = limit.period().as_secs_f64();
    match limit.kind() {
        Kind::TokenBucket => period * (limit.capacity() / limit.rate()),
        Kind::FixedWindow | Kind::CalendarWindow => period * limit.windows_to_fill(),
        Kind::SlidingWindow | Kind::Gate => period,
        Kind::Concurrency => 0.0, // Slots have no window.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Outcome;

    const MINUTE: Duration = Duration::from_secs(60);
    const SECOND: Duration = Duration::from_secs(1);

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

    fn standing_in(
        windows: &Windows,
        limit: Limit,
        remaining: f64,
        retry_after: Option<(Duration, bool)>,
    ) -> (Standing, Instant) {
        let outcome = match retry_after {
            Some((retry_after, _)) => Outcome::Denied { retry_after },
            None => Outcome::Allowed,
        };
        let denied = retry_after.is_some_and(|(_, denied)| denied);
        let decision = Decision { outcome, limits: vec![state(remaining, denied)] };
        let context = Context { now: Instant::now(), windows, secret: None };
        let item = Item::new(("a", limit), "u1");
        (standings(&[item], &decision, context).pop().unwrap(), context.now)
    }

    fn standing(limit: Limit, remaining: f64, retry_after: Option<(Duration, bool)>) -> (Standing, Option<i64>, i64) {
        let (standing, now) = standing_in(&Windows::default(), limit, remaining, retry_after);
        let resets = (standing.known_reset(now), standing.any_reset(now));
        (standing, resets.0, resets.1)
    }

    #[test]
    fn window_of_a_token_bucket_is_its_refill_time() {
        let cases = [
            (Limit::token_bucket(10, MINUTE), (10, Some(60))),
            (Limit::token_bucket(10, MINUTE).capacity(20), (20, Some(120))),
            (Limit::token_bucket(100, MINUTE).capacity(10), (10, Some(6))),
            (Limit::token_bucket(0.5, SECOND).capacity(1), (1, Some(2))),
            (Limit::token_bucket(3, 2 * SECOND), (3, Some(2))),
            (Limit::token_bucket(100, Duration::from_millis(100)), (100, None)),
            (Limit::token_bucket(10, MINUTE).capacity(0), (0, None)),
            (Limit::token_bucket(10, MINUTE).capacity(2.5), (2, Some(15))),
            (
                Limit::token_bucket(1e-6, Duration::from_secs(3_155_760_000)).capacity(1000),
                (1000, Some(999_999_999_999_999)),
            ),
        ];
        for (limit, (quota, window)) in cases {
            let limit = limit.build().unwrap();
            let (standing, _, _) = standing(limit, limit.capacity(), None);
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
            let (standing, reset, at_most) = standing(limit, 1.0, None);
            // The database's clock is not known here.
            assert_eq!((standing.quota, standing.window, reset), (quota, window, None), "{limit:?}");
            assert_eq!(Some(at_most), window, "{limit:?}");
        }
    }

    #[test]
    fn reset_of_a_token_bucket_is_the_time_until_remaining_grows() {
        let limit = Limit::token_bucket(10, MINUTE).capacity(20).build().unwrap();
        for (remaining, shown, reset, older) in [
            (20.0, 20, None, 0),
            (19.5, 19, Some(3), 3),
            (9.0, 9, Some(6), 6),
            (8.999_999_999_9, 9, Some(6), 6),
            (1.7, 1, Some(2), 2),
            (0.5, 0, Some(3), 3),
            (-1.0, 0, Some(12), 12),
        ] {
            let (standing, known, any) = standing(limit, remaining, None);
            assert_eq!((standing.remaining, known, any), (shown, reset, older), "{remaining}");
        }
        // 2.2 of 2.5 tokens are 2, and never 3.
        let fraction = Limit::token_bucket(10, MINUTE).capacity(2.5).build().unwrap();
        assert_eq!(standing(fraction, 2.2, None).1, None);
    }

    #[test]
    fn reset_of_a_fixed_window_is_the_start_of_the_window_that_grants_a_token() {
        let (windows, _) = Windows::at(1_767_225_605_000_000); // five seconds into a minute
        let reset = |limit: Limit, remaining: f64| {
            let (standing, now) = standing_in(&windows, limit, remaining, None);
            standing.known_reset(now).unwrap()
        };
        let limit = |rate: f64, capacity: f64| {
            Limit::fixed_window(rate, MINUTE).start(Duration::ZERO).capacity(capacity).build().unwrap()
        };
        for (rate, capacity, remaining, expected) in [
            (10.0, 10.0, 9.0, 55),
            (10.0, 10.0, 0.0, 55),
            (10.0, 10.0, 10.0, 55), // full: the window ends
            (10.0, 10.0, -9.0, 55),
            (10.0, 10.0, -9.5, 115), // half a token is none
            (10.0, 10.0, -29.0, 175),
            (0.3, 7.5, 6.5, 115), // to 7
        ] {
            assert_eq!(reset(limit(rate, capacity), remaining), expected, "{rate}, {capacity}, {remaining}");
        }
        let sliding = Limit::sliding_window(10, MINUTE).build().unwrap();
        assert_eq!(reset(sliding, 3.0), 55);
    }

    #[test]
    fn reset_counts_down_until_the_response_is_sent() {
        let (windows, _) = Windows::at(1_767_225_605_000_000);
        let limit = Limit::fixed_window(10, MINUTE).start(Duration::ZERO).build().unwrap();
        let (standing, now) = standing_in(&windows, limit, 3.0, None);
        let resets = [0, 25, 53, 54, 55, 90].map(|seconds| standing.known_reset(now + seconds * SECOND));
        assert_eq!(resets, [55, 30, 2, 1, 0, 0].map(Some));
    }

    #[test]
    fn reset_of_a_denying_limit_is_retry_after() {
        let limit = Limit::token_bucket(10, MINUTE).build().unwrap();
        let retry_after = Duration::from_micros(5_000_001);
        assert_eq!(standing(limit, 0.2, Some((retry_after, true))).1, Some(6));
        assert_eq!(standing(limit, 9.0, Some((retry_after, false))).1, Some(6));
        assert_eq!(standing(limit, 8.5, Some((retry_after, false))).1, Some(3));
        assert_eq!(whole_seconds(Duration::from_secs(6)), 6);
        assert_eq!(whole_seconds(Duration::from_micros(1)), 1);
        assert_eq!(whole_seconds(Duration::MAX), 999_999_999_999_999);
    }

    #[test]
    fn a_limit_on_two_keys_is_one_policy_with_the_lowest_balance() {
        let limit = Limit::token_bucket(10, MINUTE).build().unwrap();
        let items = ["u1", "u2"].map(|key| Item::new(("a", limit), key));
        let windows = Windows::default();
        let context = Context { now: Instant::now(), windows: &windows, secret: None };
        let allowed = Decision { outcome: Outcome::Allowed, limits: vec![state(7.0, false), state(3.0, false)] };
        let shown = standings(&items, &allowed, context);
        assert_eq!(shown.iter().map(|standing| standing.remaining).collect::<Vec<_>>(), [3]);
        let outcome = Outcome::Denied { retry_after: MINUTE };
        let denied = Decision { outcome, limits: vec![state(5.0, true), state(3.0, false)] };
        let shown = standings(&items, &denied, context);
        assert_eq!((shown.len(), shown[0].remaining, shown[0].known_reset(context.now)), (1, 5, Some(60)));
    }

    #[test]
    fn a_denial_of_the_handlers_own_is_described_with_what_is_known() {
        let (limit, windows) = (Limit::token_bucket(10, MINUTE).build().unwrap(), Windows::default());
        let context = Context { now: Instant::now(), windows: &windows, secret: None };
        let outcome = Outcome::Denied { retry_after: MINUTE };
        let decision = Decision { outcome, limits: vec![state(0.5, true)] };
        let Err(crate::Error::Denied(denied)) = decision.enforce() else { panic!("a denial") };
        for (known, window) in [(Some(limit), Some(60)), (None, None)] {
            let shown = denied_standings(&denied, |_| known, context).pop().unwrap();
            assert_eq!((shown.quota, shown.window, shown.remaining, shown.denied), (10, window, 0, true));
            assert_eq!(shown.known_reset(context.now), Some(60));
        }
        // A gate has no tokens.
        assert_eq!(denied_standings(&denied, |_| Some(Limit::gate()), context), []);
    }

    #[test]
    fn policy_names_are_printable_ascii() {
        assert_eq!(policy_name("per user, \"q\" \\ 50%"), "per user, \"q\" \\ 50%");
        assert_eq!(policy_name("z\u{fc}rich\n\u{7f}"), "z%C3%BCrich%0A%7F");
    }
}
