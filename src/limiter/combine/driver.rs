//! The tasks that have the calls of a lane decided, for as long as there are any.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::Instrument;

use crate::error::{Cause, Error, share};
use crate::limiter::attempt::{Failure, exhausted};
use crate::limiter::combine::Combiner;
use crate::limiter::combine::beside::{Beside, Held};
use crate::limiter::combine::in_flight::InFlight;
use crate::limiter::combine::lane::{Lane, Waiting};
use crate::observability;
use crate::retry::Attempts;
use crate::sql::Bucket;

/// How long a batch in a lane waits for one lock. A commit takes a fraction of a millisecond, or some where the disk is slow;
/// what takes longer is held up by its owner.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_millis(50);

/// Work that is sent in batches: calls of a limiter, jobs of a queue.
pub(crate) trait Batched: Send + Sync + 'static {
    type Call: Send + Sync + 'static;
    type Answer: Send + 'static;
    /// The state that a lane needs for a batch.
    type Links: Default + Send + 'static;

    /// For metrics and traces.
    const OP: &'static str;

    fn combiner(&self) -> &Combiner;

    fn lanes(&self) -> &Lanes<Self::Call, Self::Answer, Self::Links>;

    /// The most calls of a batch.
    fn most(&self) -> usize;

    /// The lane of a call.
    fn lane(&self, call: &Self::Call) -> usize;

    /// The rows that a call may have to wait for.
    fn buckets(call: &Self::Call) -> Vec<Bucket>;

    /// Those of the calls that are not to be in one statement with the others come second.
    fn apart(&self, calls: Vec<Waiting<Self::Call, Self::Answer>>) -> [Vec<Waiting<Self::Call, Self::Answer>>; 2];

    /// Whether one of several calls is to blame for such a failure, and the others are not.
    fn blames_one(cause: Cause) -> bool {
        cause == Cause::Data
    }

    /// One attempt. `None` for a call that is still to be decided: then once more, `one_by_one`, which decides all of them.
    fn send(
        &self,
        calls: &[Waiting<Self::Call, Self::Answer>],
        place: Place,
        one_by_one: bool,
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<Option<Self::Answer>>, Failure>> + Send;

    /// Which of these buckets have a row that another transaction has locked; `None` for one without a row.
    fn look_for_held(
        &self,
        nth: usize,
        buckets: &[Bucket],
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<Option<bool>>, Failure>> + Send;
}

/// Where a batch is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// In its lane; `alone`: while no other lane of the process has one under way.
    Lane { nth: usize, alone: bool },
    /// Beside it, where it may wait for each lock for so long.
    Beside { lock_timeout: Duration },
}

/// The lanes, and what waits beside them.
pub(crate) struct Lanes<C, A, T> {
    pub(crate) lanes: Box<[Lane<C, A, T>]>,
    beside: Beside<C, A>,
    in_flight: InFlight,
    /// Some call has asked several buckets: then two lanes may ask the same one.
    have_groups: AtomicBool,
}

impl<C, A, T: Default> Lanes<C, A, T> {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            lanes: (0..count.max(1)).map(|_| Lane::default()).collect(),
            beside: Beside::default(),
            in_flight: InFlight::default(),
            have_groups: AtomicBool::new(false),
        }
    }

    pub(crate) fn has_group(&self) {
        self.have_groups.store(true, Ordering::Relaxed);
    }

    /// Whether a call of one lane may ask what a batch of another one asks.
    fn may_meet(&self) -> bool {
        self.lanes.len() > 1 && self.have_groups.load(Ordering::Relaxed)
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.lanes.iter().any(Lane::is_shut)
    }

    /// Lets nothing more in, and waits until all that is in has its answer.
    pub(crate) async fn close(&self) {
        self.lanes.iter().for_each(Lane::shut); // All of them before any is waited for.
        // Calls that wait beside a lane may go back to it.
        loop {
            for lane in &self.lanes {
                lane.close().await;
            }
            self.beside.close().await;
            if self.lanes.iter().all(Lane::is_idle) {
                break;
            }
        }
    }
}

type Asked<W> = Waiting<<W as Batched>::Call, <W as Batched>::Answer>;

/// Even if the runtime ends under it, nobody waits for ever.
struct Driving<W: Batched> {
    work: Arc<W>,
    nth: usize,
    done: bool,
}

impl<W: Batched> Drop for Driving<W> {
    fn drop(&mut self) {
        if !self.done {
            self.work.lanes().in_flight.leave(self.nth);
            self.work.lanes().lanes[self.nth].abandon();
        }
    }
}

/// Not an `async fn`: a task that is dropped before it has begun has to leave a word, too.
pub(crate) fn drive<W: Batched>(work: Arc<W>, nth: usize) -> impl Future<Output = ()> + Send {
    run(Driving { work, nth, done: false })
}

