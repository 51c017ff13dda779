use std::time::Duration;

use crate::limit::{Kind, LARGEST_NUMBER, exact_values, refused_name, refused_text};

/// A call is not valid, or can never be allowed. Nothing was sent, except for
/// [`IdempotencyKeyReused`](Self::IdempotencyKeyReused).
///
/// Keys are often personal data, so no message shows one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCall {
    /// The count is above the most that the limit can ever grant at once: its capacity, or its rate for a sliding window. With
    /// `reserve`, the most is the capacity plus `max_reserved`. With a [headroom](crate::Item::leave), it is the capacity minus
    /// the headroom.
    #[error(
        "the count {count} can never be served by the limit \"{limit}\", which grants at most {max}{}; {}",
        leaving(*.leave),
        too_large_remedy(*.kind, *.reserve, *.leave, *.max)
    )]
    CountExceedsCapacity {
        /// The limit's name.
        limit: String,
        /// The requested count: the sum, if the call names the bucket more than once.
        count: f64,
        /// The headroom in tokens: the largest, if the call names the bucket more than once. 0 if there is none.
        leave: f64,
        /// The largest count that the limit can grant with this headroom.
        max: f64,
        /// The limit's kind.
        kind: Kind,
        /// Whether the call reserves.
        reserve: bool,
    },
    /// The count is above the capacity, and the missing tokens cannot arrive within the time that the call may wait: see
    /// [`Limiter::until_ready`](crate::Limiter::until_ready).
    #[error(
        "the count {count} can never be served by the limit \"{limit}\" within {max_wait:?}, in which it grants at most {max}; raise max_wait, or lower the count"
    )]
    WaitTooShort {
        /// The limit's name.
        limit: String,
        /// The requested count: the sum, if the call names the bucket more than once.
        count: f64,
        /// The largest count that the limit can grant in that time.
        max: f64,
        /// The longest time to wait.
        max_wait: Duration,
    },
    /// The count is neither 0 nor a number of tokens that decisions keep exact: 1e-6 to 1e13, and either a whole number or at least a
    /// billionth of the capacity.
    #[error("the count {count} for the limit \"{limit}\" is not valid; use 0, or {}", exact_values(*.count, *.capacity))]
    Count {
        /// The limit's name.
        limit: String,
        /// The requested count.
        count: f64,
        /// The limit's capacity.
        capacity: f64,
    },
    /// The headroom is not a number from 0 to the limit's capacity, or to its rate for a sliding window: see
    /// [`Item::leave`](crate::Item::leave).
    #[error("the headroom {leave} for the limit \"{limit}\" is not valid; use a number from 0 to the capacity, {max}")]
    Headroom {
        /// The limit's name.
        limit: String,
        /// The requested headroom in tokens.
        leave: f64,
        /// The capacity, or the rate of a sliding window.
        max: f64,
    },
    /// The headroom is not a fraction from 0 to 1: see [`Item::leave_fraction`](crate::Item::leave_fraction).
    #[error("the headroom for the limit \"{limit}\" is the fraction {fraction}; use a fraction from 0 to 1")]
    HeadroomFraction {
        /// The limit's name.
        limit: String,
        /// The requested fraction.
        fraction: f64,
    },
    /// The call has a [headroom](crate::Item::leave), and reserves or is neither `limit` nor `check`. Jobs of a queue reserve.
    #[error(
        "the call has a headroom for the limit \"{limit}\", which only limit and check without a reservation support; remove the headroom"
    )]
    HeadroomUnsupported {
        /// The limit's name.
        limit: String,
    },
    /// No limit with this name is defined.
    #[error("there is no limit \"{limit}\"; define it, or pass it inline with the call")]
    UnknownLimit {
        /// The requested name.
        limit: String,
    },
    /// This kind of limit does not support reservations.
    #[error("the limit \"{limit}\" is a {kind}, which cannot reserve; use a token bucket or a fixed window")]
    ReserveUnsupported {
        /// The limit's name.
        limit: String,
        /// The limit's kind.
        kind: Kind,
    },
    /// The name of a limit is empty, longer than 255 bytes, or contains a NUL.
    #[error("{}", refused_name(*.bytes))]
    Name {
        /// The length of the name.
        bytes: usize,
    },
    /// The key is longer than 1024 bytes or contains a NUL.
    #[error("the key for the limit \"{limit}\" {}", refused_text(*.bytes, 1024, "shorten or hash it"))]
    Key {
        /// The limit's name.
        limit: String,
        /// The length of the key.
        bytes: usize,
    },
    /// The key to [forget](crate::Limiter::forget) is empty, longer than 1024 bytes, or contains a NUL. The empty key is the
    /// one shared bucket of a limit: reset it instead.
    #[error("the key to forget {}", refused_text(*.bytes, 1024, "give a key as the calls do"))]
    ForgottenKey {
        /// The length of the key.
        bytes: usize,
    },
    /// One call names the same bucket twice, with two different definitions of the limit.
    #[error("the call passes two different definitions of the limit \"{limit}\" for the same key; use one of them")]
    Contradiction {
        /// The limit's name.
        limit: String,
    },
    /// A gate has no tokens to credit or charge.
    #[error("the limit \"{limit}\" is a gate, which has no tokens to credit or charge; use block and unblock")]
    NoTokens {
        /// The limit's name.
        limit: String,
    },
    /// Only a key of a gate can be blocked.
    #[error(
        "the limit \"{limit}\" is a {kind}, not a gate, so it cannot be blocked; define a gate, and name it in the same call"
    )]
    NotAGate {
        /// The limit's name.
        limit: String,
        /// The limit's kind.
        kind: Kind,
    },
    /// The time to block a key for is 0, longer than 36,525 days, or not a whole number of microseconds.
    #[error(
        "the block of {duration:?} is not valid; use a whole number of microseconds, from 1 microsecond to 36525 days"
    )]
    Block {
        /// The time.
        duration: Duration,
    },
    /// The idempotency key is empty, longer than 255 bytes, or contains a NUL.
    #[error("the idempotency key {}", refused_text(*.bytes, 255, "shorten or hash it"))]
    IdempotencyKey {
        /// The length of the key.
        bytes: usize,
    },
    /// The idempotency key was already used for a different call: another limit, key or count. Nothing was taken.
    #[error("the idempotency key was already used for a different call; use a new key for each request")]
    IdempotencyKeyReused,
    /// This operation does not support idempotency keys: it changes nothing, or has the same effect when repeated. A job has a
    /// unique id instead.
    #[error(
        "only limit, credit and charge support an idempotency key; remove it, or for a job set a unique id instead"
    )]
    IdempotencyKeyUnsupported,
    /// The call has no items.
    #[error("the call names no limit; name at least one")]
    Empty,
    /// A call on a concurrency limit names no lease.
    #[error("the limit \"{limit}\" counts slots, which a lease holds; use acquire, or name a lease")]
    NeedsLease {
        /// The limit's name.
        limit: String,
    },
    /// The call acquires, releases or renews slots, but none of its limits has any.
    #[error(
        "none of the call's limits is a concurrency limit, so it has no slots; name one, or make the call without a lease"
    )]
    NoSlots,
    /// The count of slots is not a whole number from 1 on.
    #[error(
        "the count {count} for the concurrency limit \"{limit}\" is not a whole number from 1 on; count whole slots"
    )]
    Slots {
        /// The limit's name.
        limit: String,
        /// The requested count.
        count: f64,
    },
    /// Slots are neither credited nor charged.
    #[error("the concurrency limit \"{limit}\" has no tokens to {op}; acquire and release its slots")]
    SlotsHaveNoTokens {
        /// The limit's name.
        limit: String,
        /// The operation.
        op: &'static str,
    },
    /// An allowance holds tokens. A concurrency limit and a gate have none.
    #[error("the limit \"{limit}\" is a {kind}, which has no tokens for an allowance; use a token bucket or a window")]
    AllowanceUnsupported {
        /// The limit's name.
        limit: String,
        /// The limit's kind.
        kind: Kind,
    },
    /// The size of an allowance is 0, or the time after which its tokens are given back is 0.
    #[error(
        "an allowance of {size} tokens of the limit \"{limit}\" for {ttl:?} can hold nothing; use a size and a time above 0"
    )]
    Allowance {
        /// The limit's name.
        limit: String,
        /// The size.
        size: f64,
        /// The time after which unused tokens are given back.
        ttl: Duration,
    },
}

