use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sqlx::PgConnection;

use crate::call::{Balances, Call, CallAt, Decision, Forgotten, Item, Key, KeySecret, Op, Resolved, check_name};
use crate::error::{Error, InvalidCall};
use crate::limit::{Limits, Tokens};
use crate::observability::{Answered, CallSpan};
use crate::sql::{
    Answer, Batch, Forgetting, KEEP_ANSWERS, NamedStatements, Schema, Statements, check_key, check_release, decide,
    decide_once,
};

/// A set of limits and the schema that stores their balances: all that calls on your own connection need.
///
/// Cheap to clone; clones share their limits. A [`Limiter`](crate::Limiter) contains one. Use this type alone if all calls
/// run in your own transactions.
#[derive(Clone, Debug)]
pub struct TransactionLimiter {
    limits: Arc<RwLock<Limits>>,
    statements: Arc<Statements>,
    keep_answers: Duration,
    key_secret: Option<KeySecret>,
}

impl TransactionLimiter {
    /// Creates a set of limits with their balances in the schema `rate_limit`.
    pub fn new(limits: Limits) -> Self {
        Self::in_schema(limits, Schema::default())
    }

    /// Creates a set of limits with their balances in this schema.
    pub fn in_schema(limits: Limits, schema: Schema) -> Self {
        Self {
            limits: Arc::new(RwLock::new(limits)),
            statements: Arc::new(Statements::new(schema, NamedStatements::new(true))),
            keep_answers: KEEP_ANSWERS,
            key_secret: None,
        }
    }

    /// Sets how long the answer to a call with an [idempotency key](crate::Call::idempotency_key) is kept (default: 24
    /// hours). Values are clamped to the range from 1 microsecond to 36,525 days.
    #[must_use]
    pub const fn with_keep_answers(mut self, keep: Duration) -> Self {
        self.keep_answers = keep;
        self
    }

    /// Stores keys as hashes under this secret.
    #[must_use]
    pub fn with_key_secret(mut self, secret: KeySecret) -> Self {
        self.key_secret = Some(secret);
        self
    }

    /// Uses statements without names on the server. Needed if the pool's connections go through a pooler in transaction
    /// mode that does not support prepared statements, such as pgbouncer before 1.21. Each call then takes one more
    /// round trip, and must run within a transaction. For a [`Limiter`](crate::Limiter) and its queues, set
    /// [`LimiterConfig::named_statements`](crate::LimiterConfig::named_statements) instead.
    #[must_use]
    pub fn with_unnamed_statements(self) -> Self {
        let statements = Statements::new(self.schema().clone(), NamedStatements::new(false));
        Self { statements: Arc::new(statements), ..self }
    }

    /// Returns the limits that are defined by name, as they are now.
    pub fn limits(&self) -> Limits {
        self.limits.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the limits of this value and its clones, and returns the former ones: see
    /// [`Limiter::replace_limits`](crate::Limiter::replace_limits).
    pub fn replace_limits(&self, limits: Limits) -> Limits {
        std::mem::replace(&mut *self.limits.write().unwrap_or_else(PoisonError::into_inner), limits)
    }

    /// Replaces the limits, unless they are not these any more.
    pub(crate) fn exchange_limits(&self, former: &Limits, limits: Limits) -> bool {
        let mut present = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let is_former = *present == *former;
        if is_former {
            *present = limits;
        }
        is_former
    }

    /// Returns the schema that holds the tables and functions.
    pub fn schema(&self) -> &Schema {
        &self.statements.schema
    }

    /// Makes calls on this connection, as part of the caller's transaction:
    ///
    /// ```no_run
    /// # use pg_limiter::{Error, TransactionLimiter};
    /// # async fn f(limits: TransactionLimiter, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("INSERT INTO messages (author) VALUES ('u1')").execute(&mut *tx).await?;
    /// limits.within(&mut tx).limit(("send_message", "u1")).await?.enforce()?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    pub fn within<'c>(&'c self, connection: &'c mut PgConnection) -> Within<'c> {
        Within { transaction_limiter: self, connection }
    }

