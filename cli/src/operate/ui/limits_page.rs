//! The pages of the limits in use, and of one of them.

use axum::extract::{Query, State};
use maud::{Markup, html};
use serde::Deserialize;

use crate::operate::live::{BucketView, Coverage, How, KeyView, LimitView, Meaning, Snapshot};
use crate::operate::ui::format::{
    amount, clock, columns, encoded, key_link, meter, named, per_minute, sparkline, time,
};
use crate::operate::ui::{App, Page, Shared, Wanted, table};
use crate::text::{escaped, grouped, many, plural};

/// Keys of each limit on the page of all limits. The page of a limit has more.
const FEW: usize = 5;

#[derive(Deserialize)]
pub(super) struct Named {
    name: String,
}

pub(super) async fn limits(State(app): Shared, Query(Wanted { name, key, .. }): Query<Wanted>) -> Page {
    let key = key.filter(|_| !app.keys.are_hidden()).unwrap_or_default();
    let is_all = name.is_empty() && key.is_empty();
    let body = content(&app, |snapshot| {
        let limits = snapshot.filtered(&name, &key);
        html! {
            div class="title" {
                h1 { "Limits" }
                form class="filter" method="get" action="/limits" role="search" aria-label="Filter" {
                    label { span { "Limit" } input type="search" name="name" value=(name) placeholder="part of a name"; }
                    @if !app.keys.are_hidden() {
                        label { span { "Key" } input type="search" name="key" value=(key) placeholder="first letters"; }
                    }
                    button type="submit" { "Filter" }
                }
            }
            p class="lead" { (coverage(snapshot)) }
            @if !key.is_empty() {
                p class="lead" { "The figures of a limit are of all its keys. The tables list those that begin with “" bdi { (escaped(&key)) } "”." }
            }
            @if let Some(note) = &snapshot.note { div class="notice warning" role="status" { p class="message" { (note) } } }
            @if limits.is_empty() { (nothing(snapshot, is_all)) }
            @for limit in &limits {
                section class="card limit" aria-label=(escaped(&limit.name)) {
                    div class="head" {
                        div {
                            h2 { a href={ "/limit?name=" (encoded(&limit.name)) } { (named(&limit.name)) } }
                            p class="definition" { (definition(limit)) }
                        }
                        (figures(limit))
                        (trend("trend", &limit.taken, &taken_title(&limit.name, &limit.taken, snapshot), None))
                    }
                    (both_tables(&app, snapshot, limit, FEW))
                }
            }
            @if snapshot.is_cut { p class="lead" { "There are more limits than are listed here." } }
            @if !snapshot.unused.is_empty() && is_all {
                section class="card" {
                    h2 { "Not in use" }
                    p class="definition" { "Limits without a row: all of their buckets are full." }
                    ul class="plain" {
                        @for (name, limit) in &snapshot.unused { li { strong { (named(name)) } " " span class="definition" { (limit) } } }
                    }
                }
            }
        }
    });
    Page::live("Limits", body)
}

pub(super) async fn limit(State(app): Shared, Query(Named { name }): Query<Named>) -> Page {
    let body = content(&app, |snapshot| {
        html! {
            p class="crumbs" { a href="/limits" { "Limits" } }
            h1 { (named(&name)) }
            @match snapshot.limits.iter().find(|limit| limit.name == name) {
                Some(limit) => {
                    @let most = amount(limit.taken.iter().copied().fold(0.0, f64::max));
                    p class="lead" { (coverage(snapshot)) }
                    section class="card limit" aria-label=(escaped(&limit.name)) {
                        div class="head" { div { p class="definition" { (definition(limit)) } } (figures(limit)) }
                        (trend("trend tall", &limit.taken, &taken_title(&limit.name, &limit.taken, snapshot), Some(format!("tokens taken in 5 s, at most {most}"))))
                    }
                    @if let Some(sharded) = limit.busiest.iter().chain(&limit.emptiest).find(|key| key.bucket.shards.len() > 1) {
                        section class="card" { h2 { "Shards of " (key_link(&app, &sharded.bucket.key)) } (shards(&sharded.bucket, sharded.capacity)) }
                    }
                    section class="card" aria-label="Keys" { (both_tables(&app, snapshot, limit, usize::MAX)) }
                }
                None if snapshot.is_cut && !snapshot.unused.iter().any(|(unused, _)| *unused == name) => div class="empty" {
                    p { "This limit is not listed, because very many limits have rows. For one of its keys, use " a href="/key" { "Key" } "." }
                },
                None => div class="empty" { p { "No bucket of this limit is stored: every bucket is full." } },
            }
        }
    });
    Page::live(escaped(&name), body)
}

fn content(app: &App, known: impl FnOnce(&Snapshot) -> Markup) -> Markup {
    let seen = app.live.seen();
    html! {
        @if let Some(error) = &seen.error {
            div class="notice problem" role="alert" {
                p class="message" { (error) }
                p {
                    @if seen.snapshot.at > 0 { "This page shows what was read at " (clock(seen.snapshot.at)) ". " }
                    "The database is tried again every few seconds."
                }
            }
        }
        @if seen.snapshot.at > 0 { (known(&seen.snapshot)) }
        @else if seen.error.is_none() { h1 { "Limits" } p class="lead" { "Reading the table…" } }
    }
}

