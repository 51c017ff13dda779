use std::path::Path;

use crate::database::Database;
use crate::error::{CliError, Result};
use crate::output::Progress;
use crate::{input, text};
use pg_limiter::queue::{JobFilter, JobInfo, Queue};
use pg_limiter::{Limiter, Limits};

pub(crate) struct Queues {
    pub(super) limiter: Limiter,
    pub(super) all: pg_limiter::queue::Queues,
}

/// The limits of the file, or those that are stored in the database.
pub(super) async fn job_limits(file: Option<&Path>, database: &Database) -> Result<Limits> {
    match file {
        Some(file) => input::read_limits(file),
        None => database.stored_limits().await,
    }
}

/// Connects, runs `work`, and disconnects. `limits` are for work that takes or returns tokens.
pub(super) async fn with_queues<T>(
    database: Database,
    limits: Limits,
    work: impl AsyncFnOnce(Queues) -> Result<T>,
) -> Result<T> {
    database.with_limiter(limits, None, async |limiter| work(Queues::new(limiter.clone())).await).await
}

impl Queues {
    pub(crate) fn new(limiter: Limiter) -> Self {
        Self { all: pg_limiter::queue::Queues::new(&limiter), limiter }
    }

    pub(super) fn queue(&self, name: &str) -> Result<Queue> {
        Queue::new(&self.limiter, name).map_err(CliError::usage)
    }

    pub(crate) async fn job(&self, id: i64) -> Result<Option<JobInfo>> {
        let _progress = Progress::of("reading the job");
        let mut filter = JobFilter::default();
        filter.id = Some(id);
        Ok(self.all.jobs(&filter, 1).await?.pop())
    }

    pub(super) async fn has_jobs(&self, queue: &str) -> Result<bool> {
        let mut filter = JobFilter::default();
        filter.queue = Some(queue.to_owned());
        Ok(!self.all.jobs(&filter, 1).await?.is_empty())
    }

    /// Returns an error if the queue does not exist: a queue exists while it has jobs, or is paused or draining.
    pub(super) async fn must_have(&self, queue: &str) -> Result<()> {
        if self.has_jobs(queue).await? {
            return Ok(());
        }
        let groups = self.all.group_counts(None).await?;
        let mut names: Vec<_> = groups.iter().map(|group| group.queue.as_str()).collect();
        names.dedup();
        let others = match &names[..] {
            names if names.contains(&queue) => return Ok(()),
            [] => "no queue has jobs".to_owned(),
            names => format!("queues: {}", text::quoted(names)),
        };
        Err(CliError::usage(format!("there is no queue \"{}\"; {others}", text::escaped(queue))))
    }
}

pub(crate) fn no_such_job(id: i64) -> String {
    format!("there is no job {id}; it may have been pruned")
}
