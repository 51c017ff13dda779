use std::process::ExitCode;
use std::sync::Arc;

use crate::database::Database;
use crate::error::CliError;
use crate::length::period_micros;
use crate::limit_args::Sourced;
use crate::plot::{Bins, Clock, Panel, Picture};
use crate::progress::Progress;
use crate::replay::Sandbox;
use crate::simulate::args::SimulateArgs;
use crate::simulate::outcome::Outcome;
use crate::simulate::play::Play;
use crate::simulate::traffic::Traffic;
use crate::simulate::{json, table};
use crate::text::grouped;
use crate::{input, output};
use pg_limiter::Op;
use pg_limiter::{Kind, LeaseId, Limit, Limits};

/// One limit, and the outcome of the calls to it.
pub(super) struct Simulated {
    pub(super) name: Arc<str>,
    pub(super) limit: Limit,
    pub(super) outcome: Outcome,
    /// The length of the simulation, in microseconds.
    pub(super) length: i64,
}

impl Simulated {
    /// Whether calls held slots, and so took no tokens in any period.
    pub(super) fn has_slots(&self) -> bool {
        self.limit.kind() == Kind::Concurrency
    }
}

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
            prepared.play(name, limit).call(lease).validate(Op::Limit, &prepared.limits)?;
        }
        Ok(prepared)
    }

    fn play<'b>(&'b self, name: &'b Arc<str>, limit: &Limit) -> Play<'b> {
        let args = self.args;
        Play {
            name,
            key: &args.key,
            count: args.count(),
            leave: args.leave(),
            reserve: args.reserves(),
            retry: args.retries(),
            times: &self.times,
            holds: if limit.kind() == Kind::Concurrency { &self.holds } else { &[] },
            lease: period_micros(limit),
            end: self.traffic.length,
        }
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
            let outcome = self.play(name, limit).run(&self.limits, sandbox, &mut panel, bar).await?;
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

pub(crate) async fn run(args: SimulateArgs, database: Database) -> Result<ExitCode, CliError> {
    let file = args.plot.file()?;
    let prepared = Prepared::new(&args, args.stored(&database).await?, None)?;
    if args.limits_are_inline() {
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
        output::lines(simulated.iter().zip(&picture.panels).map(|(simulated, panel)| json::object(simulated, panel)))?;
    } else {
        output::lines(table::table(&prepared.traffic.describe(), &simulated, args.retries()))?;
    }
    Ok(ExitCode::SUCCESS)
}
