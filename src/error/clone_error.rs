//! Copies of one database error, to return it to each of several callers.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use sqlx::error::{DatabaseError, ErrorKind};
use sqlx::postgres::PgDatabaseError;

use crate::error::{ReadOnlyByDefault, SchemaTooNew};

/// Returns the same error with only the database's message and codes. Its other fields can contain keys, which `{:?}` would
/// show: for example the DETAIL of a rejected row, or the statement's parameters if the server is configured to add them. The HINT is
/// kept if the server lacks a resource (class 53), such as space on its disk: it is about that.
pub(crate) fn without_keys(error: sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::Database(database) if database.code().is_some_and(|code| code.starts_with("53")) => {
            with_hint(sqlx::Error::Database(database))
        }
        sqlx::Error::Database(_) => clone_error(&error),
        other => other,
    }
}

/// Removes what may show a key, and keeps the HINT. Use it only for statements that change definitions, and if the server lacks a
/// resource: in any other error, a trigger on rows could put a key there.
pub(crate) fn with_hint(error: sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::Database(database) => {
            let given = database.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::hint).map(Into::into);
            let cloned = ClonedError::new(&*database);
            sqlx::Error::Database(Box::new(ClonedError { hint: given.or(cloned.hint.clone()), ..cloned }))
        }
        other => other,
    }
}

/// Copies an error: same kind, same message and SQLSTATE.
pub(crate) fn clone_error(error: &sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::Database(database) => sqlx::Error::Database(Box::new(ClonedError::new(&**database))),
        sqlx::Error::Io(error) => std::io::Error::new(error.kind(), error.to_string()).into(),
        sqlx::Error::PoolTimedOut => sqlx::Error::PoolTimedOut,
        sqlx::Error::PoolClosed => sqlx::Error::PoolClosed,
        sqlx::Error::WorkerCrashed => sqlx::Error::WorkerCrashed,
        sqlx::Error::BeginFailed => sqlx::Error::BeginFailed,
        sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => sqlx::Error::Protocol(error.to_string()),
        sqlx::Error::Configuration(source) => {
            match (source.downcast_ref::<ReadOnlyByDefault>(), source.downcast_ref::<SchemaTooNew>()) {
                (Some(read_only), _) => read_only.clone().into(),
                (_, Some(too_new)) => too_new.clone().into(),
                // Other errors must not be taken for connection failures.
                _ => sqlx::Error::Decode(error.to_string().into()),
            }
        }
        other => sqlx::Error::Decode(other.to_string().into()),
    }
}

/// The parts of a database error that are safe to show.
#[derive(Clone, Debug)]
struct ClonedError {
    message: Arc<str>,
    code: Option<Arc<str>>,
    table: Option<Arc<str>>,
    constraint: Option<Arc<str>>,
    /// Only of an error of [`with_hint`], and of its copies.
    hint: Option<Arc<str>>,
    /// The server's function that reported the error. It distinguishes failures that share an SQLSTATE, in any language.
    routine: Option<Arc<str>>,
    unique: bool,
}

impl ClonedError {
    fn new(error: &dyn DatabaseError) -> Self {
        Self {
            message: error.message().into(),
            code: error.code().map(|code| code.as_ref().into()),
            table: error.table().map(Into::into),
            constraint: error.constraint().map(Into::into),
            hint: hint(error).map(Into::into),
            routine: routine(error).map(Into::into),
            unique: error.is_unique_violation(),
        }
    }
}

/// The HINT of the server, in an error of [`with_hint`].
pub(super) fn hint(error: &dyn DatabaseError) -> Option<&str> {
    error.try_downcast_ref::<ClonedError>()?.hint.as_deref()
}

/// The server's function that reported an error. Unlike the message, it is not translated.
pub(super) fn routine(error: &dyn DatabaseError) -> Option<&str> {
    let cloned = error.try_downcast_ref::<ClonedError>().and_then(|cloned| cloned.routine.as_deref());
    cloned.or_else(|| error.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::routine))
}

impl fmt::Display for ClonedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for ClonedError {}

impl DatabaseError for ClonedError {
    fn message(&self) -> &str {
        &self.message
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        self.code.as_deref().map(Cow::Borrowed)
    }

    fn table(&self) -> Option<&str> {
        self.table.as_deref()
    }

    fn constraint(&self) -> Option<&str> {
        self.constraint.as_deref()
    }

    fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        if self.unique { ErrorKind::UniqueViolation } else { ErrorKind::Other }
    }
}
