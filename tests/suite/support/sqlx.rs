//! sqlx as an application uses it behind a pooler, if the suite runs behind one: its queries have no names.

pub use pg_limiter::sqlx::*;

use pg_limiter::sqlx::postgres::{PgArguments, PgRow};
use pg_limiter::sqlx::query::{Query, QueryScalar};

use super::pooler;

/// Hides that of sqlx.
pub fn query<'q>(sql: impl SqlSafeStr) -> Query<'q, Postgres, PgArguments> {
    pg_limiter::sqlx::query(sql).persistent(!pooler::is_asked_for())
}

/// Hides that of sqlx.
pub fn query_scalar<'q, O>(sql: impl SqlSafeStr) -> QueryScalar<'q, Postgres, O, PgArguments>
where
    (O,): for<'r> FromRow<'r, PgRow>,
{
    pg_limiter::sqlx::query_scalar(sql).persistent(!pooler::is_asked_for())
}
