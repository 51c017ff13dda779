//! Nodes whose clocks differ, as on a cluster where each connection reads the clock of its node.

use std::time::Duration;

use pg_limiter::sqlx::{self, PgConnection};
use pg_limiter::{Item, Limit, Limiter, Limits};

use crate::support::Database;

const RATE: f64 = 10.0;
const CAPACITY: f64 = 20.0;
/// YugabyteDB's default of max_clock_skew_usec.
const SKEW: f64 = 0.5;

/// Connections to nodes whose clocks are wrong by these numbers of seconds.
async fn nodes(database: &Database, skews: &[f64]) -> Vec<PgConnection> {
    database
        .execute(
            "CREATE OR REPLACE FUNCTION rate_limit._clock() RETURNS bigint LANGUAGE sql VOLATILE AS
             $$ SELECT ((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                        + coalesce(nullif(pg_catalog.current_setting('test.skew', true), '')::float8, 0)) * 1000000)::bigint $$",
        )
        .await;
    let mut nodes = Vec::new();
    for skew in skews {
        let mut node = <PgConnection as sqlx::Connection>::connect(&database.url).await.expect("connect");
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("SET test.skew = {skew}")))
            .execute(&mut node)
            .await
            .expect("a clock");
        nodes.push(node);
    }
    nodes
}

/// The time of the server itself, in seconds.
async fn time(database: &Database) -> f64 {
    let sql = "SELECT date_part('epoch', clock_timestamp())";
    sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("a time")
}

/// However often the nodes take turns, their difference is granted only once.
#[tokio::test]
async fn a_difference_of_clocks_is_granted_once() {
    let database = Database::migrated().await;
    let second = Duration::from_secs(1);
    for (name, limit) in [
        ("bucket", Limit::token_bucket(RATE, second).capacity(CAPACITY)),
        ("sharded", Limit::token_bucket(RATE, second).capacity(CAPACITY).shards(4)),
    ] {
        let limiter = Limiter::new(database.pool.clone(), Limits::new().define(name, limit).expect("a limit"));
        let mut nodes = nodes(&database, &[0.0, SKEW, -SKEW / 2.0]).await;
        let began = time(&database).await;
        let mut admitted = 0.0;
        for round in 0..1200 {
            let node = &mut nodes[round % 3];
            if limiter.within(node).limit((name, "k")).await.expect("a decision").is_allowed() {
                admitted += 1.0;
            }
        }
        let elapsed = time(&database).await - began;
        // The bucket is full at first, and the largest difference between two clocks is 1.5 times the skew.
        let most = CAPACITY + RATE * (elapsed + 1.5 * SKEW);
        assert!(admitted <= most, "{name}: {admitted} admitted in {elapsed} s, {most} at most");
        // If each turn granted the difference, all calls would be admitted.
        assert!(RATE * SKEW >= 1.0 && most < 1200.0, "{most}: the machine is too slow for this test");
    }
}

/// A node whose clock is behind keeps another node's promised time, late by at most the difference of the clocks.
#[tokio::test]
async fn a_node_that_is_behind_adds_at_most_the_difference_to_a_wait() {
    let database = Database::migrated().await;
    let limit = Limit::token_bucket(1, Duration::from_secs(1000)).capacity(1).build().expect("a limit");
    let limiter = Limiter::new(database.pool.clone(), Limits::new());
    let mut nodes = nodes(&database, &[SKEW, 0.0]).await;
    let item = || Item::new(("one", limit), "k");
    assert!(limiter.within(&mut nodes[0]).limit(item()).await.expect("a decision").is_allowed());
    let ahead = limiter.within(&mut nodes[0]).limit(item()).await.expect("a decision").retry_after().expect("a wait");
    let behind = limiter.within(&mut nodes[1]).limit(item()).await.expect("a decision").retry_after().expect("a wait");
    let later = behind.as_secs_f64() - ahead.as_secs_f64();
    assert!(later > 0.0 && later <= SKEW, "{ahead:?} on the node that is ahead, {behind:?} on the other");
}