    /// Decides calls at times that you give, in the order given and in one statement: to replay recorded traffic, or to read many
    /// balances as of one time. Returns one decision for each call, or why the call can never be allowed; such a call is not sent.
    ///
    /// Only the role that owns the functions may give them a time, except for [`Op::Check`] and [`Op::Peek`]. Use a schema of its own, such as
    /// `pg_temp` with [`migrations`](crate::migrate::migrations) and [`functions`](crate::migrate::functions), unless all calls
    /// are checks: buckets written at another time than the present decide present calls wrongly.
    ///
    /// # In a transaction
    /// As [`Within::limit`]. One statement locks the rows of all calls: send some hundred calls at once.
    ///
    /// # Errors
    /// See [`Within`]; [`Error::Database`] if the role may not give a time (SQLSTATE 42501), or a time is out of range.
    ///
    /// # Cancel safety
    /// See [`Within`].
    pub async fn decide_at(
        &self,
        connection: &mut PgConnection,
        calls: &[CallAt],
    ) -> Result<Vec<Result<Decision, InvalidCall>>, Error> {
        let limits = self.limits();
        let resolve = |one: &CallAt| Resolved::new(one.op, one.call.clone(), &limits, self.key_secret.as_ref());
        let resolved: Vec<Result<Resolved, InvalidCall>> = calls.iter().map(resolve).collect();
        let mut batch = Batch::new();
        for (one, call) in calls.iter().zip(&resolved) {
            if let Ok(call) = call {
                batch.add(call, Some(one.micros()));
            }
        }
        let answers = if batch.is_empty() {
            Vec::new()
        } else {
            let decided = decide(connection, &self.statements, &batch).await;
            decided.map_err(|error| Error::of_statement(error, self.schema().name()))?
        };
        let mut answers = answers.iter();
        let missing = || Error::Database { source: sqlx::Error::RowNotFound };
        let decisions = resolved.into_iter().map(|call| match call {
            Ok(call) => Ok(Ok(answers.next().ok_or_else(missing)?.decision(&call))),
            Err(invalid) => Ok(Err(invalid)),
        });
        decisions.collect()
    }

    pub(crate) const fn keep_answers(&self) -> Duration {
        self.keep_answers
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.statements
    }

    /// Looks up the limits, checks the call, and hashes its keys if there is a secret.
    pub(crate) fn resolve(&self, op: Op, call: Call) -> Result<Resolved, Error> {
        Ok(Resolved::new(op, call, &self.limits(), self.key_secret.as_ref())?)
    }

    pub(crate) const fn key_secret(&self) -> Option<&KeySecret> {
        self.key_secret.as_ref()
    }
}

/// Calls as part of the caller's transaction, from [`TransactionLimiter::within`] and
/// [`Limiter::within`](crate::Limiter::within). Each call is one statement in one round trip, at any isolation level.
/// (The first call of a [`TransactionLimiter`] and its clones also checks that this release can work with the schema.)
///
/// # In a transaction
/// Each call is part of the caller's transaction: its commit makes the change permanent, and its rollback undoes it. The rows stay
/// locked until then, so charge limits late in the transaction. [`check`](Self::check), [`peek`](Self::peek) and
/// [`is_blocked`](Self::is_blocked) see what this transaction has changed, and lock no rows: if a denial should save expensive
/// work, call `check` before the work.
///
/// Make one call per transaction: such transactions never deadlock with each other. A second call can deadlock if it names
/// another key, or the same key of a limit with shards. Outside of a transaction, each call commits on its own.
///
/// # Errors
/// All methods can return:
/// - [`Error::Invalid`]: the call is invalid, and nothing was sent.
/// - [`Error::Conflict`]: the whole transaction is worth running again. Nothing is retried here.
/// - [`Error::SchemaMissing`], [`Error::SchemaTooNew`], [`Error::Pooler`], [`Error::Unavailable`] or
///   [`Error::Database`]: the statement failed.
///
/// After any of these except `Invalid`, PostgreSQL ignores the rest of the transaction and answers its COMMIT with a
/// ROLLBACK *without an error*. So return the error; do not discard it.
///
/// # Cancel safety
/// If the future is dropped, the statement may still run on the server: roll back the transaction.
#[derive(Debug)]
#[must_use = "it does nothing until one of its methods is called"]
pub struct Within<'c> {
    pub(super) transaction_limiter: &'c TransactionLimiter,
    pub(super) connection: &'c mut PgConnection,
}

