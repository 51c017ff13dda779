//! Why `exec` ends, and the exit codes.

use std::process::{ExitCode, ExitStatus};

use clap::ValueEnum;

use crate::error::CliError;
use crate::exec::args::ExecArgs;

/// The outcomes that have an exit code of the tool's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Failure {
    Invalid,
    Failed,
    Lost,
    NoSlot,
    NotStarted,
    Done,
    Attempts,
}

pub(super) enum Outcome {
    Ended(ExitStatus),
    /// A signal came before the command was started.
    Signal(u8),
    Failure(Failure),
}

impl Failure {
    const fn default_code(self) -> u8 {
        match self {
            Self::Invalid => 2,
            Self::Failed => 3,
            Self::Lost => 124,
            Self::NoSlot => 125,
            Self::NotStarted => 126,
            Self::Done => 123,
            Self::Attempts => 122,
        }
    }

    pub(super) const fn of(error: &CliError) -> Self {
        match error {
            CliError::Usage(_) => Self::Invalid,
            CliError::Failed(_) | CliError::OutputClosed => Self::Failed,
        }
    }
}

impl Outcome {
    pub(super) fn exit_code(&self, args: &ExecArgs) -> ExitCode {
        ExitCode::from(match self {
            Self::Ended(status) => code_of(*status),
            Self::Signal(number) => 128 + number,
            Self::Failure(failure) => {
                let set = args.exit_code.iter().rev().find(|(of, _)| of == failure);
                set.map_or(failure.default_code(), |(_, code)| *code)
            }
        })
    }
}

fn code_of(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Reads `no-slot=0`.
pub(super) fn parse_exit_code(text: &str) -> Result<(Failure, u8), String> {
    let names = || {
        let values = Failure::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        values.map(|value| value.get_name().to_owned()).collect::<Vec<_>>().join(", ")
    };
    let (name, code) = text.split_once('=').ok_or("write OUTCOME=CODE, such as no-slot=0")?;
    let failure =
        Failure::from_str(name, false).map_err(|_| format!("there is no outcome {name:?}: use one of {}", names()))?;
    let code = code.parse().map_err(|_| format!("{code:?} is no exit code: use 0 to 255"))?;
    Ok((failure, code))
}
