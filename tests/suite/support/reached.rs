//! The limiter of an application that reaches its database by a URL: through a proxy that fails, say.

use std::time::Duration;

use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::{Engine, Limiter, LimiterConfig, Limits};

/// Nothing is connected until it is called. A call ends by the deadline, 30 s unless `change` says otherwise, also where it
/// waits for a connection of the caller's. The engine is PostgreSQL, and not asked for.
pub fn limiter_at(url: &str, limits: Limits, change: impl FnOnce(&mut LimiterConfig)) -> Limiter {
    let mut config = LimiterConfig::default();
    config.engine = Some(Engine::PostgreSql);
    config.retry.deadline = Duration::from_secs(30);
    change(&mut config);
    let options = PgPoolOptions::new().max_connections(4).acquire_timeout(config.retry.deadline);
    Limiter::with_config(options.connect_lazy(url).expect("a URL"), limits, config)
}
