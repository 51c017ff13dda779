//! Draws the screen, or prints what the tabs show, as text or as JSON. Colours repeat what texts and marks show.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style as Look};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::live::{Coverage, KeyView, LimitView};
use crate::text::{aligned, escaped, grouped, one_line};
use crate::top::app::{App, QUEUES, Tab};
use crate::top::columns::{Column, Listed, Sort, Style, counted, left, rate};
use crate::{json, output};

/// Extra columns are shown from this width on.
const WIDE: u16 = 110;
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
    "sample.  +: at least so many.  LEFT: balances need --limits; others are as",
    "stored at the last write.",
];

pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("{} x {}: top needs {} x {}; q quits", area.width, area.height, LEAST.0, LEAST.1);
        return frame.render_widget(Paragraph::new(text), area);
    }
    let [tabs, status, body, footer] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
            .areas(area);
    draw_tabs(frame, app, tabs);
    frame.render_widget(Paragraph::new(status_line(app)), status);
    match app.tab {
        _ if !app.is_read => frame.render_widget(Paragraph::new("reading the database ..."), body),
        Tab::Limits => draw_limits(frame, app, body),
        Tab::Keys => {
            let rows = app.keys();
            if rows.is_empty() {
                frame.render_widget(Paragraph::new("no busy or empty keys"), body);
            } else {
                draw_table(frame, app, Tab::Keys, &rows, body);
            }
        }
        Tab::Queue => draw_queue(frame, app, body),
    }
    frame.render_widget(Paragraph::new(footer_line(app, footer.width)), footer);
    if app.is_help {
        draw_help(frame, app, area);
    }
}

fn coloured(look: Look, colour: Color) -> Look {
    if output::colours() { look.fg(colour) } else { look }
}

fn draw_tabs(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let mut spans = vec![Span::styled("pg-limiter top", BOLD)];
    for tab in Tab::ALL {
        // The brackets mark the tab where nothing can be reversed.
        let text = format!("{} {}", tab as usize + 1, tab.title());
        let is_shown = tab == app.tab;
        spans.push(Span::raw("  "));
        spans.push(Span::styled(
            if is_shown { format!("[{text}]") } else { format!(" {text} ") },
            if is_shown { REVERSED } else { Look::new() },
        ));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
    let at = jiff::Timestamp::from_microsecond(app.data.seen.snapshot.at).unwrap_or_default();
    if app.is_read && app.data.seen.snapshot.at != 0 {
        let clock = format!("{} UTC", at.strftime("%H:%M:%S"));
        frame.render_widget(Paragraph::new(clock).alignment(Alignment::Right), area);
    }
}

pub(super) fn coverage(app: &App) -> String {
    let snapshot = &app.data.seen.snapshot;
    let mut text = match snapshot.coverage {
        Coverage::Whole { rows: 1 } => "1 row".to_owned(),
        Coverage::Whole { rows } => format!("{} rows", grouped(rows)),
        Coverage::Sampled { pages, of_pages, watched } => {
            format!("sample: {} of {} pages, {} keys", grouped(pages), grouped(of_pages), grouped(watched))
        }
    };
    if snapshot.is_cut {
        text.push_str("; not all limits are listed");
    }
    text
}

fn status_line(app: &App) -> Line<'static> {
    if app.edited.is_some() {
        let text = &app.filters.0[app.tab as usize];
        let what = ["limits with", "keys that begin with", "queues with"][app.tab as usize];
        return Line::styled(format!("/ {what}: {}_   (Enter: keep, Esc: back)", escaped(text)), BOLD);
    }
    let filters = ["limit", "key", "queue"].iter().zip(&app.filters.0).filter(|(_, text)| !text.is_empty());
    let filters: Vec<String> = filters.map(|(what, text)| format!("{what} /{}", escaped(text))).collect();
    let filters = if filters.is_empty() { String::new() } else { format!("   only {}", filters.join(", ")) };
    let is_of_all = app.tab == Tab::Limits && !app.filters.key().is_empty();
    let figures = if is_of_all { " (figures: of all keys)" } else { "" };
    Line::from(format!("{}{filters}{figures}", coverage(app)))
}

