//! The lines of the output: as text, or as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

const MIB: f64 = 1024.0 * 1024.0;

/// One line of the output.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    Setting(&'a Setting),
    /// For example, a fault that is skipped.
    Note(&'a str),
    Violation(&'a str),
    Sample(&'a Sample),
    Summary(&'a Summary),
}

#[derive(Clone, Serialize)]
pub(crate) struct Setting {
    pub(crate) postgresql: String,
    /// Whether the server was started for this run, on this machine.
    pub(crate) private: bool,
    pub(crate) schema: String,
    pub(crate) seconds: f64,
    pub(crate) callers: u32,
    pub(crate) lanes: usize,
    pub(crate) durability: &'static str,
    pub(crate) faults: bool,
}

/// The counters, the memory and the tables at one time.
#[derive(Clone, Serialize)]
pub(crate) struct Sample {
    pub(crate) elapsed_ms: u64,
    pub(crate) decisions: u64,
    /// The rate since the previous sample.
    pub(crate) decisions_per_second: u64,
    pub(crate) retries: u64,
    pub(crate) faults: u64,
    pub(crate) cancelled: u64,
    pub(crate) errors: BTreeMap<&'static str, u64>,
    /// The resident memory of this process, on systems that report it.
    pub(crate) rss_bytes: Option<u64>,
    /// The size of the table of limits with its indexes; `None` if the query failed.
    pub(crate) table_bytes: Option<u64>,
    pub(crate) answers_bytes: Option<u64>,
    /// The rows of this soak's limits.
    pub(crate) rows: Option<u64>,
    /// The number of checks that found no violation.
    pub(crate) audits: u64,
    pub(crate) violations: u64,
}

/// The medians of the second and the last quarter of the run, in bytes.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Growth {
    pub(crate) second_quarter: u64,
    pub(crate) last_quarter: u64,
    pub(crate) is_flat: bool,
}

#[derive(Serialize)]
pub(crate) struct Summary {
    #[serde(flatten)]
    pub(crate) setting: Setting,
    #[serde(flatten)]
    pub(crate) end: Sample,
    pub(crate) faults_by_kind: BTreeMap<&'static str, u64>,
    pub(crate) pruned: u64,
    pub(crate) memory: Option<Growth>,
    pub(crate) table: Option<Growth>,
    pub(crate) answers: Option<Growth>,
    /// Growth is not judged in runs of less than a minute.
    pub(crate) growth_is_judged: bool,
    pub(crate) interrupted: bool,
    pub(crate) passed: bool,
}

impl Summary {
    /// 1: the run found a violation or growth. 3: it was interrupted before it found one.
    pub(crate) const fn exit_code(&self) -> u8 {
        if self.passed {
            0
        } else if self.interrupted && self.end.violations == 0 {
            3
        } else {
            1
        }
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(setting) => setting.fmt(f),
            Self::Note(note) => write!(f, "note: {note}"),
            Self::Violation(violation) => write!(f, "VIOLATION: {violation}"),
            Self::Sample(sample) => sample.fmt(f),
            Self::Summary(summary) => summary.fmt(f),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { postgresql, private, schema, seconds, callers, lanes, durability, faults } = self;
        let server = if *private { "started for this run, " } else { "" };
        let faults = if *faults { "with faults" } else { "without faults" };
        write!(
            f,
            "PostgreSQL {postgresql}, {server}schema {schema}: {seconds} s, {callers} callers, {lanes} lanes, durability \
             {durability}, {faults}"
        )
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decisions, decisions_per_second, retries, faults, audits, violations, .. } = self;
        let [rss, table, answers] = [self.rss_bytes, self.table_bytes, self.answers_bytes].map(mib);
        let rows = self.rows.map_or_else(|| "?".to_owned(), |rows| rows.to_string());
        write!(
            f,
            "{:>7.1} s: {decisions} decisions ({decisions_per_second}/s), {retries} retries, {faults} faults, {audits} audits, \
             {violations} violations; memory {rss}, limits {table} ({rows} rows), answers {answers}; errors: {}",
            self.elapsed_ms as f64 / 1000.0,
            counts(&self.errors)
        )
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sample { decisions, elapsed_ms, retries, cancelled, errors, violations, audits, .. } = &self.end;
        let seconds = *elapsed_ms as f64 / 1000.0;
        writeln!(
            f,
            "\n{decisions} decisions in {seconds:.1} s, {retries} retries, {cancelled} calls dropped by their callers, {} rows \
             pruned",
            self.pruned
        )?;
        writeln!(f, "faults: {}\nerrors: {}", counts(&self.faults_by_kind), counts(errors))?;
        let sizes = [("memory", self.memory), ("table of limits", self.table), ("table of answers", self.answers)];
        for (name, growth) in sizes {
            writeln!(f, "{name}: {}", self.verdict(growth))?;
        }
        writeln!(f, "violations: {violations}, in {audits} audits")?;
        f.write_str(match (self.interrupted, self.passed) {
            (true, _) => "interrupted before the end",
            (false, true) => "passed",
            (false, false) => "FAILED",
        })
    }
}

impl Summary {
    fn verdict(&self, growth: Option<Growth>) -> String {
        let Some(Growth { second_quarter, last_quarter, is_flat }) = growth else { return "unknown".to_owned() };
        let [second, last] = [second_quarter, last_quarter].map(|bytes| mib(Some(bytes)));
        let verdict = match (self.growth_is_judged, is_flat) {
            (false, _) => "not judged, as the run was too short",
            (true, true) => "flat",
            (true, false) => "GROWS",
        };
        format!("{second} in the second quarter, {last} in the last: {verdict}")
    }
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".to_owned(), |bytes| format!("{:.1} MiB", bytes as f64 / MIB))
}

fn counts(by_kind: &BTreeMap<&'static str, u64>) -> String {
    let each: Vec<String> = by_kind.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    if each.is_empty() { "none".to_owned() } else { each.join(", ") }
}
