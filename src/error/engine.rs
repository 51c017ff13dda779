use std::fmt;

/// The database engine. Engines differ in what an error means and in the SQL that they support.
///
/// Each handle reads it from `version()` on its first connection, unless
/// [`LimiterConfig::engine`](crate::LimiterConfig::engine) sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Engine {
    /// PostgreSQL, and services that run it. An error from COMMIT means that nothing was committed.
    PostgreSql,
    /// YugabyteDB (YSQL). After an error from COMMIT, the outcome may be unknown. The server itself retries the first
    /// statement of a transaction after a conflict. Migrations are not transactional.
    Yugabyte,
}

impl Engine {
    /// The engine whose `version()` returns this text: `PostgreSQL 15.12-YB-2025.2.0.0-b1 on …`.
    pub(crate) fn of_version(version: &str) -> Self {
        if Self::yugabyte_release(version).is_some() { Self::Yugabyte } else { Self::PostgreSql }
    }

    /// The release of YugabyteDB in the text that `version()` returns, such as `2025.2.0.0-b1`; `None` for PostgreSQL.
    pub fn yugabyte_release(version: &str) -> Option<&str> {
        let (_, release) = version.split_once("-YB-")?;
        release.split([' ', ',']).next()
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PostgreSql => "PostgreSQL",
            Self::Yugabyte => "YugabyteDB",
        })
    }
}
