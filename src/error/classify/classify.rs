use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use super::cause::{Cause, Phase};
use super::table::{Row, TABLE, of_driver};
use crate::error::clone_error::routine;
use crate::error::{Engine, Error, database_message};

/// Looks up the cause of a failure. While the engine is unknown, the worse of the two meanings applies.
pub(crate) fn classify(error: &sqlx::Error, phase: Phase, engine: Option<Engine>) -> Cause {
    let [connect, statement, commit] = match error {
        sqlx::Error::Database(error) => look_up(&**error, phase, engine),
        error => of_driver(error),
    };
    match phase {
        Phase::Connect => connect,
        Phase::Begin if connect == Cause::Settings => statement,
        Phase::Begin => connect,
        Phase::Delegated if commit != Cause::Unknown => statement,
        Phase::Statement => statement,
        Phase::Delegated | Phase::Commit => commit,
        Phase::Flush => Cause::Unknown,
    }
}

fn look_up(error: &dyn DatabaseError, phase: Phase, engine: Option<Engine>) -> [Cause; 3] {
    let code = error.code().unwrap_or_default();
    let postgres = error.try_downcast_ref::<PgDatabaseError>();
    let says = |word: &&str| {
        let more =
            [postgres.and_then(PgDatabaseError::detail), postgres.and_then(PgDatabaseError::r#where), routine(error)];
        error.message().contains(word) || more.into_iter().flatten().any(|text| text.contains(word))
    };
    let fits = |row: &&Row| {
        code.starts_with(row.state)
            && row.engine.is_none_or(|only| engine.is_none_or(|engine| engine == only))
            && (row.words.is_empty() || row.words.iter().any(says))
    };
    let row = TABLE.iter().find(fits);
    let [connect, statement, commit] = row.map_or([Cause::Refused; 3], |row| [row.connect, row.statement, row.commit]);
    let ends_the_session =
        postgres.is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic));
    if ends_the_session && phase != Phase::Connect {
        // Whatever the reason, the session has ended. The outcome of a COMMIT is unknown, unless none had come.
        let ended = |cause| if cause == Cause::Connection { cause } else { Cause::Unknown };
        let statement = if statement == Cause::Unknown { statement } else { Cause::Connection };
        return [connect, statement, ended(commit)];
    }
    [connect, statement, commit]
}

/// Whether a read-only transaction attempted a write: read_only_sql_transaction.
pub(crate) fn is_read_only(error: &sqlx::Error) -> bool {
    sqlstate(error) == "25006"
}

/// Whether the server does not support the statement: feature_not_supported.
pub(crate) fn is_not_supported(error: &sqlx::Error) -> bool {
    sqlstate(error) == "0A000"
}

/// Whether the queue's own functions refused a new job, because the queue is draining.
pub(crate) fn is_draining(error: &sqlx::Error) -> bool {
    sqlstate(error) == "RL503"
}

/// Whether the server does not know a time zone. PostgreSQL translates the message, so the name of its function decides, which
/// depends on the version.
pub(crate) fn is_unknown_zone(error: &sqlx::Error) -> bool {
    const FUNCTIONS: [&str; 3] = ["timestamp_zone", "timestamptz_zone", "DecodeTimezoneName"];
    let Some(database) = error.as_database_error().filter(|_| sqlstate(error) == "22023") else { return false };
    match routine(database) {
        Some("ReportResultError") => database.message().starts_with("time zone "), // Citus passes on what a node reports.
        function => function.is_some_and(|function| FUNCTIONS.contains(&function)),
    }
}

/// Whether a standby cancelled the statement, or ended the session, to replay what the primary has removed. The function depends on
/// the version.
pub(crate) fn is_recovery_conflict(error: &sqlx::Error) -> bool {
    const FUNCTIONS: [&str; 3] = ["ProcessInterrupts", "ProcessRecoveryConflictInterrupt", "report_recovery_conflict"];
    let function = error.as_database_error().filter(|_| sqlstate(error) == "40001").and_then(routine);
    function.is_some_and(|function| FUNCTIONS.contains(&function))
}

/// Whether the server cancelled the statement, as after the session's statement_timeout: query_canceled.
pub(crate) fn is_cancelled(error: &sqlx::Error) -> bool {
    sqlstate(error) == "57014"
}

/// Whether a function needs another isolation level than the session's: invalid_transaction_state.
pub(crate) fn needs_another_level(error: &sqlx::Error) -> bool {
    sqlstate(error) == "25000"
}

/// As `is_read_only`, for an error of the application, which may wrap the driver's error.
pub(crate) fn read_only_in_chain(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let code = match (error.downcast_ref::<sqlx::Error>(), error.downcast_ref::<Box<dyn DatabaseError>>()) {
            (Some(error), _) => Some(sqlstate(error)),
            (_, Some(error)) => error.code().map(Into::into),
            _ => None,
        };
        if let Some(code) = code {
            return code == "25006";
        }
        next = error.source();
    }
    false
}

/// Whether connecting failed because of the settings requested at start-up. Poolers reject such a connection, or ignore the
/// settings.
pub(crate) fn refuses_settings(error: &sqlx::Error) -> bool {
    classify(error, Phase::Connect, None) == Cause::Settings
}

/// Whether a statement was rejected because an earlier one in its transaction had failed: in_failed_sql_transaction.
pub(crate) fn is_in_failed_transaction(error: &sqlx::Error) -> bool {
    sqlstate(error) == "25P02"
}

pub(crate) fn sqlstate(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).map(Into::into).unwrap_or_default()
}

/// Whether a retry of the whole transaction may succeed, if COMMIT was not sent.
const fn passes(cause: Cause) -> bool {
    matches!(cause, Cause::Conflict | Cause::Locked | Cause::Connection)
}

/// The database's message for the conflict or lost connection in a chain of errors, if there is one. A unit of work returns
/// the application's own error type, whose text can be anything.
pub(crate) fn transient_in_chain(error: &(dyn std::error::Error + 'static), engine: Option<Engine>) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return error.is_retryable().then(|| error.to_string());
        }
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return passes(classify(error, Phase::Statement, engine)).then(|| database_message(error));
        }
        // A transparent wrapper exposes only the source of the error that it wraps.
        if let Some(error) = error.downcast_ref::<Box<dyn DatabaseError>>() {
            let [_, statement, _] = look_up(&**error, Phase::Statement, engine);
            return passes(statement).then(|| error.message().to_owned());
        }
        next = error.source();
    }
    None
}
