//! The command `replay`: replays recorded calls or an access log. The same SQL decides as in production.

mod access_log;
pub(in crate::study) mod events;
mod recording;
mod sandbox;
mod tally;

use std::collections::HashSet;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use crate::limit_args::Sourced;
use crate::study::bad_lines::LineArgs;
use crate::study::lines::Source;
use crate::study::plot::{Bar, Bins, Clock, Panel, Picture, PlotArgs};
use crate::study::replay::recording::{Fault, Log, Recording};
use crate::study::replay::sandbox::{Asked, Purpose};
use crate::study::replay::tally::{Decisions, Tally, table};
use crate::study::{defined, named, refuse_kind};
use crate::text::{describe, escaped, grouped};
use crate::{CliError, Database, Progress, Result, input, output};
use pg_limiter::{Call, Decision, InvalidCall, Item, Kind, Limit, Op};

pub use access_log::format::LogFormat;
pub use access_log::line::LogLine;
pub use events::Event;

pub(crate) use access_log::key::LogOptions;
pub(crate) use sandbox::{CHUNK, Sandbox, Timed};

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
    #[arg(long, help_heading = None::<&str>, value_name = "KEY", requires = "plot")]
    only_key: Option<String>,
    /// Print the decision on each line as JSON instead of a table, in the order of the lines
    #[arg(long, help_heading = None::<&str>)]
    json: bool,
}

impl ReplayArgs {
    fn recorded(&self) -> Option<&Path> {
        self.events.as_deref().or(self.access_log.as_deref())
    }
}

pub(crate) async fn run(args: ReplayArgs, database: Database) -> Result<()> {
    let are_both_stdin = [args.recorded(), args.limits.as_deref()].iter().all(|path| path.is_some_and(input::is_stdin));
    let why = "--limits and the recorded calls cannot both be standard input: name a file for one of them";
    CliError::refuse_if(are_both_stdin, why)?;
    let file = args.plot.file()?;
    let sourced = Sourced::read(args.limits.as_deref(), &database).await?;
    let why = "no limits given: use --limits FILE, or store them with `pg-limiter limits apply`";
    let recording = read(&args, sourced.ok_or_else(|| CliError::usage(why))?)?;
    recording.summary.notes.iter().for_each(output::note);
    let is_drawn = file.is_some();
    let mut panels = if is_drawn { panels(&recording, &args.plot, args.only_key.as_deref())? } else { Vec::new() };
    let running = database.start(false).await?;
    let mut sandbox = Sandbox::open(&running).await?;
    let calls = usize::try_from(recording.summary.calls).unwrap_or(usize::MAX);
    let progress = Progress::parts("replaying", calls.saturating_mul(recording.passes().len()));
    let tallies = replay(args.json, &recording, &mut panels, &mut sandbox, &progress).await?;
    drop(progress);
    sandbox.close().await?;

    if let Some(file) = file {
        picture(&args, panels).save(file)?;
    }
    if args.json { Ok(()) } else { output::lines(tables(&args, &recording, &tallies)) }
}

/// Replays the recording, each limit of an access log alone. Adds the calls to the panels. With `json`, prints the decisions.
async fn replay(
    json: bool,
    recording: &Recording,
    panels: &mut [Panel],
    sandbox: &mut Sandbox,
    progress: &Progress,
) -> Result<Vec<Tally>> {
    let mut tallies = Vec::new();
    for applied in recording.passes() {
        let (mut tally, mut decisions) = (Tally::default(), Decisions::default());
        let mut pass = recording.pass(applied, questions(panels, applied), &Progress::hidden())?;
        let mut replayed = 0;
        loop {
            let chunk: Vec<_> = iter::from_fn(|| pass.next().transpose()).take(CHUNK).collect();
            if chunk.is_empty() {
                break;
            }
            let mut calls = Vec::new();
            for next in chunk {
                match next {
                    Ok(timed) => calls.push(timed),
                    // Unreadable lines were counted before: only JSON has an object for each.
                    Err(Fault::Line(line)) if json => decisions.add_bad(&line),
                    Err(Fault::Line(_)) => {}
                    Err(Fault::End(error)) => return Err(error),
                }
            }
            pass.leases.decided();
            for (timed, decision) in sandbox.decide(calls, &recording.limits).await? {
                add(panels, &timed, &decision);
                let Purpose::Line(place, ref lease) = timed.tag else { continue };
                if let Some(name) = lease {
                    let is_admitted = decision.as_ref().is_ok_and(|decision| !decision.is_denied());
                    pass.leases.note(timed.op, name, &timed.call, is_admitted);
                }
                progress.add(1);
                replayed += 1;
                if json {
                    decisions.add(place, timed.op, &decision);
                } else {
                    tally.add(&timed, &decision);
                }
            }
            decisions.print()?;
        }
        recording.check(pass.read, replayed)?;
        tallies.push(tally);
    }
    Ok(tallies)
}

const MOST_PANELS: usize = 20;

