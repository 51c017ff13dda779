//! The measurements, as `--json` prints them.

use std::time::Duration;

use serde::Serialize;

use crate::bench::args::DurabilityChoice;
use crate::bench::work::Work;
use pg_limiter::Isolation;

#[derive(Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) setting: Setting,
    pub(super) round_trip: RoundTrip,
    pub(super) measurements: Vec<Figures>,
}

#[derive(Serialize)]
pub(super) struct Setting {
    /// The version, such as `18.4`.
    pub(super) postgresql: String,
    /// Whether the server was started for this run, on this machine.
    pub(super) private: bool,
    pub(super) schema: String,
    pub(super) seconds: f64,
    pub(super) durability: DurabilityChoice,
    pub(super) lanes: u16,
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct RoundTrip {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// One measurement.
#[derive(Serialize)]
pub(super) struct Figures {
    pub(super) isolation: IsolationLevel,
    pub(super) work: Work,
    pub(super) callers: u32,
    pub(super) keys: usize,
    pub(super) decisions: u64,
    /// The number of denials among the decisions.
    pub(super) denied: u64,
    /// The number of calls that failed without a decision.
    pub(super) errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first_error: Option<String>,
    pub(super) decisions_per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) calls_per_batch: f64,
    pub(super) retries_per_decision: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum IsolationLevel {
    Serializable,
    ReadCommitted,
}

impl From<Isolation> for IsolationLevel {
    fn from(isolation: Isolation) -> Self {
        match isolation {
            Isolation::ReadCommitted => Self::ReadCommitted,
            _ => Self::Serializable,
        }
    }
}

/// Rounds to three decimals.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1000.0)
}
