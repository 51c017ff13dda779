//! The integration tests: one binary and one server, with a database for each test.
#![allow(unreachable_pub, missing_debug_implementations, clippy::future_not_send)]

mod allowance;
mod answered_late;
mod bad_input;
mod calendar;
mod charge_all;
mod citus;
mod citus_costs;
mod combining;
mod combining_exact;
mod combining_faults;
mod combining_order;
mod concurrency;
mod crash;
mod decide_sums;
mod extremes;
mod failures;
mod fault_cases;
mod faults;
mod forget;
mod gates;
mod headroom;
mod held_rows;
mod history;
mod hostile_plans;
mod idempotency;
mod interrupted;
mod key_secret;
mod kinds;
mod leases;
mod leases_killed;
mod lengths;
mod limit_changes;
mod limits_at_run_time;
mod lock_order;
mod migrations;
mod mixed_load;
mod model;
mod monitoring;
mod observability;
mod outages;
#[cfg(feature = "reqwest")]
mod outgoing;
#[cfg(all(feature = "reqwest", feature = "testing"))]
mod outgoing_pauses;
mod peek;
mod pgbouncer;
mod privacy;
mod properties;
mod prune;
mod prune_contended;
mod queue;
mod queue_contended;
mod queue_fronts;
mod queue_killed;
mod queue_pace;
mod queue_slots;
mod queue_slots_killed;
mod queue_stopped;
mod queue_tokens;
mod queue_waits;
mod rate_limit_all;
mod rate_limit_all_input;
mod remembered;
mod reservations;
mod retry_promise;
mod scenarios;
mod settings;
mod settle;
mod sharded_calls;
mod shards;
mod shards_contended;
mod shards_under_load;
mod skew;
mod sliding_period;
mod soak;
mod sql_sources;
mod sqlx_test;
mod statistics;
mod support;
mod surface;

mod take_slots;
#[cfg(feature = "testing")]
mod test_clock;
mod thresholds;
mod transactions;
mod trust;
mod until_ready;
mod upgrades;
#[cfg(feature = "axum")]
mod views;
mod web;
#[cfg(feature = "tower")]
mod web_addresses;
#[cfg(feature = "axum")]
mod web_chosen;
#[cfg(feature = "axum")]
mod web_failures;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod web_grpc;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod web_grpc_handlers;
#[cfg(feature = "axum")]
mod web_in_handler;
#[cfg(feature = "tower")]
mod web_keys;
#[cfg(feature = "axum")]
mod web_settle;
#[cfg(feature = "axum")]
mod web_slots;
#[cfg(feature = "axum")]
mod web_tower;
mod yugabyte_costs;
