//! Formats jobs, and the number of jobs of each group. Their fields are untrusted text, so what controls a terminal is escaped.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::text::{Column, age, aligned, escaped, grouped, one_line, plain, shortened, shown, table};
use crate::{CliError, Result, json};
use pg_limiter::queue::{GroupCounts, JobInfo, JobItem};

const WIDEST_NAME: usize = 60;
const WIDEST_ERROR: usize = 80;
const NONE: &str = "-";

pub(super) fn job_table(jobs: &[JobInfo]) -> Vec<String> {
    let columns: [Column<'_, JobInfo>; 7] = [
        ("ID", true, |job| job.id.to_string()),
        ("QUEUE", true, |job| name(&job.queue)),
        ("GROUP", true, |job| name(&job.group)),
        ("STATE", true, state),
        ("RUN AT", true, |job| human(job.run_at)),
        ("FAILURES", true, |job| format!("{}/{}", job.failures, job.max_attempts)),
        ("LAST ERROR", true, |job| shortened(&one_line(job.last_error.as_deref().unwrap_or_default()), WIDEST_ERROR)),
    ];
    table(&columns, jobs, &[1, 2, 3, 4, 6])
}

fn state(job: &JobInfo) -> String {
    let until = job.waiting_until.map(|until| format!(", waiting until {}", human(until)));
    let blocked = job.blocked_by.as_deref().map(|limit| {
        format!(", no worker defines its limit \"{}\", or defines it as another kind", shown(limit, WIDEST_NAME))
    });
    let turn = if job.awaits_turn { ", waits for a turn of its group" } else { "" };
    format!("{}{turn}{}{}", job.state, until.unwrap_or_default(), blocked.unwrap_or_default())
}

pub(super) fn name(text: &str) -> String {
    if text.is_empty() { NONE.to_owned() } else { shown(text, WIDEST_NAME) }
}

pub(super) fn description(job: &JobInfo) -> Vec<String> {
    let text = |text: Option<&str>| match text {
        None | Some("") => NONE.to_owned(),
        Some(text) => escaped(text),
    };
    let at = |at: Option<SystemTime>| or_none(at, human);
    let mut lines = vec![
        ("id", job.id.to_string()),
        ("queue", text(Some(&job.queue))),
        ("group", text(Some(&job.group))),
        ("state", state(job)),
        ("priority", job.priority.to_string()),
        ("run at", human(job.run_at)),
        ("enqueued at", human(job.enqueued_at)),
        ("started at", at(job.started_at)),
        ("finished at", at(job.finished_at)),
        ("worker", text(job.worker.as_deref())),
        ("failures", format!("{} of at most {}", job.failures, job.max_attempts)),
        ("waits", job.waits.to_string()),
        ("last error", text(job.last_error.as_deref())),
        ("unique id", text(job.unique_id.as_deref())),
    ];
    lines.extend(job.items.iter().map(|item| ("reserved", reserved(item))));
    lines.extend(job.slots.iter().map(|item| ("slots", reserved(item))));
    lines.push(("payload", one_line(&job.payload)));
    let cells: Vec<Vec<String>> = lines.into_iter().map(|(what, value)| vec![what.to_owned(), value]).collect();
    aligned(&cells, &[0, 1])
}

/// Describes a reservation: `1200 llm_tokens for org-7, used 850`.
fn reserved(item: &JobItem) -> String {
    let key = if item.key.is_empty() { String::new() } else { format!(" for {}", escaped(&item.key)) };
    let used = item.used.map(|used| format!(", used {}", plain(used))).unwrap_or_default();
    format!("{} {}{key}{used}", plain(item.count), escaped(&item.limit))
}

/// The payload is printed as it is stored: its numbers may be too large for other types.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    job: Value,
    payload: Box<RawValue>,
}

