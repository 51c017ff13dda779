//! Counts the decisions on the calls to one limit.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::json::{line, milliseconds};
use crate::plot::{Bar, Panel};
use crate::text::{aligned, describe, grouped, percent, period_micros, tokens, wait};
use pg_limiter::{Kind, Limit};

#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Calls, without their retries.
    pub(super) calls: u64,
    /// Attempts: calls and their retries.
    pub(super) offered: u64,
    pub(super) admitted: u64,
    /// Admitted calls that had to wait for reserved tokens.
    pub(super) reserved: u64,
    pub(super) denied: u64,
    /// The longest wait that a decision returned. For retried calls: the longest time from arrival to admission.
    pub(super) longest_wait: Duration,
    /// The most slots that were held at the same time.
    pub(super) most_held: f64,
    /// Leases that ended before their release.
    pub(super) lost: u64,
    /// The slots that were held, each times how long, in microseconds.
    held: f64,
    /// The times at which tokens were used, in microseconds, and how many.
    uses: Vec<(i64, f64)>,
}

impl Outcome {
    /// The outcome of this number of calls, none of them decided yet.
    pub(super) fn of(calls: usize) -> Self {
        Self { calls: calls as u64, ..Self::default() }
    }

    pub(super) fn admit(&mut self, at: i64, came: i64, count: f64, wait: Option<Duration>) {
        self.offered += 1;
        self.admitted += 1;
        self.reserved += u64::from(wait.is_some());
        let wait = wait.unwrap_or_default();
        self.longest_wait = self.longest_wait.max(micros(at - came) + wait);
        self.uses.push((at.saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)), count));
    }

    /// Counts slots that were held for this time.
    pub(super) fn hold(&mut self, length: i64, count: f64) {
        self.held += length as f64 * count;
    }

    /// Counts a release. `was_held`: until then.
    pub(super) fn release(&mut self, length: i64, count: f64, was_held: bool) {
        self.hold(length, count);
        self.lost += u64::from(!was_held);
    }

    /// The number of slots that were held, on average over this time.
    pub(super) fn average_held(&self, length: i64) -> f64 {
        self.held / length as f64
    }

    /// Counts a denial. `retry_after` is `None` if the call will be retried.
    pub(super) fn deny(&mut self, retry_after: Option<Duration>) {
        self.offered += 1;
        self.denied += 1;
        self.longest_wait = self.longest_wait.max(retry_after.unwrap_or_default());
    }

    /// Calls that were not admitted: at the end, those that still wait for a retry.
    pub(super) const fn waiting(&self) -> u64 {
        self.calls - self.admitted
    }

    /// The most tokens used within any period, wherever it begins. Uses that are a whole period apart are not in the same
    /// period.
    pub(super) fn most_in_a_period(&self, period: i64) -> f64 {
        let mut uses = self.uses.clone();
        uses.sort_by_key(|(at, _)| *at);
        let (mut first, mut sum, mut most) = (0, 0.0, 0.0_f64);
        for (at, count) in &uses {
            sum += count;
            while uses[first].0.saturating_add(period) <= *at {
                sum -= uses[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }
}

fn micros(length: i64) -> Duration {
    Duration::from_micros(length.unsigned_abs())
}

/// One limit, and the outcome of the calls to it.
pub(super) struct Simulated {
    pub(super) name: Arc<str>,
    pub(super) limit: Limit,
    pub(super) outcome: Outcome,
    /// The length of the simulation, in microseconds.
    pub(super) length: i64,
}

impl Simulated {
    /// Whether calls held slots, and so took no tokens in any period.
    pub(super) fn has_slots(&self) -> bool {
        self.limit.kind() == Kind::Concurrency
    }
}

pub(super) fn table(traffic: &str, simulated: &[Simulated], retry: bool) -> Vec<String> {
    let reserved = simulated.iter().any(|one| one.outcome.reserved > 0);
    let slots = simulated.iter().any(Simulated::has_slots);
    let headings = [
        ("LIMIT", true),
        ("OFFERED", true),
        ("ADMITTED", true),
        ("RESERVED", reserved),
        ("DENIED", true),
        ("% ADMITTED", true),
        ("STILL WAITING", retry),
        ("LONGEST WAIT", true),
        ("MOST IN A PERIOD", !simulated.iter().all(Simulated::has_slots)),
        ("MOST AT ONCE", slots),
        ("AVERAGE AT ONCE", slots),
        ("LOST LEASES", slots),
    ];
    let kept = |cells: Vec<String>| -> Vec<String> {
        cells.into_iter().zip(headings).filter(|(_, (_, there))| *there).map(|(cell, _)| cell).collect()
    };
    let row = |one: &Simulated| {
        let Simulated { name, limit, outcome, length } = one;
        // A limit has either a period or slots.
        let of_slots = |text: String| if one.has_slots() { text } else { "-".to_owned() };
        let of_period = |text: String| if one.has_slots() { "-".to_owned() } else { text };
        kept(vec![
            describe(name, limit),
            grouped(outcome.offered),
            grouped(outcome.admitted),
            grouped(outcome.reserved),
            grouped(outcome.denied),
            percent(outcome.admitted, outcome.offered),
            grouped(outcome.waiting()),
            wait(outcome.longest_wait),
            of_period(tokens(outcome.most_in_a_period(period_micros(limit)))),
            of_slots(tokens(outcome.most_held)),
            of_slots(format!("{:.2}", outcome.average_held(*length))),
            of_slots(grouped(outcome.lost)),
        ])
    };
    let mut cells = vec![kept(headings.map(|(heading, _)| heading.to_owned()).to_vec())];
    cells.extend(simulated.iter().map(row));
    let calls = simulated.first().map_or(0, |one| one.outcome.calls);
    let mut lines = vec![format!("{traffic}: {} calls", grouped(calls)), String::new()];
    lines.extend(aligned(&cells, &[0]));
    lines
}

pub(super) fn object(simulated: &Simulated, panel: &Panel) -> String {
    let Simulated { name, limit, outcome, length } = simulated;
    let bars = |tokens: fn(&Bar) -> f64| panel.series.bars.iter().map(tokens).collect::<Vec<_>>();
    let of_micros = |micros: i64| milliseconds(Duration::from_micros(micros.unsigned_abs()));
    let balances = panel.series.balances().into_iter().map(|(at, value)| [of_micros(at), value]);
    let of_slots = |number: f64| simulated.has_slots().then_some(number);
    line(&json!({
        "limit": **name,
        "kind": limit.kind().as_str(),
        "calls": outcome.calls,
        "offered": outcome.offered,
        "admitted": outcome.admitted,
        "reserved": outcome.reserved,
        "denied": outcome.denied,
        "longest_wait_ms": milliseconds(outcome.longest_wait),
        "most_in_a_period": (!simulated.has_slots()).then(|| outcome.most_in_a_period(period_micros(limit))),
        "most_at_once": of_slots(outcome.most_held),
        "average_at_once": of_slots(outcome.average_held(*length)),
        "lost_leases": simulated.has_slots().then_some(outcome.lost),
        "bar_ms": of_micros(panel.series.bins.width),
        "bars_offered": bars(Bar::offered),
        "bars_admitted": bars(|bar| bar.admitted),
        "bars_reserved": bars(|bar| bar.reserved),
        "bars_denied": bars(|bar| bar.denied),
        "balance": balances.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_period_can_start_at_any_call() {
        let mut outcome = Outcome::default();
        for at in [0, 90, 95, 99, 100, 101, 188, 189, 190] {
            outcome.admit(at, at, 1.0, None);
        }
        // From 90 to 189: 190 is a whole period after 90.
        assert_eq!(outcome.most_in_a_period(100), 7.0);
        assert_eq!(outcome.most_in_a_period(1), 1.0);
        assert_eq!(outcome.most_in_a_period(i64::MAX), 9.0);
        assert_eq!(Outcome::default().most_in_a_period(5), 0.0);
    }

    #[test]
    fn a_reserved_call_counts_at_its_reserved_time() {
        let mut outcome = Outcome::default();
        outcome.admit(0, 0, 2.0, Some(Duration::from_micros(100)));
        outcome.admit(50, 10, 3.0, None);
        assert_eq!((outcome.most_in_a_period(50), outcome.most_in_a_period(51)), (3.0, 5.0));
        assert_eq!((outcome.longest_wait, outcome.reserved), (Duration::from_micros(100), 1));
    }
}
