use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{RwLock, oneshot};

use crate::call::{Op, Resolved, ResolvedItem};
use crate::combine::connection::{LaneConnection, LaneConnections, attempt, look_for_held};
use crate::combine::driver::{Batched, LOCK_TIMEOUT, Lanes, Place, drive};
use crate::combine::lane::{Refused, Waiting};
use crate::combine::short::ShortBuckets;
use crate::error::{Cause, Engine, Error, Phase};
use crate::observability;
use crate::retry::longest;
use crate::sql::{Answer, Batch, Bucket};
use crate::transact::{Bounds, Decide, Failure, LookForHeld, Statement, Transactor, before};

/// For how many batches the lanes decide one at a time after a conflict between two lanes: while many keys are new,
/// most batches would conflict.
const CROWDED: u32 = 32;

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
    /// Connections for calls that wait for locks, kept while any of them is needed.
    spare_links: Mutex<Vec<LaneConnection>>,
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
            spare_links: Mutex::default(),
            max_batch: max_batch.max(1),
            max_waiting: max_waiting.max(1),
            hasher: RandomState::new(),
        }
    }

    /// Queues the call in its lane, and waits for the answer.
    pub(crate) async fn ask(self: &Arc<Self>, call: Resolved) -> Result<(Resolved, Answer), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let Ok(runtime) = Handle::try_current() else {
            let source = std::io::Error::other("there is no Tokio runtime to run the call on");
            return Err(Error::Unavailable { source: source.into() });
        };
        if call.items.len() > 1 {
            self.lanes.has_group();
        }
        let lane = self.lane(&call);
        let (reply, answer) = oneshot::channel();
        let deadline = Instant::now() + self.allowed_time();
        let waiting = Waiting { call, deadline, span: observability::asking(), reply };
        match self.lanes.lanes[lane].push(waiting, self.max_waiting) {
            Ok(true) => drop(runtime.spawn(drive(Arc::clone(self), lane))),
            Ok(false) => {}
            Err(Refused::Closed) => return Err(Error::Closed),
            Err(Refused::Full) => return Err(Error::Overloaded { waiting: self.max_waiting }),
        }
        match answer.await {
            Ok(answer) => answer,
            // The driver's runtime ended while the call was being sent.
            Err(_) => Err(Error::OutcomeUnknown { last: sqlx::Error::WorkerCrashed }),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.transactor.pool.is_closed() || self.lanes.is_shut()
    }

    pub(super) fn goes_over_pool(&self) -> bool {
        self.over_pool.load(Ordering::Relaxed)
    }

    /// Switches to the pool and to unnamed statements, because sessions are shared, as behind a pooler.
    pub(super) fn give_up_own_connections(&self) {
        if self.transactor.transaction_limiter.statements().names.give_up() {
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
        let mut links = self.lanes.lanes[nth].links.lock().await;
        let is_alone = alone || self.lanes.lanes.len() == 1;
        let result = attempt(self, &mut links, batch, is_alone, deadline).await;
        if matches!(&result, Err(failure) if failure.cause(self.transactor.known_engine()) == Cause::Conflict) {
            self.crowded.store(if is_alone { 0 } else { CROWDED }, Ordering::Relaxed);
        }
        result
    }

    fn short_is_asked(&self, calls: &[Waiting<Resolved, Answer>]) -> bool {
        self.short.are_asked(calls.iter().map(|waiting| &waiting.call)).contains(&true)
    }

    /// Makes one attempt that may wait for locks, on a connection that no other call waits for.
    pub(crate) async fn beside<S: Statement>(&self, bounds: Bounds, statement: &S) -> Result<S::Output, Failure> {
        if self.goes_over_pool() {
            return self.transactor.over_pool(bounds, statement).await;
        }
        let spare = self.spare_links().pop();
        let mut link = LaneConnection::ready(spare, self, &[], bounds.deadline).await?;
        let result = link.transact(self, bounds, statement).await;
        if !matches!(&result, Err(failure) if failure.breaks_the_connection(self.transactor.known_engine())) {
            self.spare_links().push(link);
        }
        result
    }

    fn spare_links(&self) -> MutexGuard<'_, Vec<LaneConnection>> {
        self.spare_links.lock().unwrap_or_else(PoisonError::into_inner) // A panic never leaves it half-updated.
    }

    /// Closes the connections that waited for locks.
    pub(super) async fn close_spare_links(&self) {
        let links = std::mem::take(&mut *self.spare_links());
        for link in links {
            link.close().await;
        }
    }

    /// Returns the longest time from a call to its answer.
    pub(crate) fn allowed_time(&self) -> Duration {
        longest(self.transactor.retry.deadline)
    }

    /// Returns how long a batch in a lane waits for one lock.
    pub(crate) fn lock_timeout(&self) -> Duration {
        LOCK_TIMEOUT.min(self.statement_timeout())
    }

    /// Returns the timeout after which the server itself cancels a statement that is sent alone. It is half of the
    /// retry policy's deadline: a cancelled statement has changed nothing, and is retried before the deadline.
    pub(super) fn statement_timeout(&self) -> Duration {
        (longest(self.transactor.retry.deadline) / 2).clamp(Duration::from_millis(1), Duration::from_secs(86_400))
    }

    /// Closes all connections when the pool is closed, unless the returned sender is dropped before. So an application
    /// that has closed its pool can drop its database.
    pub(super) fn close_with_pool(&self) -> oneshot::Sender<()> {
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
            std::mem::take(&mut *lane.links.lock().await).close().await;
        }
        self.close_spare_links().await;
    }
}

