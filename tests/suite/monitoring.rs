//! The dashboard and the alert rules use metrics that exist, and the dashboard shows all of them. `tests/monitoring` checks the
//! queries themselves.

use std::collections::BTreeSet;

const INTERFACE: &str = include_str!("../../src/observability/interface.md");
const ALERTS: &str = include_str!("../../assets/monitoring/alerts.yml");
const GUIDE: &str = include_str!("../../src/guide/alerts.md");
const DASHBOARD: &str = include_str!("../../assets/monitoring/grafana.json");

/// The metrics in the table of the interface.
fn metrics() -> BTreeSet<&'static str> {
    let rows = INTERFACE.lines().filter_map(|line| line.strip_prefix("| `pg_limiter_"));
    let names = rows.filter_map(|row| row.split_once('`')).map(|(name, _)| name);
    names.collect()
}

/// The metrics that a text names, without the prefix, and without the suffixes of the series of a histogram.
fn named(text: &str) -> BTreeSet<&str> {
    let name = |rest: &str| rest.find(|c: char| c != '_' && !c.is_ascii_lowercase()).unwrap_or(rest.len());
    let names = text.split("pg_limiter_").skip(1).map(|rest| &rest[..name(rest)]);
    let series =
        |name| ["_bucket", "_count", "_sum"].iter().find_map(|suffix| str::strip_suffix(name, suffix)).unwrap_or(name);
    names.map(series).collect()
}

#[test]
fn alerts_use_metrics_that_exist() {
    let (metrics, named) = (metrics(), named(ALERTS));
    assert!(metrics.len() >= 15 && named.len() >= 9, "{metrics:?} {named:?}");
    assert_eq!(named.difference(&metrics).collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// The guide explains each rule in a paragraph of its own, with the severity that the rule has.
#[test]
fn the_guide_explains_every_alert() {
    let rules = ALERTS.split("- alert: ").skip(1).map(|rule| {
        let severity = rule.split("severity: ").nth(1).and_then(|rest| rest.split(' ').next());
        format!("**`{}`** ({}).", rule.lines().next().expect("a name"), severity.expect("a severity"))
    });
    let paragraphs = GUIDE.lines().filter(|line| line.starts_with("**`"));
    let explained = paragraphs.map(|line| line.split_inclusive(").").next().expect("a severity").to_owned());
    assert_eq!(rules.collect::<Vec<_>>(), explained.collect::<Vec<_>>());
}

#[test]
fn the_dashboard_shows_every_metric() {
    assert_eq!(named(DASHBOARD), metrics());
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has its own id");
    // Each panel covers its own part of the grid.
    let mut covered = BTreeSet::new();
    for panel in panels {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().expect("a number"));
        let mut cells = (x..x + w).flat_map(|column| (y..y + h).map(move |line| (column, line)));
        assert!(x + w <= 24 && cells.all(|cell| covered.insert(cell)), "{}", panel["title"]);
    }
}
