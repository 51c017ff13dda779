//! Checks that this release can work with the schema, which a newer release may have migrated.

use std::sync::atomic::Ordering;

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::error::SchemaTooNew;
use crate::sql::{SCHEMA_VERSION, Statements};

/// Checks once, on the first connection that is used; later calls return at once. A schema without records passes. Uses
/// simple queries: a pooler may send the two parts of a prepared one to different sessions.
pub(crate) async fn check_release(connection: &mut PgConnection, statements: &Statements) -> Result<(), sqlx::Error> {
    if statements.is_checked.load(Ordering::Relaxed) {
        return Ok(());
    }
    let history = format!("{}.migrations", statements.schema.quoted());
    let readable = format!(
        "SELECT coalesce(pg_catalog.bool_or(pg_catalog.has_table_privilege(a.attrelid, 'SELECT')), false) \
         FROM pg_catalog.pg_attribute AS a \
         WHERE a.attrelid = pg_catalog.to_regclass($name${history}$name$) AND a.attname = 'breaking'"
    );
    if sqlx::raw_sql(AssertSqlSafe(readable)).fetch_one(&mut *connection).await?.try_get(0)? {
        let newest = format!("SELECT coalesce(pg_catalog.max(version), 0) FROM {history} WHERE breaking");
        let found: i32 = sqlx::raw_sql(AssertSqlSafe(newest)).fetch_one(connection).await?.try_get(0)?;
        if found > SCHEMA_VERSION {
            return Err(SchemaTooNew { found, known: SCHEMA_VERSION }.into());
        }
    }
    statements.is_checked.store(true, Ordering::Relaxed);
    Ok(())
}
