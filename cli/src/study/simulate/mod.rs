//! The command `simulate`: offers generated traffic to limits. The same SQL decides as in production.

mod traffic;

use std::collections::{BTreeSet, HashMap};
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::json::{line, milliseconds};
use crate::limit_args::Sourced;
use crate::study::plot::{Bar, Bins, Clock, Panel, Picture};
use crate::study::replay::{CHUNK, Sandbox, Timed};
pub(crate) use crate::study::simulate::traffic::SimulateArgs;
use crate::study::simulate::traffic::{MOST_CALLS, OnDenial, Traffic};
use crate::text::{self, Column, grouped, percent_of, period_micros, tokens, wait};
use crate::{CliError, Database, Progress, Result, input, output};
use pg_limiter::{Call, Item, Kind, LeaseId, Limit, Limits, Op};

/// A question to the database. At the same time, the first variant goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Release(LeaseId),
    /// The balance at the moment with this index.
    Balance(usize),
    /// The call with this index in [`Prepared::times`], and the lease under which it takes slots.
    Call(usize, Option<LeaseId>),
}

type Steps = BTreeSet<(i64, Step)>;

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
    fn new(args: &'a SimulateArgs, sourced: Option<Sourced>, beside: Option<(Arc<str>, Limit)>) -> Result<Self> {
        let mut named = args.limits(sourced)?;
        named.extend(beside);
        let traffic = args.traffic(&named)?;
        let bins = Bins::over(0, traffic.length - 1, args.plot.bin, 1)?;
        let limits = crate::study::defined(&named)?;
        let times = traffic.times();
        let holds = traffic.holds(times.len());
        let prepared = Self { args, named, limits, traffic, bins, times, holds };
        for (name, limit) in &prepared.named {
            // Reject a call that can never be allowed without connecting to the database.
            let lease = (limit.kind() == Kind::Concurrency).then(LeaseId::random);
            prepared.call(name, lease).validate(Op::Limit, &prepared.limits).map_err(CliError::usage)?;
        }
        Ok(prepared)
    }

    fn item(&self, name: &str) -> Item {
        Item::new(name, self.args.key.as_str())
    }

    fn call(&self, name: &str, lease: Option<LeaseId>) -> Call {
        let args = self.args;
        let call = Call::from(self.item(name).count(args.count).leave(args.leave.unwrap_or_default()));
        let call = if args.reserve { call.reserve() } else { call };
        if let Some(lease) = lease { call.lease(lease) } else { call }
    }

    async fn run(&self, with_balance: bool, sandbox: &mut Sandbox, progress: &Progress) -> Result<Vec<Simulated>> {
        let mut simulated = Vec::new();
        for (name, limit) in &self.named {
            let key = with_balance.then(|| self.args.key.as_str().into());
            let panel = Panel::new(name, *limit, "", self.bins, key);
            simulated.push(self.play(panel, sandbox, progress).await?);
        }
        Ok(simulated)
    }

    async fn play(&self, mut panel: Panel, sandbox: &mut Sandbox, progress: &Progress) -> Result<Simulated> {
        let Self { args, limits, times, traffic, .. } = self;
        let (name, limit) = (Arc::clone(&panel.name), panel.limit);
        let (count, retry) = (args.count, args.denied == OnDenial::Retry);
        let mut outcome = Outcome { calls: times.len() as u64, ..Outcome::default() };
        // Slots, each times how long it was held, in microseconds.
        let mut slots = 0.0;
        // When the leases of admitted calls began.
        let mut held: HashMap<LeaseId, i64> = HashMap::new();
        let held_for = |since: i64, released: i64| {
            (released.min(since.saturating_add(period_micros(&limit))) - since) as f64 * count
        };
        let mut asked: Steps = panel.moments().enumerate().map(|(nth, at)| (at, Step::Balance(nth))).collect();
        times.iter().enumerate().for_each(|(nth, at)| self.ask(&limit, *at, nth, &mut asked));
        while let Some((first, _)) = asked.first() {
            // With retries, calls at the same time only: a denial adds a retry before later calls.
            let last = if retry { *first } else { i64::MAX };
            let next = || asked.first().is_some_and(|(at, _)| *at <= last).then(|| asked.pop_first()).flatten();
            let chunk: Vec<_> = iter::from_fn(next).take(CHUNK).map(|step| self.timed(&name, step)).collect();
            for (timed, decision) in sandbox.decide(chunk, limits).await? {
                let decision = decision.map_err(CliError::usage)?;
                if let Step::Release(lease) = timed.tag
                    && let Some(since) = held.remove(&lease)
                {
                    slots += held_for(since, timed.at);
                    outcome.lost += u64::from(!decision.is_allowed());
                }
                let Step::Call(nth, lease) = timed.tag else {
                    panel.balance(timed.at, decision.remaining());
                    continue;
                };
                progress.add(1);
                panel.add(timed.at, count, Bar::part(&decision, decision.is_denied()), decision.remaining());
                let wait = decision.retry_after().or(decision.wait());
                if !decision.is_denied() {
                    outcome.admit(timed.at, times[nth], count, wait);
                    if let Some(lease) = lease {
                        held.insert(lease, timed.at);
                        outcome.most_held = outcome.most_held.max(panel.limit.capacity() - decision.remaining());
                    }
                } else if retry {
                    let wait = wait.and_then(|wait| i64::try_from(wait.as_micros()).ok()).unwrap_or(i64::MAX);
                    // Retrying after a wait of 0 would loop forever.
                    let again = timed.at.saturating_add(wait.max(1));
                    if again < traffic.length {
                        self.ask(&limit, again, nth, &mut asked);
                    }
                } else {
                    outcome.longest_wait = outcome.longest_wait.max(wait.unwrap_or_default());
                }
            }
            let most = grouped(MOST_CALLS as u64);
            let why =
                format!("with the retries there are more than {most} calls: use fewer --calls or a shorter --for");
            CliError::refuse_if(retry && panel.calls > MOST_CALLS as u64, why)?;
        }
        slots += held.into_values().map(|since| held_for(since, traffic.length)).sum::<f64>();
        outcome.average_held = slots / traffic.length as f64;
        Ok((panel, outcome))
    }

    /// Adds a call, and the release of its slots. The release of a call that is denied changes nothing.
    fn ask(&self, limit: &Limit, at: i64, nth: usize, asked: &mut Steps) {
        let hold = self.holds.get(nth).filter(|_| limit.kind() == Kind::Concurrency);
        let held = hold.map(|hold| (at.saturating_add(*hold), LeaseId::random()));
        asked.insert((at, Step::Call(nth, held.map(|(_, lease)| lease))));
        let released = held.filter(|(end, _)| *end < self.traffic.length);
        asked.extend(released.map(|(end, lease)| (end, Step::Release(lease))));
    }

    fn timed(&self, name: &str, (at, tag): (i64, Step)) -> Timed<Step> {
        let (op, call) = match tag {
            Step::Call(_, lease) => (Op::Limit, self.call(name, lease)),
            Step::Release(lease) => (Op::Release, self.item(name).lease(lease)),
            Step::Balance(_) => (Op::Check, self.item(name).count(0).into()),
        };
        Timed { at, op, call, tag }
    }
}

