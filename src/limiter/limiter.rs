use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sqlx::{PgConnection, PgPool};

use crate::call::{Balances, Call, Decision, Forgotten, Item, Key, Op, Resolved, check_name};
use crate::clock::LocalClock;
use crate::combine::Combiner;
use crate::error::Error;
use crate::limit::{Limits, Tokens};
use crate::limiter::LimiterConfig;
use crate::limiter::denials::Denials;
use crate::limiter::waiters::Waiters;
use crate::observability::{Answered, CallSpan};
use crate::sql::{Answer, Forgetting, NamedStatements, Schema, TransactionLimiter, Within, check_key};
use crate::transact::{Connections, DecideOnce, ResetAllKeys, Statement, Transactor};

/// The rate limiter of a process: it decides whether calls are within their limits, and takes their tokens. Create it once
/// and clone it: clones are cheap, and share connections and batches.
///
/// ```no_run
/// # use std::time::Duration;
/// use pg_limiter::{Limit, Limiter, Limits, Outcome};
///
/// # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let limits = Limits::new().define("send_message", Limit::token_bucket(10, Duration::from_secs(60)))?;
/// let limiter = Limiter::new(pool, limits);
/// let decision = limiter.limit(("send_message", "u1")).await?;
/// match decision.outcome() {
///     Outcome::Allowed => println!("send it"),
///     Outcome::Denied { retry_after } => println!("retry in {retry_after:?}"),
///     _ => println!("denied"), // Treat an unknown outcome as a denial.
/// }
/// # Ok(()) }
/// ```
///
/// # Where a call runs
/// - [`limit`](Self::limit) and most other methods decide in a transaction of the limiter's own, and retry it after a conflict.
///   The tokens stay taken even if your later work fails. The transaction is SERIALIZABLE unless [`LimiterConfig`] sets another
///   isolation level.
/// - [`within`](Self::within) charges limits in your transaction: the tokens commit or roll back with your data.
/// - [`transaction`](Self::transaction) runs your work and its calls in one transaction, and runs all of it again after a conflict.
///
/// # Batches
/// Calls that wait at the same time form a batch, and one statement decides them, in order of arrival. Calls on another handle
/// that is not a clone form batches of their own.
///
/// A call runs on the Tokio runtime on which it is made. Several runtimes can share a handle as long as all of them keep running:
/// a task on one of them may send the calls of another.
///
/// # Errors
/// All methods can return:
/// - [`Error::Invalid`]: the call is invalid, and nothing was sent.
/// - [`Error::RetriesExhausted`], [`Error::Unavailable`], [`Error::SchemaMissing`], [`Error::SchemaTooNew`],
///   [`Error::Pooler`], [`Error::Database`], [`Error::Overloaded`] or [`Error::Closed`]: nothing was decided.
/// - [`Error::OutcomeUnknown`]: the call may have been decided. Calls that write nothing, such as [`check`](Self::check) and
///   [`peek`](Self::peek), never return it: if the connection is lost, they are retried.
///
/// Every error is returned by the deadline of the [`RetryPolicy`](crate::RetryPolicy). A call that fails because of its
/// own data does not fail the other calls in its batch.
///
/// # Cancel safety
/// Dropping the future of a call is safe. Until its batch is sent, nothing happens. After that, the whole call may take effect,
/// never only a part of it: count the tokens that it takes as spent. The other calls in the batch get their answers.
///
/// # In a transaction
/// Each call runs in the limiter's own transaction: its effect stays even if the caller's transaction rolls back. It does not see
/// what an open transaction has taken or blocked. To make a call part of the caller's transaction, use
/// [`within`](Self::within).
#[derive(Clone, Debug)]
pub struct Limiter {
    pub(super) combiner: Arc<Combiner>,
    denials: Option<Arc<Denials>>,
    /// The callers of `until_ready` that wait and cannot reserve.
    pub(super) waiters: Arc<Waiters>,
    clock: LocalClock,
}

impl Limiter {
    /// Creates a limiter with these limits and the default configuration.
    pub fn new(pool: PgPool, limits: Limits) -> Self {
        Self::with_config(pool, limits, LimiterConfig::default())
    }

