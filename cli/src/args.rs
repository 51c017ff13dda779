//! The arguments of the command line, and what runs the command that they name. `completions` and `man` are made from them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::database::{Database, DatabaseArgs};
use crate::error::{CliError, EXIT_CODES, Result};
use crate::{output, text};

/// Rate limits in PostgreSQL: try limits, use them in scripts, replay past traffic, operate the limiter.
#[derive(Debug, Parser)]
#[command(name = "pg-limiter", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) database: DatabaseArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

// There is one value of it.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    #[cfg(feature = "operate")]
    #[command(flatten)]
    Operate(crate::operate::Command),
    #[cfg(feature = "study")]
    #[command(flatten)]
    Study(crate::study::Command),
    /// Print the completions of commands and options for a shell, such as bash, fish or zsh
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the man page, or write the pages of all commands into a folder
    Man {
        /// Write a page for each command into this folder, such as /usr/local/share/man/man1, instead of printing the first
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
}

/// The definitions of the commands and their options.
pub fn command() -> clap::Command {
    let with_exit_codes = |command: clap::Command| {
        if command.get_after_help().is_some() { command } else { command.after_help(EXIT_CODES) }
    };
    Arguments::command().mut_subcommands(|command| match command.get_name() {
        "queue" => with_exit_codes(command).mut_subcommands(with_exit_codes),
        _ => with_exit_codes(command),
    })
}

/// Runs the tool with the arguments of this process, and returns its exit code.
pub fn main() -> ExitCode {
    let arguments = parsed(std::env::args_os()).unwrap_or_else(|error| {
        // The same error, with escapes for what a terminal would not show.
        let escaped = std::env::args_os().map(|argument| text::message(&argument.to_string_lossy()).into());
        parsed(escaped).err().unwrap_or(error).exit()
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::failed(format!("cannot start the runtime: {error}")));
    runtime.and_then(|runtime| runtime.block_on(run(arguments))).unwrap_or_else(|error| {
        if !matches!(error, CliError::OutputClosed) {
            output::note(&error);
        }
        ExitCode::from(error.exit_code())
    })
}

fn parsed(arguments: impl Iterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    command().try_get_matches_from(arguments).and_then(|matches| Arguments::from_arg_matches(&matches))
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    #[cfg(any(feature = "operate", feature = "study"))]
    let database = Database::new(arguments.database)?;
    let mut text = Vec::new();
    match arguments.command {
        #[cfg(feature = "operate")]
        Command::Operate(command) => return crate::operate::run(command, database).await,
        #[cfg(feature = "study")]
        Command::Study(command) => return crate::study::run(command, database).await,
        Command::Completions { shell } => clap_complete::generate(shell, &mut command(), "pg-limiter", &mut text),
        Command::Man { to: None } => clap_mangen::Man::new(command()).render(&mut text).map_err(CliError::failed)?,
        Command::Man { to: Some(dir) } => {
            let failed = |error| CliError::usage(format!("--to {}: {error}; name a folder to write to", dir.display()));
            return clap_mangen::generate_to(command(), &dir).map(|()| ExitCode::SUCCESS).map_err(failed);
        }
    }
    output::line(String::from_utf8_lossy(&text).trim_end()).map(|()| ExitCode::SUCCESS)
}
