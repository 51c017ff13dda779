//! The page of the database's health.

use std::time::{Duration, Instant};

use axum::extract;
use maud::html;

use crate::operate::doctor::{State, Table, bytes};
use crate::operate::ui::format::{gauge, time_or_dash};
use crate::operate::ui::{Page, PageError, Shared, table};
use crate::text::{grouped, many, plural};

const KEPT_FOR: Duration = Duration::from_secs(15);

pub(super) async fn page(extract::State(app): Shared) -> Result<Page, PageError> {
    let mut kept = app.health.lock().await;
    let health = match kept.take().filter(|(_, at)| at.elapsed() < KEPT_FOR) {
        Some(kept) => kept,
        None => (app.live.health().await?, Instant::now()),
    };
    let (health, _) = kept.insert(health);
    let number = |state| health.findings.iter().filter(|(_, finding)| finding.state == state).count();
    let counts = [State::Problem, State::Warning, State::Note, State::Ok].map(|state| (state.as_str(), number(state)));
    let (used, most) = health.connections;
    // The worst first.
    let mut findings: Vec<_> = health.findings.iter().collect();
    findings.sort_by_key(|(_, finding)| std::cmp::Reverse(finding.state));
    let row = |table: &Table| {
        let in_place = table.in_place as f64 * 100.0 / table.updates as f64;
        vec![
            ("Table", "code", html! { (table.name) }),
            ("Rows", "number", html! { (grouped(table.live)) }),
            ("Dead rows", "number", html! { (grouped(table.dead)) }),
            ("Size", "number", html! { (bytes(table.bytes)) }),
            ("Indexes", "number", html! { (bytes(table.index_bytes)) }),
            ("In place", "number", html! { @if table.updates > 0 { (format!("{in_place:.0} %")) } @else { "–" } }),
            ("Vacuumed", "number", time_or_dash(table.vacuumed_at, health.at)),
        ]
    };
    let body = html! {
        h1 { "Health" }
        p class="lead" { "What " code { "pg-limiter doctor" } " finds, at most 15 seconds old." }
        dl class="figures row" {
            @for (name, count) in counts {
                div { dt { @if name == "ok" { (name) } @else { (plural(count as f64, name)) } } dd class=[(count > 0).then_some(name)] { (count) } }
            }
            div {
                dt { "connections" }
                dd { (grouped(used)) " of " (grouped(most)) }
                (gauge(used as f64 / most.max(1) as f64, &format!("{used} of {} in use", many(most, "connection"))))
            }
        }
        section class="card" aria-label="Tables" {
            (table(Some("stack"), html! { "Tables" }, health.tables.iter().map(row).collect(), None, "–"))
            p class="definition" { "Rows and dead rows are the server's estimates. “In place”: updates that wrote no index (HOT)." }
        }
        section class="card" aria-label="Findings" {
            h2 { "Findings" }
            ul class="findings" {
                @for (check, finding) in findings {
                    li {
                        span class={ "state " (finding.state.as_str()) } { (finding.state.as_str()) }
                        div {
                            p { strong { (check) } " " (finding.found) }
                            @for advice in &finding.advice { p class="advice" { (advice) } }
                        }
                    }
                }
            }
        }
        section class="card" aria-label="Prune" {
            h2 { "Prune" }
            p { "Rows of full buckets mean the same as no row. Run " code { "pg-limiter prune" } " from cron, or " code { "limiter.prune()" } ", every hour or more often. The finding “idle rows” says how many there are." }
        }
    };
    Ok(Page::live("Health", body))
}
