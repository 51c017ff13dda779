//! Pauses, resumes and drains queues, and groups of them.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::operate::queue::{has_jobs, must_have, queue};
use crate::{CliError, Database, Progress, Result, json, output, text};
use pg_limiter::queue::{GroupCounts, Queue};
use pg_limiter::{Error, Limiter, Limits};

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

#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// The queue
    queue: String,
    /// Wait until no job is left
    #[arg(long)]
    wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl HoldArgs {
    /// Changes the queue, and prints what it did. `changed` is a field of JSON; `done` and `undone` follow the name of the queue.
    async fn apply(
        self,
        database: Database,
        [changed, done, undone]: [&str; 3],
        change: impl AsyncFnOnce(&Queue, Option<&str>) -> Result<bool, Error>,
    ) -> Result<()> {
        let work = async |limiter: &Limiter| {
            let is_changed = change(&queue(limiter, &self.queue)?, self.group.as_deref()).await?;
            // A queue may be held before it has jobs, but its name may also be wrong.
            if !has_jobs(limiter, &self.queue).await? {
                if !is_changed {
                    must_have(limiter, &self.queue).await?;
                }
                output::note(format!("the queue \"{}\" has no jobs", text::escaped(&self.queue)));
            }
            Ok(is_changed)
        };
        let is_changed = database.with_limiter(Limits::new(), None, work).await?;
        output::line(if self.json {
            json::line(&json!({"ok": true, "queue": self.queue, "group": self.group, changed: is_changed}))
        } else {
            let (what, name) = self.group.as_ref().map_or(("queue", &self.queue), |group| ("group", group));
            format!("the {what} \"{}\" {}", text::escaped(name), if is_changed { done } else { undone })
        })
    }
}

pub(super) async fn pause(args: HoldArgs, database: Database) -> Result<()> {
    let texts = ["paused", "starts no job until it is resumed", "was paused before"];
    args.apply(database, texts, async |queue, group| match group {
        Some(group) => queue.pause_group(group).await,
        None => queue.pause().await,
    })
    .await
}

pub(super) async fn resume(args: HoldArgs, database: Database) -> Result<()> {
    let undone =
        if args.group.is_some() { "is not paused, and does not wait" } else { "is neither paused nor draining" };
    args.apply(database, ["resumed", "starts its jobs again", undone], async |queue, group| match group {
        Some(group) => queue.resume_group(group).await,
        None => queue.resume().await,
    })
    .await
}

pub(super) async fn drain(args: DrainArgs, database: Database) -> Result<()> {
    let work = async |limiter: &Limiter| {
        let queue = queue(limiter, &args.queue)?;
        let mut left = queue.drain().await?;
        let _progress = args.wait.then(|| Progress::of("waiting for the jobs that are left"));
        let mut is_noted = false;
        while args.wait && left > 0 {
            tokio::time::sleep(COUNTED_EVERY).await;
            let groups = queue.group_counts().await?;
            let is_resumed = groups.first().is_some_and(|group| !group.is_draining);
            let (name, jobs) = (text::escaped(&args.queue), text::many(left, "job"));
            let refusal = format!("the queue \"{name}\" was resumed while {jobs} waited or ran; drain it again");
            CliError::refuse_if(is_resumed, refusal)?;
            let unended = |group: &GroupCounts| group.scheduled + group.available + group.running;
            left = groups.iter().map(unended).sum();
            if !is_noted && groups.iter().any(|group| group.is_paused && unended(group) > 0) {
                is_noted = true;
                output::note("jobs that are left wait in a queue or group that is paused: resume it, or cancel them");
            }
        }
        Ok(left)
    };
    let left = database.with_limiter(Limits::new(), None, work).await?;
    output::line(if args.json {
        json::line(&json!({"ok": true, "queue": args.queue, "jobs": left}))
    } else {
        let (queue, jobs) = (text::escaped(&args.queue), text::many(left, "job"));
        format!("the queue \"{queue}\" takes no new jobs until it is resumed; left in it: {jobs}")
    })
}
