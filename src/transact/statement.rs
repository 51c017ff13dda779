//! The statements that the limiter runs in transactions of its own.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};

use crate::call::{Forgotten, Resolved};
use crate::sql::{
    Answer, Batch, Blocking, Bucket, Forgetting, Once, Statements, Unblocking, decide, decide_once, held,
    reset_all_keys,
};
use crate::sql::{PresentWindow, ReadWindow};
use crate::transact::{Isolation, Kept};

/// The statement of one of the limiter's own transactions.
///
/// A trait and not a closure: futures that hold an async closure are not provably `Send` where users spawn them.
pub(crate) trait Statement: Sync {
    type Output: Send;

    /// The isolation level, if it differs from the limiter's.
    const ISOLATION: Option<Isolation> = None;

    /// Whether it may be retried when the outcome of its commit is unknown.
    const IS_IDEMPOTENT: bool = false;

    /// Whether it writes nothing. Then no outcome is unknown, and it is retried whenever its connection is lost.
    const ONLY_READS: bool = false;

    /// Whether it is sent without BEGIN and COMMIT. It then sets its own `lock_timeout`, and fails with 25000 if the
    /// session's isolation level is not the one it needs. If the session's `statement_timeout` ends it, it is sent again
    /// within BEGIN and COMMIT.
    fn is_alone(&self) -> bool {
        false
    }

    /// Called when the statement fails with 25000: send it within BEGIN and COMMIT from now on.
    fn not_alone(&self) {}

    /// Where its connection is kept for the next one.
    fn kept(&self) -> Option<&Kept> {
        None
    }

    /// Reads the rest of the result once the transaction is committed. `begin` begins another like it.
    fn after(
        &self,
        _connection: &mut PgConnection,
        _begin: impl Fn() -> AssertSqlSafe<String> + Send,
        _output: &mut Self::Output,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Sends the statement, and reads its result.
    fn execute(
        &self,
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> impl Future<Output = Result<Self::Output, sqlx::Error>> + Send;
}

/// A batch of calls, decided in one statement.
pub(crate) struct Decide<'a>(pub(crate) &'a Batch);

impl Statement for Decide<'_> {
    type Output = Vec<Answer>;

    async fn execute(
        &self,
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> Result<Vec<Answer>, sqlx::Error> {
        decide(connection, statements, self.0).await
    }
}

/// Finds out which of these buckets have a row that another transaction has locked; `None` for a bucket without a row.
pub(crate) struct LookForHeld<'a>(pub(crate) &'a [Bucket]);

impl Statement for LookForHeld<'_> {
    type Output = Vec<Option<bool>>;

    /// Under SERIALIZABLE, a row that has changed since the snapshot would be an error.
    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    const ONLY_READS: bool = true;

    async fn execute(
        &self,
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> Result<Vec<Option<bool>>, sqlx::Error> {
        held(connection, statements, self.0).await
    }
}

/// A call with an idempotency key.
pub(crate) struct DecideOnce<'a> {
    pub(crate) call: &'a Resolved,
    pub(crate) key: Arc<str>,
    pub(crate) keep: Duration,
}

impl Statement for DecideOnce<'_> {
    type Output = Once;

    const IS_IDEMPOTENT: bool = true;

    async fn execute(&self, connection: &mut PgConnection, statements: &Statements) -> Result<Once, sqlx::Error> {
        decide_once(connection, statements, self.call, &self.key, self.keep).await
    }
}

/// A reset of every key of a limit.
pub(crate) struct ResetAllKeys<'a>(pub(crate) &'a str);

impl Statement for ResetAllKeys<'_> {
    type Output = u64;

    /// It has to search for the rows. A SERIALIZABLE scan would make callers' transactions fail, and could fail because
    /// of them.
    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    async fn execute(&self, connection: &mut PgConnection, statements: &Statements) -> Result<u64, sqlx::Error> {
        reset_all_keys(connection, statements, self.0).await
    }
}

impl Statement for Forgetting<'_> {
    type Output = Forgotten;

    /// It has to search the jobs. A SERIALIZABLE scan would make callers' transactions fail, and could fail because of
    /// them.
    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    async fn execute(&self, connection: &mut PgConnection, _: &Statements) -> Result<Forgotten, sqlx::Error> {
        self.delete(connection).await
    }
}

impl Statement for ReadWindow {
    type Output = PresentWindow;

    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    const ONLY_READS: bool = true;

    async fn execute(
        &self,
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> Result<PresentWindow, sqlx::Error> {
        self.read(connection, statements).await
    }
}

impl Statement for Unblocking {
    type Output = ();

    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    const IS_IDEMPOTENT: bool = true;

    async fn execute(&self, connection: &mut PgConnection, statements: &Statements) -> Result<(), sqlx::Error> {
        self.unblock(connection, statements).await
    }
}

impl Statement for Blocking {
    type Output = Duration;

    /// The row is locked before it is read.
    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    /// A second block only moves the end by the time between the two.
    const IS_IDEMPOTENT: bool = true;

    async fn execute(&self, connection: &mut PgConnection, statements: &Statements) -> Result<Duration, sqlx::Error> {
        self.block(connection, statements).await
    }
}
