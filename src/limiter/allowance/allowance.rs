use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::call::{Decision, Item, Op};
use crate::error::{Error, InvalidCall, NoRuntime};
use crate::limit::Tokens;
use crate::limiter::Limiter;
use crate::limiter::allowance::give_back::give_back;
use crate::limiter::allowance::refill::Refilling;
use crate::limiter::allowance::shared::{Shared, Stock, Waiter, supported};
use crate::limiter::allowance::tokens::Held;
use crate::retry::longest;

/// Tokens that this process has taken from a bucket and spends from memory, from [`Limiter::allowance`]. Cheap to clone: all
/// clones share the tokens.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn f(limiter: pg_limiter::Limiter) -> Result<(), pg_limiter::Error> {
/// // Takes up to 500 tokens in one decision. Tokens that are unused after 10 seconds are given back.
/// let allowance = limiter.allowance(("api", "org-7"), 500, Duration::from_secs(10))?;
/// if !allowance.try_take(1) {
///     // Too few tokens in memory: waits for one decision of the database.
///     allowance.take(1).await?.enforce()?;
/// }
/// allowance.close().await?;
/// # Ok(()) }
/// ```
///
/// # What it guarantees
/// - **Every token that is spent was taken from the bucket before**, by one decision, and is spent once. An allowance holds at
///   most `size` tokens, including those of a refill that is on its way.
/// - **The bucket counts tokens when they are taken, and callers spend them up to `ttl` later.** So in any span of time,
///   callers spend at most what the limit grants in that span, plus the tokens that were in memory when it began: at most `size`
///   for each allowance. To bound bursts at `capacity`, lower the limit's capacity by `size` for each process.
/// - **Fixed and calendar windows: a token is never spent after its window has ended**, whatever the `ttl`. So callers spend in
///   a window at most what the limit grants in it.
///
/// # What is given back
/// Unused tokens are given back at the end of their `ttl`, by [`close`](Self::close), and in the background when the last clone
/// is dropped:
/// - **Token buckets**: as by [`credit`](Limiter::credit), up to the capacity.
/// - **Fixed and calendar windows**: only if the credit is certain to be within their window. Later they are dropped, because they
///   would add to the tokens of another window.
/// - **Sliding windows: never.** A credit would be subtracted from the newest counts. These can be tokens that others have
///   spent since, which would then leave the window too early.
///
/// Tokens are also dropped if the limit's definition has been [replaced](Limiter::replace_limits) since they were taken, or if
/// the credit fails. A credit with an unknown outcome is not repeated. Dropped tokens stay taken: callers get fewer tokens, never
/// more.
///
/// **What a crash strands.** A process that dies spends no more of its tokens and does not give them back. That is at most `size` tokens
/// for each allowance. The bucket refills as usual, so they delay other callers by at most the time in which it refills `size` tokens.
/// The same is true of a refill with an [unknown outcome](Error::OutcomeUnknown): its tokens count as spent.
///
/// # When not to use it
/// If a call must be in the caller's transaction, if bursts must never exceed the capacity, or if a key is used less than several times in a
/// `ttl`: then [`Limiter::limit`] is as fast, and strands nothing. An allowance is for few keys that are used all the time.
#[derive(Clone)]
pub struct Allowance {
    shared: Arc<Shared>,
}

impl Limiter {
    /// Returns an [`Allowance`]: it takes up to `size` tokens of the item's bucket in one decision, and spends them from memory. Tokens
    /// that are unused after `ttl` are given back. The count of the item is ignored. Makes no call yet: the first
    /// [`take`](Allowance::take) does.
    ///
    /// Choose a `size` that the process uses in a small part of a second, and that is a small part of the capacity. Choose a
    /// `ttl` of some seconds: far more than a round trip. A headroom ([`Item::leave`]) applies to refills.
    ///
    /// # Errors
    /// - [`InvalidCall::AllowanceUnsupported`] for concurrency limits and gates.
    /// - [`InvalidCall::Allowance`] if the size or the `ttl` is 0.
    /// - [`InvalidCall::CountExceedsCapacity`] if the size exceeds the capacity, and the other errors of an invalid call.
    /// - [`Error::Unavailable`] outside of a Tokio runtime.
    ///
    /// # In a transaction
    /// Refills run in the limiter's own transactions. There is no such call for the caller's: memory cannot roll back.
    pub fn allowance(&self, item: impl Into<Item>, size: impl Into<Tokens>, ttl: Duration) -> Result<Allowance, Error> {
        let item = item.into();
        let size = size.into().get();
        supported(&item.clone().pinned(&self.limits()))?;
        self.resolve(Op::Limit, item.clone().count(size).into())?;
        if size <= 0.0 || ttl.is_zero() {
            return Err(InvalidCall::Allowance { limit: item.limit_name().to_owned(), size, ttl }.into());
        }
        let shared = Shared {
            limiter: self.clone(),
            name: item.limit_name().into(),
            item,
            size,
            ttl: longest(ttl),
            runtime: Handle::try_current().map_err(|_| Error::Unavailable { source: NoRuntime.into() })?,
            state: Mutex::new(Stock {
                held: Held::default(),
                most: size,
                waiters: VecDeque::new(),
                is_refilling: false,
                is_closed: false,
                has_timer: false,
                denial: None,
                pause_until: None,
                window: None,
            }),
            turn: tokio::sync::Mutex::default(),
            refills: AtomicU64::default(),
            waits: AtomicU64::default(),
        };
        Ok(Allowance { shared: Arc::new(shared) })
    }
}