/// The panels of a picture, which show all keys of their limits together, or one.
fn panels(recording: &Recording, args: &PlotArgs, only_key: Option<&str>) -> Result<Vec<Panel>> {
    let Recording { limits, summary, .. } = recording;
    let (first, last) = summary.span.unwrap_or_default();
    let bins = Bins::over(first, last, args.bin, summary.resolution)?;
    let only_key = only_key.map(|text| recording.key_named(text));
    let mut buckets = recording.buckets();
    buckets.retain(|(_, keys)| only_key.as_ref().is_none_or(|key| keys.contains(key)));
    CliError::refuse_if(only_key.is_some() && buckets.is_empty(), "no recorded call has the key of --only-key")?;
    buckets.retain(|(name, _)| limits.get(name).is_some_and(|limit| limit.kind() != Kind::Gate));
    let why = "--plot has nothing to draw: the calls use no limit that takes tokens";
    CliError::refuse_if(buckets.is_empty(), why)?;
    if buckets.len() > MOST_PANELS {
        output::note(format!("the calls use {} limits: only the first {MOST_PANELS} are drawn", buckets.len()));
        buckets.truncate(MOST_PANELS);
    }
    let panel = |(name, keys): (Arc<str>, HashSet<Arc<str>>)| {
        let all = keys.len();
        let is_one = only_key.is_some() || all <= 1;
        let about = if is_one { String::new() } else { format!("; {} keys together", grouped(all as u64)) };
        let key = only_key.clone().or_else(|| keys.into_iter().next().filter(|_| is_one));
        Some(Panel::new(&name, *limits.get(&name)?, &about, bins, key))
    };
    Ok(buckets.into_iter().filter_map(panel).collect())
}

/// The questions for the balances to draw, in the order of time. `applied`: for an access log, the limit of the pass.
fn questions(panels: &[Panel], applied: Option<&Arc<str>>) -> Vec<Asked> {
    let mut questions = Vec::new();
    for (place, panel) in panels.iter().enumerate() {
        let is_decided = applied.is_none_or(|name| *name == panel.name);
        let Some(key) = panel.key.as_deref().filter(|_| is_decided) else { continue };
        let call = Call::from(Item::new(&*panel.name, key).count(0));
        let question = |at| Timed { at, op: Op::Check, call: call.clone(), tag: Purpose::Balance(place) };
        questions.extend(panel.moments().map(question));
    }
    questions.sort_by_key(|question| question.at);
    questions
}

/// Adds a call of the recording, or the answer to one of the questions.
fn add(panels: &mut [Panel], timed: &Asked, decision: &Result<Decision, InvalidCall>) {
    let Ok(decision) = decision else { return };
    if let Purpose::Balance(panel) = timed.tag {
        panels[panel].balance(timed.at, decision.remaining());
        return;
    }
    for (item, state) in timed.call.items().iter().zip(decision.limits()).filter(|_| timed.op == Op::Limit) {
        let has_key = |panel: &Panel| panel.key.as_ref().is_none_or(|key| **key == *item.key().as_str());
        if let Some(panel) = panels.iter_mut().find(|panel| panel.name == state.limit && has_key(panel)) {
            panel.add(timed.at, item.tokens(), Bar::part(decision, state.denied), state.remaining);
        }
    }
}

fn read(args: &ReplayArgs, sourced: Sourced) -> Result<Recording> {
    let Some(recorded) = args.recorded() else {
        return Err(CliError::usage("nothing to replay: use --events FILE, or --apply NAME and --access-log FILE"));
    };
    let applied = named(&sourced, "--apply", &args.apply)?;
    let why = "counts slots, and a log does not say when a request gave its slot back: apply another limit";
    refuse_kind(&applied, Kind::Concurrency, why)?;
    let is_ambiguous = args.json && applied.len() > 1;
    CliError::refuse_if(is_ambiguous, "--json prints the decisions of one limit: give --apply once")?;
    let source = Source::open(recorded)?;
    let log = args.access_log.as_ref().map(|_| Log::new(&args.log, &applied)).transpose()?;
    Recording::read(source, log, sourced.limits, &args.lines)
}

fn tables(args: &ReplayArgs, recording: &Recording, tallies: &[Tally]) -> Vec<String> {
    let by = args.access_log.as_ref().map(|_| args.log.key());
    let mut lines = Vec::new();
    for (place, tally) in tallies.iter().enumerate() {
        lines.extend((place > 0).then(String::new));
        let name = args.apply.get(place);
        lines.extend(name.and_then(|name| Some(describe(name, recording.limits.get(name)?))));
        lines.extend(table(tally, by, recording.summary.span));
    }
    lines
}

fn picture(args: &ReplayArgs, panels: Vec<Panel>) -> Picture {
    let name = |path: &Path| match path.file_name() {
        Some(name) if !input::is_stdin(path) => name.to_string_lossy().into_owned(),
        _ => input::name(path),
    };
    let by = args.access_log.as_ref().map(|_| format!(", limited by {}", args.log.key()));
    let only = args.only_key.as_ref().map(|key| format!(", the key {}", escaped(key)));
    let heading = args.recorded().map(name).into_iter().chain(by).chain(only).collect();
    Picture { heading, clock: Clock::Utc, panels }
}

/// Applies each limit alone to an access log of at most `most` lines. Returns a panel for each, and notes on the lines.
pub(crate) async fn panels_of_log(
    log: &[u8],
    options: &LogOptions,
    named: &[(Arc<str>, Limit)],
    most: usize,
    sandbox: &mut Sandbox,
) -> Result<(Vec<Panel>, Vec<String>)> {
    let limits = defined(named)?;
    let source = Source::bytes("the access log", log)?;
    let lines = LineArgs { max_bad_lines: None, strict: false, sort_window: 250_000 };
    let recording = Recording::read(source, Some(Log::new(options, named)?), limits, &lines)?;
    let (lines, most) = (recording.summary.lines, most as u64);
    CliError::refuse_if(lines == 0, "the access log has no lines")?;
    CliError::refuse_if(lines > most, format!("the access log has more than {} lines", grouped(most)))?;
    let mut panels = panels(&recording, &PlotArgs::default(), None)?;
    replay(false, &recording, &mut panels, sandbox, &Progress::hidden()).await?;
    Ok((panels, recording.summary.notes))
}
