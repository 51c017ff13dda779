//! Draws the screen, or prints what the tabs show, as text or as JSON. Colours repeat what texts and marks show.

use jiff::Timestamp;
use ratatui::Frame;
use ratatui::layout::Constraint::{Fill, Length};
use ratatui::layout::{Layout, Rect};
use ratatui::style::{Color, Modifier, Style as Look};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Padding, Paragraph, Row, Table, TableState, Wrap};
use serde_json::{Map, Value, json};

use crate::operate::live::{Counted, Coverage, KeyView, LimitView, QueueView};
use crate::operate::top::app::{App, QUEUES, TABS, Tab};
use crate::operate::top::columns::{Column, Listed, Style};
use crate::text::{aligned, escaped, grouped, many, one_line};
use crate::{json, output};

const WIDE: u16 = 110;
const NARROW: u16 = 72;
const LEAST: (u16, u16) = (50, 12);
const BOLD: Look = Look::new().add_modifier(Modifier::BOLD);
const REVERSED: Look = Look::new().add_modifier(Modifier::REVERSED);

const HELP: [&str; 12] = [
    "1 2 3, Tab      Limits, Keys, Queue",
    "up, down, j, k  select a row (also PgUp, PgDn, Home, End)",
    "Enter           on Limits: the keys of the selected limit",
    "s, S            sort by the next or the previous column",
    "r               reverse the order",
    "/               filter: names of limits, beginnings of keys, names of queues",
    "Esc             remove the filters",
    "q, Ctrl-C       quit",
    "",
    "TAKEN/S: tokens per second, over about 10 seconds.  ~: an estimate from a",
    "sample.  +: at least this many.  LEFT: of limits without a definition, as",
    "stored at the last write.",
];

pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("{} x {}: top needs {} x {}; q quits", area.width, area.height, LEAST.0, LEAST.1);
        return frame.render_widget(text, area);
    }
    let line = Length(1);
    let [tabs, status, body, footer] = Layout::vertical([line, line, Fill(1), line]).areas(area);
    draw_tabs(frame, app, tabs);
    frame.render_widget(status_line(app), status);
    match app.tab {
        _ if app.data.seen.snapshot.at == 0 && app.data.seen.error.is_none() => {
            frame.render_widget("reading the database ...", body)
        }
        Tab::Limits => draw_limits(frame, app, body),
        Tab::Keys => draw_table(frame, app, &app.keys(), nothing(app).1, body),
        Tab::Queue => draw_queue(frame, app, body),
    }
    frame.render_widget(footer_line(app, footer.width), footer);
    if app.is_help {
        draw_help(frame, area);
    }
}

fn coloured(look: Look, colour: Color) -> Look {
    if output::colours() { look.fg(colour) } else { look }
}

fn draw_tabs(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let mut spans = vec![Span::styled("pg-limiter top", BOLD)];
    for (tab, title) in TABS.into_iter().zip(["1 Limits", "2 Keys", "3 Queue"]) {
        spans.push(Span::raw("  "));
        // The brackets mark the tab where nothing can be reversed.
        spans.push(match tab == app.tab {
            true => Span::styled(format!("[{title}]"), REVERSED),
            false => Span::raw(format!(" {title} ")),
        });
    }
    frame.render_widget(Line::from(spans), area);
    let at = app.data.seen.snapshot.at;
    if at != 0 {
        let clock = Timestamp::from_microsecond(at).unwrap_or_default().strftime("%H:%M:%S UTC");
        frame.render_widget(right(clock.to_string()), area);
    }
}

fn right(text: impl Into<String>) -> Line<'static> {
    Line::from(text.into()).right_aligned()
}

fn coverage(app: &App) -> String {
    let snapshot = &app.data.seen.snapshot;
    let mut text = match snapshot.coverage {
        Coverage::Whole { rows } => many(rows, "row"),
        Coverage::Sampled { pages, of_pages, watched } => {
            format!("sample: {} of {}, {}", grouped(pages), many(of_pages, "page"), many(watched, "key"))
        }
    };
    if snapshot.is_cut {
        text.push_str("; not all limits are listed");
    }
    text
}

