//! Calls of every kind for a long time, with faults, and a separate count of the tokens. The run checks that every count is
//! right, and that neither memory nor tables grow. `main.rs` and the tests include this module.

mod bound;
mod brief;
mod call;
mod database;
mod faults;
mod flat;
mod gate;
mod model;
mod once;
pub(crate) mod options;
mod refill;
pub(crate) mod report;
mod round;
mod setup;
mod slots;
pub(crate) mod soak;
mod stats;
mod units;
mod watch;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
