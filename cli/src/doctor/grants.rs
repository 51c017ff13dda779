//! Checks which of the functions the connected role may call.

use std::collections::BTreeMap;

use sqlx::Row;

use crate::doctor::finding::Finding;
use crate::doctor::rights::Role;
use crate::doctor::session::Session;

/// Functions that are granted together, each with its number of arguments if its name is overloaded.
struct Group {
    what: &'static str,
    functions: &'static [(&'static str, Option<i64>)],
}

const LIMITING: Group = Group {
    what: "limit",
    functions: &[
        ("rate_limit_decide", None),
        ("rate_limit_decide_sums", None),
        ("rate_limit_decide_one", None),
        ("rate_limit_decide_leases", None),
        ("rate_limit_take_slots", None),
        ("rate_limit_window", None),
        ("rate_limit_held", None),
        ("rate_limit_reset", Some(1)),
        ("rate_limit_prune", None),
    ],
};
const FROM_SQL: Group = Group {
    what: "call from SQL and triggers",
    functions: &[
        ("rate_limit", None),
        ("rate_limit_all", None),
        ("rate_limit_check", None),
        ("rate_limit_check_all", None),
        ("rate_limit_charge_all", None),
        ("rate_limit_credit_all", None),
        ("rate_limit_enforce", None),
        ("rate_limit_reset", Some(2)),
        ("rate_limit_acquire", None),
        ("rate_limit_release", None),
        ("rate_limit_renew", None),
    ],
};
const BLOCKING: Group = Group {
    what: "block keys",
    functions: &[("rate_limit_block", None), ("rate_limit_unblock", None), ("rate_limit_blocked", None)],
};
const FORGETTING: Group =
    Group { what: "forget keys", functions: &[("rate_limit_forget", None), ("rate_limit_names", None)] };
const QUEUE: Group = Group {
    what: "use the queue",
    functions: &[
        ("rate_limit_enqueue", None),
        ("rate_limit_enqueue_slots", None),
        ("rate_limit_claim", None),
        ("rate_limit_claimed", None),
        ("rate_limit_claimed_jobs", None),
        ("rate_limit_job_done", None),
        ("rate_limit_job_again", None),
        ("rate_limit_job_extend", None),
        ("rate_limit_jobs_lapsed", None),
        ("rate_limit_job_cancel", None),
        ("rate_limit_job_settle", None),
        ("rate_limit_job_requeue", None),
        ("rate_limit_jobs_prune", None),
        ("rate_limit_dead_jobs_prune", None),
        ("rate_limit_jobs_discard", None),
        ("rate_limit_queue_gauges", None),
    ],
};

/// Whether the role may call each existing function, by name and number of arguments.
struct Allowed(BTreeMap<(String, i64), bool>);

impl Allowed {
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
        ("rate_limit_reset", 1) => format!("{}(text)", session.table(name)),
        ("rate_limit_reset", _) => format!("{}(text, text)", session.table(name)),
        _ => session.table(name),
    }
}

pub(super) async fn check(session: &mut Session, role: &Role) -> Result<Finding, sqlx::Error> {
    let schema = session.schema_literal();
    let sql = format!(
        "SELECT p.proname::text, p.pronargs::bigint, \
           has_function_privilege(p.oid, 'EXECUTE'), \
           has_schema_privilege(n.oid, 'USAGE') \
         FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace \
         WHERE n.nspname = {schema} AND p.proname LIKE 'rate\\_limit%' ORDER BY p.proname"
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
    let schema = session.schema_literal();
    let sql = format!(
        "SELECT g.grantee::text, count(*) FILTER (WHERE g.is_function)::bigint, count(*) FILTER (WHERE NOT g.is_function)::bigint \
         FROM (SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END AS grantee, \
                 o.oid, o.is_function \
               FROM (SELECT p.oid, true AS is_function, p.proowner AS owner, coalesce(p.proacl, acldefault('f', p.proowner)) AS acl \
                     FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace \
                     WHERE n.nspname = {schema} AND p.proname LIKE 'rate\\_limit%' \
                     UNION ALL \
                     SELECT c.oid, false, c.relowner, c.relacl \
                     FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                     WHERE n.nspname = {schema} AND c.relname LIKE 'rate\\_limit%' AND c.relkind IN ('r', 'v') \
                       AND c.relname NOT IN ('rate_limits_migrations', 'rate_limits_objects')) AS o \
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
    let limiting = allowed.refused(&LIMITING, session);
    if !limiting.is_empty() {
        add(Finding::problem(format!("the role {name} may not call {}", limiting.join(", "))).advise(grant(&limiting)));
    }
    let mut may = vec![LIMITING.what];
    let mut may_not = Vec::new();
    for group in [FROM_SQL, QUEUE, BLOCKING, FORGETTING] {
        let refused = allowed.refused(&group, session);
        if refused.is_empty() {
            may.push(group.what);
        } else if refused.len() == group.functions.len() {
            may_not.push(group.what);
        } else {
            add(Finding::warning(format!("to {}, the role {name} lacks {}", group.what, refused.join(", ")))
                .advise(grant(&refused)));
        }
    }
    let besides = if may_not.is_empty() { String::new() } else { format!("; may not: {}", may_not.join(", ")) };
    finding.unwrap_or_else(|| Finding::ok(format!("the role {name} may: {}{besides}", may.join(", "))))
}
