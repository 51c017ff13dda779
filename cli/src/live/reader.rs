//! Transactions that only read, for a short time.

use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};

use crate::error::CliError;
use pg_limiter::{Error, Schema};

/// A statement that takes longer fails. The planner must not choose a scan of a whole table.
const BOUNDS: &str = "SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s'; SET LOCAL jit = off; \
                      SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";

/// Begins a transaction that reads one state of the database, and cannot write.
pub(super) async fn begin(pool: &PgPool, schema: &Schema) -> Result<Transaction<'static, Postgres>, CliError> {
    let begun = async {
        let mut tx = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        sqlx::raw_sql(AssertSqlSafe(BOUNDS)).execute(&mut *tx).await?;
        Ok(tx)
    };
    begun.await.map_err(|error| failed(error, schema))
}

pub(super) fn failed(error: sqlx::Error, schema: &Schema) -> CliError {
    CliError::refused(
        Error::from_sql(error, schema.name()),
        schema,
        &["rate_limits", "rate_limit_jobs", "rate_limit_groups"],
    )
}
