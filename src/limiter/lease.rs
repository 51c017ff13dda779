use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::call::{Call, Decision, LeaseId, Op};
use crate::error::{Error, NoRuntime};
use crate::limiter::Limiter;
use crate::observability::{Answered, CallSpan, lost_lease};

/// The answer to [`Limiter::acquire`]: the decision, with a lease if the slots were taken.
///
/// ```no_run
/// # async fn f(limiter: pg_limiter::Limiter) -> Result<(), pg_limiter::Error> {
/// let acquired = limiter.acquire(("running_reports", "u1")).await?;
/// match acquired.into_lease() {
///     Ok(lease) => {
///         // .. run the report ..
///         lease.release().await?;
///     }
///     Err(decision) => println!("a lease ends in {:?}, unless it is renewed", decision.retry_after()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the slots are released when this is dropped: keep the lease while the work runs"]
pub struct Acquired {
    decision: Decision,
    lease: Option<Lease>,
}

impl Acquired {
    /// Returns the decision. The `retry_after` of a denial is the time until so many leases end that the slots are free, unless
    /// they are renewed; a holder may release them sooner.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns whether the slots were taken.
    pub const fn is_allowed(&self) -> bool {
        self.lease.is_some()
    }

    /// Returns the lease, or the decision that denied it.
    ///
    /// # Errors
    /// The decision, if the call was denied.
    pub fn into_lease(self) -> Result<Lease, Decision> {
        self.lease.ok_or(self.decision)
    }

    #[cfg(feature = "tower")]
    pub(crate) fn into_parts(self) -> (Decision, Option<Lease>) {
        (self.decision, self.lease)
    }

    /// Returns the lease, and turns a denial into an error.
    ///
    /// # Errors
    /// [`Error::Denied`].
    pub fn enforce(self) -> Result<Lease, Error> {
        match self.lease {
            Some(lease) => Ok(lease),
            None => match self.decision.enforce() {
                Err(denied) => Err(denied),
                Ok(_) => Err(Error::Database { source: sqlx::Error::RowNotFound }),
            },
        }
    }
}

/// Slots of one or more concurrency limits, from [`Limiter::acquire`].
///
/// The slots are free for others once [`release`](Self::release) has returned, or once the lease has ended. A lease that is
/// dropped is released in the background. If the process dies, or the database cannot be reached, the slots are free when the
/// lease ends. So renew it in time, or let it [be renewed](Self::keep_renewed), and stop the work when it is
/// [lost](Self::lost).
#[must_use = "the slots are released when the lease is dropped"]
pub struct Lease {
    limiter: Limiter,
    /// Names the lease.
    call: Call,
    id: LeaseId,
    length: Duration,
    /// The names of the concurrency limits.
    slots: Arc<[Arc<str>]>,
    state: watch::Sender<Term>,
    /// Ends once the call that takes the slots is decided or given up, which may be after its caller is gone.
    is_decided: Option<oneshot::Receiver<()>>,
    /// Whether a release was sent, which may have given the slots back already.
    is_released: bool,
    /// Renews the lease, if it is kept renewed.
    renewing: Option<tokio::task::AbortHandle>,
    runtime: Handle,
}

#[derive(Clone, Copy, Debug)]
struct Term {
    /// Counted from before the call that took or renewed the slots, so it is no later than the end that the database knows.
    ends_at: Instant,
    is_over: bool,
    /// Whether the slots were certainly taken. A lease that never began cannot be lost.
    is_acquired: bool,
}

impl Limiter {
    /// Takes the slots and tokens of the call, all or none, and holds the slots under a [`Lease`]. The count of an item on a
    /// concurrency limit is the number of slots; items on other limits take tokens, which stay taken.
    ///
    /// # Errors
    /// See [`Limiter`]. Also returns [`Error::Invalid`] if none of the limits is a [concurrency
    /// limit](crate::Limit::concurrency), or a count of slots is not a whole number. After
    /// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown), slots that may have been taken are released in the background.
    ///
    /// # Cancel safety
    /// Safe. If the future is dropped, the slots are released in the background; at the latest they are free when the lease
    /// ends. Count the tokens of other limits as spent.
    ///
    /// # In a transaction
    /// Runs in the limiter's own transaction. To take slots in the caller's, name a [lease](Call::lease): others see the slots
    /// as taken from the commit on, so do not work under the lease before that.
    pub async fn acquire(&self, call: impl Into<Call> + Send) -> Result<Acquired, Error> {
        let call = call.into();
        let id = call.lease.unwrap_or_else(LeaseId::random);
        let call = call.pinned(&self.limits()).lease(id);
        let span = CallSpan::own("acquire", &call);
        span.watch(self.acquire_under(id, call)).await
    }

