//! The pages of the queues, their jobs, and one job.

use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use maud::{Markup, html};

use crate::operate::live::{Counted, JobView, LISTED, QueueView, ReservedView};
use crate::operate::queue::no_such_job;
use crate::operate::ui::actions::{act, form};
use crate::operate::ui::format::{
    amount, capital, clock, encoded, job_url, key, key_link, named, queue_url, span, time, time_or_dash,
};
use crate::operate::ui::{App, JOB_NUMBER, Page, PageError, Shared, Wanted, number, table};
use crate::{CliError, text};
use pg_limiter::queue::JobState;

const PAGE: u32 = 50;
/// Later pages would read many index entries.
const PAGES: u32 = 200;
const WIDEST_ERROR: usize = 120;

pub(super) async fn queues(State(app): Shared, Query(wanted): Query<Wanted>) -> Result<Page, PageError> {
    let queues = app.live.queues().await?;
    let queue = wanted.queue.or_else(|| queues.first().map(|queue| queue.queue.clone()));
    let has_nul = [&queue, &wanted.after].into_iter().flatten().any(|text| text.contains('\0'));
    CliError::refuse_if(has_nul, "no queue and no group has a NUL character")?;
    let state = wanted.state.as_deref().map(str::parse::<JobState>).transpose().map_err(CliError::usage)?;
    let page = wanted.page.as_deref().unwrap_or("0");
    let page = number(StatusCode::BAD_REQUEST, "page", page, "the number of a page, from 0 on")?;
    let now = app.live.now().await?;
    let detail = match (&queue, state) {
        (Some(queue), Some(state)) => jobs(&app, queue, state, page, now).await?,
        (Some(queue), None) => {
            let view = queues.iter().find(|view| view.queue == *queue);
            let after = wanted.after.map(|after| app.named(&after)).transpose()?;
            html! {
                @if let Some(view) = view { (held(&app, view, now)) }
                @else {
                    div class="empty" { p { "The queue " (named(queue)) @if queues.len() < LISTED { " has no jobs." } @else { " is not listed." } } }
                }
                (groups(&app, queue, after.as_deref(), now).await?)
            }
        }
        (None, _) => html! {},
    };
    let body = html! {
        h1 { "Queue" }
        @if let Some(queue) = &queue { (app.done.notice(&queue_url(queue), &wanted.done)) }
        @if queues.is_empty() {
            div class="empty" {
                p { strong { "No queue has jobs." } }
                p { "A queue appears here with its first job." }
            }
        } @else { (list(&queues, queue.as_deref(), state)) }
        @if queues.len() >= LISTED { p class="lead" { "The first " (LISTED) " queues are listed." } }
        (detail)
    };
    Ok(Page::live(queue.map_or_else(|| "Queue".to_owned(), |queue| format!("Queue {}", text::escaped(&queue))), body))
}

fn jobs_url(queue: &str, state: &str, page: u32) -> String {
    let page = if page > 0 { format!("&page={page}") } else { String::new() };
    format!("{}&state={state}{page}", queue_url(queue))
}

fn list(queues: &[QueueView], here: Option<&str>, of_state: Option<JobState>) -> Markup {
    let rows = queues.iter().map(|QueueView { queue, jobs, paused_at, draining_at }| {
        let is_here = here == Some(queue);
        let current = (is_here && of_state.is_none()).then_some("true");
        let name = html! { a href=(queue_url(queue)) aria-current=[current] { (named(queue)) }
            @if paused_at.is_some() { " " span class="state note" { "paused" } }
            @if draining_at.is_some() { " " span class="state note" { "draining" } }
        };
        let counts = jobs.iter().map(|(state, jobs)| {
            let current = is_here && of_state.is_some_and(|of| of.as_str() == state);
            let count = html! {
                @if *jobs == Counted::exact(0) { span class="zero" { "0" } }
                @else { a class=[(state == "dead").then_some("bad")] href=(jobs_url(queue, state, 0)) aria-current=[current.then_some("true")] { (jobs) span class="hide" { " " (state) " jobs of " (text::escaped(queue)) } } }
            };
            (state.as_str(), "number", count)
        });
        std::iter::once(("Queue", "", name)).chain(counts).collect()
    });
    let place = queues.iter().position(|queue| here == Some(&queue.queue));
    html! {
        section class="card" aria-label="Queues" { (table(Some("stack"), html! { "Jobs by state" }, rows.collect(), place, "")) }
    }
}

