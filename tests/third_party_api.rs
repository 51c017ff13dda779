//! Runs the example `third_party_api` at its real pace. It is a separate binary, because other load on the machine delays
//! requests.
#![cfg(feature = "embedded")]
#![allow(unreachable_pub, missing_debug_implementations)]

use std::sync::Mutex;
use std::time::{Duration, Instant};

#[path = "../examples/third_party_api.rs"]
#[allow(dead_code)]
mod example;

use pg_limiter::embedded::{Server, ServerConfig};
use sqlx::PgPool;

/// A request that comes this much later than its job's start may be refused: the example's pace is 0.3 s slower than what the
/// third party allows in its window.
const TOO_LATE: Duration = Duration::from_millis(150);

/// Returns the longest time from one small write to the next. A machine that stands still for longer than `TOO_LATE` delays
/// requests, whatever a queue does.
async fn longest_pause(pool: &PgPool, longest: &Mutex<Duration>) {
    loop {
        let began = Instant::now();
        tokio::time::sleep(Duration::from_millis(10)).await;
        sqlx::query("INSERT INTO pauses VALUES (1)").execute(pool).await.expect("insert");
        let mut longest = longest.lock().expect("the longest pause");
        *longest = longest.max(began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn three_hundred_jobs_get_no_429_and_use_the_rate() {
    let mut config = ServerConfig::default();
    config.version = std::env::var("PG_LIMITER_TEST_VERSION").ok();
    config.container = std::env::var("PG_LIMITER_TEST_SERVER").is_ok_and(|server| server == "container");
    let server = tokio::task::spawn_blocking(move || Server::start(&config)).await.expect("a task").expect("a server");
    for run in 1..=4 {
        let pool = PgPool::connect(&server.url("postgres")).await.expect("connect");
        sqlx::query(sqlx::AssertSqlSafe(format!("CREATE DATABASE run_{run}")))
            .execute(&pool)
            .await
            .expect("a database");
        pool.close().await;
        let pool = PgPool::connect(&server.url(&format!("run_{run}"))).await.expect("connect");
        pg_limiter::migrate::migrate(&pool).await.expect("migrate");
        sqlx::query("CREATE TABLE pauses (one integer)").execute(&pool).await.expect("a table");
        let longest = Mutex::default();
        let seen = tokio::select! {
            seen = example::run(&pool, 3, 300) => seen.expect("all jobs"),
            () = longest_pause(&pool, &longest) => unreachable!("it ends with the jobs"),
        };
        pool.close().await;
        let longest = longest.into_inner().expect("the longest pause");
        assert_eq!(seen.len(), 3);
        // Only what the machine did is a reason for another run. Without a pause, one 429 is a failure.
        if seen.values().any(|seen| seen.refused > 0) && longest > TOO_LATE && run < 4 {
            println!("run {run}: the machine stood still for {:?}, so once more", longest);
            continue;
        }
        for (group, seen) in seen {
            assert_eq!((seen.admitted.len(), seen.refused), (100, 0), "{group}, longest pause {:?}", longest);
            assert!(seen.share() >= 0.95, "{group}: {}", seen.share());
        }
        return;
    }
}
