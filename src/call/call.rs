use crate::call::{Item, Key, LimitRef, Op, Resolved};
use crate::error::InvalidCall;
use crate::limit::{Limits, Tokens};

/// What is decided together: one [`Item`] or several, all charged or none.
///
/// Every method that takes `impl Into<Call>` takes `("limit", "key")`, `("limit", "key", 2)`, an [`Item`], or an
/// array or `Vec` of items. A key may be a number: `("per_user", user.id)`.
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
    /// A key, so that it is hidden as well as one.
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

    /// Take the tokens even if they are not there yet, as far as each limit's `max_reserved` allows, and say how long
    /// to wait for them. A sliding window cannot.
    pub const fn reserve(mut self) -> Self {
        self.reserve = true;
        self
    }

    /// Take the tokens once, however often the call is made with this key: what was answered is written down in the same
    /// transaction, and whoever comes again gets that answer and takes nothing. So a call whose outcome is not known, or a
    /// request that is delivered twice, may simply be made again; the limiter's own transactions do that by themselves.
    ///
    /// A reservation keeps its moment: the wait for it gets shorter. A denial takes nothing and is not written down: the
    /// next call is decided anew. The same key with another call (another limit, key or count) is
    /// [`InvalidCall::IdempotencyKeyReused`](crate::InvalidCall::IdempotencyKeyReused). Answers are kept for
    /// [`LimiterConfig::keep_answers`](crate::LimiterConfig::keep_answers), and removed by
    /// [`prune`](crate::Limiter::prune) after that.
    ///
    /// The key has 1 to 255 bytes and no NUL, and is for `limit`, `credit` and `charge`. It belongs to the schema, not to a
    /// limit: let it hold whose it is, as in `"u1:checkout:42"`. Such a call is decided on its own, not together with
    /// others, in BEGIN, the call, COMMIT over the pool. With a [`KeySecret`](crate::KeySecret) it is stored as its hash, like
    /// other keys. (As in the IETF draft "The Idempotency-Key HTTP Header Field".)
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

    /// Whether the call may reserve tokens: see [`reserve`](Self::reserve).
    pub const fn reserves(&self) -> bool {
        self.reserve
    }

    /// The items, in their order.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    const fn of(items: Vec<Item>) -> Self {
        Self { items, reserve: false, idempotency_key: None }
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
