//! The tasks that send the calls of a lane, for as long as any wait.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::combine::beside::{Beside, HeldBuckets, LINGERS};
use crate::combine::connection::LOCK_TIMEOUT;
use crate::combine::in_flight::InFlight;
use crate::combine::lane::{Lane, Refused, Waiting};
use crate::combine::lent::Lent;
use crate::error::{Cause, Error, NoRuntime, clone_error};
use crate::observability;
use crate::retry::{Attempts, longest};
use crate::sql::Bucket;
use crate::transact::{Failure, Transactor, exhausted};

/// Work that is sent in batches: the calls of a limiter, or the jobs of a queue.
pub(crate) trait Batched: Send + Sync + 'static {
    type Call: Send + Sync + 'static;
    type Answer: Send + 'static;
    /// The state that a lane needs for a batch.
    type Connections: Default + Send + 'static;

    /// The operation's name in metrics and traces.
    const OP: &'static str;

    fn transactor(&self) -> &Transactor;

    fn lanes(&self) -> &Lanes<Self::Call, Self::Answer, Self::Connections>;

    /// The most calls in a batch.
    fn most(&self) -> usize;

    /// Returns the lane of a call.
    fn lane(&self, call: &Self::Call) -> usize;

    /// Returns the buckets whose rows a call may have to wait for.
    fn buckets(call: &Self::Call) -> Vec<Bucket>;

    /// Splits off the calls for the next statement.
    fn apart(&self, calls: Vec<Waiting<Self::Call, Self::Answer>>) -> Apart<Self::Call, Self::Answer>;

    /// Whether a call writes nothing, so that it can be repeated although its outcome was lost.
    fn only_reads(_: &Self::Call) -> bool {
        false
    }

    /// Whether only one of several calls causes such a failure.
    fn blames_one(cause: Cause) -> bool {
        cause == Cause::Data
    }

    /// Makes one attempt. Returns `None` for a call that is not decided yet. Send it again with `one_by_one`, which
    /// decides every call.
    fn send(
        &self,
        calls: &[Waiting<Self::Call, Self::Answer>],
        route: Route,
        one_by_one: bool,
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<Option<Self::Answer>>, Failure>> + Send;

    /// Returns which of these buckets have a row that another transaction has locked; `None` for a bucket without a
    /// row.
    fn look_for_held(
        &self,
        nth: usize,
        buckets: &[Bucket],
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<Option<bool>>, Failure>> + Send;

    /// Called when no call has waited beside the lanes for a while.
    fn none_is_beside(&self) -> impl Future<Output = ()> + Send;
}

/// The calls of a batch that is too mixed for one statement.
pub(crate) struct Apart<C, A> {
    /// For the next statement.
    pub(crate) now: Vec<Waiting<C, A>>,
    /// For a statement of their own.
    pub(crate) later: Vec<Waiting<C, A>>,
    /// Best decided together with newer calls, after all of the above.
    pub(crate) next: Vec<Waiting<C, A>>,
}

/// Where a batch is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route {
    /// In its lane. If `alone` is set, no other lane of the process decides meanwhile.
    Lane { nth: usize, alone: bool },
    /// Beside the lane, with this longest wait for each lock.
    Beside { lock_timeout: Duration },
}

/// The lanes, and the calls that wait beside them.
pub(crate) struct Lanes<C, A, T> {
    pub(crate) lanes: Box<[Lane<C, A, T>]>,
    beside: Beside<C, A>,
    in_flight: InFlight,
    /// Whether a call has named several buckets. Two lanes can then need the same bucket.
    have_groups: AtomicBool,
    lent: Lent,
}