fn held(app: &App, view: &QueueView, now: i64) -> Markup {
    let fields = [("queue", &*view.queue)];
    let resume = form(app, "/queue/resume", &fields, html! { button type="submit" { "Resume" } });
    let act = |texts, text| act(app, texts, &fields, html! { p { (text) } });
    html! {
        @for (since, is, effect) in [(view.paused_at, "paused", "no job starts"), (view.draining_at, "draining", "it takes no new jobs")] {
            @if let Some(since) = since {
                div class="notice warning" role="status" { p { "This queue is " (is) " since " (time(since, now)) ": " (effect) "." } }
            }
        }
        @if app.changes.is_some() {
            div class="acts" {
                @if view.paused_at.is_some() || view.draining_at.is_some() { (resume) }
                @if view.paused_at.is_none() { (act(["Pause", "Pause now", "/queue/pause"], "No job starts until the queue is resumed. Jobs that run go on.")) }
                @if view.draining_at.is_none() { (act(["Drain", "Drain now", "/queue/drain"], "The queue takes no new jobs until it is resumed, and works off those that it has.")) }
            }
        }
    }
}

async fn groups(app: &App, queue: &str, after: Option<&str>, now: i64) -> Result<Markup, PageError> {
    let groups = app.live.groups(queue, after).await?;
    let rows = groups.iter().map(|group| {
        let next_start = match group.next_start {
            Some(at) if at <= now => html! { "now" },
            at => time_or_dash(at, now),
        };
        let lag = group.lag.filter(|lag| *lag > 0).map(|lag| span(Duration::from_micros(lag.unsigned_abs())));
        let fields = [("queue", queue), ("group", &*app.keys.shown(&group.group))];
        let button = |change: &str, name| form(app, change, &fields, html! { button type="submit" { (name) } });
        let waiting_until = group.waiting_until.filter(|until| *until > now);
        let waits_for = html! {
            @match (&group.waits_for, waiting_until) {
                _ if group.is_paused => "its pause’s end",
                (_, Some(until)) => { "its handler’s wait, until " (time(until, now)) },
                (Some((limit, of)), None) => { "slots of " (named(limit)) " " (key(app, of)) },
                (None, None) => (waits(group.blocked_by.as_deref(), group.awaits_turn).unwrap_or_else(|| html! { "–" })),
            }
            @if app.changes.is_some() {
                @if group.is_paused || waiting_until.is_some() { (button("/group/resume", "Resume")) }
                @if !group.is_paused { (button("/group/pause", "Pause")) }
            }
        };
        vec![
            ("Group", "", key_link(app, &group.group)),
            ("Scheduled", "number", html! { (group.scheduled) }),
            ("In line", "number", html! { (group.available) }),
            ("Next start", "number", next_start),
            ("Lag", "number", html! { (lag.as_deref().unwrap_or("–")) }),
            ("Waits for", "", waits_for),
        ]
    });
    let caption = html! { "Groups of " (named(queue)) " in which jobs wait" };
    Ok(html! {
        section class="card" aria-label="Groups" {
            (table(Some("stack"), caption, rows.collect(), None, "No job waits."))
            @if let Some(last) = groups.last().filter(|_| groups.len() >= LISTED) {
                p class="pages" { a href={ (queue_url(queue)) "&after=" (encoded(&app.keys.shown(&last.group))) } { "Next groups" } }
            }
            p class="definition" { "Lag: how far the line is behind the times reserved for its jobs. In line: due, and not allowed to start yet." }
        }
    })
}

