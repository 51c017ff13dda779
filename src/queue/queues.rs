use std::time::Duration;

use crate::Limiter;
use crate::error::Error;
use crate::queue::context::QueueContext;
use crate::queue::queue::prune_dead_of;
use crate::queue::{GroupCounts, JobInfo, JobState};
use crate::sql::queue::{JobFilter as Filter, group_rows, job_rows};

/// Lists the groups and jobs of all queues in a schema, and deletes dead jobs. A [`Queue`](crate::queue::Queue) is one of them.
///
/// # Errors
/// Those of a [`Queue`](crate::queue::Queue).
///
/// # Cancel safety
/// Safe, as for a [`Queue`](crate::queue::Queue): jobs that were already deleted stay so.
///
/// # In a transaction
/// Each method runs in a transaction of its own, and [`prune_dead`](Self::prune_dead) in several.
#[derive(Clone, Debug)]
pub struct Queues(QueueContext);

/// Which jobs to list. By default all of them: `None` matches every job.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct JobFilter {
    /// The name of the queue.
    pub queue: Option<String>,
    /// The group, as it is stored: see [`KeySecret`](crate::KeySecret).
    pub group: Option<String>,
    /// The state.
    pub state: Option<JobState>,
    /// The job's id.
    pub id: Option<i64>,
}

impl Queues {
    /// The queues of this limiter's schema.
    pub fn new(limiter: &Limiter) -> Self {
        Self(QueueContext::new(limiter))
    }

    /// The groups of a queue, or of all queues, with their jobs counted. Reads all jobs, and needs the privilege to SELECT from
    /// `rate_limit.jobs`, `groups` and `queues`.
    ///
    /// A paused group without jobs is among them, and a queue without jobs that is paused or draining has one row, of the group "".
    pub async fn group_counts(&self, queue: Option<&str>) -> Result<Vec<GroupCounts>, Error> {
        let rows = self.0.look(queue, |conn, sql, queue| Box::pin(group_rows(conn, sql, *queue))).await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// The first `max` jobs that match the filter, by the time at which they run. Needs the privilege to SELECT from
    /// `rate_limit.jobs` and `groups`.
    pub async fn jobs(&self, filter: &JobFilter, max: u32) -> Result<Vec<JobInfo>, Error> {
        let filter = Filter {
            queue: filter.queue.as_deref(),
            key: filter.group.as_deref(),
            state: filter.state.map(JobState::as_str),
            id: filter.id,
        };
        let run = (filter, i64::from(max));
        let rows = self.0.look(run, |conn, sql, (filter, max)| Box::pin(job_rows(conn, sql, *filter, *max))).await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// Deletes the jobs of all queues that have been dead for this long. Returns how many.
    pub async fn prune_dead(&self, dead_for: Duration) -> Result<u64, Error> {
        prune_dead_of(&self.0, None, dead_for).await
    }
}
