use std::time::Duration;

use crate::call::KeySecret;
use crate::error::Engine;
use crate::limiter::DenialMemory;
use crate::retry::RetryPolicy;
use crate::sql::{KEEP_ANSWERS, Schema};

/// How a [`Limiter`](crate::Limiter) works.
///
/// # Default
/// - `schema`: `public`
/// - `engine`: `None`
/// - `retry`: [`RetryPolicy::default`]
/// - `isolation`: [`Isolation::Serializable`]
/// - `durability`: [`Durability::Full`]
/// - `connections`: [`Connections::Own`]
/// - `named_statements`: `true`
/// - `lanes`: 2
/// - `max_batch`: 1,024
/// - `max_waiting`: 65,536
/// - `remember_denials`: `None`
/// - `keep_answers`: 24 hours
/// - `key_secret`: `None`
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimiterConfig {
    /// The schema that holds the limiter's table and functions.
    pub schema: Schema,
    /// The engine; `None` asks the database once, on the first connection.
    pub engine: Option<Engine>,
    /// How its own transactions are tried again, and by when a call has an answer.
    pub retry: RetryPolicy,
    /// The isolation level of its own transactions.
    pub isolation: Isolation,
    /// Whether its own transactions wait for the disk.
    pub durability: Durability,
    /// Over which connections its own calls go.
    pub connections: Connections,
    /// Whether the server keeps the statements of the limiter and its queues under names, as sqlx does, so that it reads
    /// them once for each connection. `false` is for a pooler in transaction mode that knows nothing of prepared statements,
    /// like pgbouncer before 1.21: calls then go over the pool, whatever `connections` says, and workers do not LISTEN.
    /// Nothing else has to be set for such a pooler.
    pub named_statements: bool,
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
    /// How long the answer to a call with an [idempotency key](crate::Call::idempotency_key) holds for those who repeat
    /// the call: from 1 microsecond to 36,525 days; what is shorter or longer is taken for that.
    pub keep_answers: Duration,
    /// Whether keys are stored as hashes under a secret, so that the database alone does not tell whose they are.
    pub key_secret: Option<KeySecret>,
}

impl Default for LimiterConfig {
    fn default() -> Self {
        Self {
            schema: Schema::default(),
            engine: None,
            retry: RetryPolicy::default(),
            isolation: Isolation::default(),
            durability: Durability::default(),
            connections: Connections::default(),
            named_statements: true,
            lanes: 2,
            max_batch: 1024,
            max_waiting: 65_536,
            remember_denials: None,
            keep_answers: KEEP_ANSWERS,
            key_secret: None,
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
    /// One for each lane, opened on first use with the pool's connect options, besides those that the pool counts: a decision
    /// is one round trip. While other transactions hold rows for longer than 50 ms, up to 4 more wait for these rows, so that
    /// the calls on other rows go on. A hook that the pool has for new connections (`after_connect`) does not run on them.
    ///
    /// A pooler in transaction mode refuses their settings or ignores them. That is noticed, and calls go over the pool, with
    /// statements that have no names; to say so beforehand is better.
    #[default]
    Own,
    /// Those of the pool: BEGIN, the call, COMMIT. Needed where sessions cannot have settings of their own, as behind a
    /// pooler in transaction mode (if it knows nothing of prepared statements, see
    /// [`named_statements`](LimiterConfig::named_statements)), or where the pool's hook sets the role.
    Pool,
}
