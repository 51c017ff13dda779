use std::time::Duration;

use http::StatusCode;

use crate::error::{Denied, Error, InvalidCall};
use crate::web::answer::standing::policy_name;
use crate::web::keys::NoKey;
use crate::web::log;

/// The `Retry-After` if the database made no decision. It is short, because the database may recover at any moment.
const AFTER_A_FAILURE: Duration = Duration::from_secs(1);

/// Why a request is refused, as far as its client may know. `problem.rs` and `grpc.rs` turn it into responses.
#[derive(Debug, PartialEq)]
pub(in crate::web) enum Refusal {
    /// These policies denied it.
    Denied { policies: Vec<String>, retry_after: Duration },
    /// The request must change.
    BadRequest(String),
    /// Its address is in a denied network.
    DeniedNetwork,
    /// Its idempotency key was used for another call.
    KeyReused,
    /// There is no decision.
    NoDecision,
    /// The program or its configuration is wrong.
    Misconfigured,
}

impl Refusal {
    /// Classifies an error. Logs the cause if it is not the client's fault.
    pub(in crate::web) fn of(error: &Error) -> Self {
        let refusal = match error {
            Error::Denied(denied) => denied.into(),
            Error::Invalid(invalid) => invalid.into(),
            Error::InvalidLimit(_) | Error::InvalidJob(_) | Error::Aborted => Self::Misconfigured,
            Error::Unavailable { .. }
            | Error::RetriesExhausted { .. }
            | Error::OutcomeUnknown { .. }
            | Error::Overloaded { .. }
            | Error::Closed
            | Error::SchemaMissing { .. }
            | Error::SchemaTooNew { .. }
            | Error::Conflict { .. }
            | Error::Database { .. }
            | Error::Pooler { .. } => Self::NoDecision,
        };
        if matches!(refusal, Self::NoDecision | Self::Misconfigured) {
            log::failed(error);
        }
        refusal
    }

    /// Classifies a missing key. Logs the cause if it is not the client's fault.
    pub(in crate::web) fn without_key(no_key: &NoKey) -> Self {
        match no_key {
            NoKey::Missing { .. } | NoKey::Unusable { .. } => {
                Self::BadRequest(format!("The request has no usable key for a rate limit: {no_key}."))
            }
            NoKey::Misconfigured { .. } => {
                log::misconfigured(no_key);
                Self::Misconfigured
            }
        }
    }

    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::Denied { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::DeniedNetwork => StatusCode::FORBIDDEN,
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::NoDecision => StatusCode::SERVICE_UNAVAILABLE,
            Self::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The text for the client.
    pub(super) fn detail(&self) -> Option<String> {
        Some(match self {
            Self::Denied { policies, .. } => {
                format!("Rate limit exceeded: {}. Retry after the time in Retry-After.", policies.join(", "))
            }
            Self::BadRequest(detail) => detail.clone(),
            Self::DeniedNetwork => "Requests from this address are not accepted.".to_owned(),
            Self::KeyReused => "The idempotency key was already used for another request.".to_owned(),
            Self::NoDecision => "Rate limits cannot be checked at the moment; try again later.".to_owned(),
            Self::Misconfigured => return None,
        })
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Denied { retry_after, .. } => Some(*retry_after),
            Self::NoDecision => Some(AFTER_A_FAILURE),
            Self::BadRequest(_) | Self::DeniedNetwork | Self::KeyReused | Self::Misconfigured => None,
        }
    }
}

impl From<&Denied> for Refusal {
    fn from(denied: &Denied) -> Self {
        let policies = denied.limits.iter().map(|limit| policy_name(limit)).collect();
        Self::Denied { policies, retry_after: denied.retry_after }
    }
}

impl From<&InvalidCall> for Refusal {
    fn from(invalid: &InvalidCall) -> Self {
        Self::BadRequest(match invalid {
            InvalidCall::CountExceedsCapacity { limit, .. } => format!(
                "The request costs more than its rate limit {} ever grants; make a smaller request.",
                policy_name(limit)
            ),
            InvalidCall::WaitTooShort { limit, .. } => format!(
                "The request costs more than its rate limit {} grants while it waits; make a smaller request.",
                policy_name(limit)
            ),
            InvalidCall::Key { limit, .. } => format!(
                "The request's key for the rate limit {} is longer than 1024 bytes or contains a NUL.",
                policy_name(limit)
            ),
            InvalidCall::IdempotencyKey { .. } => "The idempotency key must have 1 to 255 bytes.".to_owned(),
            InvalidCall::IdempotencyKeyReused => return Self::KeyReused,
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
            | InvalidCall::Allowance { .. } => return Self::Misconfigured,
        })
    }
}