    /// Creates a limiter with these limits and this configuration. Logs each limit's warnings.
    pub fn with_config(pool: PgPool, limits: Limits, config: LimiterConfig) -> Self {
        warn(&limits);
        let mut transaction_limiter =
            TransactionLimiter::in_schema(limits, config.schema.clone()).with_keep_answers(config.keep_answers);
        if let Some(secret) = config.key_secret.clone() {
            transaction_limiter = transaction_limiter.with_key_secret(secret);
        }
        let transaction_limiter =
            if config.named_statements { transaction_limiter } else { transaction_limiter.with_unnamed_statements() };
        let clock = LocalClock::of(&pool, config.schema.name());
        let denials = config.remember_denials.map(|memory| Arc::new(Denials::new(memory)));
        let transactor = Transactor {
            pool,
            transaction_limiter,
            retry: config.retry,
            configured_isolation: config.isolation,
            durability: config.durability,
            engine: config.engine.map(OnceLock::from).unwrap_or_default(),
            retries: AtomicU64::default(),
        };
        let goes_over_pool = config.connections == Connections::Pool || !config.named_statements;
        let LimiterConfig { lanes, max_batch, max_waiting, .. } = config;
        let combiner = Arc::new_cyclic(|this| {
            Combiner::new(this.clone(), transactor, goes_over_pool, lanes, max_batch, max_waiting)
        });
        Self { combiner, denials, waiters: Arc::default(), clock }
    }

    /// Returns the limits that are defined by name, as they are now.
    pub fn limits(&self) -> Limits {
        self.transaction_limiter().limits()
    }

    /// Replaces the limits of this handle, its clones, and the queues and layers that use them, and returns the former ones.
    /// Logs each new limit's warnings.
    ///
    /// Calls that are made from now on use the new limits. Calls that have begun, waits in [`until_ready`](Self::until_ready),
    /// and leases keep the limits they began with. Balances stay: the guide's page on [kinds](crate::guide::kinds) describes
    /// what a changed limit makes of them. A call on a limit that is no longer defined returns
    /// [`InvalidCall::UnknownLimit`](crate::InvalidCall::UnknownLimit).
    ///
    /// Other processes keep their limits. To change all of them, let each one
    /// [watch a limits file](Self::watch_limits_file).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// use pg_limiter::Limit;
    ///
    /// # fn f(limiter: pg_limiter::Limiter) -> Result<(), pg_limiter::InvalidLimit> {
    /// let doubled = limiter.limits().define("send_message", Limit::token_bucket(20, Duration::from_secs(60)))?;
    /// let former = limiter.replace_limits(doubled);
    /// # Ok(()) }
    /// ```
    pub fn replace_limits(&self, limits: Limits) -> Limits {
        warn(&limits);
        self.transaction_limiter().replace_limits(limits)
    }

    /// Like [`replace_limits`](Self::replace_limits), unless the limits are not these any more.
    pub(super) fn exchange_limits(&self, former: &Limits, limits: Limits) -> bool {
        warn(&limits);
        self.transaction_limiter().exchange_limits(former, limits)
    }

    /// Returns the pool.
    pub fn pool(&self) -> &PgPool {
        &self.combiner.transactor.pool
    }

    /// The database's clock, for times that it returned.
    pub(crate) const fn clock(&self) -> &LocalClock {
        &self.clock
    }

    /// Whether statements are prepared under names on the server.
    pub(crate) fn named_statements(&self) -> &NamedStatements {
        &self.transaction_limiter().statements().named
    }

    /// Returns the schema that holds the limiter's tables and functions.
    pub fn schema(&self) -> &Schema {
        self.transaction_limiter().schema()
    }

    /// Runs the statement in a transaction of its own, on a connection of the pool.
    pub(crate) async fn own_transaction<S: Statement>(&self, statement: S) -> Result<S::Output, Error> {
        if self.combiner.is_closed() {
            return Err(Error::Closed);
        }
        self.combiner.transactor.with_retries(statement).await
    }

    pub(crate) fn combiner(&self) -> &Combiner {
        &self.combiner
    }

    pub(crate) fn transaction_limiter(&self) -> &TransactionLimiter {
        &self.combiner.transactor.transaction_limiter
    }

    /// Returns how many times a transaction was retried, over this handle and all its clones. Each retry is also
    /// logged, as a debug event of `tracing`.
    pub fn retries(&self) -> u64 {
        self.combiner.transactor.retries.load(Ordering::Relaxed)
    }

    /// Returns how many statements have decided calls, over this handle and all its clones. This is less than the
    /// number of calls if calls wait at the same time.
    pub fn batches(&self) -> u64 {
        self.combiner.batches.load(Ordering::Relaxed)
    }

    /// Stops accepting calls, waits until all accepted calls have their answers, and closes the limiter's own
    /// connections. Later calls, on any clone of this handle, return [`Error::Closed`]; [`within`](Self::within) keeps
    /// working. The pool stays open. Closing the pool also closes the limiter's own connections, and later calls return
    /// [`Error::Closed`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the limiter still accepts no more calls. Call `close` again to wait.
    pub async fn close(&self) {
        self.combiner.close().await;
    }

    /// Makes calls on this connection, as part of the caller's transaction: see [`Within`].
    pub fn within<'c>(&'c self, connection: &'c mut PgConnection) -> Within<'c> {
        self.transaction_limiter().within(connection)
    }

