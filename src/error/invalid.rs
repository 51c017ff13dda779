use std::time::Duration;

use crate::limit::Kind;

/// A limit whose numbers or options cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid limit{}: {reason}", .name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default())]
pub struct InvalidLimit {
    name: Option<String>,
    reason: String,
}

impl InvalidLimit {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { name: None, reason: reason.into() }
    }

    pub(crate) fn of(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }
}

impl From<std::convert::Infallible> for InvalidLimit {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// A limits file that cannot be read; the message names the limit and the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limits file: {reason}")]
pub struct LimitsFileError {
    reason: String,
}

impl LimitsFileError {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// A call that could never be allowed, or that makes no sense. Found before anything is sent.
///
/// Keys are personal data more often than not: no message shows one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCall {
    /// The count is above what the limit can ever grant at once: its capacity, with `reserve` its capacity and
    /// `max_reserved`, for a sliding window its rate.
    #[error(
        "the count {count} can never be served by the limit \"{limit}\", which grants at most {most}; ask for less at once, or raise the capacity"
    )]
    CountExceedsCapacity {
        /// The limit's name.
        limit: String,
        /// The count asked for, added up where a call names the bucket more than once.
        count: f64,
        /// The largest count that can be served.
        most: f64,
    },
    /// The count is above the capacity, and the rest of it cannot arrive within the time that the call may wait: see
    /// [`Limiter::until_ready`](crate::Limiter::until_ready).
    #[error(
        "the count {count} can never be served by the limit \"{limit}\" within {max_wait:?}, in which it grants at most {most}; wait for longer, or ask for less at once"
    )]
    WaitTooShort {
        /// The limit's name.
        limit: String,
        /// The count asked for, added up where a call names the bucket more than once.
        count: f64,
        /// The largest count that can be served in that time.
        most: f64,
        /// The longest time to wait.
        max_wait: Duration,
    },
    /// The count is negative or not a finite number.
    #[error(
        "the count {count} for the limit \"{limit}\" is not 0 or a number from 1e-100 to 1e100; ask for a count of 0 or more"
    )]
    Count {
        /// The limit's name.
        limit: String,
        /// The count asked for.
        count: f64,
    },
    /// No limit of that name was defined.
    #[error("there is no limit \"{limit}\"; define it, or give it with the call")]
    UnknownLimit {
        /// The name asked for.
        limit: String,
    },
    /// This kind of limit cannot reserve.
    #[error("the limit \"{limit}\" cannot reserve, being a {kind}; use a token bucket or a fixed window")]
    ReserveUnsupported {
        /// The limit's name.
        limit: String,
        /// The limit's kind.
        kind: Kind,
    },
    /// The name of a limit is empty, longer than 255 bytes, or holds a NUL.
    #[error("a limit's name has 1 to 255 bytes and no NUL, not {bytes} bytes; give the limit a short name")]
    Name {
        /// The length of the name.
        bytes: usize,
    },
    /// The key is longer than 1024 bytes or holds a NUL.
    #[error(
        "the key for the limit \"{limit}\" has {bytes} bytes; a key has at most 1024 and no NUL, so shorten or hash it"
    )]
    Key {
        /// The limit's name.
        limit: String,
        /// The length of the key.
        bytes: usize,
    },
    /// One call names a bucket twice, under two different limits.
    #[error("the call gives the limit \"{limit}\" in two different forms for one key; give it once")]
    Contradiction {
        /// The limit's name.
        limit: String,
    },
    /// The idempotency key is empty, longer than 255 bytes, or holds a NUL.
    #[error("an idempotency key has 1 to 255 bytes and no NUL, not {bytes} bytes; hash it")]
    IdempotencyKey {
        /// The length of the key.
        bytes: usize,
    },
    /// The idempotency key was used for another call before: another limit, key or count. Nothing was taken.
    #[error("the idempotency key was used for another call before; give each request a key of its own")]
    IdempotencyKeyReused,
    /// What changes nothing, or the same however often, takes no idempotency key; and a job has a unique id instead.
    #[error("an idempotency key is for limit, credit and charge; leave it out, and give a job a unique id instead")]
    IdempotencyKeyUnsupported,
    /// A call without items decides nothing.
    #[error("the call names no limit; name at least one")]
    Empty,
}

