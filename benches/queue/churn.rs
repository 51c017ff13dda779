//! Jobs that come and go at a million an hour, with an old snapshot in the middle: do the tables and indexes stay as large as they
//! are?

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pg_limiter::queue::{Finish, RunningJob, handler_fn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::Failure;
use crate::names::CALLERS;
use crate::options::Options;
use crate::ours::{config, job};
use crate::tables::QueueTables;

/// The time between two jobs: a million an hour.
const EVERY: Duration = Duration::from_micros(3_600);
const GROUPS: u64 = 1000;
/// Workers delete jobs that ended so long ago.
const KEPT: Duration = Duration::from_secs(60);
/// The age that the old snapshot reaches, if the run is long enough: at most a tenth of it.
const OLD: Duration = Duration::from_secs(60);
/// The looks at the tables in a run.
const LOOKS: u32 = 40;

const SIZES: &str = "SELECT pg_catalog.json_build_object(
      'table', c.relname, 'bytes', pg_catalog.pg_table_size(c.oid), 'index_bytes', pg_catalog.pg_indexes_size(c.oid),
      'rows', pg_catalog.pg_stat_get_live_tuples(c.oid), 'dead', pg_catalog.pg_stat_get_dead_tuples(c.oid))::text
    FROM pg_catalog.pg_class AS c
    WHERE c.relnamespace = 'rate_limit'::regnamespace AND c.relname IN ('jobs', 'groups', 'rate_limits')
    ORDER BY c.relname";

/// The size of a table at one moment.
#[derive(Deserialize, Serialize)]
struct Size {
    table: String,
    bytes: i64,
    index_bytes: i64,
    rows: i64,
    dead: i64,
}

pub(crate) struct Churn {
    jobs: u64,
    took: Duration,
    looks: Vec<(Duration, Vec<Size>)>,
}

/// Enqueues and runs jobs for the time of `--seconds`.
pub(crate) async fn churn(tables: &QueueTables, options: &Options) -> Result<Churn, Failure> {
    let done = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&done);
    let handler = handler_fn(move |_: &RunningJob, _: &mut PgConnection| {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Finish::Done) })
    });
    let mut config = config();
    config.keep_ended = KEPT;
    let worker = tables.queue.worker(config, handler)?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(worker.run(async { stopped.await.unwrap_or_default() }));
    let began = Instant::now();
    let looks = tokio::select! {
        failed = enqueue(tables) => return Err(failed),
        failed = grow_old(tables, options.time) => return Err(failed),
        looks = look(tables, options.time, began) => looks?,
    };
    let took = began.elapsed();
    let _ = stop.send(());
    running.await??;
    Ok(Churn { jobs: done.load(Ordering::Relaxed), took, looks })
}

/// Several callers, each of which waits for its answers, as in an application.
async fn enqueue(tables: &QueueTables) -> Failure {
    let nth = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (queue, nth) = (tables.queue.clone(), Arc::clone(&nth));
        callers.spawn(async move {
            let mut every = tokio::time::interval(EVERY * CALLERS as u32);
            every.set_missed_tick_behavior(MissedTickBehavior::Burst);
            loop {
                every.tick().await;
                queue.enqueue(job(&nth, GROUPS)?).await?.enforce()?;
            }
        });
    }
    match callers.join_next().await {
        Some(Ok(ended)) => {
            let Err::<Infallible, Failure>(failed) = ended;
            failed
        }
        Some(Err(failed)) => failed.into(),
        None => "nobody enqueues".into(),
    }
}

/// Holds a snapshot for a minute before the middle of the run: no row that ends meanwhile can be removed.
async fn grow_old(tables: &QueueTables, time: Duration) -> Failure {
    let hold = async {
        tokio::time::sleep(time * 2 / 5).await;
        let mut tx = tables.pool.begin().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *tx).await?;
        sqlx::query("SELECT FROM rate_limit.jobs LIMIT 1").execute(&mut *tx).await?;
        tokio::time::sleep(OLD.min(time / 10)).await;
        tx.commit().await
    };
    match hold.await {
        Err(failed) => failed.into(),
        Ok(()) => std::future::pending().await,
    }
}

async fn look(tables: &QueueTables, time: Duration, began: Instant) -> Result<Vec<(Duration, Vec<Size>)>, Failure> {
    let mut looks = Vec::new();
    for nth in 1..=LOOKS {
        tokio::time::sleep((time * nth / LOOKS).saturating_sub(began.elapsed())).await;
        let sizes: Vec<String> = sqlx::query_scalar(SIZES).fetch_all(&tables.pool).await?;
        looks.push((began.elapsed(), sizes.iter().map(|size| serde_json::from_str(size)).collect::<Result<_, _>>()?));
    }
    Ok(looks)
}

impl Churn {
    fn per_hour(&self) -> f64 {
        self.jobs as f64 / self.took.as_secs_f64() * 3600.0
    }

    /// The largest size of all tables with their indexes in the last quarter, as a share of that in the quarter before, which
    /// begins after the old snapshot has ended.
    fn growth(&self) -> f64 {
        let all = |(_, sizes): &(Duration, Vec<Size>)| -> i64 {
            sizes.iter().map(|size| size.bytes + size.index_bytes).sum()
        };
        let largest = |looks: &[_]| looks.iter().map(all).max().unwrap_or_default() as f64;
        let quarter = self.looks.len() / 4;
        largest(&self.looks[3 * quarter..]) / largest(&self.looks[2 * quarter..3 * quarter])
    }

    pub(crate) fn print(&self) {
        println!("churn: {} jobs in {:.0} s, {:.0} an hour", self.jobs, self.took.as_secs_f64(), self.per_hour());
        println!("{:>6}  {:<12} {:>9} {:>10} {:>8} {:>8}", "after", "table", "MB", "indexes MB", "rows", "dead");
        for (after, sizes) in &self.looks {
            for size in sizes {
                println!(
                    "{:>4.0} s  {:<12} {:>9.1} {:>10.1} {:>8} {:>8}",
                    after.as_secs_f64(),
                    size.table,
                    size.bytes as f64 / 1e6,
                    size.index_bytes as f64 / 1e6,
                    size.rows,
                    size.dead
                );
            }
        }
        println!("largest size in the last quarter, as a share of that in the quarter before: {:.2}", self.growth());
    }

    pub(crate) fn json(&self) -> Value {
        let look = |(after, sizes): &(Duration, Vec<Size>)| json!({"after_s": after.as_secs_f64(), "sizes": sizes});
        json!({
            "jobs": self.jobs,
            "per_hour": self.per_hour(),
            "growth": self.growth(),
            "looks": self.looks.iter().map(look).collect::<Vec<_>>(),
        })
    }
}
