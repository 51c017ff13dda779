//! Checks which functions the connected role may call, and what it may do to the tables directly. A role that is not their owner
//! should have no such rights.

use std::collections::{BTreeMap, BTreeSet};

use crate::doctor::report::Finding;
use crate::doctor::schema::{TABLES, VIEWS, function_names};
use crate::doctor::session::Session;
use pg_limiter::migrate::{CallableFunction, Use};

/// The connected role.
#[derive(Debug)]
pub(super) struct Role {
    pub(super) name: String,
    pub(super) superuser: bool,
    pub(super) owner: bool,
}

impl Role {
    pub(super) async fn read(session: &mut Session) -> Result<Self, sqlx::Error> {
        let sql = format!(
            "SELECT current_user::text, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), \
             coalesce((SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class AS c \
               JOIN pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE n.nspname = {} AND c.relname = 'rate_limits'), false)",
            session.schema_literal()
        );
        let (name, superuser, owner) = session.row::<(String, Option<bool>, bool)>(&sql).await?;
        Ok(Self { name, superuser: superuser.unwrap_or_default(), owner })
    }

    /// Describes a superuser or the owner of the tables. Returns `None` for any other role.
    pub(super) fn may_do_all(&self) -> Option<String> {
        let as_what = match (self.superuser, self.owner) {
            (true, _) => "a superuser",
            (false, true) => "the owner of the tables",
            (false, false) => return None,
        };
        Some(format!("connected as {}, {as_what}", self.name))
    }
}

pub(super) async fn by_hand(session: &mut Session, role: &Role) -> Result<Finding, sqlx::Error> {
    if let Some(found) = role.may_do_all() {
        return Ok(Finding::note(format!("{found}, and may change every table by hand")).advise(
            "Connect the application as a role that has only EXECUTE on the functions (guide: migrations, privileges).",
        ));
    }
    let sql = format!(
        "SELECT c.relname::text, \
           has_table_privilege(c.oid, 'DELETE, TRUNCATE, TRIGGER') OR has_any_column_privilege(c.oid, 'INSERT, UPDATE'), \
           has_any_column_privilege(c.oid, 'SELECT') \
         FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relkind = 'r' \
           AND c.relname IN ('rate_limits', 'jobs', 'groups', 'workers') \
         ORDER BY c.relname",
        session.schema_literal()
    );
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for (table, may_write, may_read) in session.rows::<(String, bool, bool)>(&sql).await? {
        if may_write {
            writes.push(session.table(&table));
        } else if may_read {
            reads.push(session.table(&table));
        }
    }
    let name = &role.name;
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    if !writes.is_empty() {
        let tables = writes.join(", ");
        return Ok(Finding::warning(format!("the role {name} may change {tables} by hand"))
            .advise(format!("REVOKE INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER ON {tables} FROM {quoted};"))
            .advise("(Or revoke them from the role that it inherits them from.) The functions run as their owner: callers need no rights on tables."));
    }
    Ok(match reads.as_slice() {
        [] => Finding::ok(format!("the role {name} can neither read nor change the tables by hand")),
        reads => Finding::note(format!("the role {name} may read {} by hand, and change nothing", reads.join(", "))),
    })
}

/// Whether the role may call each installed function, by name and number of arguments.
struct Allowed(BTreeMap<(String, i64), bool>);

impl Allowed {
    /// Whether the role may call the function. Returns `None` if it is not installed, which another check reports.
    fn may(&self, function: &CallableFunction) -> Option<bool> {
        let arguments = function.signature.contains('(').then(|| 1 + function.signature.matches(',').count() as i64);
        let of_name =
            self.0.iter().filter(|((name, n), _)| name == function.name() && arguments.is_none_or(|all| all == *n));
        of_name.map(|(_, may)| *may).reduce(|one, other| one && other)
    }

    /// The functions of a use that the role may call, and those that it may not.
    fn of(&self, of: Use) -> (BTreeSet<&'static str>, BTreeSet<&'static str>) {
        let installed = of.functions().filter(|function| self.may(function).is_some());
        let (may, not): (Vec<_>, Vec<_>) = installed.partition(|function| self.may(function) == Some(true));
        let names = |all: Vec<&'static CallableFunction>| all.iter().map(|function| function.signature).collect();
        (names(may), names(not))
    }
}

/// The uses that the role has grants for.
#[derive(Default)]
struct Judgement {
    /// The uses that it has all grants for, and the single functions of others.
    may: Vec<String>,
    /// The uses of which it lacks a part, with that part.
    lacks: Vec<(Use, BTreeSet<&'static str>)>,
}

impl Judgement {
    /// A role needs the grants of its uses only, and no one says which these are. So a use counts as meant if the role may call
    /// functions that no other one explains; of several such uses, the one that lacks the fewest.
    fn of(allowed: &Allowed, reads: bool) -> Self {
        let mut judgement = Self::default();
        let uses: Vec<_> = Use::ALL.into_iter().map(|of| (of, allowed.of(of))).collect();
        let mut unexplained: BTreeSet<_> = uses.iter().flat_map(|(_, (may, _))| may).copied().collect();
        for (of, (may, not)) in &uses {
            if not.is_empty() && !may.is_empty() && (reads || of.relations().is_empty()) {
                judgement.may.push(of.name().to_owned());
                unexplained.retain(|function| !may.contains(function));
            }
        }
        let (app, _) = allowed.of(Use::App);
        for (of, (may, _)) in uses.iter().filter(|(of, _)| !of.needs_all()) {
            let some: BTreeSet<_> = may.intersection(&unexplained).copied().collect();
            if !some.is_empty() && (!some.is_subset(&app) || app.is_subset(may)) {
                let some: Vec<_> = some.into_iter().collect();
                judgement.may.push(format!("{of} (only {})", some.join(", ")));
                unexplained.retain(|function| !may.contains(function));
            }
        }
        while !unexplained.is_empty() {
            let meant = uses.iter().filter(|(of, (may, not))| {
                of.needs_all() && !not.is_empty() && may.iter().any(|function| unexplained.contains(function))
            });
            let Some((of, (may, not))) = meant.min_by_key(|(_, (_, not))| not.len()) else { break };
            judgement.lacks.push((*of, not.clone()));
            unexplained.retain(|function| !may.contains(function));
        }
        judgement
    }