impl Batched for Combiner {
    type Call = Resolved;
    type Answer = Answer;
    type Connections = LaneConnections;

    const OP: &'static str = "decide";

    fn combiner(&self) -> &Combiner {
        self
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

    /// Splits off the calls that must be decided one by one, so that they do not slow down the others. Calls on one
    /// bucket keep their order.
    fn apart(&self, calls: Vec<Waiting<Resolved, Answer>>) -> [Vec<Waiting<Resolved, Answer>>; 2] {
        let is_short = self.short.are_asked(calls.iter().map(|waiting| &waiting.call));
        let is_plain = |waiting: &Waiting<Resolved, Answer>| waiting.call.op == Op::Limit && !waiting.call.reserve;
        if !is_short.contains(&true) && calls.iter().all(is_plain) {
            return [calls, Vec::new()];
        }
        let (mut in_sums, mut others) = (Vec::new(), Vec::new());
        let mut asked_by_others = HashSet::new();
        for (waiting, is_short) in calls.into_iter().zip(is_short) {
            let buckets = waiting.call.buckets();
            if is_plain(&waiting) && !is_short && buckets.iter().all(|it| !asked_by_others.contains(it)) {
                in_sums.push(waiting);
            } else {
                asked_by_others.extend(buckets);
                others.push(waiting);
            }
        }
        if in_sums.is_empty() { [others, in_sums] } else { [in_sums, others] }
    }

    async fn send(
        &self,
        calls: &[Waiting<Resolved, Answer>],
        place: Place,
        one_by_one: bool,
        deadline: Instant,
    ) -> Result<Vec<Option<Answer>>, Failure> {
        let mut batch = Batch::new();
        calls.iter().for_each(|waiting| batch.add(&waiting.call, None));
        if !one_by_one && self.transactor.known_engine() == Some(Engine::PostgreSql) && !self.short_is_asked(calls) {
            batch.take_ample();
        }
        let answers = match place {
            Place::Lane { nth, alone } => self.in_lane(nth, alone, &batch, deadline).await?,
            Place::Beside { lock_timeout } => self.beside(Bounds { deadline, lock_timeout }, &Decide(&batch)).await?,
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
        let mut links = self.lanes.lanes[nth].links.lock().await;
        look_for_held(self, &mut links, &LookForHeld(buckets), deadline).await
    }
}

impl std::fmt::Debug for Combiner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Combiner").field("lanes", &self.lanes.lanes.len()).finish_non_exhaustive()
    }
}
