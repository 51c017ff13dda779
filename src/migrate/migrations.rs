use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::sql::Schema;

/// One step of the tables' history, as SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// 1, 2, 3, ..
    pub version: i32,
    /// What it is about.
    pub name: &'static str,
    /// Releases that do not know this version cannot use the schema.
    pub breaking: bool,
    /// The SHA-256 of the SQL for the schema `public`, in hexadecimal digits.
    pub sha256: String,
    /// The SQL for the schema asked for: several statements, to be run in one transaction where the engine can.
    pub sql: String,
}

struct Source {
    name: &'static str,
    breaking: bool,
    sql: &'static str,
}

/// In their order, from version 1 on. The files never change: a test holds them to their SHA-256.
const ALL: [Source; 4] = [
    Source { name: "rate_limits", breaking: false, sql: include_str!("../../migrations/0001_rate_limits.sql") },
    Source { name: "queue", breaking: false, sql: include_str!("../../migrations/0002_queue.sql") },
    Source { name: "answers", breaking: false, sql: include_str!("../../migrations/0003_answers.sql") },
    Source { name: "queue_columns", breaking: false, sql: include_str!("../../migrations/0004_queue_columns.sql") },
];

/// The migrations of the tables, oldest first, for this schema. They create tables in it, and do not create the schema itself.
/// The functions are apart ([`functions`](super::functions)), and [`script`](super::script) is all of it to print.
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
        let _ = write!(digits, "{byte:02x}"); // A String takes everything.
    }
    digits
}

/// The SQL that removes everything again, with all balances.
pub fn uninstall(schema: &Schema) -> String {
    schema.render(include_str!("uninstall.sql"))
}
