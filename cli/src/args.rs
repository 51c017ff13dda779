//! The arguments of the command line.

use clap::{CommandFactory, Parser, Subcommand};

use crate::bench::{BENCH_EXIT_CODES, BenchArgs};
use crate::database::DatabaseArgs;
use crate::decide::{BlockArgs, DecideArgs, PeekKeyArgs, UnblockArgs};
use crate::demo::DemoArgs;
use crate::doctor::{DOCTOR_EXIT_CODES, DoctorArgs};
use crate::error::EXIT_CODES;
use crate::exec::{EXEC_EXIT_CODES, ExecArgs};
use crate::export::ExportArgs;
use crate::limits::LimitsCommand;
use crate::migrate::{GrantsArgs, MigrateArgs};
use crate::queue::QueueCommand;
use crate::removal::{ForgetArgs, PruneArgs, ResetArgs};
use crate::replay::ReplayArgs;
use crate::shell::{CompletionsArgs, ManArgs};
use crate::simulate::SimulateArgs;
use crate::top::{TOP_EXIT_CODES, TopArgs};
use crate::ui::UiArgs;

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
    let command = Arguments::command().mut_subcommands(with_exit_codes);
    command.mut_subcommand("queue", |queue| queue.mut_subcommands(with_exit_codes))
}
