//! The time limits of an attempt, and how it can fail.

use std::time::{Duration, Instant};

use crate::error::{Cause, Engine, Phase, classify};

/// The time limits of one attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) deadline: Instant,
    /// The longest wait for one lock. Zero means until the deadline.
    pub(crate) lock_timeout: Duration,
}

impl Bounds {
    pub(crate) const fn until(deadline: Instant) -> Self {
        Self { deadline, lock_timeout: Duration::ZERO }
    }
}

/// A failure, and the phase in which it happened.
pub(crate) struct Failure {
    pub(crate) phase: Phase,
    pub(crate) error: sqlx::Error,
}

impl Failure {
    /// Whether the connection is unusable: it is lost, it leads to the wrong node, or a statement still runs on it.
    pub(crate) fn breaks_the_connection(&self, engine: Option<Engine>) -> bool {
        match self.cause(engine) {
            Cause::Conflict | Cause::Locked | Cause::Busy | Cause::Data => false,
            Cause::Connection | Cause::Unknown | Cause::Settings | Cause::Pooler => true,
            Cause::SchemaMissing | Cause::Refused | Cause::Closed => self.error.as_database_error().is_none(),
        }
    }

    pub(crate) fn cause(&self, engine: Option<Engine>) -> Cause {
        classify(&self.error, self.phase, engine)
    }

    pub(crate) const fn at(phase: Phase) -> impl FnOnce(sqlx::Error) -> Self {
        move |error| Self { phase, error }
    }
}

/// Runs the future, and fails it with a timeout at the deadline.
pub(crate) async fn before<T>(
    deadline: Instant,
    future: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match tokio::time::timeout_at(deadline.into(), future).await {
        Ok(result) => result,
        Err(_) => {
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "the deadline of the retry policy has passed").into())
        }
    }
}
