//! The leases of a worker: the jobs that it has, and the times at which they expire.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;
use tracing::warn;

use crate::queue::context::QueueContext;
use crate::queue::time;
use crate::sql::queue::extend;

#[derive(Debug, Default)]
pub(super) struct JobLeases {
    held: Mutex<HashMap<i64, JobLease>>,
}

#[derive(Debug)]
struct JobLease {
    starts: i32,
    until: Instant,
    /// `None` until the job starts.
    running: Option<AbortHandle>,
    /// Its handler has ended, and its end is being written. A completion that is not committed yet locks the job's row, so that
    /// no other worker can take it.
    ends: bool,
}

impl JobLease {
    fn abort(&self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

impl JobLeases {
    fn held(&self) -> MutexGuard<'_, HashMap<i64, JobLease>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner) // No panic leaves it half-changed.
    }

    pub(super) fn add(&self, id: i64, starts: i32, until: Instant) {
        let earlier = self.held().insert(id, JobLease { starts, until, running: None, ends: false });
        // An earlier start of this job was lost: abort it. Or it has failed, and the answer is still on its way.
        if let Some(earlier) = earlier.filter(|earlier| !earlier.ends) {
            earlier.abort();
        }
    }

    /// Whether this worker has the job until after this time.
    pub(super) fn holds(&self, id: i64, starts: i32, until: Instant) -> bool {
        self.held().get(&id).is_some_and(|lease| lease.starts == starts && lease.until > until)
    }

    pub(super) fn runs(&self, id: i64, starts: i32, running: AbortHandle) {
        if let Some(lease) = self.held().get_mut(&id)
            && lease.starts == starts
        {
            lease.running = Some(running);
        }
    }

    pub(super) fn ends(&self, id: i64, starts: i32) {
        if let Some(lease) = self.held().get_mut(&id).filter(|lease| lease.starts == starts) {
            lease.ends = true;
        }
    }

    pub(super) fn remove(&self, id: i64, starts: i32) {
        let mut held = self.held();
        if held.get(&id).is_some_and(|lease| lease.starts == starts) {
            held.remove(&id);
        }
    }

    /// Aborts all jobs, and returns their ids and starts.
    pub(super) fn abandon(&self) -> Vec<(i64, i32)> {
        let held = std::mem::take(&mut *self.held());
        held.into_iter()
            .map(|(id, lease)| {
                lease.abort();
                (id, lease.starts)
            })
            .collect()
    }

    /// Extends all leases, three times in the duration of a lease.
    pub(super) async fn keep(&self, context: &QueueContext, lease: Duration) {
        let clock = context.limiter.clock();
        let mut asked = clock.now();
        loop {
            clock.sleep_until(asked + lease / 3).await;
            asked = clock.now();
            let (ids, starts): (Vec<i64>, Vec<i32>) = self.held().iter().map(|(id, lease)| (*id, lease.starts)).unzip();
            if ids.is_empty() {
                continue;
            }
            let arguments = (ids, starts, time::capped(lease));
            let kept = context.own(arguments.clone(), |conn, sql, (ids, starts, lease)| {
                Box::pin(extend(conn, sql, ids, starts, *lease))
            });
            // No longer than until the next extension, so that a lease that expires is noticed.
            match tokio::time::timeout(lease / 3, kept).await {
                Ok(Ok(kept)) => self.extended(arguments.0.iter().zip(&arguments.1), &kept, asked + lease),
                Ok(Err(error)) => warn!(%error, "cannot extend the leases of jobs; trying again"),
                Err(_) => warn!("cannot extend the leases of jobs in time; trying again"),
            }
            self.give_up_lapsed(&arguments.0, clock.now());
        }
    }

    fn extended<'a>(&self, asked: impl Iterator<Item = (&'a i64, &'a i32)>, kept: &[i64], until: Instant) {
        let mut held = self.held();
        for (id, starts) in asked {
            let Some(lease) = held.get_mut(id).filter(|lease| lease.starts == *starts) else { continue };
            if kept.contains(id) {
                lease.until = until;
            } else if lease.ends {
                // It is probably committed, with the answer still on its way. If the job was lost, it cannot commit.
            } else if let Some(lease) = held.remove(id) {
                // An extension came too late, and another worker has the job now.
                lease.abort();
            }
        }
    }

    /// Aborts those of the jobs that have expired leases: other workers may have them by now.
    fn give_up_lapsed(&self, ids: &[i64], now: Instant) {
        self.held().retain(|id, lease| {
            let holds = lease.until > now || !ids.contains(id);
            if !holds {
                warn!(job = id, "the lease of a job expired; another worker may run the job");
                lease.abort();
            }
            holds
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_start_that_has_ended_is_not_aborted_by_the_next_one() {
        let leases = JobLeases::default();
        let until = Instant::now() + Duration::from_secs(60);
        for ends in [true, false] {
            let (end, ended) = tokio::sync::oneshot::channel();
            let task = tokio::spawn(async { ended.await.is_ok() });
            leases.add(1, 1, until);
            leases.runs(1, 1, task.abort_handle());
            if ends {
                leases.ends(1, 1);
            }
            leases.add(1, 2, until);
            let _ = end.send(()); // It fails if the task was aborted.
            assert_eq!(task.await.is_ok(), ends);
            leases.remove(1, 2);
        }
    }
}
