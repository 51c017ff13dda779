use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::call::{Resolved, ResolvedItem};
use crate::error::{Engine, Error, Phase};
use crate::limiter::attempt::{Bounds, Decide, Failure, LookForHeld, Statement, before, over_pool};
use crate::limiter::combine::driver::{Batched, LOCK_TIMEOUT, Lanes, Place, drive};
use crate::limiter::combine::lane::{Refused, Waiting};
use crate::limiter::combine::link::{Link, Links, attempt, look_for_held};
use crate::limiter::config::{Connections, Durability, Isolation, LimiterConfig};
use crate::observability;
use crate::retry::{RetryPolicy, longest};
use crate::sql::{Answer, Batch, Bucket, RateLimits};

/// What all calls of a handle and its clones share.
pub(crate) struct Combiner {
    this: Weak<Self>,
    pub(in crate::limiter) pool: PgPool,
    pub(in crate::limiter) rate_limits: RateLimits,
    pub(in crate::limiter) retry: RetryPolicy,
    pub(in crate::limiter) isolation: Isolation,
    pub(in crate::limiter) durability: Durability,
    /// Given, or found out on the first connection.
    pub(in crate::limiter) engine: OnceLock<Engine>,
    /// How often a transaction was tried again.
    pub(in crate::limiter) retries: AtomicU64,
    /// How many statements have decided calls.
    pub(in crate::limiter) batches: AtomicU64,
    /// Calls go over the pool: by choice, or because sessions here do not keep their settings.
    over_pool: AtomicBool,
    lanes: Lanes<Resolved, Answer, Links>,
    /// Connections to wait for locks on, while any of them is needed.
    spare_links: Mutex<Vec<Link>>,
    pub(super) max_batch: usize,
    max_waiting: usize,
    hasher: RandomState,
}

impl Combiner {
    pub(in crate::limiter) fn new(
        this: Weak<Self>,
        pool: PgPool,
        rate_limits: RateLimits,
        config: &LimiterConfig,
    ) -> Self {
        Self {
            this,
            pool,
            rate_limits,
            retry: config.retry.clone(),
            isolation: config.isolation,
            durability: config.durability,
            engine: config.engine.map(OnceLock::from).unwrap_or_default(),
            retries: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            over_pool: AtomicBool::new(config.connections == Connections::Pool || !config.named_statements),
            lanes: Lanes::new(config.lanes),
            spare_links: Mutex::default(),
            max_batch: config.max_batch.max(1),
            max_waiting: config.max_waiting.max(1),
            hasher: RandomState::new(),
        }
    }

