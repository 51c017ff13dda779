//! The objects that are installed in a schema.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::migrate::Part;
use crate::migrate::migrations::{Migration, migrations};
use crate::migrate::tables::tables;
use crate::sql::Schema;

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
    pub(super) object: String,
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

    /// Whether the relation is a plain table, so that reading it runs no code of its owner, with the limiter's columns. Row level
    /// security does not apply to a role with the rights of the owner.
    pub(super) fn is_plain_table(&self, name: &str) -> bool {
        let owner = self.definition("owner", name).unwrap_or_default();
        let is_owner = self.definition("rights", owner) == Some("true");
        let is_plain = |definition: &str| definition.starts_with("table") && (is_owner || !definition.contains("ROW"));
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

/// Objects that belong to a wrong role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Misowned {
    pub(super) problem: String,
    /// They give the objects to the right role.
    pub(super) statements: Vec<String>,
}

/// A reason why the schema is not safe.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) text: String,
    /// An object has another owner.
    pub(super) is_of_owner: bool,
    /// It removes a trigger or a rule.
    pub(super) statement: Option<String>,
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
