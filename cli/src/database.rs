//! Which database: the one that was named, or a private server.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};

use crate::args::DatabaseArgs;
use crate::error::CliError;
use crate::{output, tls};
use pg_limiter::Schema;
use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::migrate::Migrator;

const PATIENCE: Duration = Duration::from_secs(10);

/// What the arguments say. Nothing is started or connected yet.
#[derive(Debug)]
pub(super) struct Database {
    /// `None`: a private server.
    options: Option<PgConnectOptions>,
    pub(super) schema: Schema,
}

/// A database that can be connected to. A private server lives as long as this does.
#[derive(Debug)]
pub(super) struct Running {
    options: PgConnectOptions,
    schema: Schema,
    server: Option<Server>,
}

impl Database {
    pub(super) fn new(args: DatabaseArgs) -> Result<Self, CliError> {
        let schema = Schema::new(&args.schema)?;
        let options = match url(args.database_url)? {
            Some(url) => Some(parse(url.trim())?),
            None => None,
        };
        Ok(Self { options, schema })
    }

    /// Starts the private server if there is to be one. Nothing in it outlives this run.
    pub(super) async fn start(self) -> Result<Running, CliError> {
        let mut config = ServerConfig::default();
        config.durable = false;
        self.start_with(config).await
    }

    /// The same with a server that waits for the disk, as one that keeps its data does: for what shows figures.
    pub(super) async fn start_durable(self) -> Result<Running, CliError> {
        self.start_with(ServerConfig::default()).await
    }

    /// The one that was named: of a server that was just made there is nothing to find out.
    pub(super) fn named(self) -> Result<Running, CliError> {
        match self.options {
            Some(options) => Ok(Running { options, schema: self.schema, server: None }),
            None => Err(CliError::usage("which database? Give --database-url, or set DATABASE_URL")),
        }
    }

    async fn start_with(self, config: ServerConfig) -> Result<Running, CliError> {
        let Self { options, schema } = self;
        if let Some(options) = options {
            return Ok(Running { options, schema, server: None });
        }
        let server = tokio::task::spawn_blocking(move || Server::start(&config)).await.map_err(CliError::failed)??;
        output::note(format!("no --database-url, no DATABASE_URL: private {}, for this run only", server.source()));
        let options = server.url("postgres").parse::<PgConnectOptions>().map_err(CliError::failed)?;
        Ok(Running { options: options.disable_statement_logging(), schema, server: Some(server) })
    }
}

/// The one given, or else that of the environment, where an empty one counts as none.
fn url(given: Option<String>) -> Result<Option<String>, CliError> {
    let url = match given {
        // Of a script whose variable is not set: a private server in its place would allow everything.
        Some(url) if url.trim().is_empty() => {
            return Err(CliError::usage(
                "--database-url is empty: name a database, or leave it out for a private server",
            ));
        }
        Some(url) => Some(url),
        None => std::env::var_os("DATABASE_URL")
            .map(|url| url.into_string().map_err(|_| CliError::usage("DATABASE_URL is not UTF-8")))
            .transpose()?,
    };
    Ok(url.filter(|url| !url.trim().is_empty()))
}

/// No message shows the URL: there may be a password in it.
fn parse(url: &str) -> Result<PgConnectOptions, CliError> {
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(CliError::usage("the database URL does not begin with postgres://"));
    }
    let options: PgConnectOptions =
        url.parse().map_err(|error| CliError::usage(format!("the database URL cannot be used: {error}")))?;
    Ok(options.application_name("pg-limiter").disable_statement_logging())
}

/// In time, or not at all.
pub(super) async fn connect_with(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let connecting = PgConnection::connect_with(options);
    tokio::time::timeout(PATIENCE, connecting).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

/// What a user is told of it.
pub(super) fn cannot_connect(error: sqlx::Error) -> CliError {
    match error {
        sqlx::Error::PoolTimedOut => CliError::failed(format!("the database did not answer within {PATIENCE:?}")),
        error => {
            let advice = tls::advice(&error, cfg!(feature = "rustls"));
            let advice = advice.map_or_else(String::new, |advice| format!("\n{advice}"));
            CliError::failed(format!("cannot connect to the database: {error}{advice}"))
        }
    }
}

impl Running {
    pub(super) const fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Where a private server comes from.
    pub(super) fn private_source(&self) -> Option<&str> {
        self.server.as_ref().map(Server::source)
    }

    pub(super) const fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    pub(super) async fn connect(&self) -> Result<PgConnection, CliError> {
        connect_with(&self.options).await.map_err(cannot_connect)
    }

    /// A pool, after one connection has shown that the database is there: a pool would try for long.
    pub(super) async fn pool(&self, connections: u32) -> Result<PgPool, CliError> {
        self.connect().await?.close().await.map_err(CliError::failed)?;
        let options = PgPoolOptions::new().max_connections(connections).acquire_timeout(PATIENCE);
        Ok(options.connect_lazy_with(self.options.clone()))
    }

    /// A pool whose database has the limiter's schema, if it is a private one. Elsewhere, migrating is the user's choice.
    pub(super) async fn ready_pool(&self, connections: u32) -> Result<PgPool, CliError> {
        let pool = self.pool(connections).await?;
        if self.server.is_some() {
            Migrator::new(self.schema.clone()).run(&pool).await?;
        }
        Ok(pool)
    }
}
