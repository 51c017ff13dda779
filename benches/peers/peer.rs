//! What decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pg_limiter::{Item, LimitRef, Limiter};
use sqlx::{PgConnection, PgPool, Row};
use tokio::sync::Mutex;

use crate::Failure;
use crate::cpu::Processes;
use crate::redis_peer::Bucket;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// Of its server.
    pub(crate) processes: Processes,
    means: Means,
    retries: AtomicU64,
}

#[derive(Debug)]
pub(crate) enum Means {
    /// One conditional UPDATE in READ COMMITTED: as little as a decision can be.
    Update(PgPool),
    /// The same on a connection that the caller holds, without a pool. (The lock is free: it has one caller.)
    UpdateAlone(Mutex<PgConnection>),
    /// The seed's function in a SERIALIZABLE transaction, tried again after a conflict.
    Seed(PgPool),
    /// A row for every hit, counted anew by each decision.
    SlidingLog(PgPool),
    /// `limiter.limit`.
    Limiter(Limiter, LimitRef),
    /// The same with several limits in one decision.
    Several(Limiter, Box<[LimitRef; 4]>),
    /// `limiter.within` in a SERIALIZABLE transaction that writes a row of the caller, too, and is retried as a whole.
    Work(Limiter, LimitRef),
    /// `limiter.within` in a READ COMMITTED transaction of the caller.
    Within(Limiter, LimitRef),
    /// A Lua script.
    Redis(Bucket),
}

impl Peer {
    pub(crate) fn new(name: &'static str, processes: Processes, means: Means) -> Arc<Self> {
        Arc::new(Self { name, processes, means, retries: AtomicU64::new(0) })
    }

    /// So far.
    pub(crate) fn retries(&self) -> u64 {
        match &self.means {
            Means::Limiter(limiter, _) | Means::Several(limiter, _) | Means::Work(limiter, _) => limiter.retries(),
            _ => self.retries.load(Ordering::Relaxed),
        }
    }

    /// What is left.
    pub(crate) async fn left(&self, key: &Arc<str>) -> Result<f64, Failure> {
        match &self.means {
            Means::Limiter(limiter, limit) | Means::Work(limiter, limit) | Means::Within(limiter, limit) => {
                Ok(limiter.peek((limit.clone(), key.clone())).await?.remaining())
            }
            _ => Err("this peer is not asked what is left".into()),
        }
    }

    /// One decision: allowed or not.
    pub(crate) async fn decide(&self, key: &Arc<str>) -> Result<bool, Failure> {
        match &self.means {
            Means::Update(pool) => update(pool, key).await,
            Means::UpdateAlone(connection) => update(&mut *connection.lock().await, key).await,
            Means::Seed(pool) => loop {
                match seed(pool, key).await {
                    Ok(left) => return Ok(left >= 0.0),
                    Err(error) if error.as_database_error().and_then(|e| e.code()).as_deref() == Some("40001") => {
                        self.retries.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => return Err(error.into()),
                }
            },
            Means::SlidingLog(pool) => {
                Ok(sqlx::query_scalar("SELECT log_take($1)").bind(&**key).fetch_one(pool).await?)
            }
            Means::Limiter(limiter, limit) => Ok(limiter.limit((limit.clone(), key.clone())).await?.is_allowed()),
            Means::Several(limiter, limits) => {
                let items = limits.each_ref().map(|limit| Item::new(limit.clone(), key.clone()));
                Ok(limiter.limit(items).await?.is_allowed())
            }
            Means::Work(limiter, limit) => {
                let (limits, limit, key) = (limiter.clone(), limit.clone(), key.clone());
                let work = limiter.transaction(async move |tx| {
                    sqlx::query("INSERT INTO orders DEFAULT VALUES")
                        .execute(&mut *tx)
                        .await
                        .map_err(WorkError::Database)?;
                    limits.within(tx).limit((limit.clone(), key.clone())).await?.enforce()?;
                    Ok::<_, WorkError>(())
                });
                match work.await {
                    Ok(()) => Ok(true),
                    Err(WorkError::Limit(pg_limiter::Error::Denied(_))) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
            Means::Within(limiter, limit) => {
                let mut tx = limiter.pool().begin().await?;
                let decision = limiter.within(&mut tx).limit((limit.clone(), key.clone())).await?;
                tx.commit().await?;
                Ok(decision.is_allowed())
            }
            Means::Redis(bucket) => bucket.take(key).await,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Limit(#[from] pg_limiter::Error),
    #[error(transparent)]
    Database(sqlx::Error),
}

async fn update(executor: impl sqlx::PgExecutor<'_>, key: &str) -> Result<bool, Failure> {
    let update = sqlx::query("UPDATE plain SET value = value - 1 WHERE key = $1 AND value - 1 >= 0").bind(key);
    Ok(update.execute(executor).await?.rows_affected() == 1)
}

async fn seed(pool: &PgPool, key: &str) -> Result<f64, sqlx::Error> {
    let mut tx = pool.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await?;
    let row = sqlx::query("SELECT seed_take($1, 1e9, 1e9)").bind(key).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    row.try_get(0)
}
