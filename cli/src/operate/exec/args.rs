//! The arguments of `exec`, its outcomes, and their exit codes.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::signals::exit_code;
use crate::text::{escaped, parse_length};
use crate::{CliError, KeySecretArgs, Result, input};
use pg_limiter::{Calendar, Call, Item, Kind, LeaseId, Limit, Limits};

pub(crate) const EXEC_EXIT_CODES: &str = "\
Exit codes:
  the code of the command; 128 and the number of the signal if a signal ended it; otherwise
  122  attempts     --once-every: no attempt is left in this window
  123  done         --once-every: the command was run in this window, or the outcome of its run is not known
  124  lost         the lease was lost, and the command was stopped
  125  no-slot      no slot was free in time (--wait): the command runs elsewhere
  126  not-started  the command cannot be started
  2    invalid      a request that can never be allowed, or an invalid argument or file
  3    failed       the database is unavailable or lacks the schema, or something else failed before the command was started
A command may end with the same codes: --exit-code NAME=CODE chooses others. Invalid options always exit with 2.

Examples, for cron jobs on many machines that must not run twice at the same time, and not twice a day:
  pg-limiter exec --slots 1 nightly-report -- ./report.sh
  pg-limiter exec --once-every '1 day' --zone Europe/Berlin nightly-report -- ./report.sh";

#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("the limit").required(true).args(["limits", "slots", "once_every"])))]
pub(crate) struct ExecArgs {
    /// Read the concurrency limit from this file: TOML, or JSON if its name ends in .json; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["slots", "lease"])]
    pub(super) limits: Option<PathBuf>,
    /// Define the limit here: how many commands with this key run at the same time
    #[arg(long, value_name = "COUNT")]
    pub(super) slots: Option<u32>,
    /// Run the command once in each window of this length, such as "1 day" or 30m, and never twice at the same time. If it
    /// fails, another server may try
    #[arg(long, value_name = "LENGTH", value_parser = parse_every, conflicts_with_all = ["limits", "slots", "count"])]
    pub(super) once_every: Option<Every>,
    /// Time zone in which the windows begin, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub(super) zone: Option<String>,
    /// Local date and time at which a window begins, such as "2026-01-01 12:00" [default: midnight]
    #[arg(long, value_name = "TIME")]
    pub(super) anchor: Option<String>,
    /// How often the command may be started in a window, until it succeeds [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_ATTEMPTS)))]
    attempts: Option<u32>,
    /// The time after which the slots are free if this process dies; it renews them three times in that time
    #[arg(long, value_name = "LENGTH", default_value = "30s", value_parser = parse_length)]
    pub(super) lease: Duration,
    /// Number of slots that the command holds
    #[arg(long, value_name = "SLOTS", default_value = "1")]
    pub(super) count: u32,
    /// Wait so long for free slots, such as 10m [default: do not wait]
    #[arg(long, value_name = "LENGTH", value_parser = parse_length)]
    pub(super) wait: Option<Duration>,
    /// The time between SIGTERM and SIGKILL, for a command that is stopped, and for the processes that it leaves behind
    #[arg(long, value_name = "LENGTH", default_value = "10s", value_parser = parse_length)]
    pub(super) grace: Duration,
    /// The exit code of an outcome of the tool itself, such as no-slot=0; the names are listed below
    #[arg(long, value_name = "NAME=CODE", value_parser = parse_exit_code)]
    pub(super) exit_code: Vec<(Failure, u8)>,
    /// The action if the lease is lost because the database could not be reached in time: other holders may have the slots
    #[arg(long, value_enum, value_name = "ACTION", default_value = "stop")]
    pub(super) on_lost: OnLost,
    #[command(flatten)]
    pub(super) secret: KeySecretArgs,
    /// Name of the limit
    pub(super) name: String,
    /// Key, such as the name of an environment; without one, all share the slots
    #[arg(default_value = "")]
    pub(super) key: String,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// The rate of the limit that counts attempts. A call leaves what it may not take, so that another `--attempts` applies at once.
const MOST_ATTEMPTS: u32 = 1000;

impl ExecArgs {
    /// The names of the two limits of `--once-every`: one counts runs that did not fail, the other one attempts.
    pub(super) fn names(&self) -> [String; 2] {
        ["run", "attempts"].map(|which| format!("{}.{which}", self.name))
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts.unwrap_or(3)
    }

