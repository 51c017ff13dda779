use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::call::{Denied, Resolved};
use crate::error::{Error, InvalidJob};
use crate::observability::Answered;
use crate::queue::time;
use crate::sql::queue::EnqueueAnswer;

/// A job that is in the queue, and when it will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ticket {
    /// The job's id.
    pub id: i64,
    /// When it will run, on the database's clock: when its reserved tokens are there, and later by as much as its group is
    /// behind.
    pub run_at: SystemTime,
    /// How long that is from now; zero if it is due.
    pub wait: Duration,
}

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnqueueOutcome {
    /// It was written, and its tokens are reserved.
    Scheduled(Ticket),
    /// A job of this unique id is in the queue already. Nothing was taken.
    Duplicate(Ticket),
    /// As much is reserved as may be. Nothing was written or taken.
    Denied {
        /// If nobody else reserves, the same job is let in after this time and not before.
        retry_after: Duration,
    },
}

/// The answer to an enqueued job.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a job may have been refused: match the outcome, or enforce() it"]
pub struct Enqueued {
    outcome: EnqueueOutcome,
    refused_by: Vec<Arc<str>>,
    remaining: f64,
}

impl Enqueued {
    pub(super) fn new(answer: &EnqueueAnswer, call: &Resolved) -> Result<Self, Error> {
        let ticket = || Ticket {
            id: answer.id.unwrap_or_default(),
            run_at: time::from_micros(answer.run_at.unwrap_or_default()),
            wait: time::wait(answer.wait),
        };
        let outcome = match answer.outcome.as_str() {
            "scheduled" => EnqueueOutcome::Scheduled(ticket()),
            "duplicate" => EnqueueOutcome::Duplicate(ticket()),
            "past" => return Err(InvalidJob::RunAtPast.into()),
            _ => EnqueueOutcome::Denied { retry_after: time::wait(answer.wait) },
        };
        let refused = call.items.iter().zip(&answer.refused).filter(|(_, refused)| **refused);
        let mut refused_by: Vec<_> = refused.map(|(item, _)| item.name.clone()).collect();
        refused_by.sort_unstable();
        refused_by.dedup();
        let remaining = answer.balances.iter().copied().fold(f64::INFINITY, f64::min);
        Ok(Self { outcome, refused_by, remaining })
    }

    /// In a word.
    pub(super) const fn word(&self) -> &'static str {
        match self.outcome {
            EnqueueOutcome::Scheduled(_) => "scheduled",
            EnqueueOutcome::Duplicate(_) => "duplicate",
            EnqueueOutcome::Denied { .. } => "denied",
        }
    }

    /// Scheduled, a duplicate, or denied.
    pub const fn outcome(&self) -> EnqueueOutcome {
        self.outcome
    }

    /// Whether it was refused.
    pub const fn is_denied(&self) -> bool {
        matches!(self.outcome, EnqueueOutcome::Denied { .. })
    }

    /// The limits that refused, each once, in alphabetical order.
    pub fn denied_by(&self) -> Vec<&str> {
        self.refused_by.iter().map(|name| &**name).collect()
    }

    /// The job in the queue, this one or the first of its unique id.
    ///
    /// # Errors
    /// [`Error::Denied`], so that `?` leaves your transaction and rolls it back.
    pub fn enforce(self) -> Result<Ticket, Error> {
        match self.outcome {
            EnqueueOutcome::Scheduled(ticket) | EnqueueOutcome::Duplicate(ticket) => Ok(ticket),
            EnqueueOutcome::Denied { retry_after } => {
                Err(Error::Denied(Denied { retry_after, remaining: self.remaining, limits: self.refused_by }))
            }
        }
    }
}

/// When a job would run if it were enqueued now, from [`Queue::estimate`](crate::queue::Queue::estimate).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// When it would run; `None` if it would be refused.
    pub run_at: Option<SystemTime>,
    /// How long that is from now; if it would be refused, after which time it would not.
    pub wait: Duration,
    /// How many jobs of its group wait already.
    pub ahead: u64,
}

impl Estimate {
    pub(super) fn new(answer: &EnqueueAnswer) -> Result<Self, Error> {
        if answer.outcome == "past" {
            return Err(InvalidJob::RunAtPast.into());
        }
        Ok(Self {
            run_at: answer.run_at.map(time::from_micros),
            wait: time::wait(answer.wait),
            ahead: answer.ahead.unwrap_or_default().unsigned_abs(),
        })
    }
}

impl Answered for Enqueued {
    fn outcome(&self) -> &'static str {
        self.word()
    }

    fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            EnqueueOutcome::Scheduled(ticket) | EnqueueOutcome::Duplicate(ticket) => Some(ticket.wait),
            EnqueueOutcome::Denied { retry_after } => Some(retry_after),
        }
    }

    fn denied_by(&self) -> Vec<&str> {
        Self::denied_by(self)
    }
}

impl Answered for Vec<Enqueued> {}
