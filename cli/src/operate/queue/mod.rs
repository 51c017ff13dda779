//! The command `queue`: inspects the rate-limited queues, and requeues, cancels or discards jobs, and pauses queues. The fields of
//! jobs are untrusted text, so what controls a terminal is escaped.

mod change;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::text::{Column, age, aligned, escaped, grouped, one_line, plain, quoted, shortened, shown, table};
use crate::{CliError, Database, Progress, Result, json, output};
pub(crate) use change::{Became, cancel, requeue, unknown};
use change::{HoldArgs, RequeueArgs, discard_jobs, drain, each, hold, limiter_for, requeue_jobs};
use pg_limiter::queue::{GroupCounts, JobFilter, JobInfo, JobItem, JobState, Queue, Queues};
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
        QueueCommand::Cancel { ids, limits, json } => {
            return each(&limiter_for(limits.as_deref(), database).await?, "cancelling jobs", &ids, json, cancel).await;
        }
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
        if args.json { listed.iter().map(job_json).collect::<Result<_>>()? } else { job_table(&listed) }
    } else {
        let mut listed = queues.group_counts(args.queue.as_deref()).await?;
        cut(&mut listed, args.limit.unwrap_or(u32::MAX), "groups");
        if args.json { listed.iter().map(group_json).collect() } else { group_table(&listed) }
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
    if json { output::line(job_json(&job)?) } else { output::lines(description(&job)) }
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

const WIDEST_NAME: usize = 60;
const WIDEST_ERROR: usize = 80;
const NONE: &str = "-";

fn job_table(jobs: &[JobInfo]) -> Vec<String> {
    let columns: [Column<'_, JobInfo>; 7] = [
        ("ID", true, |job| job.id.to_string()),
        ("QUEUE", true, |job| name(&job.queue)),
        ("GROUP", true, |job| name(&job.group)),
        ("STATE", true, state),
        ("RUN AT", true, |job| human(job.run_at)),
        ("FAILURES", true, |job| format!("{}/{}", job.failures, job.max_attempts)),
        ("LAST ERROR", true, |job| shortened(&one_line(job.last_error.as_deref().unwrap_or_default()), WIDEST_ERROR)),
    ];
    table(&columns, jobs, &[1, 2, 3, 4, 6])
}

fn state(job: &JobInfo) -> String {
    let until = job.waiting_until.map(|until| format!(", waiting until {}", human(until)));
    let blocked = job.blocked_by.as_deref().map(|limit| {
        format!(", no worker defines its limit \"{}\", or defines it as another kind", shown(limit, WIDEST_NAME))
    });
    let turn = if job.awaits_turn { ", waits for a turn of its group" } else { "" };
    format!("{}{turn}{}{}", job.state, until.unwrap_or_default(), blocked.unwrap_or_default())
}

fn name(text: &str) -> String {
    if text.is_empty() { NONE.to_owned() } else { shown(text, WIDEST_NAME) }
}

fn description(job: &JobInfo) -> Vec<String> {
    let text = |text: Option<&str>| or_none(text.filter(|text| !text.is_empty()), escaped);
    let mut lines = vec![
        ("id", job.id.to_string()),
        ("queue", text(Some(&job.queue))),
        ("group", text(Some(&job.group))),
        ("state", state(job)),
        ("priority", job.priority.to_string()),
        ("run at", human(job.run_at)),
        ("enqueued at", human(job.enqueued_at)),
        ("started at", or_none(job.started_at, human)),
        ("finished at", or_none(job.finished_at, human)),
        ("worker", text(job.worker.as_deref())),
        ("failures", format!("{} of at most {}", job.failures, job.max_attempts)),
        ("waits", job.waits.to_string()),
        ("last error", text(job.last_error.as_deref())),
        ("unique id", text(job.unique_id.as_deref())),
    ];
    lines.extend(job.items.iter().map(|item| ("reserved", reserved(item))));
    lines.extend(job.slots.iter().map(|item| ("slots", reserved(item))));
    lines.push(("payload", one_line(&job.payload)));
    let cells: Vec<Vec<String>> = lines.into_iter().map(|(what, value)| vec![what.to_owned(), value]).collect();
    aligned(&cells, &[0, 1])
}

/// Describes a reservation: `1200 llm_tokens for org-7, used 850`.
fn reserved(item: &JobItem) -> String {
    let key = if item.key.is_empty() { String::new() } else { format!(" for {}", escaped(&item.key)) };
    let used = item.used.map(|used| format!(", used {}", plain(used))).unwrap_or_default();
    format!("{} {}{key}{used}", plain(item.count), escaped(&item.limit))
}

/// The payload is printed as it is stored: its numbers may be too large for other types.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    job: Value,
    payload: Box<RawValue>,
}