impl<C, A, T: Default> Lanes<C, A, T> {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            lanes: (0..count.max(1)).map(|_| Lane::default()).collect(),
            beside: Beside::default(),
            in_flight: InFlight::default(),
            have_groups: AtomicBool::new(false),
            lent: Lent::default(),
        }
    }

    pub(crate) fn has_group(&self) {
        self.have_groups.store(true, Ordering::Relaxed);
    }

    /// Whether batches of different lanes can need the same bucket.
    fn may_meet(&self) -> bool {
        self.lanes.len() > 1 && self.have_groups.load(Ordering::Relaxed)
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.lanes.iter().any(Lane::is_shut)
    }

    /// Stops accepting calls, and waits until all accepted calls have their answers.
    pub(crate) async fn close(&self) {
        self.lanes.iter().for_each(Lane::shut); // Shut all of them before waiting for any.
        self.lent.take_over();
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

/// Queues the call in its lane, and waits for the answer.
pub(crate) async fn submit<W: Batched>(
    work: &Arc<W>,
    call: W::Call,
    max_waiting: usize,
) -> Result<(W::Call, W::Answer), Error> {
    let Ok(runtime) = Handle::try_current() else {
        return Err(Error::Unavailable { source: NoRuntime.into() });
    };
    let nth = work.lane(&call);
    let (reply, answer) = oneshot::channel();
    let deadline = Instant::now() + longest(work.transactor().retry.deadline);
    let waiting = Waiting { call, deadline, span: observability::asking(), reply };
    let lanes = work.lanes();
    let borrowed = lanes.lent.start(runtime, || {
        let is_alone = lanes.lanes.iter().all(Lane::is_idle) && lanes.beside.is_empty();
        let starts = lanes.lanes[nth].push(waiting, max_waiting)?;
        Ok(starts.then(|| (drive(Arc::clone(work), nth), is_alone)))
    });
    let borrowed = borrowed.map_err(|refused| match refused {
        Refused::Closed => Error::Closed,
        Refused::Full => Error::Overloaded { waiting: max_waiting },
    })?;
    // Without an answer, the driver's runtime ended while the call was being sent.
    borrowed.until(answer).await.unwrap_or(Err(Error::OutcomeUnknown { last: sqlx::Error::WorkerCrashed }))
}

type WaitingCall<W> = Waiting<<W as Batched>::Call, <W as Batched>::Answer>;

/// Answers the waiting calls even if the runtime ends, so that none waits forever.
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

/// Not an `async fn`: `Driving` must be dropped even if the task is dropped before its first poll.
fn drive<W: Batched>(work: Arc<W>, nth: usize) -> impl Future<Output = ()> + Send {
    drive_until_idle(Driving { work, nth, done: false })
}

async fn drive_until_idle<W: Batched>(mut driving: Driving<W>) {
    let (work, nth) = (Arc::clone(&driving.work), driving.nth);
    let lanes = work.lanes();
    let lane = &lanes.lanes[nth];
    loop {
        // Lets callers that were woken at the same time join this batch. (This is done before taking calls, not after
        // answering them: a runtime that no longer runs must not keep an idle lane.)
        tokio::task::yield_now().await;
        let Some(calls) = lane.take(work.most()) else { break };
        let (left, undriven) = lanes.beside.divert(calls, W::buckets);
        start_beside(&work, undriven);
        if lanes.may_meet() {
            let ended = lanes.in_flight.ended();
            tokio::pin!(ended);
            ended.as_mut().enable(); // Before the claim, or the end of a batch could be missed.
            let (now, claim, later) = lanes.in_flight.claim(nth, left, W::buckets);
            let waits_until = if now.is_empty() { earliest(&later) } else { None };
            lane.put_back(later);
            if let Some(deadline) = waits_until {
                if tokio::time::timeout_at(deadline.into(), ended).await.is_err() {
                    refuse_late(lane.take_late(deadline));
                }
                continue;
            }
            send_in_parts(&work, Route::Lane { nth, alone: false }, now).await;
            drop(claim);
        } else {
            send_in_parts(&work, Route::Lane { nth, alone: false }, left).await;
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

/// Sends the calls, in parts that each fit one statement. Beside a lane, returns those that did not get their locks in their
/// turn. In a lane, some may go back to it.
async fn send_in_parts<W: Batched>(work: &Arc<W>, route: Route, mut calls: Vec<WaitingCall<W>>) -> Vec<WaitingCall<W>> {
    let mut left = Vec::new();
    while !calls.is_empty() {
        let Apart { now, mut later, next } = work.apart(calls);
        match route {
            Route::Lane { nth, .. } => drop(work.lanes().lanes[nth].put_back(next)), // This driver goes on.
            Route::Beside { .. } => later.extend(next),
        }
        calls = later;
        left.extend(send_with_retries(work, route, now).await);
    }
    left
}

/// As `Driving`, for a queue beside the lanes.
struct DrivingBeside<W: Batched> {
    work: Arc<W>,
    held: HeldBuckets,
    done: bool,
}

impl<W: Batched> Drop for DrivingBeside<W> {
    fn drop(&mut self) {
        if !self.done {
            self.work.lanes().beside.abandon(&self.held);
        }
    }
}

fn start_beside<W: Batched>(work: &Arc<W>, undriven: Vec<HeldBuckets>) {
    for held in undriven {
        tokio::spawn(drive_beside(DrivingBeside { work: Arc::clone(work), held, done: false }));
    }
}

/// Not an `async fn`, because it is spawned by a function that it calls.
fn drive_beside<W: Batched>(driving: DrivingBeside<W>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let mut driving = driving; // Moves all of it into the future.
        let (work, held) = (Arc::clone(&driving.work), driving.held.clone());
        let beside = &work.lanes().beside;
        while let Some(calls) = beside.take(&held, work.most()) {
            let Some(deadline) = earliest(&calls) else { continue };
            let Some(place) = beside.place(deadline).await else {
                let (late, left) = calls.into_iter().partition(|waiting: &WaitingCall<W>| waiting.deadline <= deadline);
                refuse_late(late);
                beside.put_back(&held, left);
                continue;
            };
            let began = Instant::now();
            let left = send_in_parts(&work, Route::Beside { lock_timeout: beside.turn() }, calls).await;
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
        drop(driving);
        // Others may come soon, and a new connection takes longer than a call. An idle one keeps no handle alive.
        let kept = Arc::downgrade(&work);
        drop(work);
        tokio::time::sleep(LINGERS).await;
        if let Some(work) = kept.upgrade()
            && work.lanes().beside.is_over()
        {
            work.none_is_beside().await;
        }
    })
}

fn back_to_lanes<W: Batched>(work: &Arc<W>, calls: Vec<WaitingCall<W>>) {
    let lanes = &work.lanes().lanes;
    let mut by_lane: Vec<Vec<WaitingCall<W>>> = lanes.iter().map(|_| Vec::new()).collect();
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

/// Sends the calls in one statement until each has its answer. Calls on locked rows move to a queue beside the lane. Beside the
/// lane, returns the calls that did not get their locks in their turn.
async fn send_with_retries<W: Batched>(
    work: &Arc<W>,
    mut route: Route,
    mut calls: Vec<WaitingCall<W>>,
) -> Vec<WaitingCall<W>> {
    let transactor = work.transactor();
    let Some(deadline) = earliest(&calls) else { return calls };
    let mut attempts = Attempts::until(&transactor.retry, deadline);
    let (mut has_looked, mut one_by_one) = (false, false);
    loop {
        calls.retain(|waiting| !waiting.reply.is_closed());
        if calls.is_empty() {
            return calls;
        }
        let spans = calls.iter().map(|waiting| &waiting.span);
        let span = observability::deciding(W::OP, calls.len(), attempts.made(), spans);
        let sent = work.send(&calls, route, one_by_one, attempts.deadline()).instrument(span.clone()).await;
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
                        // The call is charged even if its caller is gone.
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
        let mut cause = failure.cause(transactor.known_engine());
        span.record("outcome", cause.as_str());
        let Failure { phase, error } = failure;
        let final_error = |error| {
            Error::of_attempt(error, phase, transactor.known_engine(), transactor.transaction_limiter.schema().name())
        };
        if cause == Cause::Unknown && calls.iter().any(|waiting| W::only_reads(&waiting.call)) {
            let (reads, writes): (Vec<_>, Vec<_>) = calls.into_iter().partition(|waiting| W::only_reads(&waiting.call));
            refuse(writes, final_error, clone_error(&error));
            (calls, cause) = (reads, cause.of_read());
        }
        match (&mut route, cause) {
            (Route::Beside { .. }, Cause::Locked) => return calls,
            (Route::Lane { nth, .. }, Cause::Locked | Cause::Busy) => {
                let before = calls.len();
                calls = leave_lane(work, *nth, calls, has_looked, attempts.deadline()).await;
                // Retry at once: without the calls that left, or to see whether the lock has been released meanwhile.
                if calls.len() < before || !std::mem::replace(&mut has_looked, true) {
                    continue;
                }
            }
            // Lanes share no key, but they can share an index page: under SERIALIZABLE, new keys of one lane can
            // conflict with those of another. On the retry, no other lane of this process decides.
            (Route::Lane { alone, .. }, _) => *alone = cause == Cause::Conflict,
            (Route::Beside { .. }, _) => {}
        }
        match cause {
            // The winner of the conflict has just committed, so this is the best moment to retry. Only once.
            Cause::Conflict
                if attempts.made() == 1 && transactor.retry_at_once(&mut attempts, cause.as_str(), &error) => {}
            Cause::Conflict | Cause::Connection | Cause::Busy | Cause::Locked => {
                attempts.failed_with(&error);
                if let Some(delay) = transactor.delay_before_retry(&mut attempts, cause.as_str(), &error) {
                    tokio::time::sleep(delay).await;
                    continue;
                }
                let until = if attempts.are_used_up() { None } else { Some(attempts.deadline()) };
                // Some calls may still have time left.
                let is_late = |waiting: &WaitingCall<W>| until.is_none_or(|until| waiting.deadline <= until);
                let (late, left): (Vec<_>, Vec<_>) = calls.into_iter().partition(is_late);
                refuse(late, |error| exhausted(&attempts, error, cause), error);
                let Some(deadline) = earliest(&left) else { return left };
                calls = left;
                attempts.postpone(deadline);
            }
            cause if calls.len() > 1 && W::blames_one(cause) => {
                let mut left = Vec::new();
                for waiting in calls {
                    left.extend(Box::pin(send_with_retries(work, route, vec![waiting])).await);
                }
                return left;
            }
            _ => {
                refuse(calls, final_error, error);
                return Vec::new();
            }
        }
    }
}

/// Moves the calls on locked rows to queues beside the lane. Returns the others.
async fn leave_lane<W: Batched>(
    work: &Arc<W>,
    nth: usize,
    calls: Vec<WaitingCall<W>>,
    has_looked: bool,
    deadline: Instant,
) -> Vec<WaitingCall<W>> {
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
            // Until the commit, a new row is visible only to the transaction that inserts it.
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

/// Fails the calls. The last one gets the error itself, the others get an equal one.
fn refuse<C, A>(mut calls: Vec<Waiting<C, A>>, why: impl Fn(sqlx::Error) -> Error, error: sqlx::Error) {
    let Some(last) = calls.pop() else { return };
    calls.into_iter().for_each(|waiting| waiting.refuse(why(clone_error(&error))));
    last.refuse(why(error));
}
