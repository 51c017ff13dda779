//! A Citus cluster: groups over nodes, a tenant's transaction, and failures of nodes. `tests/citus` runs these tests. Servers are
//! killed by a signal to one of their processes, after which they recover as after a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use pg_limiter::{Call, Error, Item, Limit, Limiter, Limits};

use crate::support::Database;
use crate::support::citus::{self, Node};

const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);
/// More than the calls of a test take, however long a node is away.
const CAPACITY: u32 = 1_000_000_000;

/// Nothing flows in while a test runs.
fn limits(capacity: u32) -> Limits {
    let limit = || Limit::token_bucket(1e-6, CENTURY).capacity(capacity);
    Limits::new().define("user", limit()).and_then(|limits| limits.define("org", limit())).expect("limits")
}

/// A limiter with its own pool, as a process of its own has.
async fn limiter(database: &Database, capacity: u32) -> Limiter {
    let mut config = Database::config();
    config.retry.deadline = Duration::from_secs(60);
    Limiter::with_config(Database::pool(&database.url, 4).await, limits(capacity), config)
}

/// One key for each worker; the worker has the rows of the key.
async fn keys_of_workers(database: &Database) -> Vec<(String, i32)> {
    let sql = "SELECT DISTINCT ON (p.nodeport) k::text, p.nodeport FROM generate_series(1, 1000) AS k \
               JOIN citus_shards AS p ON p.shardid = get_shard_id_for_distribution_column('rate_limit.rate_limits', k::text) \
               ORDER BY p.nodeport, k";
    let keys: Vec<(String, i32)> = sqlx::query_as(sql).fetch_all(&database.pool).await.expect("keys");
    assert!(keys.len() >= 2, "{keys:?}");
    keys
}

async fn two_phase_commits(conn: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM pg_dist_transaction").fetch_one(conn).await.expect("a count")
}

/// The number of two-phase commits of these statements.
async fn prepared_by(conn: &mut PgConnection, statements: &[String]) -> i64 {
    let before = two_phase_commits(conn).await;
    for sql in statements {
        citus::execute(conn, sql.clone()).await;
    }
    two_phase_commits(conn).await - before
}

fn take(key: &str) -> String {
    format!(
        "SELECT rate_limit._decide_one('user', '{key}', 'token_bucket', 10, 60000000, 10, NULL, NULL, 1, 1, 1, 1, false)"
    )
}

#[tokio::test]
#[ignore = "needs a Citus cluster: run tests/citus"]
async fn a_tenants_transaction_stays_on_one_node() {
    let database = Database::migrated().await;
    database
        .execute(
            "CREATE TABLE orders (tenant text COLLATE \"C\" NOT NULL, id bigint NOT NULL, PRIMARY KEY (tenant, id))",
        )
        .await;
    database
        .execute("SELECT create_distributed_table('orders', 'tenant', colocate_with => 'rate_limit.rate_limits')")
        .await;
    let keys = keys_of_workers(&database).await;
    let (first, second) = (&keys[0].0, &keys[1].0);
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    // Keeps the records of two-phase commits until they are counted.
    citus::execute(&mut conn, "ALTER SYSTEM SET citus.recover_2pc_interval = -1".to_owned()).await;
    citus::execute(&mut conn, "SELECT pg_reload_conf()".to_owned()).await;

    let plan: Vec<String> = sqlx::query_scalar(AssertSqlSafe(format!("EXPLAIN (COSTS off) {}", take(first))))
        .fetch_all(&mut conn)
        .await
        .expect("a plan");
    let plan = plan.join("\n");
    assert!(plan.contains("Citus Adaptive") && plan.contains("Task Count: 1"), "{plan}");

    let insert = format!("INSERT INTO orders VALUES ('{first}', 1)");
    let transaction = |key: &str| ["BEGIN".to_owned(), insert.clone(), take(key), "ROLLBACK".to_owned()];
    let committed = |key: &str| {
        let mut statements = transaction(key);
        statements[3] = "COMMIT".to_owned();
        statements
    };
    assert_eq!(prepared_by(&mut conn, &[take(first), take(second)]).await, 0);
    assert_eq!(prepared_by(&mut conn, &transaction(first)).await, 0);
    assert_eq!(prepared_by(&mut conn, &committed(first)).await, 0);
    citus::execute(&mut conn, format!("DELETE FROM orders WHERE tenant = '{first}'")).await;
    // A key on another node: two nodes prepare.
    let elsewhere = prepared_by(&mut conn, &committed(second)).await;
    citus::execute(&mut conn, "ALTER SYSTEM RESET citus.recover_2pc_interval".to_owned()).await;
    citus::execute(&mut conn, "SELECT pg_reload_conf()".to_owned()).await;
    assert_eq!(elsewhere, 2);
}

