//! The command `doctor`: examines a database and its limiter, and changes nothing.

mod args;
mod citus;
mod connections;
mod doctor;
mod durability;
mod encryption;
mod engine;
mod finding;
mod grants;
mod idle_rows;
mod isolation;
mod jobs;
mod notifications;
mod pooler;
mod replication;
mod report;
mod rights;
mod schema;
mod server_clock;
mod session;
mod settings;
mod table;
mod test_clock;
mod transactions;
mod tserver;
mod tserver_flags;

pub(super) use args::{DOCTOR_EXIT_CODES, DoctorArgs};
pub(crate) use doctor::findings;
pub(super) use doctor::run;
pub(crate) use finding::State;
pub(crate) use schema::TABLES;
pub(crate) use table::bytes;
