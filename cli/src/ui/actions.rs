//! The changes that visitors may make, with `--allow-changes`.

use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::error::CliError;
use crate::queue::{Became, Queues, cancel, no_such_job, requeue};
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

#[derive(Clone, Copy)]
enum KeyChange {
    Reset,
    Credit,
    Unblock,
}

impl KeyChange {
    /// For the message on the page of the key.
    const fn done(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Credit => "credited",
            Self::Unblock => "unblocked",
        }
    }

    async fn apply(self, limiter: &Limiter, of: &OfKey, key: String) -> Result<(), PageError> {
        match self {
            Self::Reset => {
                // Removing a row does not depend on the limit.
                let any = Limit::token_bucket(1, Duration::from_secs(1)).build().map_err(CliError::usage)?;
                let item = match limiter.limits().get(&of.limit) {
                    Some(_) => Item::new(&*of.limit, key),
                    None => Item::new((&*of.limit, any), key),
                };
                limiter.reset(item).await?;
            }
            Self::Credit => {
                let count = of.count.filter(|count| count.is_finite() && *count > 0.0);
                let count =
                    count.ok_or_else(|| PageError::Invalid("give back a number of tokens above 0".to_owned()))?;
                limiter.credit(Item::new(&*of.limit, key).count(count)).await?;
            }
            Self::Unblock => {
                let gate = Item::new((&*of.limit, Limit::gate()), key);
                if limiter.is_blocked(gate.clone()).await?.is_none() {
                    return Err(PageError::Invalid("the gate does not block this key any more".to_owned()));
                }
                limiter.unblock(gate).await?;
            }
        }
        Ok(())
    }
}

/// Checks the form, changes a key, and leads back to its page.
async fn change_key(app: &App, of: OfKey, change: KeyChange) -> Response {
    let changed = async {
        own_form(app, &of.form)?;
        let key = app.keys.named(&of.key).ok_or_else(|| no_such_key(app, &of.key))?;
        change.apply(limiter(app)?, &of, key.clone()).await?;
        Ok(key)
    };
    match changed.await {
        Ok(key) => {
            app.done.add(&key, change.done());
            see(format!("{}&done={}", key_url(app, &key), change.done()))
        }
        Err(error) => respond(app, Here::Key, Err(error)),
    }
}

pub(super) async fn reset(State(app): State<Arc<App>>, Form(of): Form<OfKey>) -> Response {
    change_key(&app, of, KeyChange::Reset).await
}

pub(super) async fn credit(State(app): State<Arc<App>>, Form(of): Form<OfKey>) -> Response {
    change_key(&app, of, KeyChange::Credit).await
}

pub(super) async fn unblock(State(app): State<Arc<App>>, Form(of): Form<OfKey>) -> Response {
    change_key(&app, of, KeyChange::Unblock).await
}

/// Checks the form, and returns the queues and the job.
async fn job_of(app: &App, of: &OfJob) -> Result<(Queues, JobInfo), PageError> {
    own_form(app, &of.form)?;
    let queues = Queues::new(limiter(app)?.clone());
    let job = queues.job(of.id).await?.ok_or_else(|| PageError::NotFound(no_such_job(of.id)))?;
    Ok((queues, job))
}

fn changed_job(app: &App, id: i64, done: &'static str, became: Result<Became, PageError>) -> Response {
    match became {
        Ok(Became::Done(..)) => {
            app.done.add(&id, done);
            see(format!("/job?id={id}&done={done}"))
        }
        Ok(Became::Refused { why, .. }) => respond(app, Here::Queue, Err(PageError::Invalid(why))),
        Err(error) => respond(app, Here::Queue, Err(error)),
    }
}

pub(super) async fn requeue_job(State(app): State<Arc<App>>, Form(of): Form<OfJob>) -> Response {
    let became = async {
        let (queues, job) = job_of(&app, &of).await?;
        Ok(requeue(&queues, job).await?)
    };
    changed_job(&app, of.id, "requeued", became.await)
}

pub(super) async fn cancel_job(State(app): State<Arc<App>>, Form(of): Form<OfJob>) -> Response {
    let became = async {
        let (queues, job) = job_of(&app, &of).await?;
        Ok(cancel(&queues, job).await?)
    };
    changed_job(&app, of.id, "cancelled", became.await)
}