    pub(super) fn limits(&self) -> Result<Limits> {
        if self.once_every.is_none() {
            let has_code = |of| self.exit_code.iter().any(|(failure, _)| *failure == of);
            let options = [
                ("--zone", self.zone.is_some()),
                ("--anchor", self.anchor.is_some()),
                ("--attempts", self.attempts.is_some()),
                ("--exit-code done", has_code(Failure::Done)),
                ("--exit-code attempts", has_code(Failure::Attempts)),
            ];
            let given = if self.limits.is_some() { "--limits" } else { "--slots" };
            CliError::refuse_without("--once-every", given, &options)?;
        }
        let has_place = self.zone.is_some() || self.anchor.is_some();
        if has_place && let Some(Every::Length(length)) = self.once_every {
            return Err(CliError::usage(format!(
                "--zone and --anchor are for windows of the calendar, and {} is a fixed time: use a number and a word, such as \
                 --once-every \"1 day\" or \"2 hours\"",
                pg_limiter::Length::from(length)
            )));
        }
        if let Some(path) = &self.limits {
            let (limits, file) = (input::read_limits(path)?, input::name(path));
            let name = escaped(&self.name);
            let wrong = match limits.get(&self.name).map(Limit::kind) {
                Some(Kind::Concurrency) => return Ok(limits),
                Some(kind) => format!("the limit \"{name}\" in {file} has the kind {kind}, which has no slots"),
                None => format!("{file} has no limit \"{name}\""),
            };
            return Err(CliError::usage(format!("{wrong}: name a concurrency limit of the file, or use --slots")));
        }
        // A run of `--once-every` takes the only slot.
        let slots = Limit::concurrency(self.slots.unwrap_or(1)).lease(self.lease);
        let limits = Limits::new().define(&self.name, slots).map_err(CliError::usage)?;
        let Some(every) = self.once_every else { return Ok(limits) };
        let window = |tokens| match every {
            Every::Length(length) => Limit::fixed_window(tokens, length).start(Duration::ZERO).build(),
            Every::Calendar(span) => {
                let limit = Limit::calendar(tokens, span).zone(self.zone.as_deref().unwrap_or("UTC"));
                if let Some(anchor) = &self.anchor { limit.anchor(anchor).build() } else { limit.build() }
            }
        };
        let [run, attempts] = self.names();
        let define = || limits.define(&run, window(1)?)?.define(&attempts, window(MOST_ATTEMPTS)?);
        define().map_err(CliError::usage)
    }

    /// The slots of a run and, if it runs once in a window, its tokens. They are taken together or not at all.
    pub(super) fn call(&self, id: LeaseId) -> Call {
        let mut items = vec![self.slots()];
        if self.once_every.is_some() {
            let [run, attempts] = self.names();
            items.extend([self.token(&run), self.token(&attempts).leave(MOST_ATTEMPTS - self.attempts())]);
        }
        Call::from(items).lease(id)
    }

    pub(super) fn slots(&self) -> Item {
        self.token(&self.name).count(self.count)
    }

    pub(super) fn token(&self, name: &str) -> Item {
        Item::new(name, self.key.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnLost {
    /// Send the command SIGTERM, and SIGKILL after the time of --grace
    Stop,
    /// Print a warning, and let the command run
    Warn,
}

/// The outcomes that have an exit code of the tool's own, with its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Failure {
    Invalid = 2,
    Failed = 3,
    Lost = 124,
    NoSlot = 125,
    NotStarted = 126,
    Done = 123,
    Attempts = 122,
}

pub(super) enum Outcome {
    /// The exit code of the command, or for a signal that came before it was started.
    Code(u8),
    /// Ctrl-C has ended the command.
    Interrupted,
    Failure(Failure),
}

impl Outcome {
    pub(super) fn of_command(status: ExitStatus) -> Self {
        let code = || status.code().and_then(|code| u8::try_from(code).ok());
        Self::Code(status.signal().map(exit_code).or_else(code).unwrap_or(u8::MAX))
    }

    pub(super) fn exit_code(&self, args: &ExecArgs) -> ExitCode {
        let set = |failure| args.exit_code.iter().rev().find(|(of, _)| of == failure).map(|(_, code)| *code);
        ExitCode::from(match self {
            Self::Code(code) => *code,
            Self::Interrupted => 130,
            Self::Failure(failure) => set(failure).unwrap_or(*failure as u8),
        })
    }
}

pub(super) fn parse_exit_code(text: &str) -> Result<(Failure, u8), String> {
    let (name, code) = text.split_once('=').ok_or("write OUTCOME=CODE, such as no-slot=0")?;
    let failure = Failure::from_str(name, false).map_err(|_| {
        let values = Failure::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<_> = values.map(|value| value.get_name().to_owned()).collect();
        format!("there is no outcome \"{name}\": use one of {}", names.join(", "))
    })?;
    Ok((failure, code.parse().map_err(|_| format!("\"{code}\" is no exit code: use 0 to 255"))?))
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Every {
    Calendar(Calendar),
    Length(Duration),
}

fn parse_every(text: &str) -> Result<Every, String> {
    let calendar = text.parse().map(Every::Calendar);
    calendar.or_else(|_| parse_length(text).map(Every::Length)).map_err(|error| {
        format!("{error}; or use a whole number of hours, days, weeks, months or years, such as \"1 day\"")
    })
}