    /// Takes the tokens, or denies the call. A denial carries `retry_after`, the time until the same call would be
    /// allowed, and changes nothing.
    pub async fn limit(&self, call: impl Into<Call> + Send) -> Result<Decision, Error> {
        self.call("limit", Op::Limit, call.into(), Answer::decision).await
    }

    /// Decides like [`limit`](Self::limit), but takes nothing.
    pub async fn check(&self, call: impl Into<Call> + Send) -> Result<Decision, Error> {
        self.call("check", Op::Check, call.into(), Answer::decision).await
    }

    /// Returns the current balances, and [when each bucket is full again](crate::LimitState::full_in) or its
    /// [window ends](crate::LimitState::window_ends_in). The counts of the items are ignored.
    pub async fn peek(&self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        self.call("peek", Op::Peek, call.into(), Answer::balances).await
    }

    /// Resets these keys: their buckets are full again.
    pub async fn reset(&self, call: impl Into<Call> + Send) -> Result<(), Error> {
        self.call("reset", Op::Reset, call.into(), |_, _| ()).await
    }

    /// Resets every key of the limit with this name, and returns the number of rows deleted. The rows stay locked while
    /// it runs.
    pub async fn reset_all_keys(&self, name: &str) -> Result<u64, Error> {
        let span = CallSpan::whole("reset_all_keys", false, name);
        let running = async {
            check_name(name)?;
            let result = self.own_transaction(ResetAllKeys(name)).await;
            self.discard_all_denials();
            result
        };
        span.watch(running).await
    }

    /// Deletes what is stored about a key, in all limits, queues and answers: for a request to erase personal data. Returns how
    /// much was deleted.
    ///
    /// - Buckets: of all limits that this limiter defines or that have a row, so buckets of inline limits are included.
    /// - Jobs: of this group, and jobs that reserved from one of these buckets. Jobs that have not started are cancelled first,
    ///   as by [`Queue::cancel`](crate::queue::Queue::cancel), so the limits that are defined here get their tokens back. Running
    ///   jobs stay, and are counted: call `forget` again once they have ended.
    /// - Answers to calls with an [idempotency key](Call::idempotency_key): of this idempotency key and, without a
    ///   [`KeySecret`](crate::KeySecret), of all that begin with the key and a colon, such as `"u1:checkout:42"`. Other answers
    ///   expire, and [`prune`](crate::Limiter::prune) removes them.
    ///
    /// It cannot find a key inside of a payload, of a unique id or of another key; the other forms in which a web layer stores
    /// [an address](crate::guide::addresses#keys-for-operators); keys hashed under another secret; your logs and backups. The next
    /// call with this key stores it again.
    ///
    /// Buckets are found by the primary key. To find jobs, it reads the whole table of jobs once.
    ///
    /// ```no_run
    /// # async fn f(limiter: pg_limiter::Limiter) -> Result<(), pg_limiter::Error> {
    /// let forgotten = limiter.forget("user-42").await?;
    /// println!("{} buckets and {} jobs deleted", forgotten.buckets, forgotten.jobs);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`Limiter`]. [`Error::Invalid`] if the key is empty or cannot be stored.
    ///
    /// # In a transaction
    /// Runs in the limiter's own transaction, at READ COMMITTED. This handle and its clones also discard the denials that they
    /// [remember](LimiterConfig::remember_denials); other processes remember them for up to
    /// [`max_age`](crate::DenialMemory::max_age). To erase as part of the caller's transaction, use [`within`](Self::within).
    pub async fn forget(&self, key: impl Into<Key> + Send) -> Result<Forgotten, Error> {
        let key = key.into();
        let span = CallSpan::whole("forget", false, "");
        let running = async {
            check_key(&key)?;
            let result = self.own_transaction(Forgetting { limiter: self.transaction_limiter(), key: &key }).await;
            self.discard_all_denials();
            result
        };
        span.watch(running).await
    }

    /// Looks up the limits, checks the call, and hashes its keys if there is a secret.
    pub(super) fn resolve(&self, op: Op, call: Call) -> Result<Resolved, Error> {
        self.transaction_limiter().resolve(op, call)
    }

    /// Makes a call in the limiter's own transaction, under the name `op_name`.
    pub(super) async fn call<T: Answered + Send>(
        &self,
        op_name: &'static str,
        op: Op,
        call: Call,
        read: fn(&Answer, &Resolved) -> T,
    ) -> Result<T, Error> {
        let span = CallSpan::own(op_name, &call);
        let running = async {
            let call = self.resolve(op, call)?;
            let (call, answer) = match op {
                Op::Limit => self.decide_or_recall(call).await?,
                Op::Credit | Op::Reset => self.dispatch_and_discard_denials(call).await?,
                Op::Check | Op::Peek | Op::Charge | Op::Release | Op::Renew => self.dispatch(call).await?,
            };
            Ok(read(&answer, &call))
        };
        span.watch(running).await
    }

