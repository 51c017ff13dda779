//! Refills of an allowance.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::call::{Decision, Item, Op};
use crate::error::Error;
use crate::limit::{Kind, Limit};
use crate::limiter::allowance::shared::{Denial, REFILL_BELOW, Shared, Waiter, Window, supported};
use crate::limiter::allowance::tokens::Batch;
use crate::retry::longest;
use crate::sql::ReadWindow;

/// After a failed refill in the background, the next one waits for this time. Callers that find too few tokens do not.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long the known end of a window is used, so that the clocks of the process and the server cannot drift apart.
const WINDOW_IS_KNOWN_FOR: Duration = Duration::from_secs(60);
/// The smallest refill, as a part of the count that needs it.
const LEAST_REFILL: f64 = 1e-6;

/// The answer to a refill.
enum Refilled {
    Granted(Box<Batch>),
    Denied(Decision),
    /// All but a rounding error is in memory: the need got a decision of its own.
    Decided(Decision),
    /// Memory is full.
    Nothing,
}

impl Shared {
    /// Asks the database for what is missing, or at least for what `need` lacks.
    async fn refill(&self, need: Option<f64>) -> Result<Refilled, Error> {
        let item = self.item.clone().pinned(&self.limiter.limits());
        let limit = supported(&item)?;
        let resolved = self.limiter.resolve(Op::Limit, item.clone().count(0).into())?;
        let leave = resolved.items.first().map_or(0.0, |item| item.leave);
        let most = self.size.min(limit.largest_count() - leave);
        if let Some(need) = need.filter(|need| *need > most) {
            self.limiter.resolve(Op::Limit, item.clone().count(need).into())?;
        }
        let held = {
            let mut state = self.lock();
            state.most = most;
            state.held.all()
        };
        let missing = most - held;
        // Enough that what arrives is not lost by rounding.
        let least = need.map_or(most * REFILL_BELOW, |need| (need - held).max(need * LEAST_REFILL));
        if missing < need.map_or(most * LEAST_REFILL, |_| least) {
            return Ok(match need {
                Some(need) => Refilled::Decided(self.limiter.limit(item.count(need)).await?),
                None => Refilled::Nothing,
            });
        }
        let window_ends_at = self.end_of_window(&item, limit).await?;
        let mut tokens = missing;
        loop {
            let asked = Instant::now();
            self.refills.fetch_add(1, Ordering::Relaxed);
            let decision = self.limiter.limit(item.clone().count(tokens)).await?;
            if decision.is_allowed() {
                let expires_at = window_ends_at.map_or(asked + self.ttl, |end| end.min(asked + self.ttl));
                let batch = Batch { tokens, expires_at, window_ends_at, item, has_just_arrived: true };
                return Ok(Refilled::Granted(Box::new(batch)));
            }
            let left = decision.remaining() - leave;
            tokens = if tokens == missing && left < missing && left >= least {
                left
            } else if tokens > least && need.is_some() {
                least
            } else {
                return Ok(Refilled::Denied(decision));
            };
        }
    }

    /// Returns a time by which the window has certainly not ended; `None` if the limit has no such windows.
    async fn end_of_window(&self, item: &Item, limit: Limit) -> Result<Option<Instant>, Error> {
        if !matches!(limit.kind(), Kind::FixedWindow | Kind::CalendarWindow) {
            return Ok(None);
        }
        let asked = Instant::now();
        let is_known = |window: &Window| {
            window.limit == limit && asked < window.ends_at && asked < window.asked + WINDOW_IS_KNOWN_FOR
        };
        let known = self.lock().window.filter(is_known);
        if let Some(window) = known {
            return Ok(Some(window.ends_at));
        }
        let rest = if limit.kind() == Kind::CalendarWindow {
            self.limiter.own_transaction(ReadWindow(limit)).await?.ends_in
        } else {
            let balances = self.limiter.peek(item.clone()).await?;
            balances.limits().first().and_then(|state| state.window_ends_in).unwrap_or_default()
        };
        let ends_at = asked + longest(rest);
        self.lock().window = Some(Window { limit, asked, ends_at });
        Ok(Some(ends_at))
    }
}

/// A refill. If its runtime is shut down, its waiters return an error.
pub(super) struct Refilling {
    shared: Arc<Shared>,
    is_done: bool,
}

impl Refilling {
    /// Begins a refill in the background. The caller has set `is_refilling`.
    pub(super) fn begin(shared: &Arc<Shared>) {
        let refilling = Self { shared: Arc::clone(shared), is_done: false };
        shared.runtime.spawn(refilling.refill_until_served());
    }

    async fn refill_until_served(mut self) {
        let shared = Arc::clone(&self.shared);
        let _turn = shared.turn.lock().await;
        let mut is_first = true;
        loop {
            shared.give_back_expired().await;
            let Some(need) = self.next(is_first) else { return };
            is_first = false;
            let refilled = shared.refill(need).await;
            let now = Instant::now();
            let mut state = shared.lock();
            match refilled {
                Ok(Refilled::Granted(batch)) => {
                    state.denial = None;
                    state.held.add(*batch);
                    state.serve(&shared, now);
                    state.held.settle();
                    if !std::mem::replace(&mut state.has_timer, true) {
                        drop(state);
                        shared.begin_timer();
                    }
                }
                Ok(Refilled::Denied(decision)) => {
                    let retry_after = decision.retry_after().unwrap_or_default();
                    let remembered_until = now + retry_after.min(shared.ttl);
                    state.pause_until = Some(remembered_until);
                    let Some(count) = need else { continue };
                    let retry_at = now + longest(retry_after);
                    for waiter in state.take_waiters(count) {
                        let _ = waiter.answer.send(Ok(decision.clone()));
                    }
                    state.denial = Some(Denial { count, decision, retry_at, remembered_until });
                }
                Ok(Refilled::Decided(decision)) => {
                    if let Some(Waiter { answer, .. }) = state.waiters.pop_front() {
                        let _ = answer.send(Ok(decision));
                    }
                }
                Ok(Refilled::Nothing) => {}
                Err(error) => {
                    state.pause_until = Some(now + PAUSE_AFTER_FAILURE);
                    // A count that can no longer be granted says nothing about smaller ones.
                    let from = if matches!(error, Error::Invalid(_)) { need.unwrap_or(0.0) } else { 0.0 };
                    for waiter in state.take_waiters(from) {
                        let _ = waiter.answer.send(Err(error.duplicate()));
                    }
                }
            }
        }
    }

    /// Serves waiters from memory, and returns the count that the first of the others needs; in the background, none. Returns `None` if
    /// the refill is done.
    #[allow(clippy::option_option, reason = "no refill, or one without a need")]
    fn next(&mut self, is_first: bool) -> Option<Option<f64>> {
        let now = Instant::now();
        let shared = &self.shared;
        let mut state = shared.lock();
        if state.is_closed {
            for waiter in state.take_waiters(0.0) {
                let _ = waiter.answer.send(Err(Error::Closed));
            }
        }
        state.serve(shared, now);
        match state.waiters.front() {
            Some(waiter) => Some(Some(waiter.count)),
            None if is_first && !state.is_closed => Some(None),
            None => {
                state.is_refilling = false;
                self.is_done = true;
                None
            }
        }
    }
}

impl Drop for Refilling {
    fn drop(&mut self) {
        if !self.is_done {
            let mut state = self.shared.lock();
            state.is_refilling = false;
            state.waiters.clear();
        }
    }
}
