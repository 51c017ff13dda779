//! What calls cost on a Citus cluster: `tests/citus citus_costs` prints the medians of several rounds. It asserts no times.

use std::collections::BTreeMap;
use std::time::Instant;

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};

use crate::support::{Database, citus};

const ROUNDS: usize = 5;
const CALLS: usize = 100;
const KEYS: usize = 1_000;

/// A lone call, as the library sends it.
const LONE: &str =
    "SELECT rate_limit_decide_one('user', $1, 'token_bucket', 1e9, 1000000, 1e9, NULL, NULL, 1, 1, 1, 1, false)::text";

/// The UPDATE that an application would write itself.
const UPDATE: &str = "UPDATE rate_limits SET value = value - 1, ts = ts + 1 \
                      WHERE name = 'user' AND key = $1 AND shard = 0 AND value >= 1 RETURNING value::text";

/// A call on this number of buckets, all or none.
fn group(buckets: usize) -> String {
    let list = |value: &dyn Fn(usize) -> String| (0..buckets).map(value).collect::<Vec<_>>().join(", ");
    format!(
        "SELECT d.item_values::text FROM rate_limit_decide(ARRAY['token_bucket'], ARRAY[1e9], ARRAY[1000000], NULL, NULL, NULL, \
         NULL, NULL, ARRAY[{}], ARRAY[{}], NULL, NULL, NULL, NULL, NULL, ARRAY[{buckets}], NULL, NULL) AS d",
        list(&|_| "'user'".to_owned()),
        list(&|nth| format!("split_part($1, ',', {})", nth + 1)),
    )
}

async fn seconds(conn: &mut PgConnection, sql: &str, keys: impl Fn(usize) -> String) -> Vec<f64> {
    let mut times = Vec::new();
    for nth in 0..CALLS {
        let key = keys(nth);
        let began = Instant::now();
        let row: Option<Option<String>> = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .bind(&key)
            .fetch_optional(&mut *conn)
            .await
            .expect("a call");
        times.push(began.elapsed().as_secs_f64());
        assert!(row.is_some(), "{sql}");
    }
    times
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::test]
#[ignore = "measures a Citus cluster: tests/citus"]
async fn the_costs_of_calls_are_printed() {
    let database = Database::migrated().await;
    let insert = format!(
        "INSERT INTO rate_limits (name, key, value, ts, idle_at) \
         SELECT 'user', 'k' || i, 1e9, rate_limit_clock(), rate_limit_clock() FROM generate_series(0, {}) AS i",
        KEYS - 1
    );
    database.execute(&insert).await;
    let placed = "SELECT r.key FROM rate_limits AS r ORDER BY r.key";
    let keys: Vec<String> = sqlx::query_scalar(placed).fetch_all(&database.pool).await.expect("keys");
    let mut by_node = BTreeMap::<i32, Vec<String>>::new();
    for key in &keys {
        let sql = "SELECT p.nodeport FROM citus_shards AS p \
                   WHERE p.shardid = get_shard_id_for_distribution_column('rate_limits', $1)";
        if by_node.values().map(Vec::len).sum::<usize>() < 60 {
            let port: i32 = sqlx::query_scalar(sql).bind(key).fetch_one(&database.pool).await.expect("a node");
            by_node.entry(port).or_default().push(key.clone());
        }
    }
    let nodes: Vec<Vec<String>> = by_node.into_values().collect();
    assert!(nodes.len() >= 2 && nodes.iter().all(|keys| keys.len() >= 2));
    let one_node = |nth: usize| format!("{},{}", nodes[0][nth % 2], nodes[0][1 - nth % 2]);
    let two_nodes = |nth: usize| format!("{},{}", nodes[0][nth % nodes[0].len()], nodes[1][nth % nodes[1].len()]);
    let sixteen = |nth: usize| (0..16).map(|i| format!("k{}", (nth * 16 + i) % KEYS)).collect::<Vec<_>>().join(",");

    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    let mut found = BTreeMap::<&str, Vec<f64>>::new();
    for round in 0..=ROUNDS {
        let warm = |nth: usize| format!("k{}", (nth * 7) % KEYS);
        let rows = [
            ("1 routed UPDATE", seconds(&mut conn, UPDATE, warm).await),
            ("2 lone call", seconds(&mut conn, LONE, warm).await),
            ("3 first touch of a key", seconds(&mut conn, LONE, |nth| format!("new{round}_{nth}")).await),
            ("4 two limits on one node", seconds(&mut conn, &group(2), one_node).await),
            ("5 two limits on two nodes", seconds(&mut conn, &group(2), two_nodes).await),
            ("6 batch of 16 keys", seconds(&mut conn, &group(16), sixteen).await),
        ];
        for (name, times) in rows {
            if round > 0 {
                // The first round fills caches.
                found.entry(name).or_default().push(median(times));
            }
        }
    }
    let update = found["1 routed UPDATE"].clone();
    println!("\nmedians of {ROUNDS} rounds of {CALLS} calls, on {} nodes:", citus::nodes().await.len());
    for (name, times) in found {
        let ratio = median(times.iter().zip(&update).map(|(time, update)| time / update).collect());
        println!("{name:28} {:7.2} ms  {ratio:5.2} of the UPDATE", median(times) * 1e3);
    }
}
