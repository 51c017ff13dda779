use std::process::ExitCode;
use std::sync::Arc;

use crate::database::Database;
use crate::error::CliError;
use crate::length::period_micros;
use crate::plot::{Clock, Panel, Picture};
use crate::progress::Progress;
use crate::replay::Sandbox;
use crate::simulate::args::SimulateArgs;
use crate::simulate::outcome::Outcome;
use crate::simulate::play::Play;
use crate::simulate::{json, table};
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

pub(crate) async fn run(args: SimulateArgs, database: Database) -> Result<ExitCode, CliError> {
    let file = args.plot.file()?;
    let named = args.limits()?;
    let traffic = args.traffic(&named)?;
    let bins = args.plot.bins(0, traffic.length - 1, 1)?;
    let mut limits = Limits::new();
    for (name, limit) in &named {
        limits = limits.define(name, *limit).map_err(CliError::usage)?;
    }
    if args.limits_are_inline() {
        input::warn(&limits);
    }
    let times = traffic.times();
    let holds = traffic.holds(times.len());
    let play = |name, limit: &Limit| Play {
        name,
        key: &args.key,
        count: args.count(),
        leave: args.leave(),
        reserve: args.reserves(),
        retry: args.retries(),
        times: &times,
        holds: if limit.kind() == Kind::Concurrency { &holds } else { &[] },
        lease: period_micros(limit),
        end: traffic.length,
    };
    for (name, limit) in &named {
        // Reject a call that can never be allowed without connecting to the database.
        let lease = (limit.kind() == Kind::Concurrency).then(LeaseId::random);
        play(name, limit).call(lease).validate(Op::Limit, &limits)?;
    }

    let running = database.start().await?;
    let mut sandbox = Sandbox::open(&running).await?;
    let progress = Progress::parts("simulating", named.len() * times.len());
    let (mut panels, mut simulated) = (Vec::new(), Vec::new());
    for (name, limit) in &named {
        let mut panel = Panel::new(name, *limit, String::new(), bins, args.json || file.is_some());
        let outcome = play(name, limit).run(&limits, &mut sandbox, &mut panel, &progress).await?;
        panels.push(panel);
        simulated.push(Simulated { name: Arc::clone(name), limit: *limit, outcome, length: traffic.length });
    }
    drop(progress);
    sandbox.close().await?;

    let picture = Picture { heading: traffic.describe(), clock: Clock::Elapsed, panels };
    if let Some(file) = file {
        file.draw(&picture)?;
    }
    if args.json {
        output::lines(simulated.iter().zip(&picture.panels).map(|(simulated, panel)| json::object(simulated, panel)))?;
    } else {
        output::lines(table::table(&traffic.describe(), &simulated, args.retries()))?;
    }
    Ok(ExitCode::SUCCESS)
}
