//! Databases with settings that an administrator made for other statements.

use pg_limiter::sqlx::PgPool;

use crate::support::Database;

pub const TIME_LIMITS: [&str; 4] = [
    "lock_timeout = '1ms'",
    "statement_timeout = '20ms'",
    "idle_in_transaction_session_timeout = '50ms'",
    "deadlock_timeout = '1ms'",
];

pub const TRANSACTION_DEFAULTS: [&[&str]; 7] = [
    &["plpgsql.extra_errors = 'all'"],
    &["default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on"],
    &["default_transaction_isolation = 'repeatable read'", "row_security = off", "synchronous_commit = off"],
    &["search_path = elsewhere, public", "check_function_bodies = off", "plpgsql.variable_conflict = 'use_variable'"],
    &["session_replication_role = 'replica'", "array_nulls = off", "transform_null_equals = on"],
    &[
        "extra_float_digits = -15",
        "DateStyle = 'German, DMY'",
        "IntervalStyle = 'sql_standard'",
        "TimeZone = 'Asia/Kolkata'",
    ],
    &[
        "bytea_output = 'escape'",
        "standard_conforming_strings = off",
        "client_min_messages = 'error'",
        "quote_all_identifiers = on",
    ],
];

/// A database with these settings, and a pool of connections with them.
pub async fn database_with(settings: &[&str]) -> (Database, PgPool) {
    let database = Database::migrated().await;
    for setting in settings {
        database.execute(&format!("ALTER DATABASE {} SET {setting}", database.name)).await;
    }
    let pool = Database::pool(&database.url, 8).await;
    (database, pool)
}
