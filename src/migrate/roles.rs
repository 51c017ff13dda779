//! The role that migrates: it becomes the owner of the objects, or lacks privileges.

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::migrate::failure::Failure;
use crate::migrate::unnamed::unnamed;
use crate::sql::Schema;

pub(super) const OWNER: &str = include_str!("../../sql/install/owner.sql");
const RIGHTS: &str = include_str!("../../sql/install/rights.sql");

/// How long a role is set for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    Commit,
    Disconnect,
}

/// Becomes the role that owns the objects, if the current role is a member of it. Returns the former setting.
pub(super) async fn become_owner(
    conn: &mut PgConnection,
    schema: &Schema,
    until: Until,
) -> Result<Option<String>, sqlx::Error> {
    let sql = AssertSqlSafe(schema.render(OWNER));
    let Some(row) = sqlx::raw_sql(sql).fetch_optional(&mut *conn).await? else { return Ok(None) };
    set_role(conn, row.try_get("owner")?, until).await?;
    row.try_get("role").map(Some)
}

pub(super) async fn set_role(conn: &mut PgConnection, role: &str, until: Until) -> Result<(), sqlx::Error> {
    let set = unnamed("SELECT pg_catalog.set_config('role', $1, $2)");
    set.query().bind(role).bind(until == Until::Commit).execute(conn).await.map(|_| ())
}

/// Returns the privileges that the current role lacks to migrate.
pub(super) async fn lacking(conn: &mut PgConnection, schema: &Schema) -> Result<Option<Failure>, sqlx::Error> {
    let Some(row) = sqlx::raw_sql(AssertSqlSafe(schema.render(RIGHTS))).fetch_optional(conn).await? else {
        return Ok(None);
    };
    Ok(Some(Failure::Lacking {
        role: row.try_get("role")?,
        privilege: row.try_get("privilege")?,
        what: row.try_get("what")?,
        granted_by: row.try_get("granted_by")?,
    }))
}
