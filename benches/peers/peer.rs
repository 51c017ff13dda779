//! The peers: each decides on calls in its own way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::DefaultDirectRateLimiter;
use pg_limiter::{Allowance, Item, LeaseId, LimitRef, Limiter, TransactionLimiter};
use sqlx::{PgConnection, PgPool, Row};
use tokio::sync::Mutex;

use crate::Failure;
use crate::cpu::Processes;
use crate::gateway_peer::{Gateway, Requests};
use crate::keys::{Keys, partner, second};
use crate::limiters::AMPLE;
use crate::redis_peer::RedisLimit;
use crate::sums_peer::Batches;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// The processes of the peer's server.
    pub(crate) processes: Processes,
    means: Means,
    retries: AtomicU64,
}

#[derive(Debug)]
pub(crate) enum Means {
    /// One conditional UPDATE in READ COMMITTED: the least that a decision can be.
    Update(PgPool),
    /// The same on the caller's own connection, without a pool. (There is one caller, so it never waits for the mutex.)
    UpdateAlone(Mutex<PgConnection>),
    /// A conditional UPDATE of a row in the limiter's table, by its primary key.
    UpdateBucket(Mutex<PgConnection>),
    /// The seed's function in a SERIALIZABLE transaction, which is retried after a conflict.
    Seed(PgPool),
    /// A row for every hit. Each decision counts the rows.
    SlidingLog(PgPool),
    /// `limiter.limit`.
    Limiter(Limiter, LimitRef),
    /// `allowance.take`, on one key.
    Allowance(Allowance),
    /// A limiter of this process alone, on one key.
    Governor(DefaultDirectRateLimiter),
    /// Takes a slot under a lease, and releases it: two calls.
    Slots(Limiter, LimitRef),
    /// `limiter.limit` with several limits in one decision.
    Several(Limiter, Box<[LimitRef; 4]>),
    /// `limiter.limit` with two limits: one for the key and one for its partner among these keys.
    Group(Limiter, [LimitRef; 2], Keys),
    /// A gateway's request, with its settlement.
    Gateway(Requests, Gateway),
    /// `limiter.within` in a SERIALIZABLE transaction that also writes a row of the caller, and is retried as a whole.
    Work(Limiter, LimitRef),
    /// `limiter.within` in the caller's READ COMMITTED transaction.
    Within(Limiter, LimitRef),
    /// The caller's READ COMMITTED transaction, which also writes a row of the application.
    Transaction(PgPool, Part),
    /// A statement for a batch of keys.
    Batches(Batches),
    /// A Lua script.
    Redis(RedisLimit),
}

/// The limits within the caller's transaction, or the UPDATEs in their place.
#[derive(Debug)]
pub(crate) enum Part {
    /// `TransactionLimiter::within`, with these limits in one call.
    Limits(TransactionLimiter, Box<[LimitRef]>),
    /// Bare UPDATEs of this many rows: one or two.
    Updates(usize),
}

impl Peer {
    pub(crate) fn new(name: &'static str, processes: Processes, means: Means) -> Arc<Self> {
        Arc::new(Self { name, processes, means, retries: AtomicU64::new(0) })
    }

    /// The number of retries so far.
    pub(crate) fn retries(&self) -> u64 {
        match &self.means {
            Means::Limiter(limiter, _)
            | Means::Several(limiter, _)
            | Means::Slots(limiter, _)
            | Means::Group(limiter, ..)
            | Means::Work(limiter, _) => limiter.retries(),
            Means::Gateway(_, gateway) => gateway.retries(),
            _ => self.retries.load(Ordering::Relaxed),
        }
    }

    /// The tokens left for the key.
    pub(crate) async fn left(&self, key: &Arc<str>) -> Result<f64, Failure> {
        match &self.means {
            Means::Limiter(limiter, limit) | Means::Work(limiter, limit) | Means::Within(limiter, limit) => {
                Ok(limiter.peek((limit.clone(), key.clone())).await?.remaining())
            }
            _ => Err("this peer does not report the tokens left".into()),
        }
    }

