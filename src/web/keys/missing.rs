//! Fallbacks for requests that lack their key. Requests with an unusable key are rejected nevertheless.

use http::request::Parts;

use crate::call::Key;
use crate::web::keys::{KeyExtractor, NoKey};

/// Uses a second extractor if the request lacks the first key. Created by [`KeyExtractor::or`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    pub(super) const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey> {
        let (place, key) = match self.first.key(request) {
            Err(NoKey::Missing { .. }) => ("2:", self.second.key(request)?),
            found => ("1:", found?),
        };
        Ok(key.map(|Key(key)| format!("{place}{key}").into()))
    }
}

/// Uses the empty key if the request lacks the key. Created by [`KeyExtractor::or_shared`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct OrShared<K> {
    key: K,
}

impl<K> OrShared<K> {
    pub(super) const fn new(key: K) -> Self {
        Self { key }
    }
}

impl<K: KeyExtractor> KeyExtractor for OrShared<K> {
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey> {
        match self.key.key(request) {
            Err(NoKey::Missing { .. }) => Ok(Some("".into())),
            found => found,
        }
    }
}

/// Does not limit requests that lack the key. Created by [`KeyExtractor::or_unlimited`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct OrUnlimited<K> {
    key: K,
}

impl<K> OrUnlimited<K> {
    pub(super) const fn new(key: K) -> Self {
        Self { key }
    }
}

impl<K: KeyExtractor> KeyExtractor for OrUnlimited<K> {
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey> {
        match self.key.key(request) {
            Err(NoKey::Missing { .. }) => Ok(None),
            found => found,
        }
    }
}
