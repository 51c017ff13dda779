//! Decides whether memory or a table has stopped growing.

/// Growth that is ignored: small sizes grow in large steps.
const SLACK: f64 = 8.0 * MIB as f64;
const MIB: u64 = 1024 * 1024;
const FACTOR: f64 = 1.2;

/// The medians of the second and the last quarter, or `None` if there are too few samples.
pub(super) fn quarters(samples: &[u64]) -> Option<(u64, u64)> {
    let quarter = samples.len() / 4;
    if quarter == 0 {
        return None;
    }
    let second = median(&samples[quarter..2 * quarter])?;
    let last = median(&samples[samples.len() - quarter..])?;
    Some((second, last))
}

/// Whether the last quarter is not larger than the second. The first quarter is ignored: the run warms up in it.
pub(super) fn is_flat((second, last): (u64, u64)) -> bool {
    last as f64 <= second as f64 * FACTOR + SLACK
}

fn median(samples: &[u64]) -> Option<u64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

#[test]
fn the_quarters_are_the_second_and_the_last() {
    let samples = [900, 1, 2, 3, 4, 5, 700, 6, 6, 6, 8, 9];
    assert_eq!(quarters(&samples), Some((4, 8)));
    assert_eq!(quarters(&[1, 2, 3]), None);
}

#[test]
fn growth_is_not_flat() {
    assert!(is_flat((100 * MIB, 128 * MIB)) && is_flat((0, 8 * MIB)) && is_flat((90 * MIB, 10 * MIB)));
    assert!(!is_flat((100 * MIB, 129 * MIB)) && !is_flat((0, 9 * MIB)));
    let grows: Vec<u64> = (0..100).map(|nth| nth * MIB).collect();
    assert_eq!(quarters(&grows).map(is_flat), Some(false));
}
