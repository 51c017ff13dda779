use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::Uri;
use axum::middleware::from_fn_with_state;
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
        .layer(from_fn_with_state(Arc::clone(&app), access::guard))
        .with_state(app)
}

async fn no_such_page(State(app): State<Arc<App>>, uri: Uri) -> Response {
    // Only the path: a query may have a key in it.
    let message = format!("there is no page {}", crate::text::shown(uri.path(), 80));
    respond(&app, Here::Limits, Err(PageError::NotFound(message)))
}