fn footer_line(app: &App, width: u16) -> Line<'static> {
    let data = &app.data;
    let error = if app.tab == Tab::Queue { data.queue_error.as_ref() } else { data.seen.error.as_ref() };
    if let Some(error) = error {
        let text = format!("! {}", one_line(&error.replace('\n', " ")));
        return Line::styled(text, coloured(REVERSED, Color::Red));
    }
    if let Some(note) = data.seen.snapshot.note.as_ref().filter(|_| app.tab != Tab::Queue) {
        return Line::styled(format!("! {}", one_line(&note.replace('\n', " "))), coloured(BOLD, Color::Yellow));
    }
    let keys = "q quit  ? help  Tab next  / filter  s sort  r reverse";
    let more = "  up/down select  Enter keys of the limit  Esc no filter";
    Line::from(if width >= WIDE { format!("{keys}{more}") } else { keys.to_owned() })
}

fn draw_table<T: Listed>(frame: &mut Frame<'_>, app: &App, tab: Tab, rows: &[T], area: Rect) {
    let mut state = TableState::new().with_selected(app.selected(tab, rows));
    let table = table(app, rows, app.sorts[tab as usize], area.width >= WIDE).highlight_symbol("> ");
    frame.render_stateful_widget(table.row_highlight_style(REVERSED), area, &mut state);
}

fn table<'a, T: Listed>(app: &App, rows: &[T], sort: Sort, is_wide: bool) -> Table<'a> {
    let columns: Vec<(usize, &Column<T>)> =
        T::COLUMNS.iter().enumerate().filter(|(_, column)| is_wide || !column.is_extra).collect();
    let aligned = |column: &Column<T>, text: String| {
        let is_left = column.width.is_none() || column.heading == "LAST 10 MIN" || column.is_extra;
        Line::from(text).alignment(if is_left { Alignment::Left } else { Alignment::Right })
    };
    let headings = columns.iter().map(|(place, column)| {
        let mark = if *place == sort.column { app.style.mark(sort.is_descending) } else { "" };
        aligned(column, format!("{}{mark}", column.heading))
    });
    let now = app.data.seen.snapshot.at;
    let lines = rows
        .iter()
        .map(|row| Row::new(columns.iter().map(|(_, column)| aligned(column, (column.cell)(row, &app.style, now)))));
    let widths = columns.iter().map(|(_, column)| column.width.map_or(Constraint::Fill(1), Constraint::Length));
    Table::new(lines.collect::<Vec<_>>(), widths).header(Row::new(headings).style(BOLD)).column_spacing(1)
}

fn draw_limits(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let rows = app.limits();
    let unused = app.data.seen.snapshot.unused.len();
    if rows.is_empty() {
        let unused = if unused > 0 { format!("; {unused} limits of the file are not in use") } else { String::new() };
        return frame.render_widget(Paragraph::new(format!("no limits in use{unused}")), area);
    }
    // Half of the lines, or fewer if there are few limits; the rest shows the keys of the selected one.
    let height = u16::try_from(rows.len() + 1).unwrap_or(u16::MAX).min(area.height / 2);
    let [list, title, detail] =
        Layout::vertical([Constraint::Length(height), Constraint::Length(2), Constraint::Fill(1)]).areas(area);
    draw_table(frame, app, Tab::Limits, &rows, list);
    let Some(limit) = app.selected(Tab::Limits, &rows).and_then(|place| rows.get(place)) else { return };
    frame.render_widget(Paragraph::new(vec![Line::default(), Line::styled(described(limit), BOLD)]), title);
    let [busiest, _, emptiest] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(2), Constraint::Fill(1)]).areas(detail);
    let now = app.data.seen.snapshot.at;
    draw_keys(frame, app, ("BUSIEST KEYS", "TAKEN/S", 9), &limit.busiest, |key| rate(key.per_second), busiest);
    draw_keys(frame, app, ("EMPTIEST KEYS", "LEFT", 17), &limit.emptiest, |key| left(key, now), emptiest);
}

/// `api: token_bucket, 10 per 1m, 4 shards`.
pub(super) fn described(limit: &LimitView) -> String {
    let definition = limit.limit.as_ref().map(|limit| format!(": {limit}")).unwrap_or_default();
    let shards = if limit.shards > 1 { format!(", {} shards", limit.shards) } else { String::new() };
    format!("{}{definition}{shards}", escaped(&limit.name))
}

