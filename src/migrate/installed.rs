//! Reads the objects that are installed in a schema.

use std::collections::BTreeMap;

use serde::Deserialize;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::sql::Schema;

const INSTALLED: &str = include_str!("../../sql/install/installed.sql");
const UNTRUSTED: &str = include_str!("../../sql/install/untrusted.sql");
/// Replaces `current_user` in a check that migrates nothing: the owner of the table.
const OWNER: &str = "coalesce((SELECT pg_catalog.pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class AS c \
                     WHERE c.oid = pg_catalog.to_regclass($name$public.rate_limits$name$)), current_user)";
pub(super) const HISTORY: &str = "rate_limits_migrations";
pub(super) const OBJECTS: &str = "rate_limits_objects";

/// A migration that was applied.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Applied {
    pub(super) version: i32,
    #[serde(default)]
    pub(super) breaking: bool,
    /// `None` if the release that applied it did not record the hash.
    #[serde(default)]
    pub(super) sha256: Option<String>,
}

/// The record of an object.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Record {
    object: String,
    /// The hash of a function; `None` if the function was created before hashes were recorded.
    pub(super) sha256: Option<String>,
    crate_version: Option<String>,
}

impl Record {
    /// Whether a newer release created the object.
    pub(super) fn is_newer(&self) -> bool {
        self.crate_version.as_deref().is_some_and(|theirs| parts(theirs) > parts(env!("CARGO_PKG_VERSION")))
    }
}

/// The numbers of a version. A part that is not a number counts as 0.
fn parts(version: &str) -> Vec<u64> {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    release.split('.').map(|part| part.parse().unwrap_or_default()).collect()
}

/// The objects of a schema, read from the catalogs, and the contents of the two tables of records if they are plain tables.
#[derive(Debug, Default)]
pub(super) struct Installed {
    pub(super) has_schema: bool,
    /// Definitions by type (`table`, `column`, `index`, `function`, `owner`) and name.
    pub(super) definitions: BTreeMap<(String, String), String>,
    /// Pairs of an object and `role: PRIVILEGE`.
    pub(super) grants: Vec<(String, String)>,
    /// Why the schema is not safe for the owner of the table, or for the current role if there is no table yet.
    pub(super) untrusted: Vec<String>,
    pub(super) applied: Vec<Applied>,
    pub(super) records: BTreeMap<String, Record>,
}

impl Installed {
    /// Reads with simple queries: a pooler may send the two halves of a prepared one to different connections.
    pub(super) async fn read(conn: &mut PgConnection, schema: &Schema) -> Result<Self, sqlx::Error> {
        let untrusted = problems(conn, schema.render(&UNTRUSTED.replace("current_user", OWNER))).await?;
        let mut installed = Self { untrusted, ..Self::default() };
        for row in sqlx::raw_sql(AssertSqlSafe(schema.render(INSTALLED))).fetch_all(&mut *conn).await? {
            let (what, which, definition): (String, String, String) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            match what.as_str() {
                "schema" => installed.has_schema = true,
                "grant" => installed.grants.push((which, definition)),
                _ => _ = installed.definitions.insert((what, which), definition),
            }
        }
        if installed.is_plain_table(HISTORY) {
            installed.applied = rows(conn, schema, HISTORY).await?;
            installed.applied.retain(|applied| applied.version > 0); // Row 0 serves as a lock: see `stepwise`.
        }
        if installed.is_plain_table(OBJECTS) {
            let records: Vec<Record> = rows(conn, schema, OBJECTS).await?;
            installed.records = records.into_iter().map(|record| (record.object.clone(), record)).collect();
        }
        Ok(installed)
    }

    pub(super) fn definition(&self, what: &str, which: &str) -> Option<&str> {
        self.definitions.get(&(what.to_owned(), which.to_owned())).map(String::as_str)
    }

    /// Whether the relation is a plain table, so that reading it runs no code of its owner.
    fn is_plain_table(&self, name: &str) -> bool {
        self.definition("table", name)
            .is_some_and(|definition| definition.split(' ').all(|word| word != "ROW" && word != "not"))
    }

    /// The newest version that was applied.
    pub(super) fn version(&self) -> i32 {
        self.applied.iter().map(|applied| applied.version).max().unwrap_or_default()
    }

    pub(super) fn has_applied(&self, version: i32) -> bool {
        self.applied.iter().any(|applied| applied.version == version)
    }
}

/// Why the schema is not safe to migrate for the current role.
pub(super) async fn untrusted(conn: &mut PgConnection, schema: &Schema) -> Result<Vec<String>, sqlx::Error> {
    problems(conn, schema.render(UNTRUSTED)).await
}

async fn problems(conn: &mut PgConnection, sql: String) -> Result<Vec<String>, sqlx::Error> {
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// The rows of a table, read as JSON, because the table of an older release has fewer columns.
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

#[cfg(test)]
mod tests {
    use super::Record;

    #[test]
    fn a_newer_release_is_recognized_by_its_version() {
        let record = |version: Option<&str>| Record {
            object: "rate_limit_clock()".to_owned(),
            sha256: None,
            crate_version: version.map(str::to_owned),
        };
        for newer in ["99.0.0", "99.0.0-rc.1", "0.999.1"] {
            assert!(record(Some(newer)).is_newer(), "{newer}");
        }
        for older in [Some(env!("CARGO_PKG_VERSION")), Some("0.0.9"), Some("rubbish"), Some(""), None] {
            assert!(!record(older).is_newer(), "{older:?}");
        }
    }
}
