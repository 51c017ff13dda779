//! A lane: the queue of waiting calls, and the state of its driver.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};

use crate::error::Error;

/// A call that waits for its answer. The call is returned with the answer.
pub(crate) struct Waiting<C, A> {
    pub(crate) call: C,
    pub(crate) deadline: Instant,
    /// The span of the waiting caller.
    pub(crate) span: tracing::Span,
    pub(crate) reply: oneshot::Sender<Result<(C, A), Error>>,
}

impl<C, A> Waiting<C, A> {
    pub(crate) fn refuse(self, error: Error) {
        let _ = self.reply.send(Err(error)); // Fails if the caller is gone; ignore that.
    }
}

/// `T` is the state that the driver needs to send a batch.
pub(crate) struct Lane<C, A, T> {
    state: Mutex<LaneQueue<C, A>>,
    /// Locked while a batch of this lane is being sent.
    pub(crate) connections: tokio::sync::Mutex<T>,
    idle: Notify,
}

impl<C, A, T: Default> Default for Lane<C, A, T> {
    fn default() -> Self {
        let state = LaneQueue { queue: VecDeque::new(), driven: false, closed: false };
        Self { state: Mutex::new(state), connections: tokio::sync::Mutex::default(), idle: Notify::new() }
    }
}

struct LaneQueue<C, A> {
    queue: VecDeque<Waiting<C, A>>,
    /// Whether a driver runs.
    driven: bool,
    closed: bool,
}

/// Why a lane rejected a call.
pub(crate) enum Refused {
    Closed,
    Full,
}

impl<C, A, T> Lane<C, A, T> {
    fn state(&self) -> MutexGuard<'_, LaneQueue<C, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // A panic never leaves it half-updated.
    }

    /// Queues a call. Returns whether a driver has to be started.
    pub(crate) fn push(&self, waiting: Waiting<C, A>, most: usize) -> Result<bool, Refused> {
        let mut state = self.state();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.queue.len() >= most {
            state.queue.retain(|waiting| !waiting.reply.is_closed());
            if state.queue.len() >= most {
                return Err(Refused::Full);
            }
        }
        state.queue.push_back(waiting);
        Ok(!std::mem::replace(&mut state.driven, true))
    }

    /// Puts accepted calls back at the front of the queue. Returns whether a driver has to be started.
    pub(crate) fn put_back(&self, calls: Vec<Waiting<C, A>>) -> bool {
        let mut state = self.state();
        calls.into_iter().rev().for_each(|waiting| state.queue.push_front(waiting));
        !state.queue.is_empty() && !std::mem::replace(&mut state.driven, true)
    }

    /// Takes the calls that have waited longest, and drops those whose caller is gone. Returns `None` if the queue is
    /// empty: the driver then stops.
    pub(crate) fn take(&self, most: usize) -> Option<Vec<Waiting<C, A>>> {
        let mut state = self.state();
        let mut taken = Vec::with_capacity(most.min(state.queue.len()));
        while taken.len() < most {
            match state.queue.pop_front() {
                Some(waiting) if waiting.reply.is_closed() => {}
                Some(waiting) => taken.push(waiting),
                None => break,
            }
        }
        drop(state);
        (!taken.is_empty() || !self.rest()).then_some(taken)
    }

    /// Takes the calls whose deadline is not after this time.
    pub(crate) fn take_late(&self, deadline: Instant) -> Vec<Waiting<C, A>> {
        let mut state = self.state();
        let (late, left) = state.queue.drain(..).partition(|waiting| waiting.deadline <= deadline);
        state.queue = left;
        Vec::from(late)
    }

    /// Returns whether the queue is empty. If so, the driver stops.
    pub(crate) fn rest(&self) -> bool {
        let mut state = self.state();
        let rests = state.queue.is_empty();
        if rests {
            state.driven = false;
            drop(state);
            self.idle.notify_waiters();
        }
        rests
    }

    /// Called when the driver has ended unexpectedly: fails all waiting calls, so that none waits forever.
    pub(crate) fn abandon(&self) {
        let left = {
            let mut state = self.state();
            state.driven = false;
            std::mem::take(&mut state.queue)
        };
        left.into_iter().for_each(|waiting| waiting.refuse(Error::Unavailable { source: sqlx::Error::WorkerCrashed }));
        self.idle.notify_waiters();
    }

    /// Stops accepting calls.
    pub(crate) fn shut(&self) {
        self.state().closed = true;
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.state().closed
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.state().driven
    }

    /// Stops accepting calls, and waits until all accepted calls have their answers.
    pub(crate) async fn close(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable(); // Before the check, or the notification could be missed.
            {
                let mut state = self.state();
                state.closed = true;
                if !state.driven {
                    break;
                }
            }
            idle.await;
        }
    }
}