/// Returns the part of the message about a headroom.
fn leaving(leave: f64) -> String {
    if leave > 0.0 { format!(" and leaves {leave}") } else { String::new() }
}

/// Returns the remedy for a count above the most that the limit grants.
fn too_large_remedy(kind: Kind, reserve: bool, leave: f64, max: f64) -> &'static str {
    if max >= LARGEST_NUMBER {
        "lower the count"
    } else if leave > 0.0 {
        "lower the count, or leave less"
    } else if kind == Kind::SlidingWindow {
        "lower the count, or raise the rate"
    } else if reserve {
        "lower the count, or raise max_reserved"
    } else if max == 0.0 {
        "reserve the tokens, or raise the capacity"
    } else {
        "lower the count, or raise the capacity"
    }
}

impl InvalidCall {
    /// Returns a stable name: `count_exceeds_capacity`, `wait_too_short`, `invalid_count`, `invalid_leave`, `leave_unsupported`,
    /// `unknown_limit`, `reserve_unsupported`, `no_tokens`, `not_a_gate`, `invalid_block`, `invalid_name`, `invalid_key`,
    /// `invalid_idempotency_key`, `invalid_lease`, `invalid_allowance`, `invalid_call`.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::CountExceedsCapacity { .. } => "count_exceeds_capacity",
            Self::WaitTooShort { .. } => "wait_too_short",
            Self::Count { .. } | Self::Slots { .. } => "invalid_count",
            Self::Headroom { .. } | Self::HeadroomFraction { .. } => "invalid_leave",
            Self::HeadroomUnsupported { .. } => "leave_unsupported",
            Self::UnknownLimit { .. } => "unknown_limit",
            Self::ReserveUnsupported { .. } | Self::SlotsHaveNoTokens { .. } => "reserve_unsupported",
            Self::NoTokens { .. } => "no_tokens",
            Self::NotAGate { .. } => "not_a_gate",
            Self::Block { .. } => "invalid_block",
            Self::Name { .. } => "invalid_name",
            Self::Key { .. } | Self::ForgottenKey { .. } => "invalid_key",
            Self::IdempotencyKey { .. } | Self::IdempotencyKeyReused | Self::IdempotencyKeyUnsupported => {
                "invalid_idempotency_key"
            }
            Self::Contradiction { .. } | Self::Empty | Self::NoSlots => "invalid_call",
            Self::NeedsLease { .. } => "invalid_lease",
            Self::AllowanceUnsupported { .. } | Self::Allowance { .. } => "invalid_allowance",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_describe_the_invalid_text() {
        let name = |bytes| InvalidCall::Name { bytes }.to_string();
        assert_eq!(name(0), "the limit's name is empty; give it at least one character");
        assert_eq!(name(256), "the limit's name has 256 bytes, and at most 255 are allowed; shorten it");
        assert_eq!(name(255), "the limit's name contains a NUL character; remove it");
        let key = InvalidCall::Key { limit: "per_user".to_owned(), bytes: 1025 }.to_string();
        let expected =
            "the key for the limit \"per_user\" has 1025 bytes, and at most 1024 are allowed; shorten or hash it";
        assert_eq!(key, expected);
    }

    #[test]
    fn a_count_that_is_too_large_names_the_option_to_raise() {
        let message = |kind, reserve, max| {
            let (limit, count, leave) = ("a".to_owned(), 11.0, 0.0);
            InvalidCall::CountExceedsCapacity { limit, count, leave, max, kind, reserve }.to_string()
        };
        let sliding = "the count 11 can never be served by the limit \"a\", which grants at most 10; lower the count, or raise \
                       the rate";
        assert_eq!(message(Kind::SlidingWindow, false, 10.0), sliding);
        for kind in [Kind::TokenBucket, Kind::FixedWindow] {
            assert!(message(kind, false, 10.0).ends_with("10; lower the count, or raise the capacity"));
            assert!(message(kind, false, 0.0).ends_with("0; reserve the tokens, or raise the capacity"));
            assert!(message(kind, true, 10.0).ends_with("10; lower the count, or raise max_reserved"));
            assert!(message(kind, true, 0.0).ends_with("0; lower the count, or raise max_reserved"));
            assert!(message(kind, true, 2e100).ends_with("; lower the count"));
        }
    }
}
