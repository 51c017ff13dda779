use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::call::{Call, Hidden, Item, Key, LONGEST_KEY, LeaseId, Op, Resolved, ResolvedItem};
use crate::error::{Error, InvalidCall, InvalidJob};
use crate::limit::{Kind, LONGEST_NAME, is_storable};
use crate::queue::{QueueConfig, time};
use crate::sql::TransactionLimiter;

/// The suffix of the second bucket must fit, too.
const LONGEST_LIMIT_NAME: usize = LONGEST_NAME - "/started".len();
const LONGEST_UNIQUE_ID: usize = 255;

/// A job to enqueue: a payload, and the limits and keys to reserve tokens from.
///
/// The first key is the job's group, unless [`group`](Self::group) sets another one. Jobs of a group start in the order of
/// their reservations. The limits must be defined by name. They can be token buckets, fixed windows, calendar windows and
/// [concurrency limits](crate::Limit::concurrency).
///
/// # Slots
/// The count of an item on a concurrency limit is a number of slots. The job takes its slots when it starts: all of them
/// together with the tokens of its start, or none. Until they are free, the job waits as the first of its group. This is not a
/// failure. The slots are the same as those of [`Limiter::acquire`](crate::Limiter::acquire). A job holds them until it has
/// ended, however it ended. The worker renews their lease meanwhile. If the worker is killed, the slots are free when the lease
/// of the limit ends.
///
/// ```
/// use pg_limiter::Item;
/// use pg_limiter::queue::Job;
///
/// let job = Job::new(("roles", "guild-1"), &"member-7")?;
/// // 1,200 tokens of the organisation, and one of a global limit on requests. It runs when both are available.
/// let job = Job::new([Item::new("llm_tokens", "org-7").count(1200), Item::global("llm_requests")], &42)?
///     .unique_id("answer-42")
///     .priority(10);
/// // At most as many reports of a customer run at the same time as the limit "running_reports" has slots. Each one also takes a
/// // token of "reports".
/// let job = Job::new([Item::new("running_reports", "customer-1"), Item::new("reports", "customer-1")], &"2026")?;
/// # Ok::<(), pg_limiter::InvalidJob>(())
/// ```
#[derive(Clone, PartialEq)]
#[must_use = "a job does nothing until it is enqueued"]
pub struct Job {
    call: Call,
    group: Option<Key>,
    payload: String,
    priority: i32,
    unique_id: Option<String>,
    jitter: Duration,
    run_at: Option<SystemTime>,
    max_attempts: Option<u32>,
    max_age: Option<Duration>,
    weight: u32,
}

/// A checked job.
#[derive(Clone, Debug)]
pub(super) struct ReadyJob {
    /// The reservation.
    pub(super) call: Resolved,
    /// The slots that the job takes when it starts.
    pub(super) slots: Vec<ResolvedItem>,
    pub(super) key: String,
    pub(super) payload: String,
    pub(super) priority: i32,
    pub(super) unique_id: Option<String>,
    pub(super) jitter: i64,
    pub(super) not_before: Option<i64>,
    pub(super) max_attempts: i32,
    pub(super) max_age: Option<i64>,
    /// `None`: the queue has no turns.
    pub(super) weight: Option<i32>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("call", &self.call)
            .field("group", &self.group)
            .field("payload", &Hidden(&self.payload))
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// Creates a job with these limits and keys, and this payload, which is stored as JSON.
    ///
    /// # Errors
    /// [`InvalidJob::Payload`] if the payload cannot be written as JSON, or contains a NUL, which PostgreSQL cannot store.
    pub fn new(call: impl Into<Call>, payload: &impl Serialize) -> Result<Self, InvalidJob> {
        let payload =
            serde_json::to_string(payload).map_err(|error| InvalidJob::Payload { reason: error.to_string() })?;
        if has_nul(&payload) {
            return Err(InvalidJob::Payload { reason: "it contains a NUL (\\u0000)".to_owned() });
        }
        Ok(Self {
            call: call.into(),
            group: None,
            payload,
            priority: 0,
            unique_id: None,
            jitter: Duration::ZERO,
            run_at: None,
            max_attempts: None,
            max_age: None,
            weight: 1,
        })
    }

    /// Sets the job's group (default: its first key).
    pub fn group(mut self, key: impl Into<Key>) -> Self {
        self.group = Some(key.into());
        self
    }

    /// Sets the priority (default: 0). Among jobs that are due, those of a higher priority start first. The priority does not
    /// change the reservation: no job runs before its time. Use only a few different priorities.
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets an id of 1 to 255 bytes that is unique among the jobs of the queue that wait, run or are done (default: none). If
    /// there is such a job, enqueueing writes no job, takes no tokens, and returns the existing job, with its state, as
    /// [`EnqueueOutcome::Duplicate`](crate::queue::EnqueueOutcome::Duplicate). The id is free again when that job is dead or
    /// cancelled, and once it is pruned, [`WorkerConfig::keep_ended`](crate::queue::WorkerConfig::keep_ended) after it was done.
    pub fn unique_id(mut self, id: impl Into<String>) -> Self {
        self.unique_id = Some(id.into());
        self
    }

    /// Delays the job by a random time of up to `span` after its tokens are available (default: no delay). This keeps
    /// jobs from starting at the same moment if their tokens become available together.
    pub const fn jitter(mut self, span: Duration) -> Self {
        self.jitter = span;
        self
    }

