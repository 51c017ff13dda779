use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tracing::Instrument;

use crate::error::{Error, Phase, is_in_failed_transaction, read_only_in_chain, transient_in_chain};
use crate::limiter::Limiter;
use crate::observability::CallSpan;
use crate::retry::Attempts;
use crate::sql::{PooledConnection, is_read_only_by_default};
use crate::transact::{Failure, before};

const BEGIN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE";
const TO_ROLL_BACK: Duration = Duration::from_secs(1);

impl Limiter {
    /// Runs a unit of work in a SERIALIZABLE transaction: limits and the caller's own statements commit or roll back
    /// together. After a conflict (a serialization failure or a deadlock), or if the connection is lost before COMMIT,
    /// the whole work runs again.
    ///
    /// The work gets the transaction's connection. It must not commit, and it may run several times, so it must have no
    /// effects outside the database. If it returns an error, everything is rolled back.
    ///
    /// ```no_run
    /// # use pg_limiter::Limiter;
    /// #[derive(Debug, thiserror::Error)]
    /// enum AppError {
    ///     #[error(transparent)]
    ///     Limit(#[from] pg_limiter::Error),
    ///     #[error(transparent)]
    ///     Database(#[from] sqlx::Error),
    /// }
    ///
    /// # async fn f(limiter: Limiter) -> Result<(), AppError> {
    /// let limits = limiter.clone();
    /// limiter
    ///     .transaction(async move |tx| {
    ///         sqlx::query("INSERT INTO messages (author) VALUES ('u1')").execute(&mut *tx).await?;
    ///         limits.within(tx).limit(("send_message", "u1")).await?.enforce()?;
    ///         Ok::<_, AppError>(())
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// If the future must be `Send` (in `tokio::spawn`, in a handler of a web framework), let the closure own what it
    /// uses, with `async move` and clones as above. The compiler cannot yet prove `Send` for a closure that borrows.
    ///
    /// **The error type must expose its [source](std::error::Error::source)**, as `thiserror` and `#[from]` do: the
    /// limiter finds conflicts among the sources. An error without sources is returned at the first conflict.
    ///
    /// # Errors
    /// Returns the work's error, unless one of its [sources](std::error::Error::source) is a conflict or a lost
    /// connection and another attempt is left. Also returns, converted to `E`:
    /// - [`Error::RetriesExhausted`] or [`Error::Unavailable`] if the transaction could not begin or commit.
    /// - [`Error::OutcomeUnknown`] if the connection was lost during the commit.
    /// - [`Error::Aborted`] if the work returned `Ok` although one of its statements had failed.
    ///
    /// The deadline of the [`RetryPolicy`](crate::RetryPolicy) decides whether there is another attempt; it does not
    /// interrupt the work. An error type that does not implement `std::error::Error`, such as `anyhow::Error`, needs a
    /// wrapper that does.
    ///
    /// # Cancel safety
    /// Dropping the future rolls back, unless COMMIT was already sent. The connection is closed and not returned to the
    /// pool.
    ///
    /// # In a transaction
    /// The work runs in one. Inside it, call [`within`](Self::within) on the connection that the work gets. Calls on
    /// the handle itself are not part of the transaction.
    pub async fn transaction<T, E>(&self, mut work: impl AsyncFnMut(&mut PgConnection) -> Result<T, E>) -> Result<T, E>
    where
        E: std::error::Error + From<Error> + 'static,
    {
        let span = CallSpan::work();
        let mut attempts = Attempts::new(&self.combiner.transactor.retry);
        let result = self.work_until_done(&mut attempts, &mut work).instrument(span.span()).await;
        span.attempts(attempts.made());
        span.ended(if result.is_ok() { "done" } else { "error" });
        result
    }

