//! The task that has the calls of a lane decided, for as long as there are any.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::error::{Cause, Error, Phase, classify, share};
use crate::limiter::attempt::{Failure, before, exhausted};
use crate::limiter::combine::Combiner;
use crate::limiter::combine::lane::{Lane, Waiting};
use crate::limiter::combine::link::attempt;
use crate::retry::Attempts;
use crate::sql::{Answer, Batch};

/// Even if the runtime ends under it, nobody waits for ever.
struct Driving<'a>(Option<&'a Lane>);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.0 {
            lane.abandon();
        }
    }
}

pub(super) async fn drive(combiner: Arc<Combiner>, nth: usize) {
    let lane = &combiner.lanes[nth];
    let mut driving = Driving(Some(lane));
    while let Some(calls) = lane.take(combiner.max_batch) {
        settle(&combiner, nth, calls).await;
        // Those who were answered ask again before the next batch is closed, if they are quick.
        tokio::task::yield_now().await;
    }
    driving.0 = None;
}

/// Answers all of them.
async fn settle(combiner: &Combiner, nth: usize, mut calls: Vec<Waiting>) {
    let Some(deadline) = earliest(&calls) else { return };
    let mut attempts = Attempts::until(&combiner.retry, deadline);
    let mut alone = false;
    loop {
        calls.retain(|waiting| !waiting.reply.is_closed());
        if calls.is_empty() {
            return;
        }
        let mut batch = Batch::new();
        calls.iter().for_each(|waiting| batch.add(&waiting.call, None));
        let Failure { phase, error } =
            match in_turn(combiner, nth, &lanes(combiner, nth, &calls, alone), &batch, attempts.deadline()).await {
                Ok(answers) => {
                    combiner.batches.fetch_add(1, Ordering::Relaxed);
                    for (Waiting { call, reply, .. }, answer) in calls.into_iter().zip(answers) {
                        let _ = reply.send(Ok((call, answer))); // A caller who has gone is charged, and not told.
                    }
                    return;
                }
                Err(failure) => failure,
            };
        let cause = classify(&error, phase);
        // Lanes share no key, but an index page: under SERIALIZABLE, new keys of one may be a conflict for another. The
        // second time nobody of this process is in the way.
        alone = cause == Cause::Conflict;
        match cause {
            Cause::Conflict | Cause::Connection => match combiner.delay_before_retry(&mut attempts, &error) {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return refuse(calls, |error| exhausted(&attempts, error, phase), &error),
            },
            // For some there may still be time.
            Cause::Busy => {
                let now = Instant::now();
                let (late, left): (Vec<_>, Vec<_>) = calls.into_iter().partition(|waiting| waiting.deadline <= now);
                refuse(late, |source| Error::Unavailable { source }, &error);
                let Some(deadline) = earliest(&left) else { return };
                calls = left;
                attempts = Attempts::until(&combiner.retry, deadline);
            }
            // One of them is to blame, and the others are not.
            Cause::Data if calls.len() > 1 => {
                for waiting in calls {
                    Box::pin(settle(combiner, nth, vec![waiting])).await;
                }
                return;
            }
            _ => {
                let schema = combiner.rate_limits.schema().name();
                return refuse(calls, |error| Error::of_attempt(error, phase, schema), &error);
            }
        }
    }
}

fn earliest(calls: &[Waiting]) -> Option<Instant> {
    calls.iter().map(|waiting| waiting.deadline).min()
}

fn refuse(calls: Vec<Waiting>, why: impl Fn(sqlx::Error) -> Error, error: &sqlx::Error) {
    calls.into_iter().for_each(|waiting| waiting.refuse(why(share(error))));
}

/// The lanes whose turn it has to be for these calls.
fn lanes(combiner: &Combiner, nth: usize, calls: &[Waiting], alone: bool) -> BTreeSet<usize> {
    if alone {
        return (0..combiner.lanes.len()).collect();
    }
    let groups = calls.iter().filter(|waiting| waiting.call.items.len() > 1);
    let mut lanes: BTreeSet<usize> =
        groups.flat_map(|waiting| waiting.call.items.iter().map(|item| combiner.lane(item))).collect();
    lanes.insert(nth);
    lanes
}

/// Waits until no other batch with a key of these lanes is under way. Turns are taken in one order.
async fn in_turn(
    combiner: &Combiner,
    nth: usize,
    lanes: &BTreeSet<usize>,
    batch: &Batch,
    deadline: Instant,
) -> Result<Vec<Answer>, Failure> {
    let mut turns = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let turn = before(deadline, async { Ok(combiner.lanes[*lane].turn.lock().await) }).await;
        turns.push((*lane, turn.map_err(Failure::at(Phase::Begin))?));
    }
    match turns.iter_mut().find(|(lane, _)| *lane == nth) {
        Some((_, link)) => attempt(combiner, link, batch, deadline).await,
        None => Err(Failure { phase: Phase::Begin, error: sqlx::Error::WorkerCrashed }), // It is among them.
    }
}
