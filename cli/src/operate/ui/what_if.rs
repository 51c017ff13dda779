//! The page on which a limit is tried, and its simulations: in temporary tables, in a transaction that is rolled back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Multipart, State};
use clap::{Args, Command, FromArgMatches};
use maud::{Markup, html};
use tokio::sync::Mutex;

use crate::operate::ui::format::{amount, capital, curve, n, svg};
use crate::operate::ui::{App, Page, PageError, Shared};
use crate::study::plot::{Bar, Panel};
use crate::study::replay::{LogOptions, Sandbox, panels_of_log};
use crate::study::simulate::{SimulateArgs, panels_of_traffic};
use crate::text::{self, grouped, many, percent_of};
use crate::{CliError, Result};
use pg_limiter::Kind;

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
const TRAFFICS: [(&str, &str); 4] =
    [("constant", "Constant"), ("poisson", "Random"), ("bursts", "Bursts"), ("log", "Access log")];
const LOG_FIELDS: [&str; 5] = ["remote_addr", "user", "path", "method", "user_agent"];

/// The page with most examples, and some calls that a bucket denies.
pub(super) async fn empty(State(app): Shared) -> Page {
    let examples = OF_LIMIT.iter().chain(&OF_TRAFFIC).map(|(name, _, example, _)| (*name, *example));
    let examples = examples.filter(|(name, _)| !["capacity", "resolution", "lease"].contains(name));
    let fields = examples.chain([("kind", "token_bucket"), ("traffic", "bursts"), ("calls", "5/s")]);
    page(&app, &fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(), &[]).await
}

pub(super) async fn simulated(State(app): Shared, form: Multipart) -> Result<Page, PageError> {
    let (fields, log) = read(form).await?;
    app.own_form(field(&fields, "form"))?;
    Ok(page(&app, &fields, &log).await)
}

fn field<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.get(name).map_or("", String::as_str)
}

async fn read(mut form: Multipart) -> Result<(Fields, Vec<u8>), PageError> {
    let invalid = |error: axum::extract::multipart::MultipartError| CliError::Usage(error.body_text());
    let (mut fields, mut log) = (Fields::new(), Vec::new());
    while let Some(field) = form.next_field().await.map_err(invalid)? {
        let name = field.name().unwrap_or_default().to_owned();
        let bytes = field.bytes().await.map_err(invalid)?;
        match &*name {
            "file" | "log" if bytes.trim_ascii().is_empty() => {}
            "file" | "log" => log = bytes.to_vec(),
            _ => drop(fields.insert(name, String::from_utf8_lossy(&bytes).trim().to_owned())),
        }
    }
    Ok((fields, log))
}

/// Offers the traffic to the limit of the form and to the one beside it. Runs one simulation at a time. Returns the traffic in
/// words, notes on lines of the log that cannot be read, and the pictures.
async fn simulate(app: &App, fields: &Fields, log: &[u8]) -> Result<(String, Vec<String>, Vec<Panel>)> {
    let field = |name: &str| field(fields, name);
    let (kind, traffic) = (field("kind"), field("traffic"));
    let applies = |of: &str| of.split(' ').any(|name| name == kind || name == traffic);
    let mut options = vec![format!("--kind={kind}")];
    for (name, _, example, _) in OF_LIMIT.iter().chain(&OF_TRAFFIC).filter(|(.., of)| applies(of)) {
        let value = field(name);
        if !value.is_empty() {
            options.push(format!("--{name}={value}"));
        } else if *name == "capacity" && kind == "concurrency" {
            return Err(CliError::usage("--capacity is empty: type a value, such as 3"));
        } else if !OPTIONAL.contains(name) {
            return Err(CliError::usage(format!("--{name} is empty: type a value, such as {example}")));
        }
    }
    let today = match field("beside") {
        "" => None,
        name => {
            let limit = app.live.limits().get(name).copied();
            let none = || CliError::usage(format!("no limit is {}", text::shown(name, 80)));
            Some((Arc::from(format!("{name} (today)")), limit.ok_or_else(none)?))
        }
    };
    let log_options = if traffic == "log" {
        options.retain(|option| !option.starts_with("--hold"));
        CliError::refuse_if(log.is_empty(), "paste lines of an access log, or choose a file")?;
        let format = Some(field("log_format")).filter(|format| !format.is_empty()).map(str::parse).transpose();
        let log_format = format.map_err(|reason| CliError::usage(format!("--log-format: {reason}")))?;
        Some(LogOptions { log_format, key: Some(field("log_key").to_owned()), ..LogOptions::default() })
    } else {
        options.push(format!("--traffic={traffic}"));
        None
    };
    let args = parse(&options)?;
    let mut kept = app.sandbox.lock().await;
    let mut sandbox = opened(app, kept.take()).await?;
    let outcome = if let Some(options) = log_options {
        let limits: Vec<_> = args.limits(None)?.into_iter().chain(today).collect();
        let (panels, notes) = panels_of_log(log, &options, &limits, MOST_CALLS, &mut sandbox).await?;
        ("the access log".to_owned(), notes, panels)
    } else {
        let (traffic, panels) = panels_of_traffic(&args, today, MOST_CALLS, &mut sandbox).await?;
        (traffic, Vec::new(), panels)
    };
    *kept = Some(sandbox);
    Ok(outcome)
}

