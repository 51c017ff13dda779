//! Exports the limiter's metrics to Prometheus. It prints the text that an application would serve at `/metrics`.
//!
//!     cargo run --features embedded,metrics --example prometheus
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.

#[cfg(not(test))]
mod common;

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use pg_limiter::observability::{count_shadow_denial, metric};
use pg_limiter::queue::{Finish, Job, JobState, Queue, WorkerConfig, handler_fn};
use pg_limiter::{Item, Limit, Limiter, Limits};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Installs the recorder for the whole process. Without buckets, the histograms would be exported as summaries.
fn install() -> Result<PrometheusHandle, BoxError> {
    let seconds = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
    let calls = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &seconds)?
        .set_buckets_for_metric(Matcher::Full(metric::BATCH_CALLS.to_owned()), &calls)?
        .install_recorder()?;
    metric::describe();
    Ok(handle)
}

/// Makes some calls, runs some jobs, and returns the text of a scrape.
pub(crate) async fn run(pool: &PgPool) -> Result<String, BoxError> {
    let metrics = install()?;
    let second = Duration::from_secs(1);
    let limits = Limits::new()
        .define("per_user", Limit::token_bucket(3, second * 3600))?
        .define("everybody", Limit::sliding_window(100, second))?
        .define("new_limit", Limit::token_bucket(1, second * 3600))?
        .define("mails", Limit::token_bucket(100, second).capacity(1))?;
    let limiter = Limiter::new(pool.clone(), limits);

    for _ in 0..5 {
        let decision = limiter.limit([Item::new("per_user", "u1"), Item::global("everybody")]).await?;
        println!("{:?}", decision.outcome());
        // A limit in shadow mode: its denials are counted, but the request continues.
        count_shadow_denial(&limiter.limit(("new_limit", "u1")).await?);
    }
    limiter.until_ready(("mails", "u1"), second).await?.enforce()?;

    let queue = Queue::new(&limiter, "mails")?;
    for nth in 0..5 {
        queue.enqueue(Job::new(("mails", "u1"), &nth)?).await?.enforce()?;
    }
    let worker = queue.worker(WorkerConfig::default(), handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) })))?;
    let all_done = async {
        while !queue.jobs(Some(JobState::Done), 5).await.is_ok_and(|jobs| jobs.len() == 5) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    worker.run(all_done).await?;

    // In an application, this is the body of the response to GET /metrics.
    metrics.run_upkeep();
    Ok(metrics.render())
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let scrape = common::on_a_fresh_database(run).await?;
    println!("{scrape}");
    Ok(())
}
