//! The limiter's own transactions: BEGIN, one statement, COMMIT, retried after a conflict.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tracing::debug;

use crate::error::{Cause, Engine, Error, Phase, is_cancelled, needs_another_level, without_keys};
use crate::observability;
use crate::retry::{Attempts, RetryPolicy, longest};
use crate::sql::{PooledConnection, TransactionLimiter, check_release, detect, explain};
use crate::transact::attempt::{Bounds, Failure, before};
use crate::transact::{Durability, Isolation, Statement};

/// How long, in milliseconds, a stopped or disconnected client may keep rows locked that other transactions want.
const LONGEST_IDLE: u32 = 1_000;

/// Returns the time left in milliseconds, rounded up to a power of two. `pg_stat_statements` keeps every new statement
/// text, so there should be few. The client gives up at its deadline; this limits how long a backend may wait after
/// that.
fn statement_timeout(left: Duration) -> u128 {
    left.as_millis().clamp(1, 86_400_000).next_power_of_two()
}

/// Runs statements in transactions of their own, and retries them.
pub(crate) struct Transactor {
    pub(crate) pool: PgPool,
    pub(crate) transaction_limiter: TransactionLimiter,
    pub(crate) retry: RetryPolicy,
    pub(crate) configured_isolation: Isolation,
    pub(crate) durability: Durability,
    /// The configured engine, or the one detected on the first connection.
    pub(crate) engine: OnceLock<Engine>,
    /// How many times a transaction was retried.
    pub(crate) retries: AtomicU64,
}

impl Transactor {
    /// Runs the statement in a transaction of its own, on a connection of the pool, and retries it.
    pub(crate) async fn with_retries<S: Statement>(&self, statement: S) -> Result<S::Output, Error> {
        let mut attempts = Attempts::new(&self.retry);
        let mut was_unknown = false;
        loop {
            // Boxed: the driver's futures take tens of kilobytes, and every call would carry them, even calls that
            // never get here.
            match Box::pin(self.over_pool(Bounds::until(attempts.deadline()), &statement)).await {
                Ok(value) => return Ok(value),
                Err(failure) => {
                    let cause = failure.cause(self.known_engine());
                    let cause = if S::ONLY_READS { cause.of_read() } else { cause };
                    let is_unknown = cause == Cause::Unknown;
                    was_unknown |= is_unknown;
                    if S::IS_IDEMPOTENT
                        && is_unknown
                        && let Some(delay) = self.delay_before_retry(&mut attempts, "unknown", &failure.error)
                    {
                        tokio::time::sleep(delay).await;
                        continue;
                    }
                    let paused = self.pause(&mut attempts, failure, cause).await;
                    // The outcome of the earlier attempt stays unknown, whatever the last attempt returns.
                    paused.map_err(|error| if was_unknown { error.of_unknown_outcome() } else { error })?;
                }
            }
        }
    }

    /// Pauses before the next attempt, or returns the error if there is none.
    pub(crate) async fn pause(&self, attempts: &mut Attempts, failure: Failure, cause: Cause) -> Result<(), Error> {
        let Failure { phase, error } = failure;
        match cause {
            Cause::Conflict | Cause::Locked | Cause::Connection => {}
            _ => {
                let schema = self.transaction_limiter.schema().name();
                return Err(Error::of_attempt(error, phase, self.known_engine(), schema));
            }
        }
        attempts.failed_with(&error);
        match self.delay_before_retry(attempts, cause.as_str(), &error) {
            Some(delay) => tokio::time::sleep(delay).await,
            None => return Err(exhausted(attempts, error, cause)),
        }
        Ok(())
    }

    /// Returns the engine. The first call also checks that this release can work with the schema.
    pub(crate) async fn engine(&self, connection: &mut PgConnection) -> Result<Engine, sqlx::Error> {
        match self.known_engine() {
            Some(engine) => Ok(engine),
            None => {
                let engine = detect(connection, self.transaction_limiter.schema()).await?;
                check_release(connection, self.transaction_limiter.statements()).await?;
                Ok(*self.engine.get_or_init(|| engine))
            }
        }
    }

    /// Returns the timeout after which the server itself cancels a statement that is sent alone. It is half of the
    /// retry policy's deadline: a cancelled statement has changed nothing, and is retried before the deadline.
    pub(crate) fn statement_timeout(&self) -> Duration {
        (longest(self.retry.deadline) / 2).clamp(Duration::from_millis(1), Duration::from_secs(86_400))
    }

    /// Returns the isolation level. Each node of Citus checks only its own reads at SERIALIZABLE, and decisions lock their rows.
    pub(crate) fn isolation(&self) -> Isolation {
        match self.known_engine() {
            Some(Engine::Citus) => Isolation::ReadCommitted,
            _ => self.configured_isolation,
        }
    }

    /// Returns the phase of an error that the server reports for a statement without BEGIN and COMMIT, before its result.
    pub(crate) fn phase_of_alone(&self) -> Phase {
        if self.known_engine() == Some(Engine::Citus) { Phase::Delegated } else { Phase::Statement }
    }

    pub(crate) fn known_engine(&self) -> Option<Engine> {
        self.engine.get().copied()
    }

    /// Returns the pause before the next attempt, and counts and logs the retry; `None` if no attempt is left.
    pub(crate) fn delay_before_retry(
        &self,
        attempts: &mut Attempts,
        cause: &'static str,
        error: &dyn std::fmt::Display,
    ) -> Option<Duration> {
        let delay = attempts.next_delay()?;
        self.retried(attempts, delay, cause, error);
        Some(delay)
    }

    /// Counts and logs a retry without a pause. Returns whether there is one left.
    pub(crate) fn retry_at_once(
        &self,
        attempts: &mut Attempts,
        cause: &'static str,
        error: &dyn std::fmt::Display,
    ) -> bool {
        let again = attempts.at_once();
        if again {
            self.retried(attempts, Duration::ZERO, cause, error);
        }
        again
    }

