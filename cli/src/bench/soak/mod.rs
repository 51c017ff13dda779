//! `bench --soak` makes calls of every kind for a long time, with faults, and keeps its own count of the tokens. It checks
//! that every count is right, and that neither memory nor tables grow.

mod bound;
mod brief;
mod call;
mod faults;
mod flat;
mod model;
mod once;
mod refill;
mod report;
mod round;
mod setup;
mod soak;
mod stats;
mod text;
mod units;
mod watch;

pub(super) use soak::run;
