//! Combines reservations with the job queue of another library, graphile_worker. The reservation and the job commit or roll
//! back together, and the job runs when its reserved token is available.
//!
//!     cargo run --manifest-path examples/graphile_worker/Cargo.toml
//!
//! It runs in the database in `DATABASE_URL`, or on a private PostgreSQL if that is not set.

use std::time::Duration;

use graphile_worker::{IntoTaskHandlerResult, JobSpec, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils};
use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::{Item, Limit, Limiter, Limits};
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Deserialize, Serialize)]
struct Mail {
    number: u32,
}

impl TaskHandler for Mail {
    const IDENTIFIER: &'static str = "pg_limiter_example_mail";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        let late: f64 = sqlx::query_scalar("SELECT extract(epoch FROM clock_timestamp() - $1)::float8")
            .bind(ctx.job().run_at())
            .fetch_one(ctx.pg_pool())
            .await
            .map_err(|error| error.to_string())?;
        println!("mail {}: runs {:.1} ms after its time", self.number, late * 1e3);
        let report = ctx.get_ext::<UnboundedSender<(i64, f64)>>().ok_or("no channel for reports")?;
        report.send((*ctx.job().id(), late)).map_err(|error| error.to_string())
    }
}

/// Takes or reserves a token, and adds a job that runs when the token is available. Returns the job's id and the wait.
async fn enqueue(
    conn: &mut PgConnection,
    limiter: &Limiter,
    jobs: &WorkerUtils,
    mail: Mail,
) -> Result<(i64, Duration)> {
    let permit = limiter.within(conn).limit(Item::new("mail", "tenant-1").reserve()).await?.enforce()?;
    let wait = permit.wait.unwrap_or_default();
    // The wait begins at the decision. now() is the start of the transaction, so with it the job would run too early.
    let run_at = sqlx::query_scalar("SELECT clock_timestamp() + $1").bind(wait).fetch_one(&mut *conn).await?;
    let spec = JobSpec { run_at: Some(run_at), ..JobSpec::default() };
    let job = jobs.clone().with_executor(conn).add_job(mail, spec).await?;
    Ok((*job.id(), wait))
}

/// Runs a worker until these jobs have run. It fails if one of them runs early, or if one of the jobs in `never` runs.
async fn work(pool: &PgPool, mut jobs: Vec<i64>, never: Vec<i64>) -> Result<()> {
    // The job that ran, and how many seconds after its time.
    let (report, mut reports) = unbounded_channel::<(i64, f64)>();
    // The worker runs one job at a time, in the order of their times.
    let options = WorkerOptions::default().concurrency(1).poll_interval(Duration::from_millis(10));
    let worker = options.pg_pool(pool.clone()).define_job::<Mail>().add_extension(report).init().await?;
    let watch = async {
        while !jobs.is_empty() {
            let (ran, late) =
                tokio::time::timeout(Duration::from_secs(30), reports.recv()).await?.ok_or("no worker")?;
            if late < 0.0 || never.contains(&ran) {
                return Err("a job ran early, or a job ran that was rolled back".into());
            }
            jobs.retain(|job| *job != ran);
        }
        worker.request_shutdown();
        Ok(())
    };
    tokio::try_join!(watch, async { Result::Ok(worker.run().await?) }).map(|_| ())
}

#[tokio::main]
async fn main() -> Result<()> {
    let private = match std::env::var("DATABASE_URL") {
        Ok(_) => None,
        Err(_) => Some(Server::start(&ServerConfig::default())?),
    };
    let url = match &private {
        Some(server) => server.url("postgres"),
        None => std::env::var("DATABASE_URL")?,
    };
    let pool = PgPool::connect(&url).await?;
    pg_limiter::migrate::migrate(&pool).await?;
    let jobs = WorkerUtils::new(pool.clone(), "graphile_worker");
    jobs.migrate().await?;

    let limits = Limits::new().define("mail", Limit::token_bucket(5, Duration::from_secs(1)).capacity(1))?;
    let limiter = Limiter::new(pool.clone(), limits);
    let (mut committed, mut rolled_back) = (Vec::new(), Vec::new());
    for number in 1..=7 {
        let before = limiter.peek(("mail", "tenant-1")).await?.remaining();
        let mut tx = pool.begin().await?;
        let (job, wait) = enqueue(&mut tx, &limiter, &jobs, Mail { number }).await?;
        if number != 4 {
            tx.commit().await?;
            println!("mail {number}: to run in {wait:?}");
            committed.push(job);
            continue;
        }
        tx.rollback().await?;
        println!("mail {number}: to run in {wait:?}, rolled back");
        let left =
            sqlx::query("SELECT FROM graphile_worker.jobs WHERE id = $1").bind(job).fetch_optional(&pool).await?;
        if left.is_some() || limiter.peek(("mail", "tenant-1")).await?.remaining() < before {
            return Err("the rollback did not remove the job or the reservation".into());
        }
        rolled_back.push(job);
    }
    work(&pool, committed, rolled_back).await?;
    println!("every committed job ran, and none ran early");
    limiter.close().await;
    pool.close().await;
    Ok(())
}
