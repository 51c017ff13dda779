//! Adds the limiter's SQL to the application's own migrations, in a separate schema. The application's role gets only the
//! privileges that it needs.
//!
//!     cargo run --features embedded --example migrate_by_hand
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set. The user
//! in `DATABASE_URL` must be allowed to create roles.
//!
//! `pg-limiter migrate --print --schema limits` prints the same SQL for psql or any other tool. The changelog lists the
//! releases that have a new migration, and `pg-limiter migrate --check` reports what is missing from a database.

#[cfg(not(test))]
mod common;

use std::path::Path;
use std::time::Duration;

use pg_limiter::migrate::{Contents, Part, script};
use pg_limiter::{Limit, Limiter, LimiterConfig, Limits, Schema};
use sqlx::migrate::Migrator;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Executor, PgPool};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The administrator of the server runs this once. `shop_owner` runs the migrations and owns what they create. `shop_app`
/// is the application's role.
const ROLES: &str = "
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'shop_owner') THEN CREATE ROLE shop_owner; END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'shop_app') THEN CREATE ROLE shop_app; END IF;
END $$;
CREATE SCHEMA shop AUTHORIZATION shop_owner;
CREATE SCHEMA limits AUTHORIZATION shop_owner;";

/// The application's privileges: it may call these functions, which run as their owner. It can neither read nor change a
/// bucket directly, and has no privileges on the queue, which it does not use.
const GRANTS: &str = "
GRANT USAGE ON SCHEMA limits TO shop_app;
GRANT EXECUTE ON FUNCTION limits._take_token_bucket, limits._take_fixed_window,
  limits._take_sliding_window, limits._take_two_token_buckets, limits._take_few, limits._decide_one,
  limits._decide_sums, limits._decide, limits._held, limits._decide_once, limits.reset(text),
  limits.prune, limits._prune_answers TO shop_app;";

const ORDERS: &str = "
CREATE TABLE shop.orders (customer text NOT NULL, at timestamptz NOT NULL DEFAULT now());
GRANT USAGE ON SCHEMA shop TO shop_app;
GRANT SELECT, INSERT ON shop.orders TO shop_app;";

/// Writes the limiter's SQL into the folder of the application's own migrations. Run this once, review the file, and commit
/// it. For a later release write another file: with `Contents::From(version)`, where `version` is the first new version of the
/// tables, or with `Contents::Functions` if only functions have changed.
fn write_migration(folder: &Path, schema: &Schema) -> std::io::Result<()> {
    // The application chooses the number: here it is a date.
    std::fs::write(folder.join("20260101000001_rate_limits.sql"), script(schema, Contents::All, Part::ALL))
}

/// Connects to the same database as `role`, with the application's schema as `search_path`. (If the role can log in, put its
/// user name into the URL instead.)
async fn pool_of(pool: &PgPool, role: &str) -> Result<PgPool, sqlx::Error> {
    let options = pool.connect_options().as_ref().clone().options([("role", role), ("search_path", "shop")]);
    PgPoolOptions::new().max_connections(4).connect_with(options).await
}

/// The results, which the tests check.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// The names of the migration files.
    pub(crate) files: Vec<String>,
    /// The number of migrations applied after the first run and after the second.
    pub(crate) applied: [i64; 2],
    /// Whether each of three orders was allowed. The limit allows two.
    pub(crate) allowed: Vec<bool>,
    pub(crate) orders: i64,
    /// How the database differs from this release, as `pg-limiter migrate --check` prints it.
    pub(crate) drift: Vec<String>,
    /// Statements that the application's role runs directly, and the SQLSTATE of each.
    pub(crate) by_hand: Vec<(&'static str, String)>,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    let schema = Schema::new("limits")?;
    pool.execute(ROLES).await?;

    let folder = tempfile::tempdir()?; // migrations/ of the application
    write_migration(folder.path(), &schema)?;
    std::fs::write(folder.path().join("20260101999999_grants.sql"), GRANTS)?;
    std::fs::write(folder.path().join("20260102000000_orders.sql"), ORDERS)?;
    let names = std::fs::read_dir(folder.path())?.map(|entry| entry.map(|entry| entry.file_name().into_string()));
    let mut files: Vec<String> = names.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    files.sort();
    println!("migrations: {}", files.join(", "));

    // The application does this when it starts, or `sqlx migrate run` does it.
    let owner = pool_of(pool, "shop_owner").await?;
    let migrator = Migrator::new(folder.path()).await?;
    let mut applied = [0; 2];
    for run in &mut applied {
        migrator.run(&owner).await?;
        *run = sqlx::query_scalar("SELECT count(*) FROM _sqlx_migrations WHERE success").fetch_one(&owner).await?;
    }
    println!("migrations applied: {} after the first run, {} after the second", applied[0], applied[1]);
    let drift = pg_limiter::migrate::Migrator::new(schema.clone()).check(&owner).await?;
    let drift = drift.iter().map(ToString::to_string).collect();

    let app = pool_of(pool, "shop_app").await?;
    let mut config = LimiterConfig::default();
    config.schema = schema;
    let limits = Limits::new().define("orders", Limit::token_bucket(2, Duration::from_secs(3600)))?;
    let limiter = Limiter::with_config(app.clone(), limits, config);
    let mut allowed = Vec::new();
    for nth in 1..=3 {
        let mut tx = app.begin().await?;
        sqlx::query("INSERT INTO orders (customer) VALUES ('ann')").execute(&mut *tx).await?;
        let decision = limiter.within(&mut tx).limit(("orders", "ann")).await?;
        if decision.is_denied() {
            tx.rollback().await?;
        } else {
            tx.commit().await?;
        }
        println!("order {nth}: {:?}", decision.outcome());
        allowed.push(decision.is_allowed());
    }
    let orders = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&app).await?;
    println!("{orders} orders in the table, {} idle buckets removed", limiter.prune().await?);
    limiter.close().await;

    let mut by_hand = Vec::new();
    for sql in [
        "SELECT * FROM limits.rate_limits",
        "UPDATE limits.rate_limits SET value = 1000",
        "DELETE FROM limits.rate_limits",
        "SELECT * FROM limits.limit_with('orders', 'bob', 'token_bucket', 2, '1 hour')",
        "CREATE TABLE limits.mine ()",
    ] {
        let code = match app.execute(AssertSqlSafe(sql)).await {
            Ok(_) => "allowed".to_owned(),
            Err(error) => error.as_database_error().and_then(|error| error.code()).ok_or("no SQLSTATE")?.into_owned(),
        };
        println!("run directly: {sql}: {code}");
        by_hand.push((sql, code));
    }
    app.close().await;
    owner.close().await;

    // Roles belong to the server, so dropping the database does not remove them.
    let roles = "DROP OWNED BY shop_owner, shop_app CASCADE; DROP ROLE shop_app, shop_owner";
    pool.execute(roles).await?;

    Ok(Story { files, applied, allowed, orders, drift, by_hand })
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
