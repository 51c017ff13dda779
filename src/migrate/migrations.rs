use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::sql::Schema;

/// A migration of the tables, as SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The version: 1, 2, 3, ..
    pub version: i32,
    /// The name.
    pub name: &'static str,
    /// Whether releases that do not know this version cannot use the schema.
    pub breaking: bool,
    /// The SHA-256 of the SQL for the schema `public`, in hexadecimal.
    pub sha256: String,
    /// The SQL for the requested schema. It has several statements. Run them in one transaction if the engine supports it.
    pub sql: String,
}

struct Source {
    name: &'static str,
    breaking: bool,
    sql: &'static str,
}

/// In order, from version 1. The files never change: a test checks their SHA-256.
const ALL: [Source; 6] = [
    Source { name: "rate_limits", breaking: false, sql: include_str!("../../migrations/0001_rate_limits.sql") },
    Source { name: "queue", breaking: false, sql: include_str!("../../migrations/0002_queue.sql") },
    Source { name: "answers", breaking: false, sql: include_str!("../../migrations/0003_answers.sql") },
    Source { name: "queue_columns", breaking: false, sql: include_str!("../../migrations/0004_queue_columns.sql") },
    Source { name: "queue_slots", breaking: false, sql: include_str!("../../migrations/0005_queue_slots.sql") },
    Source { name: "views", breaking: false, sql: include_str!("../../migrations/0006_views.sql") },
];

/// Returns the migrations of the tables for this schema, oldest first. They do not create the schema itself. The functions are
/// separate ([`functions`](super::functions)). [`script`](super::script) returns everything as one script.
///
/// ```
/// for migration in pg_limiter::migrate::migrations(&pg_limiter::Schema::default()) {
///     println!("-- {:04}_{}\n{}", migration.version, migration.name, migration.sql);
/// }
/// ```
pub fn migrations(schema: &Schema) -> Vec<Migration> {
    let of = |(version, source): (i32, &Source)| Migration {
        version,
        name: source.name,
        breaking: source.breaking,
        sha256: sha256(source.sql),
        sql: schema.render(source.sql),
    };
    (1..).zip(&ALL).map(of).collect()
}

fn sha256(text: &str) -> String {
    let mut digits = String::new();
    for byte in Sha256::digest(text.as_bytes()) {
        let _ = write!(digits, "{byte:02x}"); // Writing to a String cannot fail.
    }
    digits
}

/// Returns the SQL that removes all objects of the limiter, with all balances.
pub fn uninstall(schema: &Schema) -> String {
    schema.render(include_str!("uninstall.sql"))
}
