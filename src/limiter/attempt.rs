//! The limiter's own transactions: BEGIN, one statement, COMMIT, retried after a conflict.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tracing::debug;

use crate::call::Resolved;
use crate::error::{Cause, Engine, Error, Phase, classify, without_keys};
use crate::limiter::combine::Combiner;
use crate::limiter::pooled::PooledConnection;
use crate::limiter::{Isolation, Limiter};
use crate::observability;
use crate::retry::Attempts;
use crate::sql::{
    Answer, Batch, Bucket, Once, Statements, check_release, decide, decide_once, detect, explain, held, reset_all_keys,
};

/// How long, in milliseconds, a stopped or disconnected client may keep rows locked that other transactions want.
const LONGEST_IDLE: u32 = 1_000;

/// The SQLSTATE of a function that needs another isolation level than the session's.
const WRONG_LEVEL: &str = "25000";

/// The time limits of one attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) deadline: Instant,
    /// The longest wait for one lock. Zero means until the deadline.
    pub(crate) lock_timeout: Duration,
}

impl Bounds {
    pub(crate) const fn until(deadline: Instant) -> Self {
        Self { deadline, lock_timeout: Duration::ZERO }
    }
}

/// Returns BEGIN with the server's timeouts in the same message, so that a caller that gave up leaves no backend
/// waiting for a row. YugabyteDB gets BEGIN alone: the server itself retries only the statement right after BEGIN.
fn begin<S: Statement>(combiner: &Combiner, engine: Engine, bounds: Bounds) -> AssertSqlSafe<String> {
    let isolation = S::ISOLATION.unwrap_or(combiner.isolation);
    let mut begin = format!("BEGIN ISOLATION LEVEL {}", isolation.as_sql());
    if engine == Engine::Yugabyte {
        return AssertSqlSafe(begin);
    }
    let left = statement_timeout(bounds.deadline.saturating_duration_since(Instant::now()));
    let lock_timeout = bounds.lock_timeout.as_millis();
    begin.push_str(&format!("; SET LOCAL statement_timeout = {left}; SET LOCAL lock_timeout = {lock_timeout}"));
    if S::ENDS_IDLE {
        begin.push_str(&format!("; SET LOCAL idle_in_transaction_session_timeout = {LONGEST_IDLE}"));
    }
    if let Some((name, value)) = combiner.durability.setting() {
        begin.push_str(&format!("; SET LOCAL {name} = {value}"));
    }
    AssertSqlSafe(begin)
}

/// Returns the time left in milliseconds, rounded up to a power of two. `pg_stat_statements` keeps every new statement
/// text, so there should be few. The client gives up at its deadline; this limits how long a backend may wait after
/// that.
fn statement_timeout(left: Duration) -> u128 {
    left.as_millis().clamp(1, 86_400_000).next_power_of_two()
}

/// A failure, and the phase in which it happened.
pub(crate) struct Failure {
    pub(super) phase: Phase,
    pub(super) error: sqlx::Error,
}

impl Failure {
    /// Whether the connection is unusable: it is lost, it leads to the wrong node, or a statement still runs on it.
    pub(super) fn breaks_the_connection(&self, engine: Option<Engine>) -> bool {
        match self.cause(engine) {
            Cause::Conflict | Cause::Locked | Cause::Busy | Cause::Data => false,
            Cause::Connection | Cause::Unknown | Cause::Settings | Cause::Pooler => true,
            Cause::SchemaMissing | Cause::Refused | Cause::Closed => self.error.as_database_error().is_none(),
        }
    }

    pub(super) fn cause(&self, engine: Option<Engine>) -> Cause {
        classify(&self.error, self.phase, engine)
    }

    pub(super) const fn at(phase: Phase) -> impl FnOnce(sqlx::Error) -> Self {
        move |error| Self { phase, error }
    }
}

/// The statement of one of the limiter's own transactions.
///
/// A trait and not a closure: futures that hold an async closure are not provably `Send` where users spawn them.
pub(crate) trait Statement: Sync {
    type Output: Send;

    /// The isolation level, if it differs from the limiter's.
    const ISOLATION: Option<Isolation> = None;

    /// Whether it may be retried when the outcome of its commit is unknown.
    const IS_IDEMPOTENT: bool = false;

    /// Whether the server ends the transaction if its client goes idle in it.
    const ENDS_IDLE: bool = false;

