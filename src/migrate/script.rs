//! The SQL for your own migration tool.

use crate::migrate::Part;
use crate::migrate::functions::{Function, functions};
use crate::migrate::migrations::{Migration, migrations};
use crate::migrate::names::install;
use crate::sql::Schema;

pub(super) const CREATE_RECORDS: &str = include_str!("../../sql/install/history.sql");
pub(super) const CLAIM: &str = include_str!("../../sql/install/claim.sql");
const UNTRUSTED: &str = include_str!("../../sql/install/untrusted.sql");

/// The two remedies for a schema that is not safe.
pub(super) const WAYS_OUT: &str = "let the other roles move their objects to another schema, and revoke CREATE on this one from \
                                   them, or migrate into a schema of its own, in which no other role can create objects";

/// The SQL that [`script()`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contents {
    /// The tables and the functions.
    All,
    /// The tables from this version on, and the functions. For a schema that already has the earlier versions.
    From(i32),
    /// The functions only.
    Functions,
}

/// Returns the SQL that [`migrate`](super::migrate()) would run for these parts of an installation, for your own migration tool. It
/// includes the records of what was applied, so that a later [`migrate`](super::migrate()) finds nothing to do. It is safe to
/// repeat. Run it in one transaction if the engine supports it.
///
/// ```
/// use pg_limiter::Schema;
/// use pg_limiter::migrate::{Contents, Part, script};
/// println!("{}", script(&Schema::default(), Contents::All, Part::ALL));
/// ```
pub fn script(schema: &Schema, contents: Contents, parts: &[Part]) -> String {
    let from = match contents {
        Contents::All => 1,
        Contents::From(version) => version,
        Contents::Functions => i32::MAX,
    };
    let mut blocks = vec![
        "-- A statement that waits longer for a lock fails. Then run the script again.\nSET lock_timeout = '1s';\n\
         -- Functions call each other, so their bodies are not checked before all of them exist.\n\
         SET check_function_bodies = off;"
            .to_owned(),
    ];
    if from <= 1 && schema.name() != "public" {
        let quoted = schema.quoted();
        // CREATE SCHEMA IF NOT EXISTS requires the privilege even if the schema exists.
        blocks.push(format!(
            "DO $schema$\nBEGIN\n  IF pg_catalog.to_regnamespace($name${quoted}$name$) IS NULL THEN\n    CREATE SCHEMA {quoted};\n  \
             END IF;\nEND\n$schema$;"
        ));
    }
    blocks.push(refuse(schema, parts));
    blocks.push(install(schema, CREATE_RECORDS, parts));
    for migration in migrations(schema, parts).iter().filter(|migration| migration.version >= from) {
        blocks.push(format!("-- {:04}_{}\n{}", migration.version, migration.name, migration.sql));
        blocks.push(format!("{};", record_migration(schema, migration)));
    }
    let functions = functions(schema, parts);
    blocks.extend(functions.iter().map(|function| function.sql.clone()));
    blocks.push(install(schema, CLAIM, parts));
    blocks.push(format!("{};", record_functions(schema, &functions)));
    blocks.push("RESET check_function_bodies;\nRESET lock_timeout;".to_owned());
    blocks.iter().map(|block| format!("{}\n", block.trim_end())).collect::<Vec<_>>().join("\n")
}

/// SQL that raises an error if the schema is not safe.
fn refuse(schema: &Schema, parts: &[Part]) -> String {
    format!(
        "DO $trust$\nDECLARE\n  problems text;\nBEGIN\n  SELECT pg_catalog.string_agg(u.problem, '; ' ORDER BY u.problem)\n  \
         INTO problems\n  FROM (\n{}  ) AS u;\n  IF problems IS NOT NULL THEN\n    RAISE EXCEPTION 'the schema is not safe: %', \
         problems\n      USING ERRCODE = 'insufficient_privilege', HINT = '{WAYS_OUT}';\n  END IF;\nEND\n$trust$;",
        indented(&install(schema, UNTRUSTED, parts))
    )
}

fn indented(sql: &str) -> String {
    sql.lines().map(|line| format!("    {line}\n")).collect()
}

/// SQL that inserts the row of a migration unless it exists.
pub(super) fn record_migration(schema: &Schema, migration: &Migration) -> String {
    let Migration { version, name, breaking, sha256, .. } = migration;
    format!(
        "INSERT INTO {}.migrations (version, name, sha256, crate_version, breaking)\n\
         VALUES ({version}, '{name}', '{sha256}', '{}', {breaking})\nON CONFLICT (version, name) DO NOTHING",
        schema.quoted(),
        env!("CARGO_PKG_VERSION")
    )
}

/// SQL that records the hashes of functions that were just created or replaced.
pub(super) fn record_functions(schema: &Schema, functions: &[Function]) -> String {
    let row = |function: &Function| {
        format!("  ('{}', '{}', '{}')", function.signature, function.sha256, env!("CARGO_PKG_VERSION"))
    };
    let rows: Vec<String> = functions.iter().map(row).collect();
    format!(
        "INSERT INTO {}.objects AS o (object, sha256, crate_version)\nVALUES\n{}\n\
         ON CONFLICT (object) DO UPDATE\n\
         SET sha256 = excluded.sha256, crate_version = excluded.crate_version, recorded_at = pg_catalog.now()\n\
         WHERE (o.sha256, o.crate_version) IS DISTINCT FROM (excluded.sha256, excluded.crate_version)",
        schema.quoted(),
        rows.join(",\n")
    )
}
