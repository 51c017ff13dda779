//! Checks whether the limiter's tables and functions exist and match this release, and whether a publication locks the tables.

use std::collections::BTreeSet;

use sqlx::AssertSqlSafe;

use crate::operate::doctor::session::{BOUNDS, PLAIN};
use crate::operate::doctor::{Finding, Findings, Session};
use pg_limiter::Schema;
use pg_limiter::migrate::{Drift, MigrateError, Migrator, Part, functions, migrations};

const HISTORY: &str = "migrations";
pub(super) const JOBS: &str = "jobs";

/// The names of the limiter's tables, as SQL strings.
pub(crate) const TABLES: &str =
    "'rate_limits', 'answers', 'definitions', 'jobs', 'groups', 'workers', 'queues', 'turns', 'migrations', 'objects'";

pub(super) const VIEWS: &str = "'buckets', 'limits', 'queue_groups', 'queue_jobs'";

pub(super) fn function_names(schema: &Schema) -> String {
    let functions = functions(schema, Part::ALL);
    let names: BTreeSet<&str> = functions.iter().filter_map(|function| function.signature.split('(').next()).collect();
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

pub(super) async fn tables(session: &mut Session) -> sqlx::Result<BTreeSet<String>> {
    let sql = format!(
        "SELECT c.relname::text FROM {} WHERE c.relkind IN ('r', 'p') AND c.relname IN ({TABLES})",
        session.relations
    );
    Ok(session.rows::<(String,)>(&sql).await?.into_iter().map(|(name,)| name).collect())
}

fn migrate(schema: &Schema) -> String {
    if *schema == Schema::default() {
        return "Run pg-limiter migrate".to_owned();
    }
    format!("Run pg-limiter migrate --schema '{}'", schema.name().replace('\'', "'\\''"))
}

pub(super) async fn version(session: &mut Session, tables: &BTreeSet<String>) -> sqlx::Result<Finding> {
    let schema = session.schema.clone();
    let (migrate, found) = (migrate(&schema), format!("the schema \"{schema}\""));
    if !tables.contains("rate_limits") {
        let what = "does not contain the tables of the limiter, so they were not checked";
        return Ok(Finding::problem(format!("{found} {what}"))
            .advise(format!("{migrate}, or select another schema with --schema.")));
    }
    if !tables.contains(HISTORY) {
        let how = "was migrated with printed SQL, not by pg-limiter: its version is unknown";
        return Ok(Finding::note(format!("{found} {how}")));
    }
    let sql = format!("SELECT coalesce(max(version), 0) FROM {}", session.table(HISTORY));
    let (version,): (i32,) = session.row(&sql).await?;
    let found = format!("{found} is at version {version}");
    let newest = migrations(&schema, Part::ALL).last().map_or(0, |migration| migration.version);
    Ok(if version < newest {
        Finding::warning(format!("{found}, the newest is {newest}")).advise(format!("{migrate}."))
    } else if version > newest {
        Finding::note(format!("{found}, but this release knows only versions up to {newest}"))
            .advise("A newer release has migrated it. Update pg-limiter.")
    } else {
        let queue = if tables.contains(JOBS) { "" } else { "; the queue is not installed" };
        Finding::ok(format!("{found}, the newest{queue}"))
    })
}

/// Compares functions, tables, owners and privileges with this release. A queue that is not installed is no finding.
pub(super) async fn drift(session: &mut Session, tables: &BTreeSet<String>) -> sqlx::Result<Findings> {
    let schema = session.schema.clone();
    let begin = AssertSqlSafe(format!("{PLAIN}; {BOUNDS}"));
    sqlx::raw_sql(begin).execute(&mut session.connection).await?;
    let checked = Migrator::new(schema.clone()).without_queue(true).check_on(&mut session.connection).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut session.connection).await?;
    let may_use = format!("SELECT has_schema_privilege({}, 'USAGE')", session.schema_literal);
    let drift = match checked {
        // Without USAGE on the schema, only the owners can be compared, and the role need not own anything.
        Ok(drift)
            if matches!(drift[..], [Drift::Misowned { .. }]) && session.row::<(bool,)>(&may_use).await? == (false,) =>
        {
            let finding = Finding::note("not checked: the role may not use the schema (SQLSTATE 42501)")
                .advise(migrate(&schema) + " --check: it compares the owners.");
            return Ok(vec![("functions", finding)]);
        }
        Ok(drift) => drift,
        Err(
            MigrateError::Database { source, .. }
            | MigrateError::Privilege { source, .. }
            | MigrateError::Busy { source, .. }
            | MigrateError::ReadOnly { source, .. },
        ) => return Err(source),
        Err(other) => return Ok(vec![("functions", Finding::problem(other.to_string()))]),
    };
    let parts = if tables.contains(JOBS) { Part::ALL } else { &[Part::Core] };
    Ok(judge(session, &drift, functions(&schema, parts).len()))
}

