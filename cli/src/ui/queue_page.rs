//! The pages of the queues, their jobs, and one job.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use crate::live::{GroupView, JobView, QueueView, ReservedView};
use crate::text;
use crate::ui::app::App;
use crate::ui::format::{amount, clock, encoded, key, key_link, span, time};
use crate::ui::page::{Here, Page, PageError, respond};
use pg_limiter::queue::JobState;

const PAGE: u32 = 50;
/// Later pages would read many index entries.
const PAGES: u32 = 200;
const WIDEST_ERROR: usize = 120;

#[derive(Deserialize)]
pub(super) struct Wanted {
    queue: Option<String>,
    state: Option<String>,
    /// The last group of the page before.
    after: Option<String>,
    #[serde(default)]
    page: u32,
}

#[derive(Deserialize)]
pub(super) struct WantedJob {
    id: i64,
    #[serde(default)]
    done: String,
}

pub(super) async fn queues(State(app): State<Arc<App>>, Query(wanted): Query<Wanted>) -> Response {
    respond(&app, Here::Queue, of_queues(&app, wanted).await)
}

async fn of_queues(app: &App, wanted: Wanted) -> Result<Page, PageError> {
    let queues = app.live.queues().await?;
    let queue = wanted.queue.or_else(|| queues.first().map(|queue| queue.queue.clone()));
    let state = wanted.state.as_deref().map(str::parse::<JobState>).transpose();
    let state = state.map_err(|error| PageError::Invalid(error.to_string()))?;
    let detail = match (&queue, state) {
        (Some(queue), Some(state)) => jobs(app, queue, state, wanted.page).await?,
        (Some(queue), None) => {
            let after = wanted.after.as_deref().map(|after| {
                app.keys.named(after).ok_or_else(|| PageError::NotFound("This hash is of another run.".to_owned()))
            });
            groups(app, queue, after.transpose()?.as_deref()).await?
        }
        (None, _) => html! {},
    };
    let body = html! {
        h1 { "Queue" }
        @if queues.is_empty() {
            div class="empty" {
                p { strong { "No queue has jobs." } }
                p { "A queue appears here with its first job." }
            }
        } @else { (list(&queues, queue.as_deref(), state)) }
        (detail)
    };
    let title = queue.map_or_else(|| "Queue".to_owned(), |queue| format!("Queue {queue}"));
    Ok(Page { title, body, is_live: true })
}

fn queue_url(queue: &str) -> String {
    format!("/queue?queue={}", encoded(queue))
}

fn jobs_url(queue: &str, state: &str, page: u32) -> String {
    let page = if page > 0 { format!("&page={page}") } else { String::new() };
    format!("{}&state={state}{page}", queue_url(queue))
}

