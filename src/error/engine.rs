use std::fmt;

/// The database engine, as far as its failures and its dialect differ.
///
/// It is found out from `version()` once for each handle, on its first connection, unless
/// [`LimiterConfig::engine`](crate::LimiterConfig::engine) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Engine {
    /// PostgreSQL, and services that run it: an error from COMMIT says that nothing was committed.
    PostgreSql,
    /// YugabyteDB (YSQL): an error from COMMIT may leave open whether it was; the server itself runs the first statement of
    /// a transaction again after a conflict; migrations are not transactional.
    Yugabyte,
}

impl Engine {
    /// The engine that says this of itself in `version()`: `PostgreSQL 15.12-YB-2025.2.0.0-b1 on …`.
    pub(crate) fn of_version(version: &str) -> Self {
        if Self::yugabyte_release(version).is_some() { Self::Yugabyte } else { Self::PostgreSql }
    }

    /// The release of YugabyteDB in that text, `2025.2.0.0-b1`; `None` if it is PostgreSQL's.
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
