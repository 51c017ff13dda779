//! Those who enqueue at the same time do so in one statement and one commit: while one is on its way, the next gathers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::error::Error;
use crate::limiter::{Lane, Refused, Waiting};
use crate::observability;
use crate::queue::enqueue::Enqueueing;
use crate::queue::job::ReadyJob;
use crate::queue::own::Site;
use crate::sql::queue::EnqueueAnswer;

/// The most jobs of one statement.
const MOST: usize = 256;

/// The most that wait.
const MOST_WAITING: usize = 65_536;

type Enqueuer = Waiting<ReadyJob, EnqueueAnswer>;

pub(super) struct Gathered {
    site: Site,
    queue: Arc<str>,
    lane: Lane<ReadyJob, EnqueueAnswer, ()>,
}

impl std::fmt::Debug for Gathered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gathered").finish_non_exhaustive()
    }
}

/// Even if the runtime ends under it, nobody waits for ever.
struct Driving {
    gathered: Arc<Gathered>,
    done: bool,
}

impl Drop for Driving {
    fn drop(&mut self) {
        if !self.done {
            self.gathered.lane.abandon();
        }
    }
}

impl Gathered {
    pub(super) fn new(site: Site, queue: Arc<str>) -> Self {
        Self { site, queue, lane: Lane::default() }
    }

    /// Waits for its answer together with others.
    pub(super) async fn enqueue(self: &Arc<Self>, job: ReadyJob) -> Result<(ReadyJob, EnqueueAnswer), Error> {
        let Ok(runtime) = Handle::try_current() else {
            let source = std::io::Error::other("there is no Tokio runtime to run the call on");
            return Err(Error::Unavailable { source: source.into() });
        };
        let (reply, answer) = oneshot::channel();
        let deadline = Instant::now() + Duration::from_secs(365 * 86_400); // That of the transaction counts.
        match self.lane.push(Waiting { call: job, deadline, span: observability::asking(), reply }, MOST_WAITING) {
            Ok(true) => drop(runtime.spawn(drive(Driving { gathered: Arc::clone(self), done: false }))),
            Ok(false) => {}
            Err(Refused::Closed) => return Err(Error::Closed),
            Err(Refused::Full) => return Err(Error::Overloaded { waiting: MOST_WAITING }),
        }
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(Error::OutcomeUnknown { last: sqlx::Error::WorkerCrashed }),
        }
    }

    /// Answers all of them.
    async fn settle(&self, jobs: Vec<Enqueuer>) {
        let ready: Vec<&ReadyJob> = jobs.iter().map(|waiting| &waiting.call).collect();
        let enqueueing = Enqueueing::new(&self.queue, &ready, false);
        let span = observability::deciding("enqueue", jobs.len(), 1, jobs.iter().map(|waiting| &waiting.span));
        let running = self.site.own(enqueueing, |conn, sql, enqueueing| Box::pin(enqueueing.run(conn, sql)));
        let answers = running.instrument(span.clone()).await;
        span.record("outcome", answers.as_ref().map_or_else(Error::kind, |_| "done"));
        match answers {
            Ok(answers) => {
                observability::batch("enqueue", jobs.len());
                for (Waiting { call, reply, .. }, answer) in jobs.into_iter().zip(answers) {
                    let _ = reply.send(Ok((call, answer))); // A caller who has gone is not told.
                }
            }
            // One of them may be to blame, and the others are not.
            Err(Error::Database { .. }) if jobs.len() > 1 => {
                for waiting in jobs {
                    Box::pin(self.settle(vec![waiting])).await;
                }
            }
            Err(error) => jobs.into_iter().for_each(|waiting| waiting.refuse(error.share())),
        }
    }
}

async fn drive(mut driving: Driving) {
    let gathered = Arc::clone(&driving.gathered);
    loop {
        // Those who were woken at the same time come along.
        tokio::task::yield_now().await;
        let Some(jobs) = gathered.lane.take(MOST) else { break };
        let mut left = jobs;
        while !left.is_empty() {
            let now;
            (now, left) = without_twins(left);
            gathered.settle(now).await;
        }
        if gathered.lane.rest() {
            break;
        }
    }
    driving.done = true;
}

/// Jobs of one unique id are not decided together: if the first is refused, the next one may not be.
fn without_twins(jobs: Vec<Enqueuer>) -> (Vec<Enqueuer>, Vec<Enqueuer>) {
    let mut ids = HashSet::new();
    jobs.into_iter().partition(|waiting| match &waiting.call.unique_id {
        Some(id) => ids.insert(id.clone()),
        None => true,
    })
}
