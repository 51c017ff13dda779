//! The arguments of the command line, and what runs the command that they name. `completions` and `man` are made from their
//! definitions.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::bench::{self, BENCH_EXIT_CODES, BenchArgs};
use crate::database::{Database, DatabaseArgs};
use crate::decide::{self, BlockArgs, DecideArgs, PeekKeyArgs, UnblockArgs};
use crate::demo::{self, DemoArgs};
use crate::doctor::{self, DOCTOR_EXIT_CODES, DoctorArgs};
use crate::error::{CliError, EXIT_CODES};
use crate::exec::{self, EXEC_EXIT_CODES, ExecArgs};
use crate::export::{self, ExportArgs};
use crate::limits::{self, LimitsCommand};
use crate::migrate::{self, GrantsArgs, MigrateArgs};
use crate::output;
use crate::queue::{self, QueueCommand};
use crate::removal::{self, ForgetArgs, PruneArgs, ResetArgs};
use crate::replay::{self, ReplayArgs};
use crate::simulate::{self, SimulateArgs};
use crate::top::{self, TOP_EXIT_CODES, TopArgs};
use crate::ui::{self, UiArgs};
use pg_limiter::Op;

const SIMULATED_KIND: &str = "Define the limit inline: its kind, token_bucket, fixed_window, sliding_window or \
                              calendar_window [default: with --every, calendar_window; with --period, every other kind, each \
                              with the options that apply to it]";

/// Rate limits in PostgreSQL: try limits, use them in scripts, replay past traffic, operate the limiter.
#[derive(Debug, Parser)]
#[command(name = "pg-limiter", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) database: DatabaseArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Demonstrate limits with real calls, in about 15 seconds; uses its own schema and drops it afterwards
    Demo(DemoArgs),
    /// Measure what this server carries: about 20 seconds of full load, on its own rows, which are removed afterwards
    #[command(after_help = BENCH_EXIT_CODES)]
    Bench(BenchArgs),
    /// Create the limiter's tables and functions, or bring them up to date
    Migrate(MigrateArgs),
    /// Print the grants that a role needs for what it does, and nothing else
    Grants(GrantsArgs),
    /// Take tokens, or report when they will be available
    Limit(DecideArgs),
    /// Decide like `limit`, but take nothing
    Check(DecideArgs),
    /// Print the balance of a bucket
    Peek(PeekKeyArgs),
    /// Reset a key, or all keys of a limit: their buckets are full again
    Reset(ResetArgs),
    /// Block a key of a gate for a time: calls on it are denied
    Block(BlockArgs),
    /// End the block of a key of a gate
    Unblock(UnblockArgs),
    /// Delete what is stored about a key, in all limits, queues and answers: for a request to erase personal data
    Forget(ForgetArgs),
    /// Remove the rows of idle keys: their buckets are full with a row or without. Run it from cron. With
    /// --dead-older-than, also remove dead jobs of all queues
    Prune(PruneArgs),
    /// Print the stored limits, or store those of a file
    #[command(subcommand)]
    Limits(LimitsCommand),
    /// Inspect the rate-limited queues; requeue, cancel or discard jobs
    #[command(subcommand)]
    Queue(QueueCommand),
    /// Show the limits, keys and queues of a database in use, in a terminal; writes nothing
    #[command(after_help = TOP_EXIT_CODES)]
    Top(TopArgs),
    /// Examine a database and its limiter, and report problems and how to fix them; changes nothing
    #[command(after_help = DOCTOR_EXIT_CODES)]
    Doctor(DoctorArgs),
    /// Simulate constant, random or bursty traffic, and print or draw what limits admit of it
    #[command(mut_arg("kind", |kind| kind.help(SIMULATED_KIND)))]
    Simulate(SimulateArgs),
    /// Run a command while it holds slots of a concurrency limit: for cron jobs and deployments on many machines
    #[command(after_help = EXEC_EXIT_CODES)]
    Exec(ExecArgs),
    /// Write the rows of the buckets as JSON, one object per line, or as CSV
    Export(ExportArgs),
    /// Replay past traffic through limits: recorded calls or an access log, on the recorded clock
    Replay(ReplayArgs),
    /// Serve a web page that shows the limits, keys and queues of a database in use, and changes nothing unless it may
    Ui(UiArgs),
    /// Print the completions of commands and options for a shell, such as bash, fish or zsh
    Completions(CompletionsArgs),
    /// Print the man page, or write the pages of all commands into a folder
    Man(ManArgs),
}

