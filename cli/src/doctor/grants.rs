//! Checks which of the functions the connected role may call.

use std::collections::BTreeMap;

use sqlx::Row;

use crate::doctor::finding::Finding;
use crate::doctor::rights::Role;
use crate::doctor::schema::{TABLES, VIEWS, function_names};
use crate::doctor::session::Session;

/// Functions that are granted together, each with its number of arguments if its name is overloaded.
struct Group {
    what: &'static str,
    /// Whether a role may need only some of them.
    each_is_a_use: bool,
    functions: &'static [(&'static str, Option<i64>)],
}

const LIMITING: Group = Group {
    what: "limit",
    each_is_a_use: false,
    functions: &[
        ("_decide", None),
        ("_decide_sums", None),
        ("_take_token_bucket", None),
        ("_take_fixed_window", None),
        ("_take_sliding_window", None),
        ("_take_few", None),
        ("_decide_one", None),
        ("_take_slots", None),
        ("window", None),
        ("_held", None),
        ("reset", Some(1)),
        ("prune", None),
    ],
};
const FROM_SQL: Group = Group {
    what: "call from SQL and triggers",
    each_is_a_use: true,
    functions: &[
        ("limit_with", None),
        ("limit_all_with", None),
        ("check_with", None),
        ("check_all_with", None),
        ("charge_all_with", None),
        ("credit_all_with", None),
        ("enforce_with", None),
        ("reset", Some(2)),
        ("acquire_with", None),
        ("release", None),
        ("renew", None),
    ],
};
const STORED: Group = Group {
    what: "call with stored limits",
    each_is_a_use: true,
    functions: &[
        ("limit", None),
        ("check", None),
        ("enforce", None),
        ("acquire", None),
        ("limit_all", None),
        ("check_all", None),
        ("charge_all", None),
        ("credit_all", None),
    ],
};
const STORING: Group =
    Group { what: "store limits", each_is_a_use: true, functions: &[("define", None), ("undefine", None)] };
const BLOCKING: Group = Group {
    what: "block keys",
    each_is_a_use: false,
    functions: &[("block", None), ("unblock", None), ("is_blocked", None)],
};
const FORGETTING: Group =
    Group { what: "forget keys", each_is_a_use: false, functions: &[("forget", None), ("_names", None)] };
const QUEUE: Group = Group {
    what: "use the queue",
    each_is_a_use: false,
    functions: &[
        ("_enqueue", None),
        ("_claim", None),
        ("_claimed_jobs", None),
        ("_job_done", None),
        ("_job_again", None),
        ("_job_extend", None),
        ("_jobs_lapsed", None),
        ("_job_cancel", None),
        ("_job_settle", None),
        ("_job_requeue", None),
        ("_jobs_prune", None),
        ("_dead_jobs_prune", None),
        ("_jobs_discard", None),
        ("resume", None),
        ("_queue_gauges", None),
    ],
};

/// Whether the role may call each existing function, by name and number of arguments.
struct Allowed(BTreeMap<(String, i64), bool>);

impl Allowed {
    /// Whether any function of the group is installed.
    fn has(&self, group: &Group) -> bool {
        group.functions.iter().any(|(name, _)| self.0.keys().any(|(known, _)| known == name))
    }

    /// The functions that the role may not call, as a GRANT names them. Another check reports missing functions.
    fn refused(&self, group: &Group, session: &Session) -> Vec<String> {
        let refused = |(name, arguments): &(&'static str, Option<i64>)| {
            let of_name =
                self.0.iter().filter(|((known, count), _)| known == name && arguments.is_none_or(|n| n == *count));
            of_name.clone().any(|(_, allowed)| !allowed).then(|| callable(session, name, arguments.unwrap_or_default()))
        };
        group.functions.iter().filter_map(refused).collect()
    }
}

