//! The page on which a limit is tried.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Multipart, State};
use axum::response::Response;
use maud::{Markup, html};

use crate::error::CliError;
use crate::plot::{Bar, Panel};
use crate::text::{grouped, percent_of};
use crate::ui::actions::own_form;
use crate::ui::app::App;
use crate::ui::chart;
use crate::ui::format::amount;
use crate::ui::page::{Here, Page, PageError, respond};
use crate::ui::what_if::{Offered, Outcome, log_options, one_limit, parse};
use pg_limiter::{Kind, Limit};

type Fields = HashMap<String, String>;

/// Fields of the form that are options of `simulate`: the name, the label, an example, and the kinds or traffics that have it.
const OF_LIMIT: [(&str, &str, &str, &str); 6] = [
    ("rate", "Tokens", "60", "token_bucket fixed_window sliding_window calendar_window"),
    ("period", "in each", "1m", "token_bucket fixed_window sliding_window"),
    ("every", "in each", "1 day", "calendar_window"),
    ("capacity", "Capacity", "same as tokens", "token_bucket fixed_window calendar_window concurrency"),
    ("resolution", "Parts", "1", "sliding_window"),
    ("lease", "Lease", "30s", "concurrency"),
];
const OF_TRAFFIC: [(&str, &str, &str, &str); 5] = [
    ("calls", "Calls", "2/s", "constant poisson bursts"),
    ("for", "For", "10m", "constant poisson bursts"),
    ("burst", "Calls in a burst", "40", "bursts"),
    ("pause", "Pause between bursts", "30s", "bursts"),
    ("hold", "Slots held for", "2s", "concurrency"),
];
/// The fields that may be empty; the capacity not of a concurrency limit.
const OPTIONAL: [&str; 6] = ["capacity", "resolution", "lease", "burst", "pause", "hold"];
const KINDS: [(&str, &str); 5] = [
    ("token_bucket", "Token bucket"),
    ("fixed_window", "Fixed window"),
    ("sliding_window", "Sliding window"),
    ("calendar_window", "Calendar window"),
    ("concurrency", "Concurrency"),
];
const TRAFFICS: [(&str, &str); 4] =
    [("constant", "Constant"), ("poisson", "Random"), ("bursts", "Bursts"), ("log", "Access log")];
const LOG_FIELDS: [&str; 5] = ["remote_addr", "user", "path", "method", "user_agent"];

