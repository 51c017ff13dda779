use std::time::Duration;

use crate::call::Denied;
use crate::error::classify::{Cause, Phase, SchemaTooNew, classify, refuses_settings, sqlstate};
use crate::error::{Engine, InvalidCall, InvalidJob, InvalidLimit, without_keys};

/// What the database says, without the line of its own source code that the driver appends.
pub(crate) fn told(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(database) => format!("{} (SQLSTATE {})", database.message(), database.code().unwrap_or_default()),
        None => match error {
            sqlx::Error::Configuration(source) => source.to_string(),
            error => error.to_string(),
        },
    }
}

/// What failed, and what to do about it: by SQLSTATE, where that says more than that there is no answer.
fn unavailable(source: &sqlx::Error) -> String {
    let told = told(source);
    match sqlstate(source).as_str() {
        "25006" => format!(
            "the transaction cannot write: {told}; connect to the primary, begin no READ ONLY transaction, or set \
             default_transaction_read_only to off"
        ),
        "0A000" => {
            format!("the server cannot run the transaction: {told}; connect to the primary, if this is a standby")
        }
        "57014" => format!(
            "no answer from the database in time: {told}; raise statement_timeout, and check that no transaction holds the row"
        ),
        "53300" => format!("no free connection of the server: {told}; raise max_connections, or open fewer"),
        _ => format!(
            "no answer from the database in time: {told}; check that it runs, that the pool is large enough, and that no \
             transaction holds the row"
        ),
    }
}

fn too_new(error: &sqlx::Error) -> Option<&SchemaTooNew> {
    match error {
        sqlx::Error::Configuration(source) => source.downcast_ref(),
        _ => None,
    }
}

