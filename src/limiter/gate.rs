use std::time::Duration;

use crate::call::{Call, Item, Op, Resolved};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::observability::CallSpan;
use crate::sql::{Blocking, Unblocking};

impl Limiter {
    /// Blocks a key of a [gate](crate::Limit::gate) for this time, and returns the rest of its block. A block that lasts
    /// longer stays: a shorter one never ends it earlier. Use [`unblock`](Self::unblock) to end it.
    ///
    /// While the key is blocked, each call that names the gate with this key is denied, and takes nothing from its other limits.
    /// Its `retry_after` is at least the rest of the block. A call that was decided before the block stays allowed.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// use pg_limiter::{Item, Limit, Limiter, Limits};
    ///
    /// # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let minute = Duration::from_secs(60);
    /// let limits = Limits::new().define("banned", Limit::gate())?.define("logins", Limit::token_bucket(5, minute))?;
    /// let limiter = Limiter::new(pool, limits);
    /// let address = "203.0.113.7";
    /// let decision = limiter.limit([Item::new("banned", address), Item::new("logins", address)]).await?;
    /// if decision.denied_by() == ["logins"] {
    ///     limiter.block(("banned", address), 60 * minute).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`Limiter`]. [`Error::Invalid`] if the limit is not a gate, or the time is 0, longer than 36,525 days or not a whole
    /// number of microseconds.
    pub async fn block(&self, item: impl Into<Item> + Send, duration: Duration) -> Result<Duration, Error> {
        let item = item.into();
        let span = CallSpan::own("block", &Call::from(item.clone()));
        let running = async {
            let blocking = Blocking::new(self.transaction_limiter(), item, duration)?;
            self.own_transaction(blocking).await
        };
        span.watch(running).await
    }

    /// Ends the block of a key of a [gate](crate::Limit::gate), if it has one.
    ///
    /// Other processes that [remember denials](crate::LimiterConfig::remember_denials) may deny calls on this gate alone for up
    /// to [`max_age`](crate::DenialMemory::max_age).
    ///
    /// # Errors
    /// See [`Limiter`]. [`Error::Invalid`] if the limit is not a gate.
    pub async fn unblock(&self, item: impl Into<Item> + Send) -> Result<(), Error> {
        let item = item.into();
        let span = CallSpan::own("unblock", &Call::from(item.clone()));
        let running = async {
            let unblocking = Unblocking::new(self.transaction_limiter(), item)?;
            let call = unblocking.0.clone();
            let result = self.own_transaction(unblocking).await;
            self.discard_denials(&call);
            result
        };
        span.watch(running).await
    }

    /// Returns the rest of the block of a key of a [gate](crate::Limit::gate); `None` if it is not blocked.
    ///
    /// # Errors
    /// See [`Limiter`]. [`Error::Invalid`] if the limit is not a gate.
    pub async fn is_blocked(&self, item: impl Into<Item> + Send) -> Result<Option<Duration>, Error> {
        let item = item.into();
        let span = CallSpan::own("is_blocked", &Call::from(item.clone()));
        let running = async {
            let call = self.resolve_gate(Op::Check, item)?;
            let (call, answer) = self.combiner.submit(call).await?;
            Ok(answer.decision(&call).retry_after())
        };
        span.watch(running).await
    }

    fn resolve_gate(&self, op: Op, item: Item) -> Result<Resolved, Error> {
        let limiter = self.transaction_limiter();
        Ok(Resolved::gate(op, item, &limiter.limits(), limiter.key_secret())?)
    }
}
