//! The temporary database of an example: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.

use std::sync::atomic::{AtomicU32, Ordering};

use pg_limiter::embedded::{Server, ServerConfig};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgPool};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Runs `story` in a new, migrated database, and drops the database afterwards.
pub(crate) async fn on_a_fresh_database<T>(
    story: impl AsyncFnOnce(&PgPool) -> Result<T, BoxError>,
) -> Result<T, BoxError> {
    match std::env::var("DATABASE_URL") {
        Ok(url) => on_a_fresh_database_of(&url, story).await,
        Err(_) => {
            let server = tokio::task::spawn_blocking(|| Server::start(&ServerConfig::default())).await??;
            on_a_fresh_database_of(&server.url("postgres"), story).await
        }
    }
}

/// Like `on_a_fresh_database`, on the server at this URL. Its user must be allowed to create databases.
pub(crate) async fn on_a_fresh_database_of<T>(
    url: &str,
    story: impl AsyncFnOnce(&PgPool) -> Result<T, BoxError>,
) -> Result<T, BoxError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("pg_limiter_example_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let options: PgConnectOptions = url.parse()?;
    let mut server = options.connect().await?;
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"))).execute(&mut server).await?;
    let pool = PgPoolOptions::new().max_connections(20).connect_with(options.database(&name)).await?;
    let result = match pg_limiter::migrate::migrate(&pool).await {
        Ok(_) => story(&pool).await,
        Err(error) => Err(error.into()),
    };
    pool.close().await;
    sqlx::raw_sql(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).execute(&mut server).await?;
    server.close().await?;
    result
}
