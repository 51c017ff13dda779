//! The tower layer.

mod body;
mod held;
mod layer;
mod rules;
mod service;
mod settlement;
mod trial;

pub use body::ResponseBody;
pub use layer::RateLimitLayer;
pub use service::RateLimitService;
pub use settlement::SentResponse;

pub(super) use held::Held;
pub(super) use rules::{Rules, is_of_slots, limits};
pub(super) use trial::Trial;
