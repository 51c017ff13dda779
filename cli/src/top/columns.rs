//! The columns of the tables, the texts in their cells, and how rows are sorted by them.

use std::borrow::Cow;
use std::time::Duration;

use ratatui::symbols::border;

use crate::error::CliError;
use crate::key_secret::HiddenKeys;
use crate::live::{BucketView, Counted, GroupView, How, KeyView, LimitView, Meaning};
use crate::text::{age, escaped, grouped, shown, tokens};

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

/// A column that is sorted as text.
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
        column(("KEYS", 11, true), |limit, _, _| counted(limit.keys), |limit| by_number(limit.keys.number as f64)),
        column(
            ("TAKEN/S", 9, true),
            |limit, _, _| rate(limit.per_second),
            |limit| (limit.per_second, limit.per_minute, String::new()),
        ),
        column(
            ("LEAST LEFT", 11, false),
            |limit, _, _| percent(least_left(limit)),
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
            |key, _, _| rate(key.per_second),
            |key| (key.per_second, key.per_minute, String::new()),
        ),
        column(
            ("LEFT", 17, false),
            |key, _, now| left(key, now),
            |key| (or_full(key.left()), -(key.bucket.full_at as f64), String::new()),
        ),
        column(
            ("FULL IN", 10, true),
            |key, _, now| full_in(&key.bucket, now),
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
            |group, _, _| counted(group.scheduled),
            |group| by_number(group.scheduled.number as f64),
        ),
        column(
            ("AVAILABLE", 10, true),
            |group, _, _| counted(group.available),
            |group| by_number(group.available.number as f64),
        ),
        column(
            ("NEXT START", 12, false),
            |group, _, now| until(group.next_start, now),
            |group| by_number(group.next_start.map_or(f64::INFINITY, |at| at as f64)),
        ),
        column(
            ("LAG", 8, true),
            |group, _, _| group.lag.map_or_else(|| "-".to_owned(), length),
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

const UNICODE: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 8] = ['.', ':', '-', '=', '+', '*', '%', '#'];

const ASCII_BORDER: border::Set<'static> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// How texts are written.
#[derive(Clone, Debug)]
pub(super) struct Style {
    hidden: Option<HiddenKeys>,
    is_unicode: bool,
}

impl Style {
    pub(super) fn new(hide_keys: bool, is_unicode: bool) -> Result<Self, CliError> {
        Ok(Self { hidden: hide_keys.then(HiddenKeys::new).transpose()?, is_unicode })
    }

    /// Unicode, if the locale has it.
    pub(super) fn of_locale(hide_keys: bool) -> Result<Self, CliError> {
        let set = ["LC_ALL", "LC_CTYPE", "LANG"].iter().filter_map(std::env::var_os).find(|value| !value.is_empty());
        let name = set.unwrap_or_default().to_string_lossy().to_uppercase();
        Self::new(hide_keys, name.contains("UTF-8") || name.contains("UTF8"))
    }

    /// The key, or a short hash of it.
    pub(super) fn key<'a>(&self, key: &'a str) -> Cow<'a, str> {
        self.hidden.as_ref().map_or_else(|| key.into(), |hidden| hidden.hash(key).into())
    }

    /// A key for a cell.
    pub(super) fn key_cell(&self, key: &str) -> String {
        if key.is_empty() {
            return "(all callers)".to_owned();
        }
        let text = shown(&self.key(key), usize::MAX);
        if self.is_unicode { text } else { text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect() }
    }

    pub(super) const fn border(&self) -> border::Set<'static> {
        if self.is_unicode { border::PLAIN } else { ASCII_BORDER }
    }

    /// Amounts, oldest first, as columns of different heights. An amount of 0 is a blank.
    pub(super) fn sparkline(&self, amounts: &[f64], width: usize) -> String {
        let per_column = amounts.len().div_ceil(width.max(1)).max(1);
        let sums: Vec<f64> = amounts.chunks(per_column).map(|chunk| chunk.iter().sum()).collect();
        let most = sums.iter().copied().fold(0.0, f64::max);
        let heights = if self.is_unicode { UNICODE } else { ASCII };
        let column = |sum: &f64| {
            let height = (sum / most * 8.0).ceil() as usize;
            if most > 0.0 && height > 0 { heights[height.min(8) - 1] } else { ' ' }
        };
        sums.iter().map(column).collect()
    }

    pub(super) const fn mark(&self, is_descending: bool) -> &'static str {
        match (self.is_unicode, is_descending) {
            (true, true) => "▼",
            (true, false) => "▲",
            (false, true) => "v",
            (false, false) => "^",
        }
    }
}

/// `1,234`, `~1,234` for an estimate, `1,234+` for a bound.
pub(super) fn counted(counted: Counted) -> String {
    let number = grouped(counted.number);
    match counted.how {
        How::Exact => number,
        How::Estimated => format!("~{number}"),
        How::AtLeast => format!("{number}+"),
    }
}

/// Tokens per second: `0`, `0.05`, `12.5`, `1,234`.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate <= 0.0 => "0".to_owned(),
        rate if rate < 0.01 => "<0.01".to_owned(),
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => grouped(rate.round() as u64),
    }
}

/// The balance of a bucket: `3 of 10`, or the stored value if the capacity is unknown.
pub(super) fn left(key: &KeyView, now: i64) -> String {
    let stored = || tokens((key.bucket.stored * 10.0).round() / 10.0);
    match (key.balance, key.capacity, key.bucket.meaning) {
        (_, _, Meaning::Blocked) => if key.bucket.is_full(now) { "open" } else { "blocked" }.to_owned(),
        (Some(balance), Some(capacity), _) => {
            format!("{} of {}", tokens((balance * 10.0).floor() / 10.0), tokens(capacity))
        }
        (_, _, Meaning::TokensLeft) => format!("{} stored", stored()),
        (_, _, Meaning::TokensTaken) => format!("{} taken", stored()),
        (_, _, Meaning::SlotsInUse) => format!("{} in use", stored()),
    }
}

/// The time until the bucket is full, or the block ends.
pub(super) fn full_in(bucket: &BucketView, now: i64) -> String {
    if bucket.is_full(now) { "full".to_owned() } else { length(bucket.full_at - now) }
}

/// `now`, or the time until then.
pub(super) fn until(at: Option<i64>, now: i64) -> String {
    match at {
        None => "-".to_owned(),
        Some(at) if at <= now => "now".to_owned(),
        Some(at) => format!("in {}", length(at - now)),
    }
}

/// A length in microseconds, rounded up to seconds.
pub(super) fn length(micros: i64) -> String {
    age(Duration::from_secs(micros.unsigned_abs().div_ceil(1_000_000)))
}

/// The part of a bucket that is left, in percent.
pub(super) fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.0} %", (part * 100.0).floor()))
}
