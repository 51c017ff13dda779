//! One start of a job: its transaction, its handler, and how it ends.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use sqlx::Connection;
use tokio::task::JoinError;
use tracing::{Instrument, Span, debug, warn};

use crate::error::{Error, database_message};
use crate::limiter::Lease;
use crate::observability::{JobSpan, attempt_failed, handler_begins};
use crate::queue::context::QueueContext;
use crate::queue::job_leases::JobLeases;
use crate::queue::job_slots::release;
use crate::queue::{Finish, Handler, RunningJob, WorkerConfig, time};
use crate::sql::PooledConnection;
use crate::sql::queue::{Again, ClaimedJob, KnownLimits, again, done};
use crate::transact::before;

/// The longest wait for a connection of the pool.
const TO_BEGIN: Duration = Duration::from_secs(10);

/// The most characters of an error that are stored.
const LONGEST_ERROR: usize = 2000;

/// How a start ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    Failed,
    Dead,
    Waits,
    NotBegun,
    Lost,
}

impl Ended {
    /// The name in metrics and traces.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::Waits => "waited",
            Self::NotBegun | Self::Lost => "lost",
        }
    }
}

/// The number of the attempt that follows this many failures.
pub(super) const fn attempt_number(failures: i32) -> u32 {
    failures.unsigned_abs() + 1
}

/// Why a start did not complete its job.
enum Stop {
    Failed(String),
    GivenUp(String),
    Waits(Duration),
    NotBegun(String),
    SlotsLost,
    Lost,
}

/// Waits until other jobs may hold the slots; without slots, forever.
async fn lost(lease: Option<&Lease>) {
    match lease {
        Some(lease) => lease.lost().await,
        None => std::future::pending().await,
    }
}

/// Aborts a task when this is dropped.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs a job and records in the database how it ended. Then it releases the job's slots. Also returns whether a
/// `Finish::Wait` now holds its group.
pub(super) async fn run_job<H: Handler>(
    queue: Arc<str>,
    context: QueueContext,
    config: WorkerConfig,
    handler: Arc<H>,
    job: ClaimedJob,
    leases: Arc<JobLeases>,
    slot_lease: Option<Lease>,
) -> (Ended, bool) {
    let mut span = JobSpan::new(Arc::clone(&queue), job.id, attempt_number(job.failures));
    let (ended, holds_group) =
        run_in(&span.span(), queue, context, config, handler, (job, slot_lease.as_ref()), leases).await;
    span.ended(ended.as_str());
    if let Some(lease) = slot_lease {
        release(lease).await;
    }
    (ended, holds_group)
}

async fn run_in<H: Handler>(
    span: &Span,
    queue: Arc<str>,
    context: QueueContext,
    config: WorkerConfig,
    handler: Arc<H>,
    (job, slot_lease): (ClaimedJob, Option<&Lease>),
    leases: Arc<JobLeases>,
) -> (Ended, bool) {
    let limits = KnownLimits::of(&context.limits(), job.limit_names.iter().map(String::as_str));
    // In a separate task, so that a panic ends nothing else.
    let attempt =
        attempt(Arc::clone(&queue), context.clone(), handler, job.clone(), limits.clone(), Arc::clone(&leases));
    let mut attempt = tokio::spawn(attempt.instrument(span.clone()));
    let _guard = AbortOnDrop(attempt.abort_handle());
    let mut slots_lost = pin!(lost(slot_lease));
    let ended = poll_fn(|cx| match Pin::new(&mut attempt).poll(cx) {
        Poll::Ready(attempted) => Poll::Ready(Some(attempted)),
        Poll::Pending => slots_lost.as_mut().poll(cx).map(|()| None),
    });
    let attempted = match ended.await {
        Some(attempted) => attempted.map_err(Some),
        None => {
            attempt.abort();
            // The attempt may have ended meanwhile.
            attempt.await.map_err(|error| Some(error).filter(JoinError::is_panic))
        }
    };
    let number = attempt_number(job.failures);
    let stop = match attempted {
        Ok(Ok(())) => return (Ended::Done, false),
        Ok(Err(Stop::Waits(wait))) if wait > config.longest_wait => {
            warn!(
                queue = &*queue,
                job = job.id,
                attempt = number,
                ?wait,
                longest_wait = ?config.longest_wait,
                "the handler asked to wait for longer than WorkerConfig::longest_wait; the group waits for that time"
            );
            Stop::Waits(config.longest_wait)
        }
        Ok(Err(stop)) => stop,
        Err(Some(error)) if error.is_panic() => Stop::Failed(format!("the handler panicked: {}", panic_text(error))),
        Err(None) => Stop::SlotsLost,
        Err(Some(_)) => Stop::NotBegun("the Tokio runtime is shutting down".to_owned()),
    };
    let (reason, delay, error, ended) = match stop {
        Stop::Lost => {
            warn!(
                queue = &*queue,
                job = job.id,
                attempt = number,
                "the job was lost to another worker; its transaction was rolled back"
            );
            return (Ended::Lost, false);
        }
        Stop::SlotsLost => {
            warn!(
                queue = &*queue,
                job = job.id,
                attempt = number,
                "the lease of the job's slots ended; the job was stopped and runs again"
            );
            (Again::Released, Duration::ZERO, String::new(), Ended::Lost)
        }
        Stop::Failed(error) => (Again::Failed, backoff(&config, job.failures), error, Ended::Failed),
        Stop::GivenUp(reason) => (Again::GivenUp, Duration::ZERO, reason, Ended::Dead),
        Stop::Waits(wait) if config.max_waits.is_some_and(|most| job.waits.unsigned_abs() >= most) => {
            let error = format!("the job has waited {} times, and WorkerConfig::max_waits allows no more", job.waits);
            (Again::HeldTooOften, wait, error, Ended::Failed)
        }
        Stop::Waits(wait) => (Again::Held, wait, String::new(), Ended::Waits),
        Stop::NotBegun(error) => (Again::Unstarted, Duration::ZERO, error, Ended::NotBegun),
    };
    let holds_group = matches!(reason, Again::Held | Again::HeldTooOften);
    let is_failure = matches!(ended, Ended::Failed | Ended::Dead);
    leases.ends(job.id, job.starts);
    let (ended, is_dead) = match let_go(&context, &job, reason, delay, error, limits).await {
        Ok(Some(state)) if state == "dead" => (Ended::Dead, true),
        Ok(Some(_)) => (ended, false),
        Ok(None) => (Ended::Lost, false),
        Err(error) => {
            warn!(
                queue = &*queue,
                job = job.id,
                attempt = number,
                %error,
                "cannot record that a job was not done; it runs again when its lease expires"
            );
            (Ended::Lost, false)
        }
    };
    if is_failure {
        attempt_failed(&queue, job.id, number, reason.as_str(), is_dead);
    } else {
        debug!(queue = &*queue, job = job.id, attempt = number, reason = reason.as_str(), "a job was not done");
    }
    (ended, holds_group && ended != Ended::Lost)
}

