//! Pages, errors as pages, and the frame around both.

use std::str::FromStr;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;

use crate::CliError;
use crate::operate::ui::{App, INTERVAL, Shared};
use crate::text::shown;

/// The fields of links and forms. Each has those that its page or its change needs.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    /// Shows that this server made the form.
    pub(super) form: String,
    pub(super) limit: String,
    pub(super) name: String,
    pub(super) key: Option<String>,
    pub(super) count: String,
    pub(super) queue: Option<String>,
    /// Without it, a form means the whole queue.
    pub(super) group: Option<String>,
    pub(super) state: Option<String>,
    pub(super) after: Option<String>,
    pub(super) page: Option<String>,
    pub(super) id: String,
    /// A change that was just made.
    pub(super) done: String,
}

#[derive(Clone, Debug)]
pub(super) struct Page {
    pub(super) title: String,
    pub(super) body: Markup,
    /// Whether a script renews it.
    pub(super) is_live: bool,
}

impl Page {
    pub(super) fn live(title: impl Into<String>, body: Markup) -> Self {
        Self { title: title.into(), body, is_live: true }
    }
}

/// Without the frame, which [`frame`] adds.
impl IntoResponse for Page {
    fn into_response(self) -> Response {
        axum::Extension(self).into_response()
    }
}

/// A refusal or a failure, and the text that the page shows.
pub(super) struct PageError(pub(super) StatusCode, pub(super) String);

pub(super) fn unexpected(name: &str, value: &str, expected: &str) -> String {
    format!("{name} is \"{}\": give {expected}", shown(value, 80))
}

pub(super) fn number<T: FromStr>(refusal: StatusCode, name: &str, value: &str, expected: &str) -> Result<T, PageError> {
    value.trim().parse().map_err(|_| PageError(refusal, unexpected(name, value, expected)))
}

pub(super) const JOB_NUMBER: &str = "the number of a job, such as 1";

impl<E: Into<CliError>> From<E> for PageError {
    fn from(error: E) -> Self {
        match error.into() {
            // The visitor's input cannot be used.
            CliError::Usage(message) => Self(StatusCode::BAD_REQUEST, message),
            error => Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        }
    }
}

impl App {
    pub(super) fn named(&self, shown: &str) -> Result<String, PageError> {
        let unknown = "This hash is of another run, or was never shown. Search for the key again.";
        self.keys.named(shown).ok_or_else(|| PageError(StatusCode::NOT_FOUND, unknown.to_owned()))
    }

    pub(super) fn own_form(&self, given: &str) -> Result<(), PageError> {
        let refusal = "This form is not of this run of pg-limiter. Load the page again.";
        let is_own = self.access.equal(given, &self.access.form);
        if is_own { Ok(()) } else { Err(PageError(StatusCode::FORBIDDEN, refusal.to_owned())) }
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        let title = match status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Refused",
            StatusCode::SERVICE_UNAVAILABLE => "The database does not answer as it should",
            _ => "This cannot be done",
        };
        let body = html! {
            h1 { (title) }
            div class="notice problem" role="alert" { p class="message" { (message) } }
        };
        (status, Page { title: title.to_owned(), body, is_live: false }).into_response()
    }
}

/// Frames pages. Answers of the framework to requests that no page makes become pages, too.
pub(super) async fn frame(State(app): Shared, request: Request, next: Next) -> Response {
    // The pages of jobs and groups belong to the queues, and those of no section to the limits.
    let part = request.uri().path().split('/').nth(1).unwrap_or_default();
    let part = if matches!(part, "job" | "group") { "queue" } else { part };
    let here = SECTIONS.iter().find(|(link, _)| &link[1..] == part).map_or("/limits", |(link, _)| *link);
    let is_get = request.method() == Method::GET;
    let mut response = next.run(request).await;
    let status = response.status();
    // The script renews a page with GET, which shows nothing of a change that failed.
    let is_live = is_get && status == StatusCode::SERVICE_UNAVAILABLE;
    if is_live && let Some(page) = response.extensions_mut().get_mut::<Page>() {
        page.is_live = true;
        page.body = html! { (page.body) p { "This page is tried again every few seconds." } };
    }
    if !status.is_client_error() || response.extensions().get::<Page>().is_some() {
        return framed(&app, here, response);
    }
    let text = match axum::body::to_bytes(response.into_body(), 1000).await {
        Ok(bytes) if !bytes.is_empty() => {
            let why = String::from_utf8_lossy(&bytes).replace("Failed to deserialize form body", "the form is invalid");
            shown(&why.replace("Failed to deserialize query string", "the link is invalid"), 200)
        }
        _ if status == StatusCode::METHOD_NOT_ALLOWED => "use the forms of the pages".to_owned(),
        _ => status.to_string(),
    };
    framed(&app, "/limits", PageError(status, text))
}

pub(super) async fn no_such_page(State(app): Shared, uri: Uri) -> Response {
    // Only the path: a query may have a key in it.
    framed(&app, "/limits", PageError(StatusCode::NOT_FOUND, format!("there is no page {}", shown(uri.path(), 80))))
}

fn framed(app: &App, here: &str, response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    let Some(page) = response.extensions_mut().remove::<Page>() else { return response };
    (response.status(), Html(layout(app, here, &page).into_string())).into_response()
}

const SECTIONS: &[(&str, &str)] = &[
    ("/limits", "Limits"),
    ("/key", "Key"),
    ("/queue", "Queue"),
    #[cfg(feature = "study")]
    ("/what-if", "What if"),
    ("/health", "Health"),
];

fn layout(app: &App, here: &str, page: &Page) -> Markup {
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
                            @for (link, name) in SECTIONS {
                                a href=(link) aria-current=[(*link == here).then_some("page")] { (name) }
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

/// The rows of a table. Each cell has the heading of its column, a class, and the content; the first cell names the row.
type Rows<'a> = Vec<Vec<(&'a str, &'a str, Markup)>>;

/// `here`: the marked row. `empty`: the text in place of rows.
pub(super) fn table(class: Option<&str>, caption: Markup, rows: Rows<'_>, here: Option<usize>, empty: &str) -> Markup {
    html! {
        table class=[class] {
            caption { (caption) }
            @if let Some([(heading, ..), others @ ..]) = rows.first().map(Vec::as_slice) {
                thead {
                    tr {
                        th scope="col" { (heading) }
                        @for (heading, class, _) in others { th scope="col" class=[(!class.is_empty()).then_some(class)] { (heading) } }
                    }
                }
                tbody {
                    @for (place, row) in rows.iter().enumerate() {
                        tr class=[(here == Some(place)).then_some("here")] {
                            th scope="row" class=[(!row[0].1.is_empty()).then_some(row[0].1)] { (row[0].2) }
                            @for (heading, class, cell) in &row[1..] { td class=[(!class.is_empty()).then_some(class)] data-label=(heading) { (cell) } }
                        }
                    }
                }
            } @else { tbody { tr { td class="none" { (empty) } } } }
        }
    }
}
