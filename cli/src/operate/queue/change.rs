//! Requeues, cancels and discards jobs, one after another; and pauses, resumes and drains queues and groups of them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::limit_args::Sourced;
use crate::operate::queue::{exact, has_jobs, human, job, must_have, no_such_job, of_queue, queue};
use crate::{CliError, Database, Progress, Result, json, output, text};
use pg_limiter::queue::{GroupCounts, JobInfo, JobItem, JobState, Queues};
use pg_limiter::{Call, Error, InvalidCall, InvalidJob, Item, LeaseId, Limiter, Limits, Op};

pub(crate) enum Became {
    /// The text after `job 7`, and a field for the JSON object.
    Done(String, (&'static str, String)),
    /// The state of the job if it is known, and the reason why it was left unchanged.
    Refused(Option<JobState>, String),
}

/// Applies `act` to each job and prints each result at once, also after a refused job and after standard output is closed.
pub(super) async fn each(
    limiter: &Limiter,
    what: &'static str,
    ids: &[i64],
    as_json: bool,
    act: impl AsyncFn(&Limiter, JobInfo) -> Result<Became>,
) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let progress = Progress::parts(what, ids.len());
    for id in ids {
        let became = match job(limiter, *id).await? {
            Some(job) => act(limiter, job).await?,
            None => Became::Refused(None, no_such_job(*id)),
        };
        progress.add(1);
        let (fields, text) = match became {
            Became::Done(what, (name, value)) => (json!({"ok": true, "id": id, name: value}), Some(what)),
            Became::Refused(state, why) => {
                code = ExitCode::from(2);
                output::note(&why);
                (json!({"ok": false, "id": id, "state": state.map(JobState::as_str), "message": why}), None)
            }
        };
        let text = text.map(|what| format!("job {id} {what}"));
        output::lines_if_open(if as_json { Some(json::line(&fields)) } else { text })?;
    }
    Ok(code)
}

/// Checks that the limits of the job are defined: the database would omit others. With [`Op::Limit`], also that counts are possible.
/// A job that needs more slots than there are now takes all of them.
fn check(job: &JobInfo, op: Op, limits: &Limits) -> Result<(), Became> {
    let call = |items: &[JobItem], most: f64| {
        let items = items.iter().map(|item| Item::new(&item.limit, &item.key).count(item.count.min(most)));
        Call::from(items.collect::<Vec<_>>())
    };
    let tokens = (!job.items.is_empty()).then(|| call(&job.items, f64::MAX).reserve());
    let slots = (op == Op::Limit && !job.slots.is_empty()).then(|| call(&job.slots, 1.0).lease(LeaseId::random()));
    let checked = tokens.iter().chain(&slots).try_for_each(|call| call.validate(op, limits));
    let Err(error) = checked else { return Ok(()) };
    let why = match error {
        InvalidCall::UnknownLimit { limit } => unknown("its", &limit),
        error => error.to_string(),
    };
    Err(Became::Refused(Some(job.state), format!("job {}: {why}", job.id)))
}

pub(crate) fn unknown(whose: &str, limit: &str) -> String {
    let limit = text::escaped(limit);
    format!("{whose} limit \"{limit}\" is not in the limits file, nor stored in the database; define it in one of them")
}

/// With the limits of the file, or else the stored ones.
pub(super) async fn limiter_for(file: Option<&Path>, database: &Database) -> Result<Limiter> {
    let read = Sourced::read(file, database).await?;
    database.limiter(read.map_or_else(Limits::new, |read| read.limits), None).await
}

pub(crate) async fn cancel(limiter: &Limiter, job: JobInfo) -> Result<Became> {
    let waits = |state| matches!(state, JobState::Scheduled | JobState::Available);
    let is_waiting = waits(job.state);
    if is_waiting && let Err(refused) = check(&job, Op::Credit, &limiter.limits()) {
        return Ok(refused);
    }
    match queue(limiter, &job.queue)?.cancel(job.id).await {
        Ok(was) if waits(was) => Ok(Became::Done("is cancelled".to_owned(), ("was", was.as_str().to_owned()))),
        Ok(state) => {
            let why = format!("job {} is {state}; only jobs that have not started can be cancelled", job.id);
            Ok(Became::Refused(Some(state), why))
        }
        Err(Error::InvalidJob(InvalidJob::UnknownJob { id, .. })) => Ok(Became::Refused(None, no_such_job(id))),
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

pub(super) async fn requeue_jobs(args: RequeueArgs, database: &Database) -> Result<ExitCode> {
    let limiter = limiter_for(args.limits.as_deref(), database).await?;
    let ids = match &args.dead {
        None => args.ids,
        Some(queue) => dead(&limiter, queue, args.group, args.json).await?,
    };
    each(&limiter, "requeueing jobs", &ids, args.json, requeue).await
}

async fn dead(limiter: &Limiter, queue: &str, group: Option<String>, json: bool) -> Result<Vec<i64>> {
    let _progress = Progress::of("reading the dead jobs");
    let mut filter = of_queue(Some(queue));
    let of_group = group.as_deref().map(|of| format!("group \"{}\" of the ", text::escaped(of))).unwrap_or_default();
    (filter.group, filter.state) = (group, Some(JobState::Dead));
    let jobs = Queues::new(limiter).jobs(&filter, u32::MAX).await?;
    if jobs.is_empty() {
        must_have(limiter, queue).await?;
        if !json {
            output::line_if_open(format!("no dead jobs in the {of_group}queue \"{}\"", text::escaped(queue)))?;
        }
    }
    Ok(jobs.iter().map(|job| job.id).collect())
}

pub(crate) async fn requeue(limiter: &Limiter, job: JobInfo) -> Result<Became> {
    let neither = |how: &str| format!("job {} is {how}; only dead and cancelled jobs can be requeued", job.id);
    if !matches!(job.state, JobState::Dead | JobState::Cancelled) {
        return Ok(Became::Refused(Some(job.state), neither(job.state.as_str())));
    }
    if let Err(refused) = check(&job, Op::Limit, &limiter.limits()) {
        return Ok(refused);
    }
    match queue(limiter, &job.queue)?.requeue(job.id).await {
        Ok(Some(at)) => Ok(Became::Done(format!("runs at {}", human(at)), ("run_at", exact(at)))),
        Ok(None) => Ok(Became::Refused(None, neither("no longer dead or cancelled"))),
        Err(Error::InvalidJob(taken @ InvalidJob::UniqueIdTaken { .. })) => {
            Ok(Became::Refused(Some(job.state), taken.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn discard_jobs(ids: &[i64], of: Option<String>, json: bool, database: &Database) -> Result<ExitCode> {
    let limiter = database.limiter(Limits::new(), None).await?;
    let of = of.as_deref();
    let Some(name) = of.filter(|_| ids.is_empty()) else {
        let act = async |limiter: &Limiter, job| discard(limiter, job, of).await;
        return each(&limiter, "discarding jobs", ids, json, act).await;
    };
    let progress = Progress::of("discarding the dead jobs");
    must_have(&limiter, name).await?;
    let jobs = queue(&limiter, name)?.prune_dead(Duration::ZERO).await?;
    drop(progress);
    output::line(match (jobs, json) {
        (jobs, true) => json::line(&json!({"ok": true, "jobs": jobs})),
        (0, false) => format!("no dead jobs in the queue \"{}\"", text::escaped(name)),
        (jobs, false) => format!("{} discarded", text::many(jobs, "dead job")),
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn discard(limiter: &Limiter, job: JobInfo, only: Option<&str>) -> Result<Became> {
    if only.is_some_and(|queue| queue != job.queue) {
        let why = format!("job {} is in the queue \"{}\", not in that of --queue", job.id, text::escaped(&job.queue));
        return Ok(Became::Refused(Some(job.state), why));
    }
    let not_dead = |how: &str| {
        format!("job {} is {how}; only dead jobs can be discarded; cancel jobs that have not started", job.id)
    };
    if job.state != JobState::Dead {
        return Ok(Became::Refused(Some(job.state), not_dead(job.state.as_str())));
    }
    if queue(limiter, &job.queue)?.discard(&[job.id]).await? == 0 {
        return Ok(Became::Refused(None, not_dead("no longer dead")));
    }
    Ok(Became::Done("is discarded".to_owned(), ("was", "dead".to_owned())))
}

/// How often `drain --wait` counts the jobs that are left.
const COUNTED_EVERY: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(crate) struct HoldArgs {
    /// The queue
    queue: String,
    /// A group of it, as `queue ls` shows it [default: the whole queue]
    group: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn hold(args: HoldArgs, database: &Database, is_pause: bool) -> Result<()> {
    let limiter = database.limiter(Limits::new(), None).await?;
    let queue = queue(&limiter, &args.queue)?;
    let is_changed = match (is_pause, &args.group) {
        (true, Some(group)) => queue.pause_group(group).await?,
        (true, None) => queue.pause().await?,
        (false, Some(group)) => queue.resume_group(group).await?,
        (false, None) => queue.resume().await?,
    };
    // A queue may be held before it has jobs, but its name may also be wrong.
    if !has_jobs(&limiter, &args.queue).await? {
        if !is_changed {
            must_have(&limiter, &args.queue).await?;
        }
        output::note(format!("the queue \"{}\" has no jobs", text::escaped(&args.queue)));
    }
    if args.json {
        let changed = if is_pause { "paused" } else { "resumed" };
        let fields = json!({"ok": true, "queue": args.queue, "group": args.group, changed: is_changed});
        return output::line(json::line(&fields));
    }
    let (what, name) = args.group.as_ref().map_or(("queue", &args.queue), |group| ("group", group));
    let state = match (is_pause, is_changed) {
        (true, true) => "starts no job until it is resumed",
        (true, false) => "was paused before",
        (false, true) => "starts its jobs again",
        (false, false) if args.group.is_some() => "is not paused, and does not wait",
        (false, false) => "is neither paused nor draining",
    };
    output::line(format!("the {what} \"{}\" {state}", text::escaped(name)))
}

pub(super) async fn drain(name: &str, wait: bool, json: bool, database: &Database) -> Result<()> {
    let queue = queue(&database.limiter(Limits::new(), None).await?, name)?;
    let shown = text::escaped(name);
    let mut left = queue.drain().await?;
    let progress = wait.then(|| Progress::of("waiting for the jobs that are left"));
    let mut is_noted = false;
    while wait && left > 0 {
        tokio::time::sleep(COUNTED_EVERY).await;
        let groups = queue.group_counts().await?;
        let is_resumed = groups.first().is_some_and(|group| !group.is_draining);
        let jobs = text::many(left, "job");
        let refusal = format!("the queue \"{shown}\" was resumed while {jobs} waited or ran; drain it again");
        CliError::refuse_if(is_resumed, refusal)?;
        let unended = |group: &GroupCounts| group.scheduled + group.available + group.running;
        left = groups.iter().map(unended).sum();
        if !is_noted && groups.iter().any(|group| group.is_paused && unended(group) > 0) {
            is_noted = true;
            output::note("jobs that are left wait in a queue or group that is paused: resume it, or cancel them");
        }
    }
    drop(progress);
    let jobs = text::many(left, "job");
    output::line(match json {
        true => json::line(&json!({"ok": true, "queue": name, "jobs": left})),
        false => format!("the queue \"{shown}\" takes no new jobs until it is resumed; left in it: {jobs}"),
    })
}
