//! Runs the example `prometheus` and checks its scrape. It is a separate binary, because the recorder is global to the
//! process.
#![cfg(all(feature = "embedded", feature = "metrics"))]
#![allow(unreachable_pub, missing_debug_implementations)]

#[path = "../examples/prometheus.rs"]
#[allow(dead_code)]
mod example;

use pg_limiter::embedded::{Server, ServerConfig};
use sqlx::PgPool;

/// The value of the line that begins with `series`.
fn value(scrape: &str, series: &str) -> f64 {
    let line =
        scrape.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("{series}: {scrape}"));
    line.trim().parse().expect(line)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrape_reports_decisions_durations_batches_and_the_lag_of_jobs() {
    let mut config = ServerConfig::default();
    config.version = std::env::var("PG_LIMITER_TEST_VERSION").ok();
    config.container = std::env::var("PG_LIMITER_TEST_SERVER").is_ok_and(|server| server == "container");
    let server = tokio::task::spawn_blocking(move || Server::start(&config)).await.expect("a task").expect("a server");
    let pool = PgPool::connect(&server.url("postgres")).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let scrape = example::run(&pool).await.expect("a scrape");
    let decisions = |limit: &str, outcome: &str| {
        value(&scrape, &format!("pg_limiter_decisions_total{{limit=\"{limit}\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!((decisions("per_user", "allowed"), decisions("per_user", "denied")), (3.0, 2.0));
    assert_eq!((decisions("everybody", "allowed"), decisions("everybody", "unused")), (3.0, 2.0));
    assert_eq!(value(&scrape, "pg_limiter_shadow_denials_total{limit=\"new_limit\"}"), 4.0);
    assert_eq!(value(&scrape, "pg_limiter_queue_lag_seconds_count{queue=\"mails\"}"), 5.0);
    assert_eq!(value(&scrape, "pg_limiter_batch_calls_bucket{op=\"decide\",le=\"1\"}"), 11.0);
    let durations = "pg_limiter_call_duration_seconds_count{op=\"limit\",transaction=\"own\",outcome=\"allowed\"}";
    assert_eq!(value(&scrape, durations), 4.0);
    // The worker has stopped, so the gauges report no outdated value.
    for series in ["jobs{queue=\"mails\",state=\"dead\"}", "overdue_seconds{queue=\"mails\"}"] {
        assert!(value(&scrape, &format!("pg_limiter_queue_{series}")).is_nan(), "{scrape}");
    }
    for line in [
        "# TYPE pg_limiter_queue_jobs gauge",
        "# TYPE pg_limiter_decisions_total counter",
        "# HELP pg_limiter_decisions_total Decisions about tokens, for each limit of a call.",
        "# TYPE pg_limiter_call_duration_seconds histogram",
    ] {
        assert!(scrape.lines().any(|other| other == line), "{line}: {scrape}");
    }
    pool.close().await;
}
