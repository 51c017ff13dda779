//! Checks whether the limiter's tables and functions exist and match this release, whether a publication locks the tables, which
//! functions the role may call, and what it may do to the tables directly: nothing, unless it is their owner.

use std::collections::BTreeSet;

use sqlx::AssertSqlSafe;

use crate::operate::doctor::{BOUNDS, Finding, Findings, PLAIN, Session};
use crate::text::many;
use pg_limiter::Schema;
use pg_limiter::migrate::MigrateError::{Busy, Database, Privilege, ReadOnly};
use pg_limiter::migrate::{Drift, Migrator, Part, Use, functions, migrations};

const HISTORY: &str = "migrations";
pub(super) const JOBS: &str = "jobs";

pub(crate) const TABLES: &str =
    "'rate_limits', 'answers', 'definitions', 'jobs', 'groups', 'workers', 'queues', 'turns', 'migrations', 'objects'";

const VIEWS: &str = "'buckets', 'limits', 'queue_groups', 'queue_jobs'";

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
        let found = format!("{found} does not contain the tables of the limiter, so they were not checked");
        return Ok(Finding::problem(found).advise(format!("{migrate}, or select another schema with --schema.")));
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
    sqlx::raw_sql(AssertSqlSafe(format!("{PLAIN}; {BOUNDS}"))).execute(&mut session.connection).await?;
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
        Err(Database { source, .. } | Privilege { source, .. } | Busy { source, .. } | ReadOnly { source, .. }) => {
            return Err(source);
        }
        Err(other) => return Ok(vec![("functions", Finding::problem(other.to_string()))]),
    };
    let parts = if tables.contains(JOBS) { Part::ALL } else { &[Part::Core] };
    Ok(judge(session, &drift, functions(&schema, parts).len()))
}