/// Simulates at most `most` calls, and returns a description of the traffic, and a panel for each limit.
pub(crate) async fn panels_of_traffic(
    args: &SimulateArgs,
    beside: Option<(Arc<str>, Limit)>,
    most: usize,
    sandbox: &mut Sandbox,
) -> Result<(String, Vec<Panel>)> {
    let prepared = Prepared::new(args, None, beside)?;
    let [calls, allowed] = [prepared.times.len(), most].map(|number| grouped(number as u64));
    let why =
        format!("{calls} calls are more than the {allowed} that are simulated here: use fewer calls or a shorter time");
    CliError::refuse_if(prepared.times.len() > most, why)?;
    let simulated = prepared.run(true, sandbox, &Progress::hidden()).await?;
    Ok((prepared.traffic.describe(), simulated.into_iter().map(|(panel, _)| panel).collect()))
}

pub(crate) async fn run(args: SimulateArgs, database: Database) -> Result<()> {
    let file = args.plot.file()?;
    let path = args.limit.limits.as_deref();
    let sourced = if args.limit.defines_none() { Sourced::read(path, &database).await? } else { None };
    let prepared = Prepared::new(&args, sourced, None)?;
    if args.limit.limits.is_none() {
        input::warn(&prepared.limits);
    }
    let running = database.start(false).await?;
    let mut sandbox = Sandbox::open(&running).await?;
    let progress = Progress::parts("simulating", prepared.named.len() * prepared.times.len());
    let simulated = prepared.run(args.json || file.is_some(), &mut sandbox, &progress).await?;
    drop(progress);
    sandbox.close().await?;

    let (heading, retry) = (prepared.traffic.describe(), args.denied == OnDenial::Retry);
    let lines = if args.json { simulated.iter().map(object).collect() } else { table(&heading, &simulated, retry) };
    if let Some(file) = file {
        let panels = simulated.into_iter().map(|(panel, _)| panel).collect();
        Picture { heading, clock: Clock::Elapsed, panels }.save(file)?;
    }
    output::lines(lines)
}

#[derive(Clone, Debug, Default)]
struct Outcome {
    /// Calls, without their retries.
    calls: u64,
    admitted: u64,
    /// Admitted calls that had to wait for reserved tokens.
    reserved: u64,
    /// The longest wait that a decision returned. For retried calls: the longest time from arrival to admission.
    longest_wait: Duration,
    most_held: f64,
    /// Leases that ended before their release.
    lost: u64,
    average_held: f64,
    /// The times at which tokens were used, in microseconds, and how many.
    uses: Vec<(i64, f64)>,
}

