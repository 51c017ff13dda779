//! A limiter for a database at a given URL, for example behind a proxy that injects faults.

use std::time::Duration;

use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::{Engine, Limiter, LimiterConfig, Limits};

/// The limiter connects on its first call. A call ends by its deadline, which is 30 s unless `change` sets another one, even
/// if it waits for a connection of the pool. The engine is set to PostgreSQL, and not detected.
pub fn limiter_at(url: &str, limits: Limits, change: impl FnOnce(&mut LimiterConfig)) -> Limiter {
    let mut config = LimiterConfig::default();
    config.engine = Some(Engine::PostgreSql);
    config.retry.deadline = Duration::from_secs(30);
    change(&mut config);
    let options = PgPoolOptions::new().max_connections(4).acquire_timeout(config.retry.deadline);
    Limiter::with_config(options.connect_lazy(url).expect("a URL"), limits, config)
}
