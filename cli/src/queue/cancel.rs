use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::database::Database;
use crate::error::CliError;
use crate::queue::each::{Became, check, each};
use crate::queue::queues::{Queues, job_limits, no_such_job, with_queues};
use pg_limiter::Op;
use pg_limiter::queue::{JobInfo, JobState};
use pg_limiter::{Error, InvalidJob};

#[derive(Args, Debug)]
pub(crate) struct CancelArgs {
    /// Ids of the jobs to cancel, which must be scheduled or available
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
    /// Limits file that defines the limits of the jobs, to return their tokens: TOML, or JSON if its name ends in .json;
    /// `-` is standard input [default: the limits stored in the database]
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: CancelArgs, database: Database) -> Result<ExitCode, CliError> {
    let limits = job_limits(args.limits.as_deref(), &database).await?;
    with_queues(database, limits, async |queues| {
        each(&queues, "cancelling jobs", &args.ids, args.json, async |job| cancel(&queues, job).await).await
    })
    .await
}

/// Cancels a job that has not started.
pub(crate) async fn cancel(queues: &Queues, job: JobInfo) -> Result<Became, CliError> {
    let waits = |state| matches!(state, JobState::Scheduled | JobState::Available);
    if waits(job.state)
        && let Err(refused) = check(&job, Op::Credit, &queues.limits())
    {
        return Ok(refused);
    }
    match queues.queue(&job.queue)?.cancel(job.id).await {
        Ok(was) if waits(was) => Ok(Became::Done("is cancelled".to_owned(), ("was", was.as_str().to_owned()))),
        Ok(state) => {
            let why = format!("job {} is {state}; only jobs that have not started can be cancelled", job.id);
            Ok(Became::refused(state, why))
        }
        Err(Error::InvalidJob(InvalidJob::UnknownJob { id, .. })) => {
            Ok(Became::Refused { state: None, why: no_such_job(id) })
        }
        Err(error) => Err(error.into()),
    }
}
