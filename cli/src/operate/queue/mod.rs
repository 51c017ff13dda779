//! The command `queue`: inspects the rate-limited queues, and requeues, cancels or discards jobs, and pauses queues.

mod change;
mod hold;
mod jobs;
mod queues;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::database::Database;
use crate::error::{CliError, Result};
use crate::output::{self, Progress};
pub(crate) use change::{Became, cancel, requeue};
use change::{CancelArgs, DiscardArgs, RequeueArgs, cancel_jobs, discard_jobs, requeue_jobs};
use hold::{DrainArgs, HoldArgs, drain, pause, resume};
use pg_limiter::Limits;
use pg_limiter::queue::{JobFilter, JobState};
use queues::with_queues;
pub(crate) use queues::{Queues, no_such_job};

#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// List the groups of the queues with the number of jobs in each state, or list jobs
    Ls(LsArgs),
    /// Show all fields of one job
    Show {
        /// Id of the job
        id: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Requeue dead or cancelled jobs with all their attempts, and print when each will run
    Requeue(RequeueArgs),
    /// Pause a queue or a group: no job of it starts until it is resumed
    Pause(HoldArgs),
    /// Start the jobs of a queue or group again that is paused or draining, or for which a handler asked to wait
    Resume(HoldArgs),
    /// Let a queue run empty: it takes no new jobs until it is resumed, and works off those that it has
    Drain(DrainArgs),
    /// Cancel jobs that have not started, and return their tokens
    Cancel(CancelArgs),
    /// Remove dead jobs
    Discard(DiscardArgs),
}

pub(crate) async fn run(command: QueueCommand, database: Database) -> Result<ExitCode> {
    match command {
        QueueCommand::Ls(args) => ls(args, database).await?,
        QueueCommand::Show { id, json } => show(id, json, database).await?,
        QueueCommand::Pause(args) => pause(args, database).await?,
        QueueCommand::Resume(args) => resume(args, database).await?,
        QueueCommand::Drain(args) => drain(args, database).await?,
        QueueCommand::Requeue(args) => return requeue_jobs(args, database).await,
        QueueCommand::Cancel(args) => return cancel_jobs(args, database).await,
        QueueCommand::Discard(args) => return discard_jobs(args, database).await,
    }
    Ok(ExitCode::SUCCESS)
}

const JOBS_LISTED: u32 = 100;

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// List only this queue
    queue: Option<String>,
    /// List the jobs in this state: scheduled, available, running, done, dead or cancelled
    #[arg(long)]
    state: Option<JobState>,
    /// List the jobs of this group
    #[arg(long, value_name = "KEY")]
    group: Option<String>,
    /// List jobs, ordered by the time at which they run
    #[arg(long)]
    jobs: bool,
    /// Most jobs or groups to list [default: 100 jobs, all groups]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

async fn ls(args: LsArgs, database: Database) -> Result<()> {
    let list = async |queues: Queues| {
        let _progress = Progress::of("reading the queues");
        if args.jobs || args.state.is_some() || args.group.is_some() {
            list_jobs(&args, &queues).await
        } else {
            list_groups(&args, &queues).await
        }
    };
    let lines = with_queues(database, Limits::new(), list).await?;
    if lines.is_empty() && !args.json {
        output::line("no jobs")?;
    }
    output::lines(lines)
}

async fn list_groups(args: &LsArgs, queues: &Queues) -> Result<Vec<String>> {
    let mut listed = queues.all.group_counts(args.queue.as_deref()).await?;
    if let (true, Some(queue)) = (listed.is_empty(), &args.queue) {
        queues.must_have(queue).await?;
    }
    if let Some(most) = args.limit {
        cut(&mut listed, most, "groups");
    }
    Ok(if args.json { listed.iter().map(jobs::group_json).collect() } else { jobs::group_table(&listed) })
}

async fn list_jobs(args: &LsArgs, queues: &Queues) -> Result<Vec<String>> {
    let mut filter = JobFilter::default();
    filter.queue.clone_from(&args.queue);
    filter.group.clone_from(&args.group);
    filter.state = args.state;
    let most = args.limit.unwrap_or(JOBS_LISTED);
    // One more than is listed, to see if there are more.
    let mut listed = queues.all.jobs(&filter, most.saturating_add(1)).await?;
    if let (true, Some(queue)) = (listed.is_empty(), &args.queue) {
        queues.must_have(queue).await?;
    }
    cut(&mut listed, most, "jobs");
    Ok(if args.json { listed.iter().map(jobs::json).collect::<Result<_, _>>()? } else { jobs::job_table(&listed) })
}

fn cut<T>(listed: &mut Vec<T>, most: u32, what: &str) {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if listed.len() > most {
        listed.truncate(most);
        output::note(format!("the list ends after {most}: raise --limit to list more {what}"));
    }
}

async fn show(id: i64, json: bool, database: Database) -> Result<()> {
    let job = with_queues(database, Limits::new(), async |queues| queues.job(id).await).await?;
    let job = job.ok_or_else(|| CliError::usage(no_such_job(id)))?;
    if json { output::line(jobs::json(&job)?) } else { output::lines(jobs::description(&job)) }
}
