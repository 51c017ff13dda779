//! An independent model of every decision, for the tests. It is written from the contract alone, to
//! be obviously right rather than fast, and deliberately does not work as the SQL does.
//!
//! * Only history is kept: one event per call that changed a bucket. No balance is stored.
//! * A token bucket or fixed window obeys the arrival-curve rule: since any past moment, at most the
//!   capacity at that moment plus all refills since was taken. The balance is what the tightest of
//!   these bounds leaves.
//! * A sliding window adds up every single take, weighted by the age of its sub-interval.
//! * Tokens are whole femtotokens (1e-15), times whole microseconds, all arithmetic on integers; a
//!   refill over any stretch is rounded once, so nothing drifts. Only reported figures are `f64`.
//! * Every wait is checked against the rule itself, at the promised time and just before it.
//!
//! Valid for rates and counts between about 1e-6 and 1e13 tokens. Comparisons tolerate 1e-9 tokens.
//! The model does not cover what the contract leaves open: a name that changes its kind, or a sliding
//! window that changes its grid (period, start or resolution) while it holds counts.

mod bucket;
mod calendar;

pub use self::calendar::Calendar;

use self::bucket::{Bucket, TOLERANCE, femto, tokens};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    TokenBucket,
    FixedWindow,
    SlidingWindow,
    CalendarWindow(Calendar),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    pub kind: Kind,
    pub rate: f64,
    pub period_us: i64,
    /// `None` means the rate.
    pub capacity: Option<f64>,
    /// `None` means no bound.
    pub max_reserved: Option<f64>,
    /// Phase of the grid, from the Unix epoch; token buckets have none and ignore it.
    pub start_us: i64,
    /// Sub-intervals of a sliding window; the other kinds ignore it.
    pub resolution: u32,
    /// The number of rows that the bucket is spread over. It makes no difference to what the bucket grants.
    pub shards: u32,
}

#[derive(Debug, Clone)]
pub struct Item<'a> {
    /// The name of the limit.
    pub limit: &'a str,
    pub key: &'a str,
    pub rule: &'a Rule,
    pub count: f64,
    /// The headroom: at least so many tokens must be left.
    pub leave: f64,
}

/// `balance` is the least over the buckets of the call, after the decision: with the tokens gone if
/// it was allowed or reserved (for `check`: as if they were), unchanged if it was denied.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Allowed {
        balance: f64,
    },
    Reserved {
        wait_us: f64,
        balance: f64,
    },
    Denied {
        wait_us: f64,
        /// Names of the limits that denied the call, in item order, each once.
        denied_by: Vec<String>,
        balance: f64,
    },
    /// `invalid_count`, `invalid_leave`, `leave_unsupported`, `reserve_unsupported` or `count_exceeds_capacity`; in this order if
    /// several apply.
    Impossible(&'static str),
}

#[derive(Debug, Clone, Default)]
pub struct Model {
    buckets: BTreeMap<(String, String), Bucket>,
}

fn id(limit: &str, key: &str) -> (String, String) {
    (limit.to_owned(), key.to_owned())
}

fn valid(count: f64) -> bool {
    count.is_finite() && count >= 0.0
}

impl Model {
    pub fn new() -> Self {
        Self::default()
    }

    fn bucket(&self, limit: &str, key: &str) -> &Bucket {
        static NO_ROW: Bucket = Bucket::NO_ROW;
        self.buckets.get(&id(limit, key)).unwrap_or(&NO_ROW)
    }

