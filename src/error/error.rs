use std::time::Duration;

use crate::call::Denied;
use crate::error::classify::{Cause, Phase, classify};
use crate::error::{InvalidCall, InvalidLimit};

/// What the database says, without the line of its own source code that the driver appends.
pub(crate) fn told(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(database) => format!("{} (SQLSTATE {})", database.message(), database.code().unwrap_or_default()),
        None => error.to_string(),
    }
}

/// Why a call has no decision. Fail closed: none of these is a permit.
///
/// A denial is not among them, unless it was turned into one with [`Decision::enforce`](crate::Decision::enforce).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call could never be allowed. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidCall),
    /// A limit that cannot be.
    #[error(transparent)]
    InvalidLimit(#[from] InvalidLimit),
    /// The call was denied, and [`enforce`](crate::Decision::enforce) made that an error.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The database cannot be reached, no connection was free in time, or the deadline passed while waiting for a row.
    /// Nothing was decided.
    #[error("no answer from the database in time: {}; check that it runs, that the pool is large enough, and that no transaction holds the row", told(.source))]
    Unavailable {
        /// What the driver says.
        source: sqlx::Error,
    },
    /// Every attempt ended in a conflict or a lost connection. Nothing was decided.
    #[error(
        "no decision after {attempts} attempts in {elapsed:?}: {}; raise the retry policy's attempts or deadline, or spread the load",
        told(.last)
    )]
    RetriesExhausted {
        /// The attempts made.
        attempts: u32,
        /// The time they took.
        elapsed: Duration,
        /// The last failure. Not a source: retrying the whole is not what this error asks for.
        last: sqlx::Error,
    },
    /// The connection was lost while a commit was under way: it may have happened. Count the tokens as spent.
    #[error("the outcome of a commit is unknown: {}; count the tokens as spent", told(.source))]
    OutcomeUnknown {
        /// What the driver says.
        source: sqlx::Error,
    },
    /// Too many calls wait for the database already. Nothing was sent.
    #[error("{waiting} calls wait for the database already; ask later, or raise max_waiting")]
    Overloaded {
        /// How many wait, which is as many as may.
        waiting: usize,
    },
    /// The limiter or its pool was closed. Nothing was decided.
    #[error("the limiter is closed; ask before close is called on it or on its pool")]
    Closed,
    /// The limiter's table or functions are not there.
    #[error(
        "the schema \"{schema}\" lacks the rate limiter's table and functions; run migrate, or `pg-limiter migrate`"
    )]
    SchemaMissing {
        /// The schema that was looked in.
        schema: String,
        /// What the driver says.
        source: sqlx::Error,
    },
    /// The caller's transaction met a conflict and has to be rolled back; the whole of it is worth retrying.
    #[error("the transaction met a conflict: {}; roll it back and run it again from the start", told(.source))]
    Conflict {
        /// What the driver says.
        source: sqlx::Error,
    },
    /// The database refused, for example for want of a privilege. Within a transaction, roll it back.
    #[error("the database refused: {}", told(.source))]
    Database {
        /// What the driver says.
        source: sqlx::Error,
    },
    /// The unit of work returned `Ok`, but a statement in it had failed: nothing was committed.
    #[error(
        "the transaction had failed and was rolled back, although the work reported success; return the first error instead of dropping it"
    )]
    Aborted,
}

impl Error {
    /// Whether the whole transaction, run again from the start, may well succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// The denial, if it is one.
    pub const fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Denied(denied) => Some(denied),
            _ => None,
        }
    }

    /// A failure of a statement within the caller's transaction.
    pub(crate) fn of_statement(source: sqlx::Error, schema: &str) -> Self {
        Self::of_attempt(source, Phase::Statement, schema)
    }

    /// A failure that is not tried again.
    pub(crate) fn of_attempt(source: sqlx::Error, phase: Phase, schema: &str) -> Self {
        match classify(&source, phase) {
            Cause::Conflict => Self::Conflict { source },
            Cause::Connection | Cause::Busy => Self::Unavailable { source },
            Cause::SchemaMissing => Self::SchemaMissing { schema: schema.to_owned(), source },
            Cause::Unknown => Self::OutcomeUnknown { source },
            Cause::Closed => Self::Closed,
            Cause::Refused | Cause::Data => Self::Database { source },
        }
    }
}
