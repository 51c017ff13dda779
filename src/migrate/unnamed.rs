//! Statements without a name, which are sent once.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, PgConnection};

use crate::sql::{NamedStatements, Sql};

/// Runs the statement and returns the number of affected rows.
pub(super) async fn execute(conn: &mut PgConnection, sql: String) -> Result<u64, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|done| done.rows_affected())
}

/// An unnamed statement, which is sent once. A named one would stay in the session and could collide in shared sessions.
pub(super) fn unnamed(text: impl Into<Arc<str>>) -> Sql {
    Sql::new(text, &NamedStatements::new(false))
}
