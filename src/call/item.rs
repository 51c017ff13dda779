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

impl From<Arc<str>> for LimitRef {
    fn from(name: Arc<str>) -> Self {
        Self { name, inline: None }
    }
}

/// An inline limit: the name says where its balance is kept.
impl From<(&str, Limit)> for LimitRef {
    fn from((name, limit): (&str, Limit)) -> Self {
        Self { name: name.into(), inline: Some(limit) }
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
    pub(crate) key: Arc<str>,
    pub(crate) count: f64,
}

impl Item {
    /// One token of the limit for this key.
    pub fn new(limit: impl Into<LimitRef>, key: impl Into<Arc<str>>) -> Self {
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
impl<L: Into<LimitRef>, K: Into<Arc<str>>> From<(L, K)> for Item {
    fn from((limit, key): (L, K)) -> Self {
        Self::new(limit, key)
    }
}

/// `("limit", "key", 2.0)`.
impl<L: Into<LimitRef>, K: Into<Arc<str>>> From<(L, K, f64)> for Item {
    fn from((limit, key, count): (L, K, f64)) -> Self {
        Self::new(limit, key).count(count)
    }
}
