//! Queries the database. Each query is one message with its own read-only transaction: for poolers, and so that none stays open.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, FromRow, PgConnection};

use crate::Result;
use crate::database::{cannot_connect, connect_with};
use crate::operate::doctor::schema::function_names;
use pg_limiter::Schema;

/// Short timeouts limit the load on the database, and none that the role has ends a check. (Older servers lack the last one. This
/// returns no row.) The search path prevents user functions from replacing built-in ones.
pub(super) const BOUNDS: &str = "SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '1s'; \
     SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL idle_in_transaction_session_timeout = 0; \
     SELECT FROM current_setting('transaction_timeout', true) AS t \
       WHERE CASE WHEN t IS NOT NULL THEN set_config('transaction_timeout', '0', true) IS NULL END";

/// Without [`BOUNDS`]: they would change settings that a query reads, and other engines may not know them.
pub(super) const PLAIN: &str = "BEGIN READ ONLY";

/// Client timeout, longer than the server's own.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Session {
    pub(super) connection: PgConnection,
    /// Those that the server, or a pooler, accepts.
    pub(super) options: PgConnectOptions,
    /// The error with which a pooler rejected the driver's own start-up settings.
    pub(super) refused: Option<String>,
    pub(super) schema: Schema,
    pub(super) schema_literal: String,
    /// The relations `c` of the schema, and the limiter's functions `p`, as SQL.
    pub(super) relations: String,
    pub(super) functions: String,
    pub(super) is_yugabyte: bool,
}

impl Session {
    pub(super) async fn open(options: &PgConnectOptions, schema: &Schema) -> Result<Self> {
        let bare = options.clone().extra_float_digits(None);
        let (connection, options, refused) = match connect_with(options).await {
            Ok(connection) => (connection, options.clone(), None),
            Err(error) if pg_limiter::Error::refuses_settings(&error) => match connect_with(&bare).await {
                Ok(connection) => (connection, bare, Some(pg_limiter::Error::database_message(&error))),
                Err(_) => return Err(cannot_connect(error)),
            },
            Err(error) => return Err(cannot_connect(error)),
        };
        let (schema, schema_literal, names) = (schema.clone(), literal(schema.name()), function_names(schema));
        let of_schema = format!("JOIN pg_namespace AS n ON n.nspname = {schema_literal} AND n.oid =");
        let relations = format!("pg_class AS c {of_schema} c.relnamespace");
        let functions = format!("pg_proc AS p {of_schema} p.pronamespace AND p.proname IN ({names})");
        Ok(Self { connection, options, refused, schema, schema_literal, relations, functions, is_yugabyte: false })
    }

    pub(super) async fn row<T: Columns>(&mut self, sql: &str) -> sqlx::Result<T> {
        first(self.rows(sql).await?)
    }

    pub(super) async fn rows<T: Columns>(&mut self, sql: &str) -> sqlx::Result<Vec<T>> {
        self.rows_at("READ COMMITTED", sql).await
    }

    pub(super) async fn rows_at<T: Columns>(&mut self, isolation: &str, sql: &str) -> sqlx::Result<Vec<T>> {
        ask(&mut self.connection, &format!("BEGIN ISOLATION LEVEL {isolation} READ ONLY; {BOUNDS}"), sql).await
    }

    /// The name of an object in the limiter's schema, as SQL.
    pub(super) fn table(&self, name: &str) -> String {
        // Omit unneeded quotes, because people read this.
        match self.schema.name() {
            plain @ ("rate_limit" | "public") => format!("{plain}.{name}"),
            _ => format!("{}.{name}", self.schema.quoted()),
        }
    }
}

pub(super) trait Columns: for<'r> FromRow<'r, PgRow> {}

impl<T: for<'r> FromRow<'r, PgRow>> Columns for T {}

/// Returns the first row of a query without [`BOUNDS`].
pub(super) async fn plain_row<T: Columns>(connection: &mut PgConnection, sql: &str) -> sqlx::Result<T> {
    first(ask(connection, PLAIN, sql).await?)
}

pub(super) fn first<T>(rows: Vec<T>) -> sqlx::Result<T> {
    rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}

/// `begin`: [`PLAIN`], or a begin with [`BOUNDS`].
pub(super) async fn ask<T: Columns>(connection: &mut PgConnection, begin: &str, sql: &str) -> sqlx::Result<Vec<T>> {
    let message = AssertSqlSafe(format!("{begin}; {sql}; ROLLBACK"));
    let answer = async {
        let result = sqlx::raw_sql(message).fetch_all(&mut *connection).await;
        if let Err(sqlx::Error::Database(_)) = &result {
            // After an error, the server skips the rest of the message, including its ROLLBACK.
            sqlx::raw_sql("ROLLBACK").execute(connection).await?;
        }
        result
    };
    let no_answer = |_| Error::new(ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, answer).await.map_err(no_answer)??.iter().map(T::from_row).collect()
}

/// Quotes a string. The result is correct with any `standard_conforming_strings`.
pub(crate) fn literal(text: &str) -> String {
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
