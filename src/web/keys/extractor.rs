use std::borrow::Cow;

use http::request::Parts;

use crate::call::Key;
use crate::web::keys::{Or, OrShared, OrUnlimited};

/// Finds the key of a request for a limit: [`ClientAddress`](crate::web::ClientAddress),
/// [`HeaderKey`](crate::web::HeaderKey), [`PathKey`](crate::web::PathKey), with axum `RouteKey`, or a closure
/// ([`key_fn`](crate::web::key_fn)).
///
/// **A request without the key is refused**, with 400: who leaves a header out must not escape its limit. What is to happen
/// instead is said with [`or`](Self::or), [`or_shared`](Self::or_shared) or [`or_unlimited`](Self::or_unlimited).
///
/// The empty key is the one bucket that all share.
pub trait KeyExtractor: Send + Sync {
    /// The key; `None` if the limit does not apply to the request.
    ///
    /// # Errors
    /// [`NoKey`] refuses the request.
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey>;

    /// If the request lacks this key, another one: of an account, say, or else of the address.
    ///
    /// The keys are stored with `1:` and `2:` before them. So who chooses the one freely, as a client does with a header,
    /// cannot spend the tokens of somebody's other one.
    fn or<K: KeyExtractor>(self, other: K) -> Or<Self, K>
    where
        Self: Sized,
    {
        Or::new(self, other)
    }

    /// All requests that lack the key share one bucket, that of the empty key.
    fn or_shared(self) -> OrShared<Self>
    where
        Self: Sized,
    {
        OrShared::new(self)
    }

    /// Requests that lack the key are not limited by this limit. Whoever can leave out what the key is made of escapes it.
    fn or_unlimited(self) -> OrUnlimited<Self>
    where
        Self: Sized,
    {
        OrUnlimited::new(self)
    }
}

/// Why there is no key. It shows nothing of what the request holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoKey {
    /// The request does not have it: 400, unless the extractor says what happens instead.
    #[error("the request lacks {what}")]
    Missing {
        /// What it lacks, as in "the header x-org".
        what: Cow<'static, str>,
    },
    /// The request has it, but it cannot be a key: 400.
    #[error("{what} {reason}")]
    Unusable {
        /// What cannot be a key, as in "the header x-org".
        what: Cow<'static, str>,
        /// Why, as in "is there more than once".
        reason: Cow<'static, str>,
    },
    /// The server is not set up to tell: 500. The message is traced, and not sent.
    #[error("{advice}")]
    Misconfigured {
        /// What is wrong, and what to do.
        advice: Cow<'static, str>,
    },
}
