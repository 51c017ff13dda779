//! The balance of one bucket, computed from its history.

use super::{Kind, Rule};

/// An amount of tokens, in units of 1e-15.
pub type Femto = i128;
const TOKEN: f64 = 1e15;
pub const TOLERANCE: Femto = 1_000_000;

pub fn femto(tokens: f64) -> Femto {
    (tokens.min(1e20) * TOKEN).round() as Femto
}

pub fn tokens(amount: Femto) -> f64 {
    amount as f64 / TOKEN
}

/// `a * b / d` rounded down, for numbers not below zero, without a large intermediate product.
fn mul_div(a: i128, b: i128, d: i128) -> i128 {
    (a / d).saturating_mul(b).saturating_add(a % d * b / d)
}

impl Rule {
    fn rate(&self) -> Femto {
        femto(self.rate)
    }

    fn period(&self) -> i128 {
        i128::from(self.period_us)
    }

    /// The most that a bucket holds.
    pub fn capacity(&self) -> Femto {
        femto(self.capacity.unwrap_or(self.rate))
    }

    /// How far a call may go into debt; `None` means no bound.
    pub fn debt_bound(&self, reserve: bool) -> Option<Femto> {
        if reserve { self.max_reserved.map(femto) } else { Some(0) }
    }

    /// Fixed or calendar window: the number of the window that holds `t`.
    pub fn window(&self, t: i64) -> i128 {
        if let Kind::CalendarWindow(calendar) = self.kind {
            return calendar.window(t).into();
        }
        (i128::from(t) - i128::from(self.start_us)).div_euclid(self.period())
    }

    fn window_start(&self, t: i64) -> i64 {
        if let Kind::CalendarWindow(calendar) = self.kind {
            return calendar.start(calendar.window(t));
        }
        let start = i128::from(self.start_us) + self.window(t) * self.period();
        i64::try_from(start).expect("a time within range")
    }

    /// Sliding window: time since the start of the grid, in units of which `period` make one sub-interval.
    fn grid_time(&self, t: i64) -> i128 {
        (i128::from(t) - i128::from(self.start_us)) * i128::from(self.resolution)
    }

    /// Sliding window: the number of the sub-interval that holds `t`.
    fn sub_interval(&self, t: i64) -> i128 {
        self.grid_time(t).div_euclid(self.period())
    }

    /// Not for a sliding window: the refill between two moments.
    fn refill(&self, from: i64, to: i64) -> Femto {
        let refill = match self.kind {
            Kind::TokenBucket => mul_div(self.rate(), i128::from(to) - i128::from(from), self.period()),
            Kind::FixedWindow | Kind::CalendarWindow(_) => {
                self.rate().saturating_mul(self.window(to) - self.window(from))
            }
            Kind::SlidingWindow => unreachable!("a sliding window has no refill"),
        };
        assert!(refill >= 0, "time runs forward in a bucket");
        refill
    }
}

/// One change of a bucket.
#[derive(Debug, Clone)]
struct Event {
    at: i64,
    /// The limit as it was configured for that call.
    rule: Rule,
    /// Negative for a credit.
    taken: Femto,
}

/// All changes of one bucket, oldest first; empty means that it has no row.
#[derive(Debug, Clone, Default)]
pub struct Bucket(Vec<Event>);

impl Bucket {
    pub const NO_ROW: Self = Self(Vec::new());

    /// If the clock steps back, the bucket's time stands still.
    fn time(&self, now: i64) -> i64 {
        self.0.last().map_or(now, |last| last.at.max(now))
    }

    pub fn balance(&self, now: i64, rule: &Rule) -> Femto {
        let t = self.time(now);
        match rule.kind {
            Kind::SlidingWindow => rule.rate() - self.used(t, rule),
            Kind::TokenBucket | Kind::FixedWindow | Kind::CalendarWindow(_) => self.level(t, rule),
        }
    }

    /// Token bucket and fixed window. Just before and just after each past event, the bucket held at
    /// most its capacity at that time; since then, it has gained the refills and lost the takes. (The
    /// first event found the bucket full; otherwise this bound would not be reached.)
    fn level(&self, t: i64, rule: &Rule) -> Femto {
        let mut level = rule.capacity();
        let mut taken_since: Femto = 0;
        // A stretch is refilled by the rule of the event that ends it; stretches under one rule are
        // taken as a whole: `refilled` came in after `end`, and `ruling` holds before it.
        let (mut refilled, mut end, mut ruling): (Femto, _, _) = (0, t, rule);
        for event in self.0.iter().rev() {
            let refilled_since = refilled.saturating_add(ruling.refill(event.at, end));
            let most = event.rule.capacity().saturating_add(refilled_since);
            level = level.min(most.saturating_sub(taken_since));
            taken_since += event.taken;
            level = level.min(most.saturating_sub(taken_since));
            if event.rule != *ruling {
                (refilled, end, ruling) = (refilled_since, event.at, &event.rule);
            }
        }
        level
    }

