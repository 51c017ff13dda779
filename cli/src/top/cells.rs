//! Texts for the cells of tables.

use std::borrow::Cow;
use std::time::Duration;

use ratatui::symbols::border;

use crate::error::CliError;
use crate::key_secret::HiddenKeys;
use crate::live::{BucketView, Counted, How, KeyView, Meaning};
use crate::text::{age, grouped, shown, tokens};

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
