//! Extractors and responses for axum.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::connect_info::MockConnectInfo;
use axum::extract::{ConnectInfo, FromRequestParts, MatchedPath};
use axum::response::{IntoResponse, Response};
use http::Extensions;
use http::request::Parts;

use crate::call::Key;
use crate::error::{Denied, Error, InvalidCall, InvalidJob, InvalidLimit};
use crate::web::answer::{Refusal, error_response};
use crate::web::keys::{KeyExtractor, NoKey};
use crate::web::{NoRequestLimits, RequestHold, RequestLimits, log};

/// The peer's address, if the app is served with `into_make_service_with_connect_info` or tested with a `MockConnectInfo`.
pub(super) fn connect_info(extensions: &Extensions) -> Option<SocketAddr> {
    let served = extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| *address);
    served.or_else(|| extensions.get::<MockConnectInfo<SocketAddr>>().map(|MockConnectInfo(address)| *address))
}

/// Uses the route of an axum router as the key, as it is written there: `/users/{id}`. So there are as many keys as routes,
/// whatever paths clients request. Requests that match no route share one bucket.
///
/// Use it in layers on a `Router` or on a route. In a `tower` layer around a whole router, the route is not known yet.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct RouteKey;

impl KeyExtractor for RouteKey {
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey> {
        Ok(Some(request.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str).into()))
    }
}

/// See [`error_response`].
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        error_response(&self).map(Body::from)
    }
}

/// See [`error_response`].
impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        Error::Denied(self).into_response()
    }
}

macro_rules! through_error {
    ($($invalid:ty),+) => {
        $(
            /// Converts as the [`Error`] that it becomes does: see [`error_response`].
            impl IntoResponse for $invalid {
                fn into_response(self) -> Response {
                    Error::from(self).into_response()
                }
            }
        )+
    };
}

through_error!(InvalidCall, InvalidJob, InvalidLimit);

impl IntoResponse for NoRequestLimits {
    fn into_response(self) -> Response {
        log::misconfigured(&self);
        Refusal::Misconfigured.problem().map(Body::from)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestHold {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.extensions))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestLimits {
    type Rejection = NoRequestLimits;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoRequestLimits> {
        Self::of(&parts.extensions)
    }
}
