//! Checks a Citus cluster: its nodes, how the tables are stored, the functions on all nodes, and two-phase commits that are left.

use std::collections::BTreeSet;

use crate::operate::doctor::schema::function_names;
use crate::operate::doctor::{Finding, Findings, Session};
use crate::text::many;

/// A hash of the functions, the prepared transactions older than a minute, and `max_prepared_transactions`; `None`: no answer.
type Node = Option<(String, u32, u32)>;

/// Returns the findings, and whether the tables are distributed.
pub(super) async fn check(session: &mut Session) -> sqlx::Result<(Findings, bool)> {
    let (installed,): (bool,) = session.row("SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL").await?;
    if !installed {
        return Ok((Vec::new(), false));
    }
    let relations = &session.relations;
    let table = |name: &str| {
        format!(
            "(SELECT p.colocationid FROM {relations} JOIN pg_dist_partition AS p ON p.logicalrelid = c.oid \
             WHERE c.relname = '{name}' AND p.partmethod = 'h')"
        )
    };
    let sql = format!(
        "SELECT extversion, (SELECT groupid = 0 FROM pg_dist_local_group), \
           (SELECT count(*) FROM pg_dist_node WHERE isactive AND noderole = 'primary'), \
           (SELECT count(*) FROM pg_dist_node WHERE NOT isactive AND noderole = 'primary'), \
           {limits} IS NOT NULL, coalesce({limits} = {answers}, false) \
         FROM pg_extension WHERE extname = 'citus'",
        limits = table("rate_limits"),
        answers = table("answers"),
    );
    let (version, is_coordinator, active, inactive, is_distributed, is_colocated) = session.row(&sql).await?;
    let cluster = judge(version, [active, inactive], is_coordinator, is_distributed, is_colocated);
    let mut findings = vec![("Citus", cluster)];
    if is_distributed && is_coordinator {
        let nodes = nodes(session).await?;
        findings.push(("functions of nodes", functions(&nodes)));
        findings.push(("prepared transactions", prepared(&nodes)));
    }
    Ok((findings, is_distributed))
}

async fn nodes(session: &mut Session) -> sqlx::Result<Vec<Node>> {
    let sql = format!(
        "SELECT success, result FROM run_command_on_all_nodes($command$ \
        SELECT concat_ws(' ', \
          (SELECT md5(coalesce(string_agg(p.proname || p.prosrc, ' ' ORDER BY p.proname, p.pronargs, p.prosrc), '')) \
           FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_dist_object AS o \
             ON o.classid = 'pg_catalog.pg_proc'::regclass AND o.objid = p.oid \
           WHERE p.pronamespace = to_regnamespace(quote_ident({schema})) AND p.proname IN ({names})), \
          (SELECT count(*) FROM pg_catalog.pg_prepared_xacts \
           WHERE gid LIKE 'citus\\_%' AND prepared < now() - interval '1 minute'), \
          current_setting('max_prepared_transactions')) $command$)",
        schema = session.schema_literal,
        names = function_names(&session.schema),
    );
    let rows: Vec<(bool, String)> = session.rows(&sql).await?;
    Ok(rows.iter().map(|(success, result)| success.then(|| node(result))).collect())
}

fn node(result: &str) -> (String, u32, u32) {
    let mut parts = result.split(' ');
    let hash = parts.next().unwrap_or_default().to_owned();
    let mut number = || parts.next().and_then(|part| part.parse().ok()).unwrap_or_default();
    (hash, number(), number())
}

