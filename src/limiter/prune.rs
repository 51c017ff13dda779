use sqlx::PgConnection;

use crate::error::Error;
use crate::limiter::Limiter;
use crate::observability::{self, CallSpan};
use crate::sql::{LastRow, PruneStep, Statements, prune, prune_answers};
use crate::transact::{Isolation, Statement};

/// The number of rows examined in one transaction: some milliseconds of work.
const STEP: i32 = 1000;

struct Step {
    after: Option<LastRow>,
}

impl Statement for Step {
    type Output = PruneStep;

    /// Each row is locked before it is deleted. A SERIALIZABLE scan would make callers' transactions fail.
    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    async fn run(&self, connection: &mut PgConnection, statements: &Statements) -> Result<PruneStep, sqlx::Error> {
        prune(connection, statements, STEP, self.after.as_ref()).await
    }
}

struct Answers;

impl Statement for Answers {
    type Output = u64;

    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    async fn run(&self, connection: &mut PgConnection, statements: &Statements) -> Result<u64, sqlx::Error> {
        prune_answers(connection, statements, STEP).await
    }
}

impl Limiter {
    /// Deletes rows of full buckets, of all limits in the schema, and returns how many it deleted. Such a row means the
    /// same as no row: its bucket is full again and owes nothing, or all counts have left its window. Deleting it
    /// changes no decision, as long as the limit is the one that the row was last used with. Under a changed limit, its
    /// bucket becomes full. Expired answers to calls with an [idempotency key](crate::Call::idempotency_key) are
    /// deleted too, but not counted.
    ///
    /// Every key that was used has a row, so run this regularly: every few minutes or every hour, in one process or in
    /// several at once. It scans the whole table in steps of 1,000 rows, each in a transaction of its own. It waits for
    /// no lock: a locked row stays until the next run. A caller that needs a row while it is being deleted waits for
    /// the end of the step, some milliseconds.
    ///
    /// # Errors
    /// See [`Limiter`]. The deadline of the [`RetryPolicy`](crate::RetryPolicy) applies to each step. Rows deleted
    /// before an error stay deleted.
    ///
    /// # Cancel safety
    /// Dropping the future is safe: deleted rows stay deleted, and the next run deletes the rest.
    ///
    /// # In a transaction
    /// Runs in short transactions of its own, at READ COMMITTED. There is no form for the caller's transaction, which
    /// would keep the rows locked.
    pub async fn prune(&self) -> Result<u64, Error> {
        let span = CallSpan::whole("prune", false, "");
        span.watch(self.prune_all()).await
    }

    async fn prune_all(&self) -> Result<u64, Error> {
        let mut pruned = 0;
        let mut after = None;
        loop {
            let step = self.own_transaction(Step { after }).await?;
            pruned += step.pruned;
            observability::pruned(step.pruned);
            if step.last.is_none() {
                break;
            }
            after = step.last;
        }
        while self.own_transaction(Answers).await? >= STEP.unsigned_abs().into() {}
        Ok(pruned)
    }
}
