//! The limiter's tables and functions in the application's database.
//!
//! ```no_run
//! # async fn f(pool: sqlx::PgPool) -> Result<(), pg_limiter::migrate::MigrateError> {
//! pg_limiter::migrate::migrate(&pool).await?;
//! # Ok(()) }
//! ```
//!
//! It may be repeated, and many processes may start at once on an empty database. The application's own migrations,
//! its `_sqlx_migrations` and its search_path are never touched. The table `rate_limits_migrations` records the migrations of tables,
//! which are numbered and never change. The table `rate_limits_objects` records every object, functions with a hash: a run creates or
//! replaces the functions that differ from those of this release. [`Migrator::check`] reports how a database differs.
//!
//! To keep the SQL in your own migration tool, print it with [`script`] or `pg-limiter migrate --print`; the files are in
//! `migrations/` of the crate's repository.
//!
//! Privileges: CREATE on the schema, and CREATE on the database if the schema is not there yet. The role that migrates owns
//! the tables and the functions; other roles need USAGE on the schema and EXECUTE on the functions. A schema in which other roles
//! can create objects is refused.

mod drift;
mod error;
mod functions;
mod installed;
mod migrations;
mod runner;
mod script;
mod statements;
mod stepwise;

pub use drift::Drift;
pub use error::MigrateError;
pub use functions::{Function, functions};
pub use migrations::{Migration, migrations, uninstall};
pub use runner::{MigrateReport, Migrator, migrate, migrate_on};
pub use script::{Part, script};
