//! Prints what the tabs show, as text or as JSON.

use serde_json::{Value, json};

use crate::error::CliError;
use crate::json;
use crate::live::{KeyView, LimitView};
use crate::text::{aligned, escaped};
use crate::top::app::App;
use crate::top::cells::{self, Style};
use crate::top::columns::Listed;
use crate::top::screen::{coverage, described};

/// The tables of all tabs.
pub(super) fn text(app: &App) -> Vec<String> {
    let data = &app.data;
    let now = data.seen.snapshot.at;
    let mut lines = Vec::new();
    if data.seen.error.is_none() {
        let at = jiff::Timestamp::from_microsecond(now).map(|at| format!("{at:.0}")).unwrap_or_default();
        lines.push(format!("{at}: {}", coverage(app)));
        let limits = app.limits();
        section(&mut lines, table(&limits, &app.style, now), "no limits in use");
        lines.extend(limits.iter().filter(|limit| limit.limit.is_some()).map(described));
        let unused = &data.seen.snapshot.unused;
        lines.extend(unused.iter().map(|one| format!("{}: {}, not in use", escaped(&one.name), one.limit)));
        section(&mut lines, table(&app.keys(), &app.style, now), "no busy or empty keys");
    }
    if data.queue_error.is_none() {
        let mut cells = Vec::new();
        if let Some(first) = data.queues.first() {
            let headings = first.jobs.iter().map(|(state, _)| state.to_uppercase());
            cells.push(std::iter::once("QUEUE".to_owned()).chain(headings).collect::<Vec<_>>());
        }
        cells.extend(data.queues.iter().map(|queue| {
            let counts = queue.jobs.iter().map(|(_, count)| cells::counted(*count));
            std::iter::once(escaped(&queue.queue)).chain(counts).collect()
        }));
        section(&mut lines, aligned(&cells, &[0]), "no jobs");
        let groups = app.groups();
        if !groups.is_empty() {
            section(&mut lines, table(&groups, &app.style, now), "");
        }
    }
    lines
}

fn section(lines: &mut Vec<String>, table: Vec<String>, if_empty: &str) {
    if !lines.is_empty() {
        lines.push(String::new());
    }
    if table.len() > 1 { lines.extend(table) } else { lines.push(if_empty.to_owned()) }
}

fn table<T: Listed>(rows: &[T], style: &Style, now: i64) -> Vec<String> {
    let mut cells = vec![T::COLUMNS.iter().map(|column| column.heading.to_owned()).collect::<Vec<_>>()];
    cells.extend(rows.iter().map(|row| T::COLUMNS.iter().map(|column| (column.cell)(row, style, now)).collect()));
    let is_text = |place: &usize| T::COLUMNS[*place].width.is_none() || T::COLUMNS[*place].width > Some(17);
    aligned(&cells, &(0..T::COLUMNS.len()).filter(is_text).collect::<Vec<_>>())
}

/// One object.
pub(super) fn json(app: &App) -> Result<String, CliError> {
    let data = &app.data;
    let snapshot = &data.seen.snapshot;
    let hide = |keys: &mut Vec<KeyView>| {
        keys.iter_mut().for_each(|key| key.bucket.key = app.style.key(&key.bucket.key).into_owned());
    };
    let limit = |mut limit: LimitView| {
        hide(&mut limit.busiest);
        hide(&mut limit.emptiest);
        hide(&mut limit.asked);
        limit
    };
    let limits: Vec<LimitView> = app.limits().into_iter().map(limit).collect();
    let groups = app.groups().into_iter().map(|mut group| {
        group.group = app.style.key(&group.group).into_owned();
        group.waits_for = group.waits_for.map(|(limit, key)| (limit, app.style.key(&key).into_owned()));
        group
    });
    let queues: Vec<Value> = data
        .queues
        .iter()
        .map(|queue| {
            let jobs: serde_json::Map<String, Value> =
                queue.jobs.iter().map(|(state, count)| ((*state).to_owned(), json!(count))).collect();
            json!({"queue": queue.queue, "jobs": jobs})
        })
        .collect();
    Ok(json::line(&json!({
        "at": snapshot.at,
        "watched": snapshot.watched,
        "coverage": snapshot.coverage,
        "limits": limits,
        "unused": snapshot.unused,
        "note": snapshot.note,
        "limits_error": data.seen.error,
        "queues": queues,
        "groups": groups.collect::<Vec<_>>(),
        "queue_error": data.queue_error,
    })))
}