    /// Whether it is sent without BEGIN and COMMIT. It then sets its own timeouts, and fails with 25000 if the
    /// session's isolation level is not the one it needs.
    fn is_alone(&self) -> bool {
        false
    }

    /// Called when the statement fails with 25000: send it within BEGIN and COMMIT from now on.
    fn not_alone(&self) {}

    /// Reads the rest of the result once the transaction is committed.
    fn after(
        &self,
        _connection: &mut PgConnection,
        _output: &mut Self::Output,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        std::future::ready(Ok(()))
    }

    fn run(
        &self,
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> impl Future<Output = Result<Self::Output, sqlx::Error>> + Send;
}

/// A batch of calls, decided in one statement.
pub(super) struct Decide<'a>(pub(super) &'a Batch);

impl Statement for Decide<'_> {
    type Output = Vec<Answer>;

    async fn run(&self, connection: &mut PgConnection, statements: &Statements) -> Result<Vec<Answer>, sqlx::Error> {
        decide(connection, statements, self.0).await
    }
}

/// Finds out which of these buckets have a row that another transaction has locked; `None` for a bucket without a row.
pub(crate) struct LookForHeld<'a>(pub(crate) &'a [Bucket]);

impl Statement for LookForHeld<'_> {
    type Output = Vec<Option<bool>>;

    /// Under SERIALIZABLE, a row that has changed since the snapshot would be an error.
    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    async fn run(
        &self,
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> Result<Vec<Option<bool>>, sqlx::Error> {
        held(connection, statements, self.0).await
    }
}

/// A call with an idempotency key.
pub(super) struct DecideOnce<'a> {
    pub(super) call: &'a Resolved,
    pub(super) key: Arc<str>,
    pub(super) keep: Duration,
}

impl Statement for DecideOnce<'_> {
    type Output = Once;

    const IS_IDEMPOTENT: bool = true;

    async fn run(&self, connection: &mut PgConnection, statements: &Statements) -> Result<Once, sqlx::Error> {
        decide_once(connection, statements, self.call, &self.key, self.keep).await
    }
}

/// A reset of every key of a limit.
pub(super) struct ResetAllKeys<'a>(pub(super) &'a str);

impl Statement for ResetAllKeys<'_> {
    type Output = u64;

    /// It has to search for the rows. A SERIALIZABLE scan would make callers' transactions fail, and could fail because
    /// of them.
    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    async fn run(&self, connection: &mut PgConnection, statements: &Statements) -> Result<u64, sqlx::Error> {
        reset_all_keys(connection, statements, self.0).await
    }
}

impl Limiter {
    /// Runs the statement in a transaction of its own, on a connection of the pool.
    pub(crate) async fn own_transaction<S: Statement>(&self, statement: S) -> Result<S::Output, Error> {
        if self.combiner.is_closed() {
            return Err(Error::Closed);
        }
        let mut attempts = Attempts::new(&self.combiner.retry);
        let mut was_unknown = false;
        loop {
            // Boxed: the driver's futures take tens of kilobytes, and every call would carry them, even calls that
            // never get here.
            match Box::pin(over_pool(&self.combiner, Bounds::until(attempts.deadline()), &statement)).await {
                Ok(value) => return Ok(value),
                Err(failure) => {
                    let is_unknown = failure.cause(self.combiner.known_engine()) == Cause::Unknown;
                    was_unknown |= is_unknown;
                    if S::IS_IDEMPOTENT
                        && is_unknown
                        && let Some(delay) = self.combiner.delay_before_retry(&mut attempts, "unknown", &failure.error)
                    {
                        tokio::time::sleep(delay).await;
                        continue;
                    }
                    let paused = self.pause(&mut attempts, failure).await;
                    // The outcome of the earlier attempt stays unknown, whatever the last attempt returns.
                    paused.map_err(|error| if was_unknown { error.of_unknown_outcome() } else { error })?;
                }
            }
        }
    }

    /// Pauses before the next attempt, or returns the error if there is none.
    pub(super) async fn pause(&self, attempts: &mut Attempts, failure: Failure) -> Result<(), Error> {
        let engine = self.combiner.known_engine();
        let cause = failure.cause(engine);
        let Failure { phase, error } = failure;
        match cause {
            Cause::Conflict | Cause::Locked | Cause::Connection => {}
            _ => return Err(Error::of_attempt(error, phase, engine, self.schema().name())),
        }
        match self.combiner.delay_before_retry(attempts, cause.as_str(), &error) {
            Some(delay) => tokio::time::sleep(delay).await,
            None => return Err(exhausted(attempts, error, cause)),
        }
        Ok(())
    }
}

