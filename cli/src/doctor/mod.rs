//! The command `doctor`: examines a database and its limiter, and changes nothing.

mod args;
mod clock;
mod connections;
mod durability;
mod encryption;
mod engine;
mod finding;
mod grants;
mod idle_rows;
mod isolation;
mod jobs;
mod pooler;
mod report;
mod rights;
mod run;
mod schema;
mod session;
mod settings;
mod table;
mod transactions;
mod tserver;
mod tserver_flags;

pub(super) use args::{DOCTOR_EXIT_CODES, DoctorArgs};
pub(super) use run::run;
