//! The statement that enqueues jobs.

use std::sync::Arc;

use sqlx::PgConnection;

use crate::queue::job::ReadyJob;
use crate::sql::Batch;
use crate::sql::queue::{EnqueueAnswer, JobArrays, QueueStatements, enqueue};

/// Jobs that one statement enqueues, in this order.
#[derive(Debug)]
pub(super) struct Enqueueing<'a> {
    queue: &'a str,
    batch: Batch,
    jobs: JobArrays,
    only_estimate: bool,
}

impl<'a> Enqueueing<'a> {
    pub(super) fn new(queue: &'a str, jobs: &[&ReadyJob], only_estimate: bool) -> Self {
        let mut batch = Batch::new();
        let mut arrays = JobArrays::default();
        for job in jobs {
            batch.add(&job.call, None);
            arrays.keys.push(job.key.clone());
            arrays.payloads.push(job.payload.clone());
            arrays.priorities.push(job.priority);
            arrays.unique_ids.push(job.unique_id.clone());
            arrays.jitters.push(job.jitter);
            arrays.not_befores.push(job.not_before);
            arrays.max_attempts.push(job.max_attempts);
            arrays.max_ages.push(job.max_age);
            if let Some(weight) = job.weight.filter(|_| !only_estimate) {
                arrays.weights.get_or_insert_default().push(weight);
            }
            arrays.slot_sizes.push(i32::try_from(job.slots.len()).unwrap_or(i32::MAX));
            for slot in &job.slots {
                arrays.slot_names.push(Arc::clone(&slot.name));
                arrays.slot_keys.push(Arc::clone(&slot.key));
                arrays.slot_counts.push(slot.count);
            }
        }
        Self { queue, batch, jobs: arrays, only_estimate }
    }

    pub(super) async fn send(
        &self,
        connection: &mut PgConnection,
        statements: &QueueStatements,
    ) -> Result<Vec<EnqueueAnswer>, sqlx::Error> {
        enqueue(connection, statements, self.queue, &self.batch, &self.jobs, self.only_estimate).await
    }
}
