//! The columns of the tables, and how rows are sorted by them.

use std::cmp::Ordering;

use crate::live::{GroupView, KeyView, LimitView};
use crate::text::escaped;
use crate::top::cells::{self, Style};

/// A column of a table with rows of the type `T`.
pub(super) struct Column<T> {
    pub(super) heading: &'static str,
    /// The width, or `None` for names, which share the rest of the line.
    pub(super) width: Option<u16>,
    /// Whether it is shown only on wide screens.
    pub(super) is_extra: bool,
    /// Whether sorting by it puts the largest first.
    pub(super) is_descending: bool,
    pub(super) cell: fn(&T, &Style, i64) -> String,
    pub(super) compare: fn(&T, &T) -> Ordering,
}

const fn column<T>(
    heading: &'static str,
    width: Option<u16>,
    is_descending: bool,
    cell: fn(&T, &Style, i64) -> String,
    compare: fn(&T, &T) -> Ordering,
) -> Column<T> {
    Column { heading, width, is_extra: false, is_descending, cell, compare }
}

impl<T> Column<T> {
    const fn extra(mut self) -> Self {
        self.is_extra = true;
        self
    }
}

/// The columns of a table of this size, and the one by which it is sorted first.
pub(super) trait Listed: Sized + 'static {
    const COLUMNS: &'static [Column<Self>];
    const SORTED_BY: usize;
    /// Identifies the row from one round to the next.
    fn id(&self) -> (String, String);
}

/// The smallest fraction that a listed key has left.
pub(super) fn least_left(limit: &LimitView) -> Option<f64> {
    limit.emptiest.iter().chain(&limit.busiest).filter_map(KeyView::left).reduce(f64::min)
}

fn or_full(left: Option<f64>) -> f64 {
    left.unwrap_or(f64::INFINITY)
}

impl Listed for LimitView {
    const COLUMNS: &'static [Column<Self>] = &[
        column("LIMIT", None, false, |limit, _, _| escaped(&limit.name), |a, b| a.name.cmp(&b.name)),
        column(
            "KEYS",
            Some(11),
            true,
            |limit, _, _| cells::counted(limit.keys),
            |a, b| a.keys.number.cmp(&b.keys.number),
        ),
        column(
            "TAKEN/S",
            Some(9),
            true,
            |limit, _, _| cells::rate(limit.per_second),
            |a, b| a.per_second.total_cmp(&b.per_second).then(a.per_minute.total_cmp(&b.per_minute)),
        ),
        column(
            "LEAST LEFT",
            Some(11),
            false,
            |limit, _, _| cells::percent(least_left(limit)),
            |a, b| or_full(least_left(a)).total_cmp(&or_full(least_left(b))),
        ),
        column(
            "LAST 10 MIN",
            Some(20),
            true,
            |limit, style, _| style.sparkline(&limit.taken, 20),
            |a, b| a.taken.iter().sum::<f64>().total_cmp(&b.taken.iter().sum()),
        ),
    ];
    const SORTED_BY: usize = 2;

    fn id(&self) -> (String, String) {
        (self.name.clone(), String::new())
    }
}

impl Listed for KeyView {
    const COLUMNS: &'static [Column<Self>] = &[
        column("LIMIT", None, false, |key, _, _| escaped(&key.bucket.name), |a, b| a.bucket.name.cmp(&b.bucket.name)),
        column(
            "KEY",
            None,
            false,
            |key, style, _| style.key_cell(&key.bucket.key),
            |a, b| a.bucket.key.cmp(&b.bucket.key),
        ),
        column(
            "TAKEN/S",
            Some(9),
            true,
            |key, _, _| cells::rate(key.per_second),
            |a, b| a.per_second.total_cmp(&b.per_second).then(a.per_minute.total_cmp(&b.per_minute)),
        ),
        column(
            "LEFT",
            Some(17),
            false,
            |key, _, now| cells::left(key, now),
            |a, b| or_full(a.left()).total_cmp(&or_full(b.left())).then(b.bucket.full_at.cmp(&a.bucket.full_at)),
        ),
        column(
            "FULL IN",
            Some(10),
            true,
            |key, _, now| cells::full_in(&key.bucket, now),
            |a, b| a.bucket.full_at.cmp(&b.bucket.full_at),
        ),
        column(
            "LAST 10 MIN",
            Some(20),
            true,
            |key: &Self, style, _| style.sparkline(&key.taken, 20),
            |a, b| a.taken.iter().sum::<f64>().total_cmp(&b.taken.iter().sum()),
        )
        .extra(),
    ];
    const SORTED_BY: usize = 2;

    fn id(&self) -> (String, String) {
        (self.bucket.name.clone(), self.bucket.key.clone())
    }
}

impl Listed for GroupView {
    const COLUMNS: &'static [Column<Self>] = &[
        column("QUEUE", None, false, |group, _, _| escaped(&group.queue), |a, b| a.queue.cmp(&b.queue)),
        column("GROUP", None, false, |group, style, _| style.key_cell(&group.group), |a, b| a.group.cmp(&b.group)),
        column(
            "SCHEDULED",
            Some(10),
            true,
            |group, _, _| cells::counted(group.scheduled),
            |a, b| a.scheduled.number.cmp(&b.scheduled.number),
        ),
        column(
            "AVAILABLE",
            Some(10),
            true,
            |group, _, _| cells::counted(group.available),
            |a, b| a.available.number.cmp(&b.available.number),
        ),
        column(
            "NEXT START",
            Some(12),
            false,
            |group, _, now| cells::until(group.next_start, now),
            |a, b| a.next_start.unwrap_or(i64::MAX).cmp(&b.next_start.unwrap_or(i64::MAX)),
        ),
        column(
            "LAG",
            Some(8),
            true,
            |group, _, _| group.lag.map_or_else(|| "-".to_owned(), cells::length),
            |a, b| a.lag.cmp(&b.lag),
        ),
        column("WAITS FOR A SLOT OF", Some(24), false, waits_for, |a, b| a.waits_for.cmp(&b.waits_for)).extra(),
    ];
    const SORTED_BY: usize = 5;

    fn id(&self) -> (String, String) {
        (self.queue.clone(), self.group.clone())
    }
}

fn waits_for(group: &GroupView, style: &Style, _: i64) -> String {
    let waits = |(limit, key): &(String, String)| format!("{} {}", escaped(limit), style.key_cell(key));
    group.waits_for.as_ref().map_or_else(|| "-".to_owned(), waits)
}

/// The column by which a table is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_descending: bool,
}

impl Sort {
    pub(super) fn by<T: Listed>(column: usize) -> Self {
        let column = column % T::COLUMNS.len();
        Self { column, is_descending: T::COLUMNS[column].is_descending }
    }

    pub(super) fn sort<T: Listed>(self, rows: &mut [T]) {
        let compare = T::COLUMNS[self.column % T::COLUMNS.len()].compare;
        rows.sort_by(|a, b| {
            let order = if self.is_descending { compare(b, a) } else { compare(a, b) };
            order.then_with(|| a.id().cmp(&b.id()))
        });
    }
}