fn coverage(snapshot: &Snapshot) -> String {
    match snapshot.coverage {
        Coverage::Whole { rows: 1 } => "The one row is read every 2 seconds.".to_owned(),
        Coverage::Whole { rows } => format!("All {} rows are read every 2 seconds.", grouped(rows)),
        Coverage::Sampled { pages, of_pages, watched } => format!(
            "A large table: every 2 seconds, {} of its {} are sampled, and the rows of {} are read. Numbers with “about” are \
             estimates, and other keys may be busier.",
            grouped(pages),
            many(of_pages, "page"),
            many(watched, "busy or empty key")
        ),
    }
}

fn nothing(snapshot: &Snapshot, is_all: bool) -> Markup {
    html! {
        div class="empty" {
            @if !is_all {
                p { strong { "No " @if snapshot.is_cut { "listed " } "limit matches." } }
                p { a href="/limits" { "Show all limits" } ". For a key that is not listed, use " a href="/key" { "Key" } "." }
            } @else {
                p { strong { "No limit is in use." } }
                p {
                    "A bucket without a row is full. A row appears here with the first call that takes tokens"
                    @if snapshot.unused.is_empty() { ", such as " code { "pg-limiter limit api u1 --rate 10 --period 1m" } }
                    "."
                }
            }
        }
    }
}

fn figures(limit: &LimitView) -> Markup {
    let about = match limit.taken_how {
        How::Estimated if limit.per_minute > 0.0 => "about ",
        How::AtLeast => "at least ",
        _ => "",
    };
    html! {
        dl class="figures" {
            div { dt { (plural(limit.keys.number as f64, "key")) " in use" } dd { (limit.keys) } }
            div { dt { "taken in a minute" } dd { (about) (per_minute(limit.per_minute)) } }
        }
    }
}

fn taken_title(what: &str, taken: &[f64], snapshot: &Snapshot) -> String {
    let (sum, most) = (taken.iter().sum::<f64>(), taken.iter().copied().fold(0.0, f64::max));
    let what = escaped(what);
    format!("{what}: {} taken {}; at most {} in 5 seconds", amount(sum), snapshot.lately(), amount(most))
}

/// A picture of what was taken in the last ten minutes, with a text below its middle.
pub(super) fn trend(class: &str, taken: &[f64], title: &str, middle: Option<String>) -> Markup {
    html! {
        div class=(class) {
            (sparkline(taken, title))
            p class="axis" aria-hidden="true" { span { "10 min ago" } @if let Some(middle) = middle { span { (middle) } } span { "now" } }
        }
    }
}

fn definition(limit: &LimitView) -> Markup {
    html! {
        @match (&limit.limit, limit.name.strip_suffix("/started")) {
            (Some(definition), _) => (definition),
            (None, Some(of)) => { "the queue's starts of jobs of " (named(of)) },
            (None, None) => "not defined: its stored numbers are shown",
        }
        @if limit.shards > 1 && limit.limit.is_none() { ", " (limit.shards) " rows for a key" }
    }
}

pub(super) fn shards(bucket: &BucketView, capacity: Option<f64>) -> Markup {
    let values: Vec<f64> = bucket.shards.iter().map(|row| row.value).collect();
    let share = capacity.map_or(0.0, |capacity| capacity / values.len() as f64);
    let most = values.iter().copied().fold(share, f64::max);
    let texts: Vec<String> = values.iter().map(|value| amount(*value)).collect();
    html! {
        div class="shards" {
            (columns(&values, most, &format!("stored in each shard: {}", texts.join(", "))))
            p class="axis" aria-hidden="true" { @for text in &texts { span { (text) } } }
        }
    }
}

fn both_tables(app: &App, snapshot: &Snapshot, limit: &LimitView, most: usize) -> Markup {
    let is_gate = limit.emptiest.first().is_some_and(|key| key.bucket.meaning == Meaning::Blocked);
    let (title, left, full) = match limit.capacity {
        _ if is_gate => ("Blocked keys", "State", "Ends"),
        Some(_) => ("Emptiest keys", "Left", "Full"),
        None => ("Emptiest keys", "Stored", "Full"),
    };
    let busiest = limit.busiest.iter().take(most).map(|of| {
        vec![
            ("Key", "", key_link(app, &of.bucket.key)),
            ("10 min", "wide", sparkline(&of.taken, &taken_title("this key", &of.taken, snapshot))),
            ("Per min", "number", html! { (per_minute(of.per_minute)) }),
            (left, "number left", left_of(of, snapshot.at)),
        ]
    });
    let emptiest = limit.emptiest.iter().take(most).map(|of| {
        vec![
            ("Key", "", key_link(app, &of.bucket.key)),
            (left, "number left", left_of(of, snapshot.at)),
            (full, "number", time(of.bucket.full_at, snapshot.at)),
        ]
    });
    let nothing = format!("Nothing was taken {}.", snapshot.lately());
    html! {
        div class="pair" {
            @if !is_gate { (table(None, html! { "Busiest keys" }, busiest.collect(), None, &nothing)) }
            (table(None, html! { (title) }, emptiest.collect(), None, "All buckets are full."))
        }
    }
}

fn left_of(of: &KeyView, now: i64) -> Markup {
    html! {
        @match (of.balance, of.capacity, of.left()) {
            (Some(balance), Some(capacity), Some(left)) => {
                (meter(left, &format!("{} of {}", amount(balance), amount(capacity)))) span { (amount(balance)) }
            }
            (Some(balance), ..) => span { (amount(balance)) },
            _ if of.bucket.meaning == Meaning::Blocked => {
                @if of.bucket.is_full(now) { span { "open" } } @else { span class="state bad" { "blocked" } }
            }
            _ => span title=(of.bucket.meaning.words(of.bucket.stored)) { (amount(of.bucket.stored)) },
        }
    }
}
