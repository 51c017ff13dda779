//! Runs a command with the URL of a migrated database on a private PostgreSQL in `DATABASE_URL`, and removes the server
//! afterwards.
//!
//!     cargo run --manifest-path examples/drivers/Cargo.toml -- psql

use std::process::{Command, ExitCode};

use pg_limiter::embedded::{Server, ServerConfig};

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments.next().ok_or("no command given: use with_database COMMAND [ARGUMENT]..")?;
    let mut config = ServerConfig::default();
    config.durable = false;
    let server = Server::start(&config)?;
    let pool = sqlx::PgPool::connect(&server.url("postgres")).await?;
    pg_limiter::migrate::migrate(&pool).await?;
    pool.close().await;
    let status = Command::new(program).args(arguments).env("DATABASE_URL", server.url("postgres")).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