impl Outcome {
    fn admit(&mut self, at: i64, came: i64, count: f64, wait: Option<Duration>) {
        self.admitted += 1;
        self.reserved += u64::from(wait.is_some());
        let wait = wait.unwrap_or_default();
        self.longest_wait = self.longest_wait.max(Duration::from_micros((at - came).unsigned_abs()) + wait);
        self.uses.push((at.saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)), count));
    }

    /// The most tokens used within a period, wherever it begins. Uses that are a whole period apart are not in the same one.
    fn most_in_a_period(&self, period: i64) -> f64 {
        let mut uses = self.uses.clone();
        uses.sort_by_key(|(at, _)| *at);
        let (mut first, mut sum, mut most) = (0, 0.0, 0.0_f64);
        for (at, count) in &uses {
            sum += count;
            while uses[first].0.saturating_add(period) <= *at {
                sum -= uses[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }
}

type Simulated = (Panel, Outcome);

/// `None` for slots, which have no period.
fn most_in_a_period((panel, outcome): &Simulated) -> Option<f64> {
    (!panel.has_slots()).then(|| outcome.most_in_a_period(period_micros(&panel.limit)))
}

fn table(traffic: &str, simulated: &[Simulated], retry: bool) -> Vec<String> {
    let reserved = simulated.iter().any(|(_, outcome)| outcome.reserved > 0);
    let has_slots = |(panel, _): &Simulated| panel.has_slots();
    let (slots, periods) = (simulated.iter().any(has_slots), !simulated.iter().all(has_slots));
    let columns: [Column<'_, Simulated>; 12] = [
        ("LIMIT", true, |(panel, _)| panel.title.clone()),
        ("OFFERED", true, |(panel, _)| grouped(panel.calls)),
        ("ADMITTED", true, |(_, outcome)| grouped(outcome.admitted)),
        ("RESERVED", reserved, |(_, outcome)| grouped(outcome.reserved)),
        ("DENIED", true, |(panel, outcome)| grouped(panel.calls - outcome.admitted)),
        ("% ADMITTED", true, |(panel, outcome)| percent_of(outcome.admitted as f64, panel.calls as f64)),
        // Those that are not admitted at the end.
        ("STILL WAITING", retry, |(_, outcome)| grouped(outcome.calls - outcome.admitted)),
        ("LONGEST WAIT", true, |(_, outcome)| wait(outcome.longest_wait)),
        ("MOST IN A PERIOD", periods, |one| or_dash(most_in_a_period(one).map(tokens))),
        ("MOST AT ONCE", slots, |(panel, outcome)| or_dash(panel.of_slots(tokens(outcome.most_held)))),
        ("AVERAGE AT ONCE", slots, |(panel, outcome)| or_dash(panel.of_slots(format!("{:.2}", outcome.average_held)))),
        ("LOST LEASES", slots, |(panel, outcome)| or_dash(panel.of_slots(grouped(outcome.lost)))),
    ];
    let calls = simulated.first().map_or(0, |(_, outcome)| outcome.calls);
    let mut lines = vec![format!("{traffic}: {} calls", grouped(calls)), String::new()];
    lines.extend(text::table(&columns, simulated, &[0]));
    lines
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn object(simulated: &Simulated) -> String {
    let (panel, outcome) = simulated;
    let bars = |tokens: fn(&Bar) -> f64| panel.bars.iter().map(tokens).collect::<Vec<_>>();
    let balances = panel.balances().into_iter().map(|(at, value)| [at as f64 / 1000.0, value]);
    line(&json!({
        "limit": *panel.name,
        "kind": panel.limit.kind().as_str(),
        "calls": outcome.calls,
        "offered": panel.calls,
        "admitted": outcome.admitted,
        "reserved": outcome.reserved,
        "denied": panel.calls - outcome.admitted,
        "longest_wait_ms": milliseconds(outcome.longest_wait),
        "most_in_a_period": most_in_a_period(simulated),
        "most_at_once": panel.of_slots(outcome.most_held),
        "average_at_once": panel.of_slots(outcome.average_held),
        "lost_leases": panel.of_slots(outcome.lost),
        "bar_ms": panel.bins.width as f64 / 1000.0,
        "bars_offered": bars(Bar::offered),
        "bars_admitted": bars(|bar| bar.admitted),
        "bars_reserved": bars(|bar| bar.reserved),
        "bars_denied": bars(|bar| bar.denied),
        "balance": balances.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_period_can_start_at_any_call() {
        let mut outcome = Outcome::default();
        for at in [0, 90, 95, 99, 100, 101, 188, 189, 190] {
            outcome.admit(at, at, 1.0, None);
        }
        // From 90 to 189: 190 is a whole period after 90.
        assert_eq!(outcome.most_in_a_period(100), 7.0);
        assert_eq!(outcome.most_in_a_period(1), 1.0);
        assert_eq!(outcome.most_in_a_period(i64::MAX), 9.0);
        assert_eq!(Outcome::default().most_in_a_period(5), 0.0);
        // A reserved call counts at its reserved time.
        let mut outcome = Outcome::default();
        outcome.admit(0, 0, 2.0, Some(Duration::from_micros(100)));
        outcome.admit(50, 10, 3.0, None);
        assert_eq!((outcome.most_in_a_period(50), outcome.most_in_a_period(51)), (3.0, 5.0));
        assert_eq!((outcome.longest_wait, outcome.reserved), (Duration::from_micros(100), 1));
    }
}
