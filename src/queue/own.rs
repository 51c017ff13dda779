//! The queue's own transactions: READ COMMITTED, retried on a conflict, by the deadline of the limiter's retry policy.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{Connection, PgConnection};

use crate::error::Error;
use crate::limit::Limits;
use crate::limiter::{Isolation, Limiter, Statement};
use crate::sql::Statements;
use crate::sql::queue::{Claim, Claimed, QueueStatements, claim, read};

type Running<'c, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'c>>;

/// A statement with its arguments.
struct Own<'a, A, T> {
    statements: &'a QueueStatements,
    arguments: A,
    run: for<'c> fn(&'c mut PgConnection, &'c QueueStatements, &'c A) -> Running<'c, T>,
}

impl<A: Sync, T: Send> Statement for Own<'_, A, T> {
    type Output = T;

    /// Rows are locked before they are decided on, and what is not there is not looked for twice.
    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    /// Workers and callers wait for each other's rows: not for one that is stopped.
    const ENDS_IDLE: bool = true;

    async fn run(&self, connection: &mut PgConnection, _: &Statements) -> Result<T, sqlx::Error> {
        (self.run)(connection, self.statements, &self.arguments).await
    }
}

/// A claim, which commits by itself where it can: no row of it stays locked while its worker is stopped or cut off.
struct Claiming<'a> {
    site: &'a Site,
    claim: Claim<'a>,
}

impl Statement for Claiming<'_> {
    type Output = Claimed;

    const ISOLATION: Option<Isolation> = Some(Isolation::ReadCommitted);

    const ENDS_IDLE: bool = true;

    /// A statement without a name is prepared in a round trip of its own, which a pooler may send elsewhere.
    fn is_alone(&self) -> bool {
        self.site.claims_alone.load(Ordering::Relaxed) && self.site.limiter.names().are_given()
    }

    fn not_alone(&self) {
        self.site.claims_alone.store(false, Ordering::Relaxed);
    }

    async fn run(&self, connection: &mut PgConnection, _: &Statements) -> Result<Claimed, sqlx::Error> {
        claim(connection, &self.site.statements, &self.claim).await
    }

    async fn after(&self, connection: &mut PgConnection, claimed: &mut Claimed) -> Result<(), sqlx::Error> {
        if self.site.limiter.names().are_given() {
            return read(connection, &self.site.statements, claimed).await;
        }
        let mut tx = connection.begin().await?;
        read(&mut tx, &self.site.statements, claimed).await?;
        tx.commit().await
    }
}

/// All that a queue and its workers share.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) limiter: Limiter,
    pub(super) statements: Arc<QueueStatements>,
    /// Sessions are at READ COMMITTED, as far as is known.
    claims_alone: Arc<AtomicBool>,
}

impl Site {
    pub(super) fn new(limiter: &Limiter) -> Self {
        let statements = QueueStatements::new(limiter.schema().clone(), limiter.names());
        Self {
            limiter: limiter.clone(),
            statements: Arc::new(statements),
            claims_alone: Arc::new(AtomicBool::new(true)),
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        self.limiter.limits()
    }

    pub(super) fn told(&self, error: sqlx::Error) -> Error {
        Error::of_statement(error, self.statements.schema.name())
    }

    pub(super) async fn claim(&self, claim: Claim<'_>) -> Result<Claimed, Error> {
        self.limiter.own_transaction(Claiming { site: self, claim }).await
    }

    /// In a transaction of its own.
    pub(super) async fn own<A: Sync + Send, T: Send>(
        &self,
        arguments: A,
        run: for<'c> fn(&'c mut PgConnection, &'c QueueStatements, &'c A) -> Running<'c, T>,
    ) -> Result<T, Error> {
        self.limiter.own_transaction(Own { statements: &self.statements, arguments, run }).await
    }
}
