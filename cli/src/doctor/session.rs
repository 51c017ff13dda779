//! Queries the database. Each query is one message with its own read-only transaction, so that it works through a pooler,
//! and a failed query leaves no open transaction behind.

use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection};

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
    pub(super) async fn row<T: Columns>(&mut self, sql: &str) -> Result<T, sqlx::Error> {
        self.rows(sql).await?.into_iter().next().ok_or(sqlx::Error::RowNotFound)
    }

    pub(super) async fn rows<T: Columns>(&mut self, sql: &str) -> Result<Vec<T>, sqlx::Error> {
        self.rows_at("READ COMMITTED", sql).await
    }

    pub(super) async fn rows_at<T: Columns>(&mut self, isolation: &str, sql: &str) -> Result<Vec<T>, sqlx::Error> {
        ask(&mut self.connection, &format!("BEGIN ISOLATION LEVEL {isolation} READ ONLY; {BOUNDS}; {sql}; ROLLBACK"))
            .await
    }

    /// Runs a query without [`BOUNDS`]: they would change the settings that it reads, and other engines may not know them.
    pub(super) async fn plain_rows<T: Columns>(&mut self, sql: &str) -> Result<Vec<T>, sqlx::Error> {
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

/// The columns of a row, as a tuple.
pub(super) trait Columns: for<'r> FromRow<'r, PgRow> {}

impl<T: for<'r> FromRow<'r, PgRow>> Columns for T {}

/// Sends a message that begins and ends a transaction.
pub(super) async fn ask<T: Columns>(connection: &mut PgConnection, message: &str) -> Result<Vec<T>, sqlx::Error> {
    let no_answer = || Error::new(ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}"));
    let rows = tokio::time::timeout(PATIENCE, send(connection, message)).await;
    rows.unwrap_or_else(|_| Err(no_answer().into()))?.iter().map(T::from_row).collect()
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

const NAMES: &str = "'synchronous_commit', 'fsync', 'full_page_writes', 'autovacuum', 'track_counts', \
                     'default_transaction_read_only', 'max_connections', 'superuser_reserved_connections', \
                     'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', \
                     'transaction_timeout', 'max_pred_locks_per_transaction', 'deadlock_timeout'";

/// Settings as a new session of this role gets them, without changes that this session made.
#[derive(Debug, Default)]
pub(super) struct Settings(HashMap<String, Setting>);

#[derive(Debug)]
struct Setting {
    value: String,
    source: String,
}

impl Settings {
    pub(super) async fn read(session: &mut Session) -> Result<Self, sqlx::Error> {
        let sql = format!("SELECT name, reset_val, source FROM pg_settings WHERE name IN ({NAMES})");
        let mut settings = HashMap::new();
        for (name, value, source) in session.plain_rows::<(String, Option<String>, String)>(&sql).await? {
            settings.insert(name, Setting { value: value.unwrap_or_default(), source });
        }
        Ok(Self(settings))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|setting| setting.value.as_str())
    }

    /// The value as a number, in the unit of the setting.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.get(name)?.parse().ok()
    }

    /// Formats `name=value`, with the source of the value.
    pub(super) fn shown(&self, name: &str) -> String {
        match self.0.get(name) {
            None => format!("{name} is unknown"),
            Some(Setting { value, source }) => match source.as_str() {
                "user" => format!("{name}={value} (of the role)"),
                "database" => format!("{name}={value} (of the database)"),
                "database user" => format!("{name}={value} (of the role in this database)"),
                _ => format!("{name}={value}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_escape_quotes_and_backslashes() {
        assert_eq!([literal("a"), literal("o'b"), literal("a\\'")], ["'a'", "'o''b'", " E'a\\\\'''"]);
    }
}
