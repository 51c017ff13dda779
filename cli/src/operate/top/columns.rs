//! The columns of the tables, the texts in their cells, and how rows are sorted by them.

use std::time::Duration;

use ratatui::layout::Constraint;

use crate::operate::live::{BucketView, Counted, GroupView, KeyView, LimitView, Meaning};
use crate::text::{age, escaped, grouped, shortened, shown, tokens};
use crate::{Keys, Result};

pub(super) struct Column<T> {
    pub(super) heading: &'static str,
    /// 0 for names, which share the rest of the line.
    pub(super) width: u16,
    pub(super) is_extra: bool,
    is_descending: bool,
    pub(super) cell: fn(&T, &Style, i64) -> Cell,
}

impl<T> Column<T> {
    const fn new(heading: &'static str, width: u16, is_descending: bool, cell: fn(&T, &Style, i64) -> Cell) -> Self {
        Self { heading, width, is_extra: false, is_descending, cell }
    }

    pub(super) fn constraint(&self) -> Constraint {
        if self.width == 0 { Constraint::Fill(1) } else { Constraint::Length(self.width) }
    }

    /// Texts are aligned to the left, numbers and times to the right.
    pub(super) fn is_text(&self) -> bool {
        self.width == 0 || self.width > 17
    }
}

/// A text, and the value by which rows are sorted: two numbers, of which the first counts most, and a text.
pub(super) type Cell = (String, (f64, f64, String));

fn text(shown: String, by: &str) -> Cell {
    (shown, (0.0, 0.0, by.to_owned()))
}

const fn number(shown: String, by: f64) -> Cell {
    (shown, (by, 0.0, String::new()))
}

/// What identifies a row from one round to the next.
pub(super) type Id = (String, String);

pub(super) trait Listed: Sized + 'static {
    const COLUMNS: &'static [Column<Self>];

    fn id(&self) -> Id;
}

impl Listed for LimitView {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("LIMIT", 0, false, |limit, _, _| name(&limit.name)),
        Column::new("KEYS", 11, true, |limit, _, _| count(limit.keys)),
        Column::new("TAKEN/S", 9, true, |limit, _, _| rate(limit.per_second, limit.per_minute)),
        Column::new("LEAST LEFT", 11, false, |limit, _, _| least_left(limit)),
        Column::new("LAST 10 MIN", 20, true, |limit, style, _| lately(&limit.taken, style)),
    ];

    fn id(&self) -> Id {
        (self.name.clone(), String::new())
    }
}

impl Listed for KeyView {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("LIMIT", 0, false, |key, _, _| name(&key.bucket.name)),
        Column::new("KEY", 0, false, |key, style, _| text(style.key_cell(&key.bucket.key), &key.bucket.key)),
        Column::new("TAKEN/S", 9, true, |key, _, _| rate(key.per_second, key.per_minute)),
        Column::new("LEFT", 17, false, |key, _, now| left(key, now)),
        Column::new("FULL IN", 10, true, |key, _, now| full_in(&key.bucket, now)),
        Column { is_extra: true, ..Column::new("LAST 10 MIN", 20, true, |key, style, _| lately(&key.taken, style)) },
    ];

    fn id(&self) -> Id {
        (self.bucket.name.clone(), self.bucket.key.clone())
    }
}

impl Listed for GroupView {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("QUEUE", 0, false, |group, _, _| name(&group.queue)),
        Column::new("GROUP", 0, false, |group, style, _| text(style.key_cell(&group.group), &group.group)),
        Column::new("SCHEDULED", 10, true, |group, _, _| count(group.scheduled)),
        Column::new("AVAILABLE", 10, true, |group, _, _| count(group.available)),
        Column::new("NEXT START", 12, false, |group, _, now| next_start(group.next_start, now)),
        Column::new("LAG", 8, true, |group, _, _| lag(group.lag)),
        Column { is_extra: true, ..Column::new("WAITS FOR A SLOT OF", 24, false, slot) },
    ];

    fn id(&self) -> Id {
        (self.queue.clone(), self.group.clone())
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct Sort {
    /// After the last column comes the first.
    pub(super) column: isize,
    pub(super) is_reversed: bool,
}

impl Sort {
    /// The place of the column, and whether its largest value comes first.
    pub(super) fn of<T: Listed>(self) -> (usize, bool) {
        let place = self.column.rem_euclid(T::COLUMNS.len() as isize) as usize;
        (place, T::COLUMNS[place].is_descending != self.is_reversed)
    }

    pub(super) fn sorted<T: Listed>(self, rows: Vec<T>, style: &Style) -> Vec<T> {
        let (place, is_descending) = self.of::<T>();
        let rank = |row: &T| (T::COLUMNS[place].cell)(row, style, 0).1;
        let mut ranked: Vec<_> = rows.into_iter().map(|row| (rank(&row), row)).collect();
        ranked.sort_by(|(a, first), (b, second)| {
            let order = a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then_with(|| a.2.cmp(&b.2));
            let order = if is_descending { order.reverse() } else { order };
            order.then_with(|| first.id().cmp(&second.id()))
        });
        ranked.into_iter().map(|(_, row)| row).collect()
    }
}

/// By height: the first is that of nothing.
const UNICODE: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '%', '#'];