async fn run<W: Batched>(mut driving: Driving<W>) {
    let (work, nth) = (Arc::clone(&driving.work), driving.nth);
    let lanes = work.lanes();
    let lane = &lanes.lanes[nth];
    loop {
        // Those who were woken at the same time come along. (Before taking, not after answering: a runtime that nobody
        // runs any more must not keep a lane that has nothing to do.)
        tokio::task::yield_now().await;
        let Some(calls) = lane.take(work.most()) else { break };
        let (left, undriven) = lanes.beside.divert(calls, W::buckets);
        start_beside(&work, undriven);
        if lanes.may_meet() {
            let ended = lanes.in_flight.ended();
            tokio::pin!(ended);
            ended.as_mut().enable(); // Before looking, or a batch may end in between.
            let (now, claim, later) = lanes.in_flight.claim(nth, left, W::buckets);
            let waits_until = if now.is_empty() { earliest(&later) } else { None };
            lane.put_back(later);
            if let Some(deadline) = waits_until {
                if tokio::time::timeout_at(deadline.into(), ended).await.is_err() {
                    refuse_late(lane.take_late(deadline));
                }
                continue;
            }
            settle_all(&work, Place::Lane { nth, alone: false }, now).await;
            drop(claim);
        } else {
            settle_all(&work, Place::Lane { nth, alone: false }, left).await;
        }
        if lane.rest() {
            break;
        }
    }
    if lanes.may_meet() {
        lanes.in_flight.leave(nth);
    }
    driving.done = true;
}

/// Beside a lane, returns those that have not got their locks in their turn.
async fn settle_all<W: Batched>(work: &Arc<W>, place: Place, mut calls: Vec<Asked<W>>) -> Vec<Asked<W>> {
    let mut left = Vec::new();
    while !calls.is_empty() {
        let now;
        [now, calls] = work.apart(calls);
        left.extend(settle(work, place, now).await);
    }
    left
}

/// As `Driving`, of a queue beside the lanes.
struct DrivingBeside<W: Batched> {
    work: Arc<W>,
    held: Held,
    done: bool,
}

impl<W: Batched> Drop for DrivingBeside<W> {
    fn drop(&mut self) {
        if !self.done {
            self.work.lanes().beside.abandon(&self.held);
        }
    }
}

fn start_beside<W: Batched>(work: &Arc<W>, undriven: Vec<Held>) {
    for held in undriven {
        tokio::spawn(run_beside(DrivingBeside { work: Arc::clone(work), held, done: false }));
    }
}

/// Not an `async fn`, so that it can be spawned by what it calls.
fn run_beside<W: Batched>(driving: DrivingBeside<W>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let mut driving = driving; // All of it.
        let (work, held) = (Arc::clone(&driving.work), driving.held.clone());
        let beside = &work.lanes().beside;
        while let Some(calls) = beside.take(&held, work.most()) {
            let Some(deadline) = earliest(&calls) else { continue };
            let Some(place) = beside.place(deadline).await else {
                let (late, left) = calls.into_iter().partition(|waiting: &Asked<W>| waiting.deadline <= deadline);
                refuse_late(late);
                beside.put_back(&held, left);
                continue;
            };
            let began = Instant::now();
            let left = settle_all(&work, Place::Beside { lock_timeout: beside.turn() }, calls).await;
            drop(place);
            let was_free = left.is_empty() && began.elapsed() < LOCK_TIMEOUT;
            beside.put_back(&held, left);
            if was_free {
                back_to_lanes(&work, beside.end(&held));
                break;
            }
            beside.linger(&held);
        }
        driving.done = true;
        if beside.is_empty() {
            work.combiner().close_spare_links().await;
        }
    })
}

fn back_to_lanes<W: Batched>(work: &Arc<W>, calls: Vec<Asked<W>>) {
    let lanes = &work.lanes().lanes;
    let mut by_lane: Vec<Vec<Asked<W>>> = lanes.iter().map(|_| Vec::new()).collect();
    calls.into_iter().for_each(|waiting| by_lane[work.lane(&waiting.call)].push(waiting));
    for (nth, calls) in by_lane.into_iter().enumerate() {
        if lanes[nth].put_back(calls) {
            tokio::spawn(drive(Arc::clone(work), nth));
        }
    }
}

fn refuse_late<C, A>(late: Vec<Waiting<C, A>>) {
    for waiting in late {
        waiting.refuse(Error::Unavailable { source: sqlx::Error::PoolTimedOut });
    }
}

