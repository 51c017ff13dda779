use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::error::Denied;
#[cfg(feature = "tonic")]
use crate::error::Error;
use crate::web::answer::Refusal;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// How the client of a request reads its response.
pub(in crate::web) enum Protocol {
    Http,
    /// gRPC or gRPC-Web.
    #[cfg(feature = "tonic")]
    Grpc {
        /// The request's, which is also the response's.
        content_type: HeaderValue,
    },
}

impl Protocol {
    /// The protocol of a request with these headers.
    #[cfg(feature = "tonic")]
    pub(in crate::web) fn of(headers: &HeaderMap) -> Self {
        match headers.get(http::header::CONTENT_TYPE) {
            Some(content_type) if is_grpc(content_type.as_bytes()) => Self::Grpc { content_type: content_type.clone() },
            _ => Self::Http,
        }
    }

    #[cfg(not(feature = "tonic"))]
    pub(in crate::web) const fn of(_: &HeaderMap) -> Self {
        Self::Http
    }
}

/// Whether this is `application/grpc`, `application/grpc-web` or `application/grpc-web-text`, with any message format
/// (`+proto`) and parameters.
#[cfg(feature = "tonic")]
fn is_grpc(content_type: &[u8]) -> bool {
    let end = content_type.iter().position(|byte| matches!(byte, b'+' | b';')).unwrap_or(content_type.len());
    let family = content_type[..end].trim_ascii().to_ascii_lowercase();
    matches!(&family[..], b"application/grpc" | b"application/grpc-web" | b"application/grpc-web-text")
}

impl Refusal {
    pub(in crate::web) fn response(&self, protocol: &Protocol) -> Response<String> {
        match protocol {
            Protocol::Http => self.problem(),
            #[cfg(feature = "tonic")]
            Protocol::Grpc { content_type } => self.trailers_only(content_type.clone()),
        }
    }
}

/// The gRPC status of a handler that failed before it sent a message. It is among the headers then: see "Trailers-Only" in the
/// specification of gRPC.
fn failed_at_once<B>(response: &Response<B>) -> Option<&HeaderValue> {
    response.headers().get(GRPC_STATUS).filter(|status| *status != "0")
}

/// Whether a handler responded with a success.
pub(in crate::web) fn is_success<B>(response: &Response<B>) -> bool {
    response.status().is_success() && failed_at_once(response).is_none()
}

/// Whether a handler denied the request: 429, or `RESOURCE_EXHAUSTED`.
pub(in crate::web) fn is_denial<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::TOO_MANY_REQUESTS || failed_at_once(response).is_some_and(|status| status == "8")
}

/// Takes the denial that a handler reports, so that no other layer describes it again: in the extensions of the response, or as
/// the source of a gRPC status.
pub(in crate::web) fn own_denial<B>(response: &mut Response<B>) -> Option<Denied> {
    if !is_denial(response) || response.extensions_mut().insert(Described).is_some() {
        return None;
    }
    let denied = response.extensions().get::<Denied>().cloned();
    #[cfg(feature = "tonic")]
    let denied = denied.or_else(|| {
        let status = response.extensions().get::<tonic::Status>()?;
        match std::error::Error::source(status)?.downcast_ref() {
            Some(Error::Denied(denied)) => Some(denied.clone()),
            _ => None,
        }
    });
    denied
}

/// A layer has described the denial in this response.
#[derive(Clone, Copy)]
struct Described;

#[cfg(all(test, feature = "tonic"))]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_request_has_a_content_type_of_grpc() {
        for content_type in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc+json",
            "application/grpc;charset=utf-8",
            "application/grpc-web",
            "application/grpc-web+proto",
            "application/grpc-web-text",
            "application/grpc-web-text+proto",
            "Application/gRPC ; a=b",
        ] {
            assert!(is_grpc(content_type.as_bytes()), "{content_type}");
        }
        for content_type in
            ["", "application/json", "application/grpcs", "application/grpc-other", "text/application/grpc", "+", ";"]
        {
            assert!(!is_grpc(content_type.as_bytes()), "{content_type}");
        }
    }
}
