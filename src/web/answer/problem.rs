//! Refusals over HTTP: problem details.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use serde::Serialize;

use crate::error::Error;
use crate::web::answer::{Refusal, set_retry_after};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Problem Details (RFC 9457).
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(rename = "violated-policies", skip_serializing_if = "<[String]>::is_empty")]
    violated_policies: &'a [String],
}

/// Converts an error to the response that the layer sends for it. Use it in handlers and with other frameworks. With axum,
/// [`Error`] and [`Denied`](crate::Denied) implement `IntoResponse` in this way. For gRPC, the feature `tonic` converts them to
/// `tonic::Status`.
///
/// | | |
/// |---|---|
/// | [`Error::Denied`] | 429, `Retry-After`, the problem type `quota-exceeded` with its `violated-policies` |
/// | [`InvalidCall::CountExceedsCapacity`](crate::InvalidCall::CountExceedsCapacity), [`InvalidCall::WaitTooShort`](crate::InvalidCall::WaitTooShort), [`InvalidCall::Key`](crate::InvalidCall::Key), [`InvalidCall::IdempotencyKey`](crate::InvalidCall::IdempotencyKey) | 400: the request must change |
/// | [`InvalidCall::IdempotencyKeyReused`](crate::InvalidCall::IdempotencyKeyReused) | 422 |
/// | all other invalid calls, limits and jobs; [`Error::Aborted`] | 500: a bug in the program |
/// | all other errors: the database made no decision | 503, `Retry-After: 1` |
///
/// A [`RateLimitLayer`](crate::web::RateLimitLayer) around the handler describes the limits that denied in the fields of the
/// response. For that, the [`Denied`](crate::Denied) is among the extensions of the response. Insert it there, if a handler
/// creates its own response to a denial.
///
/// The response contains no keys and no details of the database. The cause of a 5xx is logged instead: as an event of level
/// ERROR if something is misconfigured (a limit that is not defined, a missing schema), otherwise of level WARN.
pub fn error_response(error: &Error) -> Response<String> {
    let mut response = Refusal::of(error).problem();
    if let Error::Denied(denied) = error {
        response.extensions_mut().insert(denied.clone()); // For the fields that a layer adds.
    }
    response
}

impl Refusal {
    pub(in crate::web) fn problem(&self) -> Response<String> {
        let status = self.status();
        let (kind, title, violated_policies) = match self {
            Self::Denied { policies, .. } => (QUOTA_EXCEEDED, "Quota Exceeded", &policies[..]),
            _ => ("about:blank", status.canonical_reason().unwrap_or_default(), &[][..]),
        };
        let problem = Problem { kind, title, status: status.as_u16(), detail: self.detail(), violated_policies };
        // The problem contains only texts and a number, so serialization cannot fail.
        let mut response = Response::new(serde_json::to_string(&problem).unwrap_or_default());
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
        if let Some(wait) = self.retry_after() {
            set_retry_after(response.headers_mut(), wait);
        }
        response
    }
}
