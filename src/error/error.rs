use std::time::Duration;

use crate::call::InvalidCall;
use crate::error::classify::{
    Cause, NoRuntime, Phase, ReadOnlyByDefault, SchemaTooNew, classify, is_draining, is_not_supported,
    is_recovery_conflict, is_unknown_zone, refuses_settings, sqlstate,
};
use crate::error::clone_error::hint;
use crate::error::{Denied, Engine, InvalidJob, clone_error, without_keys};
use crate::limit::{InvalidLength, InvalidLimit};

/// The database's message and SQLSTATE, without the source line of the server that the driver appends.
pub(crate) fn database_message(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(database) => format!("{} (SQLSTATE {})", database.message(), database.code().unwrap_or_default()),
        None => match error {
            sqlx::Error::Configuration(source) => source.to_string(),
            error => error.to_string(),
        },
    }
}

/// [`database_message`] with the server's HINT.
pub(crate) fn message_and_hint(error: &sqlx::Error) -> String {
    let message = database_message(error);
    match error.as_database_error().and_then(hint) {
        Some(hint) => format!("{message}; hint of the server: {}", hint.trim_end_matches('.')),
        None => message,
    }
}

/// The message of [`Error::Unavailable`]: what failed and what to do, by SQLSTATE.
fn unavailable(source: &sqlx::Error) -> String {
    let message = message_and_hint(source);
    if matches!(source, sqlx::Error::Configuration(source) if source.is::<NoRuntime>()) {
        return message;
    }
    match sqlstate(source).as_str() {
        "25006" => format!(
            "the transaction is read-only: {message}; connect to the primary, begin the transaction as READ WRITE, or set \
             default_transaction_read_only to off"
        ),
        "0A000" => {
            format!("the server cannot run the transaction: {message}; if it is a standby, connect to the primary")
        }
        "57014" => format!(
            "the database cancelled the statement: {message}; raise statement_timeout, and check that no transaction keeps the \
             row locked"
        ),
        "53300" => {
            format!(
                "the server has no free connection: {message}; raise its max_connections, or open fewer connections"
            )
        }
        "53200" => {
            format!(
                "the server lacks memory for the call: {message}; check the memory of the server, or reduce the load"
            )
        }
        "25P03" => format!(
            "the server ended the session, because its transaction was idle: {message}; raise \
             idle_in_transaction_session_timeout, or end the transaction sooner"
        ),
        "25P04" => format!(
            "the server ended the session, because its transaction took too long: {message}; raise transaction_timeout, or end \
             the transaction sooner"
        ),
        "57P05" => format!(
            "the server ended the session, because it was idle: {message}; raise idle_session_timeout, or set a shorter \
             idle_timeout of the pool"
        ),
        "40001" if is_recovery_conflict(source) => conflict(source),
        _ => format!(
            "the database is unavailable: {message}; check that it is running, that the pool is large enough, and that no \
             transaction keeps the row locked"
        ),
    }
}

/// The message of [`Error::Conflict`].
fn conflict(source: &sqlx::Error) -> String {
    let message = database_message(source);
    let advice = if is_recovery_conflict(source) {
        "connect to the primary, or raise max_standby_streaming_delay of the standby"
    } else {
        "roll it back and retry it from the start"
    };
    format!("the transaction failed with a conflict: {message}; {advice}")
}

/// The message of [`Error::Database`]: what failed and what to do, by SQLSTATE.
fn failed(source: &sqlx::Error) -> String {
    let message = format!("the database call failed: {}", message_and_hint(source));
    match (sqlstate(source).as_str(), source) {
        ("42501", _) if message.contains("only the owner of the functions may set") => {
            format!("{message}; leave out the time, or connect as the owner of the functions")
        }
        ("42501", _)
            if ["table", "relation", "view"].iter().any(|kind| message.contains(&format!("denied for {kind} "))) =>
        {
            format!(
                "{message}; grant SELECT on it: `pg-limiter grants --for operator` prints the statements, and `--for reader` those \
                 of a role that only reads"
            )
        }
        ("42501", _) => format!(
            "{message}; grant USAGE on the schema and EXECUTE on the functions (see the guide's \"Migrations and privileges\"), or run `pg-limiter doctor`"
        ),
        ("42P10", _) => format!(
            "{message}; a publication of the table has a column list without a column of the primary key, or a row filter on \
             another column: leave the table out of it, or run `pg-limiter doctor`"
        ),
        ("23505", _) if source.as_database_error().and_then(|error| error.constraint()) == Some("jobs_pkey") => {
            format!(
                "{message}; the sequence of the jobs' ids is behind, as after logical replication: move it past the newest job with \
             setval, or run `pg-limiter doctor`"
            )
        }
        ("", sqlx::Error::Configuration(source)) if source.is::<ReadOnlyByDefault>() => message,
        ("", _) => format!("{message}; check the settings of the connection, and that the server is PostgreSQL"),
        ("53100", _) => format!("{message}; free space on the server's disk"),
        _ => format!("{message}; look up the SQLSTATE in PostgreSQL's table of error codes"),
    }
}

