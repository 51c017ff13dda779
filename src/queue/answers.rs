//! What the database answers about a job.

use std::sync::Arc;

use crate::call::{Item, Op};
use crate::error::{Error, InvalidJob};
use crate::queue::JobState;
use crate::sql::TransactionLimiter;

/// Returns the job's state, or an error if there is no such job.
pub(super) fn found(state: Option<String>, id: i64, queue: &str) -> Result<JobState, Error> {
    match state {
        Some(state) => Ok(JobState::of(&state)),
        None => Err(InvalidJob::UnknownJob { id, queue: queue.to_owned() }.into()),
    }
}

/// The count that a job actually used, with its limit and key.
pub(super) struct Settled {
    pub(super) limit: String,
    /// The keys to try: the hash of the given key, then the given key itself, because handlers get keys as they are stored.
    pub(super) keys: Vec<Arc<str>>,
    pub(super) count: f64,
}

impl Settled {
    /// Checks the item to settle like one that is charged.
    pub(super) fn new(limits: &TransactionLimiter, used: Item) -> Result<Self, Error> {
        let limit = used.limit.name.to_string();
        if used.limit.inline.is_some() {
            return Err(InvalidJob::InlineLimit { limit }.into());
        }
        let given = used.key.0.clone();
        let call = limits.resolve(Op::Charge, used.into())?;
        let item = &call.items[0];
        let mut keys = vec![item.key.clone()];
        if item.key != given {
            keys.push(given);
        }
        Ok(Self { limit, keys, count: item.count })
    }
}

/// Whether the database answered that the job reserved nothing from this limit and key.
pub(super) fn no_such_item(said: Option<&str>) -> bool {
    said == Some("no_such_item")
}

/// Converts the database's answer to a settle: `true` if the item was settled now, `false` if it was settled before.
pub(super) fn settled(said: Option<String>, id: i64, queue: &str, limit: &str) -> Result<bool, Error> {
    match said.as_deref() {
        Some("settled") => Ok(true),
        Some("already") => Ok(false),
        Some("no_such_item") => Err(InvalidJob::NotReserved { id, limit: limit.to_owned() }.into()),
        Some(_) => Err(InvalidJob::NotStarted { id }.into()),
        None => Err(InvalidJob::UnknownJob { id, queue: queue.to_owned() }.into()),
    }
}

pub(super) fn missing() -> Error {
    Error::Database { source: sqlx::Error::RowNotFound }
}