/// Answers the calls, or hands those on locked rows over to a queue beside the lane. Beside it, returns those that have not got
/// their locks in their turn.
async fn settle<W: Batched>(work: &Arc<W>, mut place: Place, mut calls: Vec<Asked<W>>) -> Vec<Asked<W>> {
    let combiner = work.combiner();
    let Some(deadline) = earliest(&calls) else { return calls };
    let mut attempts = Attempts::until(&combiner.retry, deadline);
    let (mut has_looked, mut one_by_one) = (false, false);
    loop {
        calls.retain(|waiting| !waiting.reply.is_closed());
        if calls.is_empty() {
            return calls;
        }
        let spans = calls.iter().map(|waiting| &waiting.span);
        let span = observability::deciding(W::OP, calls.len(), attempts.made(), spans);
        let sent = work.send(&calls, place, one_by_one, attempts.deadline()).instrument(span.clone()).await;
        let failure = match sent {
            Ok(answers) => {
                span.record("outcome", "done");
                let decided = answers.iter().flatten().count();
                if decided > 0 {
                    observability::batch(W::OP, decided);
                }
                let mut open = Vec::new();
                for (waiting, answer) in calls.into_iter().zip(answers) {
                    match answer {
                        // A call is charged even if its caller has gone.
                        Some(answer) => drop(waiting.reply.send(Ok((waiting.call, answer)))),
                        None => open.push(waiting),
                    }
                }
                if open.is_empty() {
                    return open;
                }
                (calls, one_by_one) = (open, true);
                continue;
            }
            Err(failure) => failure,
        };
        let cause = failure.cause(combiner.known_engine());
        span.record("outcome", cause.as_str());
        let Failure { phase, error } = failure;
        match (&mut place, cause) {
            (Place::Beside { .. }, Cause::Locked) => return calls,
            (Place::Lane { nth, .. }, Cause::Locked | Cause::Busy) => {
                let before = calls.len();
                calls = leave_lane(work, *nth, calls, has_looked, attempts.deadline()).await;
                // Once more at once: without those that left, or to see whether the lock was let go meanwhile.
                if calls.len() < before || !std::mem::replace(&mut has_looked, true) {
                    continue;
                }
            }
            // Lanes share no key, but an index page: under SERIALIZABLE, new keys of one may be a conflict for another. The
            // second time nobody of this process is in the way.
            (Place::Lane { alone, .. }, _) => *alone = cause == Cause::Conflict,
            (Place::Beside { .. }, _) => {}
        }
        match cause {
            // The one that was first has committed just now: this is the best moment to try again. Once.
            Cause::Conflict
                if attempts.made() == 1 && combiner.retry_at_once(&mut attempts, cause.as_str(), &error) => {}
            Cause::Conflict | Cause::Connection | Cause::Busy | Cause::Locked => {
                if let Some(delay) = combiner.delay_before_retry(&mut attempts, cause.as_str(), &error) {
                    tokio::time::sleep(delay).await;
                    continue;
                }
                let until = if attempts.are_used_up() { None } else { Some(attempts.deadline()) };
                // For some there may still be time.
                let is_late = |waiting: &Asked<W>| until.is_none_or(|until| waiting.deadline <= until);
                let (late, left): (Vec<_>, Vec<_>) = calls.into_iter().partition(is_late);
                refuse(late, |error| exhausted(&attempts, error, cause), error);
                let Some(deadline) = earliest(&left) else { return left };
                calls = left;
                attempts.postpone(deadline);
            }
            cause if calls.len() > 1 && W::blames_one(cause) => {
                let mut left = Vec::new();
                for waiting in calls {
                    left.extend(Box::pin(settle(work, place, vec![waiting])).await);
                }
                return left;
            }
            _ => {
                let schema = combiner.rate_limits.schema().name();
                refuse(calls, |error| Error::of_attempt(error, phase, combiner.known_engine(), schema), error);
                return Vec::new();
            }
        }
    }
}

/// Hands the calls on locked rows over to queues beside the lane. Returns the others.
async fn leave_lane<W: Batched>(
    work: &Arc<W>,
    nth: usize,
    calls: Vec<Asked<W>>,
    has_looked: bool,
    deadline: Instant,
) -> Vec<Asked<W>> {
    let asked: HashSet<Bucket> = calls.iter().flat_map(|waiting| W::buckets(&waiting.call)).collect();
    let held = if asked.len() == 1 {
        asked
    } else {
        let asked: Vec<Bucket> = asked.into_iter().collect();
        let looked = work.look_for_held(nth, &asked, deadline).await.unwrap_or_default();
        let state = |place: usize| looked.get(place).copied().flatten();
        let those = |wanted: Option<bool>| {
            let chosen = asked.iter().enumerate().filter(|(place, _)| state(*place) == wanted);
            chosen.map(|(_, bucket)| bucket.clone()).collect::<HashSet<Bucket>>()
        };
        match those(Some(true)) {
            // Only the transaction that inserts a row sees it before the commit.
            held if held.is_empty() && has_looked => those(None),
            held => held,
        }
    };
    let (others, undriven) = work.lanes().beside.take_in(calls, &held, W::buckets);
    start_beside(work, undriven);
    others
}

fn earliest<C, A>(calls: &[Waiting<C, A>]) -> Option<Instant> {
    calls.iter().map(|waiting| waiting.deadline).min()
}

/// The last of them gets the error itself, the others an equal one.
fn refuse<C, A>(mut calls: Vec<Waiting<C, A>>, why: impl Fn(sqlx::Error) -> Error, error: sqlx::Error) {
    let Some(last) = calls.pop() else { return };
    calls.into_iter().for_each(|waiting| waiting.refuse(why(share(&error))));
    last.refuse(why(error));
}
