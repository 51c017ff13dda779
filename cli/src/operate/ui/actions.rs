//! The changes that visitors may make, with `--allow-changes`, and their forms.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::response::Redirect;
use maud::{Markup, html};
use serde_json::Value;

use crate::operate::queue::{Became, cancel, job, no_such_job, requeue};
use crate::operate::ui::format::{job_url, key_url, queue_url};
use crate::operate::ui::{App, JOB_NUMBER, PageError, Shared, Wanted, number, unexpected};
use crate::{CliError, Result};
use pg_limiter::queue::{JobInfo, Queue};
use pg_limiter::{Item, Limit, Limiter};

/// A form that changes what its hidden fields name. Their values are strings of JSON: browsers would change line breaks.
pub(super) fn form(app: &App, action: &str, fields: &[(&str, &str)], content: Markup) -> Markup {
    html! {
        form method="post" action=(action) {
            input type="hidden" name="form" value=(app.access.form);
            @for (name, value) in fields { input type="hidden" name=(name) value=(Value::from(*value)); }
            (content)
        }
    }
}

/// A form behind the name of its change. Opening it is the confirmation.
pub(super) fn act(app: &App, [name, button, action]: [&str; 3], fields: &[(&str, &str)], content: Markup) -> Markup {
    let content = html! { (content) button class="danger" type="submit" { (button) } };
    html! {
        details class="act" {
            summary { (name) }
            (form(app, action, fields, content))
        }
    }
}

/// The fields of such a form.
pub(super) struct Fields(Wanted);

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = FormRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, FormRejection> {
        let plain = |value: String| serde_json::from_str(&value).unwrap_or(value);
        let Form(of) = Form::<Wanted>::from_request(request, state).await?;
        let (limit, key, queue, group) = (plain(of.limit), of.key.map(plain), of.queue.map(plain), of.group.map(plain));
        Ok(Self(Wanted { limit, key, queue, group, id: plain(of.id), ..of }))
    }
}

fn limiter<'a>(app: &'a App, form: &str) -> Result<&'a Limiter, PageError> {
    app.own_form(form)?;
    let refusal = "Nothing can be changed: start pg-limiter ui with --allow-changes.";
    let limiter = app.changes.as_ref().ok_or_else(|| PageError(StatusCode::FORBIDDEN, refusal.to_owned()))?;
    limiter.replace_limits(app.live.limits());
    Ok(limiter)
}

const SHOWN_FOR: Duration = Duration::from_secs(60);

/// The last change of each page by the URL of the page, if it was just made: when, what a link calls it, and what the page says. A
/// link cannot show a change that was not made, or that another one has followed.
#[derive(Default)]
pub(super) struct Done(Mutex<HashMap<String, (Instant, &'static str, &'static str)>>);

impl Done {
    /// Records a change of what this page shows, and leads back to it.
    pub(super) fn add(&self, url: &str, change: &'static str, says: &'static str) -> Redirect {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.retain(|_, (at, ..)| at.elapsed() < SHOWN_FOR);
        changes.insert(url.to_owned(), (Instant::now(), change, says));
        Redirect::to(&format!("{url}&done={change}"))
    }

    /// The change that a link to this page names, if it was made.
    pub(super) fn notice(&self, url: &str, change: &str) -> Markup {
        let changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let made = changes.get(url).filter(|(at, made, _)| at.elapsed() < SHOWN_FOR && *made == change);
        html! { @if let Some((.., says)) = made { div class="notice good" role="status" { p class="message" { (says) } } } }
    }
}

/// Leads back to the page of what was changed.
type Changed = Result<Redirect, PageError>;

pub(super) async fn reset(State(app): Shared, Fields(of): Fields) -> Changed {
    let (limiter, key) = (limiter(&app, &of.form)?, app.named(of.key.as_deref().unwrap_or_default())?);
    // Removing a row does not depend on the limit.
    let any = Limit::token_bucket(1, Duration::from_secs(1)).build().map_err(CliError::usage)?;
    let is_full = !app.live.has_rows(&of.limit, &key).await?;
    CliError::refuse_if(is_full, "the bucket has no row to remove: it is full")?;
    limiter.reset(Item::new((&*of.limit, any), &*key)).await?;
    Ok(app.done.add(&key_url(&app, &key), "reset", "The bucket has no row any more: it is full."))
}

