//! The measurements, as `--json` prints them and as text.

use std::time::Duration;

use serde::Serialize;

use crate::bench::setup::Work;
use crate::text::{grouped, many, one_line, plain, shortened, shown};

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
    pub(super) durability: String,
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
    pub(super) isolation: &'static str,
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

/// Rounds to three decimals.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1000.0)
}

pub(super) fn heading(setting: &Setting) -> Vec<String> {
    let Setting { postgresql, private, schema, seconds, durability, lanes } = setting;
    let place = if *private { "started for this run".to_owned() } else { format!("schema {}", shown(schema, 30)) };
    let lanes = many((*lanes).into(), "lane");
    vec![
        format!("PostgreSQL {postgresql}, {place}: {lanes}, durability {durability}, {} s per line", plain(*seconds)),
        String::new(),
        row("", ["decisions/s", "p50 ms", "p99 ms", "calls/batch", "retries"].map(str::to_owned)),
    ]
}

pub(super) fn round_trip(round_trip: RoundTrip) -> String {
    let RoundTrip { p50_ms, p99_ms } = round_trip;
    let none = String::new;
    row("SELECT 1 (round trip)", [none(), format!("{p50_ms:.3}"), format!("{p99_ms:.3}"), none(), none()])
}

pub(super) fn figures(figures: &Figures) -> Vec<String> {
    let title = format!("  {}", figures.isolation.replace('-', " ").to_uppercase());
    let cells = [
        grouped(figures.decisions_per_second.round() as u64),
        format!("{:.3}", figures.p50_ms),
        format!("{:.3}", figures.p99_ms),
        format!("{:.1}", figures.calls_per_batch),
        format!("{:.3}", figures.retries_per_decision),
    ];
    let mut lines = vec![row(&title, cells)];
    if let Some(first) = &figures.first_error {
        lines.push(format!(
            "    {} calls failed; the first error: {}",
            grouped(figures.errors),
            shortened(&one_line(first), 300)
        ));
    }
    lines
}

fn row(title: &str, [rate, p50, p99, calls, retries]: [String; 5]) -> String {
    format!("{title:<28}{rate:>12}{p50:>9}{p99:>9}{calls:>13}{retries:>9}").trim_end().to_owned()
}

/// The lines below the table, which explain the figures.
pub(super) fn meaning(report: &Report) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        "p50, p99: 50 % and 99 % of the calls took at most this long. retries: per decision.".to_owned(),
        String::new(),
    ];
    let Some(first) = report.measurements.first() else { return lines };
    let of = |work| report.measurements.iter().find(|f| f.work == work && f.isolation == first.isolation);
    if let (Some(hot), Some(many), Some(denied)) = (of(Work::OneKey), of(Work::ManyKeys), of(Work::AllDenied)) {
        let [hot, many, denied] = [hot, many, denied].map(|figures| about(figures.decisions_per_second));
        lines.push(format!(
            "One hot key: about {hot} decisions/s from this process, or {denied} if all are denied. 10,000 keys: {many}."
        ));
    }
    if let Some(lone) = of(Work::LoneCaller) {
        let way = report.round_trip.p50_ms.min(lone.p50_ms);
        lines.push(format!(
            "A lone call takes {:.2} ms: {way:.2} ms for the round trip to the server, and the rest to decide and commit.",
            lone.p50_ms
        ));
    }
    if report.setting.private {
        lines.push(
            "This was a private server with default settings, on the callers' machine. To measure yours, use --database-url."
                .to_owned(),
        );
    }
    if cfg!(debug_assertions) {
        lines.push("This is a debug build of the tool. A release build is faster.".to_owned());
    }
    lines
}

/// Formats a number with two significant digits.
fn about(number: f64) -> String {
    let unit = 10_f64.powf((number.max(1.0).log10().floor() - 1.0).max(0.0));
    grouped(((number / unit).round() * unit) as u64)
}

#[cfg(test)]
mod tests {
    use super::about;

    #[test]
    fn estimates_have_two_significant_digits() {
        let numbers = [0.0, 7.4, 42.4, 999.0, 1234.0, 238_765.0];
        assert_eq!(numbers.map(about), ["0", "7", "42", "1,000", "1,200", "240,000"]);
    }
}
