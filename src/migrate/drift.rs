//! Compares the installed objects with those of this release.

use std::fmt;

use crate::error::Engine;
use crate::migrate::Part;
use crate::migrate::error::with_remedy;
use crate::migrate::functions::{Function, functions};
use crate::migrate::installed::{HISTORY, Installed, Misowned, OBJECTS, Problem, Record};
use crate::migrate::migrations::{Migration, migrations};
use crate::migrate::names;
use crate::migrate::tables::tables;
use crate::sql::{SCHEMA_VERSION, Schema};

/// The bodies of these functions depend on the engine.
const BY_ENGINE: [&str; 2] = ["_is_distributed()", "_rows(text, text)"];

/// The clock, and the hash of the one in `sql/tests/test_clock.sql`. A test compares the hash.
const CLOCK: &str = "_clock()";
const TEST_CLOCK: &str = "1404aebc5b70b73af85efdc1dbb7f1de435a84fbc7e50c5fd8f38c223a9afeb8";

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
        /// The name.
        name: &'static str,
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
    /// A privilege that no application needs: PUBLIC can execute a function, or a role can write to a table directly. `migrate` by
    /// the owner revokes the former.
    ExtraGrant {
        /// The object.
        object: String,
        /// The role, or `PUBLIC`, as an SQL identifier.
        grantee: String,
        /// The privilege: `EXECUTE`, `INSERT`, ..
        privilege: String,
    },
    /// Other roles cannot read the tables of records, as after a restore without privileges. Clients look there whether they can work
    /// with the schema. `migrate` grants it again.
    RecordsHidden,
    /// The objects do not all belong to the role that has migrated, as after a restore by a superuser.
    Misowned {
        /// The objects and their owner.
        problem: String,
        /// The statements that give the objects to their owner. Empty if the role cannot read which role that is.
        statements: Vec<String>,
    },
    /// The schema or an object in it is not safe: a foreign owner, or a role that can create objects.
    Untrusted(String),
    /// A table of the limiter has a trigger or a rule. Its code would run with the rights of the owner: `migrate` rejects it.
    Attached {
        /// The table, and the trigger or the rule.
        problem: String,
        /// The statement that removes it.
        statement: String,
    },
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
                | Self::RecordsHidden
        ) || self.is_open_function()
    }

    /// Whether PUBLIC can execute a function.
    const fn is_open_function(&self) -> bool {
        let Self::ExtraGrant { grantee, privilege, .. } = self else { return false };
        matches!((grantee.as_bytes(), privilege.as_bytes()), (b"PUBLIC", b"EXECUTE"))
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MigrationMissing { version, name } => write!(f, "migration {version} ({name}) is not applied"),
            Self::MigrationChanged { version, name } => {
                write!(f, "migration {version} ({name}) was applied with different SQL")
            }
            Self::FunctionMissing { signature } => write!(f, "the function {signature} is missing"),
            Self::FunctionOutdated { signature } => write!(f, "the function {signature} is from another release"),
            Self::FunctionChanged { signature } => write!(f, "the function {signature} was changed by hand"),
            Self::TestClock => f.write_str("a test clock is installed: _clock() does not return the server's time"),
            Self::ObjectMissing { object } => write!(f, "the {object} is missing"),
            Self::ObjectChanged { object, expected, found } => {
                write!(f, "the {object} is {found}; expected: {expected}")
            }
            Self::ExtraGrant { object, grantee: role, privilege } => match role.as_str() {
                "PUBLIC" => write!(f, "every role has {privilege} on {object}"),
                _ => write!(f, "the role {role} has {privilege} on {object}"),
            },
            Self::RecordsHidden => f.write_str("other roles cannot read the tables migrations and objects"),
            Self::Misowned { problem, statements } => f.write_str(&with_remedy(problem, statements)),
            Self::Untrusted(problem) => f.write_str(problem),
            Self::Attached { problem, statement } => write!(f, "{problem}: {statement}"),
        }
    }
}

/// The work of one run.
pub(super) struct Plan {
    pub(super) parts: &'static [Part],
    pub(super) migrations: Vec<Migration>,
    pub(super) functions: Vec<Function>,
    /// The functions to replace that were changed by hand.
    pub(super) changed: Vec<&'static str>,
    /// The functions to record: those to create or replace, and those that are up to date.
    pub(super) recorded: Vec<Function>,
    /// Whether a test clock is replaced.
    pub(super) test_clock: bool,
    /// Whether other roles are to be able to read the records again.
    pub(super) shows_records: bool,
    /// Whether the current role owns functions of the limiter that PUBLIC can execute.
    pub(super) closes_functions: bool,
}