pub(super) fn json(job: &JobInfo) -> Result<String> {
    let item = |item: &JobItem| json!({"limit": item.limit, "key": item.key, "count": item.count, "used": item.used});
    let shown = json!({
        "id": job.id,
        "queue": job.queue,
        "group": job.group,
        "state": job.state.as_str(),
        "priority": job.priority,
        "run_at": exact(job.run_at),
        "enqueued_at": exact(job.enqueued_at),
        "started_at": job.started_at.map(exact),
        "finished_at": job.finished_at.map(exact),
        "worker": job.worker,
        "failures": job.failures,
        "max_attempts": job.max_attempts,
        "waits": job.waits,
        "waiting_until": job.waiting_until.map(exact),
        "blocked_by": job.blocked_by,
        "awaits_turn": job.awaits_turn,
        "last_error": job.last_error,
        "unique_id": job.unique_id,
        "reserved": job.items.iter().map(item).collect::<Vec<_>>(),
        "slots": job.slots.iter().map(|item| json!({"limit": item.limit, "key": item.key, "count": item.count})).collect::<Vec<_>>(),
    });
    let payload = RawValue::from_string(job.payload.clone()).map_err(CliError::failed)?;
    Ok(json::line(&Line { job: shown, payload }))
}

/// Formats a time as RFC 3339 in UTC, to the millisecond.
pub(super) fn human(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| format!("{time:.3}")).unwrap_or_else(|_| far(time))
}

/// Formats a time as RFC 3339 in UTC, exactly.
pub(super) fn exact(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| time.to_string()).unwrap_or_else(|_| far(time))
}

/// Formats a time after the year 9999 as seconds since the Unix epoch: `@253402300800`.
fn far(time: SystemTime) -> String {
    format!("@{}", time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

pub(super) fn group_table(groups: &[GroupCounts]) -> Vec<String> {
    let are_blocked = groups.iter().any(|group| group.blocked > 0);
    let are_held = groups.iter().any(|group| held(group) != NONE);
    let columns: [Column<'_, GroupCounts>; 13] = [
        ("QUEUE", true, |group| name(&group.queue)),
        ("GROUP", true, |group| name(&group.group)),
        ("SCHEDULED", true, |group| grouped(group.scheduled)),
        ("AVAILABLE", true, |group| grouped(group.available)),
        ("RUNNING", true, |group| grouped(group.running)),
        ("DONE", true, |group| grouped(group.done)),
        ("DEAD", true, |group| grouped(group.dead)),
        ("CANCELLED", true, |group| grouped(group.cancelled)),
        ("OLDEST", true, |group| or_none(group.oldest, age)),
        ("OVERDUE", true, |group| or_none(group.overdue, age)),
        ("WAITING UNTIL", true, |group| or_none(group.waiting_until, human)),
        ("BLOCKED", are_blocked, |group| grouped(group.blocked)),
        ("HELD", are_held, |group| held(group).to_owned()),
    ];
    table(&columns, groups, &[0, 1])
}

const fn held(group: &GroupCounts) -> &'static str {
    match (group.is_paused, group.is_draining) {
        (true, true) => "paused, draining",
        (true, false) => "paused",
        (false, true) => "draining",
        (false, false) => NONE,
    }
}

fn or_none<T>(value: Option<T>, text: fn(T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), text)
}

pub(super) fn group_json(group: &GroupCounts) -> String {
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
        "paused": group.is_paused,
        "draining": group.is_draining,
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_rfc_3339_as_long_as_there_is_a_year() {
        let time = UNIX_EPOCH + Duration::from_micros(1_767_225_600_999_999);
        assert_eq!([human(time), exact(time)], ["2026-01-01T00:00:00.999Z", "2026-01-01T00:00:00.999999Z"]);
        assert_eq!(human(UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
        let far = UNIX_EPOCH + Duration::from_secs(253_402_300_800);
        assert_eq!([human(far), exact(far)], ["@253402300800", "@253402300800"]);
    }
}
