//! The commands that operate a limiter in use: they change, watch and examine a database.

pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod export;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod live;
pub(crate) mod migrate;
pub(crate) mod queue;
pub(crate) mod stored;
pub(crate) mod top;
pub(crate) mod ui;

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;

use crate::text::parse_length;
use crate::{Database, Result};
use pg_limiter::Op;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create the limiter's tables and functions, or bring them up to date
    Migrate(migrate::MigrateArgs),
    /// Print the grants that a role needs for what it does, and nothing else
    Grants(migrate::GrantsArgs),
    /// Take tokens, or report when they will be available
    Limit(keys::DecideArgs),
    /// Decide like `limit`, but take nothing
    Check(keys::DecideArgs),
    /// Print the balance of a bucket
    Peek {
        #[command(flatten)]
        what: keys::PeekArgs,
        #[command(flatten)]
        exact: stored::ExactArgs,
    },
    /// Reset a key, or all keys of a limit: their buckets are full again
    Reset(keys::ResetArgs),
    /// Block a key of a gate for a time: calls on it are denied
    Block {
        #[command(flatten)]
        what: keys::GateArgs,
        /// How long to block the key, such as 90s, 1h or 7d. A block that lasts longer stays
        #[arg(value_name = "LENGTH", value_parser = parse_length)]
        length: Duration,
    },
    /// End the block of a key of a gate
    Unblock(keys::GateArgs),
    /// Delete what is stored about a key, in all limits, queues and answers: for a request to erase personal data
    Forget(keys::ForgetArgs),
    /// Remove the rows of idle keys: their buckets are full with a row or without. Run it from cron. With
    /// --dead-older-than, also remove dead jobs of all queues
    Prune {
        /// Also remove jobs, of all queues, that have been dead for at least this long, such as 30d
        #[arg(long, value_name = "LENGTH", value_parser = parse_length)]
        dead_older_than: Option<Duration>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the stored limits, or store those of a file
    #[command(subcommand)]
    Limits(limits::LimitsCommand),
    /// Inspect the rate-limited queues; requeue, cancel or discard jobs
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Show the limits, keys and queues of a database in use, in a terminal; writes nothing
    #[command(after_help = top::TOP_EXIT_CODES)]
    Top(top::TopArgs),
    /// Examine a database and its limiter, and report problems and how to fix them; changes nothing
    #[command(after_help = doctor::DOCTOR_EXIT_CODES)]
    Doctor(doctor::DoctorArgs),
    /// Run a command while it holds slots of a concurrency limit: for cron jobs and deployments on many machines
    #[command(after_help = exec::EXEC_EXIT_CODES)]
    Exec(exec::ExecArgs),
    /// Write the rows of the buckets as JSON, one object per line, or as CSV
    Export(export::ExportArgs),
    /// Serve a web page that shows the limits, keys and queues of a database in use, and changes nothing unless it may
    Ui(ui::UiArgs),
}

pub(crate) async fn run(command: Command, database: Database) -> Result<ExitCode> {
    let code = run_on(&database, command).await;
    database.close().await;
    code
}

async fn run_on(database: &Database, command: Command) -> Result<ExitCode> {
    match command {
        Command::Grants(args) => migrate::grants(&args, database)?,
        Command::Peek { what, exact } => keys::peek(what, exact, database).await?,
        Command::Block { what, length } => keys::block(what, length, database).await?,
        Command::Unblock(args) => keys::unblock(args, database).await?,
        Command::Forget(args) => keys::forget(args, database).await?,
        Command::Prune { dead_older_than, json } => keys::prune(dead_older_than, json, database).await?,
        Command::Ui(args) => ui::run(args, database).await?,
        // The exit code of these depends on what they find.
        Command::Migrate(args) => return migrate::run(args, database).await,
        Command::Limit(args) => return keys::decide(Op::Limit, args, database).await,
        Command::Check(args) => return keys::decide(Op::Check, args, database).await,
        Command::Reset(args) => return keys::reset(args, database).await,
        Command::Limits(command) => return limits::run(command, database).await,
        Command::Queue(command) => return queue::run(command, database).await,
        Command::Top(args) => return top::run(args, database).await,
        Command::Doctor(args) => return doctor::run(args, database).await,
        Command::Exec(args) => return exec::run(args, database).await,
        Command::Export(args) => return export::run(args, database).await,
    }
    Ok(ExitCode::SUCCESS)
}
