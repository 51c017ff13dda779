//! The tool, as its user meets it. One binary, one server, a database for each test.
#![allow(unreachable_pub, missing_debug_implementations, clippy::future_not_send, unexpected_cfgs)]

mod access_log;
mod addresses;
mod bench;
mod binary;
mod block;
mod calendar;
mod doctor;
mod doctor_engines;
mod doctor_pooler;
mod doctor_sample;
mod doctor_standby;
mod doctor_table;
mod exec;
mod exec_once;
mod exec_processes;
mod exec_terminal;
mod export;
mod file_forms;
mod foreign_text;
mod forget;
mod grants;
mod headroom;
mod json;
mod key_secret;
mod kinds;
mod lengths;
mod limits;
mod lines;
mod log_formats;
mod plot;
mod pooler;
mod privacy;
mod progress;
mod queue;
mod queue_trouble;
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
mod ui_notices;
mod ui_server;
mod upgrades;

#[path = "../../../tests/suite/model/mod.rs"]
#[allow(dead_code)]
mod model;
#[path = "../../../tests/suite/support/mod.rs"]
#[allow(dead_code, unused_imports)]
mod support;
