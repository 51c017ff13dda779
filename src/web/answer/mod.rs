//! Responses: the problem details or the gRPC status, and the fields that describe the state of the limits.

mod calendars;
mod fields;
#[cfg(feature = "tonic")]
mod grpc;
mod problem;
mod protocol;
mod refusal;
mod standing;

pub use problem::error_response;

pub(super) use calendars::Calendars;
pub(super) use fields::{Fields, set_retry_after};
pub(super) use protocol::{Protocol, is_denial, is_success};
pub(super) use refusal::Refusal;
pub(super) use standing::{Standing, standings};
