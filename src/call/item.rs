use std::fmt;
use std::sync::Arc;

use crate::call::{Call, LeaseId, Op};
use crate::limit::{LARGEST_NUMBER, Limit, Limits, Tokens};

/// A reference to a limit: the name of a defined limit, or a name with a limit passed inline.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitRef {
    pub(crate) name: Arc<str>,
    pub(crate) inline: Option<Limit>,
}

impl LimitRef {
    /// Returns the limit's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the limit if it was passed inline.
    pub const fn inline(&self) -> Option<&Limit> {
        self.inline.as_ref()
    }
}

impl From<&str> for LimitRef {
    fn from(name: &str) -> Self {
        Self { name: name.into(), inline: None }
    }
}

impl From<String> for LimitRef {
    fn from(name: String) -> Self {
        Self { name: name.into(), inline: None }
    }
}

impl From<&String> for LimitRef {
    fn from(name: &String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<Arc<str>> for LimitRef {
    fn from(name: Arc<str>) -> Self {
        Self { name, inline: None }
    }
}

/// An inline limit. Its balance is stored under the name.
impl<N: Into<Arc<str>>> From<(N, Limit)> for LimitRef {
    fn from((name, limit): (N, Limit)) -> Self {
        Self { name: name.into(), inline: Some(limit) }
    }
}

/// The key of a bucket: text of up to 1024 bytes without a NUL, or an integer, which is stored in decimal. The empty key is
/// the one shared bucket of a limit.
///
/// Keys are often personal data: addresses, e-mail addresses, ids of accounts. `{:?}` shows only the length, and no error or
/// trace shows a key. With a [`KeySecret`](crate::KeySecret), the database stores only a hash; without one, it stores the key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(pub(crate) Arc<str>);

impl Key {
    /// Returns the key as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", Hidden(&self.0))
    }
}

/// A text that may identify a person. Shows only its length.
pub(crate) struct Hidden<'a>(pub(crate) &'a str);

impl fmt::Display for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({self})")
    }
}

impl From<&str> for Key {
    fn from(key: &str) -> Self {
        Self(key.into())
    }
}

impl From<String> for Key {
    fn from(key: String) -> Self {
        Self(key.into())
    }
}

impl From<&String> for Key {
    fn from(key: &String) -> Self {
        Self(key.as_str().into())
    }
}

impl From<Arc<str>> for Key {
    fn from(key: Arc<str>) -> Self {
        Self(key)
    }
}

macro_rules! from_integers {
    ($($integer:ty)*) => { $(
        impl From<$integer> for Key {
            fn from(id: $integer) -> Self {
                id.to_string().into()
            }
        }
    )* };
}

from_integers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);

/// The tokens that a call must leave in a bucket: see [`Item::leave`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Headroom {
    /// A number of tokens, from 0 to the limit's capacity. The default is 0.
    Tokens(f64),
    /// A fraction of the limit's capacity, from 0 to 1.
    Fraction(f64),
}

/// One limit, one key and one count (default: 1). A [`Call`] has one or more items.
///
/// ```
/// use pg_limiter::Item;
/// let two_messages = Item::new("send_message", "u1").count(2);
/// let everybody = Item::global("sign_up");
///
/// let user_id: i64 = 42;
/// let upload = Item::new("bytes_per_user", user_id).count(1_u64 << 30);
/// assert_eq!((upload.limit_name(), upload.key().as_str(), upload.tokens()), ("bytes_per_user", "42", 1_073_741_824.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Item {
    pub(crate) limit: LimitRef,
    pub(crate) key: Key,
    pub(crate) count: f64,
    pub(crate) headroom: Headroom,
    /// The count is the difference of two others, so its last digits mean nothing.
    pub(crate) is_difference: bool,
}

impl Item {
    /// An item for one token of the limit for this key.
    pub fn new(limit: impl Into<LimitRef>, key: impl Into<Key>) -> Self {
        let headroom = Headroom::Tokens(0.0);
        Self { limit: limit.into(), key: key.into(), count: 1.0, headroom, is_difference: false }
    }

