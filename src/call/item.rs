use std::fmt;
use std::sync::Arc;

use crate::call::Call;
use crate::limit::Limit;

/// Which limit: one that was defined by name, or one given inline.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitRef {
    pub(crate) name: Arc<str>,
    pub(crate) inline: Option<Limit>,
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

/// An inline limit: the name says where its balance is kept.
impl<N: Into<Arc<str>>> From<(N, Limit)> for LimitRef {
    fn from((name, limit): (N, Limit)) -> Self {
        Self { name: name.into(), inline: Some(limit) }
    }
}

/// Who is limited: any text of up to 1024 bytes without a NUL. The empty key is the one shared bucket of a limit.
///
/// Keys are often personal data: addresses, e-mail addresses, the ids of accounts. `{:?}` shows the length only, no error
/// and no trace shows a key, and with a [`KeySecret`](crate::KeySecret) the database does not have it either; without one, it
/// is stored as it is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(pub(crate) Arc<str>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", Hidden(&self.0))
    }
}

/// A text that may tell who somebody is.
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

/// One limit, one key, one count (default 1): what a [`Call`] asks for, or one part of it.
///
/// ```
/// use pg_limiter::Item;
/// let two_messages = Item::new("send_message", "u1").count(2);
/// let everybody = Item::global("sign_up");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Item {
    pub(crate) limit: LimitRef,
    pub(crate) key: Key,
    pub(crate) count: f64,
}

impl Item {
    /// One token of the limit for this key.
    pub fn new(limit: impl Into<LimitRef>, key: impl Into<Key>) -> Self {
        Self { limit: limit.into(), key: key.into(), count: 1.0 }
    }

    /// One token of the limit's one shared bucket: that of the empty key.
    pub fn global(limit: impl Into<LimitRef>) -> Self {
        Self::new(limit, "")
    }

    /// How many tokens: fractions and 0 are allowed.
    pub fn count(mut self, tokens: impl Into<f64>) -> Self {
        self.count = tokens.into();
        self
    }

    /// As a call that may take tokens before they are there, and says how long to wait for them.
    pub fn reserve(self) -> Call {
        Call::from(self).reserve()
    }
}

/// `("limit", "key")`.
impl<L: Into<LimitRef>, K: Into<Key>> From<(L, K)> for Item {
    fn from((limit, key): (L, K)) -> Self {
        Self::new(limit, key)
    }
}

/// `("limit", "key", 2)`.
impl<L: Into<LimitRef>, K: Into<Key>, C: Into<f64>> From<(L, K, C)> for Item {
    fn from((limit, key, count): (L, K, C)) -> Self {
        Self::new(limit, key).count(count)
    }
}
