//! The queue's own transactions: READ COMMITTED, and retried on a conflict under the limiter's retry policy.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::error::{Error, is_cancelled};
use crate::limit::Limits;
use crate::limiter::Limiter;
use crate::sql::Statements;
use crate::sql::queue::{Claim, Claimed, QueueStatements, claim, read};
use crate::transact::{Isolation, Kept, Statement};

pub(super) type Running<'c, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'c>>;

/// A statement with its arguments.
struct OwnTransaction<'a, A, T, const ONLY_READS: bool> {
    statements: &'a QueueStatements,
    arguments: A,
    call: for<'c> fn(&'c mut PgConnection, &'c QueueStatements, &'c A) -> Running<'c, T>,
}

impl<A: Sync, T: Send, const ONLY_READS: bool> Statement for OwnTransaction<'_, A, T, ONLY_READS> {
    type Output = T;

    const ONLY_READS: bool = ONLY_READS;

    /// This level is enough: each statement locks the rows that it decides on, and does not read a missing row twice.
    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    async fn execute(&self, connection: &mut PgConnection, _: &Statements) -> Result<T, sqlx::Error> {
        (self.call)(connection, self.statements, &self.arguments).await
    }
}

/// A claim of jobs. Where possible it is sent without BEGIN and COMMIT, so that it locks no row while its worker is paused or
/// cut off.
struct Claiming<'a> {
    context: &'a QueueContext,
    claim: Claim<'a>,
    kept: &'a Kept,
}

impl Statement for Claiming<'_> {
    type Output = Claimed;

    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    /// Without named statements, the driver prepares in a separate round trip, which a pooler may send to another session.
    fn is_alone(&self) -> bool {
        self.context.claims_alone.load(Ordering::Relaxed) && self.context.limiter.named_statements().are_on()
    }

    fn not_alone(&self) {
        self.context.claims_alone.store(false, Ordering::Relaxed);
    }

    fn kept(&self) -> Option<&Kept> {
        Some(self.kept)
    }

    async fn execute(&self, connection: &mut PgConnection, _: &Statements) -> Result<Claimed, sqlx::Error> {
        claim(connection, &self.context.statements, &self.claim).await
    }

    async fn after(
        &self,
        connection: &mut PgConnection,
        begin: impl Fn() -> AssertSqlSafe<String> + Send,
        claimed: &mut Claimed,
    ) -> Result<(), sqlx::Error> {
        if self.context.limiter.named_statements().are_on() {
            match read(connection, &self.context.statements, claimed).await {
                Err(error) if is_cancelled(&error) => {} // Jobs that are not read would wait until their leases end.
                result => return result,
            }
        }
        let mut tx = connection.begin_with(begin()).await?;
        read(&mut tx, &self.context.statements, claimed).await?;
        tx.commit().await
    }
}

/// The state that a queue and its workers share.
#[derive(Clone, Debug)]
pub(super) struct QueueContext {
    pub(super) limiter: Limiter,
    pub(super) statements: Arc<QueueStatements>,
    /// Whether sessions default to READ COMMITTED; `true` until a claim shows otherwise.
    claims_alone: Arc<AtomicBool>,
}

impl QueueContext {
    pub(super) fn new(limiter: &Limiter) -> Self {
        let statements = QueueStatements::new(limiter.schema().clone(), limiter.named_statements());
        Self {
            limiter: limiter.clone(),
            statements: Arc::new(statements),
            claims_alone: Arc::new(AtomicBool::new(true)),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limiter.limits()
    }

    pub(super) fn error(&self, error: sqlx::Error) -> Error {
        Error::of_statement(error, self.statements.schema.name())
    }

    pub(super) async fn claim(&self, claim: Claim<'_>, kept: &Kept) -> Result<Claimed, Error> {
        self.limiter.own_transaction(Claiming { context: self, claim, kept }).await
    }

    /// Runs a statement in a transaction of its own.
    pub(super) async fn own<A: Sync + Send, T: Send>(
        &self,
        arguments: A,
        call: for<'c> fn(&'c mut PgConnection, &'c QueueStatements, &'c A) -> Running<'c, T>,
    ) -> Result<T, Error> {
        let statement = OwnTransaction::<_, _, false> { statements: &self.statements, arguments, call };
        self.limiter.own_transaction(statement).await
    }

    /// Runs a statement that writes nothing.
    pub(super) async fn look<A: Sync + Send, T: Send>(
        &self,
        arguments: A,
        call: for<'c> fn(&'c mut PgConnection, &'c QueueStatements, &'c A) -> Running<'c, T>,
    ) -> Result<T, Error> {
        let statement = OwnTransaction::<_, _, true> { statements: &self.statements, arguments, call };
        self.limiter.own_transaction(statement).await
    }
}
