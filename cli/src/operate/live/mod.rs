//! Reads a database while it is in use, for people who watch it: `ui` and `top`. It writes nothing, and reads a large table
//! only through indexes and samples. Times are in microseconds since the Unix epoch, by the database's clock.

mod keys;
mod queues;
mod sample;
mod taken;
#[cfg(test)]
pub(crate) mod tests;
mod view;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use sqlx::postgres::{PgArguments, PgPoolOptions};
use sqlx::query::QueryAs;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, Transaction};
use tokio::sync::{Mutex, watch};

use crate::operate::doctor::{self, Findings, State, TABLES, Table};
use crate::operate::export::balances;
use crate::text::moment;
use crate::{CliError, Result, Running};
pub(crate) use keys::{BUCKETS, Balance, KeyBucket};
use pg_limiter::{Error, Limits, Schema, TransactionLimiter};
pub(crate) use queues::{GroupView, JobView, LISTED, QueueView, ReservedView};
use sample::{Sample, Sampler};
pub(crate) use view::{BucketView, Counted, Coverage, How, KeyView, LimitView, Meaning, Snapshot};

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
pub(crate) struct Live {
    pool: PgPool,
    schema: Schema,
    /// Whether the limits are those that the database stores, which may change. Otherwise they are those of a file.
    follows_stored: bool,
    /// Has the limits. For balances: at times that the caller chooses, which needs no transaction of its own.
    rate_limits: TransactionLimiter,
    sampler: Arc<Mutex<Sampler>>,
    seen: watch::Sender<Seen>,
}

/// The last snapshot, and the error if the latest one failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) error: Option<String>,
}

pub(crate) struct Health {
    pub(crate) at: i64,
    pub(crate) findings: Findings,
    pub(crate) tables: Vec<Table>,
    /// The connections of the server in use, and the most that it accepts.
    pub(crate) connections: (u64, u64),
}

impl Live {
    /// With the limits of a file, or else the stored ones. Reports a wrong URL at once, and connects again to read.
    pub(crate) async fn open(running: &Running, of_file: Option<Limits>) -> Result<Self> {
        let follows_stored = of_file.is_none();
        let limits = match of_file {
            Some(limits) => running.connect().await.map(|_| limits)?,
            None => running.shown_limits().await?,
        };
        let schema = running.schema.clone();
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(PATIENCE);
        let pool = pool.connect_lazy_with(running.options.clone());
        // A pooler may not keep prepared statements.
        let rate_limits = TransactionLimiter::in_schema(limits, schema.clone()).with_unnamed_statements();
        Ok(Self { pool, schema, follows_stored, rate_limits, sampler: Arc::default(), seen: watch::Sender::default() })
    }

    pub(crate) async fn watch(&self, interval: Duration) {
        loop {
            let begin = Instant::now();
            tokio::time::sleep(pause(interval, begin, self.sample().await.error.is_some())).await;
        }
    }

