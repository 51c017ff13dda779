use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sqlx::{PgConnection, PgPool};

use crate::call::{Balances, Call, Decision, Item, Op, Resolved};
use crate::error::Error;
use crate::limit::{Limits, Tokens};
use crate::limiter::LimiterConfig;
use crate::limiter::attempt::{DecideOnce, ResetAllKeys};
use crate::limiter::combine::Combiner;
use crate::limiter::denials::Denials;
use crate::limiter::lines::Lines;
use crate::observability::Seen;
use crate::sql::{Answer, Names, RateLimits, Schema, Within};

/// The rate limiter: limits and a pool. Cheap to clone, `Send` and `Sync`.
///
/// Its methods decide in a transaction of the limiter's own, SERIALIZABLE unless [`LimiterConfig`] says otherwise,
/// retried on a conflict, and charged even if the caller's later work fails. Callers who wait at the same time are decided
/// together, in one statement and in the order in which they came; so make one handle for each process, and clone it.
/// [`within`](Self::within) decides in the caller's transaction, and [`transaction`](Self::transaction) runs a whole unit
/// of work.
///
/// The calls run on the Tokio runtime that they are made on. Handles that several runtimes share work as long as each
/// runtime runs.
///
/// ```no_run
/// # use std::time::Duration;
/// use pg_limiter::{Limit, Limiter, Limits};
///
/// # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let limits = Limits::new().define("send_message", Limit::token_bucket(10, Duration::from_secs(60)))?;
/// let limiter = Limiter::new(pool, limits);
/// let decision = limiter.limit(("send_message", "u1")).await?;
/// if let Some(wait) = decision.retry_after() {
///     println!("come back in {wait:?}");
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
/// All methods: [`Error::Invalid`] before anything is sent; [`Error::RetriesExhausted`], [`Error::Unavailable`],
/// [`Error::SchemaMissing`], [`Error::Database`], [`Error::Overloaded`] and [`Error::Closed`] if nothing was decided;
/// [`Error::OutcomeUnknown`] if it may have been. All of them come by the deadline of the
/// [`RetryPolicy`](crate::RetryPolicy). A bad call never fails those that are decided with it.
///
/// # Cancel safety
/// Dropping the future of a call is safe. While the call waits for its batch, nothing is charged; once the batch is on its
/// way, the tokens are taken or they are not, never in part: count them as spent. The others of the batch get their
/// answers.
#[derive(Clone, Debug)]
pub struct Limiter {
    pub(super) combiner: Arc<Combiner>,
    denials: Option<Arc<Denials>>,
    /// Of those who wait and cannot reserve.
    pub(super) lines: Arc<Lines>,
}

impl Limiter {
    /// With these limits, and the defaults for everything else.
    pub fn new(pool: PgPool, limits: Limits) -> Self {
        Self::with_config(pool, limits, LimiterConfig::default())
    }

    /// With these limits and this configuration.
    pub fn with_config(pool: PgPool, limits: Limits, config: LimiterConfig) -> Self {
        for (name, limit) in limits.iter() {
            limit.warnings().iter().for_each(|warning| tracing::warn!(limit = name, "{warning}"));
        }
        let mut rate_limits =
            RateLimits::in_schema(limits, config.schema.clone()).with_keep_answers(config.keep_answers);
        if let Some(secret) = config.key_secret.clone() {
            rate_limits = rate_limits.with_key_secret(secret);
        }
        let rate_limits = if config.named_statements { rate_limits } else { rate_limits.with_unnamed_statements() };
        let denials = config.remember_denials.map(|memory| Arc::new(Denials::new(memory)));
        let combiner = Arc::new_cyclic(|this| Combiner::new(this.clone(), pool, rate_limits, &config));
        Self { combiner, denials, lines: Arc::default() }
    }

    /// The limits known by name.
    pub fn limits(&self) -> &Limits {
        self.combiner.rate_limits.limits()
    }

    /// The pool.
    pub fn pool(&self) -> &PgPool {
        &self.combiner.pool
    }

    /// Whether the server keeps its statements under names.
    pub(crate) fn names(&self) -> &Names {
        &self.combiner.rate_limits.statements().names
    }

    /// The schema.
    pub fn schema(&self) -> &Schema {
        self.combiner.rate_limits.schema()
    }

    pub(crate) fn combiner(&self) -> &Combiner {
        &self.combiner
    }

    pub(crate) fn rate_limits(&self) -> &RateLimits {
        &self.combiner.rate_limits
    }

    /// How often a transaction was tried again, since this handle or the one it was cloned from was made. Each retry is
    /// traced too, as a debug event of `tracing`.
    pub fn retries(&self) -> u64 {
        self.combiner.retries.load(Ordering::Relaxed)
    }