/// `shipped` is the number of functions that belong to what is installed.
fn judge(session: &Session, drift: &[Drift], shipped: usize) -> Findings {
    let finding = |is_of_it: fn(&Drift) -> bool, advice: String, ok: String| {
        let problems: Vec<String> = drift.iter().filter(|one| is_of_it(one)).map(ToString::to_string).collect();
        if problems.is_empty() { Finding::ok(ok) } else { Finding::problem(problems.join("; ")).advise(advice) }
    };
    let migrate = migrate(&session.schema);
    let functions = finding(
        |one| one.is_repaired_by_migrate() && !matches!(one, Drift::MigrationMissing { .. }),
        format!("{migrate}: it creates or replaces them, and keeps their grants."),
        format!("all {shipped} functions are those of this release"),
    );
    let tables = finding(
        |one| matches!(one, Drift::ObjectMissing { .. } | Drift::ObjectChanged { .. } | Drift::MigrationChanged { .. }),
        "Restore them by hand (ALTER TABLE .. SET LOGGED, DISABLE ROW LEVEL SECURITY, ALTER COLUMN .. TYPE): migrate does not \
         change existing tables.".to_owned(),
        "all tables, columns and indexes match the migrations".to_owned(),
    );
    let owners = finding(
        |one| matches!(one, Drift::Untrusted(_) | Drift::Misowned { .. }),
        format!(
            "{migrate} --check: it prints the statements that give objects to their owner. Revoke CREATE on the schema from \
             other roles."
        ),
        "all objects have one owner, and no other role can create objects in the schema".to_owned(),
    );
    let privileges = privileges(session, drift);
    vec![("functions", functions), ("tables", tables), ("owners", owners), ("privileges", privileges)]
}

fn privileges(session: &Session, drift: &[Drift]) -> Finding {
    let extra = drift.iter().filter_map(|one| {
        let Drift::ExtraGrant { object, grantee, privilege } = one else { return None };
        let revoke = match object.split_once('.') {
            // Row types of the limiter are named without their schema: only functions with such arguments are not overloaded.
            _ if object.starts_with('_') && object.ends_with(')') => {
                format!("ON FUNCTION {}", session.table(object.split('(').next().unwrap_or_default()))
            }
            _ if object.ends_with(')') => format!("ON FUNCTION {}", session.table(object)),
            Some((table, column)) => format!("({column}) ON {}", session.table(table)),
            None => format!("ON {}", session.table(object)),
        };
        Some(Finding::warning(one.to_string()).advise(format!("REVOKE {privilege} {revoke} FROM {grantee};")))
    });
    let none = || Finding::ok("no role may write to the tables by hand, and PUBLIC may call no function");
    extra.reduce(Finding::and).unwrap_or_else(none)
}

/// Publications with which no row of a table can be changed: a column list without a column of the primary key, or a row filter on
/// another column. Returns `None` if there is none.
pub(super) async fn publications(session: &mut Session) -> sqlx::Result<Option<Finding>> {
    // As JSON, because older servers lack these columns. A filter depends on the columns that it uses.
    let sql = format!(
        "SELECT p.pubname::text AS publication, c.relname::text AS table \
         FROM pg_publication_rel AS r \
         JOIN pg_publication AS p ON p.oid = r.prpubid AND (p.pubupdate OR p.pubdelete) \
         JOIN ({}) ON c.oid = r.prrelid \
         JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisprimary \
         CROSS JOIN LATERAL to_jsonb(r) AS j \
         WHERE c.relname IN ({TABLES}) \
           AND CASE \
             WHEN j ->> 'prattrs' IS NOT NULL \
             THEN NOT ARRAY(SELECT a::smallint FROM jsonb_array_elements_text(j -> 'prattrs') AS a) @> i.indkey::smallint[] \
             ELSE j ->> 'prqual' IS NOT NULL AND EXISTS ( \
               SELECT FROM pg_depend AS d \
               WHERE d.classid = 'pg_publication_rel'::regclass AND d.objid = r.oid AND d.refobjid = c.oid \
                 AND d.refobjsubid > 0 AND d.refobjsubid <> ALL (i.indkey::smallint[])) \
           END \
         ORDER BY 1, 2",
        session.relations
    );
    let rows: Vec<(String, String)> = session.rows(&sql).await?;
    let findings = rows.iter().map(|(publication, table)| {
        let table = session.table(table);
        Finding::problem(format!(
            "with the publication \"{publication}\", no row of {table} can be changed: calls fail with SQLSTATE 42P10"
        ))
        .advise("Its column list lacks a column of the primary key, or its row filter uses another column. Leave the table out:")
        .advise(format!("ALTER PUBLICATION \"{}\" DROP TABLE {table};", publication.replace('"', "\"\"")))
    });
    Ok(findings.reduce(Finding::and))
}
