//! Randomness, so that waiters for the same moment do not all retry at once.

use std::time::Duration;

/// Returns a random part of the span, uniformly distributed from zero to all of it.
pub(crate) fn part_of(span: Duration) -> Duration {
    span.mul_f64(fastrand::f64())
}

/// Clamps a setting to the range from 0 to 1; NaN becomes 0.
pub(crate) const fn clamped_fraction(given: f64) -> f64 {
    if given.is_nan() { 0.0 } else { given.clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_parts_cover_the_whole_span() {
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
    fn out_of_range_settings_are_clamped() {
        assert_eq!([f64::NAN, -1.0, 0.25, 7.0, f64::INFINITY].map(clamped_fraction), [0.0, 0.0, 0.25, 1.0, 1.0]);
    }
}
