//! Asks the server which engine it is, and why it accepts no writes.

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::error::{Engine, ReadOnlyByDefault, database_message, is_read_only};
use crate::sql::Schema;

/// Asks the server which engine it is, and how the limiter's tables in this schema are stored. `_is_distributed`
/// returns a constant, which is read here and not called: an older schema lacks the function. Uses a simple query: a pooler may
/// send the two parts of a prepared one to different sessions.
pub(crate) async fn detect(connection: &mut PgConnection, schema: &Schema) -> Result<Engine, sqlx::Error> {
    let sql = schema.render(
        "SELECT pg_catalog.version() || CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_proc AS p \
         WHERE p.proname = '_is_distributed' AND p.prosrc LIKE '%true%' AND p.pronamespace = \
         pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))) \
         THEN ', distributed' ELSE '' END",
    );
    let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?;
    row.try_get(0).map(|version: &str| Engine::of(version, version.ends_with(", distributed")))
}

/// Whether transactions are read-only by a setting, and not because the server is a standby. Returns `false` if the
/// server does not answer.
pub(crate) async fn is_read_only_by_default(connection: &mut PgConnection) -> bool {
    let sql = "SELECT NOT pg_catalog.pg_is_in_recovery() \
               AND pg_catalog.current_setting('default_transaction_read_only') = 'on'";
    let row = sqlx::raw_sql(sql).fetch_one(connection).await;
    row.and_then(|row| row.try_get(0)).unwrap_or(false)
}

/// Adds the cause to the error of a statement that cannot write: a setting of the server, if there is one. Otherwise
/// the server is a standby, and so the wrong node. The statement's transaction has ended, or the driver is about to
/// roll it back.
pub(crate) async fn explain(connection: &mut PgConnection, error: sqlx::Error) -> sqlx::Error {
    if is_read_only(&error) && is_read_only_by_default(connection).await {
        return ReadOnlyByDefault { message: database_message(&error) }.into();
    }
    error
}
