use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::{RwLock, oneshot};

use crate::call::{Op, Resolved, ResolvedItem};
use crate::combine::connection::{LaneConnection, LaneConnections, Sessions, lock_timeout};
use crate::combine::driver::{Apart, Batched, Lanes, Route, submit};
use crate::combine::lane::Waiting;
use crate::combine::short::ShortBuckets;
use crate::error::{Cause, Engine, Error, Phase};
use crate::sql::{Answer, Batch, Bucket};
use crate::transact::{Bounds, Decide, Failure, LookForHeld, Statement, Transactor, before};

/// For how many batches the lanes decide one at a time after a conflict between two lanes: while many keys are new,
/// most batches would conflict.
const CROWDED: u32 = 32;

/// How a call can be decided together with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the sums that the calls take from each bucket and give back to it.
    Sums,
    /// One call on each bucket of slots.
    Slots,
    OneByOne,
}

impl Way {
    fn of(call: &Resolved, is_short: bool) -> Self {
        if is_short {
            Self::OneByOne
        } else if call.is_by_sums() {
            Self::Sums
        } else if call.is_on_slots() {
            Self::Slots
        } else {
            Self::OneByOne
        }
    }
}

/// The state that a handle and its clones share.
pub(crate) struct Combiner {
    this: Weak<Self>,
    pub(crate) transactor: Transactor,
    /// How many statements have decided calls.
    pub(crate) batches: AtomicU64,
    /// Whether calls use the pool: by configuration, or because sessions do not keep their settings.
    over_pool: AtomicBool,
    lanes: Lanes<Resolved, Answer, LaneConnections>,
    /// For how many more batches the lanes decide one at a time.
    crowded: AtomicU32,
    /// A lane that decides alone takes the write lock; the others take the read lock.
    quiet: RwLock<()>,
    short: ShortBuckets,
    /// Connections for calls that wait for locks, kept until none was needed for a second.
    spare: Mutex<Vec<LaneConnection>>,
    pub(super) max_batch: usize,
    max_waiting: usize,
    hasher: RandomState,
}

impl Combiner {
    pub(crate) fn new(
        this: Weak<Self>,
        transactor: Transactor,
        goes_over_pool: bool,
        lanes: usize,
        max_batch: usize,
        max_waiting: usize,
    ) -> Self {
        Self {
            this,
            transactor,
            batches: AtomicU64::new(0),
            over_pool: AtomicBool::new(goes_over_pool),
            lanes: Lanes::new(lanes),
            crowded: AtomicU32::new(0),
            quiet: RwLock::default(),
            short: ShortBuckets::default(),
            spare: Mutex::default(),
            max_batch: max_batch.max(1),
            max_waiting: max_waiting.max(1),
            hasher: RandomState::new(),
        }
    }