    /// Takes a sample. Tokens taken are known from the second one on.
    pub(crate) async fn sample(&self) -> Seen {
        let mut sampler = self.sampler.lock().await;
        let followed = if self.follows_stored { self.follow().await } else { Ok(()) };
        let mut result = self.read_sample(&sampler).await.map(|sample| sampler.compare(&sample, self.limits()));
        if let Ok(snapshot) = &mut result {
            let note = "the stored limits are not read any more, and those from before are shown";
            let followed = followed.map_err(|error| format!("{note}: {error}"));
            snapshot.note = self.add_balances(snapshot).await.map_err(|error| error.to_string()).and(followed).err();
            let at = snapshot.at;
            snapshot.limits.iter_mut().for_each(|limit| limit.emptiest.retain(|key| !key.bucket.is_full(at)));
        }
        self.seen.send_modify(|seen| match result {
            Ok(snapshot) => *seen = Seen { snapshot: Arc::new(snapshot), error: None },
            Err(error) => seen.error = Some(error.to_string()),
        });
        self.seen()
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Reads a key in each sample for the next five minutes.
    pub(crate) async fn watch_key(&self, name: &str, key: &str) {
        self.sampler.lock().await.watch(name, key);
    }

    /// Reads the stored limits again. If they cannot be read, those from before are kept.
    async fn follow(&self) -> Result<()> {
        let mut tx = self.begin().await?;
        match Limits::stored_in(&mut *tx, &self.schema).await {
            Err(Error::SchemaMissing { .. }) => {}
            limits => drop(self.rate_limits.replace_limits(limits?)),
        }
        Ok(())
    }

    async fn read_sample(&self, sampler: &Sampler) -> Result<Sample> {
        let read = async |tx: &mut PgConnection| {
            // Two samples with the same seed read the same pages, so that they can be compared.
            let mut sample = sample::read(tx, &self.schema, sampler.samples / 2).await?;
            if sample.is_whole() {
                return Ok(sample);
            }
            sample.watched_rows = sample::rows_of(tx, &self.schema, &sampler.watched()).await?;
            if sampler.must_count(&sample) {
                sample.counted = Some(sample::count_keys(tx, &self.schema).await?);
            }
            Ok(sample)
        };
        self.read(read).await
    }

    /// Adds the balances of the listed keys, and sorts the emptiest by them.
    async fn add_balances(&self, snapshot: &mut Snapshot) -> Result<()> {
        let time = moment(snapshot.at);
        let mut defined: Vec<_> = snapshot.limits.iter_mut().filter(|limit| limit.capacity.is_some()).collect();
        let mut keys: Vec<&mut KeyView> = defined.iter_mut().flat_map(|limit| limit.all_keys()).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let mut tx = self.begin().await?;
        for keys in keys.chunks_mut(250) {
            let asked = keys.iter().map(|key| (&*key.bucket.name, &*key.bucket.key));
            let found = balances(&mut tx, &self.rate_limits, time, asked).await?;
            keys.iter_mut().zip(found).for_each(|(key, state)| {
                key.balance = state.as_ref().map(|state| state.remaining);
                key.bucket.refills(state.as_ref(), snapshot.at);
            });
        }
        let balance = |key: &KeyView| key.balance.unwrap_or(f64::INFINITY);
        for limit in defined {
            limit.emptiest.sort_by(|a, b| balance(a).total_cmp(&balance(b)).then(a.bucket.key.cmp(&b.bucket.key)));
        }
        Ok(())
    }

    /// Examines the database as `doctor` does, on a connection of its own.
    pub(crate) async fn health(&self) -> Result<Health> {
        let mut findings = doctor::findings(&self.pool.connect_options(), &self.schema).await?;
        // The sizes and dead rows of the tables are below, and counted at another moment they would differ.
        let are_sizes = |check: &str| ["table", "table of jobs"].contains(&check);
        findings.retain(|(check, finding)| !are_sizes(check) || finding.state != State::Ok);
        let dead = findings.iter_mut().filter(|(check, finding)| are_sizes(check) && finding.state == State::Warning);
        dead.for_each(|(_, finding)| finding.found = "more dead rows than live ones".to_owned());
        let sql = Table::query(&doctor::literal(self.schema.name()), TABLES);
        let tables = self.rows(sqlx::query_as(AssertSqlSafe(sql))).await?;
        let sql = "SELECT pg_catalog.json_build_array((SELECT coalesce(pg_catalog.sum(numbackends), 0) FROM pg_catalog.pg_stat_database), \
                     pg_catalog.current_setting('max_connections')::bigint)::text";
        let connections = self.rows(sqlx::query_as(sql)).await?.pop().unwrap_or_default();
        Ok(Health { at: self.now().await?, findings, tables, connections })
    }

    pub(crate) fn limits(&self) -> Limits {
        self.rate_limits.limits()
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }

    /// Begins a transaction that reads one state of the database for a short time, and cannot write.
    async fn begin(&self) -> Result<Transaction<'static, Postgres>> {
        let begin = async {
            let mut tx = self.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
            sqlx::raw_sql(BOUNDS).execute(&mut *tx).await?;
            Ok(tx)
        };
        let mut begun = begin.await;
        if let Err(sqlx::Error::PoolTimedOut) = begun {
            // The pool does not say why it has no connection.
            let options = self.pool.connect_options();
            let connected = tokio::time::timeout(TO_CONNECT, PgConnection::connect_with(&options)).await;
            begun = Err(connected.ok().and_then(Result::err).unwrap_or(sqlx::Error::PoolTimedOut));
        }
        begun.map_err(|error| self.failed(error))
    }

    /// Reads rows of JSON, such as objects with the fields of `T`, in a transaction of their own.
    async fn rows<T: DeserializeOwned>(&self, query: QueryAs<'_, Postgres, (String,), PgArguments>) -> Result<Vec<T>> {
        let rows = self.read(async |tx: &mut PgConnection| query.persistent(false).fetch_all(tx).await).await?;
        rows.iter().map(|(row,)| serde_json::from_str(row)).collect::<Result<_, _>>().map_err(CliError::failed)
    }

    async fn read<T>(&self, read: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>) -> Result<T> {
        read(&mut *self.begin().await?).await.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: sqlx::Error) -> CliError {
        // The encoding of the database lacks a character of a key, so no row has this key.
        if let Some(refused) = error.as_database_error().filter(|refused| refused.code().as_deref() == Some("22P05")) {
            return CliError::usage(refused.message());
        }
        let error = Error::from_sql(error, self.schema.name());
        CliError::refused(error, &self.schema, &["rate_limits", "jobs", "groups", "queues"])
    }
}
