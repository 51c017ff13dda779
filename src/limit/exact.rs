//! The numbers of tokens that decisions keep exact.
//!
//! Balances are `f64`, which has 53 bits: the larger a balance, the coarser the smallest change of it. Within these bounds, the
//! rounding of a call stays below a billionth of what it takes, and a whole number of tokens is never rounded. SQL checks the same:
//! see `_is_exact` in `sql/decide/exact.sql`.

use crate::limit::Limit;

/// The upper bound for tokens.
pub(crate) const LARGEST_NUMBER: f64 = 1e13;
/// The lower bound for tokens other than 0.
pub(crate) const SMALLEST_NUMBER: f64 = 1e-6;
/// The capacity divided by this is the smallest fraction that is exact.
const PARTS: f64 = 1e9;

/// Whether so many tokens can be added to a bucket of this capacity and taken from it: 1e-6 to 1e13, and either a whole number or at
/// least a billionth of the capacity.
pub(crate) fn is_exact(tokens: f64, capacity: f64) -> bool {
    (SMALLEST_NUMBER..=LARGEST_NUMBER).contains(&tokens) && (tokens * PARTS >= capacity || tokens.fract() == 0.0)
}

/// Whether it is a capacity or a bound of a debt.
pub(crate) fn is_bound(tokens: f64) -> bool {
    tokens == 0.0 || (SMALLEST_NUMBER..=LARGEST_NUMBER).contains(&tokens)
}

/// Returns the values that are allowed beside this capacity, for a message.
pub(crate) fn exact_values(tokens: f64, capacity: f64) -> String {
    let finest = capacity / PARTS;
    if (SMALLEST_NUMBER..=LARGEST_NUMBER).contains(&tokens) && finest <= LARGEST_NUMBER {
        format!("a whole number or at least {finest} (a billionth of the capacity {capacity})")
    } else {
        format!("a number from {SMALLEST_NUMBER:e} to {LARGEST_NUMBER:e}")
    }
}

impl Limit {
    /// Whether a call can ask for so many tokens: 0, or a number of tokens that decisions keep exact.
    pub(crate) fn can_count(&self, count: f64) -> bool {
        count == 0.0 || is_exact(count, self.capacity())
    }

    /// Returns the nearest number of tokens that can be counted, rounded by [`f64::floor`] or [`f64::ceil`]. For differences, which
    /// are not exact even if both numbers are.
    pub(crate) fn exact_difference(&self, tokens: f64, round: fn(f64) -> f64) -> f64 {
        if self.can_count(tokens) || !(0.0..=LARGEST_NUMBER).contains(&tokens) {
            return tokens;
        }
        let finest = SMALLEST_NUMBER.max(self.capacity() / PARTS).min(1.0);
        round(tokens / finest) * finest
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{is_bound, is_exact};
    use crate::limit::Limit;

    #[test]
    fn whole_numbers_and_large_fractions_are_exact() {
        for (tokens, capacity) in [(1.0, 1e13), (1e13, 1e13), (0.1, 1e8), (1e-6, 0.0), (1e-6, 1000.0), (10_000.5, 1e13)]
        {
            assert!(is_exact(tokens, capacity), "{tokens} of {capacity}");
        }
        for (tokens, capacity) in [
            (0.0, 1.0),
            (9e-7, 1.0),
            (2e13, 1.0),
            (0.5, 1e9),
            (1.5, 1e13),
            (-1.0, 1.0),
            (f64::NAN, 1.0),
            (f64::INFINITY, 1.0),
        ] {
            assert!(!is_exact(tokens, capacity), "{tokens} of {capacity}");
        }
        assert!([0.0, 1e-6, 1e13].into_iter().all(is_bound));
        assert!(![1e-7, -1.0, 1.1e13, f64::NAN].into_iter().any(is_bound));
    }

    #[test]
    fn a_difference_is_rounded_against_the_caller() {
        let limit = |capacity: f64| Limit::token_bucket(capacity, Duration::from_secs(1)).build().expect("a limit");
        for (capacity, tokens, credit, charge) in [
            (10.0, 0.3 - 0.1, 0.3 - 0.1, 0.3 - 0.1),
            (10.0, 5.6e-17, 0.0, 1e-6),
            (1e10, 0.5, 0.0, 1.0),
            (1e10, 1000.5, 1000.5, 1000.5),
            (1e10, 2.25, 2.0, 3.0),
        ] {
            let limit = limit(capacity);
            assert_eq!(limit.exact_difference(tokens, f64::floor), credit, "{tokens} of {capacity}");
            assert_eq!(limit.exact_difference(tokens, f64::ceil), charge, "{tokens} of {capacity}");
        }
    }
}
