//! Compares the installed objects with those of this release.

use std::fmt;

use crate::error::Engine;
use crate::migrate::functions::{Function, functions};
use crate::migrate::installed::{HISTORY, Installed, OBJECTS, Record};
use crate::migrate::migrations::{Migration, migrations};
use crate::sql::{SCHEMA_VERSION, Schema};

/// The tables, columns and indexes that the migrations create, one per line.
const TABLES: &str = include_str!("../../migrations/tables.txt");

/// The bodies of these functions depend on the engine.
const BY_ENGINE: [&str; 2] = ["rate_limit_is_distributed()", "rate_limit_rows(text, text)"];

/// The clock, and the hash of the one in `sql/testing/test_clock.sql`. A test compares the hash.
const CLOCK: &str = "rate_limit_clock()";
const TEST_CLOCK: &str = "9adae60811aa4ed1a07338be2b4f9fd125589489ad00c16e0f9d606dc53025d4";

/// A difference between a database and this release, from [`Migrator::check`](super::Migrator::check).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Drift {
    /// A migration is not applied. `migrate` applies it.
    MigrationMissing {
        /// The version.
        version: i32,
        /// The name.
        name: &'static str,
    },
    /// A migration was applied with SQL that differs from this release's.
    MigrationChanged {
        /// The version.
        version: i32,
    },
    /// A function is missing. `migrate` creates it.
    FunctionMissing {
        /// The name and the argument types.
        signature: &'static str,
    },
    /// A function is from another release. `migrate` replaces it.
    FunctionOutdated {
        /// The name and the argument types.
        signature: &'static str,
    },
    /// A function was changed by hand after a release created it. `migrate` replaces it, unless that release is newer.
    FunctionChanged {
        /// The name and the argument types.
        signature: &'static str,
    },
    /// A test clock is installed: a `TestClock` of the feature `testing`. `migrate` removes it.
    TestClock,
    /// A table, a column or an index is missing.
    ObjectMissing {
        /// The type and the name: `column rate_limits.value`.
        object: String,
    },
    /// The definition of a table, column or index differs from the migrations: a type, a default, the persistence (UNLOGGED).
    ObjectChanged {
        /// The type and the name: `column rate_limits.value`.
        object: String,
        /// The definition in the migrations.
        expected: String,
        /// The definition in the database.
        found: String,
    },
    /// A privilege that no application needs: PUBLIC can execute a function, or a role can write to a table directly.
    ExtraGrant {
        /// The object.
        object: String,
        /// The role, or `PUBLIC`, as an SQL identifier.
        grantee: String,
        /// The privilege: `EXECUTE`, `INSERT`, ..
        privilege: String,
    },
    /// The schema or an object in it is not safe: a foreign owner, a trigger, a rule, or a role that can create objects.
    Untrusted(String),
}

impl Drift {
    /// Returns whether `migrate` repairs this difference.
    pub const fn is_repaired_by_migrate(&self) -> bool {
        matches!(
            self,
            Self::MigrationMissing { .. }
                | Self::FunctionMissing { .. }
                | Self::FunctionOutdated { .. }
                | Self::FunctionChanged { .. }
                | Self::TestClock
        )
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MigrationMissing { version, name } => write!(f, "migration {version} ({name}) is not applied"),
            Self::MigrationChanged { version } => write!(f, "migration {version} was applied with different SQL"),
            Self::FunctionMissing { signature } => write!(f, "the function {signature} is missing"),
            Self::FunctionOutdated { signature } => write!(f, "the function {signature} is from another release"),
            Self::FunctionChanged { signature } => write!(f, "the function {signature} was changed by hand"),
            Self::TestClock => {
                f.write_str("a test clock is installed: rate_limit_clock() does not return the server's time")
            }
            Self::ObjectMissing { object } => write!(f, "the {object} is missing"),
            Self::ObjectChanged { object, expected, found } => {
                write!(f, "the {object} is {found}; expected: {expected}")
            }
            Self::ExtraGrant { object, grantee: role, privilege } => match role.as_str() {
                "PUBLIC" => write!(f, "every role has {privilege} on {object}"),
                _ => write!(f, "the role {role} has {privilege} on {object}"),
            },
            Self::Untrusted(problem) => f.write_str(problem),
        }
    }
}

/// The work of one run.
pub(super) struct Plan {
    pub(super) migrations: Vec<Migration>,
    pub(super) functions: Vec<Function>,
    /// The functions to replace that were changed by hand.
    pub(super) changed: Vec<&'static str>,
    /// The functions to record: those to create or replace, and those that are up to date.
    pub(super) recorded: Vec<Function>,
    /// Whether a test clock is replaced.
    pub(super) test_clock: bool,
}

impl Plan {
    pub(super) fn of(installed: &Installed, schema: &Schema, engine: Engine) -> Self {
        let missing = |migration: &Migration| !installed.has_applied(migration.version);
        let mut plan = Self {
            migrations: Vec::new(),
            functions: Vec::new(),
            changed: Vec::new(),
            recorded: Vec::new(),
            test_clock: false,
        };
        if installed.version() <= SCHEMA_VERSION {
            plan.migrations = migrations(schema).into_iter().filter(missing).collect();
        }
        let a_newer_release = installed.records.values().any(Record::is_newer);
        for function in functions(schema) {
            match State::of(&function, installed, engine) {
                State::Newer | State::NewerChanged => continue,
                State::Current if installed.records.get(function.signature).is_some_and(Record::is_newer) => continue,
                // A newer release may have dropped it.
                State::Missing if a_newer_release => continue,
                State::TestClock => {
                    plan.test_clock = true;
                    plan.functions.push(function.clone());
                }
                State::Missing | State::Outdated => plan.functions.push(function.clone()),
                State::Changed => {
                    plan.changed.push(function.signature);
                    plan.functions.push(function.clone());
                }
                State::Current => {}
            }
            plan.recorded.push(function);
        }
        plan
    }

