//! The page of the database's health.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::extract;
use axum::response::Response;
use maud::{Markup, html};

use crate::doctor::{State, bytes};
use crate::live::{Health, TableSize};
use crate::ui::app::App;
use crate::ui::chart::gauge;
use crate::ui::format::{count, time};
use crate::ui::page::{Here, Page, respond};

pub(super) async fn page(extract::State(app): extract::State<Arc<App>>) -> Response {
    let page = app.health().await.map(|health| Page { title: "Health".to_owned(), body: body(&health), is_live: true });
    respond(&app, Here::Health, page.map_err(Into::into))
}

fn body(health: &Health) -> Markup {
    let number = |state| health.findings.iter().filter(|(_, finding)| finding.state == state).count();
    let states = [State::Problem, State::Warning, State::Note, State::Ok];
    let counts = states.map(|state| (state.as_str(), number(state)));
    let (used, most) = health.connections;
    // The worst first.
    let mut findings: Vec<_> = health.findings.iter().collect();
    findings.sort_by_key(|(_, finding)| Reverse(finding.state));
    html! {
        h1 { "Health" }
        p class="lead" { "What " code { "pg-limiter doctor" } " finds, at most 15 seconds old." }
        dl class="figures row" {
            @for (name, count) in counts {
                div { dt { (name) @if count != 1 && name != "ok" { "s" } } dd class=[(count > 0).then_some(name)] { (count) } }
            }
            div {
                dt { "connections" }
                dd { (count(used)) " of " (count(most)) }
                (gauge(used as f64 / most.max(1) as f64, &format!("{used} of {most} connections are in use")))
            }
        }
        section class="card" aria-label="Tables" {
            table class="stack" {
                caption { "Tables" }
                thead {
                    tr {
                        th scope="col" { "Table" } th scope="col" class="number" { "Rows" } th scope="col" class="number" { "Dead rows" }
                        th scope="col" class="number" { "Size" } th scope="col" class="number" { "Indexes" }
                        th scope="col" class="number" { "In place" } th scope="col" class="number" { "Vacuumed" }
                    }
                }
                tbody { @for table in &health.tables { (row(table, health.at)) } }
            }
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
    }
}

fn row(table: &TableSize, now: i64) -> Markup {
    let in_place =
        (table.updates > 0).then(|| format!("{:.0} %", table.updates_in_place as f64 * 100.0 / table.updates as f64));
    html! {
        tr {
            th scope="row" class="code" { (table.table) }
            td class="number" data-label="Rows" { (count(table.live_rows)) }
            td class="number" data-label="Dead rows" { (count(table.dead_rows)) }
            td class="number" data-label="Size" { (bytes(table.bytes)) }
            td class="number" data-label="Indexes" { (bytes(table.index_bytes)) }
            td class="number" data-label="In place" { (in_place.as_deref().unwrap_or("–")) }
            td class="number" data-label="Vacuumed" { @match table.vacuumed_at { Some(at) => (time(at, now)), None => "–" } }
        }
    }
}
