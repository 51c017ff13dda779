use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::cli::database::Database;
use crate::cli::error::CliError;
use crate::cli::replay::apply::replay;
use crate::cli::replay::recording::Recording;
use crate::cli::replay::sandbox::Sandbox;
use crate::cli::replay::table::{describe, table};
use crate::cli::replay::tally::Tally;
use crate::cli::replay::{LogField, Replayed};
use crate::cli::{input, json, output};

#[derive(Args, Debug)]
pub(in crate::cli) struct ReplayArgs {
    /// The limits: TOML, or JSON if the file is called *.json; `-` is standard input
    #[arg(long, value_name = "FILE")]
    limits: PathBuf,
    /// Recorded calls, one JSON object a line, like
    /// {"at": 1767225600123, "op": "limit", "limit": "send_message", "key": "u1", "count": 1}; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["access_log", "apply", "key"])]
    events: Option<PathBuf>,
    /// For an access log: which limit to apply to each request
    #[arg(long, value_name = "NAME", requires = "access_log")]
    apply: Option<String>,
    /// A web server's access log in the common or the combined format; `-` is standard input
    #[arg(long, value_name = "FILE", requires = "apply")]
    access_log: Option<PathBuf>,
    /// For an access log: whom to limit
    #[arg(long, value_enum, value_name = "FIELD", requires = "access_log", default_value = "remote_addr")]
    key: LogField,
    /// Print the decision on each line as JSON, in the order of the lines, instead of a table
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) async fn run(args: ReplayArgs, database: Database) -> Result<ExitCode, CliError> {
    let recorded = args.events.as_deref().or(args.access_log.as_deref());
    if recorded.is_some_and(input::is_stdin) && input::is_stdin(&args.limits) {
        return Err(CliError::usage("only one of the files can be standard input"));
    }
    let limits = input::read_limits(&args.limits)?;
    let (recording, by) = match (&args.events, &args.apply, &args.access_log) {
        (Some(events), ..) => (Recording::events(events)?, None),
        (None, Some(name), Some(log)) => {
            if limits.get(name).is_none() {
                return Err(CliError::usage(format!("{} has no limit \"{name}\"", input::name(&args.limits))));
            }
            (Recording::access_log(log, name, args.key)?, Some(field_name(args.key)))
        }
        _ => {
            return Err(CliError::usage(
                "what is to be replayed? Give --events FILE, or --apply NAME and --access-log FILE",
            ));
        }
    };

    let running = database.start().await?;
    let mut sandbox = Sandbox::open(&running).await?;
    let mut tally = Tally::default();
    let mut decisions = vec![String::new(); if args.json { recording.len() } else { 0 }];
    replay(&recording, &limits, &mut sandbox, |replayed: Replayed<'_>| {
        if args.json {
            decisions[replayed.place] = match &replayed.decision {
                Ok(decision) => json::decision(decision),
                Err(error) => json::impossible(error),
            };
        } else {
            tally.add(&replayed);
        }
    })
    .await?;
    sandbox.close().await?;

    if args.json {
        output::lines(decisions)?;
    } else {
        let heading = args.apply.as_deref().and_then(|name| describe(&limits, name));
        output::lines(heading.into_iter().chain(table(&tally, by.as_deref())))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn field_name(field: LogField) -> String {
    field.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
