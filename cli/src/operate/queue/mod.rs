//! The command `queue`: inspects the rate-limited queues, and requeues, cancels or discards jobs, and pauses queues.

mod change;
mod jobs;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::text::{escaped, quoted};
use crate::{CliError, Database, Progress, Result, output};
pub(crate) use change::{Became, cancel, requeue};
use change::{HoldArgs, RequeueArgs};
use change::{cancel_jobs, discard_jobs, drain, hold, requeue_jobs};
use pg_limiter::queue::{JobFilter, JobInfo, JobState, Queue, Queues};
use pg_limiter::{Limiter, Limits};

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
    Drain {
        /// The queue
        queue: String,
        /// Wait until no job is left
        #[arg(long)]
        wait: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Cancel jobs that have not started, and return their tokens
    Cancel {
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
    },
    /// Remove dead jobs
    Discard {
        /// Ids of the jobs to discard, which must be dead
        #[arg(value_name = "ID", required_unless_present = "queue")]
        ids: Vec<i64>,
        /// Discard all dead jobs of this queue; with ids, only those of them that are in this queue
        #[arg(long, value_name = "QUEUE")]
        queue: Option<String>,
        /// Print JSON, one object per line
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(command: QueueCommand, database: &Database) -> Result<ExitCode> {
    match command {
        QueueCommand::Ls(args) => ls(args, database).await?,
        QueueCommand::Show { id, json } => show(id, json, database).await?,
        QueueCommand::Pause(args) => hold(args, database, true).await?,
        QueueCommand::Resume(args) => hold(args, database, false).await?,
        QueueCommand::Drain { queue, wait, json } => drain(&queue, wait, json, database).await?,
        QueueCommand::Requeue(args) => return requeue_jobs(args, database).await,
        QueueCommand::Cancel { ids, limits, json } => return cancel_jobs(&ids, limits, json, database).await,
        QueueCommand::Discard { ids, queue, json } => return discard_jobs(&ids, queue, json, database).await,
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

async fn ls(args: LsArgs, database: &Database) -> Result<()> {
    let limiter = database.limiter(Limits::new(), None).await?;
    let progress = Progress::of("reading the queues");
    let queues = Queues::new(&limiter);
    let mut lines: Vec<String> = if args.jobs || args.state.is_some() || args.group.is_some() {
        let most = args.limit.unwrap_or(JOBS_LISTED);
        let mut filter = of_queue(args.queue.as_deref());
        (filter.group, filter.state) = (args.group, args.state);
        // One more than is listed, to see if there are more.
        let mut listed = queues.jobs(&filter, most.saturating_add(1)).await?;
        cut(&mut listed, most, "jobs");
        if args.json { listed.iter().map(jobs::json).collect::<Result<_>>()? } else { jobs::job_table(&listed) }
    } else {
        let mut listed = queues.group_counts(args.queue.as_deref()).await?;
        cut(&mut listed, args.limit.unwrap_or(u32::MAX), "groups");
        if args.json { listed.iter().map(jobs::group_json).collect() } else { jobs::group_table(&listed) }
    };
    if let (true, Some(queue)) = (lines.is_empty(), &args.queue) {
        must_have(&limiter, queue).await?;
    }
    drop(progress);
    if lines.is_empty() && !args.json {
        lines.push("no jobs".to_owned());
    }
    output::lines(lines)
}

fn cut<T>(listed: &mut Vec<T>, most: u32, what: &str) {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if listed.len() > most {
        listed.truncate(most);
        output::note(format!("the list ends after {most}: raise --limit to list more {what}"));
    }
}

async fn show(id: i64, json: bool, database: &Database) -> Result<()> {
    let job = job(&database.limiter(Limits::new(), None).await?, id).await?;
    let job = job.ok_or_else(|| CliError::usage(no_such_job(id)))?;
    if json { output::line(jobs::json(&job)?) } else { output::lines(jobs::description(&job)) }
}

pub(crate) async fn job(limiter: &Limiter, id: i64) -> Result<Option<JobInfo>> {
    let _progress = Progress::of("reading the job");
    let mut filter = JobFilter::default();
    filter.id = Some(id);
    Ok(Queues::new(limiter).jobs(&filter, 1).await?.pop())
}

pub(crate) fn no_such_job(id: i64) -> String {
    format!("there is no job {id}; it may have been pruned")
}

fn of_queue(name: Option<&str>) -> JobFilter {
    let mut filter = JobFilter::default();
    filter.queue = name.map(str::to_owned);
    filter
}

fn queue(limiter: &Limiter, name: &str) -> Result<Queue> {
    Queue::new(limiter, name).map_err(CliError::usage)
}

async fn has_jobs(limiter: &Limiter, queue: &str) -> Result<bool> {
    Ok(!Queues::new(limiter).jobs(&of_queue(Some(queue)), 1).await?.is_empty())
}

/// Returns an error if the queue does not exist: a queue exists while it has jobs, or is paused or draining.
async fn must_have(limiter: &Limiter, queue: &str) -> Result<()> {
    if has_jobs(limiter, queue).await? {
        return Ok(());
    }
    let groups = Queues::new(limiter).group_counts(None).await?;
    let mut names: Vec<_> = groups.iter().map(|group| group.queue.as_str()).collect();
    names.dedup();
    let others = match &names[..] {
        names if names.contains(&queue) => return Ok(()),
        [] => "no queue has jobs".to_owned(),
        names => format!("queues: {}", quoted(names)),
    };
    Err(CliError::usage(format!("there is no queue \"{}\"; {others}", escaped(queue))))
}
