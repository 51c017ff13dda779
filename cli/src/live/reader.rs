//! Transactions that only read, for a short time.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, Transaction};

use crate::error::CliError;
use pg_limiter::{Error, Schema};

/// A statement that takes longer fails. The planner must not choose a scan of a whole table.
const BOUNDS: &str = "SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s'; SET LOCAL jit = off; \
                      SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";

const TO_CONNECT: Duration = Duration::from_secs(1);

/// Begins a transaction that reads one state of the database, and cannot write.
pub(super) async fn begin(pool: &PgPool, schema: &Schema) -> Result<Transaction<'static, Postgres>, CliError> {
    let begun = async {
        let mut tx = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        sqlx::raw_sql(AssertSqlSafe(BOUNDS)).execute(&mut *tx).await?;
        Ok(tx)
    };
    match begun.await {
        Ok(tx) => Ok(tx),
        // The pool does not say why it has no connection.
        Err(sqlx::Error::PoolTimedOut) => Err(failed(why_no_connection(pool).await, schema)),
        Err(error) => Err(failed(error, schema)),
    }
}

async fn why_no_connection(pool: &PgPool) -> sqlx::Error {
    match tokio::time::timeout(TO_CONNECT, PgConnection::connect_with(&pool.connect_options())).await {
        Ok(Err(error)) => error,
        Ok(Ok(_)) | Err(_) => sqlx::Error::PoolTimedOut,
    }
}

pub(super) fn failed(error: sqlx::Error, schema: &Schema) -> CliError {
    CliError::refused(Error::from_sql(error, schema.name()), schema, &["rate_limits", "jobs", "groups"])
}
