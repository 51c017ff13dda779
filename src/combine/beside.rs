//! Calls on rows that another transaction keeps locked. They wait beside their lane, not in it, so that calls on other
//! rows continue.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::combine::lane::Waiting;
use crate::error::Error;
use crate::sql::Bucket;

/// How many transactions of one handle may wait for locks at the same time, each on its own connection.
const PLACES: usize = 4;

/// How long such a transaction waits before it makes room for others. It then loses its place in the server's lock
/// queue.
const TURN: Duration = Duration::from_secs(1);
const TURN_IF_OTHERS_WAIT: Duration = Duration::from_millis(250);

/// How long new calls on a bucket are diverted here after one had to wait, and connections for them are kept.
pub(super) const LINGERS: Duration = Duration::from_secs(1);

/// The locked buckets that a call waits for, sorted.
pub(super) type HeldBuckets = Vec<Bucket>;

pub(crate) struct Beside<C, A> {
    queues: Mutex<HashMap<HeldBuckets, Queue<C, A>>>,
    /// The number of queues; usually 0.
    count: AtomicUsize,
    places: Semaphore,
    idle: Notify,
}

struct Queue<C, A> {
    calls: VecDeque<Waiting<C, A>>,
    /// Whether a driver runs.
    driven: bool,
    /// Without a driver, the queue is kept until this time.
    until: Instant,
}

impl<C, A> Default for Beside<C, A> {
    fn default() -> Self {
        let (queues, count) = (Mutex::default(), AtomicUsize::new(0));
        Self { queues, count, places: Semaphore::new(PLACES), idle: Notify::new() }
    }
}

impl<C, A> Beside<C, A> {
    fn queues(&self) -> MutexGuard<'_, HashMap<HeldBuckets, Queue<C, A>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner) // A panic never leaves it half-updated.
    }

    fn counted(&self, queues: &HashMap<HeldBuckets, Queue<C, A>>) {
        self.count.store(queues.len(), Ordering::Release);
    }

    /// Takes in the calls on buckets that already have a queue. Returns the other calls, and the queues that need a
    /// driver.
    pub(super) fn divert(
        &self,
        calls: Vec<Waiting<C, A>>,
        buckets: impl Fn(&C) -> Vec<Bucket>,
    ) -> (Vec<Waiting<C, A>>, Vec<HeldBuckets>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return (calls, Vec::new());
        }
        let held: HashSet<Bucket> = {
            let mut queues = self.queues();
            let now = Instant::now();
            queues.retain(|_, queue| queue.driven || queue.until > now);
            self.counted(&queues);
            queues.keys().flatten().cloned().collect()
        };
        self.take_in(calls, &held, buckets)
    }

    /// Takes in the calls on these buckets. Returns the other calls, and the queues that need a driver.
    pub(super) fn take_in(
        &self,
        calls: Vec<Waiting<C, A>>,
        held: &HashSet<Bucket>,
        buckets: impl Fn(&C) -> Vec<Bucket>,
    ) -> (Vec<Waiting<C, A>>, Vec<HeldBuckets>) {
        let (mut others, mut undriven) = (Vec::new(), Vec::new());
        let mut queues = self.queues();
        for waiting in calls {
            let mut waits_for: HeldBuckets =
                buckets(&waiting.call).into_iter().filter(|it| held.contains(it)).collect();
            if waits_for.is_empty() {
                others.push(waiting);
                continue;
            }
            waits_for.sort_unstable();
            waits_for.dedup();
            let queue = queues.entry(waits_for).or_insert_with_key(|key| {
                undriven.push(key.clone());
                Queue { calls: VecDeque::new(), driven: true, until: Instant::now() }
            });
            queue.calls.push_back(waiting);
        }
        // Queues whose driver had stopped.
        for (key, queue) in queues.iter_mut().filter(|(_, queue)| !queue.driven && !queue.calls.is_empty()) {
            queue.driven = true;
            undriven.push(key.clone());
        }
        self.counted(&queues);
        (others, undriven)
    }

    /// Takes the calls that have waited longest. Returns `None` if there are none: the driver then stops.
    pub(super) fn take(&self, held: &HeldBuckets, most: usize) -> Option<Vec<Waiting<C, A>>> {
        let mut queues = self.queues();
        let queue = queues.get_mut(held)?;
        queue.calls.retain(|waiting| !waiting.reply.is_closed());
        if !queue.calls.is_empty() {
            let most = most.min(queue.calls.len());
            return Some(queue.calls.drain(..most).collect());
        }
        queue.driven = false;
        drop(queues);
        self.idle.notify_waiters();
        None
    }

    /// Puts calls back at the front of their queue.
    pub(super) fn put_back(&self, held: &HeldBuckets, calls: Vec<Waiting<C, A>>) {
        if let Some(queue) = self.queues().get_mut(held) {
            calls.into_iter().rev().for_each(|waiting| queue.calls.push_front(waiting));
        }
    }

    /// Keeps the queue for a while: the rows were locked for long, so the next calls on them come here at once.
    pub(super) fn linger(&self, held: &HeldBuckets) {
        if let Some(queue) = self.queues().get_mut(held) {
            queue.until = Instant::now() + LINGERS;
        }
    }

    /// Removes the queue, because the rows are free. Returns its calls, which go back to their lanes.
    pub(super) fn end(&self, held: &HeldBuckets) -> Vec<Waiting<C, A>> {
        let mut queues = self.queues();
        let queue = queues.remove(held);
        self.counted(&queues);
        drop(queues);
        self.idle.notify_waiters();
        queue.map_or_else(Vec::new, |queue| queue.calls.into())
    }

    /// Called when the driver has ended unexpectedly: fails the queue's calls, so that none waits forever.
    pub(super) fn abandon(&self, held: &HeldBuckets) {
        let gone = || Error::Unavailable { source: sqlx::Error::WorkerCrashed };
        self.end(held).into_iter().for_each(|waiting| waiting.refuse(gone()));
    }

    /// Acquires one of the places, or returns `None` at the deadline.
    pub(super) async fn place(&self, deadline: Instant) -> Option<SemaphorePermit<'_>> {
        tokio::time::timeout_at(deadline.into(), self.places.acquire()).await.ok()?.ok()
    }

    /// Returns how long a transaction may wait for a lock before it makes room for others.
    pub(super) fn turn(&self) -> Duration {
        if self.count.load(Ordering::Acquire) > PLACES { TURN_IF_OTHERS_WAIT } else { TURN }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues().values().all(|queue| !queue.driven)
    }

    /// Whether no new call is diverted here, either.
    pub(super) fn is_over(&self) -> bool {
        let now = Instant::now();
        self.queues().values().all(|queue| !queue.driven && queue.until <= now)
    }

    /// Waits until all calls have their answers.
    pub(super) async fn close(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable(); // Before the check, or the notification could be missed.
            if self.is_empty() {
                break;
            }
            idle.await;
        }
    }
}
