//! The panel of one limit.

use std::sync::Arc;

use crate::plot::bins::Bins;
use crate::plot::series::{Became, Series};
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

    /// The points of the balance line. The balance of a fixed or calendar window, and the free slots, stay constant between
    /// them.
    pub(crate) fn balance_line(&self) -> Vec<(i64, f64)> {
        let points = self.series.balances();
        if !matches!(self.limit.kind(), Kind::FixedWindow | Kind::CalendarWindow | Kind::Concurrency) {
            return points;
        }
        let mut steps = Vec::with_capacity(2 * points.len());
        for (at, value) in points {
            steps.extend(steps.last().map(|(_, before): &(i64, f64)| (at, *before)));
            steps.push((at, value));
        }
        steps
    }
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
