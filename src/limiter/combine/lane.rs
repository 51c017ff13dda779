//! A lane: the calls that wait in it, and whose turn it is.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};

use crate::call::Resolved;
use crate::error::Error;
use crate::limiter::combine::link::Links;
use crate::sql::Answer;

/// A call that waits for its answer, which brings the call back.
pub(super) struct Waiting {
    pub(super) call: Resolved,
    pub(super) deadline: Instant,
    pub(super) reply: oneshot::Sender<Result<(Resolved, Answer), Error>>,
}

impl Waiting {
    pub(super) fn refuse(self, error: Error) {
        let _ = self.reply.send(Err(error)); // If nobody waits any more, nobody is told.
    }
}

#[derive(Default)]
pub(super) struct Lane {
    state: Mutex<State>,
    /// Held while a batch with a key of this lane is decided. The lane's own connections stand in it.
    pub(super) turn: tokio::sync::Mutex<Links>,
    idle: Notify,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    /// There is a driver.
    driven: bool,
    closed: bool,
}

/// Why a call was not let into a lane.
pub(super) enum Refused {
    Closed,
    Full,
}

impl Lane {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // Nothing in it is ever half-done.
    }

    /// Queues a call. Whether a driver has to be started.
    pub(super) fn push(&self, waiting: Waiting, most: usize) -> Result<bool, Refused> {
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

    /// The calls that waited longest, without those whose caller has gone. None: the driver's work is done.
    pub(super) fn take(&self, most: usize) -> Option<Vec<Waiting>> {
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

    /// If nothing waits, the driver's work is done.
    pub(super) fn rest(&self) -> bool {
        let mut state = self.state();
        let rests = state.queue.is_empty();
        if rests {
            state.driven = false;
            drop(state);
            self.idle.notify_waiters();
        }
        rests
    }

    /// The driver is gone, whatever the reason: nobody is left to wait for ever.
    pub(super) fn abandon(&self) {
        let left = {
            let mut state = self.state();
            state.driven = false;
            std::mem::take(&mut state.queue)
        };
        left.into_iter().for_each(|waiting| waiting.refuse(Error::Unavailable { source: sqlx::Error::WorkerCrashed }));
        self.idle.notify_waiters();
    }

    /// Lets nothing more in.
    pub(super) fn shut(&self) {
        self.state().closed = true;
    }

    pub(super) fn is_shut(&self) -> bool {
        self.state().closed
    }

    /// Lets nothing more in, and waits until all that is in has its answer.
    pub(super) async fn close(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable(); // Before looking, or the notification may come in between.
            {
                let mut state = self.state();
                state.closed = true;
                if !state.driven {
                    break;
                }
            }
            idle.await;
        }
        std::mem::take(&mut *self.turn.lock().await).close().await;
    }
}
