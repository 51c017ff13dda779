//! What a failure means: the one place that looks at SQLSTATEs.

use sqlx::error::DatabaseError;

use crate::error::Error;

/// What was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing was sent yet that could change anything: connecting, BEGIN.
    Begin,
    /// A statement in a transaction that is not committed.
    Statement,
    /// COMMIT was sent.
    Commit,
    /// It was committed, and is not known to be safe on disk.
    Flush,
}

/// What the failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Rolled back because of others; the same transaction may pass when run again.
    Conflict,
    /// The connection is gone or was never made, and nothing was committed; try on a new one.
    Connection,
    /// Too slow for a timeout, and rolled back.
    Busy,
    /// It may have been committed.
    Unknown,
    /// The limiter's table or functions are not there.
    SchemaMissing,
    /// A value that the function does not take: of several calls, one is to blame.
    Data,
    /// The pool is closed, for good.
    Closed,
    /// Anything else: trying again does not help.
    Refused,
}

/// SQLSTATE (or class), and what it means before COMMIT was sent and after.
const TABLE: [(&str, Cause, Cause); 19] = [
    ("40001", Cause::Conflict, Cause::Conflict),     // serialization_failure
    ("40P01", Cause::Conflict, Cause::Conflict),     // deadlock_detected
    ("40003", Cause::Unknown, Cause::Unknown),       // statement_completion_unknown
    ("08007", Cause::Unknown, Cause::Unknown),       // transaction_resolution_unknown
    ("08", Cause::Connection, Cause::Unknown),       // connection exceptions
    ("57P01", Cause::Connection, Cause::Unknown),    // admin_shutdown
    ("57P02", Cause::Connection, Cause::Unknown),    // crash_shutdown
    ("57P03", Cause::Connection, Cause::Unknown),    // cannot_connect_now
    ("57P05", Cause::Connection, Cause::Unknown),    // idle_session_timeout
    ("57014", Cause::Busy, Cause::Busy),             // query_canceled: statement_timeout
    ("25P04", Cause::Connection, Cause::Unknown),    // transaction_timeout
    ("25P03", Cause::Connection, Cause::Unknown),    // idle_in_transaction_session_timeout
    ("25006", Cause::Connection, Cause::Refused),    // read_only_sql_transaction: after a failover, the wrong node
    ("53300", Cause::Connection, Cause::Unknown),    // too_many_connections
    ("55P03", Cause::Conflict, Cause::Conflict),     // lock_not_available
    ("42883", Cause::SchemaMissing, Cause::Refused), // undefined_function
    ("42P01", Cause::SchemaMissing, Cause::Refused), // undefined_table
    ("3F000", Cause::SchemaMissing, Cause::Refused), // invalid_schema_name
    ("22", Cause::Data, Cause::Data),                // data exceptions, invalid_parameter_value among them
];

/// What a failure of a migration means: another one migrates, too, and objects come into being beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigrationCause {
    /// Another migrator was there first, or is at it: try again.
    Clash,
    /// The engine has no advisory locks: not implemented, or no such function.
    NoAdvisoryLocks,
    /// A privilege is missing.
    Privilege,
    /// Anything else.
    Refused,
}

const MIGRATION_TABLE: [(&str, MigrationCause); 12] = [
    ("23505", MigrationCause::Clash),           // unique_violation, also of a catalog
    ("42P06", MigrationCause::Clash),           // duplicate_schema
    ("42P07", MigrationCause::Clash),           // duplicate_table
    ("42710", MigrationCause::Clash),           // duplicate_object
    ("42723", MigrationCause::Clash),           // duplicate_function
    ("40001", MigrationCause::Clash),           // serialization_failure
    ("40P01", MigrationCause::Clash),           // deadlock_detected
    ("55P03", MigrationCause::Clash),           // lock_not_available
    ("XX000", MigrationCause::Clash),           // internal_error: "tuple concurrently updated"
    ("0A000", MigrationCause::NoAdvisoryLocks), // feature_not_supported
    ("42883", MigrationCause::NoAdvisoryLocks), // undefined_function
    ("42501", MigrationCause::Privilege),       // insufficient_privilege
];

/// Looks a failure of a migration up.
pub(crate) fn classify_migration(error: &sqlx::Error) -> MigrationCause {
    let code = sqlstate(error);
    let row = MIGRATION_TABLE.iter().find(|(listed, _)| *listed == code);
    row.map_or(MigrationCause::Refused, |(_, cause)| *cause)
}

/// Whether a statement was refused because an earlier one in its transaction had failed: in_failed_sql_transaction.
pub(crate) fn is_in_failed_transaction(error: &sqlx::Error) -> bool {
    sqlstate(error) == "25P02"
}

/// Whether a connection was refused because of the settings asked for at start-up, as poolers do: protocol_violation.
pub(crate) fn refuses_settings(error: &sqlx::Error) -> bool {
    sqlstate(error) == "08P01"
}

fn sqlstate(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).map(Into::into).unwrap_or_default()
}

/// Looks a failure up.
pub(crate) fn classify(error: &sqlx::Error, phase: Phase) -> Cause {
    if phase == Phase::Flush {
        return Cause::Unknown;
    }
    let lost = if phase == Phase::Commit { Cause::Unknown } else { Cause::Connection };
    match error {
        sqlx::Error::Database(database) => look_up(&database.code().unwrap_or_default(), phase),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::WorkerCrashed => lost,
        sqlx::Error::PoolClosed => Cause::Closed,
        sqlx::Error::BeginFailed if phase == Phase::Begin => Cause::Connection,
        _ => Cause::Refused,
    }
}

fn look_up(code: &str, phase: Phase) -> Cause {
    let row = TABLE.iter().find(|(prefix, ..)| code.starts_with(prefix));
    row.map_or(Cause::Refused, |(_, before, after)| if phase == Phase::Commit { *after } else { *before })
}

/// Whether a conflict stands anywhere in a chain of errors: what a unit of work returns is the application's type.
pub(crate) fn is_transient_chain(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return error.is_retryable();
        }
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return classify(error, Phase::Statement) == Cause::Conflict;
        }
        // A transparent wrapper shows only what stands behind the error that it wraps.
        if let Some(error) = error.downcast_ref::<Box<dyn DatabaseError>>() {
            return look_up(&error.code().unwrap_or_default(), Phase::Statement) == Cause::Conflict;
        }
        next = error.source();
    }
    false
}
