//! The output of a soak, as `--json` prints it: a line for each sample, and the summary.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::bench::args::DurabilityChoice;

#[derive(Serialize)]
pub(super) struct Setting {
    pub(super) postgresql: String,
    /// Whether the server was started for this run, on this machine.
    pub(super) private: bool,
    pub(super) schema: String,
    pub(super) soak_seconds: f64,
    pub(super) callers: u32,
    pub(super) lanes: u16,
    pub(super) durability: DurabilityChoice,
    pub(super) faults: bool,
}

/// One sample.
#[derive(Clone, Serialize)]
pub(super) struct Line {
    pub(super) elapsed_s: f64,
    pub(super) decisions: u64,
    /// The rate since the previous sample.
    pub(super) decisions_per_second: f64,
    pub(super) retries: u64,
    pub(super) faults: u64,
    pub(super) cancelled: u64,
    pub(super) errors: BTreeMap<&'static str, u64>,
    /// The resident memory of this process, on systems that report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rss_bytes: Option<u64>,
    /// The size of the table of limits with its indexes; `None` if the query failed.
    pub(super) table_bytes: Option<u64>,
    pub(super) answers_bytes: Option<u64>,
    /// The rows of this soak's limits.
    pub(super) rows: Option<u64>,
    /// The number of checks that found no violation.
    pub(super) audits: u64,
    pub(super) violations: u64,
}

/// The medians of the second and the last quarter of the run, in bytes.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Growth {
    pub(super) second_quarter: u64,
    pub(super) last_quarter: u64,
    pub(super) is_flat: bool,
}

#[derive(Serialize)]
pub(super) struct Summary {
    #[serde(flatten)]
    pub(super) setting: Setting,
    #[serde(flatten)]
    pub(super) end: Line,
    pub(super) faults_by_kind: BTreeMap<&'static str, u64>,
    pub(super) pruned: u64,
    pub(super) memory: Option<Growth>,
    pub(super) table: Option<Growth>,
    pub(super) answers: Option<Growth>,
    /// Growth is not judged in runs of less than a minute.
    pub(super) growth_is_judged: bool,
    pub(super) interrupted: bool,
    pub(super) passed: bool,
}

#[derive(Serialize)]
pub(super) struct Last {
    pub(super) summary: Summary,
}

#[derive(Serialize)]
pub(super) struct Violation {
    pub(super) violation: String,
}