    async fn acquire_under(&self, id: LeaseId, call: Call) -> Result<Acquired, Error> {
        let mut resolved = self.resolve(Op::Limit, call.clone())?;
        let length = resolved.lease_length();
        let (undecided, is_decided) = oneshot::channel();
        resolved.undecided = Some(Arc::new(undecided));
        // From here on a drop releases what may have been taken.
        let mut lease = Lease {
            limiter: self.clone(),
            call,
            id,
            length,
            slots: resolved.names_of_slots(),
            state: Term::new(self.clock().now() + length, false),
            is_decided: Some(is_decided),
            is_released: false,
            renewing: None,
            runtime: Handle::try_current().map_err(|_| Error::Unavailable { source: NoRuntime.into() })?,
        };
        let decided = self.decide_or_recall(resolved).await;
        match decided.map(|(call, answer)| answer.decision(&call)) {
            Ok(decision) if decision.is_allowed() => {
                lease.state.send_modify(|state| state.is_acquired = true);
                Ok(Acquired { decision, lease: Some(lease) })
            }
            Ok(decision) => {
                lease.end();
                Ok(Acquired { decision, lease: None })
            }
            Err(error) => {
                if !matches!(error, Error::OutcomeUnknown { .. }) {
                    lease.end();
                }
                Err(error)
            }
        }
    }

    /// Gives back the slots of the call's [lease](Call::lease), and returns whether all of them were still held. Items on other
    /// kinds of limits are ignored.
    ///
    /// # In a transaction
    /// Runs in the limiter's own transaction. To release in the caller's, use [`within`](Self::within).
    pub async fn release(&self, call: impl Into<Call> + Send) -> Result<bool, Error> {
        self.call("release", Op::Release, call.into(), |answer, _| answer.is_ok()).await
    }

    /// Lets the call's [lease](Call::lease) end a whole length after now. Returns `false` if it has ended or was released: then
    /// others may hold its slots. Items on other kinds of limits are ignored.
    ///
    /// # In a transaction
    /// Runs in the limiter's own transaction. To renew in the caller's, use [`within`](Self::within).
    pub async fn renew(&self, call: impl Into<Call> + Send) -> Result<bool, Error> {
        self.call("renew", Op::Renew, call.into(), |answer, _| answer.is_ok()).await
    }
}

impl Lease {
    /// Returns the lease of a call that took its slots elsewhere, at `asked` or later.
    pub(crate) fn held(limiter: &Limiter, call: Call, id: LeaseId, asked: Instant) -> Result<Self, Error> {
        Self::taken(limiter, call, id, asked, true)
    }

    /// Returns the lease of a call that took its slots at `asked` or later, in a transaction that may still roll back.
    #[cfg(feature = "tower")]
    pub(crate) fn uncommitted(limiter: &Limiter, call: Call, id: LeaseId, asked: Instant) -> Result<Self, Error> {
        Self::taken(limiter, call, id, asked, false)
    }

    fn taken(limiter: &Limiter, call: Call, id: LeaseId, asked: Instant, is_acquired: bool) -> Result<Self, Error> {
        let call = call.pinned(&limiter.limits()).lease(id);
        let resolved = limiter.resolve(Op::Renew, call.clone())?;
        let length = resolved.lease_length();
        Ok(Self {
            limiter: limiter.clone(),
            call,
            id,
            length,
            slots: resolved.names_of_slots(),
            state: Term::new(asked + length, is_acquired),
            is_decided: None,
            is_released: false,
            renewing: None,
            runtime: Handle::try_current().map_err(|_| Error::Unavailable { source: NoRuntime.into() })?,
        })
    }

    /// Returns the names of the concurrency limits.
    #[cfg(feature = "tower")]
    pub(crate) fn slots(&self) -> &[Arc<str>] {
        &self.slots
    }

    /// Returns the id, under which [`Limiter::release`] and [`Limiter::renew`] work in any process.
    pub const fn id(&self) -> LeaseId {
        self.id
    }

    /// Returns the time until the lease ends, at least; zero if it has ended or was lost.
    pub fn ends_in(&self) -> Duration {
        let Term { ends_at, is_over, .. } = *self.state.borrow();
        if is_over { Duration::ZERO } else { ends_at.saturating_duration_since(self.limiter.clock().now()) }
    }

    /// Gives the slots back, and returns whether all of them were still held until now.
    ///
    /// # Errors
    /// See [`Limiter`]. Then the release is tried again in the background.
    ///
    /// # Cancel safety
    /// Safe. If the future is dropped, the slots are released in the background.
    ///
    /// # In a transaction
    /// Runs in the limiter's own transaction. To release in the caller's, use [`Within::release`](crate::Within::release) with
    /// the [id](Self::id).
    pub async fn release(mut self) -> Result<bool, Error> {
        self.stop_renewing();
        self.is_released = true;
        let was_held = self.limiter.release(self.call.clone()).await?;
        if !was_held {
            self.state.send_if_modified(|state| state.lose(&self.slots));
        }
        self.end();
        Ok(was_held)
    }

