use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pg_limiter::{Limit, Limiter, LimiterConfig, Limits, RetryPolicy};
use sqlx::{PgPool, Row};

/// What is measured.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    kind: Kind,
    pool: PgPool,
    limiter: Limiter,
    retries: AtomicU64,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// One conditional UPDATE in READ COMMITTED: as little as a decision can be.
    Update,
    /// The seed's function in a SERIALIZABLE transaction, tried again after a conflict.
    Seed,
    /// `limiter.limit`.
    Own,
    /// `limiter.within` in a READ COMMITTED transaction of the caller.
    Within,
}

impl Peer {
    pub(crate) async fn all(pool: &PgPool) -> Result<Vec<Self>, Box<dyn std::error::Error>> {
        let hot = Limit::token_bucket(1e9, Duration::from_secs(1));
        let mut config = LimiterConfig::default();
        config.retry = RetryPolicy { max_attempts: u32::MAX, deadline: Duration::from_secs(60), ..config.retry };
        let limiter = Limiter::with_config(pool.clone(), Limits::new().define("hot", hot)?, config);
        let peer =
            |name, kind| Self { name, kind, pool: pool.clone(), limiter: limiter.clone(), retries: AtomicU64::new(0) };
        Ok(vec![
            peer("bare UPDATE", Kind::Update),
            peer("seed's function, SERIALIZABLE", Kind::Seed),
            peer("pg-limiter, own transaction", Kind::Own),
            peer("pg-limiter, caller's transaction", Kind::Within),
        ])
    }

    pub(crate) fn retries(&self) -> u64 {
        if self.kind == Kind::Own { self.limiter.retries() } else { self.retries.load(Ordering::Relaxed) }
    }

    /// One decision.
    pub(crate) async fn decide(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self.kind {
            Kind::Update => {
                let update = "UPDATE plain SET value = value + 1 WHERE id = 1 AND value >= 0";
                sqlx::query(update).execute(&self.pool).await?;
            }
            Kind::Seed => loop {
                match self.seed().await {
                    Ok(_) => break,
                    Err(error) if error.as_database_error().and_then(|e| e.code()).as_deref() == Some("40001") => {
                        self.retries.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => return Err(error.into()),
                }
            },
            Kind::Own => {
                self.limiter.limit(("hot", "k")).await?.enforce()?;
            }
            Kind::Within => {
                let mut tx = self.pool.begin().await?;
                self.limiter.within(&mut tx).limit(("hot", "l")).await?.enforce()?;
                tx.commit().await?;
            }
        }
        Ok(())
    }

    async fn seed(&self) -> Result<f64, sqlx::Error> {
        let mut tx = self.pool.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await?;
        let row = sqlx::query("SELECT seed_take('hot', 1e9, 1e9)").fetch_one(&mut *tx).await?;
        tx.commit().await?;
        row.try_get(0)
    }
}