impl Allowance {
    /// Takes the tokens from memory, and returns whether it has. Never waits, and makes no call. If less than a quarter of the
    /// size is left, a refill begins in the background.
    ///
    /// `false` is not a denial: the database has not been asked. It is returned if memory has too few tokens, after
    /// [`close`](Self::close), and for a count that is negative or not a number.
    ///
    /// Fractions of tokens are allowed. A result that is not exact is rounded against the caller.
    #[must_use = "the call is limited only if the answer is checked"]
    pub fn try_take(&self, count: impl Into<Tokens>) -> bool {
        let count = count.into().get();
        let now = Instant::now();
        let mut state = self.shared.lock();
        let taken = !state.is_closed && state.held.spend(count, now);
        let refills = state.begins_refill(now);
        drop(state);
        if refills {
            Refilling::begin(&self.shared);
        }
        taken
    }

    /// Takes the tokens from memory or, if it has too few, waits for a refill. All callers that wait share one refill. If the
    /// bucket has fewer tokens than a full refill, the refill takes what is left, or just the tokens that a caller waits for.
    ///
    /// A count above the size is decided by the database alone, as by [`Limiter::limit`].
    ///
    /// # Answers
    /// Allowed decisions have one limit, with the size as its capacity and the tokens in memory as its balance. The `retry_after` of a denial is
    /// the database's. It is remembered until then, or for the `ttl` if that is shorter: until then, the same and larger counts
    /// are denied from memory.
    ///
    /// # Errors
    /// See [`Limiter`]. All callers that wait for a refill get its error. After [`Error::OutcomeUnknown`], the tokens of the refill
    /// count as spent. [`Error::Closed`] after [`close`](Self::close).
    ///
    /// # Cancel safety
    /// Safe. The refill goes on, and serves others. If the future is dropped at the moment of its answer, its tokens may be spent.
    ///
    /// # In a transaction
    /// Refills run in the limiter's own transaction. The tokens stay taken if the caller's transaction rolls back.
    pub async fn take(&self, count: impl Into<Tokens> + Send) -> Result<Decision, Error> {
        let count = count.into().get();
        let shared = &self.shared;
        if !(0.0..=shared.size).contains(&count) {
            if shared.lock().is_closed {
                return Err(Error::Closed);
            }
            return shared.limiter.limit(shared.item.clone().count(count)).await;
        }
        let receiver = {
            let now = Instant::now();
            let mut state = shared.lock();
            if state.is_closed {
                return Err(Error::Closed);
            }
            if state.held.spend(count, now) {
                let decision = shared.allowed(&state.held);
                let refills = state.begins_refill(now);
                drop(state);
                if refills {
                    Refilling::begin(shared);
                }
                return Ok(decision);
            }
            if let Some(denied) = state.remembered(count, now) {
                return Ok(denied);
            }
            let (answer, receiver) = oneshot::channel();
            state.waiters.push_back(Waiter { count, answer });
            if !std::mem::replace(&mut state.is_refilling, true) {
                drop(state);
                Refilling::begin(shared);
            }
            receiver
        };
        shared.waits.fetch_add(1, Ordering::Relaxed);
        // Without an answer, the runtime of the refill has been shut down.
        receiver.await.unwrap_or_else(|_| Err(Error::Unavailable { source: NoRuntime.into() }))
    }

    /// Ends the allowance for all its clones, waits for a refill that is on its way, and gives back what is unused: see
    /// [`Allowance`]. Later calls return [`Error::Closed`]. Call it before [`Limiter::close`].
    ///
    /// # Errors
    /// See [`Limiter`]. The tokens that could not be given back stay taken.
    ///
    /// # Cancel safety
    /// Safe. The tokens are given back in the background.
    ///
    /// # In a transaction
    /// Runs in the limiter's own transaction.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared.lock().is_closed = true;
        let shared = Arc::clone(&self.shared);
        let closing = self.shared.runtime.spawn(async move {
            let _turn = shared.turn.lock().await;
            let unused = shared.lock().held.drain();
            let mut result = Ok(());
            for batch in unused {
                result = result.and(give_back(&shared.limiter, &shared.item, batch).await);
            }
            result
        });
        closing.await.unwrap_or_else(|_| Err(Error::Unavailable { source: NoRuntime.into() }))
    }

    /// Returns the number of tokens in memory.
    pub fn available(&self) -> f64 {
        self.shared.lock().held.live(Instant::now())
    }

    /// Returns how many decisions were made to refill this allowance, over all its clones, allowed and denied ones.
    pub fn refills(&self) -> u64 {
        self.shared.refills.load(Ordering::Relaxed)
    }

    /// Returns how many calls of [`take`](Self::take) had to wait for a refill, over all clones. If it grows all the time, choose
    /// a larger size.
    pub fn waits(&self) -> u64 {
        self.shared.waits.load(Ordering::Relaxed)
    }
}

/// Without the key.
impl fmt::Debug for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allowance")
            .field("limit", &self.shared.name)
            .field("size", &self.shared.size)
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}
