use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::call::Denied;
use crate::error::{Error, InvalidCall};
use crate::web::answer::set_retry_after;
use crate::web::answer::standing::policy_name;
use crate::web::note;

/// When to ask again if the database gave no decision: it may be back at any moment.
const AFTER_A_FAILURE: Duration = Duration::from_secs(1);

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
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<String>,
}

/// The response to an error: what the layer answers, for handlers and for other frameworks. With axum, [`Error`] and
/// [`Denied`] are responses by themselves.
///
/// | | |
/// |---|---|
/// | [`Error::Denied`] | 429, `Retry-After`, the problem type `quota-exceeded` with its `violated-policies` |
/// | [`InvalidCall::CountExceedsCapacity`], [`InvalidCall::WaitTooShort`], [`InvalidCall::Key`], [`InvalidCall::IdempotencyKey`] | 400: another request would do |
/// | [`InvalidCall::IdempotencyKeyReused`] | 422 |
/// | what else is invalid, [`Error::Aborted`] | 500: a mistake of the program |
/// | all others: the database did not decide | 503, `Retry-After: 1` |
///
/// It tells nothing of the database, and no key. What a 5xx does not tell is traced: as an event of level ERROR if something is set up wrongly (a limit that is not defined, no
/// schema), and otherwise of level WARN.
pub fn error_response(error: &Error) -> Response<String> {
    let response = match error {
        Error::Denied(denied) => return denied_response(denied),
        Error::Invalid(invalid) => invalid_response(invalid),
        Error::InvalidLimit(_) | Error::InvalidJob(_) | Error::Aborted => {
            plain(StatusCode::INTERNAL_SERVER_ERROR, None)
        }
        Error::Unavailable { .. }
        | Error::RetriesExhausted { .. }
        | Error::OutcomeUnknown { .. }
        | Error::Overloaded { .. }
        | Error::Closed
        | Error::SchemaMissing { .. }
        | Error::SchemaTooNew { .. }
        | Error::Conflict { .. }
        | Error::Database { .. }
        | Error::Pooler { .. } => {
            let detail = "Rate limits cannot be decided at the moment; try again later.";
            let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, Some(detail.to_owned()));
            set_retry_after(response.headers_mut(), AFTER_A_FAILURE);
            response
        }
    };
    if response.status().is_server_error() {
        note::failed(error);
    }
    response
}

pub(super) fn denied_response(denied: &Denied) -> Response<String> {
    let policies: Vec<String> = denied.limits.iter().map(|limit| policy_name(limit)).collect();
    let mut response = response(
        StatusCode::TOO_MANY_REQUESTS,
        &Problem {
            kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
            title: "Quota Exceeded",
            status: StatusCode::TOO_MANY_REQUESTS.as_u16(),
            detail: Some(format!(
                "Rate limit exceeded: {}. Come back after the time in Retry-After.",
                policies.join(", ")
            )),
            violated_policies: policies,
        },
    );
    set_retry_after(response.headers_mut(), denied.retry_after);
    response
}

fn invalid_response(invalid: &InvalidCall) -> Response<String> {
    let (status, detail) = match invalid {
        InvalidCall::CountExceedsCapacity { limit, .. } => (
            StatusCode::BAD_REQUEST,
            format!(
                "The request costs more than its rate limit {} ever grants; ask for less at once.",
                policy_name(limit)
            ),
        ),
        InvalidCall::WaitTooShort { limit, .. } => (
            StatusCode::BAD_REQUEST,
            format!(
                "The request costs more than its rate limit {} grants while it waits; ask for less at once.",
                policy_name(limit)
            ),
        ),
        InvalidCall::Key { limit, .. } => (
            StatusCode::BAD_REQUEST,
            format!(
                "The key of the request for the rate limit {} is longer than 1024 bytes, or holds a NUL.",
                policy_name(limit)
            ),
        ),
        InvalidCall::IdempotencyKey { .. } => {
            (StatusCode::BAD_REQUEST, "The idempotency key has to have 1 to 255 bytes.".to_owned())
        }
        InvalidCall::IdempotencyKeyReused => {
            (StatusCode::UNPROCESSABLE_ENTITY, "The idempotency key was used for another request before.".to_owned())
        }
        InvalidCall::Count { .. }
        | InvalidCall::UnknownLimit { .. }
        | InvalidCall::ReserveUnsupported { .. }
        | InvalidCall::Name { .. }
        | InvalidCall::Contradiction { .. }
        | InvalidCall::IdempotencyKeyUnsupported
        | InvalidCall::Empty => return plain(StatusCode::INTERNAL_SERVER_ERROR, None),
    };
    plain(status, Some(detail))
}

/// A problem without a type of its own.
pub(in crate::web) fn plain(status: StatusCode, detail: Option<String>) -> Response<String> {
    let title = status.canonical_reason().unwrap_or_default();
    let problem =
        Problem { kind: "about:blank", title, status: status.as_u16(), detail, violated_policies: Vec::new() };
    response(status, &problem)
}

fn response(status: StatusCode, problem: &Problem<'_>) -> Response<String> {
    // Texts and a number: there is nothing that cannot be written.
    let mut response = Response::new(serde_json::to_string(problem).unwrap_or_default());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
    response
}
