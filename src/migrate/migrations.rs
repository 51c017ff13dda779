use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::migrate::Part;
use crate::sql::Schema;

/// A migration of the tables, as SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The version: 1, 2, 3, .. The migrations of several parts can share one.
    pub version: i32,
    /// The part of the installation that the migration changes.
    pub part: Part,
    /// The name. No other migration has it.
    pub name: &'static str,
    /// Whether releases that do not know this version cannot use the schema.
    pub breaking: bool,
    /// The SHA-256 of the SQL for the schema `rate_limit`, in hexadecimal.
    pub sha256: String,
    /// The SQL for the requested schema. It has several statements. Run them in one transaction if the engine supports it.
    pub sql: String,
}

struct Source {
    version: i32,
    part: Part,
    name: &'static str,
    breaking: bool,
    sql: &'static str,
}

/// In order. The files of a release never change: a test checks their SHA-256. A version has one migration or several.
const ALL: [Source; 2] = [
    Source {
        version: 1,
        part: Part::Core,
        name: "rate_limits",
        breaking: false,
        sql: include_str!("../../migrations/0001_rate_limits.sql"),
    },
    Source {
        version: 1,
        part: Part::Queue,
        name: "queue",
        breaking: false,
        sql: include_str!("../../migrations/0001_queue.sql"),
    },
];

/// Returns the migrations of the tables for this schema and these parts of an installation, oldest first. They do not create the
/// schema itself. The functions are separate ([`functions`](super::functions())). [`script`](super::script()) returns everything as
/// one script.
///
/// ```
/// use pg_limiter::migrate::{Part, migrations};
/// for migration in migrations(&pg_limiter::Schema::default(), Part::ALL) {
///     println!("-- {:04}_{}\n{}", migration.version, migration.name, migration.sql);
/// }
/// ```
pub fn migrations(schema: &Schema, parts: &[Part]) -> Vec<Migration> {
    let of = |source: &Source| Migration {
        version: source.version,
        part: source.part,
        name: source.name,
        breaking: source.breaking,
        sha256: sha256(source.sql),
        sql: schema.render(source.sql),
    };
    ALL.iter().filter(|source| parts.contains(&source.part)).map(of).collect()
}

fn sha256(text: &str) -> String {
    let mut digits = String::new();
    for byte in Sha256::digest(text.as_bytes()) {
        let _ = write!(digits, "{byte:02x}"); // Writing to a String cannot fail.
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::ALL;
    use crate::sql::SCHEMA_VERSION;

    #[test]
    fn the_schema_version_is_that_of_the_last_migration() {
        assert!(ALL.is_sorted_by_key(|source| source.version));
        assert_eq!(ALL.last().map(|source| source.version), Some(SCHEMA_VERSION));
    }
}