/// The definitions of the commands and their options.
pub fn command() -> clap::Command {
    let with_exit_codes = |command: clap::Command| match command.get_after_help() {
        Some(_) => command,
        None => command.after_help(EXIT_CODES),
    };
    Arguments::command().mut_subcommands(|command| match command.get_name() {
        "queue" => with_exit_codes(command).mut_subcommands(with_exit_codes),
        _ => with_exit_codes(command),
    })
}

/// Runs the tool with the arguments of this process, and returns its exit code.
pub fn main() -> ExitCode {
    let parsed = command().try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            // clap prints help to stdout and errors to stderr. Ignore a closed stream.
            let _ = error.print();
            let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return ExitCode::from(if asked_for { 0 } else { 2 });
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::note(format!("cannot start the runtime: {error}"));
            return ExitCode::from(3);
        }
    };
    match runtime.block_on(run(arguments)) {
        Ok(code) => code,
        Err(error) => {
            if !matches!(error, CliError::OutputClosed) {
                output::note(&error);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

async fn run(arguments: Arguments) -> Result<ExitCode, CliError> {
    let database = Database::new(arguments.database)?;
    match arguments.command {
        Command::Demo(args) => demo::run(&args, database).await?,
        Command::Bench(args) => bench::run(args, database).await?,
        Command::Grants(args) => migrate::grants(&args, &database)?,
        Command::Peek(args) => decide::peek(args, database).await?,
        Command::Block(args) => decide::block(args, database).await?,
        Command::Unblock(args) => decide::unblock(args, database).await?,
        Command::Forget(args) => removal::forget(args, database).await?,
        Command::Prune(args) => removal::prune(args, database).await?,
        Command::Simulate(args) => simulate::run(args, database).await?,
        Command::Replay(args) => replay::run(args, database).await?,
        Command::Ui(args) => ui::run(args, database).await?,
        Command::Completions(args) => completions(&args)?,
        Command::Man(args) => man(&args)?,
        // The exit code of these depends on what they find.
        Command::Migrate(args) => return migrate::run(args, database).await,
        Command::Limit(args) => return decide::decide(Op::Limit, args, database).await,
        Command::Check(args) => return decide::decide(Op::Check, args, database).await,
        Command::Reset(args) => return removal::reset(args, database).await,
        Command::Limits(command) => return limits::run(command, database).await,
        Command::Queue(command) => return queue::run(command, database).await,
        Command::Top(args) => return top::run(args, database).await,
        Command::Doctor(args) => return doctor::run(args, database).await,
        Command::Exec(args) => return exec::run(args, database).await,
        Command::Export(args) => return export::run(args, database).await,
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Args, Debug)]
pub(super) struct ManArgs {
    /// Write a page for each command into this folder, such as /usr/local/share/man/man1, instead of printing the first
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Prints the completions for a shell.
pub(super) fn completions(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "pg-limiter", &mut script);
    print(&script)
}

/// Prints the man page, or writes those of all commands.
pub(super) fn man(args: &ManArgs) -> Result<(), CliError> {
    if let Some(dir) = &args.to {
        clap_mangen::generate_to(command(), dir)
            .map_err(|error| CliError::usage(format!("--to {}: {error}; name a folder to write to", dir.display())))?;
        return Ok(());
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command()).render(&mut page).expect("writing to memory does not fail");
    print(&page)
}

fn print(text: &[u8]) -> Result<(), CliError> {
    output::line(String::from_utf8_lossy(text).trim_end())
}