impl Within<'_> {
    /// Takes the tokens, or denies the call. A denial carries `retry_after`, the time until the same call would be
    /// allowed, and changes nothing.
    pub async fn limit(self, call: impl Into<Call> + Send) -> Result<Decision, Error> {
        self.call("limit", Op::Limit, call.into(), Answer::decision).await
    }

    /// Decides like [`limit`](Self::limit), but takes nothing.
    pub async fn check(self, call: impl Into<Call> + Send) -> Result<Decision, Error> {
        self.call("check", Op::Check, call.into(), Answer::decision).await
    }

    /// Returns the current balances, and [when each bucket is full again](crate::LimitState::full_in) or its
    /// [window ends](crate::LimitState::window_ends_in). The counts of the items are ignored.
    pub async fn peek(self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        self.call("peek", Op::Peek, call.into(), Answer::balances).await
    }

    /// Resets these keys: their buckets are full again.
    pub async fn reset(self, call: impl Into<Call> + Send) -> Result<(), Error> {
        self.call("reset", Op::Reset, call.into(), |_, _| ()).await
    }

    /// Resets every key of the limit with this name, and returns the number of rows deleted.
    pub async fn reset_all_keys(self, name: &str) -> Result<u64, Error> {
        let span = CallSpan::whole("reset_all_keys", true, name);
        let running = async {
            check_name(name)?;
            let classified = |error| Error::of_statement(error, self.transaction_limiter.schema().name());
            check_release(self.connection, self.transaction_limiter.statements()).await.map_err(classified)?;
            reset_all_keys(self.connection, self.transaction_limiter.statements(), name).await.map_err(classified)
        };
        span.watch(running).await
    }

    /// Deletes what is stored about a key, in all limits, queues and answers, and returns how much: see
    /// [`Limiter::forget`](crate::Limiter::forget). It takes two statements. Make no other call in the same transaction, and
    /// use READ COMMITTED: at other levels, transactions that write jobs meanwhile can fail.
    ///
    /// # Errors
    /// See [`Within`]. [`Error::Invalid`] if the key is empty or cannot be stored.
    pub async fn forget(self, key: impl Into<Key> + Send) -> Result<Forgotten, Error> {
        let key = key.into();
        let span = CallSpan::whole("forget", true, "");
        let running = async {
            check_key(&key)?;
            let classified = |error| Error::of_statement(error, self.transaction_limiter.schema().name());
            check_release(self.connection, self.transaction_limiter.statements()).await.map_err(classified)?;
            let forgetting = Forgetting { limiter: self.transaction_limiter, key: &key };
            forgetting.delete(self.connection).await.map_err(classified)
        };
        span.watch(running).await
    }

    /// Gives tokens back, up to the capacity, and returns the balances after that. A sliding window subtracts them from
    /// its newest counts, down to 0. A bucket without a row is full and stays without one.
    pub async fn credit(self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        self.call("credit", Op::Credit, call.into(), Answer::balances).await
    }

    /// Gives back the slots of the call's [lease](Call::lease), and returns whether all of them were still held. Items on
    /// other kinds of limits are ignored.
    ///
    /// # In a transaction
    /// Part of the caller's transaction: others see the slots as free from its commit on. The rows stay locked until then.
    pub async fn release(self, call: impl Into<Call> + Send) -> Result<bool, Error> {
        self.call("release", Op::Release, call.into(), |answer, _| answer.is_ok()).await
    }

    /// Lets the call's [lease](Call::lease) end a whole length after now. Returns `false` if it has ended or was released:
    /// then others may hold its slots. Items on other kinds of limits are ignored.
    pub async fn renew(self, call: impl Into<Call> + Send) -> Result<bool, Error> {
        self.call("renew", Op::Renew, call.into(), |answer, _| answer.is_ok()).await
    }

    /// Takes the tokens whatever the balance, and returns the balances after that. Use it for consumption that is known
    /// only afterwards.
    pub async fn charge(self, call: impl Into<Call> + Send) -> Result<Balances, Error> {
        self.call("charge", Op::Charge, call.into(), Answer::balances).await
    }

    /// Corrects an estimate. `estimate` is the item as [`limit`](Self::limit) took it; `used` is the number of tokens
    /// actually used. If fewer were used, the difference is given back, as by [`credit`](Self::credit). If more were
    /// used, the difference is taken whatever the balance, as by [`charge`](Self::charge). Returns the balance after
    /// that.
    ///
    /// Every call makes a correction, as every credit and every charge does. So settle each estimate once, in the
    /// transaction that records the usage:
    ///
    /// ```no_run
    /// # use pg_limiter::{Error, TransactionLimiter};
    /// # async fn f(limits: TransactionLimiter, pool: sqlx::PgPool, id: i64, used: i64) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = pool.begin().await?;
    /// let estimate: Option<i64> =
    ///     sqlx::query_scalar("UPDATE usage SET used = $2 WHERE id = $1 AND used IS NULL RETURNING estimate")
    ///         .bind(id)
    ///         .bind(used)
    ///         .fetch_optional(&mut *tx)
    ///         .await?;
    /// if let Some(estimate) = estimate {
    ///     limits.within(&mut tx).settle(("llm_tokens", "u1", estimate), used).await?;
    /// }
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`Within`]. Also returns [`Error::Invalid`] if `used` is negative or not finite.
    pub async fn settle(
        self,
        estimate: impl Into<Item> + Send,
        used: impl Into<Tokens> + Send,
    ) -> Result<Balances, Error> {
        let (op, item) = estimate.into().correction(used.into());
        self.call("settle", op, item.into(), Answer::balances).await
    }

    /// Makes a call in the caller's transaction, under the name `op_name`.
    async fn call<T: Answered + Send>(
        self,
        op_name: &'static str,
        op: Op,
        call: Call,
        read: fn(&Answer, &Resolved) -> T,
    ) -> Result<T, Error> {
        let span = CallSpan::callers(op_name, &call);
        let running = async {
            let call = self.transaction_limiter.resolve(op, call)?;
            Ok(read(&self.send(&call).await?, &call))
        };
        span.watch(running).await
    }

    pub(super) async fn send(self, call: &Resolved) -> Result<Answer, Error> {
        let statements = self.transaction_limiter.statements();
        let classified = |error| Error::of_statement(error, self.transaction_limiter.schema().name());
        check_release(self.connection, statements).await.map_err(classified)?;
        if let Some(key) = &call.idempotency_key {
            let once = decide_once(self.connection, statements, call, key, self.transaction_limiter.keep_answers).await;
            return once.map_err(classified)?.answer();
        }
        let answers = decide(self.connection, statements, &Batch::of(call)).await;
        answers.and_then(|mut answers| answers.pop().ok_or(sqlx::Error::RowNotFound)).map_err(classified)
    }
}

pub(crate) async fn reset_all_keys(
    connection: &mut PgConnection,
    statements: &Statements,
    name: &str,
) -> Result<u64, sqlx::Error> {
    let rows: i64 = statements.reset_name.scalar().bind(name).fetch_one(connection).await?;
    Ok(rows.unsigned_abs())
}
