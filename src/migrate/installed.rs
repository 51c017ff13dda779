//! Reads the objects that are installed in a schema.

use std::collections::BTreeMap;

use serde::Deserialize;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::migrate::Part;
use crate::migrate::migrations::{Migration, migrations};
use crate::migrate::names::install;
use crate::migrate::owners::{Misowned, misowned};
use crate::migrate::tables::tables;
use crate::sql::Schema;

const INSTALLED: &str = include_str!("../../sql/install/installed.sql");
const UNTRUSTED: &str = include_str!("../../sql/install/untrusted.sql");
/// Replaces `current_user` in a check that migrates nothing: the owner of the table.
const OWNER: &str = "coalesce((SELECT pg_catalog.pg_get_userbyid(c.relowner) FROM pg_catalog.pg_class AS c \
                     WHERE c.relname = 'rate_limits' AND c.relnamespace \
                       = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))), current_user)";
pub(super) const HISTORY: &str = "migrations";
pub(super) const OBJECTS: &str = "objects";
const JOBS: &str = "jobs";

/// A migration that was applied.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Applied {
    pub(super) version: i32,
    pub(super) name: String,
    pub(super) breaking: bool,
    pub(super) sha256: String,
    applied_by: Option<String>,
}

/// The record of an object.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Record {
    object: String,
    /// The hash of a function of the limiter. `None` for other objects.
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
    /// Definitions by type (`table`, `column`, `index`, `function`, `owner`, ..) and name: see `installed.sql`.
    pub(super) definitions: BTreeMap<(String, String), String>,
    /// Pairs of an object and `role: PRIVILEGE`.
    pub(super) grants: Vec<(String, String)>,
    /// Why the schema is not safe for the owner of the table, or for the current role if there is no table yet.
    pub(super) untrusted: Vec<Problem>,
    pub(super) applied: Vec<Applied>,
    pub(super) records: BTreeMap<String, Record>,
    /// The objects of a wrong owner.
    pub(super) misowned: Option<Misowned>,
}

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

    pub(super) fn definition(&self, what: &str, which: &str) -> Option<&str> {
        self.definitions.get(&(what.to_owned(), which.to_owned())).map(String::as_str)
    }

    /// The only definition of this type, with its name.
    fn single(&self, what: &str) -> Option<(&str, &str)> {
        let found = self.definitions.iter().find(|((type_, _), _)| type_ == what)?;
        Some((&found.0.1, found.1))
    }

    pub(super) fn schema_owner(&self) -> Option<&str> {
        self.single("schema").map(|(_, owner)| owner)
    }

    /// The current role, and what it may do. Without the schema, `None`.
    pub(super) fn current(&self) -> Option<(&str, &str)> {
        self.single("current")
    }

    /// Whether the current role may use the schema. Otherwise the records, and what makes the schema unsafe, are not read.
    pub(super) fn is_readable(&self) -> bool {
        self.current().is_none_or(|(_, may)| may != "nothing")
    }

    /// The role that has migrated.
    pub(super) fn migrated_by(&self) -> Option<&str> {
        self.applied.iter().max_by_key(|applied| applied.version)?.applied_by.as_deref()
    }

    /// How many functions have this name.
    pub(super) fn functions_named(&self, name: &str) -> usize {
        let functions = self.definitions.keys().filter(|(what, _)| what == "function");
        functions.filter(|(_, signature)| signature.split('(').next() == Some(name)).count()
    }

    /// Whether the relation is a plain table, so that reading it runs no code of its owner, with the limiter's columns.
    fn is_plain_table(&self, name: &str) -> bool {
        let is_plain = |definition: &str| definition.starts_with("table") && !definition.contains("ROW");
        let mut columns = tables(Part::ALL).filter(|line| line.what == "column" && line.table() == name);
        self.definition("table", name).is_some_and(is_plain)
            && columns.all(|line| self.definition("column", line.which).is_some())
    }

    /// The newest version that was applied.
    pub(super) fn version(&self) -> i32 {
        self.applied.iter().map(|applied| applied.version).max().unwrap_or_default()
    }

    /// The record of a migration that was applied.
    pub(super) fn applied(&self, migration: &Migration) -> Option<&Applied> {
        self.applied.iter().find(|applied| applied.version == migration.version && applied.name == migration.name)
    }

    /// Whether the queue is installed. Without any records, its table decides.
    pub(super) fn has_queue(&self, schema: &Schema) -> bool {
        let mut migrations = migrations(schema, &[Part::Queue]).into_iter();
        match self.applied.is_empty() {
            true => self.is_plain_table(JOBS),
            false => migrations.any(|migration| self.applied(&migration).is_some()),
        }
    }

    /// Whether a newer release has created functions.
    pub(super) fn has_newer_functions(&self) -> bool {
        self.records.values().any(Record::is_newer)
    }
}

/// A reason why the schema is not safe.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) text: String,
    /// An object has another owner.
    pub(super) is_of_owner: bool,
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
    rows.iter().map(|row| Ok(Problem { text: row.try_get(0)?, is_of_owner: row.try_get(1)? })).collect()
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

#[cfg(test)]
mod tests {
    use super::Record;

    #[test]
    fn a_newer_release_is_recognized_by_its_version() {
        let record = |version: Option<&str>| Record {
            object: "_clock()".to_owned(),
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