impl InvalidCall {
    /// A stable name: `count_exceeds_capacity`, `wait_too_short`, `invalid_count`, `unknown_limit`, `reserve_unsupported`,
    /// `invalid_name`, `invalid_key`, `invalid_idempotency_key`, `invalid_call`.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::CountExceedsCapacity { .. } => "count_exceeds_capacity",
            Self::WaitTooShort { .. } => "wait_too_short",
            Self::Count { .. } => "invalid_count",
            Self::UnknownLimit { .. } => "unknown_limit",
            Self::ReserveUnsupported { .. } => "reserve_unsupported",
            Self::Name { .. } => "invalid_name",
            Self::Key { .. } => "invalid_key",
            Self::IdempotencyKey { .. } | Self::IdempotencyKeyReused | Self::IdempotencyKeyUnsupported => {
                "invalid_idempotency_key"
            }
            Self::Contradiction { .. } | Self::Empty => "invalid_call",
        }
    }
}

/// A job or a worker that could never be. Found before anything is sent, but for a time that has gone by.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidJob {
    /// The name of a queue is empty, longer than 255 bytes, or holds a NUL.
    #[error("a queue's name has 1 to 255 bytes and no NUL, not {bytes} bytes; give the queue a short name")]
    Queue {
        /// The length of the name.
        bytes: usize,
    },
    /// The payload cannot be written as JSON that PostgreSQL stores.
    #[error("the payload cannot be stored as JSON: {reason}")]
    Payload {
        /// Why.
        reason: String,
    },
    /// The payload is too large.
    #[error(
        "the payload has {bytes} bytes, and {most} are allowed; store it elsewhere and enqueue where it is, or raise max_payload"
    )]
    PayloadTooLarge {
        /// Its length as JSON.
        bytes: usize,
        /// What the queue's configuration allows.
        most: usize,
    },
    /// A unique id is empty, longer than 255 bytes, or holds a NUL.
    #[error("a unique id has 1 to 255 bytes and no NUL, not {bytes} bytes; hash it")]
    UniqueId {
        /// The length of the id.
        bytes: usize,
    },
    /// The job is not to run before a time that has gone by. Nothing was enqueued, and no token taken.
    #[error("the job is to run at a time that has gone by; leave run_at out to run it as soon as the limits allow")]
    RunAtPast,
    /// A time or a length that cannot be counted in microseconds.
    #[error("{what} is out of range; stay within 36,525 days")]
    Time {
        /// Which one.
        what: &'static str,
    },
    /// The limits of jobs are known to workers by their names only.
    #[error("the limit \"{limit}\" is given with the job; define it by name, because workers have to know it, too")]
    InlineLimit {
        /// The limit's name.
        limit: String,
    },
    /// A name that leaves no room for that of the bucket of what was started.
    #[error("the limit's name has {bytes} bytes, and that of a job's limit has at most 247; give it a shorter one")]
    LimitName {
        /// The length of the name.
        bytes: usize,
    },
    /// A number that has to be 1 or more, or cannot be as large.
    #[error("{what} is {value}; {remedy}")]
    Config {
        /// Which one.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it could be.
        remedy: &'static str,
    },
    /// There is no job of that id in the queue.
    #[error("there is no job {id} in the queue \"{queue}\"; it may have been pruned")]
    UnknownJob {
        /// The id.
        id: i64,
        /// The queue.
        queue: String,
    },
    /// The job reserved nothing from that limit and key.
    #[error("job {id} reserved nothing of the limit \"{limit}\" for that key; settle what it reserved")]
    NotReserved {
        /// The id.
        id: i64,
        /// The limit's name.
        limit: String,
    },
    /// The job has not started, or was cancelled: there is nothing to settle.
    #[error("job {id} has used nothing; settle it once it has started, or cancel it")]
    NotStarted {
        /// The id.
        id: i64,
    },
}