fn draw_keys(
    frame: &mut Frame<'_>,
    app: &App,
    (title, heading, width): (&'static str, &'static str, u16),
    keys: &[KeyView],
    cell: impl Fn(&KeyView) -> String,
    area: Rect,
) {
    let right = |text: String| Line::from(text).alignment(Alignment::Right);
    let row = |key: &KeyView| Row::new([Line::from(app.style.key_cell(&key.bucket.key)), right(cell(key))]);
    let header = Row::new([Line::from(title), right(heading.to_owned())]).style(BOLD);
    let widths = [Constraint::Fill(1), Constraint::Length(width)];
    frame.render_widget(Table::new(keys.iter().map(row).collect::<Vec<_>>(), widths).header(header), area);
}

fn draw_queue(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let queues = &app.data.queues;
    if queues.is_empty() {
        return frame.render_widget(Paragraph::new("no jobs"), area);
    }
    let height = u16::try_from(queues.len() + 1).unwrap_or(u16::MAX).min(area.height / 3);
    let [list, gap, groups] =
        Layout::vertical([Constraint::Length(height), Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let right = |text: String| Line::from(text).alignment(Alignment::Right);
    let mut headings = vec![Line::from("QUEUE")];
    headings.extend(queues[0].jobs.iter().map(|(state, _)| right(state.to_uppercase())));
    let rows = queues.iter().map(|queue| {
        let mut line = vec![Line::from(escaped(&queue.queue))];
        line.extend(queue.jobs.iter().map(|(_, count)| right(counted(*count))));
        Row::new(line)
    });
    let widths = std::iter::once(Constraint::Fill(1)).chain(queues[0].jobs.iter().map(|_| Constraint::Length(9)));
    frame.render_widget(Table::new(rows.collect::<Vec<_>>(), widths).header(Row::new(headings).style(BOLD)), list);
    let hidden = queues.len().saturating_sub(usize::from(height.saturating_sub(1)));
    if hidden > 0 {
        let groups = if queues.len() > QUEUES { format!("; groups of the first {QUEUES}") } else { String::new() };
        frame.render_widget(Paragraph::new(format!("... and {hidden} more queues: use / {groups}")), gap);
    }
    let rows = app.groups();
    if rows.is_empty() {
        frame.render_widget(Paragraph::new("no group has waiting jobs"), groups);
    } else {
        draw_table(frame, app, Tab::Queue, &rows, groups);
    }
}

fn draw_help(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let width = 80.min(area.width);
    let height = (HELP.len() as u16 + 2).min(area.height);
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, place);
    let block = Block::bordered().border_set(app.style.border()).title(" Keys (any key closes this) ");
    frame.render_widget(
        Paragraph::new(HELP.map(Line::from).to_vec()).wrap(ratatui::widgets::Wrap { trim: true }).block(block),
        place,
    );
}

/// The tables of all tabs.
pub(super) fn text(app: &App) -> Vec<String> {
    let data = &app.data;
    let now = data.seen.snapshot.at;
    let mut lines = Vec::new();
    if data.seen.error.is_none() {
        let at = jiff::Timestamp::from_microsecond(now).map(|at| format!("{at:.0}")).unwrap_or_default();
        lines.push(format!("{at}: {}", coverage(app)));
        let limits = app.limits();
        section(&mut lines, text_table(&limits, &app.style, now), "no limits in use");
        lines.extend(limits.iter().filter(|limit| limit.limit.is_some()).map(described));
        let unused = &data.seen.snapshot.unused;
        lines.extend(unused.iter().map(|one| format!("{}: {}, not in use", escaped(&one.name), one.limit)));
        section(&mut lines, text_table(&app.keys(), &app.style, now), "no busy or empty keys");
    }
    if data.queue_error.is_none() {
        let mut cells = Vec::new();
        if let Some(first) = data.queues.first() {
            let headings = first.jobs.iter().map(|(state, _)| state.to_uppercase());
            cells.push(std::iter::once("QUEUE".to_owned()).chain(headings).collect::<Vec<_>>());
        }
        cells.extend(data.queues.iter().map(|queue| {
            let counts = queue.jobs.iter().map(|(_, count)| counted(*count));
            std::iter::once(escaped(&queue.queue)).chain(counts).collect()
        }));
        section(&mut lines, aligned(&cells, &[0]), "no jobs");
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
