//! The buckets of the batches that are being sent. Calls on one of them wait until the batch ends, so that the batches
//! of one process never wait for each other.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::combine::lane::Waiting;
use crate::sql::Bucket;

type Calls<C, A> = Vec<Waiting<C, A>>;

#[derive(Default)]
pub(super) struct InFlight {
    state: Mutex<Claims>,
    ended: Notify,
}

#[derive(Default)]
struct Claims {
    claimed: HashSet<Bucket>,
    /// The lanes that have calls waiting for buckets, in order of arrival.
    line: VecDeque<usize>,
    /// The buckets that the first of these lanes waits for. No other lane may claim them before it.
    wanted: HashSet<Bucket>,
}

/// The claimed buckets of a batch. Dropping it releases them.
pub(super) struct Claim<'a> {
    in_flight: &'a InFlight,
    buckets: HashSet<Bucket>,
}

impl InFlight {
    fn state(&self) -> MutexGuard<'_, Claims> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // A panic never leaves it half-updated.
    }

    /// Claims the free buckets that the calls of a lane name. Returns the calls that can be sent, their claim, and the
    /// calls that have to wait. A call never overtakes another one of its lane on the same bucket.
    pub(super) fn claim<C, A>(
        &self,
        lane: usize,
        calls: Calls<C, A>,
        buckets: impl Fn(&C) -> Vec<Bucket>,
    ) -> (Calls<C, A>, Claim<'_>, Calls<C, A>) {
        let (mut now, mut later) = (Vec::with_capacity(calls.len()), Vec::new());
        let (mut claimed, mut wanted) = (HashSet::new(), HashSet::new());
        let mut state = self.state();
        let is_first = state.line.front().is_none_or(|first| *first == lane);
        for waiting in calls {
            let asked = buckets(&waiting.call);
            let is_free = |it: &Bucket| {
                !state.claimed.contains(it) && !wanted.contains(it) && (is_first || !state.wanted.contains(it))
            };
            if asked.iter().all(is_free) {
                claimed.extend(asked);
                now.push(waiting);
            } else {
                wanted.extend(asked);
                later.push(waiting);
            }
        }
        state.claimed.extend(claimed.iter().cloned());
        if later.is_empty() {
            state.leave(lane);
        } else {
            if !state.line.contains(&lane) {
                state.line.push_back(lane);
            }
            if is_first {
                state.wanted = wanted;
            }
        }
        (now, Claim { in_flight: self, buckets: claimed }, later)
    }

    /// Records that no call of this lane waits any more.
    pub(super) fn leave(&self, lane: usize) {
        self.state().leave(lane);
        self.ended.notify_waiters();
    }

    /// Returns a future that completes when a batch has ended.
    pub(super) fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }
}

impl Claims {
    fn leave(&mut self, lane: usize) {
        if self.line.front() == Some(&lane) {
            self.wanted.clear(); // The next lane sets this when it claims again.
        }
        self.line.retain(|it| *it != lane);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.in_flight.state();
        for bucket in &self.buckets {
            state.claimed.remove(bucket);
        }
        drop(state);
        self.in_flight.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use tokio::sync::oneshot;

    use super::{Bucket, InFlight, Waiting};

    fn asking(keys: &'static str) -> Waiting<&'static str, ()> {
        let (reply, _) = oneshot::channel();
        Waiting { call: keys, deadline: Instant::now(), span: tracing::Span::none(), reply }
    }

    /// One bucket for each letter.
    fn buckets(keys: &&'static str) -> Vec<Bucket> {
        keys.chars().map(|key| (Arc::from("limit"), Arc::from(key.to_string()))).collect()
    }

    fn calls(of: &[Waiting<&'static str, ()>]) -> Vec<&'static str> {
        of.iter().map(|waiting| waiting.call).collect()
    }

    #[test]
    fn a_bucket_is_in_one_batch_at_a_time_and_calls_on_it_keep_their_order() {
        let in_flight = InFlight::default();
        let (now, first, later) = in_flight.claim(0, vec![asking("ab"), asking("a"), asking("b")], buckets);
        assert_eq!((calls(&now), calls(&later)), (vec!["ab", "a", "b"], vec![]));
        // "c" is free, but an earlier call names it and has to wait.
        let (now, second, later) =
            in_flight.claim(1, vec![asking("d"), asking("bc"), asking("c"), asking("d")], buckets);
        assert_eq!((calls(&now), calls(&later)), (vec!["d", "d"], vec!["bc", "c"]));
        drop(first);
        drop(second);
        let (now, _third, later) = in_flight.claim(1, later, buckets);
        assert_eq!((calls(&now), calls(&later)), (vec!["bc", "c"], vec![]));
    }

    #[test]
    fn a_freed_bucket_goes_to_the_lane_that_waited_first() {
        let in_flight = InFlight::default();
        let (_, first, _) = in_flight.claim(0, vec![asking("a")], buckets);
        let (_, _none, left) = in_flight.claim(1, vec![asking("ab")], buckets);
        drop(first);
        // Lane 0 claims again before lane 1 does.
        let (now, _claim, later) = in_flight.claim(0, vec![asking("a"), asking("c")], buckets);
        assert_eq!((calls(&now), calls(&later)), (vec!["c"], vec!["a"]));
        let (now, second, none) = in_flight.claim(1, left, buckets);
        assert_eq!((calls(&now), calls(&none)), (vec!["ab"], vec![]));
        drop(second);
        let (now, _claim, _) = in_flight.claim(0, later, buckets);
        assert_eq!(calls(&now), ["a"]);
    }

    #[test]
    fn a_lane_that_leaves_blocks_no_other_lane() {
        let in_flight = InFlight::default();
        let (_, first, _) = in_flight.claim(0, vec![asking("a")], buckets);
        drop(in_flight.claim(1, vec![asking("ab")], buckets));
        drop(first);
        in_flight.leave(1);
        let (now, _claim, _) = in_flight.claim(0, vec![asking("ab")], buckets);
        assert_eq!(calls(&now), ["ab"]);
    }
}
