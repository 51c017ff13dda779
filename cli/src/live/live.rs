use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool, Postgres, Transaction};
use tokio::sync::{Mutex, watch};

use crate::error::CliError;
use crate::live::sampler::Sampler;
use crate::live::view::Snapshot;
use pg_limiter::{Error, Limits, Schema, TransactionLimiter};

const CONNECTIONS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(3);
const TO_CONNECT: Duration = Duration::from_secs(1);
/// A statement that takes longer fails. The planner must not choose a scan of a whole table.
const BOUNDS: &str = "SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s'; SET LOCAL jit = off; \
                      SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";

/// The pause after reading. A slow database is read less often, and a lost one is tried again soon.
pub(crate) fn pause(interval: Duration, begin: Instant, failed: bool) -> Duration {
    if failed { interval } else { interval.max(begin.elapsed() * 9) }
}

/// A database that is watched. It is only read. Clones share the samples.
#[derive(Clone, Debug)]
pub(crate) struct Live(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(super) options: PgConnectOptions,
    pub(super) pool: PgPool,
    pub(super) schema: Schema,
    /// Those of the limits file; empty without one.
    pub(super) limits: Limits,
    /// For balances: at times that the caller chooses, which needs no transaction of its own.
    pub(super) rate_limits: TransactionLimiter,
    sampler: Mutex<Sampler>,
    seen: watch::Sender<Seen>,
}

/// The last snapshot, and the error if the latest one failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) error: Option<String>,
}

impl std::ops::Deref for Live {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Live {
    /// Connects when something is read first.
    pub(crate) fn new(options: PgConnectOptions, schema: Schema, limits: Limits) -> Self {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(PATIENCE);
        // A pooler may not keep prepared statements.
        let rate_limits = TransactionLimiter::in_schema(limits.clone(), schema.clone()).with_unnamed_statements();
        Self(Arc::new(Inner {
            pool: pool.connect_lazy_with(options.clone()),
            sampler: Mutex::new(Sampler::new(limits.clone())),
            seen: watch::Sender::new(Seen::default()),
            options,
            schema,
            limits,
            rate_limits,
        }))
    }

    /// Takes samples at this interval, until the future is dropped.
    pub(crate) async fn watch(&self, interval: Duration) {
        loop {
            let begin = Instant::now();
            let failed = self.sample().await.error.is_some();
            tokio::time::sleep(pause(interval, begin, failed)).await;
        }
    }

    /// Takes a sample. Tokens taken are known from the second one on.
    pub(crate) async fn sample(&self) -> Seen {
        let result = self.sampler.lock().await.sample(self).await;
        self.seen.send_modify(|seen| match result {
            Ok(snapshot) => *seen = Seen { snapshot: Arc::new(snapshot), error: None },
            Err(error) => seen.error = Some(error.to_string()),
        });
        self.seen()
    }

    /// The last snapshot.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Reads a key in each sample for the next five minutes.
    pub(crate) async fn watch_key(&self, name: &str, key: &str) {
        self.sampler.lock().await.watch(name, key);
    }

    /// The tokens taken from a key in each bin of the last ten minutes, if it is among the keys that are read in each sample.
    pub(crate) async fn history(&self, name: &str, key: &str) -> Option<Vec<f64>> {
        self.sampler.lock().await.history(name, key)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }

    /// Begins a transaction that reads one state of the database for a short time, and cannot write.
    pub(super) async fn begin(&self) -> Result<Transaction<'static, Postgres>, CliError> {
        let begun = async {
            let mut tx = self.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
            sqlx::raw_sql(BOUNDS).execute(&mut *tx).await?;
            Ok(tx)
        };
        match begun.await {
            Ok(tx) => Ok(tx),
            // The pool does not say why it has no connection.
            Err(sqlx::Error::PoolTimedOut) => {
                let connecting = PgConnection::connect_with(&self.options);
                let connected = tokio::time::timeout(TO_CONNECT, connecting).await;
                Err(self.failed(connected.ok().and_then(Result::err).unwrap_or(sqlx::Error::PoolTimedOut)))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    pub(super) fn failed(&self, error: sqlx::Error) -> CliError {
        let error = Error::from_sql(error, self.schema.name());
        CliError::refused(error, &self.schema, &["rate_limits", "jobs", "groups"])
    }
}
