//! Counts the decisions of a replay by limit and key for a table, or prints each as JSON.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::iter;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;

use crate::study::bad_lines::UnreadableLine;
use crate::study::plot::SECOND;
use crate::study::replay::Timed;
use crate::text::{Column, WIDEST_NAME, format_micros, grouped, many, one_line, percent_of, shortened, shown};
use crate::{Result, json, output, text};
use pg_limiter::{Decision, InvalidCall, Op};

/// The requests of one key to one limit.
#[derive(Default)]
struct Row {
    requests: u64,
    admitted: u64,
    denied: u64,
    first_denied: Option<i64>,
    longest_run: u64,
    run: u64,
}

/// A limit's name and a key.
type Bucket = (Arc<str>, Arc<str>);

#[derive(Default)]
pub(super) struct Tally {
    rows: HashMap<Bucket, Row>,
    admitted: u64,
    /// Admitted requests that had to wait.
    reserved: u64,
    denied: u64,
    checks: u64,
    resets: u64,
    /// Calls that can never be allowed, by error code: their number and the first message.
    impossible: BTreeMap<&'static str, (u64, String)>,
}

impl Tally {
    pub(super) fn add<T>(&mut self, timed: &Timed<T>, decision: &Result<Decision, InvalidCall>) {
        match (timed.op, decision) {
            (_, Err(error)) => {
                self.impossible.entry(error.code()).or_insert_with(|| (0, error.to_string())).0 += 1;
            }
            (Op::Check, _) => self.checks += 1,
            (Op::Reset, _) => self.resets += 1,
            (Op::Release | Op::Renew, _) => {}
            (_, Ok(decision)) => {
                let is_denied = decision.is_denied();
                self.denied += u64::from(is_denied);
                self.admitted += u64::from(!is_denied);
                self.reserved += u64::from(!is_denied && decision.wait().is_some());
                for (item, state) in timed.call.items().iter().zip(decision.limits()) {
                    let bucket = (Arc::clone(&state.limit), item.key().as_str().into());
                    let row = self.rows.entry(bucket).or_default();
                    row.requests += 1;
                    // A limit neither admits nor denies a call that only another limit denies.
                    if state.denied {
                        row.denied += 1;
                        row.first_denied.get_or_insert(timed.at);
                        row.run += 1;
                        row.longest_run = row.longest_run.max(row.run);
                    } else if !is_denied {
                        row.admitted += 1;
                        row.run = 0;
                    }
                }
            }
        }
    }
}

const TOP: usize = 20;
const WIDEST_KEY: usize = 46;

/// `by`: the field that is the key of an access log; events have their limits and keys. `span`: the first and the last time.
pub(super) fn table(tally: &Tally, by: Option<&str>, span: Option<(i64, i64)>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rows: Vec<(&Bucket, &Row)> = tally.rows.iter().filter(|(_, row)| row.denied > 0).collect();
    rows.sort_by_key(|(bucket, row)| (Reverse(row.denied), *bucket));
    if rows.is_empty() {
        lines.push("No key would have been limited.".to_owned());
    } else {
        let top = &rows[..rows.len().min(TOP)];
        let keys = key_cells(top.iter().map(|((_, key), _)| &**key));
        let top: Vec<_> = top.iter().zip(keys).map(|(((limit, _), row), key)| (limit, key, *row)).collect();
        let key = shown(&by.unwrap_or("KEY").to_uppercase(), WIDEST_KEY);
        let columns: [Column<'_, (&Arc<str>, String, &Row)>; 8] = [
            // A table of an access log shows one limit.
            ("LIMIT", by.is_none(), |(limit, ..)| shown(limit, WIDEST_NAME)),
            (&key, true, |(_, key, _)| key.clone()),
            ("REQUESTS", true, |(.., row)| grouped(row.requests)),
            ("ADMITTED", true, |(.., row)| grouped(row.admitted)),
            ("DENIED", true, |(.., row)| grouped(row.denied)),
            ("% DENIED", true, |(.., row)| percent_of(row.denied as f64, row.requests as f64)),
            ("LONGEST RUN", true, |(.., row)| grouped(row.longest_run)),
            ("FIRST DENIED (UTC)", true, |(.., row)| row.first_denied.map(time).unwrap_or_default()),
        ];
        lines.extend(text::table(&columns, &top, if by.is_some() { &[0] } else { &[0, 1] }));
        let more = rows.len().saturating_sub(TOP) as u64;
        lines.extend((more > 0).then(|| format!("... and {} more that had denials", grouped(more))));
    }
    lines.push(String::new());
    lines.extend(totals(tally, rows.len() as u64));
    if let Some((first, last)) = span {
        let length = format_micros(last.saturating_sub(first) / SECOND * SECOND);
        lines.push(format!("from {} to {} UTC: {length}", time(first), time(last)));
    }
    lines
}

