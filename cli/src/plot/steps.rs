//! Round lengths of time, in microseconds, for bars and for the marks of an axis.

const MILLISECOND: i64 = 1_000;
pub(crate) const SECOND: i64 = 1_000 * MILLISECOND;
pub(super) const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// Units and their names, the longest first.
const UNITS: [(i64, &str); 6] =
    [(DAY, "days"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"), (MILLISECOND, "ms"), (1, "µs")];

/// Rounds a length up to a round one.
pub(super) fn round_up(micros: i64) -> i64 {
    let wanted = micros.max(1);
    let within = |parts: &[i64], unit: i64| parts.iter().map(|part| part * unit).find(|length| *length >= wanted);
    if wanted <= SECOND / 2 {
        return decimal(wanted, 1);
    }
    within(&[1, 2, 5, 10, 15, 30], SECOND)
        .or_else(|| within(&[1, 2, 5, 10, 15, 30], MINUTE))
        .or_else(|| within(&[1, 2, 3, 6, 12], HOUR))
        .unwrap_or_else(|| decimal(wanted, DAY))
}

/// The first of 1, 2, 5, 10, 20, 50, .. times the unit that is not shorter than `wanted`.
fn decimal(wanted: i64, unit: i64) -> i64 {
    let mut power = unit;
    loop {
        for digit in [1, 2, 5] {
            match power.checked_mul(digit) {
                Some(length) if length < wanted => {}
                Some(length) => return length,
                None => return i64::MAX,
            }
        }
        power = power.saturating_mul(10);
    }
}

/// The longest unit that divides this length.
pub(super) fn unit(step: i64) -> (i64, &'static str) {
    UNITS.into_iter().find(|(unit, _)| step % unit == 0).unwrap_or((1, "µs"))
}

/// Formats a length: `s`, `10 min`, `2 days`.
pub(super) fn name(length: i64) -> String {
    let (unit, name) = unit(length);
    match length / unit {
        1 => if name == "days" { "day" } else { name }.to_owned(),
        units => format!("{units} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_up_to_round_numbers_of_a_unit() {
        let lengths = [0, 3, 400_000, 600_000, 7 * SECOND, 31 * SECOND, 4 * HOUR, 13 * HOUR, 3 * DAY, 973 * DAY];
        let rounded = [1, 5, 500_000, SECOND, 10 * SECOND, MINUTE, 6 * HOUR, DAY, 5 * DAY, 1000 * DAY];
        assert_eq!(lengths.map(round_up), rounded);
        assert_eq!(round_up(i64::MAX), i64::MAX);
    }

    #[test]
    fn each_step_is_named_in_a_fitting_unit() {
        assert_eq!([1, 500_000, 90 * SECOND, 2 * DAY].map(|step| unit(step).1), ["µs", "ms", "s", "days"]);
        assert_eq!([SECOND, 10 * MINUTE, DAY, 2 * DAY].map(name), ["s", "10 min", "day", "2 days"]);
    }
}
