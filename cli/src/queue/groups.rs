//! Prints the number of jobs of each group.

use std::time::{Duration, SystemTime};

use crate::json;
use crate::queue::jobs::name;
use crate::queue::time;
use crate::text::aligned;
use crate::text::{age, grouped, milliseconds};
use pg_limiter::queue::GroupCounts;

const HEADINGS: [&str; 11] = [
    "QUEUE",
    "GROUP",
    "SCHEDULED",
    "AVAILABLE",
    "RUNNING",
    "DONE",
    "DEAD",
    "CANCELLED",
    "OLDEST",
    "OVERDUE",
    "WAITING UNTIL",
];

/// Returns no lines if there are no groups.
pub(super) fn table(groups: &[GroupCounts]) -> Vec<String> {
    if groups.is_empty() {
        return Vec::new();
    }
    let mut cells = vec![HEADINGS.map(str::to_owned).to_vec()];
    cells.extend(groups.iter().map(row));
    aligned(&cells, &[0, 1])
}

fn row(group: &GroupCounts) -> Vec<String> {
    let length = |length: Option<Duration>| length.map_or_else(|| "-".to_owned(), age);
    vec![
        name(&group.queue),
        name(&group.group),
        grouped(group.scheduled),
        grouped(group.available),
        grouped(group.running),
        grouped(group.done),
        grouped(group.dead),
        grouped(group.cancelled),
        length(group.oldest),
        length(group.overdue),
        group.waiting_until.map_or_else(|| "-".to_owned(), time::human),
    ]
}

pub(super) fn json(group: &GroupCounts) -> String {
    let length = |length: Option<Duration>| json::optional(length.map(|length| milliseconds(length.as_micros())));
    json::object([
        ("queue", json::string(&group.queue)),
        ("group", json::string(&group.group)),
        ("scheduled", group.scheduled.to_string()),
        ("available", group.available.to_string()),
        ("running", group.running.to_string()),
        ("done", group.done.to_string()),
        ("dead", group.dead.to_string()),
        ("cancelled", group.cancelled.to_string()),
        ("oldest_ms", length(group.oldest)),
        ("overdue_ms", length(group.overdue)),
        ("waiting_until", json::optional(group.waiting_until.map(|at: SystemTime| json::string(&time::exact(at))))),
    ])
}
