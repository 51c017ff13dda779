//! What is answered: the problems, and the fields that tell how a client stands.

mod fields;
mod no_key;
mod problem;
mod standing;

pub use problem::error_response;

pub(super) use fields::{Fields, set_retry_after};
pub(super) use no_key::no_key_response;
#[cfg(feature = "axum")]
pub(super) use problem::plain;
pub(super) use standing::{Standing, standings};
