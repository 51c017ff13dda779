use std::time::{Duration, Instant};

use sqlx::PgConnection;

use crate::error::Error;
use crate::limiter::Limiter;
use crate::observability::{self, CallSpan};
use crate::sql::{LastRow, PruneStep, Statements, prune, prune_answers};
use crate::transact::{Isolation, Statement};

/// The most rows examined in one transaction: some milliseconds of work on one server.
const MOST: i32 = 1000;
/// The number of rows in the first step.
const FIRST: i32 = 100;
const FEWEST: i32 = 10;
/// A step that took longer is followed by a smaller one, and a step that took less than a quarter by a larger one. On several
/// nodes, each row costs messages.
const LONG: Duration = Duration::from_millis(100);

/// The number of rows in the step after one of this many rows, which took so long.
fn next_step(rows: i32, took: Duration) -> i32 {
    if took > LONG {
        (rows / 2).max(FEWEST)
    } else if took < LONG / 4 {
        (rows * 2).min(MOST)
    } else {
        rows
    }
}

struct Step {
    rows: i32,
    after: Option<LastRow>,
}

impl Statement for Step {
    type Output = PruneStep;

    /// Each row is locked before it is deleted. A SERIALIZABLE scan would make callers' transactions fail.
    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    async fn execute(&self, connection: &mut PgConnection, statements: &Statements) -> Result<PruneStep, sqlx::Error> {
        prune(connection, statements, self.rows, self.after.as_ref()).await
    }
}

struct Answers {
    rows: i32,
}

impl Statement for Answers {
    type Output = u64;

    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    async fn execute(&self, connection: &mut PgConnection, statements: &Statements) -> Result<u64, sqlx::Error> {
        prune_answers(connection, statements, self.rows).await
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
    /// several at once. It scans the whole table in steps of up to 1,000 rows, and fewer if a step takes longer than
    /// 100 ms, each in a transaction of its own. It waits for no lock: a locked row stays until the next run. A caller
    /// that needs a row while it is being deleted waits for the end of the step.
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
        let (mut pruned, mut after, mut rows) = (0, None, FIRST);
        loop {
            let began = Instant::now();
            let step = self.own_transaction(Step { rows, after }).await?;
            rows = next_step(rows, began.elapsed());
            pruned += step.pruned;
            observability::pruned(step.pruned);
            if step.last.is_none() {
                break;
            }
            after = step.last;
        }
        rows = FIRST;
        loop {
            let began = Instant::now();
            if self.own_transaction(Answers { rows }).await? < rows.unsigned_abs().into() {
                return Ok(pruned);
            }
            rows = next_step(rows, began.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_the_speed_of_the_server() {
        let after = |took: u64| {
            let mut rows = FIRST;
            (0..20).for_each(|_| rows = next_step(rows, Duration::from_millis(took)));
            rows
        };
        assert_eq!([after(1), after(50), after(5_000)], [MOST, FIRST, FEWEST]);
    }
}
