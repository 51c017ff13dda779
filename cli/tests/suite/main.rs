//! The tool, as its user meets it. One binary, one server, a database for each test.
#![allow(unreachable_pub, missing_debug_implementations, clippy::future_not_send, unexpected_cfgs)]

mod bench;
mod binary;
mod block;
mod calendar;
mod doctor;
mod doctor_engines;
mod doctor_pooler;
mod exec;
mod export;
mod forget;
mod headroom;
mod json;
mod key_secret;
mod kinds;
mod lengths;
mod plot;
mod privacy;
mod progress;
mod queue;
mod settings;
mod sharded_calls;
mod shell;
mod simulate;
mod tls;
mod tls_server;
mod tool;
mod top;
mod trust;
mod ui;
mod ui_browser;
mod ui_server;
mod upgrades;

#[path = "../../../tests/suite/model/mod.rs"]
#[allow(dead_code)]
mod model;
#[path = "../../../tests/suite/support/mod.rs"]
#[allow(dead_code, unused_imports)]
mod support;
