//! The page of a key: its buckets in all limits.

use std::collections::BTreeSet;

use axum::Form;
use axum::extract::{Query, State};
use axum::response::Redirect;
use maud::{Markup, html};

use crate::CliError;
use crate::operate::live::{BUCKETS, Balance, KeyBucket, Meaning};
use crate::operate::ui::actions::act;
use crate::operate::ui::format::{
    amount, clock, columns, curve, key, key_link, key_url, meter, named, relative, span, time,
};
use crate::operate::ui::limits_page::{shards, trend};
use crate::operate::ui::{App, Page, PageError, Shared, Wanted, table};
use crate::text::{escaped, plural};
use pg_limiter::Kind;

const SUGGESTED: u32 = 8;

pub(super) async fn page(State(app): Shared, Query(wanted): Query<Wanted>) -> Result<Page, PageError> {
    let Wanted { key: Some(shown), done, .. } = wanted else {
        let body = html! {
            h1 { "Key" }
            p class="lead" { "Find a key, such as a user or an address, in all limits." }
            (search_form(&app, ""))
        };
        return Ok(Page { title: "Key".to_owned(), body, is_live: false });
    };
    let wanted = app.named(&shown)?;
    CliError::refuse_if(wanted.contains('\0'), "no key has a NUL character")?;
    let secret = app.key_secret.as_ref();
    let (now, buckets) = app.live.key(&wanted, secret).await?;
    let is_hidden = app.keys.are_hidden();
    let (mut forms, mut like) = (BTreeSet::new(), BTreeSet::new());
    if buckets.is_empty() && !wanted.is_empty() {
        if !is_hidden {
            like.extend(app.live.keys_like(&wanted, SUGGESTED).await?.into_iter().map(|(_, key)| key));
        }
        forms = app.live.other_forms(&wanted, secret).await?;
    }
    let has_gates = app.live.limits().iter().any(|(_, limit)| limit.kind() == Kind::Gate);
    let body = html! {
        div class="title" {
            h1 { "Key " span class="of" { (key(&app, &wanted)) } }
            // A field of one line cannot hold a line break.
            (search_form(&app, if is_hidden || wanted.contains(['\n', '\r']) { "" } else { &wanted }))
        }
        (app.done.notice(&key_url(&app, &wanted), &done))
        @if buckets.is_empty() {
            div class="empty" {
                p { strong { "No limit has a row for this key." } }
                p { "Its buckets are full" @if has_gates { ", and no gate blocks it" } ". A key that was never used looks the same." }
                (other_keys(&app, "It is stored in another form:", &forms))
                (other_keys(&app, "Keys that begin like this:", &like))
            }
        }
        div class="cards" {
            @for bucket in &buckets { (card(&app, bucket, now)) }
        }
        @if buckets.len() == BUCKETS { p class="lead" { "The first " (amount(BUCKETS as f64)) " buckets are listed." } }
    };
    let is_named = !is_hidden && !wanted.is_empty();
    let title = if is_named { format!("Key {}", crate::text::shown(&wanted, 40)) } else { "Key".to_owned() };
    Ok(Page::live(title, body))
}

