//! The commands that study limits: they simulate, replay, draw and measure, on rows of their own.

pub(crate) mod bad_lines;
pub(crate) mod bench;
mod compressed;
pub(crate) mod demo;
pub(crate) mod lines;
pub(crate) mod plot;
pub(crate) mod replay;
pub(crate) mod simulate;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;

use crate::limit_args::Sourced;
use crate::signals::interrupt;
use crate::text::escaped;
use crate::{CliError, Database, Result, output};
use pg_limiter::{Kind, Limit, Limits};

const SIMULATED_KIND: &str = "Define the limit inline: its kind, token_bucket, fixed_window, sliding_window or \
                              calendar_window [default: with --every, calendar_window; with --period, every other kind, each \
                              with the options that apply to it]";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Demonstrate limits with real calls, in about 15 seconds; uses its own schema and drops it afterwards
    Demo(demo::DemoArgs),
    /// Measure what this server carries: about 20 seconds of full load, on its own rows, which are removed afterwards
    #[command(after_help = bench::BENCH_EXIT_CODES)]
    Bench(bench::BenchArgs),
    /// Simulate constant, random or bursty traffic, and print or draw what limits admit of it
    #[command(mut_arg("kind", |kind| kind.help(SIMULATED_KIND)))]
    Simulate(simulate::SimulateArgs),
    /// Replay past traffic through limits: recorded calls or an access log, on the recorded clock
    Replay(replay::ReplayArgs),
}

pub(crate) async fn run(command: Command, database: Database) -> Result<ExitCode> {
    match command {
        Command::Demo(args) => demo::run(&args, database).await?,
        Command::Bench(args) => bench::run(args, database).await?,
        Command::Simulate(args) => simulate::run(args, database).await?,
        Command::Replay(args) => replay::run(args, database).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Does the work, and removes what it leaves in the database, in any case. A signal ends each step. If both fail, the first error is
/// returned. `left`: what may remain if the second one is interrupted.
async fn cleaned<S>(
    mut own: S,
    work: impl AsyncFnOnce(&mut S) -> Result<()>,
    clear: impl AsyncFnOnce(S) -> Result<()>,
    left: &str,
) -> Result<()> {
    let done = tokio::select! {
        done = work(&mut own) => done,
        () = interrupt() => Err(CliError::failed("interrupted")),
    };
    let cleared = tokio::select! {
        cleared = clear(own) => cleared,
        () = interrupt() => Err(CliError::failed(format!("interrupted; {left}"))),
    };
    if let (Err(_), Err(error)) = (&done, &cleared) {
        output::note(error);
    }
    done.and(cleared)
}

/// The limits that `option` names, in the order of the output.
fn named(sourced: &Sourced, option: &str, names: &[String]) -> Result<Vec<(Arc<str>, Limit)>> {
    let find = |(place, name): (usize, &String)| match sourced.limits.get(name) {
        None => {
            Err(format!("{} defines no limit \"{}\": define it there, or name another", sourced.source, escaped(name)))
        }
        Some(_) if names[..place].contains(name) => Err(format!("{option} {name} is given twice: give it once")),
        Some(limit) => Ok((name.as_str().into(), *limit)),
    };
    names.iter().enumerate().map(find).collect::<Result<_, _>>().map_err(CliError::usage)
}

/// Refuses limits of a kind that a command cannot use.
fn refuse_kind(named: &[(Arc<str>, Limit)], kind: Kind, why: &str) -> Result<()> {
    let Some((name, _)) = named.iter().find(|(_, limit)| limit.kind() == kind) else { return Ok(()) };
    Err(CliError::usage(format!("\"{}\" {why}", escaped(name))))
}

fn defined(named: &[(Arc<str>, Limit)]) -> Result<Limits> {
    let define = |limits: Limits, (name, limit): &(Arc<str>, Limit)| limits.define(name, *limit);
    named.iter().try_fold(Limits::new(), define).map_err(CliError::usage)
}
