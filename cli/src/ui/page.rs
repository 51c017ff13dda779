//! Pages, and errors as pages.

use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use crate::error::CliError;
use crate::ui::app::{App, INTERVAL};

/// The content of a page.
pub(super) struct Page {
    pub(super) title: String,
    pub(super) body: Markup,
    /// Whether a script renews it.
    pub(super) is_live: bool,
}

#[derive(Debug)]
pub(super) enum PageError {
    NotFound(String),
    /// The visitor's input.
    Invalid(String),
    Forbidden(&'static str),
    /// A request that is not as the forms and links of these pages make it.
    Malformed(StatusCode, String),
    Failed(CliError),
}

impl From<CliError> for PageError {
    fn from(error: CliError) -> Self {
        match error {
            CliError::Usage(message) => Self::Invalid(message),
            error => Self::Failed(error),
        }
    }
}

impl From<pg_limiter::Error> for PageError {
    fn from(error: pg_limiter::Error) -> Self {
        CliError::from(error).into()
    }
}

pub(super) fn respond(app: &App, here: Here, result: Result<Page, PageError>) -> Response {
    let (status, page) = match result {
        Ok(page) => (StatusCode::OK, page),
        Err(error) => {
            let (status, heading, message) = match error {
                PageError::NotFound(message) => (StatusCode::NOT_FOUND, "Not found", message),
                PageError::Invalid(message) => (StatusCode::BAD_REQUEST, "This cannot be done", message),
                PageError::Malformed(status, message) => (status, "This cannot be done", message),
                PageError::Forbidden(message) => (StatusCode::FORBIDDEN, "Refused", message.to_owned()),
                PageError::Failed(error) => {
                    (StatusCode::SERVICE_UNAVAILABLE, "The database does not answer as it should", error.to_string())
                }
            };
            let is_live = status == StatusCode::SERVICE_UNAVAILABLE;
            let body = html! {
                h1 { (heading) }
                div class="notice problem" role="alert" {
                    p class="message" { (message) }
                    @if is_live { p { "This page is tried again every few seconds." } }
                }
            };
            (status, Page { title: heading.to_owned(), body, is_live })
        }
    };
    (status, Html(layout(app, here, &page).into_string())).into_response()
}

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
