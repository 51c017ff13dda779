//! Questions to the database, each in a read-only transaction of its own, as one message: so that it works through a
//! pooler, too, and one that is refused leaves nothing behind.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection};

use pg_limiter::Schema;

/// Patience is short: the database has other things to do. Nobody's function stands in for one of the engine.
const BOUNDS: &str = "SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '1s'; \
                      SET LOCAL search_path = pg_catalog, pg_temp";

/// Longer than the server's own bound.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Session {
    pub(super) connection: PgConnection,
    pub(super) schema: Schema,
}

impl Session {
    /// The first row of the answer.
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

    /// Without bounds that would show in the answer, or that another engine may not know.
    pub(super) async fn plain_rows(&mut self, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
        ask(&mut self.connection, &format!("BEGIN READ ONLY; {sql}; ROLLBACK")).await
    }

    /// The name of one of the limiter's tables, as SQL.
    pub(super) fn table(&self, name: &str) -> String {
        // What needs no quotes has none: people read this.
        if self.schema.name() == "public" {
            format!("public.{name}")
        } else {
            format!("{}.{name}", self.schema.quoted())
        }
    }

    /// The schema's name as a string of SQL.
    pub(super) fn schema_literal(&self) -> String {
        literal(self.schema.name())
    }
}

/// A message that begins a transaction and ends it.
pub(super) async fn ask(connection: &mut PgConnection, message: &str) -> Result<Vec<PgRow>, sqlx::Error> {
    let no_answer = || Error::new(ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, send(connection, message)).await.unwrap_or_else(|_| Err(no_answer().into()))
}

async fn send(connection: &mut PgConnection, message: &str) -> Result<Vec<PgRow>, sqlx::Error> {
    let result = sqlx::raw_sql(AssertSqlSafe(message.to_owned())).fetch_all(&mut *connection).await;
    if let Err(sqlx::Error::Database(_)) = &result {
        // What was refused has kept the end of the message from being run.
        sqlx::raw_sql("ROLLBACK").execute(connection).await?;
    }
    result
}

/// Right whatever `standard_conforming_strings` is.
fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') { format!(" E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_ends_where_it_should() {
        assert_eq!([literal("a"), literal("o'b"), literal("a\\'")], ["'a'", "'o''b'", " E'a\\\\'''"]);
    }
}
