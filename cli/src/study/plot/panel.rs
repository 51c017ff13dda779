//! The panel of one limit.

use std::sync::Arc;

use crate::balance_line::balance_line;
use crate::study::plot::axes::Bins;
use crate::text::describe;
use pg_limiter::{Decision, Kind, Limit};

pub(crate) struct Panel {
    pub(crate) name: Arc<str>,
    pub(crate) limit: Limit,
    pub(crate) title: String,
    /// The key, if the panel shows one bucket, and so its balance.
    pub(crate) key: Option<Arc<str>>,
    pub(crate) bins: Bins,
    pub(crate) bars: Vec<Bar>,
    pub(crate) calls: u64,
    /// Whether every call takes one token, so that tokens are calls.
    pub(crate) of_ones: bool,
    /// The first, least, most and last balance within each short time. A line has so many points, however many calls there are.
    columns: Vec<Option<[(i64, f64); 4]>>,
}

/// The least number of columns of a line.
const COLUMNS: usize = 300;

impl Panel {
    /// `about`: what follows the description of the limit in the title.
    pub(crate) fn new(name: &Arc<str>, limit: Limit, about: &str, bins: Bins, key: Option<Arc<str>>) -> Self {
        let title = describe(name, &limit) + about;
        let columns = vec![None; bins.len * COLUMNS.div_ceil(bins.len)];
        let (name, bars) = (Arc::clone(name), vec![Bar::default(); bins.len]);
        Self { name, limit, title, key, bins, bars, calls: 0, of_ones: true, columns }
    }

    pub(crate) fn has_balance(&self) -> bool {
        self.key.is_some()
    }

    /// The times at which to query the balance: the edges of all columns. Empty if the panel shows none.
    pub(crate) fn moments(&self) -> impl Iterator<Item = i64> + use<> {
        let (from, columns) = (i128::from(self.bins.from), self.columns.len() as i128);
        let span = i128::from(self.bins.end()) - from;
        let edges = (0..=columns).filter_map(move |column| i64::try_from(from + span * column / columns).ok());
        self.has_balance().then_some(edges).into_iter().flatten()
    }

    /// Adds a call to this part of its bar, and the balance after it.
    pub(crate) fn add(&mut self, at: i64, count: f64, part: BarPart, balance: f64) {
        self.calls += 1;
        self.of_ones &= count == 1.0;
        *part(&mut self.bars[self.bins.place(at)]) += count;
        // The balance that a call returns for a sharded bucket is an estimate.
        if self.has_balance() && self.limit.shards() == 1 {
            self.balance(at, balance);
        }
    }

    /// Adds a balance that the database returned. Call this in the order of time.
    pub(crate) fn balance(&mut self, at: i64, value: f64) {
        let Bins { from, width, len } = self.bins;
        let span = i128::from(width) * len as i128;
        let place = (i128::from(at) - i128::from(from)) * self.columns.len() as i128 / span;
        let place = usize::try_from(place).unwrap_or_default().min(self.columns.len() - 1);
        let [_, least, most, last] = self.columns[place].get_or_insert([(at, value); 4]);
        *least = if value < least.1 { (at, value) } else { *least };
        *most = if value > most.1 { (at, value) } else { *most };
        *last = (at, value);
    }

    /// The balance over time, reduced to the extremes of each column.
    pub(crate) fn balances(&self) -> Vec<(i64, f64)> {
        let mut columns: Vec<[(i64, f64); 4]> = self.columns.iter().flatten().copied().collect();
        columns.iter_mut().for_each(|column| column.sort_by_key(|(at, _)| *at));
        let mut points = columns.concat();
        points.dedup();
        points
    }

    pub(crate) fn has_slots(&self) -> bool {
        self.limit.kind() == Kind::Concurrency
    }

    /// This value, if the panel is about slots.
    pub(crate) fn of_slots<T>(&self, value: T) -> Option<T> {
        self.has_slots().then_some(value)
    }

