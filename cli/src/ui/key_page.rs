//! The page of a key: its buckets in all limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;

use crate::live::{Balance, KeyBucket, Meaning};
use crate::ui::actions::own_form;
use crate::ui::app::App;
use crate::ui::chart::{columns, curve, meter, sparkline};
use crate::ui::format::{amount, clock, key, key_url, relative, span, time};
use crate::ui::limits_page::{no_such_key, shards};
use crate::ui::page::{Here, Page, PageError, respond};

/// Keys that are suggested, of each limit.
const SUGGESTED: u32 = 8;

#[derive(Deserialize)]
pub(super) struct Wanted {
    key: Option<String>,
    #[serde(default)]
    done: String,
}

#[derive(Deserialize)]
pub(super) struct Find {
    key: String,
    form: String,
}

pub(super) async fn page(State(app): State<Arc<App>>, Query(wanted): Query<Wanted>) -> Response {
    let page = async {
        let Some(shown) = wanted.key else { return Ok(search(&app)) };
        let key = app.keys.named(&shown).ok_or_else(|| no_such_key(&app, &shown))?;
        if key.contains('\0') {
            return Err(PageError::Invalid("no key has a NUL character".to_owned()));
        }
        of_key(&app, &key, &wanted.done).await
    };
    respond(&app, Here::Key, page.await)
}

/// A key in a form is not in the URL, so that a hidden key is in no history and in no log.
pub(super) async fn find(State(app): State<Arc<App>>, Form(Find { key, form }): Form<Find>) -> Response {
    match own_form(&app, &form) {
        Ok(()) => (StatusCode::SEE_OTHER, [(header::LOCATION, key_url(&app, &key))]).into_response(),
        Err(error) => respond(&app, Here::Key, Err(error)),
    }
}

fn search_form(app: &App, value: &str) -> Markup {
    let hidden = app.keys.are_hidden();
    html! {
        form class="filter" method=(if hidden { "post" } else { "get" }) action=(if hidden { "/key/find" } else { "/key" }) role="search" aria-label="Find a key" {
            @if hidden { input type="hidden" name="form" value=(app.access.form); }
            label { span { "Key" } input type="search" name="key" value=(value) required autocomplete="off" placeholder="such as u1"; }
            button type="submit" class="primary" { "Find" }
        }
    }
}

fn search(app: &App) -> Page {
    let body = html! {
        h1 { "Key" }
        p class="lead" { "Find a key, such as a user or an address, in all limits." }
        (search_form(app, ""))
    };
    Page { title: "Key".to_owned(), body, is_live: false }
}

async fn of_key(app: &App, wanted: &str, done: &str) -> Result<Page, PageError> {
    let (now, buckets) = app.live.key(wanted, |limit| app.stored(limit, wanted)).await?;
    let like = if buckets.is_empty() && !app.keys.are_hidden() && !wanted.is_empty() {
        app.live.keys_like(wanted, SUGGESTED).await?.into_iter().map(|(_, key)| key).collect()
    } else {
        BTreeSet::new()
    };
    let forms = if buckets.is_empty() && !wanted.is_empty() {
        app.live.other_forms(wanted, app.key_secret.as_ref()).await?
    } else {
        Vec::new()
    };
    let mut histories = Vec::with_capacity(buckets.len());
    for bucket in &buckets {
        histories.push(app.live.history(&bucket.bucket.name, &bucket.bucket.key).await);
    }
    let gates = app.live.limits().iter().filter(|(_, limit)| limit.kind() == pg_limiter::Kind::Gate).count();
    let body = html! {
        div class="title" {
            h1 { "Key " span class="of" { (key(app, wanted)) } }
            (search_form(app, if app.keys.are_hidden() { "" } else { wanted }))
        }
        (flash(app.done.recent(&wanted, done)))
        @if buckets.is_empty() {
            div class="empty" {
                p { strong { "No limit has a row for this key." } }
                p { "Its buckets are full" @if gates > 0 { ", and no gate blocks it" } ". A key that was never used looks the same." }
                @if !forms.is_empty() {
                    p { "It is stored in another form:" }
                    ul class="inline" { @for form in &forms { li { a href=(key_url(app, form)) { (key(app, form)) } } } }
                }
                @if !like.is_empty() {
                    p { "Keys that begin like this:" }
                    ul class="inline" { @for like in &like { li { a href=(key_url(app, like)) { (key(app, like)) } } } }
                }
            }
        }
        div class="cards" {
            @for (bucket, history) in buckets.iter().zip(&histories) { (card(app, bucket, history.as_deref(), now)) }
        }
    };
    let title = if app.keys.are_hidden() || wanted.is_empty() {
        "Key".to_owned()
    } else {
        format!("Key {}", crate::text::shown(wanted, 40))
    };
    Ok(Page { title, body, is_live: true })
}

