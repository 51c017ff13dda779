use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::call::Denied;
use crate::error::{Error, InvalidCall};
use crate::web::answer::set_retry_after;
use crate::web::answer::standing::policy_name;
use crate::web::keys::NoKey;
use crate::web::log;

/// The `Retry-After` if the database made no decision. It is short, because the database may recover at any moment.
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

/// Converts an error to the response that the layer sends for it. Use it in handlers and with other frameworks. With axum,
/// [`Error`] and [`Denied`] implement `IntoResponse` in this way.
///
/// | | |
/// |---|---|
/// | [`Error::Denied`] | 429, `Retry-After`, the problem type `quota-exceeded` with its `violated-policies` |
/// | [`InvalidCall::CountExceedsCapacity`], [`InvalidCall::WaitTooShort`], [`InvalidCall::Key`], [`InvalidCall::IdempotencyKey`] | 400: the request must change |
/// | [`InvalidCall::IdempotencyKeyReused`] | 422 |
/// | all other invalid calls, limits and jobs; [`Error::Aborted`] | 500: a bug in the program |
/// | all other errors: the database made no decision | 503, `Retry-After: 1` |
///
/// The response contains no keys and no details of the database. The cause of a 5xx is logged instead: as an event of level
/// ERROR if something is misconfigured (a limit that is not defined, a missing schema), otherwise of level WARN.
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
        | Error::Pooler { .. } => unavailable(),
    };
    if response.status().is_server_error() {
        log::failed(error);
    }
    response
}

/// The response to a request without a decision.
pub(in crate::web) fn unavailable() -> Response<String> {
    let detail = "Rate limits cannot be checked at the moment; try again later.";
    let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, Some(detail.to_owned()));
    set_retry_after(response.headers_mut(), AFTER_A_FAILURE);
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
            detail: Some(format!("Rate limit exceeded: {}. Retry after the time in Retry-After.", policies.join(", "))),
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
                "The request costs more than its rate limit {} ever grants; make a smaller request.",
                policy_name(limit)
            ),
        ),
        InvalidCall::WaitTooShort { limit, .. } => (
            StatusCode::BAD_REQUEST,
            format!(
                "The request costs more than its rate limit {} grants while it waits; make a smaller request.",
                policy_name(limit)
            ),
        ),
        InvalidCall::Key { limit, .. } => (
            StatusCode::BAD_REQUEST,
            format!(
                "The request's key for the rate limit {} is longer than 1024 bytes or contains a NUL.",
                policy_name(limit)
            ),
        ),
        InvalidCall::IdempotencyKey { .. } => {
            (StatusCode::BAD_REQUEST, "The idempotency key must have 1 to 255 bytes.".to_owned())
        }
        InvalidCall::IdempotencyKeyReused => {
            (StatusCode::UNPROCESSABLE_ENTITY, "The idempotency key was already used for another request.".to_owned())
        }
        InvalidCall::Count { .. }
        | InvalidCall::Headroom { .. }
        | InvalidCall::HeadroomFraction { .. }
        | InvalidCall::HeadroomUnsupported { .. }
        | InvalidCall::UnknownLimit { .. }
        | InvalidCall::ReserveUnsupported { .. }
        | InvalidCall::Name { .. }
        | InvalidCall::ForgottenKey { .. }
        | InvalidCall::NoTokens { .. }
        | InvalidCall::NotAGate { .. }
        | InvalidCall::Block { .. }
        | InvalidCall::Contradiction { .. }
        | InvalidCall::IdempotencyKeyUnsupported
        | InvalidCall::Empty
        | InvalidCall::NeedsLease { .. }
        | InvalidCall::NoSlots
        | InvalidCall::Slots { .. }
        | InvalidCall::SlotsHaveNoTokens { .. }
        | InvalidCall::AllowanceUnsupported { .. }
        | InvalidCall::Allowance { .. } => return plain(StatusCode::INTERNAL_SERVER_ERROR, None),
    };
    plain(status, Some(detail))
}

/// A response with a problem of the generic type.
pub(in crate::web) fn plain(status: StatusCode, detail: Option<String>) -> Response<String> {
    let title = status.canonical_reason().unwrap_or_default();
    let problem =
        Problem { kind: "about:blank", title, status: status.as_u16(), detail, violated_policies: Vec::new() };
    response(status, &problem)
}

fn response(status: StatusCode, problem: &Problem<'_>) -> Response<String> {
    // The problem contains only texts and a number, so serialization cannot fail.
    let mut response = Response::new(serde_json::to_string(problem).unwrap_or_default());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
    response
}

/// The response to a request without a key.
pub(in crate::web) fn no_key_response(no_key: &NoKey) -> Response<String> {
    match no_key {
        NoKey::Missing { .. } | NoKey::Unusable { .. } => {
            let detail = format!("The request has no usable key for a rate limit: {no_key}.");
            plain(StatusCode::BAD_REQUEST, Some(detail))
        }
        NoKey::Misconfigured { .. } => {
            log::misconfigured(no_key);
            plain(StatusCode::INTERNAL_SERVER_ERROR, None)
        }
    }
}
