//! Concurrent enqueues share a statement and a commit: while one batch is under way, the next one collects.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use sqlx::PgConnection;

use crate::combine::{Apart, Batched, Lanes, Route, Waiting, lock_timeout, submit};
use crate::error::{Cause, Error};
use crate::queue::context::QueueContext;
use crate::queue::enqueue::Enqueueing;
use crate::queue::job::ReadyJob;
use crate::sql::queue::{EnqueueAnswer, QueueStatements};
use crate::sql::{Bucket, Statements};
use crate::transact::{Bounds, Failure, Isolation, LookForHeld, Statement, Transactor};

/// The most jobs in one statement.
const MOST: usize = 256;

/// The most jobs that may wait.
const MOST_WAITING: usize = 65_536;

type Enqueuer = Waiting<ReadyJob, EnqueueAnswer>;

pub(super) struct EnqueueBatcher {
    context: QueueContext,
    queue: Arc<str>,
    lanes: Lanes<ReadyJob, EnqueueAnswer, ()>,
}

impl std::fmt::Debug for EnqueueBatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnqueueBatcher").finish_non_exhaustive()
    }
}

impl EnqueueBatcher {
    pub(super) fn new(context: QueueContext, queue: Arc<str>) -> Self {
        Self { context, queue, lanes: Lanes::new(1) }
    }

    /// Enqueues a job in a batch with others, and waits for its answer.
    pub(super) async fn enqueue(self: &Arc<Self>, job: ReadyJob) -> Result<(ReadyJob, EnqueueAnswer), Error> {
        if self.context.limiter.combiner().is_closed() {
            return Err(Error::Closed);
        }
        submit(self, job, MOST_WAITING).await
    }
}

/// A batch of jobs as a statement in a transaction of the queue's own.
struct Enqueues<'a> {
    statements: &'a QueueStatements,
    enqueueing: Enqueueing<'a>,
}

impl Statement for Enqueues<'_> {
    type Output = Vec<EnqueueAnswer>;

    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    async fn execute(&self, connection: &mut PgConnection, _: &Statements) -> Result<Vec<EnqueueAnswer>, sqlx::Error> {
        self.enqueueing.send(connection, self.statements).await
    }
}

impl Batched for EnqueueBatcher {
    type Call = ReadyJob;
    type Answer = EnqueueAnswer;
    type Connections = ();

    const OP: &'static str = "enqueue";

    fn transactor(&self) -> &Transactor {
        &self.context.limiter.combiner().transactor
    }

    fn lanes(&self) -> &Lanes<ReadyJob, EnqueueAnswer, ()> {
        &self.lanes
    }

    fn most(&self) -> usize {
        MOST
    }

    fn lane(&self, _: &ReadyJob) -> usize {
        0
    }

    /// A job with a unique id also waits for any other transaction that enqueues the same id. The bucket that stands for the
    /// id has an empty name, which no limit has.
    fn buckets(job: &ReadyJob) -> Vec<Bucket> {
        let unique_id = job.unique_id.iter().map(|id| (Arc::from(""), Arc::from(&**id)));
        job.call.buckets().into_iter().chain(unique_id).collect()
    }

    /// Jobs of one unique id are not decided in one statement: if the first one is denied, the next one may still be
    /// scheduled.
    fn apart(&self, jobs: Vec<Enqueuer>) -> Apart<ReadyJob, EnqueueAnswer> {
        let mut ids = HashSet::new();
        let (now, later) = jobs.into_iter().partition(|waiting| match &waiting.call.unique_id {
            Some(id) => ids.insert(id.clone()),
            None => true,
        });
        Apart { now, later, next: Vec::new() }
    }

    fn blames_one(cause: Cause) -> bool {
        matches!(cause, Cause::Data | Cause::Refused)
    }

    async fn send(
        &self,
        jobs: &[Enqueuer],
        route: Route,
        _: bool,
        deadline: Instant,
    ) -> Result<Vec<Option<EnqueueAnswer>>, Failure> {
        let ready: Vec<&ReadyJob> = jobs.iter().map(|waiting| &waiting.call).collect();
        let enqueueing = Enqueueing::new(&self.queue, &ready, false);
        let statement = Enqueues { statements: &self.context.statements, enqueueing };
        let answers = match route {
            Route::Lane { .. } => {
                let bounds = Bounds { deadline, lock_timeout: lock_timeout(self.transactor()) };
                self.transactor().over_pool(bounds, &statement).await
            }
            Route::Beside { lock_timeout } => {
                self.context.limiter.combiner().beside(Bounds { deadline, lock_timeout }, &statement).await
            }
        };
        answers.map(|answers| answers.into_iter().map(Some).collect())
    }

    async fn look_for_held(
        &self,
        _: usize,
        buckets: &[Bucket],
        deadline: Instant,
    ) -> Result<Vec<Option<bool>>, Failure> {
        self.transactor().over_pool(Bounds::until(deadline), &LookForHeld(buckets)).await
    }

    async fn none_is_beside(&self) {
        self.context.limiter.combiner().close_spare().await;
    }
}
