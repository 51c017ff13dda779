//! Decides a batch of calls in one statement.

use std::time::Duration;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};

use crate::sql::Statements;
use crate::sql::answer::{Answer, answers};
use crate::sql::batch::{Batch, Bucket};
use crate::sql::door::Door;
use crate::sql::query::query;
use crate::sql::server::explain;

/// Decides the calls in order, in one statement. Returns one answer for each call that was added to the batch.
pub(crate) async fn decide(
    conn: &mut PgConnection,
    statements: &Statements,
    batch: &Batch,
) -> Result<Vec<Answer>, sqlx::Error> {
    let door = Door::of(batch);
    let row = query(&statements.deciding, door, batch).fetch_one(conn).await?;
    answers(&row, door, batch)
}

/// Decides the calls in a transaction of its own, which waits for the disk or not.
pub(crate) async fn decide_alone(
    conn: &mut PgConnection,
    statements: &Statements,
    batch: &Batch,
    waits_for_disk: bool,
    alone: &mut Alone,
) -> Result<Vec<Answer>, sqlx::Error> {
    let sql = if waits_for_disk { &statements.deciding } else { &statements.deciding_relaxed };
    let door = Door::of(batch);
    let row = match last_row(conn, query(sql, door, batch), alone).await {
        Ok(row) => row,
        Err(error) => return Err(explain(conn, error).await),
    };
    alone.waited = waited(&row, door)?;
    answers(&row, door, batch)
}

/// Returns the result once its transaction has ended.
async fn last_row(
    conn: &mut PgConnection,
    query: Query<'_, Postgres, PgArguments>,
    alone: &mut Alone,
) -> Result<PgRow, sqlx::Error> {
    let mut rows = query.fetch(conn);
    let mut result = None;
    while let Some(row) = std::future::poll_fn(|cx| rows.as_mut().poll_next(cx)).await {
        let row = row?;
        alone.committing = true;
        result = Some(row);
    }
    result.ok_or(sqlx::Error::RowNotFound)
}

/// Returns how long the statement waited for a row, as far as that is known.
fn waited(row: &PgRow, door: Door) -> Result<Duration, sqlx::Error> {
    if !door.is_lone() {
        return Ok(Duration::ZERO);
    }
    let numbers: Vec<Option<f64>> = row.try_get(0)?;
    Ok(Duration::from_micros(numbers.last().copied().flatten().unwrap_or_default() as u64))
}

/// The details that a statement in a transaction of its own reports besides its answers.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    /// Set once the result has arrived. From then on, an error does not mean that nothing was changed.
    pub(crate) committing: bool,
    /// How long it waited for a row, as far as that is known.
    pub(crate) waited: Duration,
}

/// Waits until all earlier commits are on disk, by a commit of next to nothing.
pub(crate) async fn flush(conn: &mut PgConnection, statements: &Statements) -> Result<(), sqlx::Error> {
    statements.flush.query().execute(conn).await.map(|_| ())
}

/// Returns which of these buckets have a row that another transaction has locked; `None` for a bucket without a row.
pub(crate) async fn held(
    conn: &mut PgConnection,
    statements: &Statements,
    buckets: &[Bucket],
) -> Result<Vec<Option<bool>>, sqlx::Error> {
    let (names, keys): (Vec<&str>, Vec<&str>) = buckets.iter().map(|(name, key)| (&**name, &**key)).unzip();
    statements.held.scalar().bind(names).bind(keys).fetch_one(conn).await
}
