//! The state that the clones of an allowance share: its tokens, and the waiting callers.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::call::{Decision, Item, LimitState, Outcome};
use crate::error::{Error, InvalidCall};
use crate::limit::{Kind, Limit};
use crate::limiter::Limiter;
use crate::limiter::allowance::give_back::give_back_all;
use crate::limiter::allowance::tokens::Held;

/// When less than this part is left, the allowance is refilled in the background.
pub(super) const REFILL_BELOW: f64 = 0.25;

pub(super) struct Shared {
    pub(super) limiter: Limiter,
    /// As given, so that a limit that is replaced by name applies from the next refill on.
    pub(super) item: Item,
    pub(super) name: Arc<str>,
    pub(super) size: f64,
    pub(super) ttl: Duration,
    pub(super) runtime: Handle,
    pub(super) state: Mutex<Stock>,
    /// Held while the database is asked, so that refills and returns follow each other.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) refills: AtomicU64,
    pub(super) waits: AtomicU64,
}

pub(super) struct Stock {
    pub(super) held: Held,
    /// The most tokens to hold: the size, or less if the limit's capacity was lowered.
    pub(super) most: f64,
    pub(super) waiters: VecDeque<Waiter>,
    pub(super) is_refilling: bool,
    pub(super) is_closed: bool,
    pub(super) has_timer: bool,
    pub(super) denial: Option<Denial>,
    /// No refill in the background before this time.
    pub(super) pause_until: Option<Instant>,
    pub(super) window: Option<Window>,
}

pub(super) struct Waiter {
    pub(super) count: f64,
    pub(super) answer: oneshot::Sender<Result<Decision, Error>>,
}

/// The last denial. Counts that are not smaller are denied from memory.
pub(super) struct Denial {
    pub(super) count: f64,
    pub(super) decision: Decision,
    pub(super) retry_at: Instant,
    pub(super) remembered_until: Instant,
}

/// The window of a fixed or calendar window.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) limit: Limit,
    pub(super) asked: Instant,
    /// No later than its end.
    pub(super) ends_at: Instant,
}

impl Stock {
    /// Whether a refill is to begin in the background. If so, the caller begins it.
    pub(super) fn begins_refill(&mut self, now: Instant) -> bool {
        let is_due = !self.is_refilling
            && !self.is_closed
            && self.pause_until.is_none_or(|until| until <= now)
            && self.held.live(now) < self.most * REFILL_BELOW;
        self.is_refilling |= is_due;
        is_due
    }

    /// Returns the denial of this count, or of a smaller one, that is remembered.
    pub(super) fn remembered(&self, count: f64, now: Instant) -> Option<Decision> {
        let denial = self.denial.as_ref().filter(|denial| denial.remembered_until > now && denial.count <= count)?;
        let retry_after = denial.retry_at.saturating_duration_since(now);
        Some(Decision { outcome: Outcome::Denied { retry_after }, ..denial.decision.clone() })
    }

    /// Answers the waiters that the tokens in memory suffice for. A refill that has just arrived serves them even if its tokens
    /// have expired on the way.
    pub(super) fn serve(&mut self, shared: &Shared, now: Instant) {
        while let Some(waiter) = self.waiters.front() {
            if !waiter.answer.is_closed() && !self.held.spend_arrived(waiter.count, now) {
                return;
            }
            let decision = shared.allowed(&self.held);
            if let Some(waiter) = self.waiters.pop_front() {
                let _ = waiter.answer.send(Ok(decision));
            }
        }
    }

    /// Removes the waiters for this count and larger ones.
    pub(super) fn take_waiters(&mut self, from: f64) -> Vec<Waiter> {
        let (taken, kept) = std::mem::take(&mut self.waiters).into_iter().partition(|waiter| waiter.count >= from);
        self.waiters = kept;
        Vec::from_iter::<VecDeque<_>>(taken)
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Stock> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The decision of a call that was served from memory.
    pub(super) fn allowed(&self, held: &Held) -> Decision {
        let state = LimitState {
            limit: Arc::clone(&self.name),
            remaining: held.all(),
            denied: false,
            capacity: self.size,
            full_in: None,
            window_ends_in: None,
            taken: 0.0,
            is_gate: false,
        };
        Decision { outcome: Outcome::Allowed, limits: vec![state] }
    }

    /// Gives back the tokens that have expired. The caller has the turn.
    pub(super) async fn give_back_expired(&self) {
        let expired = self.lock().held.take_expired(Instant::now());
        give_back_all(&self.limiter, &self.item, expired).await;
    }

    /// Gives back unused tokens when they expire, as long as there are any.
    pub(super) fn begin_timer(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        self.runtime.spawn(async move {
            while let Some(expires_at) = next_expiry(&shared) {
                tokio::time::sleep_until(expires_at.into()).await;
                let Some(shared) = shared.upgrade() else { return };
                let _turn = shared.turn.lock().await;
                shared.give_back_expired().await;
            }
        });
    }
}

/// Returns when the first tokens expire. Without any, the timer ends.
fn next_expiry(shared: &Weak<Shared>) -> Option<Instant> {
    let shared = shared.upgrade()?;
    let mut state = shared.lock();
    let next = state.held.next_expiry();
    state.has_timer = next.is_some();
    next
}

/// Returns the limit of a pinned item, if an allowance can hold its tokens.
pub(super) fn supported(item: &Item) -> Result<Limit, InvalidCall> {
    let limit = item.limit_name().to_owned();
    match item.inline_limit() {
        None => Err(InvalidCall::UnknownLimit { limit }),
        Some(known) => match known.kind() {
            kind @ (Kind::Concurrency | Kind::Gate) => Err(InvalidCall::AllowanceUnsupported { limit, kind }),
            _ => Ok(*known),
        },
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let unused = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).held.drain();
        if !unused.is_empty() {
            let (limiter, item) = (self.limiter.clone(), self.item.clone());
            self.runtime.spawn(async move { give_back_all(&limiter, &item, unused).await });
        }
    }
}
