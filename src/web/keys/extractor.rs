use std::borrow::Cow;

use http::request::Parts;

use crate::call::Key;
use crate::web::keys::{Or, OrShared, OrUnlimited};

/// Extracts the key of a request for a limit. Implementations are [`ClientAddress`](crate::web::ClientAddress),
/// [`HeaderKey`](crate::web::HeaderKey), [`PathKey`](crate::web::PathKey), closures ([`key_fn`](crate::web::key_fn)), and
/// with axum `RouteKey`.
///
/// **A request without the key is rejected** with 400, so that a client cannot escape a limit by leaving out a header. To
/// change that, use [`or`](Self::or), [`or_shared`](Self::or_shared) or [`or_unlimited`](Self::or_unlimited).
///
/// All requests with the empty key share one bucket.
///
/// # Long keys
/// A key of more than 1024 bytes, such as a long path, is stored as `sha256:` and the SHA-256 of the key (43 characters,
/// base64url). So is a shorter key that begins with `sha256:`, so that a client cannot send the stored form of another client's
/// key. A [`HeaderKey`](crate::web::HeaderKey) rejects a value of more than 1024 bytes instead.
pub trait KeyExtractor: Send + Sync {
    /// Returns the key, or `None` if the limit does not apply to the request.
    ///
    /// # Errors
    /// [`NoKey`] if the request must be rejected.
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey>;

    /// Uses another key if the request lacks this one: for example an account, or else the address.
    ///
    /// The keys are stored with the prefixes `1:` and `2:`. So a client that forges the first key, such as a header, cannot
    /// drain a bucket of the second kind.
    fn or<K: KeyExtractor>(self, other: K) -> Or<Self, K>
    where
        Self: Sized,
    {
        Or::new(self, other)
    }

    /// Uses the empty key if the request lacks this one. All such requests share one bucket.
    fn or_shared(self) -> OrShared<Self>
    where
        Self: Sized,
    {
        OrShared::new(self)
    }

    /// Does not apply the limit to requests that lack the key. A client that can leave the key out escapes the limit.
    fn or_unlimited(self) -> OrUnlimited<Self>
    where
        Self: Sized,
    {
        OrUnlimited::new(self)
    }
}

/// Why a request has no key. The messages contain no values of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoKey {
    /// The request lacks the key: 400, unless the extractor has a fallback.
    #[error("the request lacks {what}")]
    Missing {
        /// The missing part, as in "the header x-org".
        what: Cow<'static, str>,
    },
    /// The request has the value, but it cannot be used as a key: 400.
    #[error("{what} {reason}")]
    Unusable {
        /// The unusable part, as in "the header x-org".
        what: Cow<'static, str>,
        /// Why, as in "appears more than once".
        reason: Cow<'static, str>,
    },
    /// The server is misconfigured and cannot find the key: 500. The message is logged, and not sent to the client.
    #[error("{advice}")]
    Misconfigured {
        /// The message: what is wrong, and what to do.
        advice: Cow<'static, str>,
    },
}
