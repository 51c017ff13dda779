//! `bench --soak`: calls of all kinds for a long time, with faults, and books that are kept besides. At the end, nothing has
//! grown and every count is right.

mod bound;
mod brief;
mod call;
mod clock;
mod faults;
mod flat;
mod model;
mod once;
mod refill;
mod report;
mod round;
mod run;
mod site;
mod stats;
mod text;
mod units;
mod watch;

pub(super) use run::run;