/// In place of the limits, and of the keys, if there are none.
fn nothing(app: &App) -> (&'static str, &'static str) {
    match app.data.seen.snapshot.is_cut {
        true => ("no listed limit matches", "no busy or empty keys of listed limits"),
        false => ("no limits in use", "no busy or empty keys"),
    }
}

const fn no_jobs(app: &App) -> &'static str {
    if app.data.queues_are_cut { "no listed queue matches" } else { "no jobs" }
}

fn status_line(app: &App) -> Line<'static> {
    if app.edited.is_some() {
        let text = &app.filters[app.tab as usize];
        let what = ["limits with", "keys that begin with", "queues with"][app.tab as usize];
        return Line::styled(format!("/ {what}: {}_   (Enter: keep, Esc: back)", escaped(text)), BOLD);
    }
    let filters = ["limit", "key", "queue"].iter().zip(&app.filters).filter(|(_, text)| !text.is_empty());
    let filters: Vec<String> = filters.map(|(what, text)| format!("{what} /{}", escaped(text))).collect();
    let filters = if filters.is_empty() { String::new() } else { format!("   only {}", filters.join(", ")) };
    let is_of_all = app.tab == Tab::Limits && !app.filters[Tab::Keys as usize].is_empty();
    let figures = if is_of_all { " (figures: of all keys)" } else { "" };
    Line::from(format!("{}{filters}{figures}", coverage(app)))
}

fn footer_line(app: &App, width: u16) -> Line<'static> {
    let data = &app.data;
    let of_limits = app.tab != Tab::Queue;
    let error = if of_limits { &data.seen.error } else { &data.queue_error };
    let note = data.seen.snapshot.note.as_ref().filter(|_| of_limits);
    let error = error.as_ref().map(|error| (error, coloured(REVERSED, Color::Red)));
    if let Some((text, look)) = error.or(note.map(|note| (note, coloured(BOLD, Color::Yellow)))) {
        return Line::styled(format!("! {}", one_line(&text.replace('\n', " "))), look);
    }
    let keys = "q quit  ? help  Tab next  / filter  s sort  r reverse";
    let more = "  up/down select  Enter keys of the limit  Esc no filter";
    Line::from(if width >= WIDE { format!("{keys}{more}") } else { keys.to_owned() })
}

fn draw_table<T: Listed>(frame: &mut Frame<'_>, app: &App, rows: &[T], if_empty: &str, area: Rect) {
    if rows.is_empty() {
        return frame.render_widget(if_empty, area);
    }
    let (now, (sorted_by, is_descending)) = (app.data.seen.snapshot.at, app.sorts[app.tab as usize].of::<T>());
    let columns = T::COLUMNS.iter().enumerate().filter(|(_, column)| area.width >= WIDE || !column.is_extra);
    let aligned = |is_text: bool, text: String| if is_text { Line::from(text) } else { right(text) };
    let headings = columns.clone().map(|(place, column)| {
        let mark = if place == sorted_by { app.style.mark(is_descending) } else { "" };
        aligned(column.is_text(), format!("{}{mark}", column.heading))
    });
    // The columns without a width share what the others, the blanks between the columns and the mark of the selected row leave.
    let taken = columns.clone().map(|(_, column)| usize::from(column.width) + 1).sum::<usize>() + 1;
    let sharing = columns.clone().filter(|(_, column)| column.width == 0).count().max(1);
    let widest = usize::from(area.width).saturating_sub(taken) / sharing;
    let lines = rows.iter().map(|row| {
        let cell = |column: &Column<T>| {
            let room = if column.width == 0 { widest } else { column.width.into() };
            aligned(column.is_text(), app.style.cut((column.cell)(row, &app.style, now).0, room))
        };
        Row::new(columns.clone().map(|(_, column)| cell(column)).collect::<Vec<_>>())
    });
    let widths = columns.clone().map(|(_, column)| column.constraint());
    let table = Table::new(lines, widths).header(Row::new(headings).style(BOLD));
    let mut state = TableState::new().with_selected(app.selected(rows));
    frame.render_stateful_widget(table.highlight_symbol("> ").row_highlight_style(REVERSED), area, &mut state);
}

