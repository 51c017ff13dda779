use std::fmt;

/// The database engine. Engines differ in what an error means and in the SQL that they support.
///
/// Each handle reads it from the database on its first connection, unless
/// [`LimiterConfig::engine`](crate::LimiterConfig::engine) sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Engine {
    /// PostgreSQL, and services that run it. An error from COMMIT means that nothing was committed.
    PostgreSql,
    /// PostgreSQL with the extension Citus, if the limiter's tables are distributed over its nodes. A transaction can lose a
    /// node, so after an error from COMMIT or from a statement that a node runs alone, the outcome may be unknown.
    Citus,
    /// YugabyteDB (YSQL). After an error from COMMIT, the outcome may be unknown. The server itself retries the first
    /// statement of a transaction after a conflict. Migrations are not transactional.
    Yugabyte,
}

impl Engine {
    /// The engine whose `version()` returns this text, such as `PostgreSQL 15.12-YB-2025.2.0.0-b1 on …`, and whose rows are
    /// spread over nodes or not.
    pub(crate) fn of(version: &str, is_distributed: bool) -> Self {
        match (Self::yugabyte_release(version), is_distributed) {
            (Some(_), _) => Self::Yugabyte,
            (None, true) => Self::Citus,
            (None, false) => Self::PostgreSql,
        }
    }

    /// Whether the rows are spread over nodes. Then a call costs fewer messages if it is decided row by row.
    pub(crate) const fn is_distributed(self) -> bool {
        !matches!(self, Self::PostgreSql)
    }

    /// Whether a statement can be sent without BEGIN and COMMIT. YugabyteDB may report an error for a statement that it has
    /// committed, so there COMMIT is a message of its own. Citus runs such a statement on the node that has its row.
    pub(crate) const fn runs_alone(self) -> bool {
        matches!(self, Self::PostgreSql | Self::Citus)
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
            Self::Citus => "Citus",
            Self::Yugabyte => "YugabyteDB",
        })
    }
}
