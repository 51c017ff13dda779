//! The tower layer.

mod body;
mod layer;
mod rules;
mod service;

pub use body::ResponseBody;
pub use layer::{OnFailure, RateLimitLayer};
pub use service::RateLimitService;

pub(super) use rules::Rules;
