//! Responses: the problem details, and the fields that describe the state of the limits.

mod calendars;
mod fields;
mod problem;
mod standing;

pub use problem::error_response;

pub(super) use calendars::Calendars;
pub(super) use fields::{Fields, set_retry_after};
pub(super) use problem::{no_key_response, plain, unavailable};
pub(super) use standing::{Standing, standings};
