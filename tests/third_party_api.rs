//! Runs the example `third_party_api` at its real pace. It is a separate binary, because other load on the machine delays
//! requests.
#![cfg(feature = "embedded")]
#![allow(unreachable_pub, missing_debug_implementations)]

#[path = "../examples/third_party_api.rs"]
#[allow(dead_code)]
mod example;

use pg_limiter::embedded::{Server, ServerConfig};
use sqlx::PgPool;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn three_hundred_jobs_get_no_429_and_use_the_rate() {
    let mut config = ServerConfig::default();
    config.version = std::env::var("PG_LIMITER_TEST_VERSION").ok();
    config.container = std::env::var("PG_LIMITER_TEST_SERVER").is_ok_and(|server| server == "container");
    let server = tokio::task::spawn_blocking(move || Server::start(&config)).await.expect("a task").expect("a server");
    let pool = PgPool::connect(&server.url("postgres")).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let seen = example::run(&pool, 3, 300).await.expect("all jobs");
    assert_eq!(seen.len(), 3);
    for (group, seen) in seen {
        assert_eq!((seen.admitted.len(), seen.refused), (100, 0), "{group}");
        assert!(seen.share() >= 0.95, "{group}: {}", seen.share());
    }
    pool.close().await;
}
