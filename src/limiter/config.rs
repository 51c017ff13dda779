use crate::limiter::DenialMemory;
use crate::retry::RetryPolicy;
use crate::sql::Schema;

/// How a [`Limiter`](crate::Limiter) works.
///
/// # Default
/// - `schema`: `public`
/// - `retry`: [`RetryPolicy::default`]
/// - `isolation`: [`Isolation::Serializable`]
/// - `durability`: [`Durability::Full`]
/// - `connections`: [`Connections::Own`]
/// - `lanes`: 2
/// - `max_batch`: 1,024
/// - `max_waiting`: 65,536
/// - `remember_denials`: `None`
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimiterConfig {
    /// The schema that holds the limiter's table and functions.
    pub schema: Schema,
    /// How its own transactions are tried again, and by when a call has an answer.
    pub retry: RetryPolicy,
    /// The isolation level of its own transactions.
    pub isolation: Isolation,
    /// Whether its own transactions wait for the disk.
    pub durability: Durability,
    /// Over which connections its own calls go.
    pub connections: Connections,
    /// How many batches may be on their way at once, each over a connection of its own. A key always belongs to one lane,
    /// so that a process never waits for itself. 0 is taken as 1.
    pub lanes: usize,
    /// The most calls that are decided in one statement. 0 is taken as 1.
    pub max_batch: usize,
    /// The most calls that wait in a lane; one more is refused with [`Error::Overloaded`](crate::Error::Overloaded). 0 is
    /// taken as 1.
    pub max_waiting: usize,
    /// Whether denials are remembered in this process: a key that is hammered is then refused without asking the
    /// database, until its retry time. Never within a caller's transaction.
    pub remember_denials: Option<DenialMemory>,
}

impl Default for LimiterConfig {
    fn default() -> Self {
        Self {
            schema: Schema::default(),
            retry: RetryPolicy::default(),
            isolation: Isolation::default(),
            durability: Durability::default(),
            connections: Connections::default(),
            lanes: 2,
            max_batch: 1024,
            max_waiting: 65_536,
            remember_denials: None,
        }
    }
}

/// The isolation level of the limiter's own transactions. Decisions are equally exact at both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// A transaction that meets another one on the same row fails and is tried again.
    #[default]
    Serializable,
    /// Rows are locked before they are decided on: one that meets another waits for it instead. Faster for keys that
    /// many processes share.
    ReadCommitted,
}

impl Isolation {
    pub(super) const fn as_sql(self) -> &'static str {
        match self {
            Self::Serializable => "SERIALIZABLE",
            Self::ReadCommitted => "READ COMMITTED",
        }
    }
}

/// Whether the limiter's own transactions wait for the disk. Calls in the caller's transaction do as that one does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// As the server is set up: by default an answer is given once its tokens are safe on disk.
    #[default]
    Full,
    /// An answer may be given before (`synchronous_commit = off`). After a crash of the *server*, the tokens taken in the
    /// last moments before it are there again: up to three times `wal_writer_delay`, 0.6 s unless it was changed. What
    /// was admitted in that time may then be admitted once more. Nothing is lost when a client or the network fails.
    Relaxed,
}

impl Durability {
    /// The setting of the server that it takes.
    pub(super) const fn setting(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Full => None,
            Self::Relaxed => Some(("synchronous_commit", "off")),
        }
    }
}

/// Over which connections the limiter's own calls go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Connections {
    /// One for each lane, and a second one once the lane has met other processes on a row, opened on first use with the
    /// pool's connect options, besides those that the pool counts: a decision is one round trip. A hook that the pool has
    /// for new connections (`after_connect`) does not run on them.
    ///
    /// If the server refuses settings at start-up, as poolers do, calls go over the pool.
    #[default]
    Own,
    /// Those of the pool: BEGIN, the call, COMMIT. Needed where sessions cannot have settings of their own, as behind a
    /// pooler in transaction mode, or where the pool's hook sets the role.
    Pool,
}
