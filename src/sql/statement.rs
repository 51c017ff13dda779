use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::{Query, QueryScalar};
use sqlx::{AssertSqlSafe, Decode, Postgres, SqlSafeStr, SqlStr, Type};

/// Whether statements are prepared under names, on each connection. Clones share the setting.
#[derive(Clone, Debug)]
pub(crate) struct NamedStatements(Arc<AtomicBool>);

impl NamedStatements {
    pub(crate) fn new(on: bool) -> Self {
        Self(Arc::new(AtomicBool::new(on)))
    }

    pub(crate) fn are_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Stops the use of names. Returns whether they were used before.
    pub(crate) fn turn_off(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// SQL that is sent repeatedly. All queries of the library are created here.
#[derive(Clone, Debug)]
pub(crate) struct Sql {
    text: SqlStr,
    named: NamedStatements,
}

impl Sql {
    /// `text` consists of literals and quoted identifiers. A statement without a name is parsed each time, in a round
    /// trip of its own. Behind a pooler, the two round trips reach the same session only within a transaction.
    pub(crate) fn new(text: impl Into<Arc<str>>, named: &NamedStatements) -> Self {
        Self { text: AssertSqlSafe(text.into()).into_sql_str(), named: named.clone() }
    }

    pub(crate) fn query<'q>(&self) -> Query<'q, Postgres, PgArguments> {
        // Set for each query, because the driver uses names even if it caches no statements
        // (`statement_cache_capacity(0)`).
        sqlx::query(self.text.clone()).persistent(self.named.are_on())
    }

    /// Returns a query for a result of one column.
    pub(crate) fn scalar<'q, T>(&self) -> QueryScalar<'q, Postgres, T, PgArguments>
    where
        (T,): for<'r> sqlx::FromRow<'r, PgRow>,
        T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
    {
        sqlx::query_scalar(self.text.clone()).persistent(self.named.are_on())
    }
}