/// Why a call has no decision. Fail closed: none of these is a permit.
///
/// A denial is not among them, unless it was turned into one with [`Decision::enforce`](crate::Decision::enforce).
///
/// # Keys
/// They are personal data more often than not, and none of these shows one: not as text, not with `{:?}`, and not in its
/// sources. So a `source` that the database sent has its message, SQLSTATE, table and constraint; not its DETAIL, where
/// PostgreSQL puts the values of a row. The traces of this crate (target `pg_limiter`) keep to the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call could never be allowed. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidCall),
    /// A limit that cannot be.
    #[error(transparent)]
    InvalidLimit(#[from] InvalidLimit),
    /// A job or a worker that cannot be.
    #[error(transparent)]
    InvalidJob(#[from] InvalidJob),
    /// The call was denied, and [`enforce`](crate::Decision::enforce) made that an error.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The database cannot be reached, no connection was free in time, the deadline passed while waiting for a row, or the
    /// server is a standby. Nothing was decided.
    #[error("{}", unavailable(.source))]
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
    /// The connection was lost while a commit was under way: it may have happened. Count the tokens as spent, or make the
    /// call with an [idempotency key](crate::Call::idempotency_key), which may be repeated.
    #[error(
        "the outcome of a commit is unknown: {}; count the tokens as spent, or repeat calls that have an idempotency key",
        told(.last)
    )]
    OutcomeUnknown {
        /// What the driver says. Not a source: a unit of work that finds a lost connection among the sources of an error
        /// is run again, and what may have been taken must not be taken once more.
        last: sqlx::Error,
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
    /// A newer release has migrated the schema, in a way that this release cannot work with. Nothing was decided.
    #[error(
        "the schema \"{schema}\" is at version {found}, which this release cannot work with: it knows versions up to {known}; \
         update pg-limiter"
    )]
    SchemaTooNew {
        /// The schema.
        schema: String,
        /// The newest version in the database that is marked as breaking.
        found: i32,
        /// The newest version that this release knows.
        known: i32,
    },
    /// The caller's transaction met a conflict and has to be rolled back; the whole of it is worth retrying.
    #[error("the transaction met a conflict: {}; roll it back and run it again from the start", told(.source))]
    Conflict {
        /// What the driver says.
        source: sqlx::Error,
    },
    /// The database refused, for example for want of a privilege, or because transactions are read-only by its settings. Within
    /// a transaction, roll it back.
    #[error("the database refused: {}", told(.source))]
    Database {
        /// What the driver says.
        source: sqlx::Error,
    },
    /// A prepared statement was not where the driver looked for it: a pooler shares out its connections, and does not know of
    /// them. Nothing was decided.
    #[error(
        "a prepared statement was lost: {}; behind a pooler in transaction mode set named_statements to false, or let the pooler keep track of prepared statements",
        told(.source)
    )]
    Pooler {
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
    /// Whether the whole transaction, run again from the start, may well succeed: after a conflict, and on another
    /// connection if this one was lost before it was asked to commit.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Conflict { .. } => true,
            Self::Unavailable { source } => {
                // Of all that SQLSTATE 0A000 may mean, only a standby makes the limiter unavailable.
                matches!(classify(source, Phase::Statement, None), Cause::Connection) || sqlstate(source) == "0A000"
            }
            _ => false,
        }
    }

    /// A stable name, as in traces and metrics: `invalid`, `invalid_limit`, `invalid_job`, `denied`, `unavailable`,
    /// `retries_exhausted`, `outcome_unknown`, `overloaded`, `closed`, `schema_missing`, `schema_too_new`, `conflict`, `database`, `pooler`,
    /// `aborted`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::InvalidLimit(_) => "invalid_limit",
            Self::InvalidJob(_) => "invalid_job",
            Self::Denied(_) => "denied",
            Self::Unavailable { .. } => "unavailable",
            Self::RetriesExhausted { .. } => "retries_exhausted",
            Self::OutcomeUnknown { .. } => "outcome_unknown",
            Self::Overloaded { .. } => "overloaded",
            Self::Closed => "closed",
            Self::SchemaMissing { .. } => "schema_missing",
            Self::SchemaTooNew { .. } => "schema_too_new",
            Self::Conflict { .. } => "conflict",
            Self::Database { .. } => "database",
            Self::Pooler { .. } => "pooler",
            Self::Aborted => "aborted",
        }
    }

    /// The denial, if it is one.
    pub const fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Denied(denied) => Some(denied),
            _ => None,
        }
    }

    /// The failure of a later attempt, when it is not known what an earlier one came to.
    pub(crate) fn of_unknown_outcome(self) -> Self {
        match self {
            Self::Unavailable { source }
            | Self::RetriesExhausted { last: source, .. }
            | Self::Conflict { source }
            | Self::Database { source }
            | Self::Pooler { source }
            | Self::SchemaMissing { source, .. } => Self::OutcomeUnknown { last: source },
            other => other,
        }
    }

    /// What the database reports of this error, with its SQLSTATE, and without the line of the server's source code that sqlx
    /// appends.
    pub fn database_message(error: &sqlx::Error) -> String {
        told(error)
    }

    /// Whether a pooler between this process and the server refuses the settings that a connection asks for when it starts. The
    /// limiter's own connections need such settings: see [`Connections`](crate::Connections).
    pub fn refuses_settings(error: &sqlx::Error) -> bool {
        refuses_settings(error)
    }

    /// The error of a statement of your own on the limiter's tables and functions, classified as those of the library are.
    pub fn of_sql(source: sqlx::Error, schema: &str) -> Self {
        Self::of_statement(source, schema)
    }

    /// A failure of a statement within the caller's transaction.
    pub(crate) fn of_statement(source: sqlx::Error, schema: &str) -> Self {
        Self::of_attempt(source, Phase::Statement, None, schema)
    }

    /// A failure that is not tried again.
    pub(crate) fn of_attempt(source: sqlx::Error, phase: Phase, engine: Option<Engine>, schema: &str) -> Self {
        if let Some(SchemaTooNew { found, known }) = too_new(&source) {
            return Self::SchemaTooNew { schema: schema.to_owned(), found: *found, known: *known };
        }
        let cause = classify(&source, phase, engine);
        let source = without_keys(source);
        match cause {
            Cause::Conflict | Cause::Locked => Self::Conflict { source },
            Cause::Connection | Cause::Busy | Cause::Settings => Self::Unavailable { source },
            Cause::Pooler => Self::Pooler { source },
            Cause::SchemaMissing => Self::SchemaMissing { schema: schema.to_owned(), source },
            Cause::Unknown => Self::OutcomeUnknown { last: source },
            Cause::Closed => Self::Closed,
            Cause::Refused | Cause::Data => Self::Database { source },
        }
    }
}
