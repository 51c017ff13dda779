//! The command line.

use clap::{Args, Parser, Subcommand};

use crate::bench::{BENCH_EXIT_CODES, BenchArgs};
use crate::decide::{DecideArgs, PeekArgs};
use crate::doctor::{DOCTOR_EXIT_CODES, DoctorArgs};
use crate::export::ExportArgs;
use crate::migrate::MigrateArgs;
use crate::prune::PruneArgs;
use crate::queue::QueueCommand;
use crate::replay::ReplayArgs;
use crate::reset::ResetArgs;
use crate::simulate::SimulateArgs;

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  allowed, reserved, or done
  1  denied; with --must-exist: there was no row; of `doctor`: there is a warning or a problem; of `bench --soak`: a violation, or growth
  2  a request that can never be allowed, a job for which it cannot be done, or a mistake in the arguments or files
  3  the database is unavailable, lacks the schema, or anything else failed

Without --database-url and DATABASE_URL, a private PostgreSQL server is started for this run only, where every bucket is full;
`doctor` and `export` want a database to be named.";

const SIMULATED_KIND: &str = "An inline limit instead: its kind, token_bucket, fixed_window or sliding_window [default: all of \
                              them, each with the options that apply to it]";

/// Rate limits inside PostgreSQL: try them, use them in scripts, replay past traffic.
#[derive(Debug, Parser)]
#[command(name = "pg-limiter", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) database: DatabaseArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Args, Debug)]
pub(super) struct DatabaseArgs {
    /// The database, as postgres://user:password@host/name [default: the environment variable DATABASE_URL]
    #[arg(long, global = true, help_heading = "The database", value_name = "URL")]
    pub(super) database_url: Option<String>,
    /// The schema that holds the limiter's table and functions (`demo`, `replay` and `simulate` make their own)
    #[arg(long, global = true, help_heading = "The database", value_name = "NAME", default_value = "public")]
    pub(super) schema: String,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show what the limits do, in about 15 seconds, with real calls in a schema of its own that is dropped afterwards
    #[command(after_help = EXIT_CODES)]
    Demo,
    /// What will this server carry? In about 20 seconds of full load, on rows of its own that are removed afterwards
    #[command(after_help = BENCH_EXIT_CODES)]
    Bench(BenchArgs),
    /// Create the limiter's table and functions, or bring them up to date
    #[command(after_help = EXIT_CODES)]
    Migrate(MigrateArgs),
    /// Take tokens, or say when they could be had
    #[command(after_help = EXIT_CODES)]
    Limit(DecideArgs),
    /// Decide like `limit`, and take nothing
    #[command(after_help = EXIT_CODES)]
    Check(DecideArgs),
    /// Show the balance
    #[command(after_help = EXIT_CODES)]
    Peek(PeekArgs),
    /// Forget a key, or all keys of a limit: their buckets are full again
    #[command(after_help = EXIT_CODES)]
    Reset(ResetArgs),
    /// Remove the rows of keys that are not in use: their buckets are full, with a row or without. For cron.
    /// With --dead-older-than, also remove dead jobs of the queues
    #[command(after_help = EXIT_CODES)]
    Prune(PruneArgs),
    /// Look at the rate-limited queues, run dead jobs again or discard them, cancel jobs
    #[command(subcommand, after_help = EXIT_CODES)]
    Queue(QueueCommand),
    /// Look at a database and its limiter, without changing anything: what is well, what is not, and what to do
    #[command(after_help = DOCTOR_EXIT_CODES)]
    Doctor(DoctorArgs),
    /// What do limits admit of constant, random or bursty traffic? The kinds compared, as a table and as a picture
    #[command(after_help = EXIT_CODES, mut_arg("kind", |kind| kind.help(SIMULATED_KIND)))]
    Simulate(SimulateArgs),
    /// Write the rows of the buckets as JSON, an object a line, or as CSV
    #[command(after_help = EXIT_CODES)]
    Export(ExportArgs),
    /// What would these limits have done to past traffic? Recorded calls or an access log, on the recorded clock
    #[command(after_help = EXIT_CODES)]
    Replay(ReplayArgs),
}
