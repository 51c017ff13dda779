//! The tower layer.

mod body;
mod layer;
mod rules;
mod service;
mod settlement;
mod trial;

pub use body::ResponseBody;
pub use layer::RateLimitLayer;
pub use service::RateLimitService;
pub use settlement::SentResponse;

pub(super) use rules::{Passed, Rules, limits};
pub(super) use trial::Trial;