    /// Does not run the job before this time (default: it runs as soon as its tokens are available). The tokens are reserved
    /// when the job is enqueued, not at this time. The database's clock applies. A time that has passed by more than 1 s is
    /// an error when the job is enqueued: [`InvalidJob::RunAtPast`], or the outcome
    /// [`RunAtPast`](crate::queue::EnqueueOutcome::RunAtPast) of one among several jobs. A time more than 36,525 days from now is
    /// [`InvalidJob::Time`].
    pub const fn run_at(mut self, time: SystemTime) -> Self {
        self.run_at = Some(time);
        self
    }

    /// Sets the number of failures after which the job is dead (default:
    /// [`QueueConfig::max_attempts`](crate::queue::QueueConfig::max_attempts)). 0 is taken as 1.
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Drops the job if it has not started within this time from now, or from [`run_at`](Self::run_at) if that is set (default: it
    /// waits for as long as it takes). A job is denied at once if its tokens would come later than that. A job that
    /// waits for longer, because its queue or group is paused, workers are late, or it has failed, is cancelled when a worker next
    /// looks for jobs; its `last_error` then says `expired`, and no token is given back. A worker looks some milliseconds before a
    /// job starts. [`requeue`](crate::queue::Queue::requeue) takes the bound away.
    pub const fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// Sets how many jobs of its group reserve tokens together when it is the group's turn (default: 1; from 1 to 100), in a queue
    /// with [`turns`](crate::queue::QueueConfig::turns). The first waiting job of a group counts. So while all groups wait, a group of
    /// weight 3 starts three times as many jobs as a group of weight 1. Without turns, this has no effect.
    pub const fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Checks everything that can be checked before the job is sent.
    pub(super) fn check(self, limits: &TransactionLimiter, config: &QueueConfig) -> Result<ReadyJob, Error> {
        if self.payload.len() > config.max_payload {
            return Err(InvalidJob::PayloadTooLarge { bytes: self.payload.len(), max: config.max_payload }.into());
        }
        if let Some(id) = &self.unique_id
            && !is_storable(id, 1..=LONGEST_UNIQUE_ID)
        {
            return Err(InvalidJob::UniqueId { bytes: id.len() }.into());
        }
        if let Some(item) = self.call.items.iter().find(|item| item.limit.inline.is_some()) {
            return Err(InvalidJob::InlineLimit { limit: item.limit.name.to_string() }.into());
        }
        if self.call.idempotency_key.is_some() {
            return Err(InvalidCall::IdempotencyKeyUnsupported.into());
        }
        // The first key as it was given, not hashed yet: groups are hashed in their own way below.
        let group =
            self.group.or_else(|| self.call.items.first().map(|item| item.key.clone())).unwrap_or_else(|| "".into());
        if self.call.lease.is_some() {
            return Err(InvalidJob::Lease.into());
        }
        let (slots, rates): (Vec<Item>, Vec<Item>) = self.call.items.into_iter().partition(|item| {
            limits.limits().get(&item.limit.name).is_some_and(|limit| limit.kind() == Kind::Concurrency)
        });
        let (has_slots, has_rates) = (!slots.is_empty(), !rates.is_empty());
        let slots = if has_slots {
            let call = Call { reserve: self.call.reserve, ..Call::from(slots).lease(LeaseId::random()) };
            limits.resolve(Op::Limit, call)?.items
        } else {
            Vec::new()
        };
        let call = if has_rates || !has_slots {
            limits.resolve(Op::Limit, Call::from(rates).reserve())?
        } else {
            Resolved::nothing()
        };
        if let Some(item) = call.items.iter().find(|item| item.limit.is_gate()) {
            return Err(InvalidJob::Gate { limit: item.name.to_string() }.into());
        }
        if let Some(item) = call.items.iter().find(|item| item.name.len() > LONGEST_LIMIT_NAME) {
            return Err(InvalidJob::LimitName { bytes: item.name.len() }.into());
        }
        if !is_storable(&group.0, 0..=LONGEST_KEY) {
            return Err(InvalidJob::Group { bytes: group.0.len() }.into());
        }
        let group = limits.key_secret().map_or(group.clone(), |secret| secret.group(&group));
        let max_attempts = self.max_attempts.unwrap_or(config.max_attempts).max(1);
        Ok(ReadyJob {
            call,
            slots,
            key: group.0.to_string(),
            payload: self.payload,
            priority: self.priority,
            unique_id: self.unique_id,
            jitter: time::length(self.jitter, "the jitter")?,
            not_before: self.run_at.map(|at| time::soon(at, "run_at")).transpose()?,
            max_attempts: i32::try_from(max_attempts).unwrap_or(i32::MAX),
            weight: config.turns.then(|| i32::try_from(self.weight.clamp(1, 100)).unwrap_or(1)),
            max_age: self.max_age.map(|age| time::length(age, "max_age")).transpose()?,
        })
    }
}

/// Whether the JSON contains a NUL: `\u0000` after an even number of backslashes.
fn has_nul(json: &str) -> bool {
    let escaped = |at: usize| json[..at].bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
    json.match_indices("\\u0000").any(|(at, _)| !escaped(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_with_a_nul_is_rejected_but_not_its_escaped_text() {
        assert!(Job::new(("a", "b"), &"\0").is_err());
        assert!(Job::new(("a", "b"), &"\\\0").is_err());
        assert!(Job::new(("a", "b"), &"\\u0000").is_ok());
        assert!(Job::new(("a", "b"), &"\\\\u0000").is_ok());
    }
}