    /// Lets the lease end a whole length after now. Returns `false` if it was lost.
    ///
    /// # Errors
    /// See [`Limiter`]. The lease may have been renewed; renew it again.
    ///
    /// # Cancel safety
    /// Safe. The lease may have been renewed.
    ///
    /// # In a transaction
    /// Runs in the limiter's own transaction.
    pub async fn renew(&self) -> Result<bool, Error> {
        renew(&self.limiter, &self.call, self.length, &self.slots, &self.state).await
    }

    /// Renews the lease in the background, three times in its length, until it is dropped, released or [lost](Self::lost).
    pub fn keep_renewed(mut self) -> Self {
        self.stop_renewing();
        let (limiter, call, length, state) = (self.limiter.clone(), self.call.clone(), self.length, self.state.clone());
        let slots = Arc::clone(&self.slots);
        let mut asked = limiter.clock().now();
        let renewing = async move {
            while !state.borrow().is_over {
                let clock = limiter.clock();
                clock.sleep_until(asked + length / 3).await;
                asked = clock.now();
                if let Err(error) = renew(&limiter, &call, length, &slots, &state).await {
                    tracing::warn!(%error, "a lease was not renewed");
                }
            }
        };
        self.renewing = Some(self.runtime.spawn(renewing).abort_handle());
        self
    }

    /// Waits until the lease has ended without a renewal, or a renewal came too late. Stop the work then: others may hold the
    /// slots. Select on it beside the work.
    ///
    /// # Errors
    /// None.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # In a transaction
    /// Makes no call.
    pub async fn lost(&self) {
        let mut states = self.state.subscribe();
        loop {
            let Term { ends_at, is_over, .. } = *states.borrow_and_update();
            if is_over || ends_at <= self.limiter.clock().now() {
                return;
            }
            // Either the lease ends, or its state has changed.
            let _ = self.limiter.clock().timeout_at(ends_at, states.changed()).await;
        }
    }

    fn stop_renewing(&mut self) {
        if let Some(renewing) = self.renewing.take() {
            renewing.abort();
        }
    }

    /// There is nothing to release any more.
    fn end(&mut self) {
        self.stop_renewing();
        self.state.send_modify(|state| state.is_over = true);
    }
}

async fn renew(
    limiter: &Limiter,
    call: &Call,
    length: Duration,
    slots: &[Arc<str>],
    state: &watch::Sender<Term>,
) -> Result<bool, Error> {
    let asked = limiter.clock().now();
    let is_held = limiter.renew(call.clone()).await?;
    state.send_modify(|state| {
        if is_held {
            state.is_acquired = true;
            state.ends_at = state.ends_at.max(asked + length);
        } else {
            state.lose(slots);
        }
    });
    Ok(is_held)
}

impl Term {
    fn new(ends_at: Instant, is_acquired: bool) -> watch::Sender<Self> {
        watch::Sender::new(Self { ends_at, is_over: false, is_acquired })
    }

    /// The lease has ended before its release, unless its transaction has not committed. Returns whether it was not over before.
    fn lose(&mut self, slots: &[Arc<str>]) -> bool {
        if !self.is_acquired {
            return false;
        }
        if !self.is_over {
            lost_lease(slots);
        }
        !std::mem::replace(&mut self.is_over, true)
    }
}

impl Answered for Acquired {
    fn outcome(&self) -> &'static str {
        Answered::outcome(&self.decision)
    }

    fn retry_after(&self) -> Option<Duration> {
        self.decision.retry_after()
    }

    fn denied_by(&self) -> Vec<&str> {
        self.decision.denied_by()
    }

    fn count(&self) {
        self.decision.count();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop_renewing();
        let Term { is_over, is_acquired, .. } = *self.state.borrow();
        if is_over {
            return;
        }
        let (limiter, call, slots) = (self.limiter.clone(), self.call.clone(), Arc::clone(&self.slots));
        let (is_decided, is_released) = (self.is_decided.take(), self.is_released);
        self.runtime.spawn(async move {
            // A release that overtakes the call would find nothing to release.
            if let Some(is_decided) = is_decided {
                let _ = is_decided.await; // Nothing is sent: the sender is dropped with the call.
            }
            match limiter.release(call).await {
                Ok(false) if is_acquired && !is_released => lost_lease(&slots),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "a dropped lease was not released; its slots are free when it ends");
                }
            }
        });
    }
}

/// Without the key.
impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("id", &self.id.get()).field("ends_in", &self.ends_in()).finish_non_exhaustive()
    }
}