    pub(crate) fn counted(&self) -> &'static str {
        match (self.of_ones, self.has_slots()) {
            (true, _) => "calls",
            (false, true) => "slots",
            (false, false) => "tokens",
        }
    }

    pub(super) fn balance_name(&self) -> &'static str {
        if self.has_slots() { "free slots" } else { "balance" }
    }

    pub(crate) fn balance_line(&self) -> Vec<(i64, f64)> {
        balance_line(self.balances(), self.limit.kind())
    }
}

/// The tokens of one bar.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bar {
    pub(crate) admitted: f64,
    /// Admitted after a wait.
    pub(crate) reserved: f64,
    pub(crate) denied: f64,
    /// Denied by another limit of the call.
    pub(crate) denied_elsewhere: f64,
}

type BarPart = fn(&mut Bar) -> &mut f64;

impl Bar {
    /// The part for a call with this decision, from the view of one of its limits. `refused`: whether this limit denied the call.
    pub(crate) fn part(decision: &Decision, refused: bool) -> BarPart {
        match (decision.is_denied(), refused, decision.wait()) {
            (true, true, _) => |bar| &mut bar.denied,
            (true, false, _) => |bar| &mut bar.denied_elsewhere,
            (false, _, Some(_)) => |bar| &mut bar.reserved,
            (false, _, None) => |bar| &mut bar.admitted,
        }
    }

    pub(crate) fn offered(&self) -> f64 {
        self.passed() + self.denied + self.denied_elsewhere
    }

    /// Admitted at once or after a wait.
    pub(crate) fn passed(&self) -> f64 {
        self.admitted + self.reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(bins: Bins) -> Panel {
        let limit = Limit::token_bucket(1, std::time::Duration::from_secs(1)).try_into().unwrap();
        Panel::new(&"a".into(), limit, "", bins, Some("k".into()))
    }

    #[test]
    fn tokens_are_counted_in_the_bar_of_their_time() {
        let mut panel = panel(Bins { from: 0, width: 100, len: 3 });
        panel.add(0, 1.0, |bar| &mut bar.admitted, 0.0);
        panel.add(99, 1.0, |bar| &mut bar.denied, 0.0);
        panel.add(100, 1.0, |bar| &mut bar.reserved, 0.0);
        assert!(panel.of_ones);
        panel.add(299, 2.5, |bar| &mut bar.denied_elsewhere, 0.0);
        assert!(!panel.of_ones && panel.calls == 4);
        assert_eq!(panel.bars.iter().map(Bar::offered).collect::<Vec<_>>(), [2.0, 1.0, 2.5]);
        assert_eq!(panel.bars[0], Bar { admitted: 1.0, denied: 1.0, ..Bar::default() });
    }

    #[test]
    fn thinning_a_line_keeps_its_extremes() {
        let bins = Bins { from: 0, width: 1_000_000, len: 300 };
        let mut panel = panel(bins);
        for (at, value) in [(0, 5.0), (1, 9.0), (2, 7.0), (3, -2.0), (4, 1.0), (1_000_000, 3.0)] {
            panel.balance(at, value);
        }
        assert_eq!(panel.balances(), [(0, 5.0), (1, 9.0), (3, -2.0), (4, 1.0), (1_000_000, 3.0)]);
        for at in 0..1_000_000 {
            panel.balance(2_000_000 + at, at as f64);
        }
        assert_eq!(panel.balances().len(), 7);
    }

    #[test]
    fn balances_are_sampled_from_the_first_edge_to_the_last() {
        let mut panel = panel(Bins { from: 0, width: 100, len: 3 });
        let moments: Vec<i64> = panel.moments().collect();
        assert_eq!((moments.len(), moments[0], moments[300]), (301, 0, 300));
        assert!(moments.is_sorted());
        moments.iter().for_each(|at| panel.balance(*at, 1.0));
        assert_eq!(panel.balances().last(), Some(&(300, 1.0)));
    }
}
