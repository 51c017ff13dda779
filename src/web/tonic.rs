//! Errors as gRPC statuses.

use std::sync::Arc;

use tonic::Status;

use crate::error::{Denied, Error, InvalidCall, InvalidJob, InvalidLimit};
use crate::web::answer::Refusal;
use crate::web::{NoRequestLimits, log};

/// Converts an error to the status that the layer sends for it: see [`web`](crate::web#grpc). So `?` works in handlers that take
/// tokens themselves.
///
/// ```no_run
/// use pg_limiter::Limiter;
/// use tonic::Status;
///
/// async fn send(limiter: &Limiter, author: &str) -> Result<(), Status> {
///     let internal = |error: sqlx::Error| {
///         eprintln!("{error}");
///         Status::internal("The message is not stored.")
///     };
///     let mut tx = limiter.pool().begin().await.map_err(internal)?;
///     sqlx::query("INSERT INTO messages (author) VALUES ($1)").bind(author).execute(&mut *tx).await.map_err(internal)?;
///     limiter.within(&mut tx).limit(("messages", author)).await?.enforce()?; // RESOURCE_EXHAUSTED, UNAVAILABLE, ..
///     tx.commit().await.map_err(internal)
/// }
/// ```
///
/// The status contains no keys and no details of the database. They are in its [source](std::error::Error::source), the error
/// itself, which is not sent. The cause of `UNAVAILABLE` and `INTERNAL` is logged, as by
/// [`error_response`](crate::web::error_response).
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let mut status = Refusal::of(&error).grpc_status();
        status.set_source(Arc::new(error));
        status
    }
}

/// Converts a denial as the conversion of [`Error`] does.
impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        Error::Denied(denied).into()
    }
}

macro_rules! through_error {
    ($($invalid:ty),+) => {
        $(
            /// Converts as the conversion of [`Error`] does.
            impl From<$invalid> for Status {
                fn from(invalid: $invalid) -> Self {
                    Error::from(invalid).into()
                }
            }
        )+
    };
}

through_error!(InvalidCall, InvalidJob, InvalidLimit);

impl From<NoRequestLimits> for Status {
    fn from(error: NoRequestLimits) -> Self {
        log::misconfigured(&error);
        Refusal::Misconfigured.grpc_status()
    }
}