fn flash(done: Option<&str>) -> Markup {
    let text = match done {
        Some("reset") => "The bucket is reset: it is full.",
        Some("credited") => "The tokens were given back.",
        Some("unblocked") => "The key is unblocked.",
        _ => return html! {},
    };
    html! { div class="notice good" role="status" { p class="message" { (text) } } }
}

fn card(app: &App, of: &KeyBucket, history: Option<&[f64]>, now: i64) -> Markup {
    let bucket = &of.bucket;
    html! {
        section class="card bucket" aria-label=(bucket.name) {
            h2 { bdi { (bucket.name) } }
            p class="definition" { (of.limit.as_deref().unwrap_or("not in a limits file: its stored numbers are shown")) }
            @match (&of.balance, bucket.meaning) {
                (_, Meaning::Blocked) => (block(bucket.full_at, now)),
                (Some(balance), _) => (balance_of(of, balance, now)),
                (None, _) => (stored(of, now)),
            }
            @if let Some((part, counts)) = &bucket.window { (window(*part, counts)) }
            @if bucket.shards.len() > 1 {
                h3 { "Shards" }
                (shards(bucket, of.balance.as_ref().map(|balance| balance.capacity)))
            }
            @if bucket.meaning == Meaning::SlotsInUse { (leases(of, now)) }
            @if let Some(history) = history.filter(|history| history.iter().any(|taken| *taken > 0.0)) {
                h3 { "Taken" }
                div class="trend" {
                    (sparkline(history, &format!("{} taken {}", amount(history.iter().sum()), app.live.seen().snapshot.lately())))
                    p class="axis" aria-hidden="true" { span { "10 min ago" } span { (amount(history.iter().sum())) " in all" } span { "now" } }
                }
            }
            @if app.changes.is_some() { (actions(app, of)) }
        }
    }
}

fn block(until: i64, now: i64) -> Markup {
    html! {
        @if until > now {
            p class="big" { span class="state bad" { "blocked" } }
            p { "The block ends " (time(until, now)) ", at " (clock(until)) "." }
        } @else { p class="big" { span class="state good" { "open" } } p { "The last block ended " (time(until, now)) "." } }
    }
}

fn balance_of(of: &KeyBucket, balance: &Balance, now: i64) -> Markup {
    let Balance { now: left, capacity, wait, curve: line, .. } = balance;
    let slots = of.bucket.meaning == Meaning::SlotsInUse || of.kind == Some("concurrency");
    let what = if slots { "slots free" } else { "tokens left" };
    let title = format!("{} of {} {what}", amount(*left), amount(*capacity));
    let end = line.0.last().map_or(now, |point| point.0);
    html! {
        p class="big" { span class="value" { (amount(*left)) } " of " (amount(*capacity)) " " (what) }
        (meter(if *capacity > 0.0 { left / capacity } else { 0.0 }, &title))
        p class="facts" {
            @match wait {
                Some(wait) => { span class="state bad" { "denied" } " A call for one is denied, and allowed in " (span(*wait)) "." }
                None => { span class="state good" { "allowed" } " A call for one is allowed now." }
            }
            " "
            @if of.bucket.is_full(now) { "The bucket is full." } @else { "Full " (time(of.bucket.full_at, now)) " if nothing is taken." }
        }
        @if !of.bucket.is_full(now) {
            figure {
                (curve(&line.0, *capacity, &format!("the balance from now, {}, until {}", amount(*left), relative(end, now))))
                figcaption class="axis" aria-hidden="true" { span { "now" } span { "capacity " (amount(*capacity)) } span { (relative(end, now)) } }
            }
        }
    }
}

