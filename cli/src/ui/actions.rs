//! What visitors may change, with `--allow-changes`.

use std::sync::Arc;

use axum::Form;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::queue::{Became, Queues, cancel, no_such_job, requeue};
use crate::reset::reset_key;
use crate::ui::app::App;
use crate::ui::format::key_url;
use crate::ui::layout::Here;
use crate::ui::limits_page::no_such_key;
use crate::ui::page::{PageError, respond};
use pg_limiter::queue::JobInfo;
use pg_limiter::{Item, Limit, Limiter};

/// Calls that write, on connections of their own.
#[derive(Clone, Debug)]
pub(super) struct Changes(pub(super) Limiter);

#[derive(Deserialize)]
pub(super) struct OfKey {
    form: String,
    limit: String,
    key: String,
    count: Option<f64>,
}

#[derive(Deserialize)]
pub(super) struct OfJob {
    form: String,
    id: i64,
}

/// Refuses a form that this server has not made.
pub(super) fn own_form(app: &App, given: &str) -> Result<(), PageError> {
    let refusal = PageError::Forbidden("This form is not of this run of pg-limiter. Load the page again.");
    if app.access.is_own_form(given) { Ok(()) } else { Err(refusal) }
}

fn limiter(app: &App) -> Result<&Limiter, PageError> {
    let refusal = PageError::Forbidden("Nothing can be changed: start pg-limiter ui with --allow-changes.");
    app.changes.as_ref().map(|Changes(limiter)| limiter).ok_or(refusal)
}

fn see(url: String) -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, url)]).into_response()
}

/// Checks the form, runs the change of a key, and leads back to its page.
async fn change_key(
    app: &App,
    of: OfKey,
    done: &str,
    change: impl AsyncFnOnce(&Limiter, &OfKey, String) -> Result<(), PageError>,
) -> Response {
    let changed = async {
        own_form(app, &of.form)?;
        let key = app.keys.named(&of.key).ok_or_else(|| no_such_key(app, &of.key))?;
        change(limiter(app)?, &of, key.clone()).await?;
        app.live.sample().await;
        Ok(key)
    };
    match changed.await {
        Ok(key) => see(format!("{}&done={done}", key_url(app, &key))),
        Err(error) => respond(app, Here::Key, Err(error)),
    }
}

pub(super) async fn reset(State(app): State<Arc<App>>, Form(of): Form<OfKey>) -> Response {
    let change = async |limiter: &Limiter, of: &OfKey, key: String| {
        Ok(reset_key(limiter, limiter.schema(), &of.limit, &key).await.map(|_rows| ())?)
    };
    change_key(&app, of, "reset", change).await
}

pub(super) async fn credit(State(app): State<Arc<App>>, Form(of): Form<OfKey>) -> Response {
    let change = async |limiter: &Limiter, of: &OfKey, key: String| {
        let count = of.count.filter(|count| count.is_finite() && *count > 0.0);
        let count = count.ok_or_else(|| PageError::Invalid("give back a number of tokens above 0".to_owned()))?;
        Ok(limiter.credit(Item::new(&*of.limit, key).count(count)).await.map(|_balances| ())?)
    };
    change_key(&app, of, "credited", change).await
}

pub(super) async fn unblock(State(app): State<Arc<App>>, Form(of): Form<OfKey>) -> Response {
    let change = async |limiter: &Limiter, of: &OfKey, key: String| {
        Ok(limiter.unblock(Item::new((&*of.limit, Limit::gate()), key)).await?)
    };
    change_key(&app, of, "unblocked", change).await
}

async fn change_job(
    app: &App,
    OfJob { form, id }: OfJob,
    done: &str,
    change: impl AsyncFnOnce(&Queues, JobInfo) -> Result<Became, crate::error::CliError>,
) -> Response {
    let changed = async {
        own_form(app, &form)?;
        let queues = Queues::new(limiter(app)?.clone());
        let job = queues.job(id).await?.ok_or_else(|| PageError::NotFound(no_such_job(id)))?;
        match change(&queues, job).await? {
            Became::Done(..) => Ok(()),
            Became::Refused { why, .. } => Err(PageError::Invalid(why)),
        }
    };
    match changed.await {
        Ok(()) => see(format!("/job?id={id}&done={done}")),
        Err(error) => respond(app, Here::Queue, Err(error)),
    }
}

pub(super) async fn requeue_job(State(app): State<Arc<App>>, Form(of): Form<OfJob>) -> Response {
    change_job(&app, of, "requeued", async |queues: &Queues, job| requeue(queues, job).await).await
}

pub(super) async fn cancel_job(State(app): State<Arc<App>>, Form(of): Form<OfJob>) -> Response {
    change_job(&app, of, "cancelled", async |queues: &Queues, job| cancel(queues, job).await).await
}