/// The parts to install or to keep up to date. An installed queue stays up to date without being asked for. If a newer release has
/// migrated the schema, this release adds no part.
fn parts(installed: &Installed, schema: &Schema, without_queue: bool) -> &'static [Part] {
    let is_newer = installed.version() > SCHEMA_VERSION || installed.has_newer_functions();
    let adds_queue = !without_queue && !is_newer;
    if adds_queue || installed.has_queue(schema) { Part::ALL } else { &[Part::Core] }
}

impl Plan {
    pub(super) fn of(installed: &Installed, schema: &Schema, engine: Engine, without_queue: bool) -> Self {
        let mut plan = Self {
            parts: parts(installed, schema, without_queue),
            migrations: Vec::new(),
            functions: Vec::new(),
            changed: Vec::new(),
            recorded: Vec::new(),
            test_clock: false,
            shows_records: hides_records(installed),
            closes_functions: false,
        };
        if installed.version() <= SCHEMA_VERSION {
            plan.migrations = migrations(schema, plan.parts);
            plan.migrations.retain(|migration| installed.applied(migration).is_none());
        }
        let a_newer_release = installed.has_newer_functions();
        for function in functions(schema, plan.parts) {
            match Comparison::of(&function, installed, engine) {
                Comparison::Newer | Comparison::NewerChanged => continue,
                Comparison::Current if installed.records.get(function.signature).is_some_and(Record::is_newer) => {
                    continue;
                }
                // A newer release may have dropped it.
                Comparison::Missing if a_newer_release => continue,
                Comparison::TestClock => {
                    plan.test_clock = true;
                    plan.functions.push(function.clone());
                }
                Comparison::Missing | Comparison::Outdated => plan.functions.push(function.clone()),
                Comparison::Changed => {
                    plan.changed.push(function.signature);
                    plan.functions.push(function.clone());
                }
                Comparison::Current => {}
            }
            plan.recorded.push(function);
        }
        let current = installed.current().map(|(current, _)| current);
        plan.closes_functions = plan.recorded.iter().any(|function| {
            let is_open =
                |(object, grant): &(String, String)| object == function.signature && grant == "PUBLIC: EXECUTE";
            installed.definition("owner", function.signature) == current && installed.grants.iter().any(is_open)
        });
        plan
    }

    pub(super) fn is_empty(&self) -> bool {
        self.migrations.is_empty() && self.functions.is_empty() && !self.shows_records && !self.closes_functions
    }
}

fn hides_records(installed: &Installed) -> bool {
    let is_shown = |table| installed.grants.iter().any(|(object, grant)| object == table && grant == "PUBLIC: SELECT");
    !installed.applied.is_empty() && ![HISTORY, OBJECTS].into_iter().all(is_shown)
}

enum Comparison {
    Current,
    Missing,
    Outdated,
    Changed,
    TestClock,
    Newer,
    NewerChanged,
}