/// A key in a form is not in the URL, so that a hidden key is in no history and in no log.
pub(super) async fn find(State(app): Shared, Form(find): Form<Wanted>) -> Result<Redirect, PageError> {
    app.own_form(&find.form)?;
    Ok(Redirect::to(&key_url(&app, find.key.as_deref().unwrap_or_default())))
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

fn other_keys(app: &App, title: &str, keys: &BTreeSet<String>) -> Markup {
    html! {
        @if !keys.is_empty() {
            p { (title) }
            ul class="inline" { @for key in keys { li { (key_link(app, key)) } } }
        }
    }
}

fn card(app: &App, of: &KeyBucket, now: i64) -> Markup {
    let bucket = &of.bucket;
    let leases = bucket.leases.iter().map(|lease| {
        vec![
            ("Lease", "code", html! { (lease.id) }),
            ("Slots", "number", html! { (amount(lease.slots)) }),
            ("Ends", "number", time(lease.ends_at, now)),
        ]
    });
    html! {
        section class="card bucket" aria-label=(escaped(&bucket.name)) {
            h2 { (named(&bucket.name)) }
            p class="definition" { @if let Some(limit) = of.limit { (limit) } @else { "not defined: its stored numbers are shown" } }
            @match (&of.balance, bucket.meaning) {
                (_, Meaning::Blocked) if bucket.is_full(now) => {
                    p class="big" { span class="state good" { "open" } }
                    p { "The last block ended " (time(bucket.full_at, now)) "." }
                }
                (_, Meaning::Blocked) => {
                    p class="big" { span class="state bad" { "blocked" } }
                    p { "The block ends " (time(bucket.full_at, now)) ", at " (clock(bucket.full_at)) "." }
                }
                (Some(balance), _) => (balance_of(of, balance, now)),
                (None, _) => {
                    p class="big" { span class="value" { (amount(bucket.stored)) } " " (bucket.meaning.words(bucket.stored)) }
                    p class="facts" { "As of the last write, " (time(bucket.since, now)) ". " (full(of, now)) }
                }
            }
            @if let Some((part, counts)) = &bucket.window {
                @let most = counts.iter().copied().fold(0.0, f64::max);
                @let length = crate::text::format_micros(*part);
                @let amounts = counts.iter().map(|count| amount(*count)).collect::<Vec<_>>().join(", ");
                h3 { "Counts of the window" }
                (columns(counts, most, &format!("tokens taken in each part of {length}: {amounts}")))
                p class="axis" aria-hidden="true" { span { "oldest" } span { "parts of " (length) ", at most " (amount(most)) } span { "now" } }
            }
            @if bucket.shards.len() > 1 {
                h3 { "Shards" }
                (shards(bucket, of.balance.as_ref().map(|balance| balance.capacity)))
            }
            @if bucket.meaning == Meaning::SlotsInUse { (table(None, html! { "Leases held" }, leases.collect(), None, "No slot is in use.")) }
            @if let Some(history) = of.taken.as_ref().filter(|history| history.iter().any(|taken| *taken > 0.0)) {
                @let sum = amount(history.iter().sum());
                h3 { "Taken" }
                (trend("trend", history, &format!("{sum} taken {}", app.live.seen().snapshot.lately()), Some(format!("{sum} in all"))))
            }
            @if app.changes.is_some() { (actions(app, of)) }
        }
    }
}

fn is(of: &KeyBucket, kind: Kind) -> bool {
    of.limit.is_some_and(|limit| limit.kind() == kind)
}

fn balance_of(of: &KeyBucket, balance: &Balance, now: i64) -> Markup {
    let Balance { now: left, capacity, wait, curve: line, .. } = balance;
    let slots = of.bucket.meaning == Meaning::SlotsInUse || is(of, Kind::Concurrency);
    let (noun, rest) = if slots { ("slot", "free") } else { ("token", "left") };
    let what = format!("{} {rest}", plural(*capacity, noun));
    let title = format!("{} of {} {what}", amount(*left), amount(*capacity));
    let end = line.last().map_or(now, |point| point.0);
    html! {
        p class="big" { span class="value" { (amount(*left)) } " of " (amount(*capacity)) " " (what) }
        (meter(if *capacity > 0.0 { left / capacity } else { 0.0 }, &title))
        p class="facts" {
            @match wait {
                Some(wait) => { span class="state bad" { "denied" } " A call for one is denied, and allowed in " (span(*wait)) "." }
                None => { span class="state good" { "allowed" } " A call for one is allowed now." }
            }
            " "
            (full(of, now))
        }
        @if !of.bucket.is_full(now) {
            figure {
                (curve(line, *capacity, &format!("the balance from now, {}, until {}", amount(*left), relative(end, now))))
                figcaption class="axis" aria-hidden="true" { span { "now" } span { "capacity " (amount(*capacity)) } span { (relative(end, now)) } }
            }
        }
    }
}

fn full(of: &KeyBucket, now: i64) -> Markup {
    html! { @if of.bucket.is_full(now) { "The bucket is full." } @else { "Full " (time(of.bucket.full_at, now)) " if nothing is taken." } }
}

fn actions(app: &App, of: &KeyBucket) -> Markup {
    let key = app.keys.shown(&of.bucket.key);
    let fields = [("limit", &*of.bucket.name), ("key", &*key)];
    let is_gate = of.bucket.meaning == Meaning::Blocked || is(of, Kind::Gate);
    html! {
        div class="acts" {
            @if is_gate {
                (act(app, ["Unblock", "Unblock now", "/key/unblock"], &fields, html! { p { "Calls on this key are allowed again." } }))
            } @else {
                @if of.balance.is_some() && !is(of, Kind::Concurrency) {
                    (act(app, ["Credit", "Give back now", "/key/credit"], &fields, html! {
                        label { span { "Tokens to give back" } input type="number" name="count" min="0.001" step="any" value="1" required; }
                    }))
                }
                (act(app, ["Reset", "Reset now", "/key/reset"], &fields, html! {
                    p { @if of.bucket.meaning == Meaning::SlotsInUse { "All slots are free, although their holders may still work." } @else { "The bucket is full." } }
                }))
            }
        }
    }
}
