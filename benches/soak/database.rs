//! The database of the run.

use std::time::Duration;

use pg_limiter::Schema;
use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection};

use super::Failure;
use super::options::Options;
use super::stats::Stats;

const TO_CONNECT: Duration = Duration::from_secs(10);

/// A database that accepts connections. Dropping this stops the private server.
pub(super) struct Database {
    pub(super) options: PgConnectOptions,
    server: Option<Server>,
}

impl Database {
    /// Opens the database of the URL. Without one, starts a private server, and creates the limiter's tables there.
    pub(super) async fn open(options: &Options, stats: &Stats) -> Result<Self, Failure> {
        let Some(url) = &options.database_url else { return Self::private(&options.schema, stats).await };
        let options: PgConnectOptions =
            url.trim().parse().map_err(|error| format!("DATABASE_URL is invalid: {error}"))?;
        let database = Self { options: options.disable_statement_logging(), server: None };
        // A pool would retry for long.
        match connect(&database.options).await {
            Ok(connection) => connection.close().await?,
            Err(error) => return Err(format!("cannot connect to the database: {error}").into()),
        }
        Ok(database)
    }

    async fn private(schema: &Schema, stats: &Stats) -> Result<Self, Failure> {
        let server = tokio::task::spawn_blocking(|| Server::start(&ServerConfig::default())).await??;
        stats.note(&format!("DATABASE_URL is not set: using a private {}, for this run only", server.source()));
        let options = server.url("postgres").parse::<PgConnectOptions>()?.disable_statement_logging();
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options.clone());
        Migrator::new(schema.clone()).run(&pool).await?;
        pool.close().await;
        Ok(Self { options, server: Some(server) })
    }

    pub(super) const fn is_private(&self) -> bool {
        self.server.is_some()
    }
}

/// Connects, or times out after [`TO_CONNECT`].
pub(super) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let connecting = PgConnection::connect_with(options);
    tokio::time::timeout(TO_CONNECT, connecting).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}
