//! The columns of the tables, and how rows are sorted by them.

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
    rank: fn(&T) -> Rank,
}

/// The value by which rows are sorted: two numbers, of which the first counts most, and a text.
type Rank = (f64, f64, String);

fn by_text(text: &str) -> Rank {
    (0.0, 0.0, text.to_owned())
}

const fn by_number(number: f64) -> Rank {
    (number, 0.0, String::new())
}

/// A column whose cells are sorted as texts.
const fn text<T>(heading: &'static str, cell: fn(&T, &Style, i64) -> String, rank: fn(&T) -> Rank) -> Column<T> {
    Column { heading, width: None, is_extra: false, is_descending: false, cell, rank }
}

const fn column<T>(
    (heading, width, is_descending): (&'static str, u16, bool),
    cell: fn(&T, &Style, i64) -> String,
    rank: fn(&T) -> Rank,
) -> Column<T> {
    Column { heading, width: Some(width), is_extra: false, is_descending, cell, rank }
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
        text("LIMIT", |limit, _, _| escaped(&limit.name), |limit| by_text(&limit.name)),
        column(
            ("KEYS", 11, true),
            |limit, _, _| cells::counted(limit.keys),
            |limit| by_number(limit.keys.number as f64),
        ),
        column(
            ("TAKEN/S", 9, true),
            |limit, _, _| cells::rate(limit.per_second),
            |limit| (limit.per_second, limit.per_minute, String::new()),
        ),
        column(
            ("LEAST LEFT", 11, false),
            |limit, _, _| cells::percent(least_left(limit)),
            |limit| by_number(or_full(least_left(limit))),
        ),
        column(
            ("LAST 10 MIN", 20, true),
            |limit, style, _| style.sparkline(&limit.taken, 20),
            |limit| by_number(limit.taken.iter().sum()),
        ),
    ];
    const SORTED_BY: usize = 2;

    fn id(&self) -> (String, String) {
        (self.name.clone(), String::new())
    }
}

impl Listed for KeyView {
    const COLUMNS: &'static [Column<Self>] = &[
        text("LIMIT", |key, _, _| escaped(&key.bucket.name), |key| by_text(&key.bucket.name)),
        text("KEY", |key, style, _| style.key_cell(&key.bucket.key), |key| by_text(&key.bucket.key)),
        column(
            ("TAKEN/S", 9, true),
            |key, _, _| cells::rate(key.per_second),
            |key| (key.per_second, key.per_minute, String::new()),
        ),
        column(
            ("LEFT", 17, false),
            |key, _, now| cells::left(key, now),
            |key| (or_full(key.left()), -(key.bucket.full_at as f64), String::new()),
        ),
        column(
            ("FULL IN", 10, true),
            |key, _, now| cells::full_in(&key.bucket, now),
            |key| by_number(key.bucket.full_at as f64),
        ),
        column(
            ("LAST 10 MIN", 20, true),
            |key: &Self, style, _| style.sparkline(&key.taken, 20),
            |key| by_number(key.taken.iter().sum()),
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
        text("QUEUE", |group, _, _| escaped(&group.queue), |group| by_text(&group.queue)),
        text("GROUP", |group, style, _| style.key_cell(&group.group), |group| by_text(&group.group)),
        column(
            ("SCHEDULED", 10, true),
            |group, _, _| cells::counted(group.scheduled),
            |group| by_number(group.scheduled.number as f64),
        ),
        column(
            ("AVAILABLE", 10, true),
            |group, _, _| cells::counted(group.available),
            |group| by_number(group.available.number as f64),
        ),
        column(
            ("NEXT START", 12, false),
            |group, _, now| cells::until(group.next_start, now),
            |group| by_number(group.next_start.map_or(f64::INFINITY, |at| at as f64)),
        ),
        column(
            ("LAG", 8, true),
            |group, _, _| group.lag.map_or_else(|| "-".to_owned(), cells::length),
            |group| by_number(group.lag.map_or(f64::NEG_INFINITY, |lag| lag as f64)),
        ),
        column(("WAITS FOR A SLOT OF", 24, false), waits_for, by_waits_for).extra(),
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

/// Groups that wait for nothing come first. No name contains a NUL.
fn by_waits_for(group: &GroupView) -> Rank {
    by_text(&group.waits_for.as_ref().map_or_else(String::new, |(limit, key)| format!("{limit}\0{key}")))
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
        let rank = T::COLUMNS[self.column % T::COLUMNS.len()].rank;
        rows.sort_by(|a, b| {
            let (first, second) = if self.is_descending { (rank(b), rank(a)) } else { (rank(a), rank(b)) };
            let order = first.0.total_cmp(&second.0).then(first.1.total_cmp(&second.1)).then(first.2.cmp(&second.2));
            order.then_with(|| a.id().cmp(&b.id()))
        });
    }
}