    /// An item for one token of the limit's shared bucket, which has the empty key.
    pub fn global(limit: impl Into<LimitRef>) -> Self {
        Self::new(limit, "")
    }

    /// Sets the number of tokens. Fractions and 0 are allowed. See [`Tokens`] for the accepted types.
    pub fn count(mut self, tokens: impl Into<Tokens>) -> Self {
        self.count = tokens.into().get();
        self.is_difference = false;
        self
    }

    /// Sets the headroom (default: 0): the item is allowed only if at least so many tokens are left in the bucket after it. It
    /// takes its count only. So one bucket serves calls of several priorities: calls of a lower priority leave tokens for the
    /// others. The `retry_after` of a denial is the time until the bucket has the count and the headroom.
    ///
    /// `limit` and `check` support a headroom, of any kind of limit. A count and a headroom that together exceed the capacity
    /// return [`InvalidCall::CountExceedsCapacity`](crate::InvalidCall::CountExceedsCapacity), and a headroom that is not a
    /// number from 0 to the capacity returns [`InvalidCall::Headroom`](crate::InvalidCall::Headroom). Reservations, and
    /// operations other than `limit` and `check`, return
    /// [`InvalidCall::HeadroomUnsupported`](crate::InvalidCall::HeadroomUnsupported). `peek` ignores the headroom. If a call
    /// names a bucket twice, the larger headroom applies.
    ///
    /// ```
    /// use pg_limiter::Item;
    /// let customer = Item::new("api", "org-7");
    /// let batch_job = Item::new("api", "org-7").leave(20); // Keeps 20 tokens for customers.
    /// ```
    pub fn leave(mut self, tokens: impl Into<Tokens>) -> Self {
        self.headroom = Headroom::Tokens(tokens.into().get());
        self
    }

    /// Sets the headroom as a fraction of the limit's capacity, from 0 to 1: see [`leave`](Self::leave). For a sliding window,
    /// it is a fraction of the rate.
    ///
    /// ```
    /// use pg_limiter::Item;
    /// let batch_job = Item::new("api", "org-7").leave_fraction(0.2);
    /// ```
    pub const fn leave_fraction(mut self, fraction: f64) -> Self {
        self.headroom = Headroom::Fraction(fraction);
        self
    }

    /// Returns the name of the limit.
    pub fn limit_name(&self) -> &str {
        &self.limit.name
    }

    /// Returns the limit if it was passed inline; `None` if it is referenced by name.
    pub const fn inline_limit(&self) -> Option<&Limit> {
        self.limit.inline.as_ref()
    }

    /// Returns the key.
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the number of tokens, as set by [`count`](Self::count).
    pub const fn tokens(&self) -> f64 {
        self.count
    }

    /// Returns the headroom, as set by [`leave`](Self::leave) or [`leave_fraction`](Self::leave_fraction).
    pub const fn headroom(&self) -> Headroom {
        self.headroom
    }

    /// Returns the correction from this item's estimate to the tokens actually used: a credit or a charge of the difference. The
    /// headroom of the estimate no longer matters.
    pub(crate) fn correction(mut self, used: Tokens) -> (Op, Self) {
        self.headroom = Headroom::Tokens(0.0);
        let (estimate, used) = (self.count, used.get());
        let (op, difference) =
            if used < estimate { (Op::Credit, estimate - used) } else { (Op::Charge, used - estimate) };
        // An invalid count is passed on, and is rejected later like any other.
        let wrong = [estimate, used].into_iter().find(|count| !(0.0..=LARGEST_NUMBER).contains(count));
        (self.count, self.is_difference) = (wrong.unwrap_or(difference), wrong.is_none());
        (op, self)
    }

    /// Passes the limit inline, if these limits define it.
    pub(crate) fn pinned(mut self, limits: &Limits) -> Self {
        if self.limit.inline.is_none() {
            self.limit.inline = limits.get(&self.limit.name).copied();
        }
        self
    }

