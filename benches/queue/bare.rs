//! A bare queue with SKIP LOCKED, to compare with.

use std::sync::Arc;
use std::time::Instant;

use crate::Failure;
use crate::names::CONCURRENCY;
use crate::options::Options;
use crate::tables::QueueTables;
use crate::timed::per_second;

const INSERT: &str = "INSERT INTO bare_jobs (queue, payload) VALUES ('bench', $1::jsonb) RETURNING id";
const INSERT_MANY: &str =
    "INSERT INTO bare_jobs (queue, payload) SELECT 'bench', p::jsonb FROM unnest($1) AS p RETURNING id";
const INSERT_PADDED: &str =
    "INSERT INTO bare_jobs (queue, payload, padding) VALUES ('bench', $1::jsonb, $2) RETURNING id";
const CLAIM: &str = "SELECT id, payload::text FROM bare_jobs \
    WHERE queue = 'bench' AND state = 'waiting' AND run_at <= clock_timestamp() \
    ORDER BY run_at, id LIMIT 1 FOR UPDATE SKIP LOCKED";
const DONE: &str = "UPDATE bare_jobs SET state = 'done', finished_at = clock_timestamp() WHERE id = $1";

pub(crate) async fn enqueue(tables: &QueueTables, options: &Options, at_once: usize) -> Result<f64, Failure> {
    let pool = tables.pool.clone();
    per_second(options, move || {
        let pool = pool.clone();
        async move {
            let payload = "{\"n\": 1}";
            if at_once == 1 {
                sqlx::query(INSERT).bind(payload).execute(&pool).await?;
            } else {
                sqlx::query(INSERT_MANY).bind(vec![payload; at_once]).execute(&pool).await?;
            }
            Ok(at_once)
        }
    })
    .await
}

/// Inserts rows as large as pg-limiter's jobs, each in the caller's transaction.
pub(crate) async fn enqueue_within(tables: &QueueTables, options: &Options) -> Result<f64, Failure> {
    let (pool, padding) = (tables.pool.clone(), Arc::<str>::from(&*tables.padding));
    per_second(options, move || {
        let (pool, padding) = (pool.clone(), Arc::clone(&padding));
        async move {
            let mut tx = pool.begin().await?;
            sqlx::query(INSERT_PADDED).bind("{\"n\": 1}").bind(&*padding).execute(&mut *tx).await?;
            tx.commit().await?;
            Ok(1)
        }
    })
    .await
}

pub(crate) async fn fill(tables: &QueueTables, jobs: i64) -> Result<(), Failure> {
    let sql = "INSERT INTO bare_jobs (queue, payload) SELECT 'bench', jsonb_build_object('n', n) FROM generate_series(1, $1) AS n";
    sqlx::query(sql).bind(jobs).execute(&tables.pool).await?;
    sqlx::raw_sql("ANALYZE bare_jobs").execute(&tables.pool).await?;
    Ok(())
}

/// Returns the jobs per second. Each job is claimed and marked as done in one transaction.
pub(crate) async fn work(tables: &QueueTables, jobs: i64) -> Result<f64, Failure> {
    let began = Instant::now();
    let workers: Vec<_> = (0..CONCURRENCY)
        .map(|_| {
            let pool = tables.pool.clone();
            tokio::spawn(async move {
                let mut done = 0;
                loop {
                    let mut tx = pool.begin().await?;
                    let Some((id, _payload)) =
                        sqlx::query_as::<_, (i64, String)>(CLAIM).fetch_optional(&mut *tx).await?
                    else {
                        return Ok::<i64, Failure>(done);
                    };
                    sqlx::query(DONE).bind(id).execute(&mut *tx).await?;
                    tx.commit().await?;
                    done += 1;
                }
            })
        })
        .collect();
    let mut done = 0;
    for worker in workers {
        done += worker.await??;
    }
    assert_eq!(done, jobs, "every job must run once");
    Ok(jobs as f64 / began.elapsed().as_secs_f64())
}
