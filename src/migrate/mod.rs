//! The limiter's tables and functions in the application's database.
//!
//! ```no_run
//! # async fn f(pool: sqlx::PgPool) -> Result<(), pg_limiter::migrate::MigrateError> {
//! pg_limiter::migrate::migrate(&pool).await?;
//! # Ok(()) }
//! ```
//!
//! It is safe to repeat, and many processes can start at once on an empty database. It never touches the application's own
//! migrations, `_sqlx_migrations` or `search_path`. The table `rate_limit.migrations` records the migrations of tables, which
//! are numbered and never change. The table `rate_limit.objects` records every object, and a hash for each function. A run
//! creates or replaces the functions that differ from those of this release. [`Migrator::check`] reports how a database
//! differs from this release.
//!
//! An installation has two parts ([`Part`]): the core, and the queue. [`Migrator::without_queue`] leaves out the queue. A later
//! [`migrate`] adds it.
//!
//! To keep the SQL in your own migration tool, print it with [`script()`] or `pg-limiter migrate --print`; the files are in
//! `migrations/` and `sql/` of the crate's repository.
//!
//! Privileges: CREATE on the schema, and CREATE on the database if the schema does not exist yet. The role that migrates owns
//! the tables and the functions. Other roles need USAGE on the schema and EXECUTE on the functions that they use: [`Use`] has the
//! grants. Migrating fails in a schema in which other roles can create objects.

mod drift;
mod error;
mod failure;
mod functions;
mod installed;
mod migrations;
mod names;
mod owners;
mod part;
mod read;
mod roles;
mod runner;
mod script;
mod statements;
mod stepwise;
mod tables;
mod uninstall;
mod unnamed;
mod uses;

pub use drift::Drift;
pub use error::MigrateError;
pub use functions::{Function, functions};
pub use migrations::{Migration, migrations};
pub use part::Part;
#[cfg(feature = "testing")]
pub(crate) use runner::LOCK_KEY;
pub use runner::{MigrateReport, Migrator, migrate, migrate_on};
pub use script::{Contents, script};
pub use uninstall::uninstall;
pub use uses::{CallableFunction, Use, callable_functions};
