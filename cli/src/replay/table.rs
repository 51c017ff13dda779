//! Prints the tally as a table.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use crate::length::format_micros;
use crate::replay::tally::{Row, Tally};
use crate::text::WIDEST_NAME;
use crate::text::aligned;
use crate::text::{grouped, one_line, percent, shortened, shown};

const SECOND: i64 = 1_000_000;
/// The most rows to print.
const TOP: usize = 20;
const WIDEST_KEY: usize = 46;

/// `by`: the field that is the key of an access log. `None` for events, which contain their limits and keys.
pub(super) fn table(tally: &Tally, by: Option<&str>) -> Vec<String> {
    let mut lines = Vec::new();
    let rows = tally.denied_rows();
    let top = || rows.iter().take(TOP);
    let keys = key_cells(top().map(|((_, key), _)| &**key));
    let mut cells: Vec<Vec<String>> = top().zip(keys).map(|(((limit, _), row), key)| cells(limit, key, row)).collect();
    if cells.is_empty() {
        lines.push("No key would have been limited.".to_owned());
    } else {
        let key = shown(&by.unwrap_or("KEY").to_uppercase(), WIDEST_KEY);
        let headings =
            ["LIMIT", &key, "REQUESTS", "ADMITTED", "DENIED", "% DENIED", "LONGEST RUN", "FIRST DENIED (UTC)"];
        cells.insert(0, headings.map(str::to_owned).into());
        if by.is_some() {
            // A table of an access log shows one limit.
            cells.iter_mut().for_each(|row| drop(row.remove(0)));
        }
        let texts: &[usize] = if by.is_some() { &[0] } else { &[0, 1] };
        lines.extend(aligned(&cells, texts));
        if rows.len() > TOP {
            lines.push(format!("... and {} more that had denials", grouped((rows.len() - TOP) as u64)));
        }
    }
    lines.push(String::new());
    lines.extend(totals(tally, rows.len()));
    lines
}

/// The keys for a column. Keys that would look alike if they were shortened are whole.
fn key_cells<'k>(keys: impl Iterator<Item = &'k str> + Clone) -> Vec<String> {
    let cell = |key: &str, width| match key {
        "" => "-".to_owned(),
        "-" => "\\u{2d}".to_owned(),
        _ => shown(key, width),
    };
    let mut keys_of: HashMap<String, HashSet<&str>> = HashMap::new();
    for key in keys.clone() {
        keys_of.entry(cell(key, WIDEST_KEY)).or_default().insert(key);
    }
    let is_clear = |text: &String| keys_of.get(text).is_some_and(|keys| keys.len() == 1);
    keys.map(|key| Some(cell(key, WIDEST_KEY)).filter(is_clear).unwrap_or_else(|| cell(key, usize::MAX))).collect()
}

fn cells(limit: &str, key: String, row: &Row) -> Vec<String> {
    vec![
        shown(limit, WIDEST_NAME),
        key,
        grouped(row.requests),
        grouped(row.admitted),
        grouped(row.denied),
        percent(row.denied, row.requests),
        grouped(row.longest_run),
        row.first_denied.map(time).unwrap_or_default(),
    ]
}

fn totals(tally: &Tally, keys_denied: usize) -> Vec<String> {
    let mut lines = vec![format!(
        "{} requests: {} admitted, {} denied ({} %)",
        grouped(tally.requests),
        grouped(tally.admitted),
        grouped(tally.denied),
        percent(tally.denied, tally.requests)
    )];
    if tally.reserved > 0 {
        lines.push(format!("{} of the admitted had to wait first", grouped(tally.reserved)));
    }
    let keys = tally.keys() as u64;
    let denied = keys_denied as u64;
    lines.push(format!("{} keys: {} ever denied ({} %)", grouped(keys), grouped(denied), percent(denied, keys)));
    if tally.checks + tally.resets > 0 {
        lines.push(format!("not counted above: {} checks, {} resets", grouped(tally.checks), grouped(tally.resets)));
    }
    for (code, (count, message)) in &tally.impossible {
        lines.push(format!(
            "{} impossible, not counted above: {code}: {}",
            grouped(*count),
            shortened(&one_line(message), 300)
        ));
    }
    if let Some((first, last)) = tally.span {
        let length = format_micros(last.saturating_sub(first) / SECOND * SECOND);
        lines.push(format!("from {} to {} UTC: {length}", time(first), time(last)));
    }
    lines
}

fn time(micros: i64) -> String {
    Timestamp::from_microsecond(micros)
        .map(|time| time.strftime("%Y-%m-%d %H:%M:%S").to_string())
        .unwrap_or_else(|_| micros.to_string())
}
