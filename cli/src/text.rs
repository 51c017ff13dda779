//! Formats numbers and names for people.

use std::time::Duration;

use indicatif::HumanCount;

pub(super) use crate::foreign::{escaped, one_line, shortened, shown};

use crate::foreign::columns;
use pg_limiter::{Length, Limit};

const MINUTE: Duration = Duration::from_secs(60);

/// Formats tokens, rounded down to thousandths, so that 0.9999 tokens do not look like one.
pub(super) fn tokens(value: f64) -> String {
    let thousandths = (value * 1000.0 + 1e-6).floor() / 1000.0;
    if value.abs() < 1e12 { plain(thousandths) } else { plain(value) }
}

/// Formats a number without an exponent, a needless fraction or the sign of a negative zero.
pub(super) fn plain(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { value.to_string() }
}

/// Formats a wait: exactly below a minute (`5.9995s`), otherwise cut to two units (`10d 22h`).
pub(super) fn wait(time: Duration) -> String {
    if time < MINUTE { seconds(time) } else { age(time) }
}

/// Formats a time in seconds, exactly to the microsecond.
fn seconds(time: Duration) -> String {
    let digits = format!("{}.{:06}", time.as_secs(), time.subsec_micros());
    format!("{}s", digits.trim_end_matches('0').trim_end_matches('.'))
}

/// Groups digits: `12,345`.
pub(super) fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Formats a number of things: `1 row`, `2 rows`.
pub(super) fn many(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The percentage that `part` is of `whole`: `12.5`.
pub(super) fn percent(part: u64, whole: u64) -> String {
    percent_of(part as f64, whole as f64)
}

/// Like [`percent`], for tokens.
pub(super) fn percent_of(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1}", part * 100.0 / whole) } else { "0.0".to_owned() }
}

/// Formats a length, cut to seconds and two units: `1h 30m`.
pub(super) fn age(length: Duration) -> String {
    format!("{:.2}", Length::from_micros(length.as_secs().saturating_mul(1_000_000)))
}

pub(super) const WIDEST_NAME: usize = 30;

/// Describes a limit: `api: token_bucket, 10 per 1m, capacity 20`. Omits a name that equals the kind.
pub(super) fn describe(name: &str, limit: &Limit) -> String {
    let mut text =
        if name == limit.kind().as_str() { String::new() } else { format!("{}: ", shown(name, WIDEST_NAME)) };
    text.push_str(&limit.to_string());
    text
}

/// Aligns rows in columns: the columns in `texts` to the left, the others to the right.
pub(super) fn aligned(cells: &[Vec<String>], texts: &[usize]) -> Vec<String> {
    let number = cells.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..number).map(|column| cells.iter().map(|row| columns(&row[column])).max().unwrap_or_default()).collect();
    let padded = |column: usize, cell: &String| {
        let padding = " ".repeat(widths[column] - columns(cell));
        if texts.contains(&column) { format!("{cell}{padding}") } else { format!("{padding}{cell}") }
    };
    let line = |row: &Vec<String>| {
        let padded: Vec<String> = row.iter().enumerate().map(|(column, cell)| padded(column, cell)).collect();
        padded.join("  ").trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_trailing_zeros() {
        assert_eq!([tokens(9.0), tokens(-0.0), tokens(0.9999), tokens(-1.5)], ["9", "0", "0.999", "-1.5"]);
        assert_eq!(tokens(8.999_999_999_99), "9");
        assert_eq!([grouped(0), grouped(999), grouped(1000), grouped(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn columns_are_aligned_by_their_width_on_the_terminal() {
        let cells = [["KEY", "N"], ["キー", "1"], ["é", "20"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&cells, &[0]), ["KEY    N", "キー   1", "é     20"]);
    }

    #[test]
    fn waits_are_exact_below_a_minute() {
        let waits = [0, 1, 5_999_500, 59_999_999, 60_000_000, 90_999_999, 3_660_000_000, 944_232_370_410];
        let texts = ["0s", "0.000001s", "5.9995s", "59.999999s", "1m", "1m 30s", "1h 1m", "10d 22h"];
        assert_eq!(waits.map(|micros| wait(Duration::from_micros(micros))), texts);
        assert_eq!(wait(Duration::MAX), age(Duration::MAX));
    }

    #[test]
    fn ages_have_at_most_two_units() {
        let ages = [0, 59, 5_400, 5_412, 86_400 * 3 + 60].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["0s", "59s", "1h 30m", "1h 30m", "3d 1m"]);
        assert_eq!(age(Duration::from_millis(1999)), "1s");
    }
}