    /// Waits for its answer together with others.
    pub(in crate::limiter) async fn ask(self: &Arc<Self>, call: Resolved) -> Result<(Resolved, Answer), Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let Ok(runtime) = Handle::try_current() else {
            let source = std::io::Error::other("there is no Tokio runtime to run the call on");
            return Err(Error::Unavailable { source: source.into() });
        };
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
            // The runtime of the driver has ended with the call on its way.
            Err(_) => Err(Error::OutcomeUnknown { last: sqlx::Error::WorkerCrashed }),
        }
    }

    pub(in crate::limiter) fn is_closed(&self) -> bool {
        self.pool.is_closed() || self.lanes.is_shut()
    }

    pub(super) fn goes_over_pool(&self) -> bool {
        self.over_pool.load(Ordering::Relaxed)
    }

    /// Sessions are shared here, as behind a pooler: from now on calls go over the pool, and statements have no names.
    pub(super) fn give_up_own_connections(&self) {
        if self.rate_limits.statements().names.give_up() {
            tracing::warn!(
                "connections do not keep their settings, as behind a pooler: from now on calls go over the pool, and their \
                 statements have no names; LimiterConfig::named_statements says so from the start"
            );
        }
        self.over_pool.store(true, Ordering::Relaxed);
    }

    /// A key belongs to one lane.
    fn lane_of(&self, item: &ResolvedItem) -> usize {
        let lanes = self.lanes.lanes.len();
        if lanes == 1 {
            return 0;
        }
        let hash = self.hasher.hash_one((&item.name, &item.key));
        usize::try_from(hash % lanes as u64).unwrap_or_default()
    }

    /// The lanes that must have their turn for these calls.
    fn lanes_of(&self, nth: usize, calls: &[Waiting<Resolved, Answer>], alone: bool) -> BTreeSet<usize> {
        if alone {
            return (0..self.lanes.lanes.len()).collect();
        }
        let groups = calls.iter().filter(|waiting| waiting.call.items.len() > 1);
        let mut lanes: BTreeSet<usize> =
            groups.flat_map(|waiting| waiting.call.items.iter().map(|item| self.lane_of(item))).collect();
        lanes.insert(nth);
        lanes
    }

    /// Waits until no other batch with a key of these lanes is under way. Turns are taken in one order.
    async fn in_turn(
        &self,
        nth: usize,
        lanes: &BTreeSet<usize>,
        batch: &Batch,
        deadline: Instant,
    ) -> Result<Vec<Answer>, Failure> {
        let mut turns = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let turn = before(deadline, async { Ok(self.lanes.lanes[*lane].turn.lock().await) }).await;
            turns.push((*lane, turn.map_err(Failure::at(Phase::Begin))?));
        }
        let alone = turns.len() == self.lanes.lanes.len();
        match turns.iter_mut().find(|(lane, _)| *lane == nth) {
            Some((_, links)) => attempt(self, links, batch, alone, deadline).await,
            None => Err(Failure { phase: Phase::Begin, error: sqlx::Error::WorkerCrashed }), // It is among them.
        }
    }

    /// One attempt that may wait for locks, on a connection that nothing else waits for.
    pub(crate) async fn beside<S: Statement>(&self, bounds: Bounds, statement: &S) -> Result<S::Output, Failure> {
        if self.goes_over_pool() {
            return over_pool(self, bounds, statement).await;
        }
        let spare = self.spare_links().pop();
        let mut link = Link::ready(spare, self, &[], bounds.deadline).await?;
        let result = link.transact(self, bounds, statement).await;
        if !matches!(&result, Err(failure) if failure.breaks_the_connection(self.known_engine())) {
            self.spare_links().push(link);
        }
        result
    }

    fn spare_links(&self) -> MutexGuard<'_, Vec<Link>> {
        self.spare_links.lock().unwrap_or_else(PoisonError::into_inner) // Nothing in it is ever half-done.
    }

    /// Closes the connections that waited for locks.
    pub(super) async fn close_spare_links(&self) {
        let links = std::mem::take(&mut *self.spare_links());
        for link in links {
            link.close().await;
        }
    }

    /// The time from a call to its answer.
    pub(crate) fn allowed_time(&self) -> Duration {
        longest(self.retry.deadline)
    }

    /// How long a batch in a lane waits for one lock.
    pub(crate) fn lock_timeout(&self) -> Duration {
        LOCK_TIMEOUT.min(self.statement_timeout())
    }

    /// The time after which the server itself ends a statement that stands alone. Half of all the time there is: what
    /// is ended so has not happened, and is tried again by the deadline.
    pub(super) fn statement_timeout(&self) -> Duration {
        (longest(self.retry.deadline) / 2).clamp(Duration::from_millis(1), Duration::from_secs(86_400))
    }

    /// Closes all connections when the pool is closed, unless the sender is dropped before. So an application that has closed
    /// its pool can drop its database.
    pub(super) fn close_with_pool(&self) -> oneshot::Sender<()> {
        let (connection, dropped) = oneshot::channel();
        let (this, mut closed) = (self.this.clone(), self.pool.close_event());
        tokio::spawn(async move {
            if closed.do_until(dropped).await.is_err()
                && let Some(this) = this.upgrade()
            {
                this.close().await;
            }
        });
        connection
    }

    /// Lets nothing more in, answers all that waits, and closes the connections.
    pub(in crate::limiter) async fn close(&self) {
        self.lanes.close().await;
        for lane in &self.lanes.lanes {
            std::mem::take(&mut *lane.turn.lock().await).close().await;
        }
        self.close_spare_links().await;
    }
}

impl Batched for Combiner {
    type Call = Resolved;
    type Answer = Answer;
    type Turn = Links;

    const OP: &'static str = "decide";

    fn combiner(&self) -> &Combiner {
        self
    }

    fn lanes(&self) -> &Lanes<Resolved, Answer, Links> {
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

    async fn send(
        &self,
        calls: &[Waiting<Resolved, Answer>],
        place: Place,
        deadline: Instant,
    ) -> Result<Vec<Answer>, Failure> {
        let mut batch = Batch::new();
        calls.iter().for_each(|waiting| batch.add(&waiting.call, None));
        let answers = match place {
            Place::Lane { nth, alone } => {
                let lanes = self.lanes_of(nth, calls, alone);
                self.in_turn(nth, &lanes, &batch, deadline).await?
            }
            Place::Beside { lock_timeout } => self.beside(Bounds { deadline, lock_timeout }, &Decide(&batch)).await?,
        };
        self.batches.fetch_add(1, Ordering::Relaxed);
        Ok(answers)
    }

    async fn look_for_held(
        &self,
        nth: usize,
        buckets: &[Bucket],
        deadline: Instant,
    ) -> Result<Vec<Option<bool>>, Failure> {
        let turn = before(deadline, async { Ok(self.lanes.lanes[nth].turn.lock().await) }).await;
        let mut links = turn.map_err(Failure::at(Phase::Begin))?;
        look_for_held(self, &mut links, &LookForHeld(buckets), deadline).await
    }
}

impl std::fmt::Debug for Combiner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Combiner").field("lanes", &self.lanes.lanes.len()).finish_non_exhaustive()
    }
}
