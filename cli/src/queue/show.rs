use std::process::ExitCode;

use clap::Args;

use crate::database::Database;
use crate::error::CliError;
use crate::output;
use crate::queue::jobs;
use crate::queue::queues::{no_such_job, with_queues};
use pg_limiter::Limits;

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// Id of the job
    id: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: ShowArgs, database: Database) -> Result<ExitCode, CliError> {
    let job = with_queues(database, Limits::new(), async |queues| queues.job(args.id).await).await?;
    let job = job.ok_or_else(|| CliError::usage(no_such_job(args.id)))?;
    if args.json {
        output::line(jobs::json(&job)?)?;
    } else {
        output::lines(jobs::description(&job))?;
    }
    Ok(ExitCode::SUCCESS)
}
