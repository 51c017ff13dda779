//! The database's clock, by which tokens are refilled.

use sqlx::PgPool;

/// The database's time, in seconds since the epoch.
pub(super) async fn now(pool: &PgPool) -> Result<f64, sqlx::Error> {
    let sql = "SELECT pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())";
    sqlx::query_scalar(sql).fetch_one(pool).await
}
