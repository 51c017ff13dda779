//! The tool, as its user meets it. One binary, one server, a database for each test.
#![allow(unreachable_pub, missing_debug_implementations, clippy::future_not_send, unexpected_cfgs)]

mod bench;
mod doctor;
mod doctor_engines;
mod doctor_pooler;
mod export;
mod plot;
mod queue;
mod simulate;
mod tls;
mod tls_server;
mod tool;

#[path = "../../../tests/suite/model/mod.rs"]
#[allow(dead_code)]
mod model;
#[path = "../../../tests/suite/support/mod.rs"]
#[allow(dead_code, unused_imports)]
mod support;
