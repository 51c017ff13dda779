//! The limiter's table and functions in somebody else's database.
//!
//! ```no_run
//! # async fn f(pool: sqlx::PgPool) -> Result<(), pg_limiter::migrate::MigrateError> {
//! pg_limiter::migrate::migrate(&pool).await?;
//! # Ok(()) }
//! ```
//!
//! Safe to repeat, and safe when many processes start at once on an empty database. The application's own migrations,
//! its `_sqlx_migrations` and its search_path are never touched: what has been applied stands in the table
//! `rate_limits_migrations` beside `rate_limits`.
//!
//! To keep the SQL in your own migration tool instead, take it from [`migrations`] or from
//! `pg-limiter migrate --print`; the files are in `migrations/` of the crate's repository.
//!
//! Privileges: CREATE on the schema, and CREATE on the database if the schema is not there yet. Whoever migrates owns
//! the table and the functions; other roles need USAGE on the schema and EXECUTE on the functions.

mod error;
mod migrations;
mod runner;
mod statements;
mod stepwise;

pub use error::MigrateError;
#[cfg(feature = "cli")]
pub(crate) use migrations::NEWEST;
pub use migrations::{Migration, migrations, uninstall};
pub use runner::{MigrateReport, Migrator, migrate, migrate_on};
