//! The changes that visitors may make, with `--allow-changes`, and their forms.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Form;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Redirect;
use maud::{Markup, html};
use serde_json::Value;

use crate::operate::queue::{Became, cancel, job, no_such_job, requeue, unknown};
use crate::operate::ui::format::{job_url, key_url, queue_url};
use crate::operate::ui::{App, JOB_NUMBER, PageError, Shared, Wanted, number, unexpected};
use crate::{CliError, Result};
use pg_limiter::queue::Queue;
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

const SHOWN_FOR: Duration = Duration::from_secs(60);

/// The last change of each page, by its URL: when, what a link calls it, and what the page says. No link shows what was not done.
#[derive(Default)]
pub(super) struct Done(Mutex<HashMap<String, (Instant, &'static str, &'static str)>>);

impl Done {
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

pub(super) const CHANGES: &str = "/key/reset /key/credit /key/unblock /job/requeue /job/cancel /group/pause /group/resume \
                                  /group/requeue /queue/pause /queue/resume /queue/drain /queue/requeue";

/// The page of what was changed, what a link calls the change, and what the page says.
type Changed = Result<(String, &'static str, &'static str), PageError>;

pub(super) async fn change(State(app): Shared, uri: Uri, Form(of): Form<Wanted>) -> Result<Redirect, PageError> {
    app.own_form(&of.form)?;
    let plain = |value: String| serde_json::from_str(&value).unwrap_or(value);
    let (limit, key, queue, group) = (plain(of.limit), of.key.map(plain), of.queue.map(plain), of.group.map(plain));
    let of = Wanted { limit, key, queue, group, id: plain(of.id), ..of };
    let refusal = "Nothing can be changed: start pg-limiter ui with --allow-changes.";
    let limiter = app.changes.as_ref().ok_or_else(|| PageError(StatusCode::FORBIDDEN, refusal.to_owned()))?;
    limiter.replace_limits(app.live.limits());
    let (page, change) = uri.path().trim_start_matches('/').split_once('/').unwrap_or_default();
    let (url, done, says) = match page {
        "key" => of_key(&app, limiter, &of, change).await?,
        "job" => of_job(limiter, &of, change).await?,
        _ => of_queue(&app, limiter, &of, change).await?,
    };
    Ok(app.done.add(&url, done, says))
}

async fn of_key(app: &App, limiter: &Limiter, of: &Wanted, change: &str) -> Changed {
    let key = app.named(of.key.as_deref().unwrap_or_default())?;
    let (done, says) = match change {
        "credit" => {
            let expected = "a number of tokens above 0, such as 1";
            let count: f64 = number(StatusCode::UNPROCESSABLE_ENTITY, "count", &of.count, expected)?;
            CliError::refuse_if(!count.is_finite() || count <= 0.0, unexpected("count", &of.count, expected))?;
            limiter.credit(Item::new(&*of.limit, &*key).count(count)).await.map_err(CliError::of_tokens)?;
            ("credited", "The tokens were given back.")
        }
        "unblock" => {
            let gate = Item::new((&*of.limit, Limit::gate()), &*key);
            let is_open = limiter.is_blocked(gate.clone()).await?.is_none();
            CliError::refuse_if(is_open, "the gate does not block this key any more")?;
            limiter.unblock(gate).await?;
            ("unblocked", "The key is unblocked.")
        }
        _ => {
            // Removing a row does not depend on the limit.
            let any = Limit::token_bucket(1, Duration::from_secs(1)).build().map_err(CliError::usage)?;
            let is_full = !app.live.has_rows(&of.limit, &key).await?;
            CliError::refuse_if(is_full, "the bucket has no row to remove: it is full")?;
            limiter.reset(Item::new((&*of.limit, any), &*key)).await?;
            ("reset", "The bucket has no row any more: it is full.")
        }
    };
    Ok((key_url(app, &key), done, says))
}

async fn of_job(limiter: &Limiter, of: &Wanted, change: &str) -> Changed {
    let id = number(StatusCode::UNPROCESSABLE_ENTITY, "id", &of.id, JOB_NUMBER)?;
    let job = job(limiter, id).await?.ok_or_else(|| PageError(StatusCode::NOT_FOUND, no_such_job(id)))?;
    let (became, done, says) = match change {
        "requeue" => (requeue(limiter, job).await?, "requeued", "The job is requeued."),
        _ => (cancel(limiter, job).await?, "cancelled", "The job is cancelled, and its tokens are returned."),
    };
    let Became::Refused(_, why) = became else { return Ok((job_url(id), done, says)) };
    Err(CliError::Usage(why).into())
}

async fn of_queue(app: &App, limiter: &Limiter, of: &Wanted, change: &str) -> Changed {
    let group = of.group.as_deref().map(|group| app.named(group)).transpose()?;
    let name = of.queue.as_deref().unwrap_or_default();
    let queue = Queue::new(limiter, name).map_err(CliError::usage)?;
    let not_held = "it is not paused, and does not wait";
    let (done, says, refusal) = match (change, &group) {
        ("pause", _) => ("paused", "No job starts until it is resumed.", "it is paused already"),
        ("drain", _) => ("draining", "The queue takes no new jobs until it is resumed.", ""),
        ("requeue", _) => ("requeued", "Its dead jobs are requeued.", "it has no dead jobs that can be requeued"),
        (_, Some(_)) => ("resumed", "The group starts its jobs again, as its limits allow.", not_held),
        (_, None) => ("resumed", "The queue starts its jobs again, as their limits allow.", not_held),
    };
    if change == "requeue" {
        let (limits, needed) = (limiter.limits(), app.live.limits_of_dead(name, group.as_deref()).await?);
        if let Some(limit) = needed.iter().find(|limit| limits.get(limit).is_none()) {
            return Err(CliError::usage(unknown("their", limit)).into());
        }
    }
    let is_changed = match (change, group) {
        ("pause", Some(group)) => queue.pause_group(group).await?,
        ("pause", None) => queue.pause().await?,
        ("drain", _) => queue.drain().await.map(|_| true)?,
        ("requeue", Some(group)) => queue.requeue_dead_group(group).await? > 0,
        ("requeue", None) => queue.requeue_dead().await? > 0,
        (_, Some(group)) => queue.resume_group(group).await?,
        (_, None) => queue.resume().await?,
    };
    CliError::refuse_if(!is_changed, refusal)?;
    Ok((queue_url(name), done, says))
}
