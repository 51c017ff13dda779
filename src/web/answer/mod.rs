//! Responses: the problem details or the gRPC status, and the fields that describe the state of the limits.

mod calendars;
mod fields;
#[cfg(feature = "tonic")]
mod grpc;
mod problem;
mod protocol;
mod refusal;
mod standing;
mod windows;

pub use problem::error_response;

pub(super) use fields::{Fields, set_retry_after};
pub(super) use protocol::{Protocol, is_denial, is_success, own_denial};
pub(super) use refusal::Refusal;
pub(super) use standing::{Context, Standing, add_denied, denied_standings, standings};
pub(super) use windows::Windows;
