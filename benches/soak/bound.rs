//! The most tokens that a limit with a refill may admit.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pg_limiter::{Kind, Limit};

/// The most tokens that the limit may admit in this number of seconds of the database's clock.
pub(super) fn most(limit: &Limit, seconds: f64) -> f64 {
    let periods = seconds / limit.period().as_secs_f64();
    match limit.kind() {
        Kind::TokenBucket => limit.capacity() + limit.rate() * periods,
        Kind::FixedWindow | Kind::CalendarWindow => {
            (limit.capacity() - limit.rate()).max(0.0) + limit.rate() * (periods.ceil() + 1.0)
        }
        // A kind that admits more than a sliding window would be found here.
        _ => limit.rate() * (periods.ceil() + 1.0),
    }
}

/// The longest time in which a sliding window admits at most its rate, wherever that time begins. It is the period less one
/// part: the oldest part is weighted by how much of it remains in the window, as if its calls had come evenly, and all other
/// parts count fully.
pub(super) fn sure_window(limit: &Limit) -> Duration {
    limit.period().mul_f64(1.0 - 1.0 / f64::from(limit.resolution()))
}

/// An admitted call, which was decided between these two moments.
#[derive(Clone, Copy)]
pub(super) struct Admitted {
    pub(super) asked: Instant,
    pub(super) answered: Instant,
    pub(super) count: f64,
}

/// The recent admitted calls, to compute how many tokens were certainly admitted within a time.
#[derive(Default)]
pub(super) struct Recent {
    calls: VecDeque<Admitted>,
}

impl Recent {
    pub(super) fn add(&mut self, call: Admitted) {
        self.calls.push_back(call);
    }

    /// Returns the most tokens that were certainly admitted within one `period`. Calls that no later period can include are
    /// forgotten.
    pub(super) fn most_within(&mut self, period: Duration) -> f64 {
        // A call that took longer than the period is not certain to be in any one period.
        self.calls.retain(|call| call.answered.duration_since(call.asked) < period);
        let mut by_answer: Vec<Admitted> = self.calls.iter().copied().collect();
        by_answer.sort_unstable_by_key(|call| call.answered);
        let mut most: f64 = 0.0;
        for first in &by_answer {
            let end = first.asked + period;
            let within = by_answer.iter().filter(|call| call.asked >= first.asked && call.answered < end);
            most = most.max(within.map(|call| call.count).sum());
        }
        if let Some(last) = by_answer.last().map(|call| call.answered) {
            self.calls.retain(|call| call.asked + period * 3 > last);
        }
        most
    }
}

#[test]
fn the_bounds_are_those_of_the_kinds() {
    let second = Duration::from_secs(1);
    let limits = [
        Limit::token_bucket(10, second).capacity(5).build(),
        Limit::fixed_window(10, second).build(),
        Limit::sliding_window(10, second).build(),
    ];
    let bounds = limits.map(|limit| limit.map(|limit| most(&limit, 2.5)));
    assert_eq!(bounds, [Ok(30.0), Ok(40.0), Ok(40.0)]);
}

#[test]
fn in_a_sliding_window_all_parts_but_one_count_fully() {
    let limit = Limit::sliding_window(100, Duration::from_secs(1)).resolution(4).build();
    assert_eq!(limit.map(|limit| sure_window(&limit)), Ok(Duration::from_millis(750)));
}

#[test]
fn only_calls_certainly_within_a_period_count() {
    let (now, period) = (Instant::now(), Duration::from_secs(1));
    let at = |millis| now + Duration::from_millis(millis);
    let call = |asked, answered, count| Admitted { asked: at(asked), answered: at(answered), count };
    let mut recent = Recent::default();
    for call in [call(0, 100, 1.0), call(50, 900, 2.0), call(500, 1001, 4.0), call(900, 1040, 8.0)] {
        recent.add(call);
    }
    recent.add(call(0, 3000, 100.0));
    assert_eq!(recent.most_within(period), 14.0);
    recent.add(call(9000, 9100, 3.0));
    assert_eq!(recent.most_within(period), 14.0);
    assert_eq!((recent.most_within(period), recent.calls.len()), (3.0, 1));
}
