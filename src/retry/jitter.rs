//! Chance, so that those who wait for the same do not all come at the same moment.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A random part of the span, from nothing to all of it, every length as likely.
pub(crate) fn part_of(span: Duration) -> Duration {
    // Each state has keys of its own, which no one outside can tell: 53 bits are what fits into the number.
    let chance = (RandomState::new().hash_one(()) >> 11) as f64 / (1_u64 << 53) as f64;
    span.mul_f64(chance)
}

/// What a setting from 0 to 1 is taken for.
pub(crate) const fn share(given: f64) -> f64 {
    if given.is_nan() { 0.0 } else { given.clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_spread_over_the_whole_span() {
        let span = Duration::from_secs(1000);
        let parts: Vec<Duration> = (0..1000).map(|_| part_of(span)).collect();
        assert!(parts.iter().all(|part| *part <= span));
        for tenth in 0..10 {
            let bounds = span / 10 * tenth..span / 10 * (tenth + 1);
            let inside = parts.iter().filter(|part| bounds.contains(*part)).count();
            assert!((20..300).contains(&inside), "{inside} in the tenth from {tenth} on");
        }
        assert_eq!(part_of(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn nonsense_is_taken_for_the_nearest_sense() {
        assert_eq!([f64::NAN, -1.0, 0.25, 7.0, f64::INFINITY].map(share), [0.0, 0.0, 0.25, 1.0, 1.0]);
    }
}
