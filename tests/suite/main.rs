//! The integration tests: one binary and one server, with a database for each test.
#![allow(unreachable_pub, missing_debug_implementations, clippy::future_not_send)]

mod allowance;
mod answered_late;
mod application_name;
mod bad_input;
mod beside_others;
mod calendar;
mod charge_all;
mod citus;
mod citus_costs;
mod combining;
mod combining_alone;
mod combining_exact;
mod combining_faults;
mod combining_order;
mod concurrency;
mod conversions;
mod crash;
mod decide_sums;
mod doors;
mod doors_of_jobs;
mod dump_restore;
mod extremes;
mod failures;
mod fault_cases;
mod faults;
mod forget;
mod fresh_reads;
mod gates;
mod gates_of_other_kinds;
mod grants;
mod headroom;
mod held_rows;
mod history;
mod hostile_plans;
mod idempotency;
mod ignored;
mod interrupted;
mod interval_style;
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
#[cfg(feature = "reqwest")]
mod outgoing_refusals;
mod owners;
mod peek;
mod pgbouncer;
mod planned_once;
mod privacy;
mod properties;
mod prune;
mod prune_contended;
mod queue;
mod queue_blocked;
mod queue_contended;
mod queue_fronts;
mod queue_killed;
mod queue_log;
mod queue_notify;
mod queue_pace;
mod queue_paused;
mod queue_retimed;
mod queue_slots;
mod queue_slots_enqueued;
mod queue_slots_killed;
mod queue_stopped;
mod queue_tokens;
mod queue_turns;
mod queue_unique_ids;
mod queue_waits;
mod queue_woken;
mod rate_limit_all;
mod rate_limit_all_input;
mod reads_repeated;
mod remembered;
mod replication;
mod reservations;
mod retry_promise;
mod review;
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
mod stored_limits;
mod support;
mod surface;

mod take_slots;
#[cfg(feature = "testing")]
mod test_clock;
#[cfg(feature = "testing")]
mod test_clock_to;
mod thresholds;
mod transactions;
mod trigger_replication;
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
mod web_cors;
#[cfg(feature = "axum")]
mod web_denials;
#[cfg(feature = "axum")]
mod web_failures;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod web_grpc;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod web_grpc_handlers;
#[cfg(feature = "axum")]
mod web_in_handler;
#[cfg(feature = "axum")]
mod web_in_handler_slots;
#[cfg(feature = "tower")]
mod web_keys;
#[cfg(feature = "axum")]
mod web_long_keys;
#[cfg(feature = "axum")]
mod web_reset;
#[cfg(feature = "axum")]
mod web_settle;
#[cfg(feature = "axum")]
mod web_settle_cut;
#[cfg(feature = "axum")]
mod web_slots;
#[cfg(feature = "axum")]
mod web_tower;
#[cfg(feature = "axum")]
mod web_unreadable;
#[cfg(feature = "axum")]
mod web_upgrades;
mod yugabyte_costs;
mod zones;