    async fn work_until_done<T, E>(
        &self,
        attempts: &mut Attempts,
        work: &mut impl AsyncFnMut(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: std::error::Error + From<Error> + 'static,
    {
        if self.combiner.is_closed() {
            return Err(Error::Closed.into());
        }
        loop {
            let failure = match self.work_once(attempts, work).await {
                Ok(value) => return Ok(value),
                Err(Stop::Failed(failure)) => failure,
                Err(Stop::Final(error)) => return Err(error),
                Err(Stop::Aborted) => return Err(Error::Aborted.into()),
                Err(Stop::Refused(error) | Stop::Stuck(error)) => {
                    let transient = transient_in_chain(&error, self.combiner.transactor.known_engine());
                    let Some(transient) = transient else { return Err(error) };
                    match self.combiner.transactor.delay_before_retry(attempts, "work", &transient) {
                        Some(delay) => tokio::time::sleep(delay).await,
                        None => return Err(error),
                    }
                    continue;
                }
            };
            let cause = failure.cause(self.combiner.transactor.known_engine());
            self.combiner.transactor.pause(attempts, failure, cause).await?;
        }
    }

    async fn work_once<T, E>(
        &self,
        attempts: &Attempts,
        work: &mut impl AsyncFnMut(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, Stop<E>>
    where
        E: std::error::Error + 'static,
    {
        let connected = before(attempts.deadline(), PooledConnection::acquire(&self.combiner.transactor.pool)).await;
        let mut connection = connected.map_err(Failure::at(Phase::Connect)).map_err(Stop::Failed)?;
        let engine = before(attempts.deadline(), self.combiner.transactor.engine(&mut connection)).await;
        engine.map_err(Failure::at(Phase::Begin)).map_err(Stop::Failed)?;
        let result =
            commit_work(&mut connection, attempts.deadline(), self.combiner.transactor.retry.deadline, work).await;
        if let Err(Stop::Refused(error)) = result {
            let mut read_only = false;
            if read_only_in_chain(&error) {
                let asked = async { Ok(is_read_only_by_default(&mut connection).await) };
                read_only = before(Instant::now() + TO_ROLL_BACK, asked).await.unwrap_or(false);
            } else {
                connection.release(); // If read-only, it is closed: a new one may reach another server or have other settings.
            }
            return Err(if read_only { Stop::Final(error) } else { Stop::Refused(error) });
        }
        match &result {
            Err(Stop::Failed(failure)) if failure.breaks_the_connection(self.combiner.transactor.known_engine()) => {
                drop(connection)
            }
            Err(Stop::Stuck(_)) => drop(connection),
            _ => connection.release(),
        }
        result
    }
}

/// Why an attempt did not commit.
enum Stop<E> {
    /// The work returned an error.
    Refused(E),
    /// The work returned an error that another run would not avoid: transactions are read-only by a setting.
    Final(E),
    /// The work returned an error, and one of its statements is still running: the connection cannot be rolled back.
    Stuck(E),
    /// The work returned `Ok`, but one of its statements had failed.
    Aborted,
    /// BEGIN or COMMIT failed.
    Failed(Failure),
}

/// Runs the work in a transaction, and commits it, or rolls it back if the work fails. `deadline` limits BEGIN. COMMIT and
/// ROLLBACK have time limits of their own, however long the work took.
async fn commit_work<T, E>(
    connection: &mut PgConnection,
    deadline: Instant,
    to_end: Duration,
    work: &mut impl AsyncFnMut(&mut PgConnection) -> Result<T, E>,
) -> Result<T, Stop<E>> {
    let begun = before(deadline, connection.begin_with(BEGIN)).await;
    let mut tx = begun.map_err(Failure::at(Phase::Begin)).map_err(Stop::Failed)?;
    let result = work(&mut tx).await;
    let deadline = Instant::now() + to_end.min(Duration::from_secs(86_400));
    match result {
        Ok(value) => {
            // PostgreSQL answers COMMIT of a failed transaction with ROLLBACK and no error. Any other statement returns
            // an error.
            if let Err(error) = before(deadline, sqlx::raw_sql("SELECT").execute(&mut *tx)).await {
                return Err(if is_in_failed_transaction(&error) {
                    Stop::Aborted
                } else {
                    Stop::Failed(Failure { phase: Phase::Statement, error })
                });
            }
            let committed = before(deadline, tx.commit()).await;
            committed.map_err(Failure::at(Phase::Commit)).map_err(Stop::Failed)?;
            Ok(value)
        }
        Err(error) => {
            // Waits for a statement that the work dropped. A transaction that is not rolled back here ends when its
            // connection closes.
            match before(Instant::now() + TO_ROLL_BACK, tx.rollback()).await {
                Ok(()) => Err(Stop::Refused(error)),
                Err(_) => Err(Stop::Stuck(error)),
            }
        }
    }
}
