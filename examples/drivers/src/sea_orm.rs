//! SeaORM 2. A transaction of SeaORM does not give access to its sqlx connection, so the call in it goes through SQL. Calls in
//! a transaction of their own go through the library's `Limiter`, on the pool of SeaORM: it retries, and combines calls.

use pg_limiter::{Limiter, Limits, LimitsFileError};
use sea_orm::entity::prelude::*;
use sea_orm::{ActiveValue::Set, DatabaseBackend, RuntimeErr, Statement, TransactionTrait};
use serde_json::Value;

use crate::shared::{Decision, LIMITS, Message, RATE_LIMIT_ALL, with_retries};

mod messages {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, DeriveEntityModel, Eq)]
    #[sea_orm(table_name = "messages")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub body: String,
        pub author: String,
        pub org: String,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

/// For calls in transactions of their own. Create it once.
pub fn limiter(db: &DatabaseConnection) -> Result<Limiter, LimitsFileError> {
    Ok(Limiter::new(db.get_postgres_connection_pool().clone(), Limits::from_json(LIMITS)?))
}

/// Takes tokens on this connection: in a transaction, or in autocommit. After an error, roll the transaction back.
pub async fn limit(db: &impl ConnectionTrait, calls: &Value) -> Result<Decision, DbErr> {
    let statement = Statement::from_sql_and_values(DatabaseBackend::Postgres, RATE_LIMIT_ALL, [calls.clone().into()]);
    let row = db.query_one_raw(statement).await?.ok_or_else(|| DbErr::RecordNotFound("a decision".to_owned()))?;
    let limits = serde_json::from_value(row.try_get("", "limits")?).map_err(|error| DbErr::Json(error.to_string()))?;
    Ok(Decision {
        ok: row.try_get("", "ok")?,
        retry_after: row.try_get("", "retry_after")?,
        denied_by: row.try_get("", "denied_by")?,
        limits,
    })
}

/// Writes the message and takes its tokens, or does neither.
pub async fn post(db: &DatabaseConnection, message: &Message<'_>) -> Result<Decision, DbErr> {
    with_retries(is_conflict, || post_once(db, message)).await
}

async fn post_once(db: &DatabaseConnection, message: &Message<'_>) -> Result<Decision, DbErr> {
    let tx = db.begin().await?;
    let row = messages::ActiveModel {
        author: Set(message.author.to_owned()),
        org: Set(message.org.to_owned()),
        body: Set(message.body.to_owned()),
    };
    messages::Entity::insert(row).exec_without_returning(&tx).await?;
    // Late, because the rows of the buckets stay locked until the transaction ends.
    let decision = limit(&tx, &message.cost()).await?;
    if decision.ok {
        tx.commit().await?
    } else {
        tx.rollback().await?
    }
    Ok(decision)
}

fn is_conflict(error: &DbErr) -> bool {
    let (DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error))) = error else {
        return false;
    };
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("40001" | "40P01")) // serialization_failure, deadlock_detected
}