async fn page(app: &App, fields: &Fields, log: &[u8]) -> Page {
    let result = simulate(app, fields, log).await;
    let body = html! {
        h1 { "What if" }
        p class="lead" { "Try a limit on made-up or recorded traffic. The database decides each call as in production, in temporary tables that are rolled back." }
        (form(app, fields))
        div id="result" aria-live="polite" {
            @match result {
                Ok((traffic, notes, panels)) => {
                    @let tallest = panels.iter().flat_map(|panel| &panel.bars).map(Bar::offered).fold(0.0, f64::max);
                    p class="lead" { (text::shown(&traffic, 200)) }
                    @for note in notes { (notice(&note)) }
                    ul class="legend" aria-label="Legend" {
                        @for of in ["admitted", "denied", "balance"] { li { span class={ "swatch " (of) } {} (of) } }
                    }
                    div class="cards" { @for panel in &panels { (panel_of(panel, tallest)) } }
                }
                Err(error) => (notice(&error.to_string())),
            }
        }
    };
    Page { title: "What if".to_owned(), body, is_live: false }
}

/// The labels of the other fields, by the options that they are.
const OTHERS: [(&str, &str); 4] =
    [("kind", "Kind"), ("traffic", "Kind"), ("log-format", "Format of the log"), ("key", "Key")];
/// Options of `replay` that the form lacks.
const NOT_HERE: [&str; 4] = ["key", "sort-window", "trusted-header", "trusted-proxies"];

/// A message about options in words of the form: it names the fields.
fn in_words(message: &str) -> String {
    let message = message.replace("--max-bad-lines allows", "this page allows").replace(" | pg-limiter .. -", "");
    let message = message.replace(": to read all of them, give --max-bad-lines", "");
    let label = |option: &str| {
        let mut labels = OF_LIMIT.iter().chain(&OF_TRAFFIC).map(|(name, label, ..)| (*name, *label)).chain(OTHERS);
        labels.find(|(name, _)| *name == option).map(|(_, label)| label)
    };
    let mut parts = message.split("--");
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(part.len());
        let (option, rest) = part.split_at(end);
        // The form has fewer keys than the option, which also takes a field of the format in quotes.
        let is_field = option != "key" || !rest.starts_with(" '");
        words += &match label(option).filter(|_| is_field) {
            Some(label) => format!("“{label}”"),
            None if NOT_HERE.contains(&option) => format!("pg-limiter replay --{option}"),
            None => format!("--{option}"),
        };
        words += rest;
    }
    words
}

