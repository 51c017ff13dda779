//! diesel-async, with its pool.

use diesel::result::{DatabaseErrorKind, Error};
use diesel::sql_types::{Array, Bool, Double, Jsonb, Nullable, Text};
use diesel::{ExpressionMethods, QueryableByName};
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use serde_json::Value;

use crate::shared::{Decision, Message, RATE_LIMIT_ALL, with_retries};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

diesel::table! {
    messages (body) {
        author -> Text,
        org -> Text,
        body -> Text,
    }
}

#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = Bool)]
    ok: bool,
    #[diesel(sql_type = Nullable<Double>)]
    retry_after: Option<f64>,
    #[diesel(sql_type = Array<Text>)]
    denied_by: Vec<String>,
    #[diesel(sql_type = Jsonb)]
    limits: Value,
}

/// Takes tokens on this connection: in autocommit, or in a transaction. After an error, roll the transaction back.
pub async fn limit(connection: &mut AsyncPgConnection, calls: &Value) -> Result<Decision, Error> {
    let query = diesel::sql_query(RATE_LIMIT_ALL).bind::<Jsonb, _>(calls);
    let Row { ok, retry_after, denied_by, limits } = query.get_result(connection).await?;
    let limits = serde_json::from_value(limits).map_err(|error| Error::DeserializationError(error.into()))?;
    Ok(Decision { ok, retry_after, denied_by, limits })
}

/// Takes tokens in a transaction of its own: they are spent whatever happens next.
pub async fn limit_alone(pool: &Pool<AsyncPgConnection>, calls: &Value) -> Result<Decision, BoxError> {
    with_retries(is_conflict, || async { Ok(limit(&mut *pool.get().await?, calls).await?) }).await
}

/// Writes the message and takes its tokens, or does neither.
pub async fn post(pool: &Pool<AsyncPgConnection>, message: &Message<'_>) -> Result<Decision, BoxError> {
    with_retries(is_conflict, || post_once(pool, message)).await
}

async fn post_once(pool: &Pool<AsyncPgConnection>, message: &Message<'_>) -> Result<Decision, BoxError> {
    let mut connection = pool.get().await?;
    let posted = connection.transaction(async |tx| {
        let row = (messages::author.eq(message.author), messages::org.eq(message.org), messages::body.eq(message.body));
        diesel::insert_into(messages::table).values(row).execute(tx).await?;
        // Late, because the rows of the buckets stay locked until the transaction ends.
        let decision = limit(tx, &message.cost()).await?;
        if decision.ok { Ok(decision) } else { Err(NotPosted::Denied(decision)) }
    });
    match posted.await {
        Ok(decision) | Err(NotPosted::Denied(decision)) => Ok(decision),
        Err(NotPosted::Failed(error)) => Err(error.into()),
    }
}

/// A denial is an error within the transaction, because diesel commits a transaction that returns `Ok`.
enum NotPosted {
    Denied(Decision),
    Failed(Error),
}

impl From<Error> for NotPosted {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// diesel has no kind for a deadlock, and hides the SQLSTATE. The message is English if the server's `lc_messages` is.
fn is_conflict(error: &BoxError) -> bool {
    match error.downcast_ref() {
        Some(Error::DatabaseError(DatabaseErrorKind::SerializationFailure, _)) => true,
        Some(Error::DatabaseError(_, error)) => error.message() == "deadlock detected",
        _ => false,
    }
}
