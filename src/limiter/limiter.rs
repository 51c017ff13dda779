use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::{PgConnection, PgPool};

use crate::call::{Balances, Call, Decision, Op, Resolved};
use crate::error::Error;
use crate::limit::Limits;
use crate::limiter::attempt::{Decide, ResetAllKeys};
use crate::retry::RetryPolicy;
use crate::sql::{Answer, RateLimits, Schema, Within};

/// How a [`Limiter`] works.
///
/// # Default
/// - `schema`: `public`
/// - `retry`: [`RetryPolicy::default`]
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LimiterConfig {
    /// The schema that holds the limiter's table and functions.
    pub schema: Schema,
    /// How its own transactions are tried again.
    pub retry: RetryPolicy,
}

/// The rate limiter: limits and a pool. Cheap to clone, `Send` and `Sync`.
///
/// Its methods decide in a SERIALIZABLE transaction of their own, retried on a conflict, and charged even if the
/// caller's later work fails. [`within`](Self::within) decides in the caller's transaction, and
/// [`transaction`](Self::transaction) runs a whole unit of work.
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
/// [`Error::SchemaMissing`], [`Error::Database`] if nothing was decided; [`Error::OutcomeUnknown`] if it may have been.
///
/// # Cancel safety
/// Dropping the future of a call is safe: the tokens are taken or they are not, never in part. Count them as spent. The
/// connection is closed, not returned to the pool, and the server ends a statement that still waits by the deadline.
#[derive(Clone, Debug)]
pub struct Limiter {
    pub(super) pool: PgPool,
    pub(super) rate_limits: RateLimits,
    pub(super) retry: Arc<RetryPolicy>,
    pub(super) retries: Arc<AtomicU64>,
}

impl Limiter {
    /// With these limits, and the defaults for everything else.
    pub fn new(pool: PgPool, limits: Limits) -> Self {
        Self::with_config(pool, limits, LimiterConfig::default())
    }

    /// With these limits and this configuration.
    pub fn with_config(pool: PgPool, limits: Limits, config: LimiterConfig) -> Self {
        let LimiterConfig { schema, retry } = config;
        Self {
            pool,
            rate_limits: RateLimits::in_schema(limits, schema),
            retry: Arc::new(retry),
            retries: Arc::default(),
        }
    }

    /// The limits known by name.
    pub const fn limits(&self) -> &Limits {
        self.rate_limits.limits()
    }

    /// The pool.
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The schema.
    pub fn schema(&self) -> &Schema {
        self.rate_limits.schema()
    }

    /// How often a transaction was tried again, since this handle or the one it was cloned from was made. Each retry is
    /// traced too, as a debug event of `tracing`.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Calls on this connection, within the caller's transaction: see [`Within`].
    pub fn within<'c>(&'c self, connection: &'c mut PgConnection) -> Within<'c> {
        self.rate_limits.within(connection)
    }

    /// Takes the tokens, or says when they could be had. A denial changes nothing.
    ///
    /// # Errors
    /// See [`Limiter`].
    pub async fn limit(&self, call: impl Into<Call> + Send) -> Result<Decision, Error> {
        let call = self.rate_limits.resolve(Op::Limit, call.into())?;
        Ok(self.run(&call).await?.decision(&call))
    }

    /// Decides like [`limit`](Self::limit) and takes nothing.
    ///
    /// # Errors
    /// See [`Limiter`].
    pub async fn check(&self, call: impl Into<Call> + Send) -> Result<Decision, Error> {
        let call = self.rate_limits.resolve(Op::Check, call.into())?;
        Ok(self.run(&call).await?.decision(&call))
    }

    /// The balances now; counts do not matter.
    ///
    /// # Errors
    /// See [`Limiter`].
    pub async fn peek(&self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        let call = self.rate_limits.resolve_peek(call.into())?;
        Ok(self.run(&call).await?.balances(&call))
    }

    /// Forgets these keys: their buckets are full again.
    ///
    /// # Errors
    /// See [`Limiter`].
    pub async fn reset(&self, call: impl Into<Call> + Send) -> Result<(), Error> {
        let call = self.rate_limits.resolve(Op::Reset, call.into())?;
        self.run(&call).await.map(|_| ())
    }

    /// Forgets every key of the limit of this name, and says how many rows that were. Its rows stay locked while it
    /// runs.
    ///
    /// # Errors
    /// See [`Limiter`].
    pub async fn reset_all_keys(&self, name: &str) -> Result<u64, Error> {
        crate::limit::check_name(name)?;
        self.own_transaction(ResetAllKeys(name)).await
    }

    /// Gives tokens back, up to the capacity (for a sliding window, from the newest counts and not below 0), and
    /// returns the balances after. A bucket without a row is full and stays without one.
    ///
    /// # Errors
    /// See [`Limiter`].
    pub async fn credit(&self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        let call = self.rate_limits.resolve(Op::Credit, call.into())?;
        Ok(self.run(&call).await?.balances(&call))
    }

    /// Takes the tokens whatever the balance, for use that is only known afterwards, and returns the balances after.
    ///
    /// # Errors
    /// See [`Limiter`].
    pub async fn charge(&self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        let call = self.rate_limits.resolve(Op::Charge, call.into())?;
        Ok(self.run(&call).await?.balances(&call))
    }

    async fn run(&self, call: &Resolved) -> Result<Answer, Error> {
        self.own_transaction(Decide(call)).await
    }
}