fn job_json(job: &JobInfo) -> Result<String> {
    let item = |item: &JobItem| json!({"limit": item.limit, "key": item.key, "count": item.count, "used": item.used});
    let shown = json!({
        "id": job.id,
        "queue": job.queue,
        "group": job.group,
        "state": job.state.as_str(),
        "priority": job.priority,
        "run_at": exact(job.run_at),
        "enqueued_at": exact(job.enqueued_at),
        "started_at": job.started_at.map(exact),
        "finished_at": job.finished_at.map(exact),
        "worker": job.worker,
        "failures": job.failures,
        "max_attempts": job.max_attempts,
        "waits": job.waits,
        "waiting_until": job.waiting_until.map(exact),
        "blocked_by": job.blocked_by,
        "awaits_turn": job.awaits_turn,
        "last_error": job.last_error,
        "unique_id": job.unique_id,
        "reserved": job.items.iter().map(item).collect::<Vec<_>>(),
        "slots": job.slots.iter().map(|item| json!({"limit": item.limit, "key": item.key, "count": item.count})).collect::<Vec<_>>(),
    });
    let payload = RawValue::from_string(job.payload.clone()).map_err(CliError::failed)?;
    Ok(json::line(&Line { job: shown, payload }))
}

/// Formats a time as RFC 3339 in UTC, to the millisecond.
fn human(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| format!("{time:.3}")).unwrap_or_else(|_| far(time))
}

fn exact(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| time.to_string()).unwrap_or_else(|_| far(time))
}

/// Formats a time after the year 9999 as seconds since the Unix epoch: `@253402300800`.
fn far(time: SystemTime) -> String {
    format!("@{}", time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

fn group_table(groups: &[GroupCounts]) -> Vec<String> {
    let are_blocked = groups.iter().any(|group| group.blocked > 0);
    let are_held = groups.iter().any(|group| held(group) != NONE);
    let columns: [Column<'_, GroupCounts>; 13] = [
        ("QUEUE", true, |group| name(&group.queue)),
        ("GROUP", true, |group| name(&group.group)),
        ("SCHEDULED", true, |group| grouped(group.scheduled)),
        ("AVAILABLE", true, |group| grouped(group.available)),
        ("RUNNING", true, |group| grouped(group.running)),
        ("DONE", true, |group| grouped(group.done)),
        ("DEAD", true, |group| grouped(group.dead)),
        ("CANCELLED", true, |group| grouped(group.cancelled)),
        ("OLDEST", true, |group| or_none(group.oldest, age)),
        ("OVERDUE", true, |group| or_none(group.overdue, age)),
        ("WAITING UNTIL", true, |group| or_none(group.waiting_until, human)),
        ("BLOCKED", are_blocked, |group| grouped(group.blocked)),
        ("HELD", are_held, |group| held(group).to_owned()),
    ];
    table(&columns, groups, &[0, 1])
}

const fn held(group: &GroupCounts) -> &'static str {
    match (group.is_paused, group.is_draining) {
        (true, true) => "paused, draining",
        (true, false) => "paused",
        (false, true) => "draining",
        (false, false) => NONE,
    }
}

fn or_none<T>(value: Option<T>, text: fn(T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), text)
}

fn group_json(group: &GroupCounts) -> String {
    json::line(&json!({
        "queue": group.queue,
        "group": group.group,
        "scheduled": group.scheduled,
        "available": group.available,
        "running": group.running,
        "done": group.done,
        "dead": group.dead,
        "cancelled": group.cancelled,
        "oldest_ms": group.oldest.map(json::milliseconds),
        "overdue_ms": group.overdue.map(json::milliseconds),
        "waiting_until": group.waiting_until.map(exact),
        "blocked": group.blocked,
        "paused": group.is_paused,
        "draining": group.is_draining,
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_rfc_3339_as_long_as_there_is_a_year() {
        let time = UNIX_EPOCH + Duration::from_micros(1_767_225_600_999_999);
        assert_eq!([human(time), exact(time)], ["2026-01-01T00:00:00.999Z", "2026-01-01T00:00:00.999999Z"]);
        assert_eq!(human(UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
        let far = UNIX_EPOCH + Duration::from_secs(253_402_300_800);
        assert_eq!([human(far), exact(far)], ["@253402300800", "@253402300800"]);
    }
}
