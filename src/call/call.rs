use crate::call::InvalidCall;
use crate::call::{Item, Key, LeaseId, LimitRef, Op, Resolved};
use crate::limit::{Limits, Tokens};

/// One or more [`Item`]s that are decided together: all of them are charged or none.
///
/// Every method that takes `impl Into<Call>` accepts `("limit", "key")`, `("limit", "key", 2)`, an [`Item`], or an
/// array or `Vec` of items. A key can be an integer: `("per_user", user.id)`.
///
/// ```
/// use pg_limiter::{Call, Item};
/// let call = Call::from([Item::new("per_user", "u1"), Item::new("per_org", "o7").count(2)]).reserve();
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Call {
    pub(crate) items: Vec<Item>,
    pub(crate) reserve: bool,
    pub(crate) lease: Option<LeaseId>,
    /// Whether the keys were read from the database, where they are hashed if there is a secret.
    pub(crate) has_stored_keys: bool,
    /// Stored as a `Key`, so that `{:?}` does not show it.
    pub(crate) idempotency_key: Option<Key>,
}

impl Call {
    /// Checks the call against these limits, without a database: whether every limit is known, and whether the call can ever be
    /// allowed.
    ///
    /// # Errors
    /// [`InvalidCall`] as [`Limiter::limit`](crate::Limiter::limit) would return it.
    pub fn validate(&self, op: Op, limits: &Limits) -> Result<(), InvalidCall> {
        Resolved::new(op, self.clone(), limits, None).map(drop)
    }

    /// Reserves: takes the tokens before they are available, as far as each limit's `max_reserved` allows. The decision has
    /// the time to wait for them. Sliding windows and items with a [headroom](Item::leave) do not support this.
    pub const fn reserve(mut self) -> Self {
        self.reserve = true;
        self
    }

    /// Takes the tokens only once, however often the call is made with this idempotency key. The answer is stored in the
    /// transaction that takes the tokens. A repeated call returns the stored answer and takes nothing. So it is safe to repeat
    /// a call whose outcome is unknown, or to handle a request that is delivered twice. The limiter's own transactions repeat
    /// such calls automatically.
    ///
    /// A repeated call may have another [headroom](Item::leave): the headroom only decides whether the first call is allowed.
    ///
    /// A repeated reservation keeps its original time, so the wait gets shorter. A denial takes nothing and is not stored: the
    /// next call is decided anew. Using the same key for a different call (another limit, key or count) returns
    /// [`InvalidCall::IdempotencyKeyReused`](crate::InvalidCall::IdempotencyKeyReused). Answers are kept for
    /// [`LimiterConfig::keep_answers`](crate::LimiterConfig::keep_answers). After that,
    /// [`prune`](crate::Limiter::prune) removes them.
    ///
    /// The key has 1 to 255 bytes and no NUL. `limit`, `credit` and `charge` support it. Idempotency keys are shared by all
    /// limits of a schema, so include the owner in the key, as in `"u1:checkout:42"`. The call is decided alone, not in a
    /// batch, as BEGIN, the call and COMMIT on a connection of the pool. With a [`KeySecret`](crate::KeySecret), the key is
    /// stored as a hash, like other keys. (As in the IETF draft "The Idempotency-Key HTTP Header Field".)
    ///
    /// ```no_run
    /// # use pg_limiter::{Call, Item, Limiter};
    /// # async fn f(limiter: Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let call = Call::from(("per_user", "u1")).idempotency_key("u1:checkout:42");
    /// if limiter.limit(call).await?.is_allowed() { /* .. */ }
    /// # Ok(()) }
    /// ```
    pub fn idempotency_key(mut self, key: impl Into<Key>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Names the lease under which the call takes slots of concurrency limits, releases or renews them.
    /// [`Limiter::acquire`](crate::Limiter::acquire) chooses a lease itself and keeps it in a handle. Name one to take slots in
    /// your own transaction, or to release them elsewhere:
    ///
    /// ```no_run
    /// use pg_limiter::{Item, LeaseId};
    ///
    /// # async fn f(limiter: pg_limiter::Limiter, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let lease = LeaseId::random();
    /// let slot = Item::new("running_reports", "u1");
    /// let mut tx = pool.begin().await?;
    /// limiter.within(&mut tx).limit(slot.clone().lease(lease)).await?.enforce()?;
    /// sqlx::query("INSERT INTO reports (owner, lease) VALUES ('u1', $1)").bind(lease.get()).execute(&mut *tx).await?;
    /// tx.commit().await?; // From now on others see that the slot is taken.
    /// // .. run the report ..
    /// let was_held = limiter.release(slot.lease(lease)).await?;
    /// # Ok(()) }
    /// ```
    pub const fn lease(mut self, id: LeaseId) -> Self {
        self.lease = Some(id);
        self
    }

    /// Whether the call may reserve tokens: see [`reserve`](Self::reserve).
    pub const fn reserves(&self) -> bool {
        self.reserve
    }

    /// Returns the items, in order.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Passes the limits inline, so that later calls on the same items use the same limits.
    pub(crate) fn pinned(mut self, limits: &Limits) -> Self {
        self.items = self.items.into_iter().map(|item| item.pinned(limits)).collect();
        self
    }

    const fn of(items: Vec<Item>) -> Self {
        Self { items, reserve: false, lease: None, has_stored_keys: false, idempotency_key: None }
    }
}

impl From<Item> for Call {
    fn from(item: Item) -> Self {
        Self::of(vec![item])
    }
}

impl From<Vec<Item>> for Call {
    fn from(items: Vec<Item>) -> Self {
        Self::of(items)
    }
}

impl From<&[Item]> for Call {
    fn from(items: &[Item]) -> Self {
        Self::of(items.to_vec())
    }
}

impl<const N: usize> From<[Item; N]> for Call {
    fn from(items: [Item; N]) -> Self {
        Self::of(items.into())
    }
}

impl<L: Into<LimitRef>, K: Into<Key>> From<(L, K)> for Call {
    fn from(item: (L, K)) -> Self {
        Item::from(item).into()
    }
}

impl<L: Into<LimitRef>, K: Into<Key>, C: Into<Tokens>> From<(L, K, C)> for Call {
    fn from(item: (L, K, C)) -> Self {
        Item::from(item).into()
    }
}