fn draw_limits(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let rows = app.limits();
    let Some(place) = app.selected(&rows) else {
        let count = app.unused().count() as u64;
        let unused = if count == 0 { String::new() } else { format!("; not in use: {}", many(count, "defined limit")) };
        return frame.render_widget(format!("{}{unused}", nothing(app).0), area);
    };
    // Half of the lines, or fewer if there are few limits; the rest shows the keys of the selected one.
    let height = u16::try_from(rows.len() + 1).unwrap_or(u16::MAX).min(area.height / 2);
    let [list, title, detail] = Layout::vertical([Length(height), Length(2), Fill(1)]).areas(area);
    draw_table(frame, app, &rows, "", list);
    let limit = &rows[place];
    frame.render_widget(Paragraph::new(vec![Line::default(), Line::styled(described(limit), BOLD)]), title);
    let [busiest, _, emptiest] = Layout::horizontal([Fill(1), Length(2), Fill(1)]).areas(detail);
    draw_keys(frame, app, "BUSIEST KEYS", "TAKEN/S", &limit.busiest, busiest);
    draw_keys(frame, app, "EMPTIEST KEYS", "LEFT", &limit.emptiest, emptiest);
}

/// `api: token_bucket, 10 per 1m, 4 shards`.
fn described(limit: &LimitView) -> String {
    let definition = limit.limit.as_ref().map(|limit| format!(": {limit}")).unwrap_or_default();
    let shards = if limit.shards > 1 { format!(", {} shards", limit.shards) } else { String::new() };
    format!("{}{definition}{shards}", escaped(&limit.name))
}

fn draw_keys(frame: &mut Frame<'_>, app: &App, title: &str, heading: &str, keys: &[KeyView], area: Rect) {
    let Some(column) = KeyView::COLUMNS.iter().find(|column| column.heading == heading) else { return };
    let row = |key: &KeyView| {
        let (text, _) = (column.cell)(key, &app.style, app.data.seen.snapshot.at);
        Row::new([Line::from(app.style.key_cell(&key.bucket.key)), right(text)])
    };
    let header = Row::new([Line::from(title), right(heading)]).style(BOLD);
    frame.render_widget(Table::new(keys.iter().map(row), [Fill(1), column.constraint()]).header(header), area);
}

/// The numbers of jobs by state. Narrow: without those that have ended well.
fn queue_cells(queues: &[QueueView], is_narrow: bool) -> Vec<Vec<String>> {
    let is_shown = |state: &str| !(is_narrow && matches!(state, "done" | "cancelled"));
    let row = |name: String, cell: fn(&(String, Counted)) -> String, queue: &QueueView| {
        let shown = queue.jobs.iter().filter(|(state, _)| is_shown(state));
        std::iter::once(name).chain(shown.map(cell)).collect()
    };
    let headings = queues.iter().take(1).map(|queue| row("QUEUE".to_owned(), |(state, _)| state.to_uppercase(), queue));
    let rows = queues.iter().map(|queue| row(escaped(&queue.queue), |(_, count)| format!("{count:#}"), queue));
    headings.chain(rows).collect()
}

