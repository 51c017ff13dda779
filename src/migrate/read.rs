//! Reads the objects that are installed in a schema, and why it is not safe.

use serde::Deserialize;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::migrate::Part;
use crate::migrate::installed::{HISTORY, Installed, OBJECTS, Problem, Record};
use crate::migrate::names::install;
use crate::migrate::owners::misowned;
use crate::sql::Schema;

const INSTALLED: &str = include_str!("../../sql/install/installed.sql");
const UNTRUSTED: &str = include_str!("../../sql/install/untrusted.sql");
/// Replaces `current_user` in a check that migrates nothing: the owner of the table.
const OWNER: &str = "coalesce((SELECT pg_catalog.pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class AS c \
                     WHERE c.relname = 'rate_limits' AND c.relnamespace \
                       = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))), current_user)";

impl Installed {
    /// Reads with simple queries: a pooler may send the two halves of a prepared one to different connections.
    pub(super) async fn read(conn: &mut PgConnection, schema: &Schema) -> Result<Self, sqlx::Error> {
        let mut installed = Self::default();
        for row in sqlx::raw_sql(AssertSqlSafe(install(schema, INSTALLED, Part::ALL))).fetch_all(&mut *conn).await? {
            let (what, which, definition): (String, String, String) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            match what.as_str() {
                "grant" => installed.grants.push((which, definition)),
                _ => _ = installed.definitions.insert((what, which), definition),
            }
        }
        installed.has_schema = installed.schema_owner().is_some();
        if !installed.is_readable() {
            installed.misowned = misowned(conn, schema, &installed).await?;
            return Ok(installed);
        }
        if installed.is_plain_table(HISTORY) {
            installed.applied = rows(conn, schema, HISTORY).await?;
            installed.applied.retain(|applied| applied.version > 0); // Row 0 serves as a lock: see `stepwise`.
        }
        if installed.is_plain_table(OBJECTS) {
            let records: Vec<Record> = rows(conn, schema, OBJECTS).await?;
            installed.records = records.into_iter().map(|record| (record.object.clone(), record)).collect();
        }
        let parts: &[Part] = if installed.has_queue(schema) { Part::ALL } else { &[Part::Core] };
        if !installed.applied.is_empty() {
            installed.misowned = misowned(&mut *conn, schema, &installed).await?;
        }
        let sql = install(schema, &UNTRUSTED.replace("current_user", OWNER), parts);
        installed.untrusted = problems(conn, sql).await?;
        Ok(installed)
    }
}

/// Why the schema is not safe to migrate for the current role, with these parts.
pub(super) async fn untrusted(
    conn: &mut PgConnection,
    schema: &Schema,
    parts: &[Part],
) -> Result<Vec<Problem>, sqlx::Error> {
    problems(conn, install(schema, UNTRUSTED, parts)).await
}

async fn problems(conn: &mut PgConnection, sql: String) -> Result<Vec<Problem>, sqlx::Error> {
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await?;
    let problem = |row: &sqlx::postgres::PgRow| {
        Ok(Problem { text: row.try_get(0)?, is_of_owner: row.try_get(1)?, statement: row.try_get(2)? })
    };
    rows.iter().map(problem).collect()
}

/// The rows of a table, read as JSON, because the table of a newer release may have more columns.
async fn rows<T: for<'de> Deserialize<'de>>(
    conn: &mut PgConnection,
    schema: &Schema,
    table: &str,
) -> Result<Vec<T>, sqlx::Error> {
    let sql = format!("SELECT pg_catalog.to_jsonb(t)::text FROM {}.{table} AS t", schema.quoted());
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await?;
    let parse = |row: &sqlx::postgres::PgRow| {
        let json: String = row.try_get(0)?;
        serde_json::from_str(&json).map_err(|error| sqlx::Error::Decode(error.into()))
    };
    rows.iter().map(parse).collect()
}
