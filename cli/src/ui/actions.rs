//! The changes that visitors may make, with `--allow-changes`.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::error::CliError;
use crate::queue::{Became, Queues, cancel, no_such_job, requeue};
use crate::ui::app::App;
use crate::ui::format::key_url;
use crate::ui::limits_page::no_such_key;
use crate::ui::page::{Here, PageError, respond};
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
pub(super) enum KeyChange {
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
pub(super) async fn change_key(app: &App, of: OfKey, change: KeyChange) -> Response {
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

#[derive(Clone, Copy)]
pub(super) enum JobChange {
    Requeue,
    Cancel,
}

/// Checks the form, changes a job, and leads back to its page.
pub(super) async fn change_job(app: &App, OfJob { form, id }: OfJob, change: JobChange) -> Response {
    let changed = async {
        own_form(app, &form)?;
        let queues = Queues::new(limiter(app)?.clone());
        let job = queues.job(id).await?.ok_or_else(|| PageError::NotFound(no_such_job(id)))?;
        let (became, done) = match change {
            JobChange::Requeue => (requeue(&queues, job).await?, "requeued"),
            JobChange::Cancel => (cancel(&queues, job).await?, "cancelled"),
        };
        match became {
            Became::Done(..) => Ok(done),
            Became::Refused { why, .. } => Err(PageError::Invalid(why)),
        }
    };
    match changed.await {
        Ok(done) => {
            app.done.add(&id, done);
            see(format!("/job?id={id}&done={done}"))
        }
        Err(error) => respond(app, Here::Queue, Err(error)),
    }
}

/// A change is shown for this time.
const SHOWN_FOR: Duration = Duration::from_secs(60);
const MOST: usize = 100;

/// The changes that were just made. A link cannot show one that was not.
#[derive(Debug, Default)]
pub(super) struct Done(Mutex<VecDeque<(Instant, String, &'static str)>>);

impl Done {
    /// Records a change of a key or job.
    pub(super) fn add(&self, of: &impl ToString, change: &'static str) {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.push_front((Instant::now(), of.to_string(), change));
        changes.truncate(MOST);
    }

    /// The change that a link names, if it was made.
    pub(super) fn recent(&self, of: &impl ToString, named: &str) -> Option<&'static str> {
        let (of, changes) = (of.to_string(), self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let is_named = |(at, changed, change): &&(Instant, String, &'static str)| {
            at.elapsed() < SHOWN_FOR && *changed == of && *change == named
        };
        changes.iter().find(is_named).map(|(.., change)| *change)
    }
}