    /// How many statements have decided calls of this handle and its clones: less than the calls, where callers wait at the
    /// same time.
    pub fn batches(&self) -> u64 {
        self.combiner.batches.load(Ordering::Relaxed)
    }

    /// Lets no more calls in, waits until those that are in have their answers, and closes the limiter's own connections.
    /// Calls after that, also on clones of this handle, are refused with [`Error::Closed`]; [`within`](Self::within) goes
    /// on working. The pool stays open. To close the pool does the same: the limiter's own connections are closed with it.
    ///
    /// # Cancel safety
    /// A dropped future lets no more calls in all the same; call it again to wait.
    pub async fn close(&self) {
        self.combiner.close().await;
    }

    /// Calls on this connection, within the caller's transaction: see [`Within`].
    pub fn within<'c>(&'c self, connection: &'c mut PgConnection) -> Within<'c> {
        self.combiner.rate_limits.within(connection)
    }

    /// Takes the tokens, or says when they could be had. A denial changes nothing.
    ///
    /// # Errors
    /// See [`Limiter`].
    ///
    /// # Cancel safety
    /// Safe. While the call waits for its batch nothing happens; once that is on its way, it may: count tokens as spent.
    ///
    /// # In a transaction
    /// In one of the limiter's own: it stays, whatever becomes of the caller's. [`within`](Self::within) has the same for the
    /// caller's.
    pub async fn limit(&self, call: impl Into<Call> + Send) -> Result<Decision, Error> {
        let call = call.into();
        let seen = Seen::own("limit", &call);
        seen.watch(self.decide(call)).await
    }

    /// Decides like [`limit`](Self::limit) and takes nothing.
    ///
    /// # Errors
    /// See [`Limiter`].
    ///
    /// # Cancel safety
    /// Safe: nothing is taken.
    ///
    /// # In a transaction
    /// In one of the limiter's own, which does not see what an open one has taken. [`within`](Self::within) does.
    pub async fn check(&self, call: impl Into<Call> + Send) -> Result<Decision, Error> {
        let call = call.into();
        let seen = Seen::own("check", &call);
        let running = async {
            let call = self.combiner.rate_limits.resolve(Op::Check, call)?;
            let (call, answer) = self.combiner.ask(call).await?;
            Ok(answer.decision(&call))
        };
        seen.watch(running).await
    }

    /// The balances now; counts do not matter.
    ///
    /// # Errors
    /// See [`Limiter`].
    ///
    /// # Cancel safety
    /// Safe: nothing is taken.
    ///
    /// # In a transaction
    /// In one of the limiter's own, which does not see what an open one has taken. [`within`](Self::within) does.
    pub async fn peek(&self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        let call = call.into();
        let seen = Seen::own("peek", &call);
        let running = async {
            let call = self.combiner.rate_limits.resolve_peek(call)?;
            let (call, answer) = self.combiner.ask(call).await?;
            Ok(answer.balances(&call))
        };
        seen.watch(running).await
    }

    /// Forgets these keys: their buckets are full again.
    ///
    /// # Errors
    /// See [`Limiter`].
    ///
    /// # Cancel safety
    /// Safe. While the call waits for its batch nothing happens; once that is on its way, it may: count tokens as spent.
    ///
    /// # In a transaction
    /// In one of the limiter's own: it stays, whatever becomes of the caller's. [`within`](Self::within) has the same for the
    /// caller's.
    pub async fn reset(&self, call: impl Into<Call> + Send) -> Result<(), Error> {
        let call = call.into();
        let seen = Seen::own("reset", &call);
        let running = async {
            let call = self.combiner.rate_limits.resolve(Op::Reset, call)?;
            self.ask_and_forget(call).await.map(|_| ())
        };
        seen.watch(running).await
    }

    /// Forgets every key of the limit of this name, and says how many rows that were. Its rows stay locked while it
    /// runs.
    ///
    /// # Errors
    /// See [`Limiter`].
    ///
    /// # Cancel safety
    /// Safe. While the call waits for its batch nothing happens; once that is on its way, it may: count tokens as spent.
    ///
    /// # In a transaction
    /// In one of the limiter's own: it stays, whatever becomes of the caller's. [`within`](Self::within) has the same for the
    /// caller's.
    pub async fn reset_all_keys(&self, name: &str) -> Result<u64, Error> {
        let seen = Seen::whole("reset_all_keys", false, name);
        let running = async {
            crate::limit::check_name(name)?;
            let result = self.own_transaction(ResetAllKeys(name)).await;
            if let Some(denials) = &self.denials {
                denials.clear();
            }
            result
        };
        seen.watch(running).await
    }

