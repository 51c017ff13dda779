//! Simulations: in temporary tables, in a transaction that is rolled back.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::database::Running;
use crate::error::CliError;
use crate::plot::Panel;
use crate::replay::{LogOptions, Sandbox, panels_of_log};
use crate::simulate::{SimulateArgs, panels_of_traffic};
use pg_limiter::Limit;

/// The most calls of a simulation, so that it is drawn at once.
const MOST_CALLS: usize = 20_000;
/// An unused sandbox is closed after this time, because an open transaction keeps the server from removing dead rows.
const UNUSED: Duration = Duration::from_secs(10);
const OPEN: Duration = Duration::from_secs(60);

/// Runs one simulation at a time.
pub(super) struct Simulator {
    running: Arc<Running>,
    sandbox: Mutex<Option<Kept>>,
}

struct Kept {
    sandbox: Sandbox,
    opened: Instant,
    used: Instant,
}

/// The traffic to simulate.
pub(super) enum Offered {
    /// The arguments of `simulate`, with the limit.
    MadeUp(Box<SimulateArgs>),
    Recorded {
        log: Vec<u8>,
        options: Box<LogOptions>,
        limit: Limit,
    },
}

/// The result of a simulation.
pub(super) struct Outcome {
    pub(super) traffic: String,
    pub(super) panels: Vec<Panel>,
}

/// The options of `simulate`, without the name of the command.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Typed {
    #[command(flatten)]
    args: SimulateArgs,
}

/// Parses options of `simulate`, with its defaults and its messages.
pub(super) fn parse(options: &[String]) -> Result<SimulateArgs, CliError> {
    Typed::try_parse_from(options).map(|typed| typed.args).map_err(|error| {
        // The first paragraph, without the placeholders of values.
        let text = error.render().to_string();
        let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
        let reason = lines.join(" ");
        let reason = reason.strip_prefix("error: ").unwrap_or(&reason);
        CliError::usage(
            reason.split(" <").map(|part| part.split_once('>').map_or(part, |(_, rest)| rest)).collect::<String>(),
        )
    })
}

/// How the log is read. An empty format is the default.
pub(super) fn log_options(format: &str, key: &str) -> Result<LogOptions, CliError> {
    let format = Some(format).filter(|format| !format.is_empty()).map(str::parse).transpose();
    let log_format = format.map_err(|reason| CliError::usage(format!("--log-format: {reason}")))?;
    Ok(LogOptions { log_format, key: key.to_owned(), ..LogOptions::default() })
}

/// The limit that the options define.
pub(super) fn one_limit(args: &SimulateArgs) -> Result<Limit, CliError> {
    let first = args.limits(None)?.into_iter().next();
    first.map(|(_, limit)| limit).ok_or_else(|| CliError::usage("no limit given"))
}

impl Simulator {
    pub(super) fn new(running: Arc<Running>) -> Self {
        Self { running, sandbox: Mutex::new(None) }
    }

    /// `today`: another limit that is offered the same traffic.
    pub(super) async fn run(&self, offered: &Offered, today: Option<(Arc<str>, Limit)>) -> Result<Outcome, CliError> {
        let mut kept = self.sandbox.lock().await;
        let mut kept_one = kept.take();
        // The server may have ended the session since.
        if let Some(one) = &mut kept_one
            && one.sandbox.rewind().await.is_err()
        {
            kept_one = None;
        }
        let mut one = match kept_one {
            Some(one) => one,
            None => {
                let now = Instant::now();
                Kept { sandbox: Sandbox::open(&self.running).await?, opened: now, used: now }
            }
        };
        let outcome = match offered {
            Offered::MadeUp(args) => {
                let (traffic, panels) = panels_of_traffic(args, today, MOST_CALLS, &mut one.sandbox).await?;
                Outcome { traffic, panels }
            }
            Offered::Recorded { log, options, limit } => {
                let mut named: Vec<(Arc<str>, Limit)> = vec![(limit.kind().as_str().into(), *limit)];
                named.extend(today);
                let (panels, notes) = panels_of_log(log, options, &named, MOST_CALLS, &mut one.sandbox).await?;
                let traffic = std::iter::once("the access log".to_owned()).chain(notes).collect::<Vec<_>>().join("; ");
                Outcome { traffic, panels }
            }
        };
        one.used = Instant::now();
        *kept = Some(one);
        Ok(outcome)
    }

    /// Closes the sandbox when it is not used.
    pub(super) async fn tidy(&self) {
        loop {
            tokio::time::sleep(UNUSED / 2).await;
            let is_over = |one: &mut Kept| one.used.elapsed() > UNUSED || one.opened.elapsed() > OPEN;
            let over = self.sandbox.lock().await.take_if(is_over);
            if let Some(one) = over {
                let _ = one.sandbox.close().await;
            }
        }
    }

    pub(super) async fn close(&self) {
        if let Some(one) = self.sandbox.lock().await.take() {
            let _ = one.sandbox.close().await;
        }
    }
}
