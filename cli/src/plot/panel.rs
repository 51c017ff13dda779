//! The panel of one limit.

use std::sync::Arc;

use crate::plot::bins::Bins;
use crate::text::describe;
use pg_limiter::{Decision, Kind, Limit};

#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) name: Arc<str>,
    pub(super) limit: Limit,
    /// A note after the description of the limit.
    about: String,
    pub(crate) series: Series,
    /// Whether the panel shows one bucket, and so a balance.
    pub(crate) has_balance: bool,
}

impl Panel {
    pub(crate) fn new(name: &Arc<str>, limit: Limit, about: String, bins: Bins, has_balance: bool) -> Self {
        Self { name: Arc::clone(name), limit, about, series: Series::new(bins), has_balance }
    }

    /// The times at which to query the balance. Empty if the panel shows none.
    pub(crate) fn moments(&self) -> impl Iterator<Item = i64> {
        Series::moments(self.series.bins).filter(|_| self.has_balance)
    }

    /// Adds a call, and the balance after it.
    pub(crate) fn add(&mut self, at: i64, count: f64, became: Became, balance: f64) {
        self.series.add(at, count, became);
        // The balance that a call returns for a sharded bucket is an estimate.
        if self.has_balance && self.limit.shards() == 1 {
            self.series.balance(at, balance);
        }
    }

    pub(crate) fn capacity(&self) -> f64 {
        self.limit.capacity()
    }

    pub(super) fn has_slots(&self) -> bool {
        self.limit.kind() == Kind::Concurrency
    }

    /// The unit of the bars.
    pub(crate) fn counted(&self) -> &'static str {
        match (self.series.of_ones, self.has_slots()) {
            (true, _) => "calls",
            (false, true) => "slots",
            (false, false) => "tokens",
        }
    }

    /// The name of the line below the bars.
    pub(super) fn balance_name(&self) -> &'static str {
        if self.has_slots() { "free slots" } else { "balance" }
    }

    pub(crate) fn title(&self) -> String {
        let limit = describe(&self.name, &self.limit);
        if self.about.is_empty() { limit } else { format!("{limit}; {}", self.about) }
    }

    /// The points of the balance line.
    pub(crate) fn balance_line(&self) -> Vec<(i64, f64)> {
        balance_line(self.series.balances(), self.limit.kind())
    }
}

/// A line through these balances. The balance of a fixed or calendar window, and the free slots, stay constant between them.
pub(crate) fn balance_line(points: Vec<(i64, f64)>, kind: Kind) -> Vec<(i64, f64)> {
    if !matches!(kind, Kind::FixedWindow | Kind::CalendarWindow | Kind::Concurrency) {
        return points;
    }
    let mut steps: Vec<(i64, f64)> = Vec::with_capacity(2 * points.len());
    for (at, value) in points {
        steps.extend(steps.last().map(|(_, before)| (at, *before)));
        steps.push((at, value));
    }
    steps
}

impl Became {
    /// `refused`: whether this limit denied the call.
    pub(crate) fn of(decision: &Decision, refused: bool) -> Self {
        match (decision.is_denied(), refused, decision.wait()) {
            (true, true, _) => Self::Denied,
            (true, false, _) => Self::DeniedElsewhere,
            (false, _, Some(_)) => Self::Reserved,
            (false, _, None) => Self::Admitted,
        }
    }
}

/// The decision on a call, from the view of one of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Became {
    Admitted,
    /// Admitted after a wait.
    Reserved,
    Denied,
    /// Denied by another limit of the call.
    DeniedElsewhere,
}

/// The tokens of one bar.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bar {
    pub(crate) admitted: f64,
    pub(crate) reserved: f64,
    pub(crate) denied: f64,
    pub(crate) denied_elsewhere: f64,
}

impl Bar {
    pub(crate) fn offered(&self) -> f64 {
        self.admitted + self.reserved + self.denied + self.denied_elsewhere
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) bins: Bins,
    pub(crate) bars: Vec<Bar>,
    /// The number of calls.
    pub(crate) calls: u64,
    /// Whether every call takes one token, so that tokens are calls.
    pub(crate) of_ones: bool,
    columns: Vec<Option<Column>>,
}

/// The extremes of a balance within a short time. They bound the number of points of a line, however many calls there are.
#[derive(Clone, Copy, Debug)]
struct Column {
    first: (i64, f64),
    least: (i64, f64),
    most: (i64, f64),
    last: (i64, f64),
}

/// The least number of columns of a line.
const COLUMNS: usize = 300;