    async fn decide(&self, call: Call) -> Result<Decision, Error> {
        let call = self.combiner.rate_limits.resolve(Op::Limit, call)?;
        // What was answered to an idempotency key is not forgotten because of a denial since.
        let Some(denials) = self.denials.as_ref().filter(|_| call.idempotency_key.is_none()) else {
            let (call, answer) = self.ask(call).await?;
            return Ok(answer.decision(&call));
        };
        let asked = Instant::now();
        if let Some(answer) = denials.recall(&call, asked) {
            return Ok(answer.decision(&call));
        }
        let (call, answer) = self.combiner.ask(call).await?;
        denials.remember(&call, &answer, asked, Instant::now());
        Ok(answer.decision(&call))
    }

    /// Together with others, or, with an idempotency key, on its own.
    async fn ask(&self, call: Resolved) -> Result<(Resolved, Answer), Error> {
        let Some(key) = call.idempotency_key.clone() else { return self.combiner.ask(call).await };
        let once = DecideOnce { call: &call, key, keep: self.combiner.rate_limits.keep_answers() };
        let once = Box::pin(self.own_transaction(once)).await?; // See `own_transaction`: most calls have no such key.
        Ok((call, once.answer()?))
    }

    /// For what gives tokens back: denials from before it do not hold any more, whether it is known to have happened or
    /// not.
    async fn ask_and_forget(&self, call: Resolved) -> Result<(Resolved, Answer), Error> {
        let Some(denials) = &self.denials else { return self.ask(call).await };
        let kept = call.clone();
        let result = self.ask(call).await;
        denials.forget(&kept);
        result
    }

    /// Gives tokens back, up to the capacity (for a sliding window, from the newest counts and not below 0), and
    /// returns the balances after. A bucket without a row is full and stays without one.
    ///
    /// # Errors
    /// See [`Limiter`].
    ///
    /// # Cancel safety
    /// Safe. While the call waits for its batch nothing happens; once that is on its way, it may: count tokens as spent.
    ///
    /// # In a transaction
    /// In one of the limiter's own: it stays, whatever becomes of the caller's. [`within`](Self::within) has the same for the
    /// caller's.
    pub async fn credit(&self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        let call = call.into();
        let seen = Seen::own("credit", &call);
        let running = async {
            let call = self.combiner.rate_limits.resolve(Op::Credit, call)?;
            let (call, answer) = self.ask_and_forget(call).await?;
            Ok(answer.balances(&call))
        };
        seen.watch(running).await
    }

    /// Takes the tokens whatever the balance, for use that is only known afterwards, and returns the balances after.
    ///
    /// # Errors
    /// See [`Limiter`].
    ///
    /// # Cancel safety
    /// Safe. While the call waits for its batch nothing happens; once that is on its way, it may: count tokens as spent.
    ///
    /// # In a transaction
    /// In one of the limiter's own: it stays, whatever becomes of the caller's. [`within`](Self::within) has the same for the
    /// caller's.
    pub async fn charge(&self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        let call = call.into();
        let seen = Seen::own("charge", &call);
        let running = async {
            let call = self.combiner.rate_limits.resolve(Op::Charge, call)?;
            let (call, answer) = self.ask(call).await?;
            Ok(answer.balances(&call))
        };
        seen.watch(running).await
    }

    /// Corrects an estimate: `estimate` is the item as [`limit`](Self::limit) took it, `used` the number of tokens that were
    /// really used. If that is less, the difference is given back, as by [`credit`](Self::credit); if it is more, it is taken
    /// whatever the balance, as by [`charge`](Self::charge). Returns the balance after. One call, one round trip.
    ///
    /// Each call corrects once more, as each credit and each charge does: nothing remembers what was settled. To correct once,
    /// settle [within](crate::Within::settle) the transaction that writes down the use, or make the credit or the charge
    /// yourself, with an [idempotency key](Call::idempotency_key). Jobs of a queue remember it:
    /// [`Queue::settle`](crate::queue::Queue::settle).
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
    /// See [`Limiter`]. [`Error::Invalid`] also if `used` is negative or not finite.
    ///
    /// # Cancel safety
    /// Safe. While the call waits for its batch nothing happens; once that is on its way, it may: count tokens as spent.
    ///
    /// # In a transaction
    /// In one of the limiter's own: it stays, whatever becomes of the caller's. [`within`](Self::within) has the same for the
    /// caller's.
    pub async fn settle(
        &self,
        estimate: impl Into<Item> + Send,
        used: impl Into<Tokens> + Send,
    ) -> Result<Balances, Error> {
        let (op, item) = estimate.into().correction(used.into());
        let call = Call::from(item);
        let seen = Seen::own("settle", &call);
        let running = async {
            let call = self.combiner.rate_limits.resolve(op, call)?;
            let (call, answer) = match op {
                Op::Credit => self.ask_and_forget(call).await?,
                _ => self.ask(call).await?,
            };
            Ok(answer.balances(&call))
        };
        seen.watch(running).await
    }
}
