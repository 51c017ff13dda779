//! A Citus cluster for the suite, at `CITUS_URL`: the coordinator, as a superuser. A test's database is made on every node.

use std::time::Duration;

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};

use super::url::with_database;

/// Whether the suite runs on Citus.
pub fn is_asked_for() -> bool {
    std::env::var("PG_LIMITER_TEST_SERVER").is_ok_and(|server| server == "citus")
}

pub fn url() -> String {
    std::env::var("CITUS_URL").unwrap_or_else(|_| {
        panic!(
            "no Citus cluster to test on: set CITUS_URL=postgres://postgres@coordinator:5432/postgres, a superuser on a \
             coordinator with at least two workers"
        )
    })
}

/// A node of the cluster.
#[derive(Clone, Debug)]
pub struct Node {
    pub host: String,
    pub port: i32,
    pub is_coordinator: bool,
}

impl Node {
    /// The URL of a database on this node, with the user and the options of `CITUS_URL`.
    pub fn url(&self, database: &str) -> String {
        let url = with_database(&url(), database);
        if self.is_coordinator {
            return url;
        }
        let (scheme, rest) = url.split_once("://").expect("a URL");
        let (authority, path) = rest.split_once('/').expect("a path");
        let user = authority.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
        format!("{scheme}://{user}{}:{}/{path}", self.host, self.port)
    }

    pub async fn connect(&self, database: &str) -> PgConnection {
        let url = self.url(database);
        PgConnection::connect(&url).await.unwrap_or_else(|error| panic!("cannot connect to {url}: {error}"))
    }
}

/// Connects to the coordinator, and waits for the end of a recovery, which a test may have caused.
async fn connect() -> PgConnection {
    loop {
        match PgConnection::connect(&url()).await {
            Ok(conn) => return conn,
            Err(error) if error.as_database_error().and_then(|error| error.code()).as_deref() == Some("57P03") => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("cannot connect to CITUS_URL: {error}"),
        }
    }
}

/// The nodes that the database at `CITUS_URL` knows, the coordinator first.
pub async fn nodes() -> Vec<Node> {
    let mut conn = connect().await;
    let sql = "SELECT nodename, nodeport, groupid = 0 FROM pg_dist_node WHERE noderole = 'primary' ORDER BY groupid";
    let rows: Vec<(String, i32, bool)> = sqlx::query_as(sql).fetch_all(&mut conn).await.expect("the nodes");
    conn.close().await.expect("close");
    let nodes: Vec<Node> =
        rows.into_iter().map(|(host, port, is_coordinator)| Node { host, port, is_coordinator }).collect();
    assert!(
        nodes.len() >= 3 && nodes[0].is_coordinator,
        "the cluster at CITUS_URL needs a coordinator in the metadata (citus_set_coordinator_host) and two workers: {nodes:?}"
    );
    nodes
}

/// Makes a database on every node, and joins the nodes for it.
pub async fn make_database(name: &str) {
    let nodes = nodes().await;
    for node in &nodes {
        let mut admin = node.connect("postgres").await;
        for sql in [format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"), format!("CREATE DATABASE {name}")] {
            execute(&mut admin, sql).await;
        }
        let mut conn = node.connect(name).await;
        execute(&mut conn, "CREATE EXTENSION citus".to_owned()).await;
    }
    let mut conn = nodes[0].connect(name).await;
    execute(&mut conn, format!("SELECT citus_set_coordinator_host('{}', {})", nodes[0].host, nodes[0].port)).await;
    for Node { host, port, .. } in &nodes[1..] {
        // A busy node may refuse the first connections.
        let add = format!("SELECT citus_add_node('{host}', {port})");
        let mut added = sqlx::query(AssertSqlSafe(add.clone())).execute(&mut conn).await;
        for _ in 0..20 {
            if added.is_err() {
                tokio::time::sleep(Duration::from_millis(200)).await;
                added = sqlx::query(AssertSqlSafe(add.clone())).execute(&mut conn).await;
            }
        }
        added.unwrap_or_else(|error| panic!("{add}: {error}"));
    }
}

/// Drops a database from every node.
pub async fn drop_database(name: &str) {
    for node in nodes().await {
        if let Ok(mut admin) = PgConnection::connect(&node.url("postgres")).await {
            let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            let _ = sqlx::query(AssertSqlSafe(drop)).execute(&mut admin).await;
        }
    }
}

pub async fn execute(conn: &mut PgConnection, sql: String) {
    let result = sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(conn).await;
    result.unwrap_or_else(|error| panic!("{sql}: {error}"));
}