fn form(app: &App, fields: &Fields) -> Markup {
    let field = |name: &str| field(fields, name);
    let inputs = |all: &[(&str, &str, &str, &str)]| {
        html! {
            @for (name, label, example, of) in all {
                label data-for=(of) { span { (label) } input name=(name) value=(field(name)) placeholder=(example) autocomplete="off"; }
            }
        }
    };
    let kinds = Kind::ALL.iter().filter(|kind| **kind != Kind::Gate).map(|kind| kind.as_str());
    let kinds: Vec<_> = kinds.map(|kind| (kind, capital(&kind.replace('_', " ")))).collect();
    let limits = app.live.limits();
    let limits = limits.iter().filter(|(_, limit)| limit.kind() != Kind::Gate);
    let mut beside = vec![("", "none".to_owned())];
    beside.extend(limits.map(|(name, limit)| (name, format!("{}: {limit}", text::escaped(name)))));
    html! {
        form id="what-if" class="card try" method="post" action="/what-if" enctype="multipart/form-data" {
            input type="hidden" name="form" value=(app.access.form);
            fieldset {
                legend { "The limit" }
                (select(fields, "kind", "Kind", None, &kinds))
                (inputs(&OF_LIMIT))
                @if beside.len() > 1 { (select(fields, "beside", "Beside the limit of today", None, &beside)) }
            }
            fieldset {
                legend { "The traffic" }
                (select(fields, "traffic", "Kind", None, &TRAFFICS.map(|(name, label)| (name, label.to_owned()))))
                (inputs(&OF_TRAFFIC))
                (select(fields, "log_key", "Key", Some("log"), &LOG_FIELDS.map(|name| (name, name.to_owned()))))
                label data-for="log" { span { "Format of the log" } input name="log_format" value=(field("log_format")) placeholder="common or combined" autocomplete="off"; }
                label data-for="log" class="long" { span { "Lines of the log" } textarea name="log" rows="4" spellcheck="false" {} }
                label data-for="log" { span { "or a file" } input type="file" name="file"; }
            }
            button type="submit" class="primary" { "Simulate" }
        }
    }
}

fn select(fields: &Fields, name: &str, label: &str, of: Option<&str>, options: &[(&str, String)]) -> Markup {
    html! {
        label data-for=[of] { span { (label) } select name=(name) { @for (value, text) in options { option value=(value) selected[field(fields, name) == *value] { (text) } } } }
    }
}

fn notice(message: &str) -> Markup {
    html! { div class="notice warning" { p class="message" { (in_words(&text::message(message))) } } }
}

fn panel_of(panel: &Panel, tallest: f64) -> Markup {
    let sum = |of: fn(&Bar) -> f64| panel.bars.iter().map(of).sum::<f64>();
    let (offered, admitted) = (sum(Bar::offered), sum(Bar::passed));
    let totals = format!(
        "{} offered, {} admitted, {} denied",
        many(offered as u64, panel.counted().trim_end_matches('s')),
        grouped(admitted as u64),
        grouped((offered - admitted) as u64)
    );
    let bins = panel.bins;
    let length = text::format_micros(bins.end() - bins.from);
    html! {
        section class="card" aria-label=(text::escaped(&panel.name)) {
            h2 { (panel.title) }
            p class="facts" { span class="value" { (percent_of(admitted, offered)) " % admitted" } ": " (totals) }
            figure {
                (traffic(panel, tallest, &totals))
                figcaption class="axis" aria-hidden="true" { span { "0s" } span { "at most " (amount(tallest)) " in a bar of " (text::format_micros(bins.width)) } span { (length) } }
            }
            @if panel.has_balance() {
                figure {
                    (curve(&panel.balance_line(), panel.limit.capacity(), &format!("the balance, up to the capacity of {}", amount(panel.limit.capacity()))))
                    figcaption class="axis" aria-hidden="true" { span { "0s" } span { "balance, capacity " (amount(panel.limit.capacity())) } span { (length) } }
                }
            }
        }
    }
}

type Tokens = fn(&Bar) -> f64;

