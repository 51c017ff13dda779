//! Plays the calls to one limit: the database decides each of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use indicatif::ProgressBar;

use crate::error::CliError;
use crate::plot::{Became, Panel};
use crate::replay::{CHUNK, Sandbox, Timed, decide_all};
use crate::simulate::outcome::Outcome;
use crate::simulate::traffic::MOST_CALLS;
use crate::text::grouped;
use pg_limiter::Op;
use pg_limiter::{Call, Item, Limits};

/// A question to the database. At the same time, the first variant goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The balance.
    Balance,
    /// The call with this index in [`Play::times`].
    Call(usize),
}

pub(super) struct Play<'a> {
    pub(super) name: &'a Arc<str>,
    pub(super) key: &'a str,
    pub(super) count: f64,
    pub(super) leave: f64,
    pub(super) reserve: bool,
    /// Whether a denied call is retried.
    pub(super) retry: bool,
    /// The time of each call.
    pub(super) times: &'a [i64],
    /// The end of the simulation: no retries from then on.
    pub(super) end: i64,
}

impl Play<'_> {
    pub(super) fn call(&self) -> Call {
        let call = Call::from(Item::new(&**self.name, self.key).count(self.count).leave(self.leave));
        if self.reserve { call.reserve() } else { call }
    }

    pub(super) async fn run(
        &self,
        limits: &Limits,
        sandbox: &mut Sandbox,
        panel: &mut Panel,
        bar: &ProgressBar,
    ) -> Result<Outcome, CliError> {
        let mut outcome = Outcome::of(self.times.len());
        let calls = self.times.iter().enumerate().map(|(nth, at)| Reverse((*at, Step::Call(nth))));
        let mut asked: BinaryHeap<_> = panel.moments().map(|at| Reverse((at, Step::Balance))).chain(calls).collect();
        loop {
            let chunk = self.next(&mut asked);
            if chunk.is_empty() {
                return Ok(outcome);
            }
            let mut impossible = None;
            decide_all(chunk, limits, sandbox, |timed, decision| {
                let (decision, nth) = match (decision, timed.tag) {
                    (Ok(decision), Step::Call(nth)) => (decision, nth),
                    (Ok(decision), Step::Balance) => return panel.series.balance(timed.at, decision.remaining()),
                    (Err(error), _) => return impossible = Some(error),
                };
                bar.inc(1);
                let became = Became::of(&decision, decision.is_denied());
                panel.add(timed.at, self.count, became, decision.remaining());
                let wait = decision.retry_after().or(decision.wait());
                if became != Became::Denied {
                    outcome.admit(timed.at, self.times[nth], self.count, wait);
                } else if self.retry {
                    outcome.deny(None);
                    let wait = wait.and_then(|wait| i64::try_from(wait.as_micros()).ok()).unwrap_or(i64::MAX);
                    // Retrying after a wait of 0 would loop forever.
                    let again = timed.at.saturating_add(wait.max(1));
                    if again < self.end {
                        asked.push(Reverse((again, Step::Call(nth))));
                    }
                } else {
                    outcome.deny(wait);
                }
            })
            .await?;
            if let Some(error) = impossible {
                return Err(error.into());
            }
            if outcome.offered > MOST_CALLS as u64 && self.retry {
                return Err(CliError::usage(format!(
                    "with the retries there are more than {} calls: use fewer --calls or a shorter --for",
                    grouped(MOST_CALLS as u64)
                )));
            }
        }
    }

    /// Removes the next calls that one statement can decide. With retries, these are calls at the same time only: a denial
    /// adds a retry before later calls.
    fn next(&self, asked: &mut BinaryHeap<Reverse<(i64, Step)>>) -> Vec<Timed<Step>> {
        let mut chunk: Vec<Timed<Step>> = Vec::new();
        while let Some(Reverse((at, _))) = asked.peek()
            && chunk.len() < CHUNK
            && (!self.retry || chunk.first().is_none_or(|first| first.at == *at))
            && let Some(Reverse((at, tag))) = asked.pop()
        {
            let (op, call) = match tag {
                Step::Call(_) => (Op::Limit, self.call()),
                Step::Balance => (Op::Check, Call::from(Item::new(&**self.name, self.key).count(0))),
            };
            chunk.push(Timed { at, op, call, tag });
        }
        chunk
    }
}
