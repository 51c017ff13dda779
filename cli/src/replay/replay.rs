use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use crate::database::Database;
use crate::error::CliError;
use crate::input;
use crate::limit_args::Sourced;
use crate::lines::{LineArgs, Source};
use crate::output::{self, Progress};
use crate::plot::{Clock, Panel, Picture, PlotArgs};
use crate::replay::access_log::LogOptions;
use crate::replay::parser::{Faults, Parser, Unreadable};
use crate::replay::pictured::Pictured;
use crate::replay::recording::Recording;
use crate::replay::sandbox::{Purpose, Sandbox, Timed, in_time_order};
use crate::replay::tally::{Decisions, Tally, table};
use crate::text::{describe, escaped, grouped};
use pg_limiter::{Limit, Limits};

#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// Limits file: TOML, or JSON if its name ends in .json; `-` is standard input [default: the limits that are stored in the
    /// database]
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// Recorded calls, one JSON object per line, such as
    /// {"at": 1767225600123, "op": "limit", "limit": "send_message", "key": "u1", "count": 1}; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["access_log", "apply", "key", "log_format"])]
    events: Option<PathBuf>,
    /// For an access log: the limit to apply to each request; repeat for several limits, each of which is applied alone
    #[arg(long, value_name = "NAME", requires = "access_log")]
    apply: Vec<String>,
    /// Access log of a web server; `-` is standard input
    #[arg(long, value_name = "FILE", requires = "apply")]
    access_log: Option<PathBuf>,
    #[command(flatten)]
    log: LogOptions,
    #[command(flatten)]
    lines: LineArgs,
    #[command(flatten)]
    plot: PlotArgs,
    /// Draw only the traffic of this key, with its balance [default: all keys together]
    #[arg(long, value_name = "KEY", requires = "plot")]
    only_key: Option<String>,
    /// Print the decision on each line as JSON instead of a table, in the order of the lines
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: ReplayArgs, database: Database) -> Result<(), CliError> {
    let recorded = args.events.as_deref().or(args.access_log.as_deref());
    if recorded.is_some_and(input::is_stdin) && args.limits.as_deref().is_some_and(input::is_stdin) {
        return Err(CliError::usage(
            "--limits and the recorded calls cannot both be standard input: name a file for one of them",
        ));
    }
    let file = args.plot.file()?;
    let sourced = match &args.limits {
        Some(path) => Some(Sourced::file(path)?),
        None => Sourced::stored(&database).await?,
    };
    let Some(sourced) = sourced else {
        return Err(CliError::usage(
            "no limits given: use --limits FILE, or store them with `pg-limiter limits apply`",
        ));
    };
    let recording = read(&args, &sourced, file.is_some())?;
    let limits = sourced.limits;
    recording.notes.iter().for_each(output::note);
    let mut pictured = match &file {
        Some(_) => Some(Pictured::new(&recording, &limits, &args.plot, only_key(&args)?.as_deref())?),
        None => None,
    };

    let running = database.start().await?;
    let mut sandbox = Sandbox::open(&running).await?;
    let calls = usize::try_from(recording.summary.calls).unwrap_or(usize::MAX);
    let progress = Progress::parts("replaying", calls.saturating_mul(recording.passes()));
    let mut tallies = Vec::new();
    for pass in 0..recording.passes() {
        tallies.push(replay_once(args.json, &limits, &recording, pass, &mut pictured, &mut sandbox, &progress).await?);
    }
    drop(progress);
    sandbox.close().await?;

    if let (Some(file), Some(pictured)) = (file, pictured) {
        file.draw(&picture(&args, pictured))?;
    }
    if args.json { Ok(()) } else { output::lines(tables(&args, &limits, &tallies)) }
}

/// One pass over the recording. With `json`, prints its decisions.
async fn replay_once(
    json: bool,
    limits: &Limits,
    recording: &Recording,
    pass: usize,
    pictured: &mut Option<Pictured>,
    sandbox: &mut Sandbox,
    progress: &Progress,
) -> Result<Tally, CliError> {
    let (mut tally, mut decisions) = (Tally::default(), Decisions::default());
    let faults = Faults::new(if json { Unreadable::Keep(Vec::new()) } else { Unreadable::LeaveOut });
    let questions = pictured.as_ref().map(|drawn| drawn.questions(pass, recording.passes())).unwrap_or_default();
    let mut calls = in_time_order(questions, recording.pass(pass, &faults, &Progress::hidden())?);
    loop {
        let each = |timed: Timed<Purpose>, decision| match (&timed.tag, &mut *pictured) {
            (Purpose::Balance(panel), Some(drawn)) => drawn.answered(*panel, timed.at, &decision),
            (Purpose::Balance(_), None) => {}
            (Purpose::Line(place), drawn) => {
                progress.add(1);
                if let Some(drawn) = drawn {
                    drawn.add(&timed, &decision);
                }
                if json {
                    decisions.add(*place, timed.op, &decision);
                } else {
                    tally.add(&timed, &decision);
                }
            }
        };
        let goes_on = sandbox.decide_some(&mut calls, limits, each).await?;
        faults.take()?.iter().for_each(|line| decisions.add_bad(line));
        decisions.print()?;
        if !goes_on {
            return Ok(tally);
        }
    }
}

