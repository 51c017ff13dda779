use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use crate::database::Database;
use crate::error::CliError;
use crate::input;
use crate::limit_args::Sourced;
use crate::output::{self, Progress};
use crate::plot::{Became, Bins, Clock, Panel, Picture};
use crate::replay::{CHUNK, Sandbox, Timed};
use crate::simulate::args::SimulateArgs;
use crate::simulate::outcome::{Outcome, Simulated, object, table};
use crate::simulate::traffic::{MOST_CALLS, Traffic};
use crate::text::{grouped, period_micros};
use pg_limiter::{Call, Decision, InvalidCall, Item, Kind, LeaseId, Limit, Limits, Op};

/// The limits, and the calls that each of them is offered.
struct Prepared<'a> {
    args: &'a SimulateArgs,
    named: Vec<(Arc<str>, Limit)>,
    limits: Limits,
    traffic: Traffic,
    bins: Bins,
    times: Vec<i64>,
    holds: Vec<i64>,
}

impl<'a> Prepared<'a> {
    /// `beside`: limits in addition to those of the arguments.
    fn new(
        args: &'a SimulateArgs,
        stored: Option<Sourced>,
        beside: Option<(Arc<str>, Limit)>,
    ) -> Result<Self, CliError> {
        let mut named = args.limits(stored)?;
        named.extend(beside);
        let traffic = args.traffic(&named)?;
        let bins = args.plot.bins(0, traffic.length - 1, 1)?;
        let mut limits = Limits::new();
        for (name, limit) in &named {
            limits = limits.define(name, *limit).map_err(CliError::usage)?;
        }
        let times = traffic.times();
        let holds = traffic.holds(times.len());
        let prepared = Self { args, named, limits, traffic, bins, times, holds };
        for (name, limit) in &prepared.named {
            // Reject a call that can never be allowed without connecting to the database.
            let lease = (limit.kind() == Kind::Concurrency).then(LeaseId::random);
            Play::new(&prepared, name, limit).call(lease).validate(Op::Limit, &prepared.limits)?;
        }
        Ok(prepared)
    }

    async fn run(
        &self,
        with_balance: bool,
        sandbox: &mut Sandbox,
        bar: &Progress,
    ) -> Result<(Vec<Panel>, Vec<Simulated>), CliError> {
        let (mut panels, mut simulated) = (Vec::new(), Vec::new());
        for (name, limit) in &self.named {
            let mut panel = Panel::new(name, *limit, String::new(), self.bins, with_balance);
            let outcome = Play::new(self, name, limit).run(sandbox, &mut panel, bar).await?;
            panels.push(panel);
            simulated.push(Simulated { name: Arc::clone(name), limit: *limit, outcome, length: self.traffic.length });
        }
        Ok((panels, simulated))
    }
}

/// Simulates at most `most` calls, and returns a description of the traffic, and a panel for each limit.
pub(crate) async fn panels_of_traffic(
    args: &SimulateArgs,
    beside: Option<(Arc<str>, Limit)>,
    most: usize,
    sandbox: &mut Sandbox,
) -> Result<(String, Vec<Panel>), CliError> {
    let prepared = Prepared::new(args, None, beside)?;
    if prepared.times.len() > most {
        return Err(CliError::usage(format!(
            "{} calls are more than the {} that are simulated here: use fewer calls or a shorter time",
            grouped(prepared.times.len() as u64),
            grouped(most as u64)
        )));
    }
    let (panels, _) = prepared.run(true, sandbox, &Progress::hidden()).await?;
    Ok((prepared.traffic.describe(), panels))
}

pub(crate) async fn run(args: SimulateArgs, database: Database) -> Result<(), CliError> {
    let file = args.plot.file()?;
    let prepared = Prepared::new(&args, args.stored(&database).await?, None)?;
    if args.limit.file().is_none() {
        input::warn(&prepared.limits);
    }
    let running = database.start().await?;
    let mut sandbox = Sandbox::open(&running).await?;
    let progress = Progress::parts("simulating", prepared.named.len() * prepared.times.len());
    let (panels, simulated) = prepared.run(args.json || file.is_some(), &mut sandbox, &progress).await?;
    drop(progress);
    sandbox.close().await?;

    let picture = Picture { heading: prepared.traffic.describe(), clock: Clock::Elapsed, panels };
    if let Some(file) = file {
        file.draw(&picture)?;
    }
    if args.json {
        output::lines(simulated.iter().zip(&picture.panels).map(|(simulated, panel)| object(simulated, panel)))
    } else {
        output::lines(table(&prepared.traffic.describe(), &simulated, args.retries()))
    }
}

/// A question to the database. At the same time, the first variant goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The release of a lease.
    Release(LeaseId),
    /// The balance.
    Balance,
    /// The call with this index in [`Prepared::times`], and the lease under which it takes slots.
    Call(usize, Option<LeaseId>),
}

/// The calls to one of the limits. The database decides each of them.
struct Play<'a> {
    of: &'a Prepared<'a>,
    name: &'a str,
    /// Whether calls hold slots.
    has_slots: bool,
    /// The length of a lease.
    lease: i64,
}