    /// Queues the call in its lane, and waits for the answer.
    pub(crate) async fn submit(self: &Arc<Self>, call: Resolved) -> Result<(Resolved, Answer), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        if call.items.len() > 1 {
            self.lanes.has_group();
        }
        submit(self, call, self.max_waiting).await
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.transactor.pool.is_closed() || self.lanes.is_shut()
    }

    fn goes_over_pool(&self) -> bool {
        self.over_pool.load(Ordering::Relaxed)
    }

    /// Switches to the pool and to unnamed statements, because sessions are shared, as behind a pooler.
    fn give_up_own_connections(&self) {
        if self.transactor.transaction_limiter.statements().named.turn_off() {
            tracing::warn!(
                "connections do not keep their session settings, as behind a pooler: calls now use the pool and unnamed \
                 statements; set LimiterConfig::named_statements to false to use them from the start"
            );
        }
        self.over_pool.store(true, Ordering::Relaxed);
    }

    /// Returns the lane of a key.
    fn lane_of(&self, item: &ResolvedItem) -> usize {
        let lanes = self.lanes.lanes.len();
        if lanes == 1 {
            return 0;
        }
        let hash = self.hasher.hash_one((&item.name, &item.key));
        usize::try_from(hash % lanes as u64).unwrap_or_default()
    }

    /// Makes one attempt in a lane. If `alone` is set, no other lane of the process decides meanwhile.
    async fn in_lane(&self, nth: usize, alone: bool, batch: &Batch, deadline: Instant) -> Result<Vec<Answer>, Failure> {
        let crowded = self.crowded.load(Ordering::Relaxed);
        self.crowded.store(crowded.saturating_sub(1), Ordering::Relaxed);
        let alone = alone || crowded > 0;
        let others = async {
            Ok(if alone { (Some(self.quiet.write().await), None) } else { (None, Some(self.quiet.read().await)) })
        };
        let _others = before(deadline, others).await.map_err(Failure::at(Phase::Begin))?;
        let is_alone = alone || self.lanes.lanes.len() == 1;
        let result = self.attempt(nth, is_alone, batch, deadline).await;
        if matches!(&result, Err(failure) if failure.cause(self.transactor.known_engine()) == Cause::Conflict) {
            self.crowded.store(if is_alone { 0 } else { CROWDED }, Ordering::Relaxed);
        }
        result
    }

    /// Makes one attempt over the lane's own connection or over the pool. `is_alone` is set if no other lane of the
    /// process decides.
    async fn attempt(
        &self,
        nth: usize,
        is_alone: bool,
        batch: &Batch,
        deadline: Instant,
    ) -> Result<Vec<Answer>, Failure> {
        let mut connections = self.lanes.lanes[nth].connections.lock().await;
        if !self.goes_over_pool() {
            let close_with_pool = || self.close_with_pool();
            let result = connections.send_batch(self.sessions(&close_with_pool), batch, deadline).await;
            let Err(failure) = result else { return result };
            match failure.cause(self.transactor.known_engine()) {
                Cause::Settings => self.give_up_own_connections(),
                // With several lanes, keys on one index page can cause the conflict. On a single key, another process
                // caused it.
                Cause::Conflict if is_alone || !batch.has_several_buckets() => {
                    connections.expect_contention();
                    return Err(failure);
                }
                _ => return Err(failure),
            }
        }
        let bounds = Bounds { deadline, lock_timeout: lock_timeout(&self.transactor) };
        self.transactor.over_pool(bounds, &Decide(batch)).await
    }

    fn sessions<'a>(&'a self, close_with_pool: &'a (dyn Fn() -> oneshot::Sender<()> + Sync)) -> Sessions<'a> {
        Sessions { transactor: &self.transactor, close_with_pool }
    }

    fn ways(&self, calls: &[Waiting<Resolved, Answer>]) -> Vec<Way> {
        let is_short = self.short.are_asked(calls.iter().map(|waiting| &waiting.call));
        let mut ways: Vec<Way> =
            calls.iter().zip(is_short).map(|(waiting, is_short)| Way::of(&waiting.call, is_short)).collect();
        let on_slots = calls.iter().zip(&ways).filter(|(_, way)| **way == Way::Slots);
        let buckets: Vec<Bucket> = on_slots.flat_map(|(waiting, _)| waiting.call.buckets()).collect();
        // If most are on the same few buckets, one statement that decides them one by one is faster than many others.
        if buckets.iter().collect::<HashSet<_>>().len() * 2 <= buckets.len() {
            ways.iter_mut().filter(|way| **way == Way::Slots).for_each(|way| *way = Way::OneByOne);
        }
        ways
    }

    fn short_is_asked(&self, calls: &[Waiting<Resolved, Answer>]) -> bool {
        self.short.are_asked(calls.iter().map(|waiting| &waiting.call)).contains(&true)
    }

    /// Makes one attempt that may wait for locks, on a connection that no other call waits for.
    pub(crate) async fn beside<S: Statement>(&self, bounds: Bounds, statement: &S) -> Result<S::Output, Failure> {
        if self.goes_over_pool() {
            return self.transactor.over_pool(bounds, statement).await;
        }
        let spare = self.spare().pop();
        let close_with_pool = || self.close_with_pool();
        let mut connection =
            LaneConnection::ready(spare, self.sessions(&close_with_pool), &[], bounds.deadline).await?;
        let result = connection.transact(&self.transactor, bounds, statement).await;
        if !matches!(&result, Err(failure) if failure.breaks_the_connection(self.transactor.known_engine())) {
            self.spare().push(connection);
        }
        result
    }

    fn spare(&self) -> MutexGuard<'_, Vec<LaneConnection>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner) // A panic never leaves it half-updated.
    }

    /// Closes the connections that waited for locks.
    pub(crate) async fn close_spare(&self) {
        let spare = std::mem::take(&mut *self.spare());
        for connection in spare {
            connection.close().await;
        }
    }

    /// Closes all connections when the pool is closed, unless the returned sender is dropped before. So an application
    /// that has closed its pool can drop its database.
    fn close_with_pool(&self) -> oneshot::Sender<()> {
        let (connection, dropped) = oneshot::channel();
        let (this, mut closed) = (self.this.clone(), self.transactor.pool.close_event());
        tokio::spawn(async move {
            if closed.do_until(dropped).await.is_err()
                && let Some(this) = this.upgrade()
            {
                this.close().await;
            }
        });
        connection
    }

    /// Stops accepting calls, answers all waiting calls, and closes the connections.
    pub(crate) async fn close(&self) {
        self.lanes.close().await;
        for lane in &self.lanes.lanes {
            std::mem::take(&mut *lane.connections.lock().await).close().await;
        }
        self.close_spare().await;
    }
}