/// The key of `--only-key`. An address is the key of its client.
fn only_key(args: &ReplayArgs) -> Result<Option<String>, CliError> {
    let Some(key) = &args.only_key else { return Ok(None) };
    Ok(Some(if args.access_log.is_some() { args.log.read()?.1.named(key) } else { key.clone() }))
}

fn read(args: &ReplayArgs, Sourced { limits, source }: &Sourced, needs_keys: bool) -> Result<Recording, CliError> {
    match (&args.events, args.apply.as_slice(), &args.access_log) {
        (Some(events), ..) => {
            Recording::read(Source::open(events)?, Parser::Events, limits, Vec::new(), &args.lines, needs_keys)
        }
        (None, [_, ..], Some(log)) => {
            for (place, name) in args.apply.iter().enumerate() {
                if limits.get(name).is_none() {
                    return Err(CliError::usage(format!(
                        "{source} defines no limit \"{name}\": define it there, or apply another"
                    )));
                }
                if args.apply[..place].contains(name) {
                    return Err(CliError::usage(format!("--apply {name} is given twice: give it once")));
                }
            }
            if args.json && args.apply.len() > 1 {
                return Err(CliError::usage("--json prints the decisions of one limit: give --apply once"));
            }
            let applied = args.apply.iter().map(|name| name.as_str().into()).collect();
            let (source, parser) = (Source::open(log)?, Parser::requests(&args.log)?);
            Recording::read(source, parser, limits, applied, &args.lines, needs_keys)
        }
        _ => Err(CliError::usage("nothing to replay: use --events FILE, or --apply NAME and --access-log FILE")),
    }
}

/// The tables, one for each limit that was applied.
fn tables(args: &ReplayArgs, limits: &Limits, tallies: &[Tally]) -> Vec<String> {
    let by = args.access_log.as_ref().map(|_| args.log.key.as_str());
    let mut lines = Vec::new();
    for (place, tally) in tallies.iter().enumerate() {
        if place > 0 {
            lines.push(String::new());
        }
        let name = args.apply.get(place);
        lines.extend(name.and_then(|name| Some(describe(name, limits.get(name)?))));
        lines.extend(table(tally, by));
    }
    lines
}

fn picture(args: &ReplayArgs, pictured: Pictured) -> Picture {
    let name = |path: &PathBuf| match path.file_name() {
        _ if input::is_stdin(path) => input::name(path),
        Some(name) => name.to_string_lossy().into_owned(),
        None => input::name(path),
    };
    let mut heading = args.events.as_ref().or(args.access_log.as_ref()).map(name).unwrap_or_default();
    if args.access_log.is_some() {
        heading.push_str(&format!(", limited by {}", args.log.key));
    }
    if let Some(key) = &args.only_key {
        heading.push_str(&format!(", the key {}", escaped(key)));
    }
    Picture { heading, clock: Clock::Utc, panels: pictured.into_panels() }
}

/// Applies each limit alone to the requests of an access log of at most `most` lines, and returns a panel for each, and notes on
/// the lines.
pub(crate) async fn panels_of_log(
    log: &[u8],
    options: &LogOptions,
    named: &[(Arc<str>, Limit)],
    most: usize,
    sandbox: &mut Sandbox,
) -> Result<(Vec<Panel>, Vec<String>), CliError> {
    let mut limits = Limits::new();
    for (name, limit) in named {
        limits = limits.define(name, *limit).map_err(CliError::usage)?;
    }
    let applied = named.iter().map(|(name, _)| Arc::clone(name)).collect();
    let source = Source::bytes("the access log", log.to_vec());
    let parser = Parser::requests(options)?;
    let mut recording = Recording::read(source, parser, &limits, applied, &LineArgs::default(), true)?;
    if recording.summary.lines == 0 {
        return Err(CliError::usage("the access log has no lines"));
    }
    if recording.summary.lines > most as u64 {
        return Err(CliError::usage(format!("the access log has more than {} lines", grouped(most as u64))));
    }
    let notes = std::mem::take(&mut recording.notes);
    let mut pictured = Some(Pictured::new(&recording, &limits, &PlotArgs::default(), None)?);
    for pass in 0..recording.passes() {
        replay_once(false, &limits, &recording, pass, &mut pictured, sandbox, &Progress::hidden()).await?;
    }
    Ok((pictured.map(Pictured::into_panels).unwrap_or_default(), notes))
}
