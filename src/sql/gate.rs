//! Blocks of keys of gates.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

use crate::call::{Call, Item, Op, Resolved};
use crate::error::{Error, InvalidCall};
use crate::limit::LONGEST_PERIOD;
use crate::observability::CallSpan;
use crate::sql::{Statements, TransactionLimiter, Within, check_release};

/// The end of the block of one key of a gate.
pub(crate) struct Unblocking(pub(crate) Resolved);

impl Unblocking {
    pub(crate) fn new(limiter: &TransactionLimiter, item: Item) -> Result<Self, InvalidCall> {
        Resolved::gate(Op::Reset, item, &limiter.limits(), limiter.key_secret()).map(Self)
    }

    /// Not as a reset, which deletes the tokens or slots of a limit of another kind, too.
    pub(crate) async fn unblock(
        &self,
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> Result<(), sqlx::Error> {
        for gate in &self.0.items {
            let _was_blocked: bool =
                statements.unblock.scalar().bind(&*gate.name).bind(&*gate.key).fetch_one(&mut *connection).await?;
        }
        Ok(())
    }
}

/// A block of one key of a gate.
pub(crate) struct Blocking {
    name: Arc<str>,
    key: Arc<str>,
    duration: Duration,
}

impl Blocking {
    pub(crate) fn new(limiter: &TransactionLimiter, item: Item, duration: Duration) -> Result<Self, InvalidCall> {
        let call = Resolved::gate(Op::Reset, item, &limiter.limits(), limiter.key_secret())?;
        if duration.is_zero() || duration > LONGEST_PERIOD || !duration.subsec_nanos().is_multiple_of(1000) {
            return Err(InvalidCall::Block { duration });
        }
        let gate = call.items.into_iter().next().ok_or(InvalidCall::Empty)?;
        Ok(Self { name: gate.name, key: gate.key, duration })
    }

    /// Returns the rest of the block.
    pub(crate) async fn block(
        &self,
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> Result<Duration, sqlx::Error> {
        let microseconds = i64::try_from(self.duration.as_micros()).unwrap_or(i64::MAX);
        let query = statements.block.scalar().bind(&*self.name).bind(&*self.key);
        let rest: PgInterval =
            query.bind(PgInterval { months: 0, days: 0, microseconds }).fetch_one(connection).await?;
        Ok(Duration::from_micros(rest.microseconds.unsigned_abs()))
    }
}

impl Within<'_> {
    /// Blocks a key of a gate for this time, and returns the rest of its block: see
    /// [`Limiter::block`](crate::Limiter::block).
    ///
    /// # Errors
    /// See [`Within`]. [`Error::Invalid`] if the limit is not a gate, or the time is out of range.
    ///
    /// # In a transaction
    /// Part of the caller's transaction: other transactions see the block once the caller commits, and a rollback undoes it.
    /// The row stays locked until then, but calls do not wait for it.
    pub async fn block(self, item: impl Into<Item> + Send, duration: Duration) -> Result<Duration, Error> {
        let item = item.into();
        let span = CallSpan::callers("block", &Call::from(item.clone()));
        let running = async {
            let blocking = Blocking::new(self.transaction_limiter, item, duration)?;
            let statements = self.transaction_limiter.statements();
            let classified = |error| Error::of_statement(error, self.transaction_limiter.schema().name());
            check_release(self.connection, statements).await.map_err(classified)?;
            blocking.block(self.connection, statements).await.map_err(classified)
        };
        span.watch(running).await
    }

    /// Ends the block of a key of a gate, if it has one.
    ///
    /// # Errors
    /// See [`Within`]. [`Error::Invalid`] if the limit is not a gate.
    pub async fn unblock(self, item: impl Into<Item> + Send) -> Result<(), Error> {
        let item = item.into();
        let span = CallSpan::callers("unblock", &Call::from(item.clone()));
        let running = async {
            let unblocking = Unblocking::new(self.transaction_limiter, item)?;
            let statements = self.transaction_limiter.statements();
            let classified = |error| Error::of_statement(error, self.transaction_limiter.schema().name());
            check_release(self.connection, statements).await.map_err(classified)?;
            unblocking.unblock(self.connection, statements).await.map_err(classified)
        };
        span.watch(running).await
    }

    /// Returns the rest of the block of a key of a gate; `None` if it is not blocked.
    ///
    /// # Errors
    /// See [`Within`]. [`Error::Invalid`] if the limit is not a gate.
    pub async fn is_blocked(self, item: impl Into<Item> + Send) -> Result<Option<Duration>, Error> {
        let item = item.into();
        let span = CallSpan::callers("is_blocked", &Call::from(item.clone()));
        let running = async {
            let call = self.resolve_gate(Op::Check, item)?;
            Ok(self.send(&call).await?.decision(&call).retry_after())
        };
        span.watch(running).await
    }

    fn resolve_gate(&self, op: Op, item: Item) -> Result<Resolved, Error> {
        let limiter = self.transaction_limiter;
        Ok(Resolved::gate(op, item, &limiter.limits(), limiter.key_secret())?)
    }
}
