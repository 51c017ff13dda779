//! Requeues, cancels and discards jobs, one after another.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::database::Database;
use crate::error::Result;
use crate::operate::queue::jobs::{exact, human};
use crate::operate::queue::queues::{Queues, job_limits, no_such_job, with_queues};
use crate::output::{self, Progress};
use crate::{json, text};
use pg_limiter::queue::{JobFilter, JobInfo, JobItem, JobState};
use pg_limiter::{Call, Error, InvalidCall, InvalidJob, Item, LeaseId, Limits, Op};

/// The result of the action on one job.
pub(crate) enum Became {
    /// The text after `job 7`, and a field for the JSON object.
    Done(String, (&'static str, String)),
    /// The reason why the job was left unchanged.
    Refused { state: Option<JobState>, why: String },
}

impl Became {
    fn refused(state: impl Into<Option<JobState>>, why: String) -> Self {
        Self::Refused { state: state.into(), why }
    }
}

/// Applies `act` to each job, which is the work `what`, and prints each result at once. It continues after a job that is refused, and after the
/// reader has closed standard output.
async fn each(
    queues: &Queues,
    what: &'static str,
    ids: &[i64],
    as_json: bool,
    act: impl AsyncFn(&Queues, JobInfo) -> Result<Became>,
) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let progress = Progress::parts(what, ids.len());
    for id in ids {
        let became = match queues.job(*id).await? {
            Some(job) => act(queues, job).await?,
            None => Became::refused(None, no_such_job(*id)),
        };
        if let Became::Refused { why, .. } = &became {
            code = ExitCode::from(2);
            output::note(why);
        }
        progress.add(1);
        let line = match became {
            Became::Done(_, (name, value)) if as_json => json::line(&json!({"ok": true, "id": id, name: value})),
            Became::Refused { state, why } if as_json => {
                json::line(&json!({"ok": false, "id": id, "state": state.map(JobState::as_str), "message": why}))
            }
            Became::Done(what, _) => format!("job {id} {what}"),
            Became::Refused { .. } => continue,
        };
        output::line_if_open(line)?;
    }
    Ok(code)
}

/// Checks that the limits of the job are defined: the database would omit an undefined one. With [`Op::Limit`], the counts
/// must be possible, too.
fn check(job: &JobInfo, op: Op, limits: &Limits) -> Result<(), Became> {
    let call = |items: &[JobItem]| {
        let items = items.iter().map(|item| Item::new(&item.limit, &item.key).count(item.count));
        Call::from(items.collect::<Vec<_>>())
    };
    let mut checked = if job.items.is_empty() { Ok(()) } else { call(&job.items).reserve().validate(op, limits) };
    if op == Op::Limit && !job.slots.is_empty() {
        checked = checked.and_then(|()| call(&job.slots).lease(LeaseId::random()).validate(op, limits));
    }
    let Err(error) = checked else { return Ok(()) };
    let why = match error {
        InvalidCall::UnknownLimit { limit } => format!(
            "its limit \"{limit}\" is not in the limits file, nor stored in the database; define it in one of them"
        ),
        error => error.to_string(),
    };
    Err(Became::refused(job.state, format!("job {}: {why}", job.id)))
}

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

pub(super) async fn cancel_jobs(args: CancelArgs, database: Database) -> Result<ExitCode> {
    let limits = job_limits(args.limits.as_deref(), &database).await?;
    let work = async |queues: Queues| each(&queues, "cancelling jobs", &args.ids, args.json, cancel).await;
    with_queues(database, limits, work).await
}

pub(crate) async fn cancel(queues: &Queues, job: JobInfo) -> Result<Became> {
    let waits = |state| matches!(state, JobState::Scheduled | JobState::Available);
    if waits(job.state)
        && let Err(refused) = check(&job, Op::Credit, &queues.limiter.limits())
    {
        return Ok(refused);
    }
    match queues.queue(&job.queue)?.cancel(job.id).await {
        Ok(was) if waits(was) => Ok(Became::Done("is cancelled".to_owned(), ("was", was.as_str().to_owned()))),
        Ok(state) => {
            let why = format!("job {} is {state}; only jobs that have not started can be cancelled", job.id);
            Ok(Became::refused(state, why))
        }
        Err(Error::InvalidJob(InvalidJob::UnknownJob { id, .. })) => Ok(Became::refused(None, no_such_job(id))),
        Err(error) => Err(error.into()),
    }
}

#[derive(Args, Debug)]
pub(crate) struct RequeueArgs {
    /// Ids of the jobs to requeue, which must be dead or cancelled
    #[arg(value_name = "ID", required_unless_present = "dead")]
    ids: Vec<i64>,
    /// Requeue all dead jobs of this queue
    #[arg(long, value_name = "QUEUE", conflicts_with = "ids")]
    dead: Option<String>,
    /// Only the dead jobs of this group
    #[arg(long, value_name = "KEY", requires = "dead", conflicts_with = "ids")]
    group: Option<String>,
    /// Limits file that defines the limits of the jobs, to reserve their tokens again: TOML, or JSON if its name ends in
    /// .json; `-` is standard input [default: the limits stored in the database]
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

pub(super) async fn requeue_jobs(args: RequeueArgs, database: Database) -> Result<ExitCode> {
    let limits = job_limits(args.limits.as_deref(), &database).await?;
    let work = async |queues: Queues| {
        let ids = match &args.dead {
            None => args.ids,
            Some(queue) => dead(&queues, queue, args.group, args.json).await?,
        };
        each(&queues, "requeueing jobs", &ids, args.json, requeue).await
    };
    with_queues(database, limits, work).await
}

async fn dead(queues: &Queues, queue: &str, group: Option<String>, json: bool) -> Result<Vec<i64>> {
    let _progress = Progress::of("reading the dead jobs");
    let mut filter = JobFilter::default();
    filter.queue = Some(queue.to_owned());
    filter.group = group;
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

pub(crate) async fn requeue(queues: &Queues, job: JobInfo) -> Result<Became> {
    let neither = |how: &str| format!("job {} is {how}; only dead and cancelled jobs can be requeued", job.id);
    if !matches!(job.state, JobState::Dead | JobState::Cancelled) {
        return Ok(Became::refused(job.state, neither(job.state.as_str())));
    }
    if let Err(refused) = check(&job, Op::Limit, &queues.limiter.limits()) {
        return Ok(refused);
    }
    match queues.queue(&job.queue)?.requeue(job.id).await {
        Ok(Some(at)) => Ok(Became::Done(format!("runs at {}", human(at)), ("run_at", exact(at)))),
        Ok(None) => Ok(Became::refused(None, neither("no longer dead or cancelled"))),
        Err(Error::InvalidJob(taken @ InvalidJob::UniqueIdTaken { .. })) => {
            Ok(Became::refused(job.state, taken.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

#[derive(Args, Debug)]
pub(crate) struct DiscardArgs {
    /// Ids of the jobs to discard, which must be dead
    #[arg(value_name = "ID", required_unless_present = "queue")]
    ids: Vec<i64>,
    /// Discard all dead jobs of this queue; with ids, only those of them that are in this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

pub(super) async fn discard_jobs(args: DiscardArgs, database: Database) -> Result<ExitCode> {
    let work = async |queues: Queues| match &args.queue {
        Some(queue) if args.ids.is_empty() => discard_all(&queues, queue, args.json).await,
        queue => {
            let act = async |queues: &Queues, job| discard(queues, job, queue.as_deref()).await;
            each(&queues, "discarding jobs", &args.ids, args.json, act).await
        }
    };
    with_queues(database, Limits::new(), work).await
}

async fn discard_all(queues: &Queues, queue: &str, as_json: bool) -> Result<ExitCode> {
    let progress = Progress::of("discarding the dead jobs");
    queues.must_have(queue).await?;
    let jobs = queues.queue(queue)?.prune_dead(std::time::Duration::ZERO).await?;
    drop(progress);
    output::line(match (jobs, as_json) {
        (jobs, true) => json::line(&json!({"ok": true, "jobs": jobs})),
        (0, false) => format!("no dead jobs in the queue \"{}\"", text::escaped(queue)),
        (jobs, false) => format!("{} discarded", text::many(jobs, "dead job")),
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn discard(queues: &Queues, job: JobInfo, queue: Option<&str>) -> Result<Became> {
    if queue.is_some_and(|queue| queue != job.queue) {
        let why = format!("job {} is in the queue \"{}\", not in that of --queue", job.id, text::escaped(&job.queue));
        return Ok(Became::refused(job.state, why));
    }
    let not_dead = |how: &str| {
        format!("job {} is {how}; only dead jobs can be discarded; cancel jobs that have not started", job.id)
    };
    if job.state != JobState::Dead {
        return Ok(Became::refused(job.state, not_dead(job.state.as_str())));
    }
    if queues.queue(&job.queue)?.discard(&[job.id]).await? == 0 {
        return Ok(Became::refused(None, not_dead("no longer dead")));
    }
    Ok(Became::Done("is discarded".to_owned(), ("was", "dead".to_owned())))
}
