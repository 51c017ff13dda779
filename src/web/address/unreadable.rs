use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How to treat an unreadable client: a client without a readable address in the header that your proxies write. See
/// [`ClientAddress::unreadable`](crate::web::ClientAddress::unreadable).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreadable {
    /// All these clients share the key `unreadable`, and are in no network.
    SharedKey,
    /// The request is rejected with 400.
    Reject,
}

/// Why an address cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The proxy does not know its peer's address: `unknown`.
    Unknown,
    /// The proxy hides its peer's address: `_hidden`.
    Obfuscated,
    /// The header exists, but reports no address.
    Missing,
    /// Anything else.
    Malformed,
}

impl Reason {
    /// The name in logs and metrics.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Obfuscated => "obfuscated",
            Self::Missing => "missing",
            Self::Malformed => "malformed",
        }
    }
}

/// Lets one event through in each minute, and counts the others.
#[derive(Debug, Default)]
pub(super) struct OncePerMinute(Mutex<(Option<Instant>, u64)>);

const MINUTE: Duration = Duration::from_secs(60);

impl OncePerMinute {
    /// Returns the number of events since the last one that was let through, if this one is.
    pub(super) fn next(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, left_out) = &mut *state;
        if last.is_some_and(|last| last.elapsed() < MINUTE) {
            *left_out += 1;
            return None;
        }
        *last = Some(Instant::now());
        Some(std::mem::take(left_out))
    }
}