fn too_new(error: &sqlx::Error) -> Option<&SchemaTooNew> {
    match error {
        sqlx::Error::Configuration(source) => source.downcast_ref(),
        _ => None,
    }
}

/// The reason why a call has no decision. Fail closed: an error is never a permit.
///
/// A denial is a decision, not an error, unless [`Decision::enforce`](crate::Decision::enforce) turns it into one.
///
/// # Keys
/// Keys are often personal data, so no error shows one: not in its message, not with `{:?}`, and not in its sources. A
/// `source` from the database keeps its message, SQLSTATE, table and constraint, but not its DETAIL, in which PostgreSQL
/// puts the values of a row. The traces of this crate (target `pg_limiter`) follow the same rule.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call is not valid, or can never be allowed. Nothing was taken.
    #[error(transparent)]
    Invalid(#[from] InvalidCall),
    /// The definition of a limit is not valid.
    #[error(transparent)]
    InvalidLimit(#[from] InvalidLimit),
    /// A job or the configuration of a worker is not valid.
    #[error(transparent)]
    InvalidJob(#[from] InvalidJob),
    /// The call was denied, and [`enforce`](crate::Decision::enforce) turned the denial into an error.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The database cannot be reached, no connection was free in time, the deadline passed while the call waited for a row,
    /// or the server is a standby. Nothing was decided.
    #[error("{}", unavailable(.source))]
    Unavailable {
        /// The driver's error.
        source: sqlx::Error,
    },
    /// Every attempt failed with a conflict or a lost connection. Nothing was decided.
    #[error(
        "no decision after {attempts} attempts in {elapsed:?}: {}; raise the retry policy's max_attempts or deadline, or spread the load",
        database_message(.last)
    )]
    RetriesExhausted {
        /// The number of attempts.
        attempts: u32,
        /// The time they took.
        elapsed: Duration,
        /// The last failure. It is not the `source` of this error, so that code which looks for conflicts among the sources
        /// does not retry once more.
        last: sqlx::Error,
    },
    /// The connection was lost during a commit, so the transaction may or may not be committed. Count the tokens as spent. A
    /// call with an [idempotency key](crate::Call::idempotency_key) can be repeated safely.
    #[error(
        "the outcome of a commit is unknown: {}; count the tokens as spent, or repeat the call if it has an idempotency key",
        database_message(.last)
    )]
    OutcomeUnknown {
        /// The driver's error. It is not the `source` of this error: a unit of work is retried if it finds a lost connection
        /// among the sources, and tokens that may have been taken must not be taken twice.
        last: sqlx::Error,
    },
    /// Too many calls are already waiting for the database. Nothing was sent.
    #[error("{waiting} calls are already waiting for the database; retry later, or raise max_waiting")]
    Overloaded {
        /// The number of waiting calls, which is the most that may wait.
        waiting: usize,
    },
    /// The limiter or its pool was closed. Nothing was decided.
    #[error("the limiter or its pool is closed; make all calls before closing either")]
    Closed,
    /// The limiter's table or functions are missing.
    #[error(
        "the schema \"{schema}\" lacks the rate limiter's table or functions; run migrate, or `pg-limiter migrate`"
    )]
    SchemaMissing {
        /// The schema that was searched.
        schema: String,
        /// The driver's error.
        source: sqlx::Error,
    },
    /// A newer release has migrated the schema, and this release cannot work with the result. Nothing was decided.
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
    /// The caller's transaction failed with a conflict. Roll it back and retry the whole transaction.
    #[error("{}", conflict(.source))]
    Conflict {
        /// The driver's error.
        source: sqlx::Error,
    },
    /// The database reported any other error: for example, a privilege is missing, or its settings make transactions read-only.
    /// Within a transaction, roll it back.
    #[error("{}", failed(.source))]
    Database {
        /// The driver's error.
        source: sqlx::Error,
    },
    /// A prepared statement is missing on this connection, or was left there by another client: a pooler shares its
    /// connections without tracking prepared statements. Nothing was decided.
    #[error(
        "the connection has not kept its prepared statements: {}; behind a pooler in transaction mode, set named_statements to false, or let the pooler track prepared statements",
        database_message(.source)
    )]
    Pooler {
        /// The driver's error.
        source: sqlx::Error,
    },
    /// The unit of work returned `Ok` although one of its statements had failed. Nothing was committed.
    #[error(
        "a statement failed and the transaction was rolled back, although the work returned Ok; return the first error instead of dropping it"
    )]
    Aborted,
}