    /// Converts the item into a call that reserves: see [`Call::reserve`].
    pub fn reserve(self) -> Call {
        Call::from(self).reserve()
    }

    /// A call on this item alone, under this lease: see [`Call::lease`].
    pub fn lease(self, id: LeaseId) -> Call {
        Call::from(self).lease(id)
    }
}

/// `("limit", "key")`.
impl<L: Into<LimitRef>, K: Into<Key>> From<(L, K)> for Item {
    fn from((limit, key): (L, K)) -> Self {
        Self::new(limit, key)
    }
}

/// `("limit", "key", 2)`.
impl<L: Into<LimitRef>, K: Into<Key>, C: Into<Tokens>> From<(L, K, C)> for Item {
    fn from((limit, key, count): (L, K, C)) -> Self {
        Self::new(limit, key).count(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_accept_every_number_type() {
        let count = |item: Item| item.tokens();
        let item = || Item::new("a", "k");
        assert_eq!([count(item().count(5)), count(item().count(2.5)), count(item())], [5.0, 2.5, 1.0]);
        assert_eq!(count(item().count(1_u64 << 53)), 9_007_199_254_740_992.0);
        assert_eq!(count(item().count(7_usize)), count(item().count(7_i64)));
        assert_eq!(count(item().count(u64::MAX)), 18_446_744_073_709_551_616.0);
        assert_eq!(Item::from(("a", "k", 3_u64)), Item::from(("a", "k", 3)));
        assert_eq!(count(item().count(0.1_f32)), f64::from(0.1_f32));
    }

    #[test]
    fn keys_accept_text_and_every_integer_type() {
        for key in [Key::from(42), 42_u8.into(), 42_i64.into(), 42_u64.into(), 42_usize.into(), "42".into()] {
            assert_eq!(key.as_str(), "42");
        }
        assert_eq!(Item::from(("a", i64::MIN)).key().as_str(), "-9223372036854775808");
        assert_eq!(Call::from(("a", 7, 2)).items()[0], Item::new("a", "7").count(2));
        assert_eq!(format!("{:?}", Key::from(12_345)), "Key(5 bytes)");
    }

    #[test]
    fn items_return_their_limit_and_tokens() {
        let limit = Limit::token_bucket(1_u64, std::time::Duration::from_secs(1)).build().expect("a limit");
        let item = Item::new(("a", limit), "k").count(3);
        assert_eq!((item.limit_name(), item.inline_limit(), item.tokens()), ("a", Some(&limit), 3.0));
        assert_eq!(Item::new("a", "k").inline_limit(), None);
        let by_name = LimitRef::from("a");
        assert_eq!((by_name.name(), by_name.inline()), ("a", None));
    }

    #[test]
    fn a_correction_has_no_headroom() {
        let (_, item) = Item::new("a", "k").count(10).leave_fraction(0.5).correction(4.into());
        assert_eq!((item.tokens(), item.headroom), (6.0, Headroom::Tokens(0.0)));
    }

    #[test]
    fn a_correction_credits_or_charges_the_difference() {
        let correction = |estimate: f64, used: f64| {
            let (op, item) = Item::new("a", "k").count(estimate).correction(used.into());
            (op, item.tokens())
        };
        assert_eq!(correction(10.0, 4.0), (Op::Credit, 6.0));
        assert_eq!(correction(10.0, 14.5), (Op::Charge, 4.5));
        assert_eq!(correction(10.0, 10.0), (Op::Charge, 0.0));
        for (estimate, used, wrong) in [(-1.0, 5.0, -1.0), (5.0, -1.0, -1.0), (5.0, f64::INFINITY, f64::INFINITY)] {
            assert_eq!(correction(estimate, used).1, wrong);
        }
        assert!(correction(1.0, f64::NAN).1.is_nan() && correction(f64::NAN, 1.0).1.is_nan());
    }
}