    /// Sliding window: what was taken in the sub-intervals for which `wanted` holds.
    fn taken_in(&self, rule: &Rule, wanted: impl Fn(i128) -> bool) -> Femto {
        let wanted = self.0.iter().filter(|event| wanted(rule.sub_interval(event.at)));
        wanted.map(|event| event.taken).sum()
    }

    /// Sliding window.
    fn used(&self, t: i64, rule: &Rule) -> Femto {
        let current = rule.sub_interval(t);
        let leaving = current - i128::from(rule.resolution);
        let gone_by = rule.grid_time(t).rem_euclid(rule.period());
        let whole = self.taken_in(rule, |sub| sub > leaving);
        let fading = self.taken_in(rule, |sub| sub == leaving);
        whole + fading - mul_div(fading, gone_by, rule.period())
    }

    /// The tokens that are missing to take `count` and leave at least `-bound`; 0 or less if it fits.
    pub fn missing(&self, now: i64, rule: &Rule, count: Femto, bound: Femto) -> Femto {
        count - bound - self.balance(now, rule)
    }

    /// From `now` to the earliest moment at which nothing is missing, if no other call takes tokens.
    pub fn wait_us(&self, now: i64, rule: &Rule, count: Femto, bound: Femto) -> f64 {
        let missing = self.missing(now, rule, count, bound);
        assert!(missing > TOLERANCE, "nothing is missing, so there is no wait");
        let t = self.time(now);
        let wait = match rule.kind {
            Kind::TokenBucket => (t - now) as f64 + missing as f64 * rule.period() as f64 / rule.rate() as f64,
            Kind::FixedWindow => {
                let windows = (missing - TOLERANCE + rule.rate() - 1) / rule.rate();
                (rule.window_start(t) - now) as f64 + windows as f64 * rule.period() as f64
            }
            Kind::SlidingWindow => self.sliding_wait_us(now, rule, count - bound),
            Kind::CalendarWindow(calendar) => {
                let windows = (missing - TOLERANCE + rule.rate() - 1) / rule.rate();
                let window = calendar.window(t) + i64::try_from(windows).expect("few windows");
                (calendar.granted_at(window) - now) as f64
            }
        };
        if wait < 1e17 {
            // The error of `f64` and of the last femtotoken.
            let slack = 1e-4 + wait * 1e-15 + 2.0 * rule.period() as f64 / rule.rate() as f64;
            let promised = now + (wait + slack).ceil() as i64;
            let early = now + (wait - slack).ceil() as i64 - 1;
            assert!(self.missing(promised, rule, count, bound) <= TOLERANCE, "too early: {wait} in {self:?}");
            assert!(self.missing(early, rule, count, bound) > 0, "too late: {wait} in {self:?}");
        }
        wait
    }

    /// The used amount falls only while a sub-interval with takes leaves the window, and falls evenly.
    /// So the moment lies in the first such stretch that ends with a low enough amount.
    fn sliding_wait_us(&self, now: i64, rule: &Rule, count: Femto) -> f64 {
        let first = rule.sub_interval(self.time(now)) - i128::from(rule.resolution);
        for event in &self.0 {
            let leaving = rule.sub_interval(event.at);
            if leaving < first {
                continue;
            }
            let fading = self.taken_in(rule, |sub| sub == leaving);
            let whole = self.taken_in(rule, |sub| sub > leaving);
            if fading == 0 || whole + count > rule.rate() + TOLERANCE {
                continue;
            }
            let to_go = whole + fading + count - rule.rate();
            let share = (to_go as f64 / fading as f64).min(1.0);
            let stretch_start = (leaving + i128::from(rule.resolution)) * rule.period() - rule.grid_time(now);
            return (stretch_start as f64 + share * rule.period() as f64) / f64::from(rule.resolution);
        }
        unreachable!("an empty window has room for any possible count")
    }

    pub fn take(&mut self, now: i64, rule: &Rule, taken: Femto) {
        self.0.push(Event { at: self.time(now), rule: rule.clone(), taken });
    }

    pub fn give_back(&mut self, now: i64, rule: &Rule, mut back: Femto) {
        if self.0.is_empty() {
            return;
        }
        if rule.kind == Kind::SlidingWindow {
            for event in self.0.iter_mut().rev() {
                let part = back.min(event.taken);
                event.taken -= part;
                back -= part;
            }
        }
        let taken = if rule.kind == Kind::SlidingWindow { 0 } else { -back };
        self.take(now, rule, taken);
    }
}
