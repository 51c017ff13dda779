use std::process::ExitCode;

use clap::Subcommand;

use crate::database::Database;
use crate::error::CliError;
use crate::error::EXIT_CODES;
use crate::queue::cancel::{self, CancelArgs};
use crate::queue::discard::{self, DiscardArgs};
use crate::queue::ls::{self, LsArgs};
use crate::queue::requeue::{self, RequeueArgs};
use crate::queue::resume::{self, ResumeArgs};
use crate::queue::show::{self, ShowArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// List the groups of the queues with the number of jobs in each state, or list jobs
    #[command(after_help = EXIT_CODES)]
    Ls(LsArgs),
    /// Show all fields of one job
    #[command(after_help = EXIT_CODES)]
    Show(ShowArgs),
    /// Requeue dead or cancelled jobs with all their attempts, and print when each will run
    #[command(after_help = EXIT_CODES)]
    Requeue(RequeueArgs),
    /// End the wait of a group that a handler asked for, so that its jobs start again
    #[command(after_help = EXIT_CODES)]
    Resume(ResumeArgs),
    /// Cancel jobs that have not started, and return their tokens
    #[command(after_help = EXIT_CODES)]
    Cancel(CancelArgs),
    /// Remove dead jobs
    #[command(after_help = EXIT_CODES)]
    Discard(DiscardArgs),
}

pub(crate) async fn run(command: QueueCommand, database: Database) -> Result<ExitCode, CliError> {
    match command {
        QueueCommand::Ls(args) => ls::run(args, database).await,
        QueueCommand::Show(args) => show::run(args, database).await,
        QueueCommand::Requeue(args) => requeue::run(args, database).await,
        QueueCommand::Resume(args) => resume::run(args, database).await,
        QueueCommand::Cancel(args) => cancel::run(args, database).await,
        QueueCommand::Discard(args) => discard::run(args, database).await,
    }
}
