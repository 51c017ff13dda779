//! The frame of all pages.

use maud::{DOCTYPE, Markup, html};

use crate::ui::app::{App, INTERVAL};
use crate::ui::page::Page;

/// The section of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Here {
    Limits,
    Key,
    Queue,
    WhatIf,
    Health,
}

const SECTIONS: [(Here, &str, &str); 5] = [
    (Here::Limits, "/limits", "Limits"),
    (Here::Key, "/key", "Key"),
    (Here::Queue, "/queue", "Queue"),
    (Here::WhatIf, "/what-if", "What if"),
    (Here::Health, "/health", "Health"),
];

pub(super) fn layout(app: &App, here: Here, page: &Page) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (page.title) " · pg-limiter" }
                link rel="icon" href="/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/style.css";
                script src="/page.js" defer {}
            }
            body {
                a class="skip" href="#content" { "Skip to the content" }
                header class="top" {
                    div class="bar" {
                        a class="brand" href="/limits" { img src="/icon.svg" alt="" width="22" height="22"; "pg-limiter" }
                        nav aria-label="Sections" {
                            @for (section, link, name) in SECTIONS {
                                a href=(link) aria-current=[(section == here).then_some("page")] { (name) }
                            }
                        }
                    }
                }
                div class="context" {
                    p class="place" { (app.place) }
                    p class="badges" {
                        @if app.changes.is_some() { span class="badge warn" { "changes allowed" } }
                        @else { span class="badge" { "read only" } }
                        @if app.keys.are_hidden() { " " span class="badge" { "keys hidden" } }
                    }
                    // The script adds the button, and reports here when the page was renewed.
                    @if page.is_live { p class="renewal" id="renewal" {} }
                }
                main id="content" tabindex="-1" data-refresh=[page.is_live.then_some(INTERVAL.as_millis())] { (page.body) }
                footer { p { "pg-limiter " (env!("CARGO_PKG_VERSION")) ". Times are in UTC, by the database's clock." } }
            }
        }
    }
}