fn draw_queue(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let queues = &app.data.queues;
    let cells = queue_cells(queues, area.width < NARROW);
    let columns = cells.first().map_or(0, Vec::len);
    let mut rows = cells.into_iter().map(|cells| {
        let name_or_count = |(place, cell)| if place == 0 { Line::from(cell) } else { right(cell) };
        Row::new(cells.into_iter().enumerate().map(name_or_count))
    });
    let Some(headings) = rows.next() else { return frame.render_widget(no_jobs(app), area) };
    let height = u16::try_from(queues.len() + 1).unwrap_or(u16::MAX).min(area.height / 3);
    let [list, gap, groups] = Layout::vertical([Length(height), Length(1), Fill(1)]).areas(area);
    let widths = std::iter::once(Fill(1)).chain((1..columns).map(|_| Length(9)));
    frame.render_widget(Table::new(rows, widths).header(headings.style(BOLD)), list);
    let hidden = queues.len().saturating_sub(usize::from(height.saturating_sub(1)));
    if hidden > 0 {
        let groups = if queues.len() > QUEUES { format!("; groups of the first {QUEUES}") } else { String::new() };
        frame.render_widget(format!("... and {}: use / {groups}", many(hidden as u64, "more queue")), gap);
    }
    draw_table(frame, app, &app.groups(), "no group has waiting jobs", groups);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let place = area.centered(Length(80), Length(HELP.len() as u16 + 2));
    let title = Line::styled("Keys (any key closes this)", REVERSED);
    let block = Block::new().title(title).padding(Padding::horizontal(1));
    let help = Paragraph::new(HELP.map(Line::from).to_vec()).wrap(Wrap { trim: true });
    frame.render_widget(Clear, place);
    frame.render_widget(help.block(block), place);
}

pub(super) fn text(app: &App) -> Vec<String> {
    let data = &app.data;
    let now = data.seen.snapshot.at;
    let mut lines = Vec::new();
    if data.seen.error.is_none() {
        let at = Timestamp::from_microsecond(now).map(|at| format!("{at:.0}")).unwrap_or_default();
        lines.push(format!("{at}: {}", coverage(app)));
        if !app.filters[Tab::Keys as usize].is_empty() {
            lines.push("Only the keys of --key are listed; the figures of limits are of all keys.".to_owned());
        }
        let limits = app.limits();
        section(&mut lines, text_table(&limits, &app.style, now), nothing(app).0);
        lines.extend(limits.iter().filter(|limit| limit.limit.is_some()).map(described));
        lines.extend(app.unused().map(|(name, limit)| format!("{}: {limit}, not in use", escaped(name))));
        section(&mut lines, text_table(&app.keys(), &app.style, now), nothing(app).1);
    }
    if data.queue_error.is_none() {
        section(&mut lines, aligned(&queue_cells(&data.queues, false), &[0]), no_jobs(app));
        let groups = app.groups();
        if !groups.is_empty() {
            section(&mut lines, text_table(&groups, &app.style, now), "");
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

fn text_table<T: Listed>(rows: &[T], style: &Style, now: i64) -> Vec<String> {
    let headings = T::COLUMNS.iter().map(|column| column.heading.to_owned()).collect();
    let cells = rows.iter().map(|row| T::COLUMNS.iter().map(|column| (column.cell)(row, style, now).0).collect());
    let cells: Vec<Vec<String>> = std::iter::once(headings).chain(cells).collect();
    let texts = (0..T::COLUMNS.len()).filter(|place| T::COLUMNS[*place].is_text());
    aligned(&cells, &texts.collect::<Vec<_>>())
}

pub(super) fn json(app: &App) -> String {
    let data = &app.data;
    let snapshot = &data.seen.snapshot;
    let mut limits = app.limits();
    let keys = limits.iter_mut().flat_map(LimitView::all_keys);
    keys.for_each(|key| key.bucket.key = app.style.keys.shown(&key.bucket.key));
    let mut groups = app.groups();
    for group in &mut groups {
        group.group = app.style.keys.shown(&group.group);
        group.waits_for.iter_mut().for_each(|(_, key)| *key = app.style.keys.shown(key));
    }
    let queue = |queue: &QueueView| {
        let jobs: Map<_, _> = queue.jobs.iter().map(|(state, count)| (state.clone(), json!(count))).collect();
        json!({"queue": queue.queue, "jobs": jobs})
    };
    json::line(&json!({
        "at": snapshot.at,
        "watched": snapshot.watched,
        "coverage": snapshot.coverage,
        "limits": limits,
        "is_cut": snapshot.is_cut,
        "unused": app.unused().map(|(name, limit)| json!({"name": name, "limit": limit})).collect::<Value>(),
        "note": snapshot.note,
        "limits_error": data.seen.error,
        "queues_are_cut": data.queues_are_cut,
        "queues": data.queues.iter().map(queue).collect::<Value>(),
        "groups": groups,
        "queue_error": data.queue_error,
    }))
}
