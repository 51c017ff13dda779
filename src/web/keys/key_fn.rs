use std::fmt;

use http::request::Parts;

use crate::call::Key;
use crate::web::keys::{KeyExtractor, NoKey};

/// Creates an extractor from a closure, for example to read an extension that an earlier layer has inserted. If the closure
/// returns `None`, the request lacks the key.
///
/// ```
/// use pg_limiter::web::{KeyExtractor, key_fn};
///
/// #[derive(Clone)]
/// struct Account { id: u64 }
///
/// let by_account = key_fn(|request| Some(request.extensions.get::<Account>()?.id.to_string())).or_shared();
/// ```
pub fn key_fn<F, K>(key: F) -> KeyFn<F>
where
    F: Fn(&Parts) -> Option<K> + Send + Sync,
    K: Into<Key>,
{
    KeyFn { key }
}

/// An extractor that calls a closure. Created by [`key_fn`].
#[derive(Clone, Copy)]
#[must_use]
pub struct KeyFn<F> {
    key: F,
}

impl<F> fmt::Debug for KeyFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyFn(..)")
    }
}

impl<F, K> KeyExtractor for KeyFn<F>
where
    F: Fn(&Parts) -> Option<K> + Send + Sync,
    K: Into<Key>,
{
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey> {
        match (self.key)(request) {
            Some(key) => Ok(Some(key.into())),
            None => Err(NoKey::Missing { what: "the value that its rate limit is keyed by".into() }),
        }
    }
}
