//! One failure of the database, told to each of several callers.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use sqlx::error::{DatabaseError, ErrorKind};
use sqlx::postgres::PgDatabaseError;

use crate::error::{ReadOnlyByDefault, SchemaTooNew};

/// The same error with the database's own words and codes only. What it tells besides, as the DETAIL that a row is refused
/// with, or the parameters that a server adds if it is set up so, has keys in it, and would be shown by `{:?}`.
pub(crate) fn without_keys(error: sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::Database(_) => share(&error),
        other => other,
    }
}

/// An equal error: of the same kind, with the same words and SQLSTATE.
pub(crate) fn share(error: &sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::Database(database) => sqlx::Error::Database(Box::new(Told::new(&**database))),
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
                // Other errors must not become trouble of the connection.
                _ => sqlx::Error::Decode(error.to_string().into()),
            }
        }
        other => sqlx::Error::Decode(other.to_string().into()),
    }
}

/// What the database said.
#[derive(Clone, Debug)]
struct Told {
    message: Arc<str>,
    code: Option<Arc<str>>,
    table: Option<Arc<str>>,
    constraint: Option<Arc<str>>,
    /// The server's function that reported it: no message is needed to tell failures of one SQLSTATE apart.
    routine: Option<Arc<str>>,
    unique: bool,
}

impl Told {
    fn new(error: &dyn DatabaseError) -> Self {
        Self {
            message: error.message().into(),
            code: error.code().map(|code| code.as_ref().into()),
            table: error.table().map(Into::into),
            constraint: error.constraint().map(Into::into),
            routine: routine(error).map(Into::into),
            unique: error.is_unique_violation(),
        }
    }
}

/// The server's function that reported an error, which is not translated as the message is.
pub(super) fn routine(error: &dyn DatabaseError) -> Option<&str> {
    let told = error.try_downcast_ref::<Told>().and_then(|told| told.routine.as_deref());
    told.or_else(|| error.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::routine))
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Told {}

impl DatabaseError for Told {
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
