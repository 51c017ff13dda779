use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::database::Database;
use crate::error::CliError;
use crate::progress::Progress;
use crate::queue::each::{Became, check, each};
use crate::queue::queues::{Queues, job_limits, with_queues};
use crate::queue::time;
use crate::{output, text};
use pg_limiter::queue::{JobFilter, JobInfo, JobState};
use pg_limiter::{Error, InvalidJob, Op};

#[derive(Args, Debug)]
pub(crate) struct RequeueArgs {
    /// Ids of the jobs to requeue, which must be dead or cancelled
    #[arg(value_name = "ID", required_unless_present = "dead")]
    ids: Vec<i64>,
    /// Requeue all dead jobs of this queue
    #[arg(long, value_name = "QUEUE", conflicts_with = "ids")]
    dead: Option<String>,
    /// Limits file that defines the limits of the jobs, to reserve their tokens again: TOML, or JSON if its name ends in
    /// .json; `-` is standard input [default: the limits stored in the database]
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: RequeueArgs, database: Database) -> Result<ExitCode, CliError> {
    let limits = job_limits(args.limits.as_deref(), &database).await?;
    with_queues(database, limits, async |queues| {
        let ids = match &args.dead {
            None => args.ids,
            Some(queue) => dead(&queues, queue, args.json).await?,
        };
        each(&queues, "requeueing jobs", &ids, args.json, async |job| requeue(&queues, job).await).await
    })
    .await
}

async fn dead(queues: &Queues, queue: &str, json: bool) -> Result<Vec<i64>, CliError> {
    let _progress = Progress::of("reading the dead jobs");
    let mut filter = JobFilter::default();
    filter.queue = Some(queue.to_owned());
    filter.state = Some(JobState::Dead);
    let ids: Vec<i64> = queues.all.jobs(&filter, u32::MAX).await?.iter().map(|job| job.id).collect();
    if ids.is_empty() {
        queues.must_have(queue).await?;
        if !json {
            output::line(format!("no dead jobs in the queue \"{}\"", text::escaped(queue)))?;
        }
    }
    Ok(ids)
}

/// Runs a dead or cancelled job again.
pub(crate) async fn requeue(queues: &Queues, job: JobInfo) -> Result<Became, CliError> {
    let neither = |how: &str| format!("job {} is {how}; only dead and cancelled jobs can be requeued", job.id);
    if !matches!(job.state, JobState::Dead | JobState::Cancelled) {
        return Ok(Became::refused(job.state, neither(job.state.as_str())));
    }
    if let Err(refused) = check(&job, Op::Limit, &queues.limits()) {
        return Ok(refused);
    }
    let requeued = match queues.queue(&job.queue)?.requeue(job.id).await {
        Err(Error::InvalidJob(taken @ InvalidJob::UniqueIdTaken { .. })) => {
            return Ok(Became::refused(job.state, taken.to_string()));
        }
        requeued => requeued?,
    };
    let Some(at) = requeued else {
        return Ok(Became::Refused { state: None, why: neither("no longer dead or cancelled") });
    };
    Ok(Became::Done(format!("runs at {}", time::human(at)), ("run_at", time::exact(at))))
}