    fn retried(&self, attempts: &Attempts, delay: Duration, cause: &'static str, error: &dyn std::fmt::Display) {
        self.retries.fetch_add(1, Ordering::Relaxed);
        observability::retried(cause);
        debug!(attempt = attempts.made(), ?delay, cause, %error, "retrying a transaction");
    }

    /// Makes one attempt on a connection of the pool.
    pub(crate) async fn over_pool<S: Statement>(&self, bounds: Bounds, statement: &S) -> Result<S::Output, Failure> {
        let kept = statement.kept();
        let mut connection = match kept.and_then(|kept| kept.take(&self.pool)) {
            Some(connection) => connection,
            None => {
                let acquired = before(bounds.deadline, PooledConnection::acquire(&self.pool)).await;
                acquired.map_err(Failure::at(Phase::Connect))?
            }
        };
        connection.ends_by(bounds.deadline);
        let result = self.transact(&mut connection, bounds, statement).await;
        match (&result, kept) {
            (Err(failure), _) if failure.breaks_the_connection(self.known_engine()) => drop(connection),
            (Ok(_), Some(kept)) => kept.keep(connection, &self.pool),
            _ => connection.release(),
        }
        result
    }

    /// Makes one attempt: BEGIN, the statement, COMMIT, and what is read after that.
    pub(crate) async fn transact<S: Statement>(
        &self,
        connection: &mut PgConnection,
        bounds: Bounds,
        statement: &S,
    ) -> Result<S::Output, Failure> {
        let deadline = bounds.deadline;
        let engine = before(deadline, self.engine(connection)).await.map_err(Failure::at(Phase::Begin))?;
        let mut value = match self.alone(connection, deadline, statement).await? {
            Some(value) => value,
            None => self.in_transaction(engine, connection, bounds, statement).await?,
        };
        let begin = || self.begin::<S>(engine, bounds);
        before(deadline, statement.after(connection, begin, &mut value)).await.map_err(Failure::at(Phase::Commit))?;
        Ok(value)
    }

    /// Runs the statement without BEGIN and COMMIT. Returns `None` if it cannot run that way.
    async fn alone<S: Statement>(
        &self,
        connection: &mut PgConnection,
        deadline: Instant,
        statement: &S,
    ) -> Result<Option<S::Output>, Failure> {
        if !statement.is_alone() {
            return Ok(None);
        }
        match before(deadline, statement.execute(connection, self.transaction_limiter.statements())).await {
            Ok(value) => Ok(Some(value)),
            Err(error) if needs_another_level(&error) => {
                statement.not_alone();
                Ok(None)
            }
            // The database's statement_timeout would end a long statement, or a session's first one, each time anew. In a
            // transaction the limiter sets its own.
            Err(error) if is_cancelled(&error) => Ok(None),
            Err(error) => {
                let phase = if error.as_database_error().is_some() { self.phase_of_alone() } else { Phase::Commit };
                Err(Failure { phase, error })
            }
        }
    }

    async fn in_transaction<S: Statement>(
        &self,
        engine: Engine,
        connection: &mut PgConnection,
        bounds: Bounds,
        statement: &S,
    ) -> Result<S::Output, Failure> {
        let deadline = bounds.deadline;
        let begun = before(deadline, connection.begin_with(self.begin::<S>(engine, bounds))).await;
        let mut tx = begun.map_err(Failure::at(Phase::Begin))?;
        let value = before(deadline, statement.execute(&mut tx, self.transaction_limiter.statements())).await;
        let value = match value {
            Ok(value) => value,
            Err(error) => {
                drop(tx); // The driver rolls back before it sends anything else.
                let explained = before(deadline, async { Ok(explain(connection, error).await) }).await;
                return Err(Failure { phase: Phase::Statement, error: explained.unwrap_or_else(|late| late) });
            }
        };
        before(deadline, tx.commit()).await.map_err(Failure::at(Phase::Commit))?;
        Ok(value)
    }

    /// Returns BEGIN with the server's timeouts in the same message, so that a caller that gave up leaves no backend
    /// waiting for a row. YugabyteDB gets BEGIN alone: the server itself retries only the statement right after BEGIN.
    fn begin<S: Statement>(&self, engine: Engine, bounds: Bounds) -> AssertSqlSafe<String> {
        let isolation = S::ISOLATION.unwrap_or_else(|| self.isolation());
        let mut begin = format!("BEGIN ISOLATION LEVEL {}", isolation.as_sql());
        if engine == Engine::Yugabyte {
            return AssertSqlSafe(begin);
        }
        let left = statement_timeout(bounds.deadline.saturating_duration_since(Instant::now()));
        let lock_timeout = bounds.lock_timeout.as_millis();
        begin.push_str(&format!(
            "; SET LOCAL statement_timeout = {left}; SET LOCAL lock_timeout = {lock_timeout}; \
             SET LOCAL idle_in_transaction_session_timeout = {LONGEST_IDLE}"
        ));
        if let Some((name, value)) = self.durability.setting() {
            begin.push_str(&format!("; SET LOCAL {name} = {value}"));
        }
        AssertSqlSafe(begin)
    }
}

/// Returns the error after the last attempt.
pub(crate) fn exhausted(attempts: &Attempts, error: sqlx::Error, cause: Cause) -> Error {
    let error = without_keys(attempts.to_report(error));
    if matches!(cause, Cause::Connection | Cause::Busy | Cause::Locked) {
        return Error::Unavailable { source: error };
    }
    Error::RetriesExhausted { attempts: attempts.made(), elapsed: attempts.elapsed(), last: error }
}