/// The calls of a test, by their outcomes.
#[derive(Default)]
struct Tally {
    allowed: AtomicU32,
    denied: AtomicU32,
    unknown: AtomicU32,
    /// Calls that spent nothing, because a node was away.
    failed: AtomicU32,
}

impl Tally {
    fn count(&self, result: Result<pg_limiter::Decision, Error>) {
        let counter = match result {
            Ok(decision) if decision.is_allowed() => &self.allowed,
            Ok(_) => &self.denied,
            Err(Error::OutcomeUnknown { .. }) => &self.unknown,
            Err(Error::Unavailable { .. } | Error::RetriesExhausted { .. }) => &self.failed,
            Err(error) => panic!("{error:?}"),
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn sums(&self) -> [u32; 4] {
        [&self.allowed, &self.denied, &self.unknown, &self.failed].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// The tokens that were spent from a bucket.
async fn spent(database: &Database, capacity: u32, name: &str, key: &str) -> u32 {
    let sql = "SELECT $1 - value FROM rate_limit.rate_limits WHERE name = $2 AND key = $3";
    for _ in 0..300 {
        let row: Result<Option<f64>, sqlx::Error> =
            sqlx::query_scalar(sql).bind(f64::from(capacity)).bind(name).bind(key).fetch_optional(&database.pool).await;
        match row {
            Ok(spent) => return spent.unwrap_or_default().round() as u32,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    panic!("the cluster does not answer");
}

/// Makes calls from several limiters until `ended`.
async fn load(
    database: &Database,
    capacity: u32,
    call: impl Fn() -> Call,
    ended: &Arc<AtomicBool>,
) -> (Arc<Tally>, Vec<tokio::task::JoinHandle<()>>) {
    let tally = Arc::new(Tally::default());
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let limiter = limiter(database, capacity).await;
        for _ in 0..4 {
            let (limiter, call, tally, ended) = (limiter.clone(), call(), tally.clone(), ended.clone());
            tasks.push(tokio::spawn(async move {
                while !ended.load(Ordering::Relaxed) {
                    tally.count(limiter.limit(call.clone()).await);
                }
            }));
        }
    }
    (tally, tasks)
}

async fn until_allowed(tally: &Tally, more: u32) {
    let before = tally.sums()[0];
    while tally.sums()[0] < before + more {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Kills a process of the server, which then recovers as after a crash.
async fn crash(node: &Node) {
    let mut conn = node.connect("postgres").await;
    let _ = sqlx::query("COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID'").execute(&mut conn).await;
    loop {
        if let Ok(conn) = PgConnection::connect(&node.url("postgres")).await {
            let _ = conn.close().await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn group(user: &str, org: &str) -> Call {
    Call::from([Item::from(("user", user)), Item::from(("org", org))])
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Citus cluster: run tests/citus"]
async fn groups_over_nodes_take_all_or_none() {
    let database = Database::migrated().await;
    let keys = keys_of_workers(&database).await;
    let ended = Arc::new(AtomicBool::new(false));
    let (user, org) = (keys[0].0.clone(), keys[1].0.clone());
    // Opposite orders of nodes must not deadlock, and each group stops at the same token.
    let (one, first) = load(&database, 60, || group(&user, &org), &ended).await;
    let (other, second) = load(&database, 60, || group(&org, &user), &ended).await;
    while one.sums()[1] < 12 || other.sums()[1] < 12 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ended.store(true, Ordering::Relaxed);
    for task in first.into_iter().chain(second) {
        task.await.expect("a task");
    }
    for (tally, user, org) in [(&one, &user, &org), (&other, &org, &user)] {
        let [allowed, _, unknown, failed] = tally.sums();
        assert_eq!((allowed, unknown, failed), (60, 0, 0));
        assert_eq!(spent(&database, 60, "user", user).await, 60);
        assert_eq!(spent(&database, 60, "org", org).await, 60);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Citus cluster: run tests/citus"]
async fn a_worker_that_crashes_under_load_admits_no_token_twice() {
    let database = Database::migrated().await;
    let keys = keys_of_workers(&database).await;
    let nodes = citus::nodes().await;
    let ended = Arc::new(AtomicBool::new(false));
    let (lone, group_key) = (keys[0].0.clone(), keys[1].0.clone());
    let (lones, first) = load(&database, CAPACITY, || Call::from(("user", &*lone)), &ended).await;
    let (groups, second) = load(&database, CAPACITY, || group(&group_key, &lone), &ended).await;
    for worker in &nodes[1..] {
        until_allowed(&lones, 20).await;
        until_allowed(&groups, 20).await;
        crash(worker).await;
        until_allowed(&lones, 20).await;
        until_allowed(&groups, 20).await;
    }
    ended.store(true, Ordering::Relaxed);
    for task in first.into_iter().chain(second) {
        task.await.expect("a task");
    }
    let lone_spent = spent(&database, CAPACITY, "user", &lone).await;
    let group_spent = spent(&database, CAPACITY, "user", &group_key).await;
    let org_spent = spent(&database, CAPACITY, "org", &lone).await;
    for (tally, spent) in [(&lones, lone_spent), (&groups, group_spent)] {
        let [allowed, _, unknown, _] = tally.sums();
        assert!((allowed..=allowed + unknown).contains(&spent), "spent {spent}, allowed {allowed}, unknown {unknown}");
    }
    assert_eq!(group_spent, org_spent, "a group was half spent");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Citus cluster: run tests/citus"]
async fn a_two_phase_commit_that_lost_its_coordinator_is_recovered() {
    let database = Database::migrated().await;
    let keys = keys_of_workers(&database).await;
    let nodes = citus::nodes().await;
    let ended = Arc::new(AtomicBool::new(false));
    let (user, org) = (keys[0].0.clone(), keys[1].0.clone());
    let (tally, tasks) = load(&database, CAPACITY, || group(&user, &org), &ended).await;
    let mut left_over = 0;
    // Most crashes find some group between PREPARE and COMMIT PREPARED.
    for _ in 0..20 {
        until_allowed(&tally, 20).await;
        crash(&nodes[0]).await;
        for worker in &nodes[1..] {
            let mut conn = worker.connect("postgres").await;
            left_over += sqlx::query_scalar::<_, i64>("SELECT count(*) FROM pg_prepared_xacts WHERE database = $1")
                .bind(&database.name)
                .fetch_one(&mut conn)
                .await
                .expect("a count");
        }
        if left_over > 0 {
            break;
        }
    }
    assert!(left_over > 0, "no crash left a prepared transaction");
    until_allowed(&tally, 20).await; // The rows of the lost transaction are free again.
    ended.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a task");
    }
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    citus::execute(&mut conn, "SELECT recover_prepared_transactions()".to_owned()).await;
    for worker in &nodes[1..] {
        let mut conn = worker.connect("postgres").await;
        let sql = "SELECT count(*) FROM pg_prepared_xacts WHERE database = $1";
        let left: i64 = sqlx::query_scalar(sql).bind(&database.name).fetch_one(&mut conn).await.expect("a count");
        assert_eq!(left, 0, "{worker:?}");
    }
    let [allowed, _, unknown, _] = tally.sums();
    let (of_user, of_org) =
        (spent(&database, CAPACITY, "user", &user).await, spent(&database, CAPACITY, "org", &org).await);
    assert_eq!(of_user, of_org, "a group was half spent");
    assert!((allowed..=allowed + unknown).contains(&of_user), "spent {of_user}, allowed {allowed}, unknown {unknown}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Citus cluster: run tests/citus"]
async fn a_shard_that_moves_keeps_its_balances() {
    let database = Database::migrated().await;
    let keys = keys_of_workers(&database).await;
    let nodes = citus::nodes().await;
    let key = keys[0].0.clone();
    let (from, to) = if nodes[1].port == keys[0].1 { (&nodes[1], &nodes[2]) } else { (&nodes[2], &nodes[1]) };
    let ended = Arc::new(AtomicBool::new(false));
    let (tally, tasks) = load(&database, CAPACITY, || Call::from(("user", &*key)), &ended).await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    for (from, to, mode) in [(from, to, "block_writes"), (to, from, "force_logical")] {
        until_allowed(&tally, 20).await;
        let (Node { host, port, .. }, Node { host: to_host, port: to_port, .. }) = (from, to);
        citus::execute(
            &mut conn,
            format!(
                "SELECT citus_move_shard_placement(get_shard_id_for_distribution_column('rate_limit.rate_limits', '{key}'), \
                 '{host}', {port}, '{to_host}', {to_port}, shard_transfer_mode := '{mode}')"
            ),
        )
        .await;
        until_allowed(&tally, 20).await;
    }
    ended.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a task");
    }
    let [allowed, _, unknown, _] = tally.sums();
    let spent = spent(&database, CAPACITY, "user", &key).await;
    assert!((allowed..=allowed + unknown).contains(&spent), "spent {spent}, allowed {allowed}, unknown {unknown}");
}
