//! tokio-postgres, with the pool deadpool-postgres.

use deadpool_postgres::{GenericClient, Pool, PoolError};
use serde_json::Value;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Json;

use crate::shared::{Decision, Message, RATE_LIMIT_ALL, with_retries};

/// Takes tokens on this client: in autocommit, or in a transaction. After an error, roll the transaction back.
pub async fn limit(client: &impl GenericClient, calls: &Value) -> Result<Decision, Error> {
    let statement = client.prepare_cached(RATE_LIMIT_ALL).await?;
    let row = client.query_one(&statement, &[calls]).await?;
    let Json(limits) = row.try_get("limits")?;
    Ok(Decision {
        ok: row.try_get("ok")?,
        retry_after: row.try_get("retry_after")?,
        denied_by: row.try_get("denied_by")?,
        limits,
    })
}

/// Takes tokens in a transaction of its own: they are spent whatever happens next.
pub async fn limit_alone(pool: &Pool, calls: &Value) -> Result<Decision, PoolError> {
    with_retries(is_conflict, || async { Ok(limit(&pool.get().await?, calls).await?) }).await
}

/// Writes the message and takes its tokens, or does neither.
pub async fn post(pool: &Pool, message: &Message<'_>) -> Result<Decision, PoolError> {
    with_retries(is_conflict, || post_once(pool, message)).await
}

async fn post_once(pool: &Pool, message: &Message<'_>) -> Result<Decision, PoolError> {
    let mut client = pool.get().await?;
    let tx = client.transaction().await?;
    let insert = "INSERT INTO messages (author, org, body) VALUES ($1, $2, $3)";
    tx.execute(insert, &[&message.author, &message.org, &message.body]).await?;
    // Late, because the rows of the buckets stay locked until the transaction ends.
    let decision = limit(&tx, &message.cost()).await?;
    if decision.ok {
        tx.commit().await?
    } else {
        tx.rollback().await?
    }
    Ok(decision)
}

fn is_conflict(error: &PoolError) -> bool {
    let PoolError::Backend(error) = error else { return false };
    matches!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED))
}