impl<'a> Play<'a> {
    fn new(of: &'a Prepared<'a>, name: &'a str, limit: &Limit) -> Self {
        Self { of, name, has_slots: limit.kind() == Kind::Concurrency, lease: period_micros(limit) }
    }

    fn item(&self) -> Item {
        Item::new(self.name, self.of.args.key.as_str())
    }

    /// A call, which takes slots under this lease.
    fn call(&self, lease: Option<LeaseId>) -> Call {
        let traffic = &self.of.args.traffic;
        let call = Call::from(self.item().count(traffic.count).leave(traffic.leave.unwrap_or_default()));
        let call = if traffic.reserve { call.reserve() } else { call };
        if let Some(lease) = lease { call.lease(lease) } else { call }
    }

    async fn run(&self, sandbox: &mut Sandbox, panel: &mut Panel, progress: &Progress) -> Result<Outcome, CliError> {
        let Prepared { args, limits, times, .. } = self.of;
        let (end, count, retry) = (self.of.traffic.length, args.traffic.count, args.retries());
        let mut outcome = Outcome::of(times.len());
        // When the leases of admitted calls began.
        let mut held: HashMap<LeaseId, i64> = HashMap::new();
        let calls = times.iter().enumerate().map(|(nth, at)| Reverse((*at, Step::Call(nth, None))));
        let mut asked: BinaryHeap<_> = panel.moments().map(|at| Reverse((at, Step::Balance))).chain(calls).collect();
        loop {
            let chunk = self.next(&mut asked);
            if chunk.is_empty() {
                for since in held.into_values() {
                    outcome.hold(self.held_until(since, end) - since, count);
                }
                return Ok(outcome);
            }
            let mut impossible = None;
            let each = |timed: Timed<Step>, decision: Result<Decision, InvalidCall>| {
                let (decision, nth, lease) = match (decision, timed.tag) {
                    (Ok(decision), Step::Call(nth, lease)) => (decision, nth, lease),
                    (Ok(decision), Step::Release(lease)) => {
                        if let Some(since) = held.remove(&lease) {
                            let length = self.held_until(since, timed.at) - since;
                            outcome.release(length, count, decision.is_allowed());
                        }
                        return panel.series.balance(timed.at, decision.remaining());
                    }
                    (Ok(decision), Step::Balance) => return panel.series.balance(timed.at, decision.remaining()),
                    (Err(error), _) => return impossible = Some(error),
                };
                progress.add(1);
                let became = Became::of(&decision, decision.is_denied());
                panel.add(timed.at, count, became, decision.remaining());
                let wait = decision.retry_after().or(decision.wait());
                if became != Became::Denied {
                    outcome.admit(timed.at, times[nth], count, wait);
                    if let Some(lease) = lease {
                        held.insert(lease, timed.at);
                        outcome.most_held = outcome.most_held.max(panel.capacity() - decision.remaining());
                    }
                } else if retry {
                    outcome.deny(None);
                    let wait = wait.and_then(|wait| i64::try_from(wait.as_micros()).ok()).unwrap_or(i64::MAX);
                    // Retrying after a wait of 0 would loop forever.
                    let again = timed.at.saturating_add(wait.max(1));
                    if again < end {
                        asked.push(Reverse((again, Step::Call(nth, None))));
                    }
                } else {
                    outcome.deny(wait);
                }
            };
            sandbox.decide_some(&mut chunk.into_iter(), limits, each).await?;
            if let Some(error) = impossible {
                return Err(error.into());
            }
            if outcome.offered > MOST_CALLS as u64 && retry {
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
            && (!self.of.args.retries() || chunk.first().is_none_or(|first| first.at == *at))
            && let Some(Reverse((at, mut tag))) = asked.pop()
        {
            let (op, call) = match tag {
                Step::Call(nth, _) => {
                    let hold = self.of.holds.get(nth).filter(|_| self.has_slots);
                    let lease = hold.map(|hold| self.draw_lease(at, *hold, asked));
                    tag = Step::Call(nth, lease);
                    (Op::Limit, self.call(lease))
                }
                Step::Release(lease) => (Op::Release, self.item().lease(lease)),
                Step::Balance => (Op::Check, self.item().count(0).into()),
            };
            chunk.push(Timed { at, op, call, tag });
        }
        chunk
    }

    /// Draws a lease, and adds its release. The release of a call that is denied changes nothing.
    fn draw_lease(&self, at: i64, hold: i64, asked: &mut BinaryHeap<Reverse<(i64, Step)>>) -> LeaseId {
        let lease = LeaseId::random();
        let release = at.saturating_add(hold);
        if release < self.of.traffic.length {
            asked.push(Reverse((release, Step::Release(lease))));
        }
        lease
    }

    /// The end of a lease that began at `since`, and is released at `released`.
    fn held_until(&self, since: i64, released: i64) -> i64 {
        released.min(since.saturating_add(self.lease))
    }
}