#[derive(Default)]
pub(super) struct Style {
    pub(super) keys: Keys,
    is_unicode: bool,
}

impl Style {
    pub(super) fn new(hide_keys: bool, is_unicode: bool) -> Result<Self> {
        Ok(Self { keys: Keys::new(hide_keys)?, is_unicode })
    }

    pub(super) fn of_locale(hide_keys: bool) -> Result<Self> {
        let set = ["LC_ALL", "LC_CTYPE", "LANG"].iter().filter_map(std::env::var_os).find(|value| !value.is_empty());
        let name = set.unwrap_or_default().to_string_lossy().to_uppercase();
        Self::new(hide_keys, name.contains("UTF-8") || name.contains("UTF8"))
    }

    pub(super) fn key_cell(&self, key: &str) -> String {
        if key.is_empty() {
            return "(all callers)".to_owned();
        }
        let text = shown(&self.keys.shown(key), usize::MAX);
        if self.is_unicode { text } else { text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect() }
    }

    pub(super) fn cut(&self, text: String, width: usize) -> String {
        let cut = shortened(&text, width);
        if self.is_unicode { cut } else { cut.replace('…', ">") }
    }

    /// Amounts, oldest first, as columns of different heights. An amount of 0 is a blank.
    pub(super) fn sparkline(&self, amounts: &[f64], width: usize) -> String {
        let per_column = amounts.len().div_ceil(width.max(1)).max(1);
        let sums: Vec<f64> = amounts.chunks(per_column).map(|chunk| chunk.iter().sum()).collect();
        let most = sums.iter().copied().fold(0.0, f64::max);
        let heights = if self.is_unicode { UNICODE } else { ASCII };
        sums.iter().map(|sum| heights[((sum / most * 8.0).ceil() as usize).min(8)]).collect()
    }

    pub(super) const fn mark(&self, is_descending: bool) -> &'static str {
        let [up, down] = if self.is_unicode { ["▲", "▼"] } else { ["^", "v"] };
        if is_descending { down } else { up }
    }
}

fn name(name: &str) -> Cell {
    text(escaped(name), name)
}

fn count(count: Counted) -> Cell {
    number(format!("{count:#}"), count.number as f64)
}

fn lately(taken: &[f64], style: &Style) -> Cell {
    number(style.sparkline(taken, 20), taken.iter().sum())
}

/// Tokens per second: `0`, `0.05`, `12.5`, `1,234`.
fn rate(per_second: f64, per_minute: f64) -> Cell {
    let text = match per_second {
        rate if rate <= 0.0 => "0".to_owned(),
        rate if rate < 0.01 => "<0.01".to_owned(),
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => grouped(rate.round() as u64),
    };
    (text, (per_second, per_minute, String::new()))
}

fn least_left(limit: &LimitView) -> Cell {
    let least = limit.emptiest.iter().chain(&limit.busiest).filter_map(KeyView::left).reduce(f64::min);
    let Some(least) = least else { return number("-".to_owned(), f64::INFINITY) };
    number(format!("{:.0} %", (least * 100.0).floor()), least)
}

/// The balance of a bucket: `3 of 10`, or the stored value if the capacity is unknown.
fn left(key: &KeyView, now: i64) -> Cell {
    let stored = || tokens((key.bucket.stored * 10.0).round() / 10.0);
    let text = match (key.balance, key.capacity, key.bucket.meaning) {
        (_, _, Meaning::Blocked) => if key.bucket.is_full(now) { "open" } else { "blocked" }.to_owned(),
        (Some(left), Some(capacity), _) => format!("{} of {}", tokens((left * 10.0).floor() / 10.0), tokens(capacity)),
        (_, _, Meaning::TokensLeft) => format!("{} stored", stored()),
        (_, _, Meaning::TokensTaken) => format!("{} taken", stored()),
        (_, _, Meaning::SlotsInUse) => format!("{} in use", stored()),
    };
    (text, (key.left().unwrap_or(f64::INFINITY), -(key.bucket.full_at as f64), String::new()))
}

fn full_in(bucket: &BucketView, now: i64) -> Cell {
    let text = if bucket.is_full(now) { "full".to_owned() } else { length(bucket.full_at - now) };
    number(text, bucket.full_at as f64)
}

fn next_start(at: Option<i64>, now: i64) -> Cell {
    let text = match at {
        None => "paused".to_owned(),
        Some(at) if at <= now => "now".to_owned(),
        Some(at) => format!("in {}", length(at - now)),
    };
    number(text, at.map_or(f64::INFINITY, |at| at as f64))
}

fn lag(lag: Option<i64>) -> Cell {
    number(lag.map_or_else(|| "-".to_owned(), length), lag.map_or(f64::NEG_INFINITY, |lag| lag as f64))
}

/// Groups that wait for nothing come first. No name contains a NUL.
fn slot(group: &GroupView, style: &Style, _: i64) -> Cell {
    let Some((limit, key)) = &group.waits_for else { return text("-".to_owned(), "") };
    text(format!("{} {}", escaped(limit), style.key_cell(key)), &format!("{limit}\0{key}"))
}

/// A length in microseconds, rounded up to seconds.
fn length(micros: i64) -> String {
    age(Duration::from_secs(micros.unsigned_abs().div_ceil(1_000_000)))
}
