//! What calls cost on a Citus cluster: `tests/citus citus_costs` prints the messages of each call, and the medians of several
//! rounds. It asserts no times.

use std::collections::BTreeMap;
use std::time::Instant;

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};

use crate::support::{Database, Events, citus, watch};

const ROUNDS: usize = 5;
const CALLS: usize = 100;
const KEYS: usize = 1_000;

/// A lone call, as the library sends it. (In an expression, such as a cast, Citus would not send it to the node of its key.)
const LONE: &str =
    "SELECT rate_limit._decide_one('user', $1, 'token_bucket', 1e9, 1000000, 1e9, NULL, NULL, 1, 1, 1, 1, false)";

/// A lone call on an empty bucket.
const DENIED: &str =
    "SELECT rate_limit._decide_one('empty', $1, 'token_bucket', 1, 86400000000, 1, NULL, NULL, 1, 1, 1, 1, false)";

/// The UPDATE that an application would write itself.
const UPDATE: &str = "UPDATE rate_limit.rate_limits SET value = value - 1, ts = ts + 1 \
                      WHERE name = 'user' AND key = $1 AND shard = 0 AND value >= 1 RETURNING value";

/// A call on this number of buckets, all or none.
fn group(buckets: usize) -> String {
    let list = |value: &dyn Fn(usize) -> String| (0..buckets).map(value).collect::<Vec<_>>().join(", ");
    format!(
        "SELECT d.item_values FROM rate_limit._decide(ARRAY['token_bucket'], ARRAY[1e9], ARRAY[1000000], NULL, NULL, NULL, \
         NULL, NULL, ARRAY[{}], ARRAY[{}], NULL, NULL, NULL, NULL, NULL, ARRAY[{buckets}], NULL, NULL) AS d",
        list(&|_| "'user'".to_owned()),
        list(&|nth| format!("split_part($1, ',', {})", nth + 1)),
    )
}

/// Runs a statement, which returns one row, with a key.
async fn run(conn: &mut PgConnection, sql: &str, key: &str) {
    let row = sqlx::query(AssertSqlSafe(sql.to_owned()))
        .bind(key)
        .fetch_optional(&mut *conn)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert!(row.is_some(), "{sql}");
}

/// A call, and whether it is in a transaction of several statements.
struct Kind<'a> {
    name: &'static str,
    sql: String,
    in_transaction: bool,
    key: &'a dyn Fn(usize, usize) -> String,
}

impl Kind<'_> {
    async fn make(&self, conn: &mut PgConnection, key: &str) {
        if self.in_transaction {
            let mut tx = conn.begin().await.expect("BEGIN");
            run(&mut tx, &self.sql, key).await;
            tx.commit().await.expect("COMMIT");
        } else {
            run(conn, &self.sql, key).await;
        }
    }

    async fn seconds(&self, conn: &mut PgConnection, round: usize) -> Vec<f64> {
        let mut times = Vec::new();
        for nth in 0..CALLS {
            let key = (self.key)(round, nth);
            let began = Instant::now();
            self.make(conn, &key).await;
            times.push(began.elapsed().as_secs_f64());
        }
        times
    }

    /// The number of messages from the coordinator to the nodes, with those of BEGIN and COMMIT.
    async fn messages(&self, conn: &mut PgConnection) -> usize {
        let notices = Events::of("sqlx::postgres::notice");
        let watching = watch(notices.clone());
        self.make(conn, &(self.key)(ROUNDS + 1, 0)).await;
        drop(watching);
        notices.told().matches("issuing ").count()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::test]
#[ignore = "measures a Citus cluster: run tests/citus"]
async fn the_costs_of_calls_are_printed() {
    let database = Database::migrated().await;
    for (name, value) in [("user", "1e9"), ("empty", "0")] {
        let insert = format!(
            "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT '{name}', 'k' || i, {value}, rate_limit._clock(), \
             rate_limit._clock() FROM generate_series(0, {}) AS i",
            KEYS - 1
        );
        database.execute(&insert).await;
    }
    let placed = "SELECT r.key FROM rate_limit.rate_limits AS r WHERE r.name = 'user' ORDER BY r.key";
    let keys: Vec<String> = sqlx::query_scalar(placed).fetch_all(&database.pool).await.expect("keys");
    let mut by_node = BTreeMap::<i32, Vec<String>>::new();
    for key in &keys {
        let sql = "SELECT p.nodeport FROM citus_shards AS p \
                   WHERE p.shardid = get_shard_id_for_distribution_column('rate_limit.rate_limits', $1)";
        if by_node.values().map(Vec::len).sum::<usize>() < 60 {
            let port: i32 = sqlx::query_scalar(sql).bind(key).fetch_one(&database.pool).await.expect("a node");
            by_node.entry(port).or_default().push(key.clone());
        }
    }
    let nodes: Vec<Vec<String>> = by_node.into_values().collect();
    assert!(nodes.len() >= 2 && nodes.iter().all(|keys| keys.len() >= 2));
    let warm = |_, nth: usize| format!("k{}", (nth * 7) % KEYS);
    let new = |round: usize, nth: usize| format!("new{round}_{nth}");
    let one_node = |_, nth: usize| format!("{},{}", nodes[0][nth % 2], nodes[0][1 - nth % 2]);
    let two_nodes = |_, nth: usize| format!("{},{}", nodes[0][nth % nodes[0].len()], nodes[1][nth % nodes[1].len()]);
    let sixteen = |_, nth: usize| (0..16).map(|i| format!("k{}", (nth * 16 + i) % KEYS)).collect::<Vec<_>>().join(",");
    let alone = |name, sql: &str, key| Kind { name, sql: sql.to_owned(), in_transaction: false, key };
    let within = |name, sql: &str, key| Kind { name, sql: sql.to_owned(), in_transaction: true, key };
    let kinds = [
        alone("routed UPDATE", UPDATE, &warm as &dyn Fn(usize, usize) -> String),
        alone("lone call, allowed", LONE, &warm),
        alone("lone call, denied", DENIED, &warm),
        alone("first call of a key", LONE, &new),
        within("routed UPDATE in a transaction", UPDATE, &warm),
        within("allowed in a transaction", LONE, &warm),
        within("denied in a transaction", DENIED, &warm),
        alone("two limits of one node", &group(2), &one_node),
        alone("two limits of two nodes", &group(2), &two_nodes),
        alone("batch of 16 keys", &group(16), &sixteen),
    ];

    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    let mut found = vec![Vec::new(); kinds.len()];
    for round in 0..=ROUNDS {
        for (kind, found) in kinds.iter().zip(&mut found) {
            let time = median(kind.seconds(&mut conn, round).await);
            if round > 0 {
                found.push(time); // The first round fills caches.
            }
        }
    }
    citus::execute(&mut conn, "SET citus.log_remote_commands = on".to_owned()).await;
    println!("\nmedians of {ROUNDS} rounds of {CALLS} calls, on {} nodes:", citus::nodes().await.len());
    for (kind, times) in kinds.iter().zip(&found) {
        let ratio = median(times.iter().zip(&found[0]).map(|(time, update)| time / update).collect());
        let (messages, time) = (kind.messages(&mut conn).await, median(times.clone()) * 1e3);
        println!("{:32} {messages:3} messages {time:7.2} ms  {ratio:5.2} of the UPDATE", kind.name);
    }
}
