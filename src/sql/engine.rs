use sqlx::PgConnection;

use crate::error::Engine;

/// Asks the server which engine it is. In a simple query: poolers may share out the two halves of a prepared one.
pub(crate) async fn detect(connection: &mut PgConnection) -> Result<Engine, sqlx::Error> {
    use sqlx::Row;
    let row = sqlx::raw_sql("SELECT pg_catalog.version()").fetch_one(connection).await?;
    row.try_get(0).map(|version: &str| Engine::of_version(version))
}
