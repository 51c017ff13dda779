//! The options of the limiter's own connections.

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

/// The `application_name` of the limiter's own connections, unless the application has chosen one.
const NAME: &str = "pg-limiter";

/// Returns the options for a connection of the limiter's own: those of the pool, and a name in `pg_stat_activity`.
pub(crate) fn own_options(pool: &PgPool) -> PgConnectOptions {
    let options = PgConnectOptions::clone(&pool.connect_options());
    if options.get_application_name().is_some() { options } else { options.application_name(NAME) }
}
