use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::database::Database;
use crate::error::CliError;
use crate::plot::{Clock, Picture, PlotArgs};
use crate::progress::Progress;
use crate::replay::LogField;
use crate::replay::apply::{Timed, decide_all};
use crate::replay::merge::in_time_order;
use crate::replay::pictured::Pictured;
use crate::replay::recording::Recording;
use crate::replay::sandbox::Sandbox;
use crate::replay::table::table;
use crate::replay::tally::Tally;
use crate::text::describe;
use crate::{input, json, output};
use pg_limiter::{Limits, Op};

#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// Limits file: TOML, or JSON if its name ends in .json; `-` is standard input
    #[arg(long, value_name = "FILE")]
    limits: PathBuf,
    /// Recorded calls, one JSON object per line, such as
    /// {"at": 1767225600123, "op": "limit", "limit": "send_message", "key": "u1", "count": 1}; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["access_log", "apply", "key"])]
    events: Option<PathBuf>,
    /// For an access log: the limit to apply to each request; repeat for several limits, each of which is applied alone
    #[arg(long, value_name = "NAME", requires = "access_log")]
    apply: Vec<String>,
    /// Access log of a web server, in the common or the combined format; `-` is standard input
    #[arg(long, value_name = "FILE", requires = "apply")]
    access_log: Option<PathBuf>,
    /// For an access log: the field of a request to use as the key
    #[arg(long, value_enum, value_name = "FIELD", requires = "access_log", default_value = "remote_addr")]
    key: LogField,
    #[command(flatten)]
    plot: PlotArgs,
    /// Draw only the traffic of this key, with its balance [default: all keys together]
    #[arg(long, value_name = "KEY", requires = "plot")]
    only_key: Option<String>,
    /// Print the decision on each line as JSON instead of a table, in the order of the lines
    #[arg(long)]
    json: bool,
}

/// A question to the database.
enum Purpose {
    /// The call of a line.
    Line(usize),
    /// A balance for a panel of the picture.
    Balance(usize),
}

pub(crate) async fn run(args: ReplayArgs, database: Database) -> Result<ExitCode, CliError> {
    let recorded = args.events.as_deref().or(args.access_log.as_deref());
    if recorded.is_some_and(input::is_stdin) && input::is_stdin(&args.limits) {
        return Err(CliError::usage(
            "--limits and the recorded calls cannot both be standard input: name a file for one of them",
        ));
    }
    let file = args.plot.file()?;
    let limits = input::read_limits(&args.limits)?;
    // Standard input may be typed: show no progress beside it.
    let reading = recorded.filter(|path| !input::is_stdin(path)).map(|_| Progress::of("reading the recorded calls"));
    let recording = read(&args, &limits)?;
    drop(reading);
    let mut pictured = match &file {
        Some(_) => Some(Pictured::new(&recording, &limits, &args.plot, args.only_key.as_deref())?),
        None => None,
    };

    let running = database.start().await?;
    let mut sandbox = Sandbox::open(&running).await?;
    let order = recording.in_time_order();
    let progress = Progress::parts("replaying", recording.passes() * order.len());
    let mut tallies = Vec::new();
    let mut decisions = vec![String::new(); if args.json { recording.len() } else { 0 }];
    for pass in 0..recording.passes() {
        let mut tally = Tally::default();
        let questions = pictured.as_ref().map(|drawn| drawn.questions(pass, recording.passes())).unwrap_or_default();
        let calls = in_time_order(
            questions.into_iter().map(|question| question.tagged(Purpose::Balance)),
            recording.calls(pass, &order).map(|call| call.tagged(Purpose::Line)),
        );
        decide_all(calls, &limits, &mut sandbox, |timed: Timed<Purpose>, decision| match (&timed.tag, &mut pictured) {
            (Purpose::Balance(panel), Some(drawn)) => drawn.answered(*panel, timed.at, &decision),
            (Purpose::Balance(_), None) => {}
            (Purpose::Line(place), drawn) => {
                progress.add(1);
                if let Some(drawn) = drawn {
                    drawn.add(&timed, &decision);
                }
                if args.json {
                    decisions[*place] = match &decision {
                        Ok(decision) if matches!(timed.op, Op::Release | Op::Renew) => json::was_held(decision),
                        Ok(decision) => json::decision(decision),
                        Err(error) => json::impossible(error),
                    };
                } else {
                    tally.add(&timed, &decision);
                }
            }
        })
        .await?;
        tallies.push(tally);
    }
    drop(progress);
    sandbox.close().await?;

    if let (Some(file), Some(pictured)) = (file, pictured) {
        file.draw(&picture(&args, pictured))?;
    }
    if args.json {
        output::lines(decisions)?;
    } else {
        output::lines(tables(&args, &limits, &tallies))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(args: &ReplayArgs, limits: &Limits) -> Result<Recording, CliError> {
    match (&args.events, args.apply.as_slice(), &args.access_log) {
        (Some(events), ..) => Recording::events(events, limits),
        (None, [_, ..], Some(log)) => {
            for (place, name) in args.apply.iter().enumerate() {
                if limits.get(name).is_none() {
                    return Err(CliError::usage(format!(
                        "{} defines no limit \"{name}\": define it there, or apply another",
                        input::name(&args.limits)
                    )));
                }
                if args.apply[..place].contains(name) {
                    return Err(CliError::usage(format!("--apply {name} is given twice: give it once")));
                }
            }
            if args.json && args.apply.len() > 1 {
                return Err(CliError::usage("--json prints the decisions of one limit: give --apply once"));
            }
            Recording::access_log(&input::read(log)?, &input::name(log), &args.apply, args.key)
        }
        _ => Err(CliError::usage("nothing to replay: use --events FILE, or --apply NAME and --access-log FILE")),
    }
}

/// The tables, one for each limit that was applied.
fn tables(args: &ReplayArgs, limits: &Limits, tallies: &[Tally]) -> Vec<String> {
    let by = args.access_log.as_ref().map(|_| field_name(args.key));
    let mut lines = Vec::new();
    for (place, tally) in tallies.iter().enumerate() {
        if place > 0 {
            lines.push(String::new());
        }
        let name = args.apply.get(place);
        lines.extend(name.and_then(|name| Some(describe(name, limits.get(name)?))));
        lines.extend(table(tally, by.as_deref()));
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
        heading.push_str(&format!(", limited by {}", field_name(args.key)));
    }
    if let Some(key) = &args.only_key {
        heading.push_str(&format!(", the key {key}"));
    }
    Picture { heading, clock: Clock::Utc, panels: pictured.into_panels() }
}

fn field_name(field: LogField) -> String {
    field.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