fn defaults() -> Fields {
    let fields = [
        ("kind", "token_bucket"),
        ("rate", "60"),
        ("period", "1m"),
        ("every", "1 day"),
        ("traffic", "bursts"),
        ("calls", "5/s"),
        ("for", "10m"),
        ("burst", "40"),
        ("pause", "30s"),
        ("hold", "2s"),
    ];
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

pub(super) async fn empty(State(app): State<Arc<App>>) -> Response {
    let fields = defaults();
    let result = simulate(&app, &fields, Vec::new()).await;
    respond(&app, Here::WhatIf, Ok(page(&app, &fields, result)))
}

pub(super) async fn simulated(State(app): State<Arc<App>>, form: Multipart) -> Response {
    let read = async {
        let (fields, log) = read(form).await?;
        own_form(&app, fields.get("form").map_or("", String::as_str))?;
        Ok((fields, log))
    };
    match read.await {
        Ok((fields, log)) => {
            let result = simulate(&app, &fields, log).await;
            respond(&app, Here::WhatIf, Ok(page(&app, &fields, result)))
        }
        Err(error) => respond(&app, Here::WhatIf, Err(error)),
    }
}

/// The fields, and the uploaded or pasted log.
async fn read(mut form: Multipart) -> Result<(Fields, Vec<u8>), PageError> {
    let invalid = |error: axum::extract::multipart::MultipartError| PageError::Invalid(error.body_text());
    let (mut fields, mut log) = (Fields::new(), Vec::new());
    while let Some(field) = form.next_field().await.map_err(invalid)? {
        let name = field.name().unwrap_or_default().to_owned();
        let bytes = field.bytes().await.map_err(invalid)?;
        if name == "file" || name == "log" {
            if !bytes.trim_ascii().is_empty() {
                log = bytes.to_vec();
            }
        } else {
            fields.insert(name, String::from_utf8_lossy(&bytes).trim().to_owned());
        }
    }
    Ok((fields, log))
}

async fn simulate(app: &App, fields: &Fields, log: Vec<u8>) -> Result<Outcome, CliError> {
    let field = |name: &str| fields.get(name).map_or("", String::as_str);
    let (kind, traffic) = (field("kind"), field("traffic"));
    let mut options = vec![format!("--kind={kind}")];
    let applies = |of: &str| of.split(' ').any(|name| name == kind || name == traffic);
    for (name, _, example, of) in OF_LIMIT.iter().chain(&OF_TRAFFIC) {
        let value = field(name);
        if applies(of)
            && value.is_empty()
            && (!OPTIONAL.contains(name) || (*name == "capacity" && kind == "concurrency"))
        {
            return Err(CliError::usage(format!(
                "--{name} is empty: type a value, such as {}",
                if *name == "capacity" { "3" } else { example }
            )));
        }
        if applies(of) && !value.is_empty() {
            options.push(format!("--{name}={value}"));
        }
    }
    let today = match field("beside") {
        "" => None,
        name => {
            let none = || CliError::usage(format!("the limits file has no limit {}", crate::text::shown(name, 80)));
            let limit = app.live.limits().get(name).ok_or_else(none)?;
            Some((Arc::from(format!("{name} (today)")), *limit))
        }
    };
    let offered = if traffic == "log" {
        options.retain(|option| !option.starts_with("--hold"));
        if log.is_empty() {
            return Err(CliError::usage("paste lines of an access log, or choose a file"));
        }
        let read_by = Box::new(log_options(field("log_format"), field("log_key"))?);
        Offered::Recorded { log, options: read_by, limit: one_limit(&parse(&options)?)? }
    } else {
        options.push(format!("--traffic={traffic}"));
        Offered::MadeUp(Box::new(parse(&options)?))
    };
    app.simulator.run(&offered, today).await
}

fn page(app: &App, fields: &Fields, result: Result<Outcome, CliError>) -> Page {
    let body = html! {
        h1 { "What if" }
        p class="lead" { "Try a limit on made-up or recorded traffic. The database decides each call as in production, in temporary tables that are rolled back." }
        (form(app, fields))
        div id="result" aria-live="polite" {
            @match result {
                Ok(outcome) => (outcome_of(&outcome)),
                Err(error) => div class="notice warning" { p class="message" { (in_words(&crate::text::message(&error.to_string()))) } },
            }
        }
    };
    Page { title: "What if".to_owned(), body, is_live: false }
}

/// Names the fields of the form in a message about options.
fn in_words(message: &str) -> String {
    OF_LIMIT
        .iter()
        .chain(&OF_TRAFFIC)
        .chain(&[("log-format", "Format of the log", "", "")])
        .fold(message.to_owned(), |text, (name, label, ..)| text.replace(&format!("--{name}"), &format!("“{label}”")))
}

fn form(app: &App, fields: &Fields) -> Markup {
    let field = |name: &str| fields.get(name).map_or("", String::as_str);
    let inputs = |all: &[(&str, &str, &str, &str)]| {
        html! {
            @for (name, label, example, of) in all {
                label data-for=(of) { span { (label) } input name=(name) value=(field(name)) placeholder=(example) autocomplete="off"; }
            }
        }
    };
    let options = |name: &str, label: &str, all: &[(&str, &str)]| {
        html! {
            label { span { (label) } select name=(name) { @for (value, text) in all { option value=(value) selected[field(name) == *value] { (text) } } } }
        }
    };
    let is_tried = |limit: &Limit| limit.kind() != Kind::Gate;
    let today: Vec<(&str, String)> = app
        .live
        .limits()
        .iter()
        .filter(|(_, limit)| is_tried(limit))
        .map(|(name, limit)| (name, format!("{name}: {limit}")))
        .collect();
    html! {
        form id="what-if" class="card try" method="post" action="/what-if" enctype="multipart/form-data" {
            input type="hidden" name="form" value=(app.access.form);
            fieldset {
                legend { "The limit" }
                (options("kind", "Kind", &KINDS))
                (inputs(&OF_LIMIT))
                @if !today.is_empty() {
                    label { span { "Beside the limit of today" } select name="beside" { option value="" { "none" } @for (name, text) in &today { option value=(name) selected[field("beside") == *name] { (text) } } } }
                }
            }
            fieldset {
                legend { "The traffic" }
                (options("traffic", "Kind", &TRAFFICS))
                (inputs(&OF_TRAFFIC))
                label data-for="log" { span { "Key" } select name="log_key" { @for name in LOG_FIELDS { option value=(name) selected[field("log_key") == name] { (name) } } } }
                label data-for="log" { span { "Format of the log" } input name="log_format" value=(field("log_format")) placeholder="common or combined" autocomplete="off"; }
                label data-for="log" class="long" { span { "Lines of the log" } textarea name="log" rows="4" spellcheck="false" {} }
                label data-for="log" { span { "or a file" } input type="file" name="file"; }
            }
            button type="submit" class="primary" { "Simulate" }
        }
    }
}

fn outcome_of(outcome: &Outcome) -> Markup {
    let most = |panel: &Panel| panel.series.bars.iter().map(Bar::offered).fold(0.0, f64::max);
    let tallest = outcome.panels.iter().map(most).fold(0.0, f64::max);
    html! {
        p class="lead" { (crate::text::shown(&outcome.traffic, 200)) }
        ul class="legend" aria-label="Legend" {
            li { span class="swatch admitted" {} "admitted" }
            li { span class="swatch denied" {} "denied" }
            li { span class="swatch balance" {} "balance" }
        }
        div class="cards" { @for panel in &outcome.panels { (panel_of(panel, tallest)) } }
    }
}

fn panel_of(panel: &Panel, tallest: f64) -> Markup {
    let sum = |of: fn(&Bar) -> f64| panel.series.bars.iter().map(of).sum::<f64>();
    let (offered, admitted) = (sum(Bar::offered), sum(|bar| bar.admitted + bar.reserved));
    let totals = format!(
        "{} {} offered, {} admitted, {} denied",
        grouped(offered as u64),
        panel.counted(),
        grouped(admitted as u64),
        grouped((offered - admitted) as u64)
    );
    let bins = panel.series.bins;
    let length = crate::text::format_micros(bins.end() - bins.from);
    html! {
        section class="card" aria-label=(panel.name) {
            h2 { (panel.title()) }
            p class="facts" { span class="value" { (percent_of(admitted, offered)) " % admitted" } ": " (totals) }
            figure {
                (chart::traffic(panel, tallest, &totals))
                figcaption class="axis" aria-hidden="true" { span { "0s" } span { "at most " (amount(tallest)) " in a bar of " (crate::text::format_micros(bins.width)) } span { (length) } }
            }
            @if panel.has_balance {
                figure {
                    (chart::curve(&panel.balance_line(), panel.capacity(), &format!("the balance, up to the capacity of {}", amount(panel.capacity()))))
                    figcaption class="axis" aria-hidden="true" { span { "0s" } span { "balance, capacity " (amount(panel.capacity())) } span { (length) } }
                }
            }
        }
    }
}
