//! The limiter's own transactions: BEGIN SERIALIZABLE, one statement, COMMIT, and again after a conflict.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tracing::debug;

use crate::call::Resolved;
use crate::error::{Cause, Error, Phase, classify};
use crate::limiter::Limiter;
use crate::limiter::held::Held;
use crate::retry::Attempts;
use crate::sql::{Answer, Statements, decide_one, reset_all_keys};

pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE";

/// In the same message, a bound for the server: a caller who no longer waits must not leave a backend waiting for a row.
fn begin(deadline: Instant) -> AssertSqlSafe<String> {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis().clamp(1, 86_400_000);
    AssertSqlSafe(format!("{BEGIN}; SET LOCAL statement_timeout = {left}"))
}

/// A failure, and what was under way when it happened.
pub(super) struct Failure {
    pub(super) phase: Phase,
    pub(super) error: sqlx::Error,
}

impl Failure {
    /// Whether the connection is of no more use: it is lost, it is to the wrong node, or something still runs on it.
    pub(super) fn breaks_the_connection(&self) -> bool {
        match classify(&self.error, self.phase) {
            Cause::Conflict | Cause::Busy => false,
            Cause::Connection | Cause::Unknown => true,
            Cause::SchemaMissing | Cause::Refused => self.error.as_database_error().is_none(),
        }
    }

    pub(super) const fn at(phase: Phase) -> impl FnOnce(sqlx::Error) -> Self {
        move |error| Self { phase, error }
    }
}

/// What one of the limiter's own transactions consists of.
///
/// A trait and not a closure: futures that hold an async closure are not provably `Send` where users spawn them.
pub(super) trait Statement: Sync {
    type Output: Send;

    fn run(
        &self,
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> impl Future<Output = Result<Self::Output, sqlx::Error>> + Send;
}

/// One call.
pub(super) struct Decide<'a>(pub(super) &'a Resolved);

impl Statement for Decide<'_> {
    type Output = Answer;

    async fn run(&self, connection: &mut PgConnection, statements: &Statements) -> Result<Answer, sqlx::Error> {
        decide_one(connection, statements, self.0).await
    }
}

/// Every key of a name.
pub(super) struct ResetAllKeys<'a>(pub(super) &'a str);

impl Statement for ResetAllKeys<'_> {
    type Output = u64;

    async fn run(&self, connection: &mut PgConnection, statements: &Statements) -> Result<u64, sqlx::Error> {
        reset_all_keys(connection, statements, self.0).await
    }
}

impl Limiter {
    pub(super) async fn own_transaction<S: Statement>(&self, statement: S) -> Result<S::Output, Error> {
        let mut attempts = Attempts::new(&self.retry);
        loop {
            match self.attempt(attempts.deadline(), &statement).await {
                Ok(value) => return Ok(value),
                Err(failure) => self.pause(&mut attempts, failure).await?,
            }
        }
    }

    async fn attempt<S: Statement>(&self, deadline: Instant, statement: &S) -> Result<S::Output, Failure> {
        let mut connection = Held::acquire(&self.pool, deadline).await.map_err(Failure::at(Phase::Begin))?;
        let result = transact(&mut connection, deadline, self.rate_limits.statements(), statement).await;
        match &result {
            Err(failure) if failure.breaks_the_connection() => drop(connection),
            _ => connection.release(),
        }
        result
    }

    /// Pauses before the next attempt, or says why there is none.
    pub(super) async fn pause(&self, attempts: &mut Attempts, failure: Failure) -> Result<(), Error> {
        let Failure { phase, error } = failure;
        let cause = classify(&error, phase);
        match cause {
            Cause::Conflict | Cause::Connection => {}
            Cause::Unknown => return Err(Error::OutcomeUnknown { source: error }),
            Cause::SchemaMissing => {
                return Err(Error::SchemaMissing { schema: self.schema().name().to_owned(), source: error });
            }
            Cause::Busy => return Err(Error::Unavailable { source: error }),
            Cause::Refused => return Err(Error::Database { source: error }),
        }
        if let Some(delay) = self.delay_before_retry(attempts, &error) {
            tokio::time::sleep(delay).await;
            return Ok(());
        }
        if cause == Cause::Connection {
            return Err(Error::Unavailable { source: error });
        }
        Err(Error::RetriesExhausted { attempts: attempts.made(), elapsed: attempts.elapsed(), last: error })
    }

    /// The pause before the next attempt, counted and traced; `None` when there is none left.
    pub(super) fn delay_before_retry(
        &self,
        attempts: &mut Attempts,
        error: &dyn std::fmt::Display,
    ) -> Option<Duration> {
        let delay = attempts.next_delay()?;
        self.retries.fetch_add(1, Ordering::Relaxed);
        debug!(attempt = attempts.made(), ?delay, %error, "retrying a transaction");
        Some(delay)
    }
}

async fn transact<S: Statement>(
    connection: &mut PgConnection,
    deadline: Instant,
    statements: &Statements,
    statement: &S,
) -> Result<S::Output, Failure> {
    let mut tx = before(deadline, connection.begin_with(begin(deadline))).await.map_err(Failure::at(Phase::Begin))?;
    let value = before(deadline, statement.run(&mut tx, statements)).await.map_err(Failure::at(Phase::Statement))?;
    before(deadline, tx.commit()).await.map_err(Failure::at(Phase::Commit))?;
    Ok(value)
}

/// Waits no longer than to the deadline.
pub(super) async fn before<T>(
    deadline: Instant,
    future: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match tokio::time::timeout_at(deadline.into(), future).await {
        Ok(result) => result,
        Err(_) => {
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "the deadline of the retry policy has passed").into())
        }
    }
}
