//! Queries the database. Each query is one message with its own read-only transaction, so that it works through a pooler,
//! and a failed query leaves no open transaction behind.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection};

use pg_limiter::Schema;

/// Short timeouts limit the load on the database. The search path prevents user functions from replacing built-in ones.
const BOUNDS: &str = "SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '1s'; \
                      SET LOCAL search_path = pg_catalog, pg_temp";

/// Client timeout, longer than the server's own.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Session {
    pub(super) connection: PgConnection,
    pub(super) schema: Schema,
}

impl Session {
    /// Returns the first row.
    pub(super) async fn row(&mut self, sql: &str) -> Result<PgRow, sqlx::Error> {
        self.rows(sql).await?.into_iter().next().ok_or(sqlx::Error::RowNotFound)
    }

    pub(super) async fn rows(&mut self, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
        self.rows_at("READ COMMITTED", sql).await
    }

    pub(super) async fn rows_at(&mut self, isolation: &str, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
        ask(&mut self.connection, &format!("BEGIN ISOLATION LEVEL {isolation} READ ONLY; {BOUNDS}; {sql}; ROLLBACK"))
            .await
    }

    /// Runs a query without [`BOUNDS`]: they would change the settings that it reads, and other engines may not know them.
    pub(super) async fn plain_rows(&mut self, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
        ask(&mut self.connection, &format!("BEGIN READ ONLY; {sql}; ROLLBACK")).await
    }

    /// The name of an object in the limiter's schema, as SQL.
    pub(super) fn table(&self, name: &str) -> String {
        // Omit unneeded quotes, because people read this.
        match self.schema.name() {
            plain @ ("rate_limit" | "public") => format!("{plain}.{name}"),
            _ => format!("{}.{name}", self.schema.quoted()),
        }
    }

    /// The name of the schema as an SQL string.
    pub(super) fn schema_literal(&self) -> String {
        literal(self.schema.name())
    }
}

/// Sends a message that begins and ends a transaction.
pub(super) async fn ask(connection: &mut PgConnection, message: &str) -> Result<Vec<PgRow>, sqlx::Error> {
    let no_answer = || Error::new(ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, send(connection, message)).await.unwrap_or_else(|_| Err(no_answer().into()))
}

async fn send(connection: &mut PgConnection, message: &str) -> Result<Vec<PgRow>, sqlx::Error> {
    let result = sqlx::raw_sql(AssertSqlSafe(message.to_owned())).fetch_all(&mut *connection).await;
    if let Err(sqlx::Error::Database(_)) = &result {
        // After an error, the server skips the rest of the message, including its ROLLBACK.
        sqlx::raw_sql("ROLLBACK").execute(connection).await?;
    }
    result
}

/// Quotes a string. The result is correct with any `standard_conforming_strings`.
fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') { format!(" E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_escape_quotes_and_backslashes() {
        assert_eq!([literal("a"), literal("o'b"), literal("a\\'")], ["'a'", "'o''b'", " E'a\\\\'''"]);
    }
}
