//! Prints the number of jobs of each group.

use std::time::Duration;

use serde_json::json;

use crate::json;
use crate::queue::jobs::{exact, human, name};
use crate::text::aligned;
use crate::text::{age, grouped};
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
    if groups.iter().any(|group| group.blocked > 0) {
        let blocked = groups.iter().map(|group| grouped(group.blocked));
        let column = ["BLOCKED".to_owned()].into_iter().chain(blocked);
        cells.iter_mut().zip(column).for_each(|(row, cell)| row.push(cell));
    }
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
        group.waiting_until.map_or_else(|| "-".to_owned(), human),
    ]
}

pub(super) fn json(group: &GroupCounts) -> String {
    json::line(&json!({
        "queue": group.queue,
        "group": group.group,
        "scheduled": group.scheduled,
        "available": group.available,
        "running": group.running,
        "done": group.done,
        "dead": group.dead,
        "cancelled": group.cancelled,
        "oldest_ms": group.oldest.map(json::milliseconds),
        "overdue_ms": group.overdue.map(json::milliseconds),
        "waiting_until": group.waiting_until.map(exact),
        "blocked": group.blocked,
    }))
}
