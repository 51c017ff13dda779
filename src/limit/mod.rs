//! Limits as values, without I/O.

mod calendar;
mod debt;
mod exact;
mod invalid;
mod kind;
mod length;
mod limit;
mod limits;
mod phase;
mod serde_impls;
mod shards;
mod short;
mod tokens;

pub use calendar::Calendar;
pub use invalid::{InvalidLimit, LimitsFileError};
pub use kind::{Kind, LimitBuilder, kinds};
pub use length::{InvalidLength, Length};
pub use limit::Limit;
pub use limits::Limits;
pub use shards::LimitWarning;
pub use tokens::Tokens;

pub(crate) use exact::{LARGEST_NUMBER, exact_values};
pub(crate) use invalid::{refused_name, refused_text};
pub(crate) use length::{format_micros, parse_micros};
pub(crate) use limit::LONGEST_PERIOD;
pub(crate) use limits::{LONGEST_NAME, is_storable};