/// The bars of a simulated limit: what was admitted, reserved and denied. `most`: the height of the picture, in tokens.
fn traffic(panel: &Panel, most: f64, title: &str) -> Markup {
    const HEIGHT: f64 = 120.0;
    let bars = &panel.bars;
    let height = |tokens: f64| if most > 0.0 { tokens / most * (HEIGHT - 2.0) } else { 0.0 };
    let parts: [(&str, Tokens, Tokens); 3] = [
        ("admitted", |_| 0.0, |bar| bar.admitted),
        ("reserved", |bar| bar.admitted, |bar| bar.reserved),
        ("denied", Bar::passed, |bar| bar.denied + bar.denied_elsewhere),
    ];
    // One path for each colour.
    let path = |below: Tokens, size: Tokens| {
        let with_tokens = bars.iter().enumerate().filter(|(_, bar)| size(bar) > 0.0);
        let bar = |(place, bar): (usize, &Bar)| {
            let (top, tall) = (HEIGHT - height(below(bar) + size(bar)), height(size(bar)));
            format!("M {} {} h 0.86 v {} h -0.86 z", n(place as f64 + 0.07), n(top), n(tall))
        };
        with_tokens.map(bar).collect::<Vec<_>>().join(" ")
    };
    let shapes = html! { @for (class, below, size) in parts { path class=(class) d=(path(below, size)) {} } };
    svg("traffic", (bars.len().max(1) as f64, HEIGHT), title, shapes)
}

/// Parses options of `simulate`, with its defaults and its messages.
fn parse(options: &[String]) -> Result<SimulateArgs> {
    let command = Command::new("simulate").no_binary_name(true).disable_help_flag(true);
    let parsed = SimulateArgs::augment_args(command).try_get_matches_from(options);
    parsed.and_then(|parsed| SimulateArgs::from_arg_matches(&parsed)).map_err(|error| {
        // The first paragraph, without the placeholders of values.
        let text = error.render().to_string();
        let reason = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        let reason = reason.strip_prefix("error: ").unwrap_or(&reason);
        let parts = reason.split(" <").map(|part| part.split_once('>').map_or(part, |(_, rest)| rest));
        CliError::usage(parts.collect::<String>())
    })
}

/// The most calls of a simulation, so that it is drawn at once.
const MOST_CALLS: usize = 20_000;
/// A sandbox is closed after this time, because an open transaction keeps the server from removing dead rows.
const OPEN: Duration = Duration::from_secs(20);

/// A sandbox at the beginning: the kept one, or else a new one.
async fn opened(app: &App, kept: Option<Sandbox>) -> Result<Sandbox> {
    // The server may have ended the session since.
    if let Some(mut sandbox) = kept
        && sandbox.rewind().await.is_ok()
    {
        return Ok(sandbox);
    }
    let opened = Arc::clone(&app.sandbox);
    tokio::spawn(async move {
        tokio::time::sleep(OPEN).await;
        close(&opened).await;
    });
    Sandbox::open(&app.running).await
}

pub(super) async fn close(sandbox: &Mutex<Option<Sandbox>>) {
    if let Some(sandbox) = sandbox.lock().await.take() {
        let _ = sandbox.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_fields_of_the_form() {
        for (message, words) in [
            ("--rate is empty: type a value, such as 60", "“Tokens” is empty: type a value, such as 60"),
            (
                "invalid value 'x' for '--capacity': not a finite number",
                "invalid value 'x' for '“Capacity”': not a finite number",
            ),
            (
                "a\n2 of 3 lines cannot be read (66.7 %), and --max-bad-lines allows 1%",
                "a\n2 of 3 lines cannot be read (66.7 %), and this page allows 1%",
            ),
            (
                "the lines after these were not read: to read all of them, give --max-bad-lines",
                "the lines after these were not read",
            ),
            ("; --log-format docker:vhost reads this line", "; “Format of the log” docker:vhost reads this line"),
            ("--key user: the log format has no such field", "“Key” user: the log format has no such field"),
            ("--key '$remote_addr' takes it as it is", "pg-limiter replay --key '$remote_addr' takes it as it is"),
            ("or use a larger --sort-window", "or use a larger pg-limiter replay --sort-window"),
            ("decompress it with bzip2 -dc FILE | pg-limiter .. -", "decompress it with bzip2 -dc FILE"),
            ("\"GET /a--b\" is no address", "\"GET /a--b\" is no address"),
        ] {
            assert_eq!(in_words(message), words);
        }
    }
}
