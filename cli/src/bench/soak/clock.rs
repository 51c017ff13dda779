//! The database's clock: that is what tokens flow in by.

use sqlx::PgPool;

/// In seconds.
pub(super) async fn now(pool: &PgPool) -> Result<f64, sqlx::Error> {
    let sql = "SELECT pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())";
    sqlx::query_scalar(sql).fetch_one(pool).await
}
