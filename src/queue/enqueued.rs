use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::call::Resolved;
use crate::error::Denied;
use crate::error::{Error, InvalidJob};
use crate::observability::Answered;
use crate::queue::{JobState, time};
use crate::sql::queue::EnqueueAnswer;

/// The id of a job in the queue, its state, and the time at which it will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ticket {
    /// The job's id.
    pub id: i64,
    /// When it will run, on the database's clock: when its reserved tokens are available, and later if its group is late. A
    /// job that waits for slots starts later than that. In a queue with [`turns`](crate::queue::QueueConfig::turns), this is the
    /// earliest time. If a duplicate already runs or is done, this time has passed.
    pub run_at: SystemTime,
    /// The time from now until `run_at`; zero if the job is due, runs or is done.
    pub wait: Duration,
    /// The state of the job. A new job is [`JobState::Scheduled`]. A [duplicate](EnqueueOutcome::Duplicate) waits
    /// ([`JobState::Scheduled`], [`JobState::Available`]), runs ([`JobState::Running`]), or is done ([`JobState::Done`]) and
    /// does not run again.
    pub state: JobState,
}

impl Ticket {
    fn new(answer: &EnqueueAnswer) -> Self {
        Self {
            id: answer.id.unwrap_or_default(),
            run_at: time::from_micros(answer.run_at.unwrap_or_default()),
            wait: time::wait(answer.wait),
            state: answer.state.as_deref().map_or(JobState::Scheduled, JobState::of),
        }
    }
}

/// The outcome of enqueueing a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnqueueOutcome {
    /// The job was written, and its tokens are reserved.
    Scheduled(Ticket),
    /// The queue already has a job of this [unique id](crate::queue::Job::unique_id), which waits, runs or is done. This ticket
    /// describes that job. No tokens were taken.
    Duplicate(Ticket),
    /// The job's [`run_at`](crate::queue::Job::run_at) is in the past. Nothing was written or taken.
    RunAtPast,
    /// A limit allows no further reservation: its `max_reserved` would be exceeded. Nothing was written or taken.
    Denied {
        /// The time until the same job would be scheduled, if there are no other reservations meanwhile.
        retry_after: Duration,
    },
}

/// The answer to an enqueue of one job.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a job may have been denied: match the outcome(), or call enforce()"]
pub struct Enqueued {
    outcome: EnqueueOutcome,
    denied_by: Vec<Arc<str>>,
    remaining: f64,
}

impl Enqueued {
    pub(super) fn new(answer: &EnqueueAnswer, call: &Resolved) -> Self {
        let outcome = match answer.outcome.as_str() {
            "scheduled" => EnqueueOutcome::Scheduled(Ticket::new(answer)),
            "duplicate" => EnqueueOutcome::Duplicate(Ticket::new(answer)),
            "past" => EnqueueOutcome::RunAtPast,
            _ => EnqueueOutcome::Denied { retry_after: time::wait(answer.wait) },
        };
        let denied = call.items.iter().zip(&answer.denied).filter(|(_, denied)| **denied);
        let mut denied_by: Vec<_> = denied.map(|(item, _)| item.name.clone()).collect();
        denied_by.sort_unstable();
        denied_by.dedup();
        let remaining = answer.balances.iter().copied().fold(f64::INFINITY, f64::min);
        Self { outcome, denied_by, remaining }
    }

