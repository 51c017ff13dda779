//! Counts the decisions of a replay by limit and key for a table, or prints each as JSON.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::error::CliError;
use crate::lines::BadLine;
use crate::replay::Timed;
use crate::text::{WIDEST_NAME, aligned, format_micros, grouped, one_line, percent, shortened, shown};
use crate::{json, output};
use pg_limiter::{Decision, InvalidCall, Op};

/// The requests of one key to one limit.
#[derive(Default)]
pub(super) struct Row {
    pub(super) requests: u64,
    pub(super) admitted: u64,
    pub(super) denied: u64,
    pub(super) first_denied: Option<i64>,
    /// The most denials in a row.
    pub(super) longest_run: u64,
    run: u64,
}

/// A limit's name and a key.
pub(super) type Bucket = (Arc<str>, Arc<str>);

#[derive(Default)]
pub(super) struct Tally {
    rows: HashMap<Bucket, Row>,
    pub(super) requests: u64,
    pub(super) admitted: u64,
    /// Admitted requests that had to wait.
    pub(super) reserved: u64,
    pub(super) denied: u64,
    pub(super) checks: u64,
    pub(super) resets: u64,
    /// Calls that can never be allowed, by error code: their number and the first message.
    pub(super) impossible: BTreeMap<&'static str, (u64, String)>,
    /// The first and the last time.
    pub(super) span: Option<(i64, i64)>,
}

impl Tally {
    pub(super) fn add<T>(&mut self, timed: &Timed<T>, decision: &Result<Decision, InvalidCall>) {
        let first = self.span.map_or(timed.at, |(first, _)| first);
        self.span = Some((first, timed.at));
        let decision = match decision {
            Ok(decision) => decision,
            Err(error) => {
                self.impossible.entry(error.code()).or_insert_with(|| (0, error.to_string())).0 += 1;
                return;
            }
        };
        match timed.op {
            Op::Check => self.checks += 1,
            Op::Reset => self.resets += 1,
            Op::Release | Op::Renew => {}
            _ => {
                self.requests += 1;
                match (decision.is_denied(), decision.wait()) {
                    (true, _) => self.denied += 1,
                    (false, wait) => {
                        self.admitted += 1;
                        self.reserved += u64::from(wait.is_some());
                    }
                }
                for (item, state) in timed.call.items().iter().zip(decision.limits()) {
                    let bucket = (Arc::clone(&state.limit), item.key().as_str().into());
                    self.rows.entry(bucket).or_default().add(timed.at, decision.is_denied(), state.denied);
                }
            }
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.rows.len()
    }

    /// The buckets with denials, most denials first.
    pub(super) fn denied_rows(&self) -> Vec<(&Bucket, &Row)> {
        let mut rows: Vec<(&Bucket, &Row)> = self.rows.iter().filter(|(_, row)| row.denied > 0).collect();
        rows.sort_by(|(a, x), (b, y)| y.denied.cmp(&x.denied).then_with(|| a.cmp(b)));
        rows
    }
}

impl Row {
    /// Counts a call. If only another limit denied it, this limit neither admitted nor denied it.
    fn add(&mut self, at: i64, denied: bool, refused: bool) {
        self.requests += 1;
        if refused {
            self.denied += 1;
            self.first_denied.get_or_insert(at);
            self.run += 1;
            self.longest_run = self.longest_run.max(self.run);
        } else if !denied {
            self.admitted += 1;
            self.run = 0;
        }
    }
}

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

/// Prints the decision on each line as JSON, in the order of the lines.
#[derive(Default)]
pub(super) struct Decisions {
    /// The next line to print.
    next: usize,
    /// Decisions on lines after that one.
    waiting: BTreeMap<usize, String>,
}

impl Decisions {
    /// Adds the decision on a line.
    pub(super) fn add(&mut self, place: usize, op: Op, decision: &Result<Decision, InvalidCall>) {
        let text = match decision {
            Ok(decision) if matches!(op, Op::Release | Op::Renew) => json::was_held(decision),
            Ok(decision) => json::decision(decision),
            Err(error) => json::impossible(error),
        };
        self.waiting.insert(place, text);
    }

    /// Adds a line that could not be read.
    pub(super) fn add_bad(&mut self, line: &BadLine) {
        let message = format!("line {}: {}", line.number, line.reason);
        self.waiting.insert(line.place, json::line(&serde_json::json!({"error": "invalid_line", "message": message})));
    }

    /// Prints the lines that follow the last one.
    pub(super) fn print(&mut self) -> Result<(), CliError> {
        let mut lines = Vec::new();
        while let Some(text) = self.waiting.remove(&self.next) {
            lines.push(text);
            self.next += 1;
        }
        if lines.is_empty() { Ok(()) } else { output::lines(lines) }
    }
}
