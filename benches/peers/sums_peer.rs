//! A peer that takes tokens in batches, on a connection of its own.

use std::fmt;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::Mutex;

use crate::Failure;
use crate::keys::Keys;

/// The calls of a batch.
const BATCH: usize = 128;

/// A statement that takes one token from each key of a batch.
pub(crate) struct Batches {
    connection: Mutex<PgConnection>,
    sql: String,
    keys: Keys,
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("sql", &self.sql).finish_non_exhaustive()
    }
}

impl Batches {
    /// A connection with the plans of `_decide_sums`, and without a wait for the disk, which would hide what a row costs.
    pub(crate) async fn new(url: &str, sql: String, keys: Keys) -> Result<Self, Failure> {
        let mut connection = PgConnection::connect(url).await?;
        let settings = "SET synchronous_commit = off; SET enable_seqscan = off; SET enable_bitmapscan = off;
             SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off";
        sqlx::raw_sql(settings).execute(&mut connection).await?;
        Ok(Self { connection: Mutex::new(connection), sql, keys })
    }

    /// Takes from a random batch of different keys, in the order of their bytes.
    pub(crate) async fn take(&self) -> Result<bool, Failure> {
        let mut random = fastrand::Rng::new();
        let mut batch: Vec<&str> = random.choose_multiple(&*self.keys, BATCH).into_iter().map(|key| &**key).collect();
        batch.sort_unstable();
        self.take_from(&batch).await
    }

    /// Takes from these keys.
    pub(crate) async fn take_from(&self, batch: &[&str]) -> Result<bool, Failure> {
        let mut connection = self.connection.lock().await;
        let query = sqlx::query_scalar::<_, i64>(AssertSqlSafe(self.sql.as_str())).bind(batch);
        Ok(query.fetch_one(&mut *connection).await? == i64::try_from(batch.len())?)
    }

    /// Runs this SQL on the same connection.
    pub(crate) async fn execute(&self, sql: String) -> Result<(), Failure> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *self.connection.lock().await).await?;
        Ok(())
    }
}