    /// The outcome as one word, for metrics and traces.
    pub(super) const fn word(&self) -> &'static str {
        match self.outcome {
            EnqueueOutcome::Scheduled(_) => "scheduled",
            EnqueueOutcome::Duplicate(_) => "duplicate",
            EnqueueOutcome::RunAtPast => "past",
            EnqueueOutcome::Denied { .. } => "denied",
        }
    }

    /// An error if the time of the job is in the past: for an enqueue of one job, of which nothing is lost by an error.
    pub(super) fn not_past(self) -> Result<Self, Error> {
        if self.outcome == EnqueueOutcome::RunAtPast { Err(InvalidJob::RunAtPast.into()) } else { Ok(self) }
    }

    /// The outcome: scheduled, a duplicate, denied, or in the past.
    pub const fn outcome(&self) -> EnqueueOutcome {
        self.outcome
    }

    /// Whether the job was denied.
    pub const fn is_denied(&self) -> bool {
        matches!(self.outcome, EnqueueOutcome::Denied { .. })
    }

    /// Returns the time until the same job would be scheduled, if this job was denied; otherwise `None`.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            EnqueueOutcome::Denied { retry_after } => Some(retry_after),
            EnqueueOutcome::Scheduled(_) | EnqueueOutcome::Duplicate(_) | EnqueueOutcome::RunAtPast => None,
        }
    }

    /// The names of the limits that denied the job, each once, in alphabetical order.
    pub fn denied_by(&self) -> Vec<&str> {
        self.denied_by.iter().map(|name| &**name).collect()
    }

    /// Returns the ticket of the job in the queue: this one, or the existing job of the same unique id. That
    /// may be running or done: see [`state`](Ticket::state).
    ///
    /// # Errors
    /// [`Error::Denied`] if the job was denied, so that `?` leaves your transaction and rolls it back.
    /// [`InvalidJob::RunAtPast`] if its time is in the past.
    pub fn enforce(self) -> Result<Ticket, Error> {
        match self.outcome {
            EnqueueOutcome::Scheduled(ticket) | EnqueueOutcome::Duplicate(ticket) => Ok(ticket),
            EnqueueOutcome::RunAtPast => Err(InvalidJob::RunAtPast.into()),
            EnqueueOutcome::Denied { retry_after } => {
                let (remaining, limits) = (self.remaining, self.denied_by);
                Err(Error::Denied(Denied { retry_after, remaining, limits, states: Vec::new() }))
            }
        }
    }
}

/// When a job would run if it were enqueued now, from [`Queue::estimate`](crate::queue::Queue::estimate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// The outcome that enqueueing the job would have.
    pub outcome: EstimateOutcome,
    /// How many jobs of its group already wait; 1,000 if there are as many or more, because they are not counted further.
    pub ahead: u64,
    /// The job that already has the unique id, if there is one: enqueueing would return it as a
    /// [duplicate](EnqueueOutcome::Duplicate).
    pub existing: Option<Ticket>,
}

/// The outcome that enqueueing a job now would have, without its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EstimateOutcome {
    /// The job would be scheduled. If the queue already has a job of its unique id, these are the times of that job.
    Scheduled {
        /// When the job would run, on the database's clock.
        run_at: SystemTime,
        /// The time from now until `run_at`; zero if the job would be due.
        wait: Duration,
    },
    /// A limit would deny the job.
    Denied {
        /// The time until the same job would be scheduled, if there are no other reservations meanwhile.
        retry_after: Duration,
    },
}

impl Estimate {
    pub(super) fn new(answer: &EnqueueAnswer) -> Result<Self, Error> {
        if answer.outcome == "past" {
            return Err(InvalidJob::RunAtPast.into());
        }
        let wait = time::wait(answer.wait);
        let outcome = match answer.run_at.map(time::from_micros) {
            Some(run_at) => EstimateOutcome::Scheduled { run_at, wait },
            None => EstimateOutcome::Denied { retry_after: wait },
        };
        let existing = answer.state.is_some().then(|| Ticket::new(answer));
        Ok(Self { outcome, ahead: answer.ahead.unwrap_or_default().unsigned_abs(), existing })
    }
}

impl Answered for Enqueued {
    fn outcome(&self) -> &'static str {
        self.word()
    }

    fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            EnqueueOutcome::Scheduled(ticket) | EnqueueOutcome::Duplicate(ticket) => Some(ticket.wait),
            EnqueueOutcome::RunAtPast => None,
            EnqueueOutcome::Denied { retry_after } => Some(retry_after),
        }
    }

    fn denied_by(&self) -> Vec<&str> {
        Self::denied_by(self)
    }
}

impl Answered for Vec<Enqueued> {}
