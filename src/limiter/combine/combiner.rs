use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::call::{Resolved, ResolvedItem};
use crate::error::{Engine, Error};
use crate::limiter::combine::driver::drive;
use crate::limiter::combine::lane::{Lane, Refused, Waiting};
use crate::limiter::combine::link::Links;
use crate::limiter::config::{Connections, Durability, Isolation, LimiterConfig};
use crate::observability;
use crate::retry::{RetryPolicy, longest};
use crate::sql::{Answer, RateLimits};

/// A call that waits in a lane of this one.
pub(super) type Asked = Waiting<Resolved, Answer>;

/// What all calls of a handle and its clones share.
pub(in crate::limiter) struct Combiner {
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
    pub(super) lanes: Box<[Lane<Resolved, Answer, Links>]>,
    pub(super) max_batch: usize,
    max_waiting: usize,
    hasher: RandomState,
}

impl Combiner {
    pub(in crate::limiter) fn new(pool: PgPool, rate_limits: RateLimits, config: &LimiterConfig) -> Self {
        Self {
            pool,
            rate_limits,
            retry: config.retry.clone(),
            isolation: config.isolation,
            durability: config.durability,
            engine: config.engine.map(OnceLock::from).unwrap_or_default(),
            retries: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            over_pool: AtomicBool::new(config.connections == Connections::Pool || !config.named_statements),
            lanes: (0..config.lanes.max(1)).map(|_| Lane::default()).collect(),
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
        let lane = call.items.first().map_or(0, |item| self.lane(item));
        let (reply, answer) = oneshot::channel();
        let deadline = Instant::now() + longest(self.retry.deadline);
        let waiting = Waiting { call, deadline, span: observability::asking(), reply };
        match self.lanes[lane].push(waiting, self.max_waiting) {
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
        self.pool.is_closed() || self.lanes.iter().any(Lane::is_shut)
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
    pub(super) fn lane(&self, item: &ResolvedItem) -> usize {
        if self.lanes.len() == 1 {
            return 0;
        }
        let hash = self.hasher.hash_one((&item.name, &item.key));
        usize::try_from(hash % self.lanes.len() as u64).unwrap_or_default()
    }

    /// The time after which the server itself ends a statement that stands alone. Half of all the time there is: what
    /// is ended so has not happened, and is tried again by the deadline.
    pub(super) fn statement_timeout(&self) -> Duration {
        (longest(self.retry.deadline) / 2).clamp(Duration::from_millis(1), Duration::from_secs(86_400))
    }

    /// Lets nothing more in, answers all that waits, and closes the connections.
    pub(in crate::limiter) async fn close(&self) {
        self.lanes.iter().for_each(Lane::shut); // All of them before any is waited for.
        for lane in &self.lanes {
            lane.close().await;
            std::mem::take(&mut *lane.turn.lock().await).close().await;
        }
    }
}

impl std::fmt::Debug for Combiner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Combiner").field("lanes", &self.lanes.len()).finish_non_exhaustive()
    }
}
