//! Checks a Citus cluster: its nodes, how the limiter's tables are stored, whether the functions are the same on all nodes, and
//! whether two-phase commits are left.

use crate::doctor::report::Finding;
use crate::doctor::schema::function_names;
use crate::doctor::session::Session;

/// The cluster, as the coordinator describes it.
struct Cluster {
    version: String,
    is_coordinator: bool,
    active: i64,
    inactive: i64,
    /// Whether `rate_limits` is distributed.
    is_distributed: bool,
    /// Whether `rate_limit.answers` is distributed in the same way.
    is_colocated: bool,
}

/// The report of a node.
struct Node {
    success: bool,
    /// A hash of the functions, the prepared transactions that are older than a minute, and `max_prepared_transactions`.
    result: String,
}

/// Returns the findings, and whether the tables are distributed.
pub(super) async fn check(session: &mut Session) -> Result<(Vec<(&'static str, Finding)>, bool), sqlx::Error> {
    let (installed,): (bool,) = session.row("SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL").await?;
    if !installed {
        return Ok((Vec::new(), false));
    }
    let cluster = read(session).await?;
    let mut findings = vec![("Citus", cluster.judge())];
    if cluster.is_distributed && cluster.is_coordinator {
        let nodes = nodes(session).await?;
        findings.push(("functions of nodes", functions(&nodes)));
        findings.push(("prepared transactions", prepared(&nodes)));
    }
    Ok((findings, cluster.is_distributed))
}

async fn read(session: &mut Session) -> Result<Cluster, sqlx::Error> {
    let table = |name: &str| {
        format!(
            "(SELECT p.colocationid FROM pg_dist_partition AS p JOIN pg_class AS c ON c.oid = p.logicalrelid \
             WHERE c.relnamespace = to_regnamespace({}) AND c.relname = '{name}' AND p.partmethod = 'h')",
            format_args!("quote_ident({})", session.schema_literal())
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
    Ok(Cluster { version, is_coordinator, active, inactive, is_distributed, is_colocated })
}

async fn nodes(session: &mut Session) -> Result<Vec<Node>, sqlx::Error> {
    let sql = format!(
        "SELECT success, result FROM run_command_on_all_nodes($command$ \
        SELECT concat_ws(' ', \
          (SELECT md5(string_agg(p.proname || p.prosrc, ' ' ORDER BY p.proname, p.pronargs, p.prosrc)) \
           FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_dist_object AS o \
             ON o.classid = 'pg_catalog.pg_proc'::regclass AND o.objid = p.oid \
           WHERE p.pronamespace = to_regnamespace(quote_ident({schema})) AND p.proname IN ({names})), \
          (SELECT count(*) FROM pg_catalog.pg_prepared_xacts \
           WHERE gid LIKE 'citus\\_%' AND prepared < now() - interval '1 minute'), \
          current_setting('max_prepared_transactions')) $command$)",
        schema = session.schema_literal(),
        names = function_names(&session.schema),
    );
    let rows = session.rows(&sql).await?;
    Ok(rows.into_iter().map(|(success, result)| Node { success, result }).collect())
}

impl Cluster {
    fn judge(&self) -> Finding {
        let Self { version, active, inactive, .. } = self;
        let found = format!("Citus {version}, {active} active nodes");
        if !self.is_distributed {
            return Finding::note(format!("{found}; the limiter's tables are local to this node")).advise(
                "pg-limiter migrate --distributed -- to spread them; \"Beyond one machine\" says when that helps",
            );
        }
        if !self.is_coordinator {
            return Finding::warning(format!("{found}; this node is not the coordinator"))
                .advise("Connect to the coordinator: the queue's tables and the migrations are there.");
        }
        if !self.is_colocated {
            return Finding::problem(format!("{found}; answers is not distributed with rate_limits"))
                .advise("pg-limiter migrate --distributed");
        }
        if *inactive > 0 {
            return Finding::problem(format!("{found}, {inactive} inactive"))
                .advise("SELECT citus_activate_node(..); -- calls on the keys of an inactive node fail");
        }
        Finding::ok(format!("{found}; the tables are distributed by key"))
    }
}

fn functions(nodes: &[Node]) -> Finding {
    let away = nodes.iter().filter(|node| !node.success).count();
    let mut hashes: Vec<&str> = nodes.iter().filter(|node| node.success).filter_map(|node| part(node, 0)).collect();
    hashes.sort_unstable();
    hashes.dedup();
    match (away, hashes.len()) {
        (0, 1) => Finding::ok(format!("the same on all {} nodes", nodes.len())),
        (0, _) => Finding::problem("not the same on all nodes")
            .advise("pg-limiter migrate -- with citus.enable_ddl_propagation = on; then run doctor again"),
        _ => Finding::problem(format!("{away} of {} nodes do not answer", nodes.len()))
            .advise("Calls on the keys of these nodes fail. Start them, or add standbys."),
    }
}

fn prepared(nodes: &[Node]) -> Finding {
    let number = |node: &Node, nth| part(node, nth).and_then(|text| text.parse::<u32>().ok()).unwrap_or_default();
    let answering: Vec<&Node> = nodes.iter().filter(|node| node.success).collect();
    if answering.iter().any(|node| number(node, 2) == 0) {
        return Finding::problem("max_prepared_transactions is 0 on a node, so calls on several nodes fail")
            .advise("ALTER SYSTEM SET max_prepared_transactions = 200; -- on each node, and restart it");
    }
    match answering.iter().map(|node| number(node, 1)).sum::<u32>() {
        0 => Finding::ok("none is older than a minute"),
        left => Finding::warning(format!("{left} have waited for more than a minute, and keep their rows locked"))
            .advise(
                "SELECT recover_prepared_transactions(); -- Citus runs it by itself every citus.recover_2pc_interval",
            ),
    }
}

fn part(node: &Node, nth: usize) -> Option<&str> {
    node.result.split(' ').nth(nth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State::{Note, Ok, Problem, Warning};

    #[test]
    fn a_cluster_is_judged_by_its_nodes_and_tables() {
        let cluster = |is_coordinator, inactive, is_distributed, is_colocated| {
            let version = "13.0-1".to_owned();
            Cluster { version, is_coordinator, active: 3, inactive, is_distributed, is_colocated }.judge()
        };
        assert_eq!(
            cluster(true, 0, true, true).found,
            "Citus 13.0-1, 3 active nodes; the tables are distributed by key"
        );
        let states = [
            cluster(true, 0, true, true),
            cluster(true, 0, false, false),
            cluster(false, 0, true, true),
            cluster(true, 0, true, false),
            cluster(true, 1, true, true),
        ];
        assert_eq!(states.map(|finding| finding.state), [Ok, Note, Warning, Problem, Problem]);
    }

    #[test]
    fn nodes_must_have_the_same_functions_and_no_old_transactions() {
        let nodes = |results: [&str; 2]| {
            Vec::from(results.map(|result| Node { success: !result.is_empty(), result: result.to_owned() }))
        };
        let state = |results: [&str; 2]| [functions(&nodes(results)).state, prepared(&nodes(results)).state];
        assert_eq!(state(["a 0 200", "a 0 200"]), [Ok, Ok]);
        assert_eq!(state(["a 0 200", "b 0 200"]), [Problem, Ok]);
        assert_eq!(state(["a 0 200", ""]), [Problem, Ok]);
        assert_eq!(state(["a 0 200", "a 2 200"]), [Ok, Warning]);
        assert_eq!(state(["a 0 200", "a 0 0"]), [Ok, Problem]);
    }
}
