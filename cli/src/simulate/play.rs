//! Plays the calls to one limit: the database decides each of them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use crate::error::CliError;
use crate::plot::{Became, Panel};
use crate::progress::Progress;
use crate::replay::{CHUNK, Sandbox, Timed, decide_all};
use crate::simulate::outcome::Outcome;
use crate::simulate::traffic::MOST_CALLS;
use crate::text::grouped;
use pg_limiter::Op;
use pg_limiter::{Call, Item, LeaseId, Limits};

/// A question to the database. At the same time, the first variant goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The release of a lease.
    Release(LeaseId),
    /// The balance.
    Balance,
    /// The call with this index in [`Play::times`], and the lease under which it takes slots.
    Call(usize, Option<LeaseId>),
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
    /// How long each call holds its slots; empty if the limit has none.
    pub(super) holds: &'a [i64],
    /// The length of a lease.
    pub(super) lease: i64,
    /// The end of the simulation: no retries from then on.
    pub(super) end: i64,
}

impl Play<'_> {
    /// A call, which takes slots under this lease.
    pub(super) fn call(&self, lease: Option<LeaseId>) -> Call {
        let call = Call::from(Item::new(&**self.name, self.key).count(self.count).leave(self.leave));
        let call = if self.reserve { call.reserve() } else { call };
        if let Some(lease) = lease { call.lease(lease) } else { call }
    }

    pub(super) async fn run(
        &self,
        limits: &Limits,
        sandbox: &mut Sandbox,
        panel: &mut Panel,
        progress: &Progress,
    ) -> Result<Outcome, CliError> {
        let mut outcome = Outcome::of(self.times.len());
        // When the leases of admitted calls began.
        let mut held: HashMap<LeaseId, i64> = HashMap::new();
        let calls = self.times.iter().enumerate().map(|(nth, at)| Reverse((*at, Step::Call(nth, None))));
        let mut asked: BinaryHeap<_> = panel.moments().map(|at| Reverse((at, Step::Balance))).chain(calls).collect();
        loop {
            let chunk = self.next(&mut asked);
            if chunk.is_empty() {
                for since in held.into_values() {
                    outcome.hold(self.held_until(since, self.end) - since, self.count);
                }
                return Ok(outcome);
            }
            let mut impossible = None;
            decide_all(chunk, limits, sandbox, |timed, decision| {
                let (decision, nth, lease) = match (decision, timed.tag) {
                    (Ok(decision), Step::Call(nth, lease)) => (decision, nth, lease),
                    (Ok(decision), Step::Release(lease)) => {
                        if let Some(since) = held.remove(&lease) {
                            outcome.release(
                                self.held_until(since, timed.at) - since,
                                self.count,
                                decision.is_allowed(),
                            );
                        }
                        return panel.series.balance(timed.at, decision.remaining());
                    }
                    (Ok(decision), Step::Balance) => return panel.series.balance(timed.at, decision.remaining()),
                    (Err(error), _) => return impossible = Some(error),
                };
                progress.add(1);
                let became = Became::of(&decision, decision.is_denied());
                panel.add(timed.at, self.count, became, decision.remaining());
                let wait = decision.retry_after().or(decision.wait());
                if became != Became::Denied {
                    outcome.admit(timed.at, self.times[nth], self.count, wait);
                    if let Some(lease) = lease {
                        held.insert(lease, timed.at);
                        outcome.most_held = outcome.most_held.max(panel.capacity() - decision.remaining());
                    }
                } else if self.retry {
                    outcome.deny(None);
                    let wait = wait.and_then(|wait| i64::try_from(wait.as_micros()).ok()).unwrap_or(i64::MAX);
                    // Retrying after a wait of 0 would loop forever.
                    let again = timed.at.saturating_add(wait.max(1));
                    if again < self.end {
                        asked.push(Reverse((again, Step::Call(nth, None))));
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
            && let Some(Reverse((at, mut tag))) = asked.pop()
        {
            let bucket = || Item::new(&**self.name, self.key);
            let (op, call) = match tag {
                Step::Call(nth, _) => {
                    let lease = self.holds.get(nth).map(|hold| self.draw_lease(at, *hold, asked));
                    tag = Step::Call(nth, lease);
                    (Op::Limit, self.call(lease))
                }
                Step::Release(lease) => (Op::Release, bucket().lease(lease)),
                Step::Balance => (Op::Check, bucket().count(0).into()),
            };
            chunk.push(Timed { at, op, call, tag });
        }
        chunk
    }

    /// Draws a lease, and adds its release. The release of a call that is denied changes nothing.
    fn draw_lease(&self, at: i64, hold: i64, asked: &mut BinaryHeap<Reverse<(i64, Step)>>) -> LeaseId {
        let lease = LeaseId::random();
        let release = at.saturating_add(hold);
        if release < self.end {
            asked.push(Reverse((release, Step::Release(lease))));
        }
        lease
    }

    /// The end of a lease that began at `since`, and is released at `released`.
    fn held_until(&self, since: i64, released: i64) -> i64 {
        released.min(since.saturating_add(self.lease))
    }
}