impl Error {
    /// Returns whether to retry the whole transaction from the start: after a conflict, and, on another connection, if the
    /// connection was lost before COMMIT was sent.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Conflict { .. } => true,
            Self::Unavailable { source } => {
                // SQLSTATE 0A000 has many meanings, but only a standby is reported as unavailable with it.
                matches!(classify(source, Phase::Statement, None), Cause::Connection) || is_not_supported(source)
            }
            _ => false,
        }
    }

    /// Returns a copy of the error, for another caller that waited for the same answer.
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Self::Invalid(error) => Self::Invalid(error.clone()),
            Self::InvalidLimit(error) => Self::InvalidLimit(error.clone()),
            Self::InvalidJob(error) => Self::InvalidJob(error.clone()),
            Self::Denied(denied) => Self::Denied(denied.clone()),
            Self::Unavailable { source } => Self::Unavailable { source: clone_error(source) },
            Self::RetriesExhausted { attempts, elapsed, last } => {
                Self::RetriesExhausted { attempts: *attempts, elapsed: *elapsed, last: clone_error(last) }
            }
            Self::OutcomeUnknown { last } => Self::OutcomeUnknown { last: clone_error(last) },
            Self::Overloaded { waiting } => Self::Overloaded { waiting: *waiting },
            Self::Closed => Self::Closed,
            Self::SchemaMissing { schema, source } => {
                Self::SchemaMissing { schema: schema.clone(), source: clone_error(source) }
            }
            Self::SchemaTooNew { schema, found, known } => {
                Self::SchemaTooNew { schema: schema.clone(), found: *found, known: *known }
            }
            Self::Conflict { source } => Self::Conflict { source: clone_error(source) },
            Self::Database { source } => Self::Database { source: clone_error(source) },
            Self::Pooler { source } => Self::Pooler { source: clone_error(source) },
            Self::Aborted => Self::Aborted,
        }
    }

    /// Returns a stable name, as in traces and metrics: `invalid`, `invalid_limit`, `invalid_job`, `denied`, `unavailable`,
    /// `retries_exhausted`, `outcome_unknown`, `overloaded`, `closed`, `schema_missing`, `schema_too_new`, `conflict`, `database`, `pooler`,
    /// `aborted`.
    pub const fn code(&self) -> &'static str {
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

    /// Returns the denial, if this error is one.
    pub const fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Denied(denied) => Some(denied),
            _ => None,
        }
    }

    /// The error of a later attempt if the outcome of an earlier one is unknown.
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

    /// Formats an error as the database reports it, with its SQLSTATE, and without the line of the server's source code that
    /// sqlx appends.
    pub fn database_message(error: &sqlx::Error) -> String {
        database_message(error)
    }

    /// Whether a pooler between this process and the server refuses the settings that a connection requests at startup. The
    /// limiter's own connections need such settings: see [`Connections`](crate::Connections).
    pub fn refuses_settings(error: &sqlx::Error) -> bool {
        refuses_settings(error)
    }

    /// Classifies the error of your own statement on the limiter's tables or functions, as the library classifies its own.
    pub fn from_sql(source: sqlx::Error, schema: &str) -> Self {
        Self::of_statement(source, schema)
    }

    /// The error for a statement that failed within the caller's transaction.
    pub(crate) fn of_statement(source: sqlx::Error, schema: &str) -> Self {
        Self::of_attempt(source, Phase::Statement, None, schema)
    }

    /// The error for a failure that is not retried.
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
            Cause::Data if is_unknown_zone(&source) => Self::InvalidLimit(InvalidLimit::new(format!(
                "{}; use the name of a time zone that the server lists in pg_timezone_names",
                database_message(&source)
            ))),
            Cause::Refused if is_draining(&source) => Self::InvalidJob(InvalidJob::Draining),
            Cause::Refused | Cause::Data => Self::Database { source },
        }
    }
}

impl From<InvalidLength> for Error {
    /// The length of a limit's period, or of its lease, is not valid: [`Error::InvalidLimit`].
    fn from(invalid: InvalidLength) -> Self {
        Self::InvalidLimit(invalid.into())
    }
}