impl Batched for Combiner {
    type Call = Resolved;
    type Answer = Answer;
    type Connections = LaneConnections;

    const OP: &'static str = "decide";

    fn transactor(&self) -> &Transactor {
        &self.transactor
    }

    fn lanes(&self) -> &Lanes<Resolved, Answer, LaneConnections> {
        &self.lanes
    }

    fn most(&self) -> usize {
        self.max_batch
    }

    fn lane(&self, call: &Resolved) -> usize {
        call.items.first().map_or(0, |item| self.lane_of(item))
    }

    fn buckets(call: &Resolved) -> Vec<Bucket> {
        call.buckets()
    }

    fn only_reads(call: &Resolved) -> bool {
        call.only_reads()
    }

    /// Splits off the calls that cannot be decided at once with the others, so that they do not slow them down. Credits come
    /// first, as in a decision by sums; otherwise, calls on one bucket keep their order.
    fn apart(&self, calls: Vec<Waiting<Resolved, Answer>>) -> Apart<Resolved, Answer> {
        let (mut calls, others): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|waiting| waiting.call.op == Op::Credit);
        calls.extend(others);
        let ways = self.ways(&calls);
        let fastest = [Way::Sums, Way::Slots].into_iter().find(|way| ways.contains(way)).unwrap_or(Way::OneByOne);
        let mut apart = Apart { now: Vec::new(), later: Vec::new(), next: Vec::new() };
        if fastest != Way::Slots && ways.iter().all(|way| *way == fastest) {
            return Apart { now: calls, ..apart };
        }
        let (mut asked_now, mut asked_later, mut asked_next) = (HashSet::new(), HashSet::new(), HashSet::new());
        for (waiting, way) in calls.into_iter().zip(ways) {
            let buckets = waiting.call.buckets();
            if buckets.iter().any(|it| asked_next.contains(it)) {
                asked_next.extend(buckets);
                apart.next.push(waiting);
            } else if way != fastest || buckets.iter().any(|it| asked_later.contains(it)) {
                asked_later.extend(buckets);
                apart.later.push(waiting);
            } else if way == Way::Slots && buckets.iter().any(|it| asked_now.contains(it)) {
                asked_next.extend(buckets);
                apart.next.push(waiting);
            } else {
                asked_now.extend(buckets);
                apart.now.push(waiting);
            }
        }
        if apart.now.is_empty() {
            std::mem::swap(&mut apart.now, &mut apart.later);
        }
        apart
    }

    async fn send(
        &self,
        calls: &[Waiting<Resolved, Answer>],
        route: Route,
        one_by_one: bool,
        deadline: Instant,
    ) -> Result<Vec<Option<Answer>>, Failure> {
        let mut batch = Batch::new();
        calls.iter().for_each(|waiting| batch.add(&waiting.call, None));
        if !one_by_one && self.transactor.known_engine() == Some(Engine::PostgreSql) && !self.short_is_asked(calls) {
            batch.allow_open_calls();
        }
        let answers = match route {
            Route::Lane { nth, alone } => self.in_lane(nth, alone, &batch, deadline).await?,
            Route::Beside { lock_timeout } => self.beside(Bounds { deadline, lock_timeout }, &Decide(&batch)).await?,
        };
        self.batches.fetch_add(1, Ordering::Relaxed);
        calls.iter().zip(&answers).for_each(|(waiting, answer)| self.short.learn(&waiting.call, answer));
        Ok(answers.into_iter().map(|answer| (!answer.is_open()).then_some(answer)).collect())
    }

    async fn look_for_held(
        &self,
        nth: usize,
        buckets: &[Bucket],
        deadline: Instant,
    ) -> Result<Vec<Option<bool>>, Failure> {
        let looking = LookForHeld(buckets);
        if self.goes_over_pool() {
            return self.transactor.over_pool(Bounds::until(deadline), &looking).await;
        }
        let mut connections = self.lanes.lanes[nth].connections.lock().await;
        let close_with_pool = || self.close_with_pool();
        connections.look_for_held(self.sessions(&close_with_pool), &looking, deadline).await
    }

    async fn none_is_beside(&self) {
        self.close_spare().await;
    }
}

impl std::fmt::Debug for Combiner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Combiner").field("lanes", &self.lanes.lanes.len()).finish_non_exhaustive()
    }
}