    /// Makes one decision. Returns whether it allows the call.
    pub(crate) async fn decide(&self, key: &Arc<str>) -> Result<bool, Failure> {
        match &self.means {
            Means::Update(pool) => Ok(update(pool, key).await?),
            Means::UpdateAlone(connection) => Ok(update(&mut *connection.lock().await, key).await?),
            Means::UpdateBucket(connection) => Ok(update_bucket(&mut *connection.lock().await, key).await?),
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
            // A decision from memory does not wait. Without the budget of its task, a caller would keep its thread.
            Means::Allowance(allowance) => {
                tokio::task::coop::consume_budget().await;
                Ok(allowance.try_take(1) || allowance.take(1).await?.is_allowed())
            }
            Means::Governor(limiter) => {
                tokio::task::coop::consume_budget().await;
                Ok(limiter.check().is_ok())
            }
            Means::Slots(limiter, limit) => {
                let lease = LeaseId::random();
                let slot = || Item::new(limit.clone(), key.clone()).lease(lease);
                Ok(limiter.limit(slot()).await?.is_allowed() && limiter.release(slot()).await?)
            }
            Means::Several(limiter, limits) => {
                let items = limits.each_ref().map(|limit| Item::new(limit.clone(), key.clone()));
                Ok(limiter.limit(items).await?.is_allowed())
            }
            Means::Group(limiter, [of_key, of_partner], partners) => {
                let items = [(of_key, key), (of_partner, partner(partners, key))];
                let items = items.map(|(limit, key)| Item::new(limit.clone(), key.clone()));
                Ok(limiter.limit(items).await?.is_allowed())
            }
            Means::Gateway(requests, gateway) => gateway.take(requests, key).await,
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
            Means::Transaction(pool, part) => loop {
                match transaction(pool, part, key).await {
                    Err(WorkError::Limit(error)) if error.is_retryable() => {
                        self.retries.fetch_add(1, Ordering::Relaxed);
                    }
                    done => return Ok(done?),
                }
            },
            Means::Batches(batches) => batches.take().await,
            Means::Redis(limit) => limit.take(key).await,
        }
    }

    /// Whether each decision is settled.
    pub(crate) const fn settles(&self) -> bool {
        matches!(self.means, Means::Gateway(..))
    }

    /// Settles a decision.
    pub(crate) async fn settle(&self, key: &str) -> Result<(), Failure> {
        match &self.means {
            Means::Gateway(requests, gateway) => gateway.settle(requests, key).await,
            _ => Ok(()),
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

/// Runs BEGIN, an INSERT of the application, the decision, and COMMIT.
async fn transaction(pool: &PgPool, part: &Part, key: &Arc<str>) -> Result<bool, WorkError> {
    let mut tx = pool.begin().await.map_err(WorkError::Database)?;
    let insert = sqlx::query("INSERT INTO messages (author, body) VALUES ($1, 'hello')").bind(&**key);
    insert.execute(&mut *tx).await.map_err(WorkError::Database)?;
    let allowed = match part {
        Part::Limits(rate_limits, limits) => {
            let items: Vec<Item> = limits.iter().map(|limit| Item::new(limit.clone(), key.clone())).collect();
            rate_limits.within(&mut tx).limit(items).await?.is_allowed()
        }
        Part::Updates(rows) => {
            let first = update(&mut *tx, key).await.map_err(WorkError::Database)?;
            first && (*rows < 2 || update(&mut *tx, &second(key)).await.map_err(WorkError::Database)?)
        }
    };
    tx.commit().await.map_err(WorkError::Database)?;
    Ok(allowed)
}

async fn update(executor: impl sqlx::PgExecutor<'_>, key: &str) -> Result<bool, sqlx::Error> {
    let update = sqlx::query("UPDATE plain SET value = value - 1 WHERE key = $1 AND value - 1 >= 0").bind(key);
    Ok(update.execute(executor).await?.rows_affected() == 1)
}

async fn update_bucket(connection: &mut PgConnection, key: &str) -> Result<bool, sqlx::Error> {
    let sql = "UPDATE rate_limit.rate_limits SET value = value - 1 WHERE name = $1 AND key = $2 AND shard = 0 AND value - 1 >= 0";
    Ok(sqlx::query(sql).bind(AMPLE).bind(key).execute(connection).await?.rows_affected() == 1)
}

async fn seed(pool: &PgPool, key: &str) -> Result<f64, sqlx::Error> {
    let mut tx = pool.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await?;
    let row = sqlx::query("SELECT seed_take($1, 1e9, 1e9)").bind(key).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    row.try_get(0)
}
