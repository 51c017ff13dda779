//! The SQL for your own migration tool.

use crate::migrate::Part;
use crate::migrate::functions::{Function, functions};
use crate::migrate::migrations::{Migration, migrations};
use crate::migrate::names::install;
use crate::migrate::roles::OWNER;
use crate::migrate::runner::SETTINGS;
use crate::migrate::tables::{Line, tables};
use crate::sql::Schema;

pub(super) const CREATE_RECORDS: &str = include_str!("../../sql/install/history.sql");
pub(super) const CLAIM: &str = include_str!("../../sql/install/claim.sql");
pub(super) const CLOSE: &str = include_str!("../../sql/install/close.sql");
pub(super) const CREATE_SCHEMA: &str = include_str!("../../sql/install/schema.sql");
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
    let mut blocks = vec![settings(true)];
    if from <= 1 && schema.name() != "public" {
        blocks.push(schema.render(CREATE_SCHEMA));
    }
    blocks.push(become_owner(schema));
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
    blocks.push(schema.render(CLOSE));
    blocks.push(settings(false));
    blocks.iter().map(|block| format!("{}\n", block.trim_end())).collect::<Vec<_>>().join("\n")
}

/// SQL that sets the parameters of a migration, or sets them back. A statement that waits longer for a lock fails: then run the
/// script again.
fn settings(begins: bool) -> String {
    let role = std::iter::once(("role", "")).filter(|_| !begins);
    let saved =
        |name: &str| format!("pg_catalog.set_config('pg_limiter.{name}', pg_catalog.current_setting('{name}'), false)");
    let changes = SETTINGS.iter().copied().chain(role).map(|(name, value)| match begins {
        true => format!("{},\n    pg_catalog.set_config('{name}', '{value}', false)", saved(name)),
        false => format!("pg_catalog.set_config('{name}', pg_catalog.current_setting('pg_limiter.{name}'), false)"),
    });
    let changes: Vec<String> = changes.chain(begins.then(|| saved("role"))).collect();
    format!("DO $settings$\nBEGIN\n  PERFORM\n    {};\nEND\n$settings$;", changes.join(",\n    "))
}

/// SQL that becomes the role that owns the objects, if the role that runs the script is a member of it.
fn become_owner(schema: &Schema) -> String {
    format!(
        "DO $owner$\nBEGIN\n  PERFORM pg_catalog.set_config('role', o.owner, false)\n  FROM (\n{}  ) AS o;\nEND\n$owner$;",
        indented(&schema.render(OWNER))
    )
}

/// SQL that raises an error if the schema is not safe, or if a table or a view of the application has the place of the limiter's.
fn refuse(schema: &Schema, parts: &[Part]) -> String {
    let required = tables(parts).filter(Line::is_required).map(|line| line.which);
    let views = tables(parts).filter(|line| line.what == "table" && line.definition == "view").map(|line| line.which);
    let missing = schema.render(&format!(
        "SELECT DISTINCT pg_catalog.format('the relation %I is not the rate limiter''s', c.relname) AS problem, \
           false, NULL AS statement\n\
         FROM pg_catalog.unnest('{{{}}}'::text[]) AS u (which)\n\
         JOIN pg_catalog.pg_class AS c ON c.relname::text = pg_catalog.split_part(u.which, '.', 1)\n  \
           AND c.relnamespace = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))\n\
         WHERE CASE\n    WHEN pg_catalog.strpos(u.which, '.') = 0 THEN c.relkind <> 'v'\n    ELSE NOT EXISTS (\n      \
           SELECT\n      FROM pg_catalog.pg_attribute AS a\n      \
           WHERE a.attrelid = c.oid AND a.attname::text = pg_catalog.split_part(u.which, '.', 2)\n    )\n  END\n",
        required.chain(views).collect::<Vec<_>>().join(", ")
    ));
    format!(
        "DO $trust$\nDECLARE\n  problems text;\nBEGIN\n  \
         SELECT pg_catalog.string_agg(pg_catalog.concat_ws(': ', u.problem, u.statement), '; ' ORDER BY u.problem)\n  \
         INTO problems\n  FROM (\n{}  ) AS u;\n  IF problems IS NOT NULL THEN\n    RAISE EXCEPTION 'the schema is not safe: %', \
         problems\n      USING ERRCODE = 'insufficient_privilege', HINT = '{WAYS_OUT}';\n  END IF;\nEND\n$trust$;",
        indented(&format!("{missing}UNION ALL (\n{})\n", indented(&install(schema, UNTRUSTED, parts))))
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