/// `shipped` is the number of functions that belong to what is installed.
fn judge(session: &Session, drift: &[Drift], shipped: usize) -> Findings {
    let finding = |is_of_it: fn(&Drift) -> bool, advice: &str| {
        let problems: Vec<String> = drift.iter().filter(|one| is_of_it(one)).map(ToString::to_string).collect();
        (!problems.is_empty()).then(|| Finding::problem(problems.join("; ")).advise(advice))
    };
    let migrate = migrate(&session.schema);
    let functions = finding(
        |one| one.is_repaired_by_migrate() && !matches!(one, Drift::MigrationMissing { .. } | Drift::ExtraGrant { .. }),
        &format!("{migrate}: it creates or replaces them, and keeps their grants."),
    )
    .unwrap_or_else(|| Finding::ok(format!("all {shipped} functions are those of this release")));
    let missing = finding(
        |one| matches!(one, Drift::ObjectMissing { .. }),
        "Create them. If a restore is under way, its end does so (pg_restore --section=post-data). Otherwise copy their \
         definitions from pg-limiter migrate --print: migrate does not change existing tables.",
    );
    let changed = finding(
        |one| matches!(one, Drift::ObjectChanged { .. } | Drift::MigrationChanged { .. }),
        "Restore them by hand (ALTER TABLE .. SET LOGGED, DISABLE ROW LEVEL SECURITY, NO INHERIT, ALTER COLUMN .. TYPE): migrate \
         does not change existing tables.",
    );
    let owners = finding(
        |one| matches!(one, Drift::Untrusted(_) | Drift::Misowned { .. }),
        &format!(
            "{migrate} --check: it prints the statements that give objects to their owner. Revoke CREATE on the schema from \
             other roles."
        ),
    )
    .unwrap_or_else(|| Finding::ok("all objects have one owner, and no other role can create objects in the schema"));
    let attached = drift.iter().filter_map(|one| {
        let Drift::Attached { problem, statement } = one else { return None };
        Some(Finding::problem(problem).advise(format!("{statement} -- its code runs in calls, and migrate refuses it")))
    });
    let tables = missing.into_iter().chain(changed).chain(attached).reduce(Finding::and);
    let tables = tables.unwrap_or_else(|| Finding::ok("all tables, columns and indexes match the migrations"));
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

/// Publications with which no row can be changed: with a column list that lacks a part of the primary key, or a filter on other columns.
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

pub(super) struct Role {
    name: String,
    quoted: String,
    /// Describes a superuser or the owner of the tables.
    may_do_all: Option<String>,
}

impl Role {
    pub(super) async fn read(session: &mut Session) -> sqlx::Result<Self> {
        let sql = format!(
            "SELECT r.rolname::text, CASE \
               WHEN r.rolsuper THEN 'a superuser' \
               WHEN EXISTS (SELECT FROM {} WHERE c.relname = 'rate_limits' AND pg_has_role(c.relowner, 'USAGE')) \
               THEN 'the owner of the tables' END \
             FROM pg_roles AS r WHERE r.rolname = current_user",
            session.relations
        );
        let (name, all) = session.row::<(String, Option<String>)>(&sql).await?;
        let may_do_all = all.map(|all| format!("connected as {name}, {all}"));
        Ok(Self { quoted: format!("\"{}\"", name.replace('"', "\"\"")), name, may_do_all })
    }
}

pub(super) async fn by_hand(session: &mut Session, role: &Role) -> sqlx::Result<Finding> {
    let Role { name, quoted, may_do_all } = role;
    if let Some(found) = may_do_all {
        return Ok(Finding::note(format!("{found}, and may change every table by hand")).advise(
            "Connect the application as a role that has only EXECUTE on the functions (guide: migrations, privileges).",
        ));
    }
    let sql = format!(
        "SELECT c.relname::text, \
           CASE WHEN has_table_privilege(c.oid, 'DELETE, TRUNCATE, TRIGGER') OR has_any_column_privilege(c.oid, 'INSERT, UPDATE') \
             THEN 'write' WHEN has_any_column_privilege(c.oid, 'SELECT') THEN 'read' ELSE '' END \
         FROM {} WHERE c.relkind = 'r' AND c.relname IN ('rate_limits', 'jobs', 'groups', 'workers', 'queues', 'turns') \
         ORDER BY c.relname",
        session.relations
    );
    let rights: Vec<(String, String)> = session.rows(&sql).await?;
    let [writes, reads] = ["write", "read"].map(|right| {
        let tables = rights.iter().filter(|(_, most)| most == right).map(|(table, _)| session.table(table));
        tables.collect::<Vec<_>>().join(", ")
    });
    Ok(if !writes.is_empty() {
        Finding::warning(format!("the role {name} may change {writes} by hand"))
            .advise(format!("REVOKE INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER ON {writes} FROM {quoted};"))
            .advise("(Or revoke them from the role that it inherits them from.) The functions run as their owner: callers need no rights on tables.")
    } else if !reads.is_empty() {
        Finding::note(format!("the role {name} may read {reads} by hand, and change nothing"))
    } else {
        Finding::ok(format!("the role {name} can neither read nor change the tables by hand"))
    })
}

type Names = BTreeSet<&'static str>;
/// For each function its name, its signature, and whether the role may call it.
type Installed = [(String, String, bool)];

/// The functions of a use that the role may call, and those that it may not.
fn rights(of: Use, installed: &Installed) -> (Use, Names, Names) {
    // Another check reports functions that are not installed.
    let may_call = |function: &str| {
        let found = installed.iter().filter(|(name, signature, _)| name == function || signature == function);
        found.map(|(_, _, may)| *may).reduce(|one, other| one && other)
    };
    let functions = |may| of.functions().map(|one| one.signature).filter(|one| may_call(one) == Some(may)).collect();
    (of, functions(true), functions(false))
}

pub(super) async fn calls(session: &mut Session, role: &Role) -> sqlx::Result<Finding> {
    let sql = format!(
        "SELECT p.proname::text, format('%s(%s)', p.proname, oidvectortypes(p.proargtypes)), \
           has_function_privilege(p.oid, 'EXECUTE') FROM {}",
        session.functions
    );
    let installed = session.rows(&sql).await?;
    let sql = format!(
        "SELECT has_schema_privilege(n.oid, 'USAGE'), \
           EXISTS (SELECT FROM pg_class AS c WHERE c.relnamespace = n.oid AND c.relname = 'rate_limits' \
             AND has_table_privilege(c.oid, 'SELECT')) \
         FROM pg_namespace AS n WHERE n.nspname = {}",
        session.schema_literal
    );
    let (usage, reads) = session.row(&sql).await?;
    let finding = judge_rights(session, role, &installed, usage, reads);
    let roles = grantees(session).await?;
    Ok(finding.and((!roles.is_empty()).then(|| Finding::ok(format!("granted to: {}", roles.join(", "))))))
}

/// The other roles with privileges on the limiter's objects, with the numbers of functions that they may call and of tables.
async fn grantees(session: &mut Session) -> sqlx::Result<Vec<String>> {
    let (functions, relations) = (&session.functions, &session.relations);
    let sql = format!(
        "SELECT g.grantee, count(*) FILTER (WHERE g.is_function), count(*) FILTER (WHERE NOT g.is_function) \
         FROM (SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END AS grantee, \
                 o.oid, o.is_function \
               FROM (SELECT p.oid, true AS is_function, p.proowner AS owner, coalesce(p.proacl, acldefault('f', p.proowner)) AS acl \
                     FROM {functions} \
                     UNION ALL \
                     SELECT c.oid, false, c.relowner, c.relacl FROM {relations} \
                     WHERE c.relname IN ({TABLES}, {VIEWS}) AND c.relkind IN ('r', 'v') \
                       AND c.relname NOT IN ('migrations', 'objects')) AS o \
               CROSS JOIN LATERAL aclexplode(o.acl) AS a \
               WHERE a.grantee <> o.owner) AS g \
         GROUP BY g.grantee ORDER BY g.grantee"
    );
    let described = |(role, functions, tables): (String, i64, i64)| {
        let tables = if tables > 0 { format!(", {}", many(tables.unsigned_abs(), "table")) } else { String::new() };
        format!("{role} ({}{tables})", many(functions.unsigned_abs(), "function"))
    };
    Ok(session.rows(&sql).await?.into_iter().map(described).collect())
}

/// A role needs the grants of its uses only, and no one says which these are. So a use counts as meant if the role may call
/// functions that no other one explains; of several such uses, the one that lacks the fewest.
fn judge_rights(session: &Session, role: &Role, installed: &Installed, usage: bool, reads: bool) -> Finding {
    let Role { name, quoted, may_do_all } = role;
    if let Some(found) = may_do_all {
        return Finding::note(format!("{found}: the privileges of the application's role are not checked"))
            .advise("Use the URL of the application.");
    }
    let (mut may_call, mut lacks): (Vec<_>, Vec<(Use, &Names)>) = (Vec::new(), Vec::new());
    let uses = Use::ALL.map(|of| rights(of, installed));
    let mut unexplained: Names = uses.iter().flat_map(|(_, may, _)| may).copied().collect();
    for (of, may, not) in &uses {
        if not.is_empty() && !may.is_empty() && (reads || of.relations().is_empty()) {
            may_call.push((*of, of.to_string()));
            unexplained.retain(|function| !may.contains(function));
        }
    }
    let (_, app, _) = rights(Use::App, installed);
    for (of, may, _) in uses.iter().filter(|(of, ..)| !of.needs_all()) {
        let some: Vec<_> = may.intersection(&unexplained).copied().collect();
        if !some.is_empty() && (!some.iter().all(|function| app.contains(function)) || app.is_subset(may)) {
            may_call.push((*of, format!("{of} (only {})", some.join(", "))));
            unexplained.retain(|function| !may.contains(function));
        }
    }
    while !unexplained.is_empty() {
        let needs_more = |(of, _, not): &&(Use, Names, Names)| of.needs_all() && !not.is_empty();
        let meant = uses.iter().filter(needs_more).filter(|(_, may, _)| !may.is_disjoint(&unexplained));
        let Some((of, may, not)) = meant.min_by_key(|(.., not)| not.len()) else { break };
        lacks.push((*of, not));
        unexplained.retain(|function| !may.contains(function));
    }
    let (named, may): (Vec<Use>, Vec<String>) = may_call.into_iter().unzip();
    let is_named = |of: &Use| named.contains(of) || lacks.iter().any(|(lacking, _)| lacking == of);
    let may_not: Vec<_> = Use::ALL.into_iter().filter(|of| !is_named(of)).map(Use::name).collect();
    let usage = (!usage).then(|| {
        Finding::problem(format!("the role {name} may not use the schema \"{}\"", session.schema))
            .advise(format!("GRANT USAGE ON SCHEMA {} TO {quoted};", session.schema.quoted()))
    });
    let none = (may.is_empty() && lacks.is_empty()).then(|| {
        Finding::problem(format!("the role {name} may call no function"))
            .advise(format!("Run what pg-limiter grants --for app '{}' prints.", name.replace('\'', "'\\''")))
    });
    let lacks = lacks.iter().map(|(of, lacking)| {
        let functions = lacking.iter().map(|function| session.table(function)).collect::<Vec<_>>().join(", ");
        let found = format!("for the use {of}, the role {name} lacks {functions}");
        let finding = if *of == Use::App { Finding::problem(found) } else { Finding::warning(found) };
        finding.advise(format!("GRANT EXECUTE ON FUNCTION {functions} TO {quoted};"))
    });
    let [may, may_not] = [may.join(", "), may_not.join(", ")];
    let besides = if may_not.is_empty() { String::new() } else { format!("; may not: {may_not}") };
    let all = Finding::ok(format!("the role {name} may: {may}{besides}"));
    usage.into_iter().chain(lacks).chain(none).reduce(Finding::and).unwrap_or(all)
}
