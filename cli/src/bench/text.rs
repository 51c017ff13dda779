//! The report as text, printed without `--json`.

use crate::bench::report::{Figures, IsolationLevel, Report, RoundTrip, Setting};
use crate::bench::work::Work;
use crate::text::{grouped, one_line, plain, shortened, shown};

pub(super) fn heading(setting: &Setting) -> Vec<String> {
    let Setting { postgresql, private, schema, seconds, durability, lanes } = setting;
    let place = if *private { "started for this run".to_owned() } else { format!("schema {}", shown(schema, 30)) };
    let durability = format!("{durability:?}").to_lowercase();
    let lanes = if *lanes == 1 { "1 lane".to_owned() } else { format!("{lanes} lanes") };
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

const fn name(isolation: IsolationLevel) -> &'static str {
    match isolation {
        IsolationLevel::Serializable => "SERIALIZABLE",
        IsolationLevel::ReadCommitted => "READ COMMITTED",
    }
}

pub(super) fn figures(figures: &Figures) -> Vec<String> {
    let title = format!("  {}", name(figures.isolation));
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
