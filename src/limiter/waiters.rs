//! Waiters of this process for the same buckets that cannot reserve form a line. Only the first one asks the database.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::OwnedMutexGuard;

use crate::call::Resolved;
use crate::clock::LocalClock;

/// The limit names, keys and headrooms, in the order of the call. Calls with different headrooms wait in different lines, so
/// that a call of a low priority does not hold up those of a higher one.
type Buckets = Vec<(Arc<str>, Arc<str>, u64)>;

fn buckets(call: &Resolved) -> Buckets {
    call.items.iter().map(|item| (item.name.clone(), item.key.clone(), item.leave.to_bits())).collect()
}

#[derive(Default)]
pub(super) struct Waiters {
    by_buckets: Mutex<HashMap<Buckets, Arc<Line>>>,
}

#[derive(Default)]
struct Line {
    /// Locked by the first waiter. The lock is fair: the next holder is the waiter that has waited longest.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The time before which the first waiter does not ask.
    not_before: Mutex<Option<Instant>>,
}

/// Shows no key: keys may be personal data.
impl std::fmt::Debug for Waiters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiters").finish_non_exhaustive()
    }
}

impl Waiters {
    fn by_buckets(&self) -> MutexGuard<'_, HashMap<Buckets, Arc<Line>>> {
        self.by_buckets.lock().unwrap_or_else(PoisonError::into_inner) // Nothing in it is ever half-done.
    }

    /// Returns a place in the line for these buckets, if there is such a line.
    pub(super) fn join_if_any(self: &Arc<Self>, call: &Resolved) -> Option<Place> {
        let by_buckets = self.by_buckets();
        if by_buckets.is_empty() {
            return None; // Nearly always.
        }
        let buckets = buckets(call);
        let line = Arc::clone(by_buckets.get(&buckets)?);
        Some(Place { waiters: Arc::clone(self), buckets, line, turn: None })
    }

    /// Returns a place at the end of the line, and creates the line if needed.
    pub(super) fn join(self: &Arc<Self>, call: &Resolved) -> Place {
        let buckets = buckets(call);
        let line = Arc::clone(self.by_buckets().entry(buckets.clone()).or_default());
        Place { waiters: Arc::clone(self), buckets, line, turn: None }
    }
}

/// A place in a line. Dropping it leaves the line.
pub(super) struct Place {
    waiters: Arc<Waiters>,
    buckets: Buckets,
    line: Arc<Line>,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Place {
    fn not_before(&self) -> MutexGuard<'_, Option<Instant>> {
        self.line.not_before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries to become the first of the line without waiting. Returns whether this place is first.
    pub(super) fn is_first(&mut self) -> bool {
        if self.turn.is_none() {
            self.turn = Arc::clone(&self.line.turn).try_lock_owned().ok();
        }
        self.turn.is_some()
    }

    /// Waits until this place is first, and returns whether that was before the deadline. Returns `false` at once if
    /// the first waiter asks only after the deadline.
    pub(super) async fn until_first(&mut self, clock: &LocalClock, deadline: Instant) -> bool {
        if self.turn.is_some() {
            return true;
        }
        if self.not_before().is_some_and(|moment| moment > deadline) {
            return false;
        }
        let turn = Arc::clone(&self.line.turn).lock_owned();
        self.turn = clock.timeout_at(deadline, turn).await;
        self.turn.is_some()
    }

    /// Records that the first waiter does not ask before this moment.
    pub(super) fn sleeps_until(&self, moment: Instant) {
        *self.not_before() = Some(moment);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.turn.is_some() {
            *self.not_before() = None;
        }
        let mut by_buckets = self.waiters.by_buckets();
        if let Entry::Occupied(entry) = by_buckets.entry(std::mem::take(&mut self.buckets))
            // Two references: the map's and this one. Places are only created while the map is locked.
            && Arc::strong_count(entry.get()) == 2
        {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::call::{Call, Item, Op};
    use crate::limit::{Limit, Limits};

    fn call(key: &str) -> Resolved {
        let limit = Limit::sliding_window(1, Duration::from_secs(1)).build().expect("a limit");
        let call = Call::from(Item::new(("a", limit), key));
        Resolved::new(Op::Limit, call, &Limits::new(), None).expect("a call")
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn waiters_proceed_in_order_of_arrival() {
        let waiters = Arc::new(Waiters::default());
        assert!(waiters.join_if_any(&call("k")).is_none());
        let mut first = waiters.join(&call("k"));
        assert!(first.is_first() && waiters.join_if_any(&call("l")).is_none());
        let (arrived, order) = (Arc::new(Mutex::new(Vec::new())), [1, 2, 3]);
        let others = order.map(|nth| {
            let (mut place, arrived) = (waiters.join_if_any(&call("k")).expect("a line"), Arc::clone(&arrived));
            async move {
                assert!(!place.is_first() && place.until_first(&LocalClock::default(), soon()).await);
                arrived.lock().expect("a list").push(nth);
            }
        });
        let others = tokio::spawn(futures_util::future::join_all(others));
        tokio::task::yield_now().await;
        assert!(arrived.lock().expect("a list").is_empty());
        drop(first);
        others.await.expect("a task");
        assert_eq!(*arrived.lock().expect("a list"), order);
        assert!(waiters.by_buckets().is_empty(), "nothing is left behind");
    }

    #[tokio::test]
    async fn a_waiter_stops_waiting_if_its_turn_comes_after_its_deadline() {
        let waiters = Arc::new(Waiters::default());
        let mut first = waiters.join(&call("k"));
        assert!(first.is_first());
        first.sleeps_until(soon() + Duration::from_secs(60));
        let mut second = waiters.join(&call("k"));
        assert!(!second.until_first(&LocalClock::default(), soon()).await, "at once");
        first.sleeps_until(Instant::now());
        assert!(
            !second.until_first(&LocalClock::default(), Instant::now() + Duration::from_millis(5)).await,
            "at the deadline"
        );
        drop(first);
        assert!(second.until_first(&LocalClock::default(), soon()).await);
        // A waiter that leaves, first or not, does not hold up the others.
        let (mut third, fourth) = (waiters.join(&call("k")), waiters.join(&call("k")));
        drop(fourth);
        drop(second);
        assert!(third.until_first(&LocalClock::default(), soon()).await);
        drop(third);
        assert!(waiters.by_buckets().is_empty());
    }
}
