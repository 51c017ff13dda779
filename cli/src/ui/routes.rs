use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Redirect, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Form, Router};

use crate::ui::actions::{JobChange, KeyChange, change_job, change_key};
use crate::ui::app::App;
use crate::ui::page::{Here, PageError, respond};
use crate::ui::{access, health_page, key_page, limits_page, queue_page, what_if_page};

/// An access log may be so large.
const LARGEST_BODY: usize = 32 << 20;

pub(super) fn routes(app: Arc<App>) -> Router {
    let mut routes = Router::new()
        .route("/", get(|| async { Redirect::to("/limits") }))
        .route("/style.css", file("text/css; charset=utf-8", include_str!("style.css")))
        .route("/page.js", file("text/javascript; charset=utf-8", include_str!("page.js")))
        .route("/icon.svg", file("image/svg+xml", include_str!("icon.svg")))
        .route("/limits", get(limits_page::limits))
        .route("/limit", get(limits_page::limit))
        .route("/key", get(key_page::page))
        .route("/key/find", post(key_page::find))
        .route("/queue", get(queue_page::queues))
        .route("/job", get(queue_page::job))
        .route("/what-if", get(what_if_page::empty).post(what_if_page::simulated))
        .route("/health", get(health_page::page));
    // Without `--allow-changes` there is no route that changes anything.
    if app.changes.is_some() {
        let key = |change| {
            post(move |State(app): State<Arc<App>>, Form(of)| async move { change_key(&app, of, change).await })
        };
        let job = |change| {
            post(move |State(app): State<Arc<App>>, Form(of)| async move { change_job(&app, of, change).await })
        };
        routes = routes
            .route("/key/reset", key(KeyChange::Reset))
            .route("/key/credit", key(KeyChange::Credit))
            .route("/key/unblock", key(KeyChange::Unblock))
            .route("/job/requeue", job(JobChange::Requeue))
            .route("/job/cancel", job(JobChange::Cancel));
    }
    routes
        .fallback(no_such_page)
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(from_fn_with_state(Arc::clone(&app), as_page))
        .layer(from_fn_with_state(Arc::clone(&app), access::guard))
        .with_state(app)
}

/// Answers of the framework to requests that no page makes, as pages.
async fn as_page(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let is_page =
        response.headers().get(header::CONTENT_TYPE).is_some_and(|of| of.as_bytes().starts_with(b"text/html"));
    if !status.is_client_error() || is_page {
        return response;
    }
    let text = match to_bytes(response.into_body(), 1000).await {
        Ok(bytes) if !bytes.is_empty() => crate::text::shown(&String::from_utf8_lossy(&bytes), 200),
        _ if status == StatusCode::METHOD_NOT_ALLOWED => "use the forms of the pages".to_owned(),
        _ => status.to_string(),
    };
    respond(&app, Here::Limits, Err(PageError::Malformed(status, text)))
}

async fn no_such_page(State(app): State<Arc<App>>, uri: Uri) -> Response {
    // Only the path: a query may have a key in it.
    let message = format!("there is no page {}", crate::text::shown(uri.path(), 80));
    respond(&app, Here::Limits, Err(PageError::NotFound(message)))
}

/// A file that pages use. It is part of the program.
fn file(kind: &'static str, text: &'static str) -> MethodRouter<Arc<App>> {
    get(move || async move { ([(header::CONTENT_TYPE, kind)], text) })
}
