//! Work that workers do for the queue besides running jobs.

use std::collections::VecDeque;
use std::time::Duration;

use tracing::warn;

use crate::error::Error;
use crate::observability;
use crate::queue::Queue;
use crate::queue::job_run::attempt_number;
use crate::sql::queue::{Again, KnownLimits, WalkedTo, again, lapsed, retime};

/// The most lapsed jobs that one statement finds.
const MOST: i32 = 500;

/// The pause between two looks at whether the limits have changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The pause between two rounds of pruning.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// Puts jobs of workers that have died back into the queue.
pub(super) async fn take_over(queue: Queue, limits: KnownLimits) {
    let context = &queue.context;
    let jobs = match context.look(queue.name(), |conn, sql, name| Box::pin(lapsed(conn, sql, name, MOST))).await {
        Ok(jobs) => jobs,
        Err(error) => return cannot(&queue, &error).await,
    };
    // One transaction each: two jobs would lock the rows of two limits in no fixed order, and another transaction may hold
    // one of the locks for long.
    for (id, starts, failures) in jobs {
        let run = context.own(([id], [starts], limits.clone()), |conn, sql, (ids, starts, limits)| {
            let error = "its worker did not extend the lease before it expired";
            Box::pin(again(conn, sql, (ids, starts), (Again::Lapsed, 0, error), limits))
        });
        match run.await {
            Ok(states) => {
                if let Some(Some(state)) = states.first() {
                    observability::attempt_failed(
                        &queue.name,
                        id,
                        attempt_number(failures),
                        Again::Lapsed.as_str(),
                        state == "dead",
                    );
                }
            }
            Err(error) => cannot(&queue, &error).await,
        }
    }
}

async fn cannot(queue: &Queue, error: &Error) {
    warn!(%error, queue = queue.name(), "cannot take over jobs of dead workers; trying again");
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// Deletes jobs that ended long ago, once a minute.
pub(super) async fn prune(queue: Queue, keep_ended: Duration) {
    loop {
        if let Err(error) = queue.prune(keep_ended).await {
            warn!(%error, queue = queue.name(), "cannot prune jobs that have ended; trying again later");
        }
        tokio::time::sleep(PRUNE_EVERY).await;
    }
}

/// Computes the times of the waiting jobs anew when the worker begins, and when its limits have changed.
pub(super) async fn follow_limits(queue: Queue, worker: String) {
    let mut followed = None;
    loop {
        let limits = KnownLimits::all(&queue.limiter().limits());
        if followed.as_ref() != Some(&limits) {
            match retime_all(&queue, &worker, &limits).await {
                Ok(()) => followed = Some(limits),
                Err(error) => {
                    warn!(%error, queue = queue.name(), "cannot compute the times of waiting jobs anew; trying again later");
                    tokio::time::sleep(PRUNE_EVERY).await;
                }
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A group with a bucket that another transaction has locked comes last, and again until it is free: no connection waits for
/// the lock.
async fn retime_all(queue: &Queue, worker: &str, limits: &KnownLimits) -> Result<(), Error> {
    let mut after: WalkedTo = (None, None);
    let mut held = VecDeque::new();
    let mut is_first_walk = true;
    loop {
        let arguments = (queue.name(), worker, after, limits.clone());
        let step = queue.context.own(arguments, |conn, sql, (queue, worker, after, limits)| {
            Box::pin(retime(conn, sql, (*queue, *worker), after, limits))
        });
        let (next, is_held) = step.await?;
        held.extend(next.0.clone().filter(|_| is_held));
        is_first_walk &= next.0.is_some();
        after = next;
        if is_first_walk || after.1.is_some() {
            continue;
        }
        let is_changed = KnownLimits::all(&queue.limiter().limits()) != *limits;
        let Some(key) = held.pop_front().filter(|_| !is_changed) else { return Ok(()) };
        tokio::time::sleep(LOOK_EVERY).await;
        after = (Some(key), Some(0));
    }
}
