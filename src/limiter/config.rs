use std::time::Duration;

use crate::call::KeySecret;
use crate::error::Engine;
use crate::retry::RetryPolicy;
use crate::sql::{KEEP_ANSWERS, Schema};
use crate::transact::{Connections, Durability, Isolation};

/// Settings of a [`Limiter`](crate::Limiter). The guide's page [Many callers](crate::guide::many_callers) explains when to change
/// them.
///
/// # Default
/// - `schema`: `rate_limit`
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
    /// The schema that holds the limiter's tables and functions.
    pub schema: Schema,
    /// The database engine. `None` asks the database once, on the first connection.
    pub engine: Option<Engine>,
    /// How the limiter's own transactions are retried, and by when a call returns.
    pub retry: RetryPolicy,
    /// The isolation level of the limiter's own transactions.
    pub isolation: Isolation,
    /// Whether the limiter's own transactions wait until their commit is on disk.
    pub durability: Durability,
    /// Which connections the limiter's own calls use.
    pub connections: Connections,
    /// Whether the statements of the limiter and its queues are prepared under names, as sqlx does by default, so that
    /// the server parses them once for each connection. Set it to `false` behind a pooler in transaction mode that does
    /// not support prepared statements, such as pgbouncer before 1.21. Calls then use the pool, whatever the value of
    /// `connections`, and workers do not LISTEN. Such a pooler needs no other setting.
    pub named_statements: bool,
    /// The number of lanes. A lane sends one batch at a time, over a connection of its own. Each key belongs to one
    /// lane, so that the batches of one process never wait for each other. 0 means 1.
    pub lanes: usize,
    /// The most calls that one statement decides. 0 means 1.
    pub max_batch: usize,
    /// The most calls that wait in a lane. Further calls return [`Error::Overloaded`](crate::Error::Overloaded). 0
    /// means 1.
    pub max_waiting: usize,
    /// Whether this process remembers denials. A client that keeps calling with a denied key is then denied without
    /// asking the database, until its `retry_after` has passed. Never used within a caller's transaction.
    pub remember_denials: Option<DenialMemory>,
    /// How long the answer to a call with an [idempotency key](crate::Call::idempotency_key) is kept for repeated
    /// calls. Values are clamped to the range from 1 microsecond to 36,525 days.
    pub keep_answers: Duration,
    /// The secret under which keys are stored as hashes, so that the database alone does not reveal them. `None` stores
    /// keys as they are.
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

/// How a process remembers denials. Until its `retry_after` has passed, the same call is denied again without asking
/// the database.
///
/// This is exact as long as tokens are only taken. A credit or a reset makes the wait shorter. If another process or a
/// caller's transaction makes one, this process does not notice it, and may still deny the call for up to `max_age`. The same holds
/// for the end of a [block](crate::Limiter::unblock). Denials of slots are never remembered, because any process can release a slot
/// at any time.
///
/// # Default
/// - `max_keys`: 10,000
/// - `max_age`: 1 second
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DenialMemory {
    /// The most keys to remember, at about 300 bytes each. 0 remembers none. When the memory is full, expired denials
    /// are dropped first, then any others.
    pub max_keys: usize,
    /// The longest time to remember a denial, even if its `retry_after` is longer. Zero remembers none.
    pub max_age: Duration,
}

impl Default for DenialMemory {
    fn default() -> Self {
        Self { max_keys: 10_000, max_age: Duration::from_secs(1) }
    }
}