async fn jobs(app: &App, queue: &str, state: JobState, page: u32, now: i64) -> Result<Markup, PageError> {
    let page = page.min(PAGES);
    let mut jobs = app.live.jobs(queue, state, page * PAGE, PAGE + 1).await?;
    let has_more = jobs.len() > PAGE as usize && page < PAGES;
    jobs.truncate(PAGE as usize);
    let (when, at): (&str, fn(&JobView) -> Option<i64>) = match state {
        JobState::Running => ("Started", |job| job.started_at),
        JobState::Done | JobState::Dead | JobState::Cancelled => ("Ended", |job| job.finished_at),
        _ => ("Runs", |job| Some(job.run_at)),
    };
    let rows = jobs.iter().map(|job| {
        let error = text::shortened(&one_line(app, &job.last_error), WIDEST_ERROR);
        vec![
            ("Job", "", html! { a href=(job_url(job.id)) { "job " (job.id) } }),
            ("Group", "", key(app, &job.group)),
            (when, "number", time_or_dash(at(job), now)),
            ("Failures", "number", html! { (job.failures) " of " (job.max_attempts) }),
            ("Last error", "error", html! { (error) }),
        ]
    });
    let caption = html! { (capital(state.as_str())) " jobs of " (named(queue)) };
    Ok(html! {
        section class="card" aria-label="Jobs" {
            (table(Some("stack"), caption, rows.collect(), None, &if page > 0 { "The list ends before this page.".to_owned() } else { format!("No job is {state}.") }))
            @if state == JobState::Dead && app.changes.is_some() && !jobs.is_empty() {
                div class="acts" { (act(app, ["Requeue all", "Requeue all now", "/queue/requeue"], &[("queue", queue)], html! { p { "All dead jobs of the queue reserve their tokens again." } })) }
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

/// A text that may have keys in it.
fn one_line(app: &App, text: &Option<String>) -> String {
    match text {
        None => "–".to_owned(),
        Some(_) if app.keys.are_hidden() => "hidden".to_owned(),
        Some(text) => text::one_line(text),
    }
}

pub(super) async fn job(State(app): Shared, Query(wanted): Query<Wanted>) -> Result<Page, PageError> {
    let (app, id) = (&*app, number(StatusCode::BAD_REQUEST, "id", &wanted.id, JOB_NUMBER)?);
    let now = app.live.now().await?;
    let job = app.live.job(id).await?.ok_or_else(|| PageError(StatusCode::NOT_FOUND, no_such_job(id)))?;
    let reserved = |item: &ReservedView| {
        html! {
            strong { (amount(item.count)) } @if item.is_slots { " of the slots of " } @else { " of the tokens of " } (named(&item.limit)) " for " (key_link(app, &item.key))
            @if let Some(used) = item.used { ", " (amount(used)) " used" }
        }
    };
    let state_class = match job.state.as_str() {
        "dead" => "bad",
        "done" => "good",
        "running" => "note",
        _ => "plain",
    };
    let body = html! {
        p class="crumbs" { a href="/queue" { "Queue" } " / " a href=(queue_url(&job.queue)) { (named(&job.queue)) } " / " a href=(jobs_url(&job.queue, &job.state, 0)) { (job.state) } }
        h1 { "Job " (job.id) " " span class={ "state " (state_class) } { (job.state) } }
        (app.done.notice(&job_url(id), &wanted.done))
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
                    @if let Some(cause) = waits(job.blocked_by.as_deref(), job.awaits_turn) { dt { "Waits for" } dd { (cause) } }
                    dt { "Worker" } dd { (job.worker.as_deref().map_or_else(|| "–".to_owned(), text::escaped)) }
                    dt { "Unique id" } dd { (one_line(app, &job.unique_id)) }
                    dt { "Last error" } dd class="error" { (one_line(app, &job.last_error)) }
                }
            }
            section class="card" aria-label="Tokens and slots" {
                h2 { "Tokens and slots" }
                @if job.reserved.is_empty() { p { "None." } }
                ul class="plain" { @for item in &job.reserved { li { (reserved(item)) } } }
            }
            section class="card" aria-label="Payload" {
                h2 { "Payload" }
                pre tabindex="0" { code { (one_line(app, &job.payload)) } }
            }
        }
        @if app.changes.is_some() { (actions(app, &job)) }
    };
    Ok(Page::live(format!("Job {id}"), body))
}

/// The cause, beside its time, why a job waits.
fn waits(blocked_by: Option<&str>, awaits_turn: bool) -> Option<Markup> {
    let unknown = |limit| html! { "a worker that defines the limit " (named(limit)) ", as the kind that it had" };
    blocked_by.map(unknown).or_else(|| awaits_turn.then(|| html! { "a turn of its group" }))
}

fn history(job: &JobView, now: i64) -> Vec<(&str, i64)> {
    let is_waiting = matches!(job.state.as_str(), "scheduled" | "available");
    let mut history = vec![
        ("enqueued", Some(job.enqueued_at)),
        (if is_waiting && job.run_at > now { "runs" } else { "due" }, Some(job.run_at)),
        (if job.starts > 1 { "last started" } else { "started" }, job.started_at),
        ("lease ends", job.lease_until.filter(|_| job.state == "running")),
        (job.state.as_str(), job.finished_at),
    ];
    history.sort_by_key(|(_, at)| *at);
    history.into_iter().filter_map(|(what, at)| Some((what, at?))).collect()
}

fn actions(app: &App, job: &JobView) -> Markup {
    let id = job.id.to_string();
    let act_on = |texts, fields: &[(&str, &str)], text| act(app, texts, fields, html! { p { (text) } });
    let act = |texts, text| act_on(texts, &[("id", &id)], text);
    html! {
        div class="acts" {
            @match job.state.as_str() {
                "dead" | "cancelled" => {
                    (act(["Requeue", "Requeue now", "/job/requeue"], "The job reserves its tokens again, and runs at its new time."))
                    @if job.state == "dead" {
                        (act_on(["Requeue its group", "Requeue all now", "/group/requeue"], &[("queue", &job.queue), ("group", &app.keys.shown(&job.group))], "All dead jobs of the group reserve their tokens again."))
                    }
                }
                "scheduled" | "available" => (act(["Cancel", "Cancel now", "/job/cancel"], "The job does not run, and its tokens are returned.")),
                _ => {}
            }
        }
    }
}
