//! Limits that are stored in the database.

use serde_json::Value;
use sqlx::postgres::types::PgInterval;
use sqlx::{AssertSqlSafe, PgConnection, PgExecutor};

use crate::error::{Error, InvalidLimit};
use crate::limit::{Limit, Limits, parse_micros};
use crate::sql::Schema;

/// Stored limits: rules in the database, under which calls from SQL take tokens by name (`rate_limit.limit('api', 'u1')`), and which
/// programs read or follow ([`Limiter::follow_stored_limits`](crate::Limiter::follow_stored_limits)).
///
/// Calls of this library send the rule with them, so a program decides by the limits that it has, whatever is stored.
impl Limits {
    /// Reads the limits that are stored in the schema `rate_limit`.
    ///
    /// ```no_run
    /// # async fn f(pool: sqlx::PgPool) -> Result<(), pg_limiter::Error> {
    /// use pg_limiter::{Limiter, Limits};
    /// let limiter = Limiter::new(pool.clone(), Limits::stored(&pool).await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::SchemaMissing`] if the schema is not migrated, [`Error::Unavailable`] if the database cannot be reached.
    ///
    /// # Cancel safety
    /// Safe: it only reads. Within a transaction, roll that back.
    ///
    /// # In a transaction
    /// On a connection in a transaction, it sees what the transaction has stored.
    pub async fn stored<'c>(executor: impl PgExecutor<'c>) -> Result<Self, Error> {
        Self::stored_in(executor, &Schema::default()).await
    }

    /// Reads the limits that are stored in this schema: see [`stored`](Self::stored).
    ///
    /// # Errors
    /// See [`stored`](Self::stored).
    ///
    /// # Cancel safety
    /// See [`stored`](Self::stored).
    ///
    /// # In a transaction
    /// See [`stored`](Self::stored).
    pub async fn stored_in<'c>(executor: impl PgExecutor<'c>, schema: &Schema) -> Result<Self, Error> {
        let file = stored_limits_file(executor, schema).await.map_err(|error| Error::from_sql(error, schema.name()))?;
        Self::from_json(&file).map_err(|error| InvalidLimit::new(error.to_string()).into())
    }

    /// Stores these limits in the schema `rate_limit`, and returns the names of those that this defined or changed. Other stored
    /// limits stay. Each change is kept with its time and role in the table `definitions`.
    ///
    /// ```no_run
    /// # async fn f(pool: sqlx::PgPool, limits: pg_limiter::Limits) -> Result<(), pg_limiter::Error> {
    /// let mut tx = pool.begin().await.map_err(|error| pg_limiter::Error::from_sql(error, "rate_limit"))?;
    /// let changed = limits.store(&mut tx).await?;
    /// tx.commit().await.map_err(|error| pg_limiter::Error::from_sql(error, "rate_limit"))?;
    /// println!("changed: {changed:?}");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Conflict`] if another transaction has just defined one of them: roll back, and repeat the transaction.
    ///
    /// # Cancel safety
    /// If the future is dropped, some of the limits may be stored. In a transaction, roll it back.
    ///
    /// # In a transaction
    /// Part of the caller's transaction: the rules count for others once it commits.
    pub async fn store(&self, connection: &mut PgConnection) -> Result<Vec<String>, Error> {
        self.store_in(connection, &Schema::default()).await
    }

    /// Stores these limits in this schema: see [`store`](Self::store).
    ///
    /// # Errors
    /// See [`store`](Self::store).
    ///
    /// # Cancel safety
    /// See [`store`](Self::store).
    ///
    /// # In a transaction
    /// See [`store`](Self::store).
    pub async fn store_in(&self, connection: &mut PgConnection, schema: &Schema) -> Result<Vec<String>, Error> {
        let mut changed = Vec::new();
        for (name, limit) in self.iter() {
            let defined = define(connection, schema, name, limit).await;
            if defined.map_err(|error| Error::from_sql(error, schema.name()))? {
                changed.push(name.to_owned());
            }
        }
        Ok(changed)
    }
}

/// The stored limits as a limits file in JSON.
pub(crate) async fn stored_limits_file<'c>(
    executor: impl PgExecutor<'c>,
    schema: &Schema,
) -> Result<String, sqlx::Error> {
    let sql = format!("SELECT {}._limits_file()", schema.quoted());
    sqlx::query_scalar(AssertSqlSafe(sql)).persistent(false).fetch_one(executor).await
}

/// Stores one limit, with the options that a limits file would give. Returns whether it changed.
async fn define(
    connection: &mut PgConnection,
    schema: &Schema,
    name: &str,
    limit: &Limit,
) -> Result<bool, sqlx::Error> {
    let fields = serde_json::to_value(limit).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    let number = |field: &str| fields.get(field).and_then(Value::as_f64);
    let count = |field: &str| fields.get(field).and_then(Value::as_i64).and_then(|count| i32::try_from(count).ok());
    let length = |field: &str| {
        let microseconds = parse_micros(text(field)?).ok()?;
        Some(PgInterval { months: 0, days: 0, microseconds })
    };
    let sql = format!(
        "SELECT {}.define($1, $2, rate => $3, period => $4, capacity => $5, max_reserved => $6, start => $7, resolution => $8, \
           shards => $9, every => $10, zone => $11, anchor => $12, lease => $13)",
        schema.quoted()
    );
    sqlx::query_scalar(AssertSqlSafe(sql))
        .persistent(false)
        .bind(name)
        .bind(text("kind"))
        .bind(number("rate"))
        .bind(length("period"))
        .bind(number("capacity"))
        .bind(number("max_reserved"))
        .bind(length("start"))
        .bind(count("resolution"))
        .bind(count("shards"))
        .bind(text("every"))
        .bind(text("zone"))
        .bind(text("anchor"))
        .bind(length("lease"))
        .fetch_one(connection)
        .await
}
