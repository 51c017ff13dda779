//! Checks whether the limiter's tables and functions exist, are up to date, and match this release.

use std::collections::BTreeSet;

use crate::doctor::report::Finding;
use crate::doctor::session::Session;
use pg_limiter::Schema;
use pg_limiter::migrate::{Drift, MigrateError, Migrator, Part, functions, migrations};

const HISTORY: &str = "migrations";
pub(super) const JOBS: &str = "jobs";

/// The names of the limiter's tables, as SQL strings.
pub(crate) const TABLES: &str =
    "'rate_limits', 'answers', 'definitions', 'jobs', 'groups', 'workers', 'migrations', 'objects'";

/// The names of the limiter's views, as SQL strings.
pub(super) const VIEWS: &str = "'buckets', 'limits', 'queue_groups', 'queue_jobs'";

/// The names of the limiter's functions, as SQL strings.
pub(super) fn function_names(schema: &Schema) -> String {
    let functions = functions(schema, Part::ALL);
    let names: BTreeSet<&str> = functions.iter().filter_map(|function| function.signature.split('(').next()).collect();
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

/// The names of the limiter's tables in the schema.
pub(super) async fn tables(session: &mut Session) -> Result<BTreeSet<String>, sqlx::Error> {
    let sql = format!(
        "SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relkind IN ('r', 'p') AND c.relname IN ({TABLES})",
        session.schema_literal()
    );
    Ok(session.rows::<(String,)>(&sql).await?.into_iter().map(|(name,)| name).collect())
}

fn migrate(schema: &Schema) -> String {
    if *schema == Schema::default() {
        return "Run pg-limiter migrate".to_owned();
    }
    format!("Run pg-limiter migrate --schema '{}'", schema.name().replace('\'', "'\\''"))
}

pub(super) async fn version(session: &mut Session, tables: &BTreeSet<String>) -> Result<Finding, sqlx::Error> {
    let schema = session.schema.clone();
    let migrate = migrate(&schema);
    if !tables.contains("rate_limits") {
        let found =
            format!("the schema \"{schema}\" does not contain the tables of the limiter, so they were not checked");
        return Ok(Finding::problem(found).advise(format!("{migrate}, or select another schema with --schema.")));
    }
    if !tables.contains(HISTORY) {
        let found =
            format!("the schema \"{schema}\" was migrated with printed SQL, not by pg-limiter: its version is unknown");
        return Ok(Finding::note(found));
    }
    let sql = format!("SELECT coalesce(max(version), 0) FROM {}", session.table(HISTORY));
    let (version,): (i32,) = session.row(&sql).await?;
    let found = format!("the schema \"{schema}\" is at version {version}");
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

/// Compares the database with this release. Returns the findings on functions, tables, owners and privileges. A queue that is not
/// installed is no finding.
pub(super) async fn drift(
    session: &mut Session,
    tables: &BTreeSet<String>,
) -> Result<Vec<(&'static str, Finding)>, sqlx::Error> {
    let schema = session.schema.clone();
    let begin = "BEGIN READ ONLY; SET LOCAL statement_timeout = '10s'; SET LOCAL search_path = pg_catalog, pg_temp";
    sqlx::raw_sql(begin).execute(&mut session.connection).await?;
    let checked = Migrator::new(schema.clone()).without_queue(true).check_on(&mut session.connection).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut session.connection).await?;
    let drift = match checked {
        // Without USAGE on the schema, only the owners can be compared, and the role need not own anything.
        Ok(drift) if matches!(drift[..], [Drift::Misowned { .. }]) && !may_use(session).await? => {
            let found = "not checked: the role may not use the schema (SQLSTATE 42501)";
            return Ok(vec![(
                "functions",
                Finding::note(found).advise(migrate(&schema) + " --check: it compares the owners."),
            )]);
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

async fn may_use(session: &mut Session) -> Result<bool, sqlx::Error> {
    let sql = format!("SELECT has_schema_privilege({}, 'USAGE')", session.schema_literal());
    session.row(&sql).await.map(|(may,)| may)
}

/// `shipped` is the number of functions that belong to what is installed.
fn judge(session: &Session, drift: &[Drift], shipped: usize) -> Vec<(&'static str, Finding)> {
    let list = |wanted: fn(&Drift) -> bool| -> Vec<String> {
        drift.iter().filter(|one| wanted(one)).map(ToString::to_string).collect()
    };
    let finding = |check, problems: Vec<String>, advice: String, ok: String| match &problems[..] {
        [] => (check, Finding::ok(ok)),
        problems => (check, Finding::problem(problems.join("; ")).advise(advice)),
    };
    let of_functions = list(|one| one.is_repaired_by_migrate() && !matches!(one, Drift::MigrationMissing { .. }));
    let of_tables = list(|one| {
        matches!(one, Drift::ObjectMissing { .. } | Drift::ObjectChanged { .. } | Drift::MigrationChanged { .. })
    });
    let migrate = migrate(&session.schema);
    let of_owners = list(|one| matches!(one, Drift::Untrusted(_) | Drift::Misowned { .. }));
    vec![
        finding(
            "functions",
            of_functions,
            format!("{migrate}: it creates or replaces them, and keeps their grants."),
            format!("all {shipped} functions are those of this release"),
        ),
        finding(
            "tables",
            of_tables,
            "Restore them by hand (SET LOGGED, ALTER COLUMN .. TYPE): migrate does not change existing tables."
                .to_owned(),
            "all tables, columns and indexes match the migrations".to_owned(),
        ),
        finding(
            "owners",
            of_owners,
            format!(
                "{migrate} --check: it prints the statements that give objects to their owner. Revoke CREATE on the schema from \
                 other roles."
            ),
            "all objects have one owner, and no other role can create objects in the schema".to_owned(),
        ),
        ("privileges", privileges(session, drift)),
    ]
}

fn privileges(session: &Session, drift: &[Drift]) -> Finding {
    let mut finding = Finding::ok("no role may write to the tables by hand, and PUBLIC may call no function");
    let mut found = Vec::new();
    for one in drift {
        if let Drift::ExtraGrant { object, grantee, privilege } = one {
            found.push(one.to_string());
            let revoke = match object.split_once('.') {
                _ if object.ends_with(')') => format!("ON FUNCTION {}", session.table(object)),
                Some((table, column)) => format!("({column}) ON {}", session.table(table)),
                None => format!("ON {}", session.table(object)),
            };
            finding = finding.advise(format!("REVOKE {privilege} {revoke} FROM {grantee};"));
        }
    }
    if found.is_empty() {
        return finding;
    }
    Finding { advice: finding.advice, ..Finding::warning(found.join("; ")) }
}
