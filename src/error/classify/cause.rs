//! The causes of failures, and the phases in which they occur.

/// The phase in which a failure occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Connecting.
    Connect,
    /// BEGIN was sent. It cannot change anything.
    Begin,
    /// A statement was sent, before COMMIT.
    Statement,
    /// A statement was sent to an engine that commits it on another node before the result arrives here.
    Delegated,
    /// COMMIT was sent.
    Commit,
    /// The transaction is committed, but may not be flushed to disk yet.
    Flush,
}

/// The cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Rolled back because of a concurrent transaction. A retry on the same connection may succeed.
    Conflict,
    /// Rolled back because another transaction held a lock for too long.
    Locked,
    /// The connection was lost or could not be opened, and nothing was committed. Retry on a new connection.
    Connection,
    /// Rolled back because of a timeout or a lack of memory.
    Busy,
    /// The transaction may be committed.
    Unknown,
    /// The limiter's table or functions are missing.
    SchemaMissing,
    /// The function rejected a value. In a batch, one of the calls is to blame.
    Data,
    /// The pool is closed.
    Closed,
    /// A pooler rejects the settings of a connection.
    Settings,
    /// A prepared statement is missing on this connection, because a pooler shares its connections.
    Pooler,
    /// Anything else. A retry does not help.
    Refused,
}

impl Cause {
    /// A stable name, for metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Locked => "locked",
            Self::Connection => "connection",
            Self::Busy => "busy",
            Self::Unknown => "unknown",
            Self::SchemaMissing => "schema_missing",
            Self::Data => "data",
            Self::Closed => "closed",
            Self::Settings => "settings",
            Self::Pooler => "pooler",
            Self::Refused => "refused",
        }
    }

    /// The cause if the statement writes nothing. A lost outcome is then only a lost connection: the statement can be
    /// repeated.
    pub(crate) const fn of_read(self) -> Self {
        match self {
            Self::Unknown => Self::Connection,
            cause => cause,
        }
    }
}