fn list(queues: &[QueueView], here: Option<&str>, of_state: Option<JobState>) -> Markup {
    html! {
        section class="card" aria-label="Queues" {
            table class="stack" {
                caption { "Jobs by state" }
                thead {
                    tr { th scope="col" { "Queue" } @for state in JobState::ALL { th scope="col" class="number" { (state) } } }
                }
                tbody {
                    @for queue in queues {
                        @let is_here = here == Some(&queue.queue);
                        tr class=[is_here.then_some("here")] {
                            th scope="row" { a href=(queue_url(&queue.queue)) aria-current=[(is_here && of_state.is_none()).then_some("true")] { bdi { (queue.queue) } } }
                            @for (state, jobs) in &queue.jobs {
                                @let current = is_here && of_state.is_some_and(|of| of.as_str() == *state);
                                td class="number" data-label=(state) {
                                    @if jobs.number == 0 { span class="zero" { "0" } }
                                    @else { a class=[(*state == "dead").then_some("bad")] href=(jobs_url(&queue.queue, state, 0)) aria-current=[current.then_some("true")] { (jobs) span class="hide" { " " (state) " jobs of " (queue.queue) } } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

async fn groups(app: &App, queue: &str, after: Option<&str>) -> Result<Markup, PageError> {
    let now = app.live.now().await?;
    let groups = app.live.groups(queue, after).await?;
    let row = |group: &GroupView| {
        html! {
            tr {
                th scope="row" { (key_link(app, &group.group)) }
                td class="number" data-label="Scheduled" { (group.scheduled) }
                td class="number" data-label="In line" { (group.available) }
                td class="number" data-label="Next start" { @match group.next_start { Some(at) if at > now => (time(at, now)), Some(_) => "now", None => "–" } }
                td class="number" data-label="Lag" { @match group.lag { Some(lag) if lag > 0 => (span(std::time::Duration::from_micros(lag.unsigned_abs()))), _ => "–" } }
                td data-label="Waits for" { @match &group.waits_for { Some((limit, of)) => { "slots of " bdi { (limit) } " " (key(app, of)) }, None => "–" } }
            }
        }
    };
    Ok(html! {
        section class="card" aria-label="Groups" {
            table class="stack" {
                caption { "Groups of " bdi { (queue) } " in which jobs wait" }
                @if groups.is_empty() { tbody { tr { td class="none" { "No job waits." } } } }
                @else {
                    thead {
                        tr {
                            th scope="col" { "Group" } th scope="col" class="number" { "Scheduled" } th scope="col" class="number" { "In line" }
                            th scope="col" class="number" { "Next start" } th scope="col" class="number" { "Lag" } th scope="col" { "Waits for" }
                        }
                    }
                    tbody { @for group in &groups { (row(group)) } }
                }
            }
            @if let Some(last) = groups.last().filter(|_| groups.len() >= 200) {
                p class="pages" { a href={ (queue_url(queue)) "&after=" (encoded(&app.keys.shown(&last.group))) } { "Next groups" } }
            }
            p class="definition" { "Lag: how far the line is behind the times reserved for its jobs. In line: due, and not allowed to start yet." }
        }
    })
}

async fn jobs(app: &App, queue: &str, state: JobState, page: u32) -> Result<Markup, PageError> {
    let page = page.min(PAGES);
    let now = app.live.now().await?;
    let mut jobs = app.live.jobs(queue, state, page * PAGE, PAGE + 1).await?;
    let has_more = jobs.len() > PAGE as usize && page < PAGES;
    jobs.truncate(PAGE as usize);
    let (when, at): (&str, fn(&JobView) -> Option<i64>) = match state {
        JobState::Running => ("Started", |job| job.started_at),
        JobState::Done | JobState::Dead | JobState::Cancelled => ("Ended", |job| job.finished_at),
        _ => ("Runs", |job| Some(job.run_at)),
    };
    let row = |job: &JobView| {
        html! {
            tr {
                th scope="row" { a href={ "/job?id=" (job.id) } { "job " (job.id) } }
                td data-label="Group" { (key(app, &job.group)) }
                td class="number" data-label=(when) { @match at(job) { Some(at) => (time(at, now)), None => "–" } }
                td class="number" data-label="Failures" { (job.failures) " of " (job.max_attempts) }
                td data-label="Last error" class="error" { (text::shortened(&one_line(app, job.last_error.as_deref()), WIDEST_ERROR)) }
            }
        }
    };
    Ok(html! {
        section class="card" aria-label="Jobs" {
            table class="stack" {
                caption { (capital(state.as_str())) " jobs of " bdi { (queue) } }
                @if jobs.is_empty() { tbody { tr { td class="none" { "No job is " (state) "." } } } }
                @else {
                    thead {
                        tr {
                            th scope="col" { "Job" } th scope="col" { "Group" } th scope="col" class="number" { (when) }
                            th scope="col" class="number" { "Failures" } th scope="col" { "Last error" }
                        }
                    }
                    tbody { @for job in &jobs { (row(job)) } }
                }
            }
            @if page > 0 || has_more {
                nav class="pages" aria-label="Pages" {
                    @if page > 0 { a rel="prev" href=(jobs_url(queue, state.as_str(), page - 1)) { "Previous" } }
                    span { "Page " (page + 1) }
                    @if has_more { a rel="next" href=(jobs_url(queue, state.as_str(), page + 1)) { "Next" } }
                }
            }
        }
    })
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A text that may have keys in it.
fn one_line(app: &App, text: Option<&str>) -> String {
    match text {
        None => "–".to_owned(),
        Some(_) if app.keys.are_hidden() => "hidden".to_owned(),
        Some(text) => text::one_line(text),
    }
}

pub(super) async fn job(State(app): State<Arc<App>>, Query(wanted): Query<WantedJob>) -> Response {
    respond(&app, Here::Queue, of_job(&app, wanted).await)
}

async fn of_job(app: &App, WantedJob { id, done }: WantedJob) -> Result<Page, PageError> {
    let now = app.live.now().await?;
    let Some(job) = app.live.job(id).await? else {
        return Err(PageError::NotFound(format!("there is no job {id}; it may have been pruned")));
    };
    let shown = |text: &Option<String>| one_line(app, text.as_deref());
    let body = html! {
        p class="crumbs" { a href="/queue" { "Queue" } " / " a href=(queue_url(&job.queue)) { bdi { (job.queue) } } " / " a href=(jobs_url(&job.queue, &job.state, 0)) { (job.state) } }
        h1 { "Job " (job.id) " " span class={ "state " (state_class(&job.state)) } { (job.state) } }
        @match app.done.recent(&id, &done) {
            Some("requeued") => div class="notice good" role="status" { p class="message" { "The job is requeued." } },
            Some("cancelled") => div class="notice good" role="status" { p class="message" { "The job is cancelled, and its tokens are returned." } },
            _ => {}
        }
        div class="cards" {
            section class="card" aria-label="History" {
                h2 { "History" }
                ol class="history" { @for (what, at) in history(&job, now) { li class=[(at > now).then_some("later")] { span { (what) } " " (time(at, now)) span class="exact" { (clock(at)) } } } }
            }
            section class="card" aria-label="Details" {
                h2 { "Details" }
                dl class="details" {
                    dt { "Group" } dd { (key_link(app, &job.group)) }
                    dt { "Priority" } dd { (job.priority) }
                    dt { "Starts" } dd { (job.starts) }
                    dt { "Failures" } dd { (job.failures) " of at most " (job.max_attempts) }
                    dt { "Waits" } dd { (job.waits) }
                    dt { "Worker" } dd { (job.worker.as_deref().unwrap_or("–")) }
                    dt { "Unique id" } dd { (shown(&job.unique_id)) }
                    dt { "Last error" } dd class="error" { (shown(&job.last_error)) }
                }
            }
            section class="card" aria-label="Tokens and slots" {
                h2 { "Tokens and slots" }
                @if job.reserved.is_empty() { p { "None." } }
                ul class="plain" { @for item in &job.reserved { li { (reserved(app, item)) } } }
            }
            section class="card" aria-label="Payload" {
                h2 { "Payload" }
                pre tabindex="0" { code { (shown(&job.payload)) } }
            }
        }
        @if app.changes.is_some() { (actions(app, &job)) }
    };
    Ok(Page { title: format!("Job {id}"), body, is_live: true })
}

fn state_class(state: &str) -> &'static str {
    match state {
        "dead" => "bad",
        "done" => "good",
        "running" => "note",
        _ => "plain",
    }
}

/// The past and planned events of a job, in the order of time.
fn history(job: &JobView, now: i64) -> Vec<(&'static str, i64)> {
    let is_waiting = matches!(job.state.as_str(), "scheduled" | "available");
    let ended = match job.state.as_str() {
        "dead" => "dead",
        "cancelled" => "cancelled",
        _ => "done",
    };
    let mut history = vec![
        ("enqueued", Some(job.enqueued_at)),
        (if is_waiting && job.run_at > now { "runs" } else { "due" }, Some(job.run_at)),
        (if job.starts > 1 { "last started" } else { "started" }, job.started_at),
        ("lease ends", job.lease_until.filter(|_| job.state == "running")),
        (ended, job.finished_at),
    ];
    history.retain(|(_, at)| at.is_some());
    let mut history: Vec<(&str, i64)> = history.into_iter().filter_map(|(what, at)| Some((what, at?))).collect();
    history.sort_by_key(|(_, at)| *at);
    history
}

fn reserved(app: &App, item: &ReservedView) -> Markup {
    html! {
        strong { (amount(item.count)) } @if item.is_slots { " of the slots of " } @else { " of the tokens of " } bdi { (item.limit) } " for " (key_link(app, &item.key))
        @if let Some(used) = item.used { ", " (amount(used)) " used" }
    }
}

fn actions(app: &App, job: &JobView) -> Markup {
    let act = |name: &str, action: &str, text: &str| {
        html! {
            details class="act" {
                summary { (name) }
                form method="post" action=(action) {
                    input type="hidden" name="form" value=(app.access.form);
                    input type="hidden" name="id" value=(job.id);
                    p { (text) }
                    button class="danger" type="submit" { (name) " now" }
                }
            }
        }
    };
    html! {
        div class="acts" {
            @match job.state.as_str() {
                "dead" | "cancelled" => (act("Requeue", "/job/requeue", "The job reserves its tokens again, and runs at its new time.")),
                "scheduled" | "available" => (act("Cancel", "/job/cancel", "The job does not run, and its tokens are returned.")),
                _ => {}
            }
        }
    }
}
