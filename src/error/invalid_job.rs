use crate::limit::refused_text;

/// A request to the queue, or the configuration of a worker, is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidJob {
    /// The name of a queue is empty, longer than 255 bytes, or contains a NUL.
    #[error("the queue's name {}", refused_text(*.bytes, 255, "shorten it"))]
    Queue {
        /// The length of the name.
        bytes: usize,
    },
    /// A text is not the name of a [`JobState`](crate::queue::JobState).
    #[error("{reason}")]
    State {
        /// The reason.
        reason: String,
    },
    /// The payload cannot be written as JSON, or PostgreSQL cannot store it.
    #[error(
        "the payload cannot be stored as JSON: {reason}; change it to a value that serializes to JSON without a NUL"
    )]
    Payload {
        /// The reason.
        reason: String,
    },
    /// The payload is too large.
    #[error(
        "the payload has {bytes} bytes, and at most {max} are allowed; store it elsewhere and enqueue a reference to it, or raise max_payload"
    )]
    PayloadTooLarge {
        /// The length of the payload as JSON.
        bytes: usize,
        /// The bound in the queue's configuration.
        max: usize,
    },
    /// The job's group is longer than 1024 bytes or contains a NUL.
    #[error("the job's group {}", refused_text(*.bytes, 1024, "shorten or hash it"))]
    Group {
        /// The length of the group.
        bytes: usize,
    },
    /// A unique id is empty, longer than 255 bytes, or contains a NUL.
    #[error("the unique id {}", refused_text(*.bytes, 255, "shorten or hash it"))]
    UniqueId {
        /// The length of the id.
        bytes: usize,
    },
    /// The job's `run_at` is in the past. Nothing was enqueued, and no token was taken.
    #[error("run_at is in the past; leave it out to run the job as soon as its limits allow")]
    RunAtPast,
    /// The queue is [draining](crate::queue::Queue::drain): it takes no new jobs. Nothing was enqueued, and no token was taken. In
    /// your transaction, the server has rejected the statement: roll back.
    #[error("the queue takes no new jobs: it is draining; resume it, or enqueue to another one")]
    Draining,
    /// A time or a duration is out of range.
    #[error("{what} is out of range; keep it within 36,525 days")]
    Time {
        /// The name of the setting.
        what: &'static str,
    },
    /// The limit was passed inline. Workers look up the limits of a job by name.
    #[error("the limit \"{limit}\" is passed inline; define it by name, so that workers can look it up")]
    InlineLimit {
        /// The limit's name.
        limit: String,
    },
    /// The limit is a gate. A job waits for tokens, and a gate has none.
    #[error(
        "the limit \"{limit}\" is a gate, which no job waits for; check it before you enqueue the job, or in the handler"
    )]
    Gate {
        /// The limit's name.
        limit: String,
    },
    /// The job's call names a lease. A job takes its slots under a lease of its own, each time it starts.
    #[error("the job names a lease; remove it: each start of the job takes its slots under a lease of its own")]
    Lease,
    /// The limit's name is too long for a job: it leaves no room for the name of the bucket that counts started jobs.
    #[error("the name of the job's limit has {bytes} bytes; shorten it to at most 247")]
    LimitName {
        /// The length of the name.
        bytes: usize,
    },
    /// A number in the configuration is too small or too large.
    #[error("{what} is {value}; {remedy}")]
    Config {
        /// The name of the setting.
        what: &'static str,
        /// The value.
        value: u64,
        /// The change that makes it valid.
        remedy: &'static str,
    },
    /// The queue has no job with this id.
    #[error("there is no job {id} in the queue \"{queue}\"; check the id and the queue: the job may have been pruned")]
    UnknownJob {
        /// The id of the job.
        id: i64,
        /// The name of the queue.
        queue: String,
    },
    /// The job cannot be requeued, because another job that waits, runs or is done has its unique id.
    #[error(
        "job {id} cannot be requeued: a newer job has its unique id; leave it to that job, or cancel that job first"
    )]
    UniqueIdTaken {
        /// The id of the job.
        id: i64,
    },
    /// The job reserved nothing from this limit for this key.
    #[error(
        "job {id} reserved nothing from the limit \"{limit}\" for this key; settle a limit and key that it reserved"
    )]
    NotReserved {
        /// The id of the job.
        id: i64,
        /// The limit's name.
        limit: String,
    },
    /// The job has not started or was cancelled, so there is nothing to settle.
    #[error("job {id} has not started or was cancelled, so there is nothing to settle; settle a job after it starts")]
    NotStarted {
        /// The id of the job.
        id: i64,
    },
}
