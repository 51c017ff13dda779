use sqlx::PgConnection;

use crate::error::Error;
use crate::limiter::attempt::Statement;
use crate::limiter::{Isolation, Limiter};
use crate::observability::{self, Seen};
use crate::sql::{LastRow, PruneStep, Statements, prune, prune_answers};

/// Rows looked at in one transaction: some milliseconds of work.
const STEP: i32 = 1000;

struct Step {
    after: Option<LastRow>,
}

impl Statement for Step {
    type Output = PruneStep;

    /// Each row is locked before it is removed; a SERIALIZABLE scan would make the callers' transactions fail.
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
    /// Removes the rows that equal no row, of all limits in the schema, and says how many that were: buckets that are
    /// full again and owe nothing, or windows whose counts have all left. No decision changes by it, as long as the
    /// limit is the one that the row was last used with; under a changed limit, its bucket is full. Expired answers to calls
    /// with an [idempotency key](crate::Call::idempotency_key) go with them, uncounted.
    ///
    /// There is a row for each key that was ever used, so run this from time to time, every few minutes or every hour,
    /// in one process or in several at once. It goes through the whole table in steps of 1,000 rows, each in a
    /// transaction of its own. It waits for nobody: a row that somebody has locked stays until the next run. A caller who
    /// wants a row just when it is removed waits for the end of the step, some milliseconds.
    ///
    /// # Errors
    /// See [`Limiter`]; the deadline of the [`RetryPolicy`](crate::RetryPolicy) is for each step anew. What was removed
    /// before an error stays removed.
    ///
    /// # Cancel safety
    /// Dropping the future is safe: what was removed stays removed, and the next run goes on with the rest.
    ///
    /// # In a transaction
    /// In short ones of its own, at READ COMMITTED; there is no form for the caller's, which would keep the rows locked.
    pub async fn prune(&self) -> Result<u64, Error> {
        let seen = Seen::whole("prune", false, "");
        seen.watch(self.prune_all()).await
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
