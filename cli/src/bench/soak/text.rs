//! The soak's output as text, printed without `--json`.

use std::collections::BTreeMap;

use crate::bench::soak::report::{Growth, Line, Setting, Summary};
use crate::text::{age, grouped, plain, shown};

const MIB: f64 = 1024.0 * 1024.0;

pub(super) fn heading(setting: &Setting) -> Vec<String> {
    let Setting { postgresql, private, schema, soak_seconds, callers, lanes, durability, faults } = setting;
    let place = if *private { "started for this run".to_owned() } else { format!("schema {}", shown(schema, 30)) };
    let length = if *soak_seconds < 1.0 {
        format!("{} s", plain(*soak_seconds))
    } else {
        age(std::time::Duration::from_secs_f64(*soak_seconds))
    };
    let faults = if *faults { "with faults" } else { "without faults" };
    let durability = format!("{durability:?}").to_lowercase();
    let columns =
        ["elapsed", "decisions", "per s", "retries", "faults", "RSS MiB", "table MiB", "rows", "audits", "violations"];
    vec![
        format!(
            "PostgreSQL {postgresql}, {place}: {length}, {callers} callers, {lanes} lanes, durability {durability}, {faults}"
        ),
        String::new(),
        row(columns.map(str::to_owned), "errors"),
    ]
}

fn row(cells: [String; 10], last: &str) -> String {
    let [elapsed, decisions, rate, retries, faults, rss, table, rows, audits, violations] = cells;
    format!(
        "{elapsed:>8}{decisions:>13}{rate:>9}{retries:>10}{faults:>8}{rss:>9}{table:>11}{rows:>8}{audits:>9}{violations:>12}  {last}"
    )
    .trim_end()
    .to_owned()
}

pub(super) fn line(line: &Line) -> String {
    let unknown = || "?".to_owned();
    let size = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| format!("{:.1}", bytes as f64 / MIB));
    let seconds = line.elapsed_s.round() as u64;
    let elapsed = if line.elapsed_s < 10.0 {
        format!("{:.1} s", line.elapsed_s)
    } else {
        format!("{}:{:02}", seconds / 60, seconds % 60)
    };
    let cells = [
        elapsed,
        grouped(line.decisions),
        grouped(line.decisions_per_second.round() as u64),
        grouped(line.retries),
        grouped(line.faults),
        size(line.rss_bytes),
        size(line.table_bytes),
        line.rows.map_or_else(unknown, grouped),
        grouped(line.audits),
        grouped(line.violations),
    ];
    row(cells, &counts(&line.errors))
}

fn counts(by_kind: &BTreeMap<&'static str, u64>) -> String {
    let each: Vec<String> = by_kind.iter().map(|(kind, count)| format!("{kind} {}", grouped(*count))).collect();
    if each.is_empty() { "none".to_owned() } else { each.join(", ") }
}

pub(super) fn violation(what: &str) -> String {
    format!("VIOLATION: {}", shown(what, 400))
}

pub(super) fn summary(summary: &Summary) -> Vec<String> {
    let Summary { end, faults_by_kind, pruned, memory, table, answers, growth_is_judged, .. } = summary;
    let mut lines = vec![
        String::new(),
        format!(
            "{} decisions in {:.1} s, {} retries, {} calls dropped by their callers, {} rows pruned.",
            grouped(end.decisions),
            end.elapsed_s,
            grouped(end.retries),
            grouped(end.cancelled),
            grouped(*pruned)
        ),
        format!("Faults: {}.", counts(faults_by_kind)),
        format!("Errors: {}.", counts(&end.errors)),
    ];
    for (what, grown) in [("memory", memory), ("table of limits", table), ("table of answers", answers)] {
        lines.push(growth(what, *grown, *growth_is_judged));
    }
    lines.push(format!("violations: {}, in {} audits", grouped(end.violations), grouped(end.audits)));
    lines.push(if summary.interrupted {
        "interrupted before the end".to_owned()
    } else if summary.passed {
        "passed".to_owned()
    } else {
        "FAILED".to_owned()
    });
    lines
}

fn growth(what: &str, growth: Option<Growth>, judged: bool) -> String {
    let Some(Growth { second_quarter, last_quarter, is_flat }) = growth else {
        return format!("{what}: unknown");
    };
    let [second, last] = [second_quarter, last_quarter].map(|bytes| bytes as f64 / MIB);
    let verdict = match (is_flat, judged) {
        (_, false) => "not judged, as the run was too short",
        (true, true) => "flat",
        (false, true) => "GROWS",
    };
    format!("{what}: {second:.1} MiB in the second quarter, {last:.1} MiB in the last: {verdict}")
}
