use sqlx::PgConnection;

use crate::error::Engine;

/// Asks the server which engine it is. Uses a simple query: a pooler may send the two parts of a prepared one to
/// different sessions.
pub(crate) async fn detect(connection: &mut PgConnection) -> Result<Engine, sqlx::Error> {
    use sqlx::Row;
    let row = sqlx::raw_sql("SELECT pg_catalog.version()").fetch_one(connection).await?;
    row.try_get(0).map(|version: &str| Engine::of_version(version))
}