/// The keys for a column. Keys that would look alike if they were shortened are whole.
fn key_cells<'k>(keys: impl Iterator<Item = &'k str> + Clone) -> Vec<String> {
    let cell = |key: &str, width| match key {
        "" => "-".to_owned(),
        "-" => "\\u{2d}".to_owned(),
        _ => shown(key, width),
    };
    let is_alike =
        |key: &str| keys.clone().any(|other| other != key && cell(other, WIDEST_KEY) == cell(key, WIDEST_KEY));
    keys.clone().map(|key| cell(key, if is_alike(key) { usize::MAX } else { WIDEST_KEY })).collect()
}

fn totals(tally: &Tally, keys_denied: u64) -> Vec<String> {
    let (requests, keys) = (tally.admitted + tally.denied, tally.rows.len() as u64);
    let [admitted, denied] = [tally.admitted, tally.denied].map(grouped);
    let (all, share) = (many(requests, "request"), percent_of(tally.denied as f64, requests as f64));
    let mut lines = vec![format!("{all}: {admitted} admitted, {denied} denied ({share} %)")];
    let waited = || format!("{} of the admitted had to wait first", grouped(tally.reserved));
    lines.extend((tally.reserved > 0).then(waited));
    let share = percent_of(keys_denied as f64, keys as f64);
    lines.push(format!("{}: {} ever denied ({share} %)", many(keys, "key"), grouped(keys_denied)));
    if tally.checks + tally.resets > 0 {
        lines.push(format!("not counted above: {}, {}", many(tally.checks, "check"), many(tally.resets, "reset")));
    }
    for (code, (count, message)) in &tally.impossible {
        let message = shortened(&one_line(message), 300);
        lines.push(format!("{} impossible, not counted above: {code}: {message}", grouped(*count)));
    }
    lines
}

fn time(micros: i64) -> String {
    Timestamp::from_microsecond(micros).unwrap_or_default().strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Prints the decision on each line as JSON, in the order of the lines.
#[derive(Default)]
pub(super) struct Decisions {
    next: usize,
    waiting: BTreeMap<usize, String>,
}

impl Decisions {
    pub(super) fn add(&mut self, place: usize, op: Op, decision: &Result<Decision, InvalidCall>) {
        let text = match decision {
            // Whether the lease was still held.
            Ok(decision) if matches!(op, Op::Release | Op::Renew) => json::line(&json!({"ok": decision.is_allowed()})),
            Ok(decision) => json::line(&json::decision(decision)),
            Err(error) => json::impossible(error),
        };
        self.waiting.insert(place, text);
    }

    pub(super) fn add_bad(&mut self, line: &UnreadableLine) {
        let message = format!("line {}: {line}", line.number);
        self.waiting.insert(line.place, json::line(&json!({"error": "invalid_line", "message": message})));
    }

    pub(super) fn print(&mut self) -> Result<()> {
        let next = || self.waiting.remove(&self.next).inspect(|_| self.next += 1);
        output::lines(iter::from_fn(next))
    }
}
