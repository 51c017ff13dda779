//! Queues and groups that are paused, resumed and drained.

use std::sync::Arc;

use sqlx::PgConnection;

use crate::call::{Key, is_hash};
use crate::error::Error;
use crate::queue::Queue;
use crate::queue::context::Running;
use crate::sql::queue::{QueueStatements, drain, pause, resume};

/// A statement about a queue, or about one of its groups.
type ChangeCall =
    for<'c> fn(&'c mut PgConnection, &'c QueueStatements, &'c (Arc<str>, Option<String>)) -> Running<'c, bool>;

impl Queue {
    /// Pauses the queue: no job starts until it is [resumed](Self::resume). Jobs that run go on, and new jobs are enqueued as
    /// before: the times of their tickets are those without the pause. Returns `false` if it was paused already. A claim that has
    /// begun may still start jobs for some milliseconds. After the pause, late jobs start as fast as their limits allow.
    pub async fn pause(&self) -> Result<bool, Error> {
        self.change(None, |conn, sql, (name, group)| Box::pin(pause(conn, sql, name, group.as_deref()))).await
    }

    /// Ends the pause of the queue, and a [drain](Self::drain): its jobs start, as their limits allow, and it takes new ones.
    /// Groups that are paused stay so. Returns whether the queue was paused or draining.
    pub async fn resume(&self) -> Result<bool, Error> {
        self.change(None, |conn, sql, (name, group)| Box::pin(resume(conn, sql, name, group.as_deref()))).await
    }

    /// Pauses one group of the queue, as [`pause`](Self::pause) does for all of it. If keys are hashed, pass either the group itself
    /// or its hash, as in [`GroupCounts::group`](crate::queue::GroupCounts::group): a text in the form of a hash is taken for one.
    pub async fn pause_group(&self, group: impl Into<Key> + Send) -> Result<bool, Error> {
        let given = group.into();
        let stored = match self.context.limiter.transaction_limiter().key_secret() {
            Some(secret) if !is_hash(&given.0) => secret.group(&given),
            _ => given,
        };
        self.change(Some(stored.0.to_string()), |conn, sql, (name, group)| {
            Box::pin(pause(conn, sql, name, group.as_deref()))
        })
        .await
    }

    /// Ends the pause of a group: its jobs start again, as soon as their limits allow. If the group is not paused, this ends its wait
    /// after [`Finish::Wait`](crate::queue::Finish::Wait); so such a wait outlasts a pause. Returns whether there was a pause or a
    /// wait to end. See [`pause_group`](Self::pause_group) for the group's name.
    pub async fn resume_group(&self, group: impl Into<Key> + Send) -> Result<bool, Error> {
        let mut is_changed = false;
        for group in self.stored_groups(&group.into()) {
            let resume = self
                .change(Some(group), |conn, sql, (name, group)| Box::pin(resume(conn, sql, name, group.as_deref())));
            is_changed |= resume.await?;
        }
        Ok(is_changed)
    }

    /// Lets the queue run empty: it takes no new jobs until it is [resumed](Self::resume), and works off those that it has, retries
    /// included. An enqueue fails with [`InvalidJob::Draining`](crate::InvalidJob::Draining). Returns how many jobs wait or run. Call it again to see how many
    /// are left. Enqueues in transactions that have begun before may still commit.
    pub async fn drain(&self) -> Result<u64, Error> {
        let left = self.context.own(&*self.name, |conn, sql, name| Box::pin(drain(conn, sql, name)));
        Ok(left.await?.unsigned_abs())
    }

    async fn change(&self, group: Option<String>, call: ChangeCall) -> Result<bool, Error> {
        self.context.own((Arc::clone(&self.name), group), call).await
    }

    /// The names under which a group may be stored: if keys are hashed, the caller may know it by its name or by its hash.
    pub(super) fn stored_groups(&self, group: &Key) -> Vec<String> {
        let secret = self.context.limiter.transaction_limiter().key_secret();
        let hashed = secret.map(|secret| secret.group(group));
        hashed.iter().chain([group]).map(|group| group.0.to_string()).collect()
    }
}