    pub(super) async fn decide_or_recall(&self, call: Resolved) -> Result<(Resolved, Answer), Error> {
        // The answer stored under an idempotency key takes precedence over a denial remembered since.
        let Some(denials) = self.denials.as_ref().filter(|_| call.idempotency_key.is_none()) else {
            return self.dispatch(call).await;
        };
        let clock = self.clock.pinned();
        let asked = clock.now();
        if let Some(answer) = denials.recall(&call, asked) {
            return Ok((call, answer));
        }
        let (call, answer) = self.combiner.submit(call).await?;
        denials.remember(&call, &answer, asked, clock.now());
        Ok((call, answer))
    }

    /// Decides the call in a batch or, if it has an idempotency key, in a transaction of its own.
    async fn dispatch(&self, call: Resolved) -> Result<(Resolved, Answer), Error> {
        let Some(key) = call.idempotency_key.clone() else { return self.combiner.submit(call).await };
        let once = DecideOnce { call: &call, key, keep: self.transaction_limiter().keep_answers() };
        let once = Box::pin(self.own_transaction(once)).await?; // See `own_transaction`. Most calls have no such key.
        Ok((call, once.answer()?))
    }

    /// For calls that give tokens back. Discards the denials remembered for these keys, even if the outcome of the call
    /// is unknown.
    pub(super) async fn dispatch_and_discard_denials(&self, call: Resolved) -> Result<(Resolved, Answer), Error> {
        if self.denials.is_none() {
            return self.dispatch(call).await;
        }
        let kept = call.clone();
        let result = self.dispatch(call).await;
        self.discard_denials(&kept);
        result
    }

    /// Discards all remembered denials.
    pub(crate) fn discard_all_denials(&self) {
        if let Some(denials) = &self.denials {
            denials.clear(self.clock.now());
        }
    }

    /// Discards the denials remembered for the keys of this call.
    pub(super) fn discard_denials(&self, call: &Resolved) {
        if let Some(denials) = &self.denials {
            denials.discard(call, self.clock.now());
        }
    }

    /// Gives tokens back, up to the capacity, and returns the balances after that. They may include tokens that other calls give
    /// back at the same moment. If calls wait at the same time, credits are decided first. A sliding window subtracts the tokens
    /// from its newest counts, down to 0. A bucket without a row is full and stays without one.
    pub async fn credit(&self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        self.call("credit", Op::Credit, call.into(), Answer::balances).await
    }

    /// Takes the tokens whatever the balance, and returns the balances after that. Use it for consumption that is known
    /// only afterwards.
    pub async fn charge(&self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        self.call("charge", Op::Charge, call.into(), Answer::balances).await
    }

    /// Corrects an estimate. `estimate` is the item as [`limit`](Self::limit) took it; `used` is the number of tokens
    /// actually used. If fewer were used, the difference is given back, as by [`credit`](Self::credit). If more were
    /// used, the difference is taken whatever the balance, as by [`charge`](Self::charge). Returns the balance after
    /// that. One call, one round trip.
    ///
    /// Every call makes a correction, as every credit and every charge does: the limiter does not remember what was
    /// settled. To correct exactly once, settle [within](crate::Within::settle) the transaction that records the usage,
    /// or make the credit or charge yourself with an [idempotency key](Call::idempotency_key). The jobs of a queue
    /// remember it: see [`Queue::settle`](crate::queue::Queue::settle).
    ///
    /// ```no_run
    /// # async fn call_the_model(prompt: &str) -> u64 { 0 }
    /// # async fn f(limiter: pg_limiter::Limiter, user_id: i64) -> Result<(), pg_limiter::Error> {
    /// use pg_limiter::Item;
    ///
    /// let estimate = Item::new("llm_tokens", user_id).count(4_000);
    /// limiter.limit(estimate.clone()).await?.enforce()?;
    /// let used: u64 = call_the_model("..").await;
    /// limiter.settle(estimate, used).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`Limiter`]. Also returns [`Error::Invalid`] if `used` is negative or not finite.
    pub async fn settle(
        &self,
        estimate: impl Into<Item> + Send,
        used: impl Into<Tokens> + Send,
    ) -> Result<Balances, Error> {
        let (op, item) = estimate.into().correction(used.into());
        self.call("settle", op, item.into(), Answer::balances).await
    }
}

fn warn(limits: &Limits) {
    for (name, limit) in limits.iter() {
        limit.warnings().iter().for_each(|warning| tracing::warn!(limit = name, "{warning}"));
    }
}