    /// Decides for all items together and takes the tokens of all or of none.
    pub fn limit(&mut self, now_us: i64, items: &[Item<'_>], reserve: bool) -> Verdict {
        if items.iter().any(|item| !valid(item.count)) {
            return Verdict::Impossible("invalid_count");
        }
        if items.iter().any(|item| !(0.0..=tokens(item.rule.capacity())).contains(&item.leave)) {
            return Verdict::Impossible("invalid_leave");
        }
        if reserve && items.iter().any(|item| item.leave > 0.0) {
            return Verdict::Impossible("leave_unsupported");
        }
        let unsupported = |rule: &Rule| {
            let asked = reserve || rule.capacity.is_some() || rule.max_reserved.is_some();
            rule.kind == Kind::SlidingWindow && asked
        };
        if items.iter().any(|item| unsupported(item.rule)) {
            return Verdict::Impossible("reserve_unsupported");
        }

        // One entry for each bucket: a bucket that is named twice counts twice, and the largest headroom holds.
        let mut calls: Vec<(&Item<'_>, i128, i128)> = Vec::new();
        for item in items {
            let same = |(other, ..): &&mut (&Item<'_>, i128, i128)| (other.limit, other.key) == (item.limit, item.key);
            match calls.iter_mut().find(same) {
                Some((first, sum, leave)) => {
                    assert_eq!(first.rule, item.rule, "one bucket, one rule in a call");
                    *sum += femto(item.count);
                    *leave = femto(item.leave).max(*leave);
                }
                None => calls.push((item, femto(item.count), femto(item.leave))),
            }
        }
        // A headroom is the opposite of a debt.
        let bound = |rule: &Rule, leave: i128| if leave > 0 { Some(-leave) } else { rule.debt_bound(reserve) };
        for (item, count, leave) in &calls {
            if let Some(bound) = bound(item.rule, *leave)
                && *count > item.rule.capacity() + bound + TOLERANCE
            {
                return Verdict::Impossible("count_exceeds_capacity");
            }
        }

        let mut denied_by: Vec<String> = Vec::new();
        let mut wait_us: f64 = 0.0;
        for (item, count, leave) in &calls {
            let bucket = self.bucket(item.limit, item.key);
            if let Some(bound) = bound(item.rule, *leave)
                && bucket.missing(now_us, item.rule, *count, bound) > TOLERANCE
            {
                wait_us = wait_us.max(bucket.wait_us(now_us, item.rule, *count, bound));
                if !denied_by.iter().any(|name| name == item.limit) {
                    denied_by.push(item.limit.to_owned());
                }
            }
        }
        let denied = !denied_by.is_empty();

        let mut balance = f64::INFINITY;
        for (item, count, _) in &calls {
            if !denied {
                // A call for no tokens changes nothing: under a changed limit, it does not cut the balance either.
                if *count > 0 {
                    self.buckets.entry(id(item.limit, item.key)).or_default().take(now_us, item.rule, *count);
                }
                let bucket = self.bucket(item.limit, item.key);
                // Reserved tokens may be used once the debt is refilled.
                if bucket.missing(now_us, item.rule, 0, 0) > TOLERANCE {
                    wait_us = wait_us.max(bucket.wait_us(now_us, item.rule, 0, 0));
                }
            }
            balance = balance.min(self.balance(now_us, item.limit, item.key, item.rule));
        }
        if denied {
            Verdict::Denied { wait_us, denied_by, balance }
        } else if wait_us > 0.0 {
            Verdict::Reserved { wait_us, balance }
        } else {
            Verdict::Allowed { balance }
        }
    }

    /// The verdict that `limit` would return; changes nothing.
    pub fn check(&self, now_us: i64, items: &[Item<'_>], reserve: bool) -> Verdict {
        let mut copy = Self::new();
        for item in items {
            let bucket = self.bucket(item.limit, item.key).clone();
            copy.buckets.insert(id(item.limit, item.key), bucket);
        }
        copy.limit(now_us, items, reserve)
    }

    /// Forgets one key.
    pub fn reset(&mut self, limit: &str, key: &str) {
        self.buckets.remove(&id(limit, key));
    }

    /// Forgets every key of a limit.
    pub fn reset_all(&mut self, limit: &str) {
        self.buckets.retain(|(name, _), _| name != limit);
    }

    /// Gives tokens back to a bucket that has a row.
    pub fn credit(&mut self, now_us: i64, item: &Item<'_>) {
        assert!(valid(item.count));
        if let Some(bucket) = self.buckets.get_mut(&id(item.limit, item.key)) {
            bucket.give_back(now_us, item.rule, femto(item.count));
        }
    }

    /// Takes tokens regardless of the balance.
    pub fn charge(&mut self, now_us: i64, item: &Item<'_>) {
        assert!(valid(item.count));
        let bucket = self.buckets.entry(id(item.limit, item.key)).or_default();
        bucket.take(now_us, item.rule, femto(item.count));
    }

    /// The balance at this time; for a sliding window, what may still be taken.
    pub fn balance(&self, now_us: i64, limit: &str, key: &str, rule: &Rule) -> f64 {
        tokens(self.bucket(limit, key).balance(now_us, rule))
    }
}

mod tests {
    use super::{Item, Kind, Model, Rule, Verdict};

    const S: i64 = 1_000_000;
    const NOW: i64 = 1_767_225_600 * S;

    fn rule(kind: Kind, rate: f64) -> Rule {
        Rule { kind, rate, period_us: S, capacity: None, max_reserved: None, start_us: 0, resolution: 1, shards: 1 }
    }

    fn item<'a>(key: &'a str, rule: &'a Rule, count: f64) -> Item<'a> {
        Item { limit: "a", key, rule, count, leave: 0.0 }
    }

    fn denied(wait_us: f64, balance: f64) -> Verdict {
        Verdict::Denied { wait_us, denied_by: vec!["a".to_owned()], balance }
    }

    #[test]
    fn a_token_bucket_keeps_its_debt_when_the_clock_steps_back() {
        let tokens = Rule { max_reserved: Some(5.0), ..rule(Kind::TokenBucket, 10.0) };
        let mut model = Model::new();
        let twice = [item("k", &tokens, 4.0), item("k", &tokens, 4.0)];
        assert_eq!(model.limit(NOW, &twice, false), Verdict::Allowed { balance: 2.0 });
        let more = [item("k", &tokens, 6.0)];
        assert_eq!(model.check(NOW, &more, false), denied(400_000.0, 2.0));
        assert_eq!(model.limit(NOW - S, &more, true), Verdict::Reserved { wait_us: 1_400_000.0, balance: -4.0 });
        assert_eq!(model.limit(NOW, &more, true), denied(500_000.0, -4.0));
        assert_eq!(model.limit(NOW, &[item("k", &tokens, 0.0)], false), denied(400_000.0, -4.0));
        for (count, error) in [(16.0, "count_exceeds_capacity"), (-1.0, "invalid_count"), (f64::NAN, "invalid_count")] {
            assert_eq!(model.check(NOW, &[item("k", &tokens, count)], true), Verdict::Impossible(error));
        }
        model.reset("a", "k");
        assert_eq!(model.balance(NOW, "a", "k", &tokens), 10.0);
    }

    #[test]
    fn a_fixed_window_follows_capacity_changes_and_credits() {
        let narrow = Rule { start_us: S / 4, ..rule(Kind::FixedWindow, 3.0) };
        let wide = Rule { capacity: Some(9.0), ..narrow.clone() };
        let mut model = Model::new();
        model.credit(NOW, &item("k", &narrow, 1.0));
        assert_eq!(model.balance(NOW, "a", "k", &wide), 9.0); // still no row
        model.charge(NOW, &item("k", &narrow, 5.0));
        assert_eq!(model.balance(NOW, "a", "k", &wide), -2.0); // a higher capacity grants nothing
        assert_eq!(model.limit(NOW, &[item("k", &wide, 5.0)], false), denied(2_250_000.0, -2.0));
        model.credit(NOW, &item("k", &narrow, 99.0));
        assert_eq!(model.balance(NOW, "a", "k", &wide), 3.0);
        assert_eq!(model.balance(NOW + S, "a", "k", &wide), 6.0);
        assert_eq!(model.balance(NOW + 9 * S, "a", "k", &wide), 9.0);
        model.reset_all("a");
        assert_eq!(model.balance(NOW, "a", "k", &wide), 9.0);
    }

    #[test]
    fn a_headroom_is_left_in_the_bucket() {
        for kind in [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow] {
            let limit = rule(kind, 10.0);
            let leaving = |count, leave| [Item { leave, ..item("k", &limit, count) }];
            let mut model = Model::new();
            for leave in [-1.0, 10.5, f64::NAN] {
                assert_eq!(model.limit(NOW, &leaving(1.0, leave), false), Verdict::Impossible("invalid_leave"));
            }
            assert_eq!(model.limit(NOW, &leaving(1.0, 1.0), true), Verdict::Impossible("leave_unsupported"));
            assert_eq!(model.limit(NOW, &leaving(5.0, 6.0), false), Verdict::Impossible("count_exceeds_capacity"));
            let twice = [leaving(1.0, 2.0), leaving(2.0, 6.0)].concat();
            assert_eq!(model.limit(NOW, &twice, false), Verdict::Allowed { balance: 7.0 });
            let wait = if kind == Kind::TokenBucket { 200_000.0 } else { S as f64 };
            let verdict = model.limit(NOW, &leaving(3.0, 6.0), false);
            match kind {
                Kind::SlidingWindow => {
                    assert!(matches!(verdict, Verdict::Denied { wait_us, .. } if wait_us > S as f64))
                }
                _ => assert_eq!(verdict, denied(wait, 7.0)),
            }
            assert_eq!(model.limit(NOW, &leaving(3.0, 4.0), false), Verdict::Allowed { balance: 4.0 });
        }
    }

    #[test]
    fn a_sliding_window_in_a_group_is_charged_all_or_none() {
        let window = Rule { resolution: 2, ..rule(Kind::SlidingWindow, 4.0) };
        let mut model = Model::new();
        let group = [item("k", &window, 4.0), item("l", &window, 1.0)];
        assert_eq!(model.limit(NOW, &group, false), Verdict::Allowed { balance: 0.0 });
        assert_eq!(model.limit(NOW, &group, false), denied(1_500_000.0, 0.0));
        assert_eq!(model.balance(NOW, "a", "l", &window), 3.0); // all or none
        assert_eq!(model.check(NOW, &group[1..], true), Verdict::Impossible("reserve_unsupported"));
        assert_eq!(model.balance(NOW + S + S / 8, "a", "k", &window), 1.0);
        model.credit(NOW + S / 2, &item("k", &window, 3.0));
        assert_eq!(model.balance(NOW + S / 2, "a", "k", &window), 3.0);
    }
}
