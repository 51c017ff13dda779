//! If the suite runs behind a pooler, these replacements use sqlx as an application does there: with unnamed statements.

pub use pg_limiter::sqlx::*;

use pg_limiter::sqlx::postgres::{PgArguments, PgRow};
use pg_limiter::sqlx::query::{Query, QueryScalar};

use super::pooler;

/// Shadows the function of sqlx.
pub fn query<'q>(sql: impl SqlSafeStr) -> Query<'q, Postgres, PgArguments> {
    pg_limiter::sqlx::query(sql).persistent(!pooler::is_asked_for())
}

/// Shadows the function of sqlx.
pub fn query_scalar<'q, O>(sql: impl SqlSafeStr) -> QueryScalar<'q, Postgres, O, PgArguments>
where
    (O,): for<'r> FromRow<'r, PgRow>,
{
    pg_limiter::sqlx::query_scalar(sql).persistent(!pooler::is_asked_for())
}
