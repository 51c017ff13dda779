//! The command `doctor`: examines a database and its limiter, and changes nothing.

mod citus;
mod clocks;
mod connections;
mod doctor;
mod encryption;
mod engine;
mod idle_rows;
mod jobs;
mod pooler;
mod replication;
mod report;
mod rights;
mod schema;
mod session;
mod table;
mod transactions;
mod tserver;

pub(crate) use doctor::findings;
pub(super) use doctor::{DOCTOR_EXIT_CODES, DoctorArgs, run};
pub(crate) use report::{Finding, State};
pub(crate) use schema::TABLES;
pub(crate) use table::bytes;
