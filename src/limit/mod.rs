//! Limits as values, without I/O.

mod calendar;
mod debt;
mod kind;
mod length;
mod limit;
mod limits;
mod serde_impls;
mod shards;
mod short;
mod tokens;

pub use calendar::Calendar;
pub use kind::{Kind, LimitBuilder, kinds};
pub use length::{InvalidLength, Length};
pub use limit::Limit;
pub use limits::Limits;
pub use shards::LimitWarning;
pub use tokens::Tokens;

pub(crate) use length::{format_micros, parse_micros};
pub(crate) use limit::{LARGEST_NUMBER, LONGEST_PERIOD, SMALLEST_NUMBER};
pub(crate) use limits::{LONGEST_NAME, check_name, is_storable};
