//! One binary, one server, a database for each test.
#![allow(unreachable_pub, missing_debug_implementations, clippy::future_not_send)]

mod bad_input;
mod combining;
mod combining_exact;
mod combining_faults;
mod combining_order;
mod concurrency;
mod crash;
mod extremes;
mod failures;
mod interrupted;
mod migrations;
mod model;
mod properties;
mod prune;
mod prune_contended;
mod remembered;
mod scenarios;
mod sharded_calls;
mod shards;
mod shards_contended;
mod shards_under_load;
mod sql_sources;
mod support;
mod surface;
#[cfg(feature = "cli")]
mod tool;
#[cfg(feature = "cli")]
mod tool_bench;
mod transactions;