/// The name of a function in a GRANT. Only one name is overloaded, and its arguments are of type text.
fn callable(session: &Session, name: &str, arguments: i64) -> String {
    match (name, arguments) {
        ("reset", 1) => format!("{}(text)", session.table(name)),
        ("reset", _) => format!("{}(text, text)", session.table(name)),
        _ => session.table(name),
    }
}

pub(super) async fn check(session: &mut Session, role: &Role) -> Result<Finding, sqlx::Error> {
    let (schema, names) = (session.schema_literal(), function_names(&session.schema));
    let sql = format!(
        "SELECT p.proname::text, p.pronargs::bigint, \
           has_function_privilege(p.oid, 'EXECUTE'), \
           has_schema_privilege(n.oid, 'USAGE') \
         FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace \
         WHERE n.nspname = {schema} AND p.proname IN ({names}) ORDER BY p.proname"
    );
    let (mut allowed, mut usage) = (BTreeMap::new(), true);
    for row in session.rows(&sql).await? {
        let name: String = row.try_get(0)?;
        let arguments: i64 = row.try_get(1)?;
        usage &= row.try_get::<bool, _>(3)?;
        allowed.insert((name, arguments), row.try_get(2)?);
    }
    let finding = judge(session, role, &Allowed(allowed), usage);
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
    let describe = |row: &sqlx::postgres::PgRow| -> Result<String, sqlx::Error> {
        let (name, functions, tables): (String, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        Ok(match tables {
            0 => format!("{name} ({functions} functions)"),
            tables => format!("{name} ({functions} functions, {tables} tables)"),
        })
    };
    session.rows(&sql).await?.iter().map(describe).collect()
}

fn judge(session: &Session, role: &Role, allowed: &Allowed, usage: bool) -> Finding {
    if let Some(found) = role.may_do_all() {
        return Finding::note(format!("{found}: the privileges of the application's role are not checked"))
            .advise("Use the URL of the application.");
    }
    let name = &role.name;
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    let mut finding = None::<Finding>;
    let mut add = |other: Finding| {
        finding = Some(match finding.take() {
            Some(finding) => finding.and(other),
            None => other,
        });
    };
    if !usage {
        add(Finding::problem(format!("the role {name} may not use the schema \"{}\"", session.schema))
            .advise(format!("GRANT USAGE ON SCHEMA {} TO {quoted};", session.schema.quoted())));
    }
    let grant = |functions: &[String]| format!("GRANT EXECUTE ON FUNCTION {} TO {quoted};", functions.join(", "));
    let mut may = Vec::new();
    let mut may_not = Vec::new();
    let refused = |group: &Group| allowed.refused(group, session);
    // A role that calls from SQL needs none of the functions that the library calls.
    let limiting = refused(&LIMITING);
    let is_for_sql = |group: &Group| refused(group).len() < group.functions.len();
    if limiting.is_empty() {
        may.push(LIMITING.what.to_owned());
    } else if limiting.len() == LIMITING.functions.len() && (is_for_sql(&FROM_SQL) || is_for_sql(&STORED)) {
        may_not.push("limit from the library");
    } else {
        add(Finding::problem(format!("the role {name} may not call {}", limiting.join(", "))).advise(grant(&limiting)));
    }
    for group in [FROM_SQL, STORED, STORING, QUEUE, BLOCKING, FORGETTING] {
        if !allowed.has(&group) {
            continue;
        }
        let refused = refused(&group);
        if refused.is_empty() {
            may.push(group.what.to_owned());
        } else if refused.len() == group.functions.len() {
            may_not.push(group.what);
        } else if group.each_is_a_use {
            may.push(format!("{} (not {})", group.what, refused.join(", ")));
        } else {
            add(Finding::warning(format!("to {}, the role {name} lacks {}", group.what, refused.join(", ")))
                .advise(grant(&refused)));
        }
    }
    let besides = if may_not.is_empty() { String::new() } else { format!("; may not: {}", may_not.join(", ")) };
    finding.unwrap_or_else(|| Finding::ok(format!("the role {name} may: {}{besides}", may.join(", "))))
}
