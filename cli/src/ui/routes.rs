use std::sync::Arc;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Redirect, Response};
use axum::routing::{get, post};

use crate::ui::app::App;
use crate::ui::layout::Here;
use crate::ui::page::{PageError, respond};
use crate::ui::{access, actions, assets, health_page, key_page, limits_page, queue_page, what_if_page};

/// An access log may be so large.
const LARGEST_BODY: usize = 32 << 20;

pub(super) fn routes(app: Arc<App>) -> Router {
    let mut routes = Router::new()
        .route("/", get(|| async { Redirect::to("/limits") }))
        .route("/style.css", get(assets::style))
        .route("/page.js", get(assets::script))
        .route("/icon.svg", get(assets::icon))
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
        routes = routes
            .route("/key/reset", post(actions::reset))
            .route("/key/credit", post(actions::credit))
            .route("/key/unblock", post(actions::unblock))
            .route("/job/requeue", post(actions::requeue_job))
            .route("/job/cancel", post(actions::cancel_job));
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