impl Series {
    pub(crate) fn new(bins: Bins) -> Self {
        Self {
            bins,
            bars: vec![Bar::default(); bins.len],
            calls: 0,
            of_ones: true,
            columns: vec![None; bins.len * columns_of_bar(bins)],
        }
    }

    pub(crate) fn add(&mut self, at: i64, count: f64, became: Became) {
        self.calls += 1;
        self.of_ones &= count == 1.0;
        let bar = &mut self.bars[self.bins.place(at)];
        *match became {
            Became::Admitted => &mut bar.admitted,
            Became::Reserved => &mut bar.reserved,
            Became::Denied => &mut bar.denied,
            Became::DeniedElsewhere => &mut bar.denied_elsewhere,
        } += count;
    }

    /// Adds a balance that the database returned. Call this in the order of time.
    pub(crate) fn balance(&mut self, at: i64, value: f64) {
        let finer = columns_of_bar(self.bins);
        let place = self.bins.place(at);
        let into = at.saturating_sub(self.bins.start(place)).clamp(0, self.bins.width - 1);
        let part = i128::from(into) * finer as i128 / i128::from(self.bins.width);
        let point = (at, value);
        match &mut self.columns[place * finer + usize::try_from(part).unwrap_or_default()] {
            Some(column) => {
                if value < column.least.1 {
                    column.least = point;
                }
                if value > column.most.1 {
                    column.most = point;
                }
                column.last = point;
            }
            none => *none = Some(Column { first: point, least: point, most: point, last: point }),
        }
    }

    /// The balance over time, reduced to the extremes of each column.
    pub(crate) fn balances(&self) -> Vec<(i64, f64)> {
        let mut points = Vec::new();
        for Column { first, least, most, last } in self.columns.iter().flatten() {
            let (earlier, later) = if least.0 <= most.0 { (*least, *most) } else { (*most, *least) };
            for point in [*first, earlier, later, *last] {
                if points.last() != Some(&point) {
                    points.push(point);
                }
            }
        }
        points
    }

    /// The times at which to query the balance: the edges of all columns.
    pub(crate) fn moments(bins: Bins) -> impl Iterator<Item = i64> {
        let columns = (bins.len * columns_of_bar(bins)) as i128;
        let span = i128::from(bins.end()) - i128::from(bins.from);
        (0..=columns).map(move |column| {
            let at = i128::from(bins.from) + span * column / columns;
            i64::try_from(at).unwrap_or(bins.from)
        })
    }
}

const fn columns_of_bar(bins: Bins) -> usize {
    if bins.len >= COLUMNS { 1 } else { COLUMNS.div_ceil(bins.len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINS: Bins = Bins { from: 0, width: 100, len: 3 };

    #[test]
    fn tokens_are_counted_in_the_bar_of_their_time() {
        let mut series = Series::new(BINS);
        series.add(0, 1.0, Became::Admitted);
        series.add(99, 1.0, Became::Denied);
        series.add(100, 1.0, Became::Reserved);
        assert!(series.of_ones);
        series.add(299, 2.5, Became::DeniedElsewhere);
        assert!(!series.of_ones && series.calls == 4);
        assert_eq!(series.bars.iter().map(Bar::offered).collect::<Vec<_>>(), [2.0, 1.0, 2.5]);
        assert_eq!(series.bars[0], Bar { admitted: 1.0, denied: 1.0, ..Bar::default() });
    }

    #[test]
    fn thinning_a_line_keeps_its_extremes() {
        let bins = Bins { from: 0, width: 1_000_000, len: 300 };
        let mut series = Series::new(bins);
        for (at, value) in [(0, 5.0), (1, 9.0), (2, 7.0), (3, -2.0), (4, 1.0), (1_000_000, 3.0)] {
            series.balance(at, value);
        }
        assert_eq!(series.balances(), [(0, 5.0), (1, 9.0), (3, -2.0), (4, 1.0), (1_000_000, 3.0)]);
        for at in 0..1_000_000 {
            series.balance(2_000_000 + at, at as f64);
        }
        assert_eq!(series.balances().len(), 7);
    }

    #[test]
    fn balances_are_sampled_from_the_first_edge_to_the_last() {
        let moments: Vec<i64> = Series::moments(BINS).collect();
        assert_eq!((moments.len(), moments[0], moments[300]), (301, 0, 300));
        assert!(moments.is_sorted());
        let mut series = Series::new(BINS);
        moments.iter().for_each(|at| series.balance(*at, 1.0));
        assert_eq!(series.balances().last(), Some(&(300, 1.0)));
    }
}
