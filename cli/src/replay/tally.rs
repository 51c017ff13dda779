//! Counts the decisions of a replay by limit and key.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::replay::Timed;
use pg_limiter::Op;
use pg_limiter::{Decision, InvalidCall};

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