    fn may_not(&self) -> Vec<&'static str> {
        let said = |of: &Use| {
            let begins = |text: &String| text.split(' ').next() == Some(of.name());
            self.may.iter().any(begins) || self.lacks.iter().any(|(lacking, _)| lacking == of)
        };
        Use::ALL.into_iter().filter(|of| !said(of)).map(Use::name).collect()
    }
}

pub(super) async fn calls(session: &mut Session, role: &Role) -> Result<Finding, sqlx::Error> {
    let (schema, names) = (session.schema_literal(), function_names(&session.schema));
    let sql = format!(
        "SELECT p.proname::text, p.pronargs::bigint, \
           has_function_privilege(p.oid, 'EXECUTE'), \
           has_schema_privilege(n.oid, 'USAGE'), \
           coalesce((SELECT has_table_privilege(c.oid, 'SELECT') FROM pg_class AS c \
             WHERE c.relnamespace = n.oid AND c.relname = 'rate_limits'), false) \
         FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace \
         WHERE n.nspname = {schema} AND p.proname IN ({names}) ORDER BY p.proname"
    );
    let (mut allowed, mut usage, mut reads) = (BTreeMap::new(), true, false);
    for (name, arguments, may, may_use, may_read) in session.rows::<(String, i64, bool, bool, bool)>(&sql).await? {
        (usage, reads) = (usage && may_use, may_read);
        allowed.insert((name, arguments), may);
    }
    let finding = judge_calls(session, role, &Judgement::of(&Allowed(allowed), reads), usage);
    Ok(match grantees(session).await? {
        roles if roles.is_empty() => finding,
        roles => finding.and(Finding::ok(format!("granted to: {}", roles.join(", ")))),
    })
}

/// The roles other than the owner that have privileges on the limiter's objects, with the number of functions they may call
/// and of tables they have privileges on.
async fn grantees(session: &mut Session) -> Result<Vec<String>, sqlx::Error> {
    let (schema, names) = (session.schema_literal(), function_names(&session.schema));
    let sql = format!(
        "SELECT g.grantee::text, count(*) FILTER (WHERE g.is_function)::bigint, count(*) FILTER (WHERE NOT g.is_function)::bigint \
         FROM (SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END AS grantee, \
                 o.oid, o.is_function \
               FROM (SELECT p.oid, true AS is_function, p.proowner AS owner, coalesce(p.proacl, acldefault('f', p.proowner)) AS acl \
                     FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace \
                     WHERE n.nspname = {schema} AND p.proname IN ({names}) \
                     UNION ALL \
                     SELECT c.oid, false, c.relowner, c.relacl \
                     FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                     WHERE n.nspname = {schema} AND c.relname IN ({TABLES}, {VIEWS}) AND c.relkind IN ('r', 'v') \
                       AND c.relname NOT IN ('migrations', 'objects')) AS o \
               CROSS JOIN LATERAL aclexplode(o.acl) AS a \
               WHERE a.grantee <> o.owner) AS g \
         GROUP BY g.grantee ORDER BY g.grantee"
    );
    let describe = |(name, functions, tables): (String, i64, i64)| match tables {
        0 => format!("{name} ({functions} functions)"),
        tables => format!("{name} ({functions} functions, {tables} tables)"),
    };
    Ok(session.rows(&sql).await?.into_iter().map(describe).collect())
}

fn judge_calls(session: &Session, role: &Role, judgement: &Judgement, usage: bool) -> Finding {
    if let Some(found) = role.may_do_all() {
        return Finding::note(format!("{found}: the privileges of the application's role are not checked"))
            .advise("Use the URL of the application.");
    }
    let name = &role.name;
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    let mut findings = Vec::new();
    if !usage {
        findings.push(
            Finding::problem(format!("the role {name} may not use the schema \"{}\"", session.schema))
                .advise(format!("GRANT USAGE ON SCHEMA {} TO {quoted};", session.schema.quoted())),
        );
    }
    for (of, lacking) in &judgement.lacks {
        let functions: Vec<_> = lacking.iter().map(|function| session.table(function)).collect();
        let functions = functions.join(", ");
        let found = format!("for the use {of}, the role {name} lacks {functions}");
        let finding = if *of == Use::App { Finding::problem(found) } else { Finding::warning(found) };
        findings.push(finding.advise(format!("GRANT EXECUTE ON FUNCTION {functions} TO {quoted};")));
    }
    if judgement.may.is_empty() && judgement.lacks.is_empty() {
        findings.push(
            Finding::problem(format!("the role {name} may call no function"))
                .advise(format!("Run what pg-limiter grants --for app '{}' prints.", name.replace('\'', "'\\''"))),
        );
    }
    let may_not = judgement.may_not();
    let besides = if may_not.is_empty() { String::new() } else { format!("; may not: {}", may_not.join(", ")) };
    let all = Finding::ok(format!("the role {name} may: {}{besides}", judgement.may.join(", ")));
    findings.into_iter().reduce(Finding::and).unwrap_or(all)
}
