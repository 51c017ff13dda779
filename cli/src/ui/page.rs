//! Pages, and errors as pages.

use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use maud::{Markup, html};

use crate::error::CliError;
use crate::ui::app::App;
use crate::ui::layout::{Here, layout};

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