/// `nodes`: the active and the inactive ones. `is_colocated`: whether the answers are distributed like the rows of buckets.
fn judge(version: String, nodes: [i64; 2], is_coordinator: bool, is_distributed: bool, is_colocated: bool) -> Finding {
    let [active, inactive] = nodes;
    let found = format!("Citus {version}, {}", many(active.unsigned_abs(), "active node"));
    match (is_distributed, is_coordinator, is_colocated, inactive) {
        (false, ..) => Finding::note(format!("{found}; the limiter's tables are local to this node"))
            .advise("pg-limiter migrate --distributed -- to spread them; \"Beyond one machine\" says when that helps"),
        (_, false, ..) => Finding::warning(format!("{found}; this node is not the coordinator"))
            .advise("Connect to the coordinator: the queue's tables and the migrations are there."),
        (_, _, false, _) => Finding::problem(format!("{found}; answers is not distributed with rate_limits"))
            .advise("pg-limiter migrate --distributed"),
        (.., 1..) => Finding::problem(format!("{found}, {inactive} inactive"))
            .advise("SELECT citus_activate_node(..); -- calls on the keys of an inactive node fail"),
        _ => Finding::ok(format!("{found}; the tables are distributed by key")),
    }
}

fn functions(nodes: &[Node]) -> Finding {
    let away = nodes.iter().filter(|node| node.is_none()).count();
    let all = nodes.len() as u64;
    let hashes: BTreeSet<_> = nodes.iter().flatten().map(|(hash, ..)| hash).collect();
    match (away, hashes.len()) {
        (0, 1) => Finding::ok(format!("the same on {}", many(all, "node"))),
        (0, _) => Finding::problem("not the same on all nodes")
            .advise("pg-limiter migrate -- with citus.enable_ddl_propagation = on; then run doctor again"),
        _ => Finding::problem(format!("no answer from {away} of {}", many(all, "node")))
            .advise("Calls on the keys of these nodes fail. Start them, or add standbys."),
    }
}

fn prepared(nodes: &[Node]) -> Finding {
    let left: u32 = nodes.iter().flatten().map(|(_, left, _)| left).sum();
    let found = format!("{} older than a minute, with locked rows", many(left.into(), "prepared transaction"));
    match left {
        _ if nodes.iter().flatten().any(|(.., most)| *most == 0) => {
            Finding::problem("max_prepared_transactions is 0 on a node, so calls on several nodes fail")
                .advise("ALTER SYSTEM SET max_prepared_transactions = 200; -- on each node, and restart it")
        }
        0 => Finding::ok("none is older than a minute"),
        _ => Finding::warning(found).advise(
            "SELECT recover_prepared_transactions(); -- Citus runs it by itself every citus.recover_2pc_interval",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operate::doctor::State::{Note, Ok, Problem, Warning};

    #[test]
    fn a_cluster_is_judged_by_its_nodes_and_tables() {
        let cluster = |is_coordinator, inactive, is_distributed, is_colocated| {
            judge("13.0-1".to_owned(), [3, inactive], is_coordinator, is_distributed, is_colocated)
        };
        let found = cluster(true, 0, true, true).found;
        assert_eq!(found, "Citus 13.0-1, 3 active nodes; the tables are distributed by key");
        let well = [cluster(true, 0, true, true), cluster(true, 0, false, false), cluster(false, 0, true, true)];
        assert_eq!(well.map(|finding| finding.state), [Ok, Note, Warning]);
        let ill = [cluster(true, 0, true, false), cluster(true, 1, true, true)];
        assert_eq!(ill.map(|finding| finding.state), [Problem, Problem]);
    }

    #[test]
    fn nodes_must_have_the_same_functions_and_no_old_transactions() {
        let state = |results: [&str; 2]| {
            let nodes = results.map(|result| (!result.is_empty()).then(|| node(result)));
            [functions(&nodes).state, prepared(&nodes).state]
        };
        assert_eq!(state(["a 0 200", "a 0 200"]), [Ok, Ok]);
        assert_eq!(state(["a 0 200", "b 0 200"]), [Problem, Ok]);
        assert_eq!(state(["a 0 200", ""]), [Problem, Ok]);
        assert_eq!(state(["a 0 200", "a 2 200"]), [Ok, Warning]);
        assert_eq!(state(["a 0 200", "a 0 0"]), [Ok, Problem]);
    }
}