pub(super) async fn credit(State(app): Shared, Fields(of): Fields) -> Changed {
    let (limiter, key) = (limiter(&app, &of.form)?, app.named(of.key.as_deref().unwrap_or_default())?);
    let (given, expected) = (of.count, "a number of tokens above 0, such as 1");
    let count: f64 = number(StatusCode::UNPROCESSABLE_ENTITY, "count", &given, expected)?;
    CliError::refuse_if(!count.is_finite() || count <= 0.0, unexpected("count", &given, expected))?;
    limiter.credit(Item::new(&*of.limit, &*key).count(count)).await?;
    Ok(app.done.add(&key_url(&app, &key), "credited", "The tokens were given back."))
}

pub(super) async fn unblock(State(app): Shared, Fields(of): Fields) -> Changed {
    let (limiter, key) = (limiter(&app, &of.form)?, app.named(of.key.as_deref().unwrap_or_default())?);
    let gate = Item::new((&*of.limit, Limit::gate()), &*key);
    let is_open = limiter.is_blocked(gate.clone()).await?.is_none();
    CliError::refuse_if(is_open, "the gate does not block this key any more")?;
    limiter.unblock(gate).await?;
    Ok(app.done.add(&key_url(&app, &key), "unblocked", "The key is unblocked."))
}

/// `done`: what `act` does, in the link to the job and in words.
async fn change(
    app: &App,
    of: Wanted,
    done: [&'static str; 2],
    act: impl AsyncFnOnce(&Limiter, JobInfo) -> Result<Became>,
) -> Changed {
    let limiter = limiter(app, &of.form)?;
    let id = number(StatusCode::UNPROCESSABLE_ENTITY, "id", &of.id, JOB_NUMBER)?;
    let job = job(limiter, id).await?.ok_or_else(|| PageError(StatusCode::NOT_FOUND, no_such_job(id)))?;
    match act(limiter, job).await? {
        Became::Done(..) => Ok(app.done.add(&job_url(id), done[0], done[1])),
        Became::Refused(_, why) => Err(CliError::Usage(why).into()),
    }
}

pub(super) async fn requeue_job(State(app): Shared, Fields(of): Fields) -> Changed {
    change(&app, of, ["requeued", "The job is requeued."], requeue).await
}

pub(super) async fn cancel_job(State(app): Shared, Fields(of): Fields) -> Changed {
    change(&app, of, ["cancelled", "The job is cancelled, and its tokens are returned."], cancel).await
}

impl Wanted {
    fn named(&self, app: &App) -> Result<(Queue, Option<String>), PageError> {
        let limiter = limiter(app, &self.form)?;
        let group = self.group.as_deref().map(|group| app.named(group)).transpose()?;
        let queue = Queue::new(limiter, self.queue.as_deref().unwrap_or_default()).map_err(CliError::usage)?;
        Ok((queue, group))
    }

    /// `done`: the change in the link to the queue, and in words.
    fn changed(&self, app: &App, is_changed: bool, done: [&'static str; 2], refusal: &str) -> Changed {
        CliError::refuse_if(!is_changed, refusal)?;
        Ok(app.done.add(&queue_url(self.queue.as_deref().unwrap_or_default()), done[0], done[1]))
    }
}

pub(super) async fn pause(State(app): Shared, Fields(of): Fields) -> Changed {
    let (queue, group) = of.named(&app)?;
    let is_changed = match group {
        Some(group) => queue.pause_group(group).await?,
        None => queue.pause().await?,
    };
    of.changed(&app, is_changed, ["paused", "No job starts until it is resumed."], "it is paused already")
}

pub(super) async fn resume(State(app): Shared, Fields(of): Fields) -> Changed {
    let (queue, group) = of.named(&app)?;
    let (is_changed, text) = match group {
        Some(group) => (queue.resume_group(group).await?, "The group starts its jobs again, as its limits allow."),
        None => (queue.resume().await?, "The queue starts its jobs again, as their limits allow."),
    };
    of.changed(&app, is_changed, ["resumed", text], "it is not paused, and does not wait")
}

pub(super) async fn drain(State(app): Shared, Fields(of): Fields) -> Changed {
    of.named(&app)?.0.drain().await?;
    of.changed(&app, true, ["draining", "The queue takes no new jobs until it is resumed."], "")
}

pub(super) async fn requeue_dead(State(app): Shared, Fields(of): Fields) -> Changed {
    let (queue, group) = of.named(&app)?;
    let requeued = match group {
        Some(group) => queue.requeue_dead_group(group).await?,
        None => queue.requeue_dead().await?,
    };
    let refusal = "it has no dead jobs that can be requeued";
    of.changed(&app, requeued > 0, ["requeued", "Its dead jobs are requeued."], refusal)
}
