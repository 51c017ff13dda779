use std::sync::Arc;

use sqlx::{PgConnection, Row};

use crate::sql::Batch;
use crate::sql::query::bind_items;
use crate::sql::queue::QueueStatements;

/// Jobs as arrays, with one element for each job.
#[derive(Debug, Default)]
pub(crate) struct JobArrays {
    pub(crate) keys: Vec<String>,
    pub(crate) payloads: Vec<String>,
    pub(crate) priorities: Vec<i32>,
    pub(crate) unique_ids: Vec<Option<String>>,
    /// In microseconds.
    pub(crate) jitters: Vec<i64>,
    /// In microseconds since the Unix epoch.
    pub(crate) not_befores: Vec<Option<i64>>,
    pub(crate) max_attempts: Vec<i32>,
    /// In microseconds.
    pub(crate) max_ages: Vec<Option<i64>>,
    /// The jobs wait for a turn of their group. `None`: the queue has no turns.
    pub(crate) weights: Option<Vec<i32>>,
    /// The number of slot items of each job.
    pub(crate) slot_sizes: Vec<i32>,
    /// One element for each slot item.
    pub(crate) slot_names: Vec<Arc<str>>,
    pub(crate) slot_keys: Vec<Arc<str>>,
    pub(crate) slot_counts: Vec<f64>,
}

/// The result for one job.
#[derive(Clone, Debug)]
pub(crate) struct EnqueueAnswer {
    /// `scheduled`, `duplicate`, `denied` or `past`.
    pub(crate) outcome: String,
    pub(crate) id: Option<i64>,
    pub(crate) run_at: Option<i64>,
    pub(crate) wait: Option<i64>,
    pub(crate) ahead: Option<i64>,
    /// The state of the existing job, if this one is a duplicate.
    pub(crate) state: Option<String>,
    /// One for each item of its call.
    pub(crate) denied: Vec<bool>,
    pub(crate) balances: Vec<f64>,
}

/// Enqueues jobs. `batch` contains the reservation of each job.
pub(crate) async fn enqueue(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
    batch: &Batch,
    jobs: &JobArrays,
    only_estimate: bool,
) -> Result<Vec<EnqueueAnswer>, sqlx::Error> {
    let has_slots = !jobs.slot_names.is_empty();
    let query = bind_items(statements.enqueue.query().bind(queue), batch)
        .bind(&jobs.keys)
        .bind(&jobs.payloads)
        .bind(&jobs.priorities)
        .bind(&jobs.unique_ids)
        .bind(&jobs.jitters)
        .bind(&jobs.not_befores)
        .bind(&jobs.max_attempts)
        .bind(only_estimate)
        .bind(has_slots.then_some(&jobs.slot_sizes))
        .bind(has_slots.then(|| jobs.slot_names.iter().map(|name| &**name).collect::<Vec<&str>>()))
        .bind(has_slots.then(|| jobs.slot_keys.iter().map(|key| &**key).collect::<Vec<&str>>()))
        .bind(has_slots.then_some(&jobs.slot_counts))
        .bind(jobs.max_ages.iter().any(Option::is_some).then_some(&jobs.max_ages))
        .bind(&jobs.weights);
    let row = query.fetch_one(conn).await?;
    let outcomes: Vec<String> = row.try_get("job_outcomes")?;
    let ids = optional(row.try_get("job_ids")?);
    let run_ats = optional(row.try_get("job_run_ats")?);
    let waits = optional(row.try_get("job_waits")?);
    let aheads = optional(row.try_get("job_aheads")?);
    let states: Option<Vec<Option<String>>> = row.try_get("job_states")?; // NULL: there are no duplicates.
    let denied: Option<Vec<bool>> = row.try_get("item_refused")?; // NULL: none were.
    let balances: Vec<f64> = row.try_get("item_values")?;
    let mut item = 0;
    let answers = outcomes.into_iter().zip(batch.sizes()).enumerate().map(|(nth, (outcome, size))| {
        let items = item..item + size;
        item += size;
        EnqueueAnswer {
            outcome,
            id: ids(nth),
            run_at: run_ats(nth),
            wait: waits(nth),
            ahead: aheads(nth),
            state: states.as_ref().and_then(|all| all.get(nth).cloned().flatten()),
            denied: denied.as_ref().and_then(|all| all.get(items.clone())).unwrap_or_default().to_vec(),
            balances: balances.get(items).unwrap_or_default().to_vec(),
        }
    });
    Ok(answers.collect())
}

/// Returns a lookup in an array that ends with its last non-NULL element, or that is NULL as a whole.
fn optional(array: Option<Vec<Option<i64>>>) -> impl Fn(usize) -> Option<i64> {
    move |nth| array.as_ref()?.get(nth).copied().flatten()
}