/// Ends the start, and returns the state of the job after it; `None` if the job was lost.
async fn let_go(
    context: &QueueContext,
    job: &ClaimedJob,
    reason: Again,
    delay: Duration,
    error: String,
    limits: KnownLimits,
) -> Result<Option<String>, Error> {
    let arguments = ([job.id], [job.starts], reason, time::capped(delay), error, limits);
    let states = context.own(arguments, |conn, sql, (ids, starts, reason, delay, error, limits)| {
        Box::pin(again(conn, sql, (ids, starts), (*reason, *delay, error), limits))
    });
    Ok(states.await?.pop().flatten())
}

async fn attempt<H: Handler>(
    queue: Arc<str>,
    context: QueueContext,
    handler: Arc<H>,
    job: ClaimedJob,
    limits: KnownLimits,
    leases: Arc<JobLeases>,
) -> Result<(), Stop> {
    let not_begun = |error: sqlx::Error| Stop::NotBegun(database_message(&error));
    let failed = |error: sqlx::Error| Stop::Failed(database_message(&error));
    let acquired = before(Instant::now() + TO_BEGIN, PooledConnection::acquire(context.limiter.pool())).await;
    let mut connection = acquired.map_err(not_begun)?;
    // If this future is dropped before it ends, the connection is closed.
    let mut tx = connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(not_begun)?;
    handler_begins(&queue, job.lag(Instant::now()), &Span::current());
    let result = handler.run(&RunningJob::new(&job), &mut tx).await;
    let result = match result {
        Ok(Finish::Done) => match done(&mut tx, &context.statements, job.id, job.starts, &limits).await {
            Ok(true) => {
                leases.ends(job.id, job.starts);
                // If a statement of the handler had failed, `done` would have failed in the aborted transaction.
                tx.commit().await.map_err(failed)?;
                connection.release();
                return Ok(());
            }
            Ok(false) => Stop::Lost,
            Err(error) => failed(error),
        },
        Ok(Finish::Wait(wait)) => Stop::Waits(wait),
        Ok(Finish::GiveUp(reason)) => Stop::GivenUp(short(&reason)),
        Err(error) => Stop::Failed(chain(&*error)),
    };
    if tx.rollback().await.is_ok() {
        connection.release();
    }
    Err(result)
}

/// The pause before a retry. It doubles with each failure.
fn backoff(config: &WorkerConfig, failures: i32) -> Duration {
    let doublings = failures.clamp(0, 30).unsigned_abs();
    config.backoff.saturating_mul(1 << doublings).min(config.max_backoff)
}

/// The text of an error and its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = source.source();
    }
    short(&text)
}

/// A text that PostgreSQL can store: without NUL, and cut to the maximum length.
fn short(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(LONGEST_ERROR).collect()
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let panic = error.into_panic();
    let text =
        panic.downcast_ref::<&str>().map(ToString::to_string).or_else(|| panic.downcast_ref::<String>().cloned());
    short(&text.unwrap_or_default())
}
