use sqlx::{Connection, PgConnection};

use crate::error::{Error, Phase, is_transient_chain};
use crate::limiter::Limiter;
use crate::limiter::attempt::{BEGIN, Failure, before, settle};
use crate::retry::Attempts;

impl Limiter {
    /// Runs a unit of work in a SERIALIZABLE transaction, and runs it again as a whole after a serialization failure
    /// or a deadlock: limits and the caller's own statements commit or roll back together.
    ///
    /// The work is given the transaction's connection; it must not commit, and has to bear being run several times.
    /// If it returns an error, everything is rolled back.
    ///
    /// ```no_run
    /// # use pg_limiter::{Error, Limiter};
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
    ///         limits.within(tx).limit(("send_message", "u1")).await?.enforce().map_err(Error::from)?;
    ///         sqlx::query("INSERT INTO messages (author) VALUES ('u1')").execute(&mut *tx).await?;
    ///         Ok::<_, AppError>(())
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Where the future has to be `Send` (in `tokio::spawn`, in a handler of a web framework), let the closure own what
    /// it uses, with `async move` and clones as above: the compiler cannot yet prove `Send` for one that borrows.
    ///
    /// # Errors
    /// What the work returned, unless a conflict stands in its chain of [sources](std::error::Error::source) and there
    /// is another attempt. Otherwise, as `E`: [`Error::RetriesExhausted`], [`Error::Unavailable`],
    /// [`Error::OutcomeUnknown`] if the connection was lost while committing, and [`Error::Aborted`] if the work
    /// returned `Ok` although one of its statements had failed.
    ///
    /// # Cancel safety
    /// Dropping the future rolls back, unless COMMIT was already sent.
    pub async fn transaction<T, E>(&self, mut work: impl AsyncFnMut(&mut PgConnection) -> Result<T, E>) -> Result<T, E>
    where
        E: std::error::Error + From<Error> + 'static,
    {
        let mut attempts = Attempts::new(&self.retry);
        loop {
            let failure = match self.work_once(&attempts, &mut work).await {
                Ok(value) => return Ok(value),
                Err(Stop::Failed(failure)) => failure,
                Err(Stop::Aborted) => return Err(Error::Aborted.into()),
                Err(Stop::Refused(error)) => {
                    if !is_transient_chain(&error) {
                        return Err(error);
                    }
                    match self.delay_before_retry(&mut attempts, &error) {
                        Some(delay) => tokio::time::sleep(delay).await,
                        None => return Err(error),
                    }
                    continue;
                }
            };
            self.pause(&mut attempts, failure).await?;
        }
    }

    async fn work_once<T, E>(
        &self,
        attempts: &Attempts,
        work: &mut impl AsyncFnMut(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, Stop<E>> {
        let deadline = attempts.deadline();
        let mut connection =
            before(deadline, self.pool.acquire()).await.map_err(Failure::at(Phase::Begin)).map_err(Stop::Failed)?;
        let result = run(&mut connection, deadline, work).await;
        match result {
            Err(Stop::Failed(failure)) => settle(connection, Err(failure)).map_err(Stop::Failed),
            other => other,
        }
    }
}

/// Why an attempt did not commit.
enum Stop<E> {
    /// The work said so.
    Refused(E),
    /// The work said otherwise, but one of its statements had failed.
    Aborted,
    /// BEGIN or COMMIT failed.
    Failed(Failure),
}

async fn run<T, E>(
    connection: &mut PgConnection,
    deadline: std::time::Instant,
    work: &mut impl AsyncFnMut(&mut PgConnection) -> Result<T, E>,
) -> Result<T, Stop<E>> {
    let begun = before(deadline, connection.begin_with(BEGIN)).await;
    let mut tx = begun.map_err(Failure::at(Phase::Begin)).map_err(Stop::Failed)?;
    match work(&mut tx).await {
        Ok(value) => {
            // COMMIT of a failed transaction is answered with ROLLBACK and no error; any other statement tells.
            if let Err(error) = before(deadline, sqlx::raw_sql("SELECT").execute(&mut *tx)).await {
                let aborted =
                    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "25P02");
                return Err(if aborted {
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
            // Best effort: a transaction that is not rolled back here is rolled back with its connection.
            let _ = before(deadline, tx.rollback()).await;
            Err(Stop::Refused(error))
        }
    }
}