impl Comparison {
    fn of(function: &Function, installed: &Installed, engine: Engine) -> Self {
        let Some(found) = installed.definition("function", function.signature) else { return Self::Missing };
        if found == function.sha256 || (engine.is_distributed() && BY_ENGINE.contains(&function.signature)) {
            return Self::Current;
        }
        let record = installed.records.get(function.signature);
        let is_as_recorded = record.is_some_and(|record| record.sha256.as_deref() == Some(found));
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
pub(super) fn drift(installed: &Installed, schema: &Schema, engine: Engine, without_queue: bool) -> Vec<Drift> {
    let mut found = Vec::new();
    let misowned = || {
        let misowned = installed.misowned.clone();
        misowned.map(|Misowned { problem, statements }| Drift::Misowned { problem, statements })
    };
    if let (false, Some(drift)) = (installed.is_readable(), misowned()) {
        return vec![drift]; // Nothing else is known.
    }
    let parts = parts(installed, schema, without_queue);
    let is_newer = installed.version() > SCHEMA_VERSION;
    let mut older = Vec::new();
    for migration in migrations(schema, parts) {
        let Migration { version, name, .. } = migration;
        match installed.applied(&migration) {
            None if is_newer => {}
            None => {
                older.push(migration.part);
                found.push(Drift::MigrationMissing { version, name });
            }
            Some(applied) if applied.sha256 != migration.sha256 => {
                found.push(Drift::MigrationChanged { version, name });
            }
            Some(_) => {}
        }
    }
    let is_absent = |part: &Part| match part {
        Part::Core => installed.applied.is_empty(),
        Part::Queue => !installed.has_queue(schema),
    };
    let absent: Vec<Part> = parts.iter().copied().filter(is_absent).collect();
    let a_newer_release = installed.has_newer_functions();
    for function in functions(schema, parts) {
        let signature = function.signature;
        match Comparison::of(&function, installed, engine) {
            Comparison::Current | Comparison::Newer => {}
            Comparison::Missing if a_newer_release => {}
            // If a part is not installed, its missing migrations are reported instead.
            Comparison::Missing | Comparison::Outdated if absent.contains(&function.part) => {}
            Comparison::Missing => found.push(Drift::FunctionMissing { signature }),
            Comparison::Outdated => found.push(Drift::FunctionOutdated { signature }),
            Comparison::TestClock => found.push(Drift::TestClock),
            Comparison::Changed | Comparison::NewerChanged => found.push(Drift::FunctionChanged { signature }),
        }
    }
    if !is_newer {
        found.extend(changed_tables(installed, parts, &older));
    }
    found.extend(grants(installed, parts));
    found.extend(hides_records(installed).then_some(Drift::RecordsHidden));
    found.extend(misowned());
    let is_said = |problem: &&Problem| problem.is_of_owner && installed.misowned.is_some();
    let problems = installed.untrusted.iter().filter(|problem| !is_said(problem));
    found.extend(problems.cloned().map(|Problem { text, statement, .. }| match statement {
        Some(statement) => Drift::Attached { problem: text, statement: format!("{statement};") },
        None => Drift::Untrusted(text),
    }));
    found
}

/// `older` are the parts with migrations that are not applied yet.
fn changed_tables(installed: &Installed, parts: &[Part], older: &[Part]) -> Vec<Drift> {
    let mut found = Vec::new();
    for line in tables(parts) {
        let object = || format!("{} {}", line.what, line.which);
        match installed.definition(line.what, line.which) {
            Some(definition) if definition == line.definition => {}
            Some(definition) => found.push(Drift::ObjectChanged {
                object: object(),
                expected: line.definition.to_owned(),
                found: definition.to_owned(),
            }),
            // A migration that is not applied yet creates it.
            None if older.contains(&line.part) => {}
            None => found.push(Drift::ObjectMissing { object: object() }),
        }
    }
    found
}

fn grants(installed: &Installed, parts: &[Part]) -> Vec<Drift> {
    let mut found = Vec::new();
    let names = names::of(parts);
    for (object, grant) in &installed.grants {
        let is_named = object.split(['(', '.']).next().is_some_and(|name| names.contains(name));
        let is_foreign =
            installed.records.get(object).is_some_and(|record| object.ends_with(')') && record.sha256.is_none());
        if !is_named || is_foreign {
            continue; // An object of the application with such a name, or with one of a part that is not installed.
        }
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

/// The name of a foreign relation that has the name of one of the limiter's tables, or of a foreign function that has the signature
/// of one for people, such as `reset(text)`. A table of the limiter can exist without a record if another tool has run a part of the
/// printed SQL. Such a table is adopted.
pub(super) fn occupied(installed: &Installed, plan: &Plan) -> Option<String> {
    // After a restore of the definitions without the rows, the records are empty, and the functions can be of another release.
    let is_unrecorded = installed.applied.is_empty() && !installed.is_plain_table(OBJECTS);
    let is_new = |signature: &str| is_unrecorded && !installed.records.contains_key(signature);
    let mut in_the_way = plan.changed.iter().filter(|signature| !signature.starts_with('_') && is_new(signature));
    if let Some(signature) = in_the_way.next() {
        return Some((*signature).to_owned());
    }
    for line in tables(plan.parts) {
        let Some(found) = installed.definition("table", line.table()) else { continue };
        let is_other = line.what == "table" && found.split(' ').next() != line.definition.split(' ').next(); // a table or a view
        if is_other || (line.is_required() && installed.definition(line.what, line.which).is_none()) {
            return Some(line.table().to_owned());
        }
    }
    None
}
