/// The isolation level of the limiter's own transactions. Decisions are equally exact at both levels. On Citus,
/// [`ReadCommitted`](Self::ReadCommitted) always applies: no level there covers the reads of several nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// A transaction that conflicts with another one on the same row fails and is retried.
    #[default]
    Serializable,
    /// If another transaction has locked or changed a row, the call waits for it and decides again, instead of failing.
    /// Faster for keys that many processes share.
    ReadCommitted,
}

impl Isolation {
    pub(crate) const fn as_sql(self) -> &'static str {
        match self {
            Self::Serializable => "SERIALIZABLE",
            Self::ReadCommitted => "READ COMMITTED",
        }
    }

    /// The value of the setting `default_transaction_isolation`.
    pub(crate) const fn as_setting(self) -> &'static str {
        match self {
            Self::Serializable => "serializable",
            Self::ReadCommitted => "read committed",
        }
    }
}

/// Whether the limiter's own transactions wait until their commit is on disk. Calls in a caller's transaction follow
/// that transaction's setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Follows the server's setting. By default, a call returns once its tokens are safe on disk.
    #[default]
    Full,
    /// A call may return before its tokens are on disk (`synchronous_commit = off`). A crash of the *server* may give
    /// back the tokens of the last moments before it: at most three times `wal_writer_delay`, which is 0.6 s by
    /// default. The calls allowed in that time may then be allowed once more. A failure of the client or the network
    /// loses nothing.
    Relaxed,
}

impl Durability {
    /// The server setting that it needs.
    pub(crate) const fn setting(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Full => None,
            Self::Relaxed => Some(("synchronous_commit", "off")),
        }
    }
}

/// Which connections the limiter's own calls use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Connections {
    /// The limiter's own connections, opened on first use with the pool's connect options: [Many callers] has their number.
    /// Their `application_name` is `pg-limiter`, unless the pool's options have one.
    /// The pool does not count them, and its hook for new connections (`after_connect`) does not run on them. A decision
    /// takes one round trip.
    ///
    /// A pooler in transaction mode rejects or ignores their session settings. The limiter detects that, logs a
    /// warning, and switches to the pool and to unnamed statements. It is better to choose [`Connections::Pool`] from
    /// the start.
    ///
    /// [Many callers]: crate::guide::many_callers
    #[default]
    Own,
    /// The pool's connections: BEGIN, the call, COMMIT. Needed where sessions cannot keep settings of their own, as
    /// behind a pooler in transaction mode, or where the pool's hook sets the role. If the pooler does not support
    /// prepared statements, see [`named_statements`](crate::LimiterConfig::named_statements).
    Pool,
}