impl Combiner {
    /// Returns the engine. The first call also checks that this release can work with the schema.
    pub(super) async fn engine(&self, connection: &mut PgConnection) -> Result<Engine, sqlx::Error> {
        match self.known_engine() {
            Some(engine) => Ok(engine),
            None => {
                let engine = detect(connection).await?;
                check_release(connection, self.rate_limits.statements()).await?;
                Ok(*self.engine.get_or_init(|| engine))
            }
        }
    }

    pub(super) fn known_engine(&self) -> Option<Engine> {
        self.engine.get().copied()
    }

    /// Returns the pause before the next attempt, and counts and logs the retry; `None` if no attempt is left.
    pub(super) fn delay_before_retry(
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
    pub(super) fn retry_at_once(
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
        self.retries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        observability::retried(cause);
        debug!(attempt = attempts.made(), ?delay, cause, %error, "retrying a transaction");
    }
}

/// Returns the error after the last attempt.
pub(super) fn exhausted(attempts: &Attempts, error: sqlx::Error, cause: Cause) -> Error {
    let error = without_keys(error);
    if matches!(cause, Cause::Connection | Cause::Busy | Cause::Locked) {
        return Error::Unavailable { source: error };
    }
    Error::RetriesExhausted { attempts: attempts.made(), elapsed: attempts.elapsed(), last: error }
}

/// Makes one attempt on a connection of the pool.
pub(crate) async fn over_pool<S: Statement>(
    combiner: &Combiner,
    bounds: Bounds,
    statement: &S,
) -> Result<S::Output, Failure> {
    let mut connection =
        PooledConnection::acquire(&combiner.pool, bounds.deadline).await.map_err(Failure::at(Phase::Connect))?;
    let result = transact(combiner, &mut connection, bounds, statement).await;
    match &result {
        Err(failure) if failure.breaks_the_connection(combiner.known_engine()) => drop(connection),
        _ => connection.release(),
    }
    result
}

/// Makes one attempt: BEGIN, the statement, COMMIT, and what is read after that.
pub(super) async fn transact<S: Statement>(
    combiner: &Combiner,
    connection: &mut PgConnection,
    bounds: Bounds,
    statement: &S,
) -> Result<S::Output, Failure> {
    let deadline = bounds.deadline;
    let engine = before(deadline, combiner.engine(connection)).await.map_err(Failure::at(Phase::Begin))?;
    let mut value = match alone(combiner, connection, deadline, statement).await? {
        Some(value) => value,
        None => in_transaction(combiner, engine, connection, bounds, statement).await?,
    };
    before(deadline, statement.after(connection, &mut value)).await.map_err(Failure::at(Phase::Commit))?;
    Ok(value)
}

/// Runs the statement without BEGIN and COMMIT. Returns `None` if it cannot run that way.
async fn alone<S: Statement>(
    combiner: &Combiner,
    connection: &mut PgConnection,
    deadline: Instant,
    statement: &S,
) -> Result<Option<S::Output>, Failure> {
    if !statement.is_alone() {
        return Ok(None);
    }
    match before(deadline, statement.run(connection, combiner.rate_limits.statements())).await {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.as_database_error() {
            Some(database) if database.code().as_deref() == Some(WRONG_LEVEL) => {
                statement.not_alone();
                Ok(None)
            }
            database => {
                let phase = if database.is_some() { Phase::Statement } else { Phase::Commit };
                Err(Failure { phase, error })
            }
        },
    }
}

async fn in_transaction<S: Statement>(
    combiner: &Combiner,
    engine: Engine,
    connection: &mut PgConnection,
    bounds: Bounds,
    statement: &S,
) -> Result<S::Output, Failure> {
    let deadline = bounds.deadline;
    let begun = before(deadline, connection.begin_with(begin::<S>(combiner, engine, bounds))).await;
    let mut tx = begun.map_err(Failure::at(Phase::Begin))?;
    let value = before(deadline, statement.run(&mut tx, combiner.rate_limits.statements())).await;
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

/// Runs the future, and fails it with a timeout at the deadline.
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