fn stored(of: &KeyBucket, now: i64) -> Markup {
    let bucket = &of.bucket;
    html! {
        p class="big" { span class="value" { (amount(bucket.stored)) } " " (bucket.meaning.as_str()) }
        p class="facts" {
            "As of the last write, " (time(bucket.since, now)) ". "
            @if bucket.is_full(now) { "The bucket is full." } @else { "Full " (time(bucket.full_at, now)) " if nothing is taken." }
        }
    }
}

fn window(part: i64, counts: &[f64]) -> Markup {
    let most = counts.iter().copied().fold(0.0, f64::max);
    let length = crate::text::format_micros(part);
    html! {
        h3 { "Counts of the window" }
        (columns(counts, most, &format!("tokens taken in each part of {length}: {}", counts.iter().map(|count| amount(*count)).collect::<Vec<_>>().join(", "))))
        p class="axis" aria-hidden="true" { span { "oldest" } span { "parts of " (length) ", at most " (amount(most)) } span { "now" } }
    }
}

fn leases(of: &KeyBucket, now: i64) -> Markup {
    html! {
        table {
            caption { "Leases held" }
            @if of.bucket.leases.is_empty() { tbody { tr { td class="none" { "No slot is in use." } } } }
            @else {
                thead { tr { th scope="col" { "Lease" } th scope="col" class="number" { "Slots" } th scope="col" class="number" { "Ends" } } }
                tbody {
                    @for lease in &of.bucket.leases {
                        tr { th scope="row" class="code" { (lease.id) } td class="number" { (amount(lease.slots)) } td class="number" { (time(lease.ends_at, now)) } }
                    }
                }
            }
        }
    }
}

/// Forms that change the bucket. Opening one is the confirmation.
fn actions(app: &App, of: &KeyBucket) -> Markup {
    let hidden = || {
        html! {
            input type="hidden" name="form" value=(app.access.form);
            input type="hidden" name="limit" value=(of.bucket.name);
            input type="hidden" name="key" value=(app.keys.shown(&of.bucket.key));
        }
    };
    let is_gate = of.bucket.meaning == Meaning::Blocked || of.kind == Some("gate");
    html! {
        div class="acts" {
            @if is_gate {
                details class="act" {
                    summary { "Unblock" }
                    form method="post" action="/key/unblock" { (hidden()) p { "Calls on this key are allowed again." } button class="danger" type="submit" { "Unblock now" } }
                }
            } @else {
                @if of.balance.is_some() && of.kind != Some("concurrency") {
                    details class="act" {
                        summary { "Credit" }
                        form method="post" action="/key/credit" {
                            (hidden())
                            label { span { "Tokens to give back" } input type="number" name="count" min="0.001" step="any" value="1" required; }
                            button class="danger" type="submit" { "Give back now" }
                        }
                    }
                }
                details class="act" {
                    summary { "Reset" }
                    form method="post" action="/key/reset" {
                        (hidden())
                        p { @if of.bucket.meaning == Meaning::SlotsInUse { "All slots are free, although their holders may still work." } @else { "The bucket is full." } }
                        button class="danger" type="submit" { "Reset now" }
                    }
                }
            }
        }
    }
}
