//! The task that has the calls of a lane decided, for as long as there are any.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tracing::Instrument;

use crate::error::{Cause, Error, Phase, share};
use crate::limiter::attempt::{Failure, before, exhausted};
use crate::limiter::combine::Combiner;
use crate::limiter::combine::combiner::Asked as Waiting;
use crate::limiter::combine::link::attempt;
use crate::observability;
use crate::retry::Attempts;
use crate::sql::{Answer, Batch};

/// Even if the runtime ends under it, nobody waits for ever.
struct Driving {
    combiner: Arc<Combiner>,
    nth: usize,
    done: bool,
}

impl Drop for Driving {
    fn drop(&mut self) {
        if !self.done {
            self.combiner.lanes[self.nth].abandon();
        }
    }
}

/// Not an `async fn`: a task that is dropped before it has begun has to leave a word, too.
pub(super) fn drive(combiner: Arc<Combiner>, nth: usize) -> impl Future<Output = ()> + Send {
    run(Driving { combiner, nth, done: false })
}

async fn run(mut driving: Driving) {
    let (combiner, nth) = (Arc::clone(&driving.combiner), driving.nth);
    let lane = &combiner.lanes[nth];
    loop {
        // Those who were woken at the same time come along. (Before taking, not after answering: a runtime that nobody
        // runs any more must not keep a lane that has nothing to do.)
        tokio::task::yield_now().await;
        let Some(calls) = lane.take(combiner.max_batch) else { break };
        settle(&combiner, nth, calls).await;
        if lane.rest() {
            break;
        }
    }
    driving.done = true;
}

/// What becomes of calls whose rows somebody holds for long.
#[derive(Clone, Copy)]
enum Held {
    /// They come back.
    Back,
    /// They come back from this moment on.
    BackAt(Instant),
    /// They are tried for as long as they have time.
    Tried,
}

/// Answers all of them.
async fn settle(combiner: &Combiner, nth: usize, calls: Vec<Waiting>) {
    let held = try_to_settle(combiner, nth, calls, Held::Back).await;
    if held.is_empty() {
        return;
    }
    // The trouble of those who ask for that row, not of the others: each bucket gets a part of the time that is left, and
    // what is held then, all the rest.
    let mut rest = Vec::new();
    for calls in by_bucket(held) {
        let now = Instant::now();
        let left = earliest(&calls).map_or(Duration::ZERO, |deadline| deadline.saturating_duration_since(now));
        rest.extend(try_to_settle(combiner, nth, calls, Held::BackAt(now + left / 16)).await);
    }
    try_to_settle(combiner, nth, rest, Held::Tried).await;
}

/// Calls on one bucket stay together, in their order.
fn by_bucket(calls: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    let mut groups: Vec<Vec<Waiting>> = Vec::new();
    for waiting in calls {
        let same = |group: &&mut Vec<Waiting>| {
            let (mine, theirs) = (&waiting.call.items, &group[0].call.items);
            mine.len() == 1 && theirs.len() == 1 && mine[0].key == theirs[0].key && mine[0].name == theirs[0].name
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(waiting),
            None => groups.push(vec![waiting]),
        }
    }
    groups
}

/// Answers them, but for those who come back because their rows are held.
async fn try_to_settle(combiner: &Combiner, nth: usize, mut calls: Vec<Waiting>, held: Held) -> Vec<Waiting> {
    let Some(deadline) = earliest(&calls) else { return calls };
    let mut attempts = Attempts::until(&combiner.retry, deadline);
    let mut alone = false;
    loop {
        calls.retain(|waiting| !waiting.reply.is_closed());
        if calls.is_empty() {
            return calls;
        }
        let mut batch = Batch::new();
        calls.iter().for_each(|waiting| batch.add(&waiting.call, None));
        let deadline = match held {
            Held::BackAt(moment) => attempts.deadline().min(moment),
            Held::Back | Held::Tried => attempts.deadline(),
        };
        let spans = calls.iter().map(|waiting| &waiting.span);
        let span = observability::deciding("decide", calls.len(), attempts.made(), spans);
        let lanes = lanes(combiner, nth, &calls, alone);
        let decided = in_turn(combiner, nth, &lanes, &batch, deadline).instrument(span.clone()).await;
        let failure = match decided {
            Ok(answers) => {
                span.record("outcome", "done");
                observability::batch("decide", calls.len());
                combiner.batches.fetch_add(1, Ordering::Relaxed);
                for (Waiting { call, reply, .. }, answer) in calls.into_iter().zip(answers) {
                    let _ = reply.send(Ok((call, answer))); // A caller who has gone is charged, and not told.
                }
                return Vec::new();
            }
            Err(failure) => failure,
        };
        let cause = failure.cause(combiner.known_engine());
        span.record("outcome", cause.as_str());
        let Failure { phase, error } = failure;
        // Lanes share no key, but an index page: under SERIALIZABLE, new keys of one may be a conflict for another. The
        // second time nobody of this process is in the way.
        alone = cause == Cause::Conflict;
        let comes_back = match held {
            Held::Back => cause == Cause::Busy && batch.has_several_buckets(),
            Held::BackAt(moment) => Instant::now() >= moment,
            Held::Tried => false,
        };
        match cause {
            Cause::Busy | Cause::Connection if comes_back => return calls,
            // The one that was first has committed just now: this is the best moment to try again. Once.
            Cause::Conflict
                if attempts.made() == 1 && combiner.retry_at_once(&mut attempts, cause.as_str(), &error) => {}
            Cause::Conflict | Cause::Connection | Cause::Busy => {
                if let Some(delay) = combiner.delay_before_retry(&mut attempts, cause.as_str(), &error) {
                    tokio::time::sleep(delay).await;
                    continue;
                }
                let until = if attempts.are_used_up() { None } else { Some(attempts.deadline()) };
                // For some there may still be time.
                let is_late = |waiting: &Waiting| until.is_none_or(|until| waiting.deadline <= until);
                let (late, left): (Vec<_>, Vec<_>) = calls.into_iter().partition(is_late);
                refuse(late, |error| exhausted(&attempts, error, cause), error);
                let Some(deadline) = earliest(&left) else { return left };
                calls = left;
                attempts.postpone(deadline);
            }
            // One of them is to blame, and the others are not.
            Cause::Data if calls.len() > 1 => {
                for waiting in calls {
                    Box::pin(settle(combiner, nth, vec![waiting])).await;
                }
                return Vec::new();
            }
            _ => {
                let schema = combiner.rate_limits.schema().name();
                refuse(calls, |error| Error::of_attempt(error, phase, combiner.known_engine(), schema), error);
                return Vec::new();
            }
        }
    }
}

fn earliest(calls: &[Waiting]) -> Option<Instant> {
    calls.iter().map(|waiting| waiting.deadline).min()
}

/// The last of them gets the error itself, the others an equal one.
fn refuse(mut calls: Vec<Waiting>, why: impl Fn(sqlx::Error) -> Error, error: sqlx::Error) {
    let Some(last) = calls.pop() else { return };
    calls.into_iter().for_each(|waiting| waiting.refuse(why(share(&error))));
    last.refuse(why(error));
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
    let alone = turns.len() == combiner.lanes.len();
    match turns.iter_mut().find(|(lane, _)| *lane == nth) {
        Some((_, links)) => attempt(combiner, links, batch, alone, deadline).await,
        None => Err(Failure { phase: Phase::Begin, error: sqlx::Error::WorkerCrashed }), // It is among them.
    }
}