    pub(super) fn is_empty(&self) -> bool {
        self.migrations.is_empty() && self.functions.is_empty()
    }
}

enum State {
    Current,
    Missing,
    Outdated,
    Changed,
    TestClock,
    Newer,
    NewerChanged,
}

impl State {
    fn of(function: &Function, installed: &Installed, engine: Engine) -> Self {
        let Some(found) = installed.definition("function", function.signature) else { return Self::Missing };
        if found == function.sha256 || (engine.is_distributed() && BY_ENGINE.contains(&function.signature)) {
            return Self::Current;
        }
        let record = installed.records.get(function.signature);
        let is_as_recorded = record.is_none_or(|record| record.sha256.as_deref().is_none_or(|hash| hash == found));
        match (record.is_some_and(Record::is_newer), is_as_recorded) {
            (false, _) if function.signature == CLOCK && found == TEST_CLOCK => Self::TestClock,
            (true, true) => Self::Newer,
            (true, false) => Self::NewerChanged,
            (false, true) => Self::Outdated,
            (false, false) => Self::Changed,
        }
    }
}

/// Compares the installed objects with this release. Objects of a newer release do not count as differences.
pub(super) fn drift(installed: &Installed, schema: &Schema, engine: Engine) -> Vec<Drift> {
    let mut found = Vec::new();
    let is_newer = installed.version() > SCHEMA_VERSION;
    let mut is_older = false;
    for Migration { version, name, sha256, .. } in migrations(schema) {
        match installed.applied.iter().find(|applied| applied.version == version) {
            None if is_newer => {}
            None => {
                is_older = true;
                found.push(Drift::MigrationMissing { version, name });
            }
            Some(applied) if applied.sha256.as_ref().is_some_and(|hash| *hash != sha256) => {
                found.push(Drift::MigrationChanged { version });
            }
            Some(_) => {}
        }
    }
    let a_newer_release = installed.records.values().any(Record::is_newer);
    for function in functions(schema) {
        let signature = function.signature;
        match State::of(&function, installed, engine) {
            State::Current | State::Newer => {}
            // If nothing is migrated, the missing migrations are reported instead.
            State::Missing if a_newer_release || installed.applied.is_empty() => {}
            State::Missing => found.push(Drift::FunctionMissing { signature }),
            State::Outdated => found.push(Drift::FunctionOutdated { signature }),
            State::TestClock => found.push(Drift::TestClock),
            State::Changed | State::NewerChanged => found.push(Drift::FunctionChanged { signature }),
        }
    }
    if !is_newer {
        found.extend(tables(installed, is_older));
    }
    found.extend(grants(installed));
    found.extend(installed.untrusted.iter().cloned().map(Drift::Untrusted));
    found
}

fn tables(installed: &Installed, is_older: bool) -> Vec<Drift> {
    let mut found = Vec::new();
    for line in TABLES.lines() {
        let Some((object, expected)) = line.split_once(": ") else { continue };
        let Some((what, which)) = object.split_once(' ') else { continue };
        match installed.definition(what, which) {
            Some(definition) if definition == expected => {}
            Some(definition) => found.push(Drift::ObjectChanged {
                object: object.to_owned(),
                expected: expected.to_owned(),
                found: definition.to_owned(),
            }),
            // A migration that is not applied yet creates it.
            None if is_older => {}
            None => found.push(Drift::ObjectMissing { object: object.to_owned() }),
        }
    }
    found
}

fn grants(installed: &Installed) -> Vec<Drift> {
    let mut found = Vec::new();
    for (object, grant) in &installed.grants {
        let Some((grantee, privilege)) = grant.rsplit_once(": ") else { continue };
        let is_read = privilege == "SELECT";
        let is_to_public = grantee == "PUBLIC";
        let is_usual = match (object.as_str(), object.ends_with(')')) {
            (HISTORY | OBJECTS, _) => is_read,
            (_, true) => !is_to_public,
            (_, false) => is_read && !is_to_public,
        };
        if !is_usual {
            found.push(Drift::ExtraGrant {
                object: object.clone(),
                grantee: grantee.to_owned(),
                privilege: privilege.to_owned(),
            });
        }
    }
    found
}

/// The name of a foreign relation that has the name of one of the limiter's tables. A table of the limiter can exist without
/// a record if another tool has run the printed SQL. Such a table is adopted, and may lack columns that later migrations add.
pub(super) fn occupied(installed: &Installed) -> Option<String> {
    let definitions = TABLES.lines().filter_map(|line| line.split_once(": "));
    for (object, expected) in definitions {
        let (what, which) = object.split_once(' ')?;
        let table = which.split_once('.').map_or(which, |(table, _)| table);
        let Some(found) = installed.definition("table", table) else { continue };
        let is_first_column = what == "column" && expected.contains(" NOT NULL") && !expected.contains(" DEFAULT ");
        let is_other = what == "table" && found.split(' ').next() != expected.split(' ').next(); // a table or a view
        if is_other || (is_first_column && installed.definition(what, which).is_none()) {
            return Some(table.to_owned());
        }
    }
    None
}
