use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use super::table::{Row, TABLE, of_driver};
use crate::error::share::routine;
use crate::error::{Engine, Error, told};

/// What was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A connection was being made.
    Connect,
    /// BEGIN was sent: nothing that could change anything.
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
    /// Rolled back because of others; the same transaction may pass when run again, on the same connection.
    Conflict,
    /// Rolled back because another transaction has had a lock for too long.
    Locked,
    /// The connection is gone or was never made, and nothing was committed; try on a new one.
    Connection,
    /// Too slow for a timeout, or short of memory, and rolled back.
    Busy,
    /// It may have been committed.
    Unknown,
    /// The limiter's table or functions are not there.
    SchemaMissing,
    /// A value that the function does not take: of several calls, one is to blame.
    Data,
    /// The pool is closed, for good.
    Closed,
    /// A pooler does not take the settings of a connection.
    Settings,
    /// A prepared statement is not where it is looked for: a pooler shares out the connections.
    Pooler,
    /// Anything else: trying again does not help.
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
}

/// Looks a failure up. As long as the engine is not known, what either of them could mean is taken for the worse.
pub(crate) fn classify(error: &sqlx::Error, phase: Phase, engine: Option<Engine>) -> Cause {
    let [connect, statement, commit] = match error {
        sqlx::Error::Database(error) => look_up(&**error, phase, engine),
        error => of_driver(error),
    };
    match phase {
        Phase::Connect => connect,
        Phase::Begin if connect == Cause::Settings => statement,
        Phase::Begin => connect,
        Phase::Statement => statement,
        Phase::Commit => commit,
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
        // Whatever the reason: there is nobody left who would know what became of a COMMIT.
        let statement = if statement == Cause::Unknown { statement } else { Cause::Connection };
        return [connect, statement, Cause::Unknown];
    }
    [connect, statement, commit]
}

/// A session is there and has not got a setting that was asked for at start-up.
#[derive(Debug, thiserror::Error)]
#[error("the session does not keep the setting {0}, as behind a pooler: see LimiterConfig::named_statements")]
pub(crate) struct SettingsIgnored(pub(crate) String);

impl From<SettingsIgnored> for sqlx::Error {
    fn from(ignored: SettingsIgnored) -> Self {
        Self::Configuration(Box::new(ignored))
    }
}

/// An administrator has made transactions read-only. No other connection and no other attempt changes that.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{told}: default_transaction_read_only is on for this server, database or role; turn it off for the limiter's role \
     (ALTER ROLE app_role SET default_transaction_read_only = off), or make no calls that take tokens"
)]
pub(crate) struct ReadOnlyByDefault {
    /// What the database said.
    pub(crate) told: String,
}

impl From<ReadOnlyByDefault> for sqlx::Error {
    fn from(read_only: ReadOnlyByDefault) -> Self {
        Self::Configuration(Box::new(read_only))
    }
}

/// The schema was migrated by a newer release, in a way that this one cannot work with.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the schema is at version {found}, which this release cannot work with: it knows versions up to {known}")]
pub(crate) struct SchemaTooNew {
    pub(crate) found: i32,
    pub(crate) known: i32,
}

impl From<SchemaTooNew> for sqlx::Error {
    fn from(too_new: SchemaTooNew) -> Self {
        Self::Configuration(Box::new(too_new))
    }
}

/// Whether a transaction that only reads was asked to write: read_only_sql_transaction.
pub(crate) fn is_read_only(error: &sqlx::Error) -> bool {
    sqlstate(error) == "25006"
}

/// The same for an error of the application's, which may have wrapped it.
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

/// Whether there is no session with the settings asked for at start-up, as behind poolers: they refuse the connection, or
/// ignore the settings.
pub(crate) fn refuses_settings(error: &sqlx::Error) -> bool {
    classify(error, Phase::Connect, None) == Cause::Settings
}

/// Whether a statement was refused because an earlier one in its transaction had failed: in_failed_sql_transaction.
pub(crate) fn is_in_failed_transaction(error: &sqlx::Error) -> bool {
    sqlstate(error) == "25P02"
}

pub(crate) fn sqlstate(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).map(Into::into).unwrap_or_default()
}

/// Whether all of a transaction that was not asked to commit may pass when it is run again.
const fn passes(cause: Cause) -> bool {
    matches!(cause, Cause::Conflict | Cause::Locked | Cause::Connection)
}

/// The conflict or lost connection that stands in a chain of errors, in the database's words, if there is one: what a unit
/// of work returns is the application's type, and says what the application likes.
pub(crate) fn transient_in_chain(error: &(dyn std::error::Error + 'static), engine: Option<Engine>) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return error.is_retryable().then(|| error.to_string());
        }
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return passes(classify(error, Phase::Statement, engine)).then(|| told(error));
        }
        // A transparent wrapper shows only what stands behind the error that it wraps.
        if let Some(error) = error.downcast_ref::<Box<dyn DatabaseError>>() {
            let [_, statement, _] = look_up(&**error, Phase::Statement, engine);
            return passes(statement).then(|| error.message().to_owned());
        }
        next = error.source();
    }
    None
}
