//! Formats numbers and names for people. Text from outside (keys, names, lines of files, messages that quote them) can neither
//! control the terminal nor pretend to be other text.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use pg_limiter::{Length, Limit};

/// Formats tokens, rounded down to thousandths, so that 0.9999 tokens do not look like one.
pub(super) fn tokens(value: f64) -> String {
    let thousandths = (value * 1000.0 + 1e-6).floor() / 1000.0;
    if value.abs() < 1e12 { plain(thousandths) } else { plain(value) }
}

/// Formats a number without an exponent, a needless fraction or the sign of a negative zero.
pub(super) fn plain(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { value.to_string() }
}

/// Formats a wait: exactly to the microsecond below a minute (`5.9995s`), otherwise cut to two units (`10d 22h`).
pub(super) fn wait(time: Duration) -> String {
    if time.as_secs() >= 60 {
        return age(time);
    }
    let digits = format!("{}.{:06}", time.as_secs(), time.subsec_micros());
    format!("{}s", digits.trim_end_matches('0').trim_end_matches('.'))
}

/// Groups digits: `12,345`.
pub(super) fn grouped(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// Formats a number of things: `1 row`, `2,000 rows`.
pub(super) fn many(number: u64, what: &str) -> String {
    format!("{} {}", grouped(number), plural(number as f64, what))
}

/// The word for so many things: `row`, or `rows`.
pub(super) fn plural(amount: f64, what: &str) -> String {
    if amount == 1.0 { what.to_owned() } else { format!("{what}s") }
}

/// Lists names or keys in quotes: `"api", "logins"`.
pub(super) fn quoted(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    names.into_iter().map(|name| format!("\"{}\"", escaped(name.as_ref()))).collect::<Vec<_>>().join(", ")
}

/// The percentage that `part` is of `whole`: `12.5`.
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
    if name == limit.kind().as_str() { limit.to_string() } else { format!("{}: {limit}", shown(name, WIDEST_NAME)) }
}

/// A column of a table: its heading, whether it is shown, and its text in the row of a `T`.
pub(super) type Column<'c, T> = (&'c str, bool, fn(&T) -> String);

/// A table of the columns that are shown, with headings. Those in `texts` are aligned to the left. Without rows, it has no line.
pub(super) fn table<T>(columns: &[Column<'_, T>], rows: &[T], texts: &[usize]) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let columns = || columns.iter().filter(|(_, is_shown, _)| *is_shown);
    let mut cells: Vec<Vec<String>> = vec![columns().map(|(heading, ..)| (*heading).to_owned()).collect()];
    cells.extend(rows.iter().map(|row| columns().map(|(.., cell)| cell(row)).collect()));
    aligned(&cells, texts)
}

/// Aligns rows in columns: the columns in `texts` to the left, the others to the right.
pub(super) fn aligned(cells: &[Vec<String>], texts: &[usize]) -> Vec<String> {
    let number = cells.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..number).map(|column| cells.iter().map(|row| row[column].width()).max().unwrap_or_default()).collect();
    let padded = |column: usize, cell: &String| {
        let padding = " ".repeat(widths[column] - cell.width());
        if texts.contains(&column) { format!("{cell}{padding}") } else { format!("{padding}{cell}") }
    };
    let line = |row: &Vec<String>| {
        let padded: Vec<String> = row.iter().enumerate().map(|(column, cell)| padded(column, cell)).collect();
        padded.join("  ").trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}

/// Escapes a name or a key: `\n`, `\u{1b}`, `\\`. Different texts stay different.
pub(super) fn escaped(text: &str) -> String {
    escape(text, |c| c != '\\' && is_plain(c))
}

/// Escapes a text that is no name, such as an error: one line, in which a backslash stays.
pub(super) fn one_line(text: &str) -> String {
    escape(text, is_plain)
}

/// Escapes a message, which may have several lines.
pub(super) fn message(text: &str) -> String {
    escape(text, |c| c == '\n' || is_plain(c))
}

/// Shortens a name or a key in the middle, because names often differ at their ends, and not within an escape. Escapes outer blanks.
pub(super) fn shown(text: &str, width: usize) -> String {
    let (start, end) = (text.len() - text.trim_start_matches(' ').len(), text.trim_end_matches(' ').len());
    let cell = |(place, c): (usize, char)| {
        if place < start || place >= end { "\\u{20}".to_owned() } else { escaped(c.encode_utf8(&mut [0; 4])) }
    };
    let cells: Vec<String> = text.char_indices().map(cell).collect();
    if cells.iter().map(|cell| cell.width()).sum::<usize>() <= width {
        return cells.concat();
    }
    let fit = |cells: &mut dyn Iterator<Item = &String>, mut room: usize| {
        let fits = |cell: &&String| room.checked_sub(cell.width()).map(|left| room = left).is_some();
        cells.take_while(fits).count()
    };
    let room = width.saturating_sub(1);
    let (head, tail) = (fit(&mut cells.iter(), room - room / 2), fit(&mut cells.iter().rev(), room / 2));
    format!("{}…{}", cells[..head].concat(), cells[cells.len() - tail..].concat())
}

/// Shortens a text to at most `width` columns. Characters that are not plain count as their escapes.
pub(super) fn shortened(text: &str, width: usize) -> String {
    let columns = |c: char| if is_plain(c) { c.width().unwrap_or_default() } else { c.escape_default().len() };
    if text.chars().map(columns).sum::<usize>() <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let keep = |c: char| {
        room = room.checked_sub(columns(c))?;
        Some(c)
    };
    let kept: String = text.chars().map_while(keep).collect();
    format!("{kept}…")
}

/// Whether a terminal shows the character, in its place, so that it looks unlike others. Others are control characters, blanks
/// beside the usual one, characters that are invisible or reorder the text, and accents that stand for themselves.
pub(super) fn is_plain(c: char) -> bool {
    let is_hidden = matches!(c,
        '\u{ad}' | '\u{300}'..='\u{36f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{20d0}'..='\u{20ff}' | '\u{2800}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{fe20}'..='\u{fe2f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}');
    let is_no_character = u32::from(c) & 0xfffe == 0xfffe || ('\u{fdd0}'..='\u{fdef}').contains(&c); // Not allowed in XML.
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_hidden || is_no_character)
}

fn escape(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            _ if is_kept(c) => clean.push(c),
            '\0' | '\t' | '\n' | '\r' | '\\' => clean.extend(c.escape_debug()),
            _ => clean.extend(c.escape_unicode()),
        }
    }
    clean
}

pub(crate) fn parse_length(text: &str) -> Result<Duration, String> {
    text.parse::<Length>().map(Duration::from).map_err(|error| error.to_string())
}

pub(crate) fn parse_micros(text: &str) -> Result<i64, String> {
    i64::try_from(parse_length(text)?.as_micros()).map_err(|error| error.to_string())
}

pub(crate) fn moment(micros: i64) -> SystemTime {
    let since = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 { UNIX_EPOCH - since } else { UNIX_EPOCH + since }
}

pub(crate) fn format_micros(micros: i64) -> String {
    Length::from_micros(micros.unsigned_abs()).to_string()
}

pub(crate) fn period_micros(limit: &Limit) -> i64 {
    i64::try_from(limit.period().as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_have_no_trailing_zeros_and_one_thing_has_no_plural() {
        assert_eq!([tokens(9.0), tokens(-0.0), tokens(0.9999), tokens(-1.5)], ["9", "0", "0.999", "-1.5"]);
        assert_eq!(tokens(8.999_999_999_99), "9");
        assert_eq!([grouped(0), grouped(999), grouped(1000), grouped(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1, 2, 1_234].map(|number| many(number, "row")), ["0 rows", "1 row", "2 rows", "1,234 rows"]);
        assert_eq!([plural(1.0, "key"), plural(0.0, "key")], ["key", "keys"]);
    }

    #[test]
    fn waits_are_exact_below_a_minute_and_ages_have_at_most_two_units() {
        let waits = [0, 1, 5_999_500, 59_999_999, 60_000_000, 90_999_999, 3_660_000_000, 944_232_370_410];
        let texts = ["0s", "0.000001s", "5.9995s", "59.999999s", "1m", "1m 30s", "1h 1m", "10d 22h"];
        assert_eq!(waits.map(|micros| wait(Duration::from_micros(micros))), texts);
        assert_eq!(wait(Duration::MAX), age(Duration::MAX));
        let ages = [0, 59, 5_400, 5_412, 86_400 * 3 + 60].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["0s", "59s", "1h 30m", "1h 30m", "3d 1m"]);
        assert_eq!(age(Duration::from_millis(1999)), "1s");
    }

    #[test]
    fn characters_that_control_hide_or_reorder_are_escaped() {
        assert_eq!(escaped("a\nb\u{1b}[31m\u{9b}\u{7f} \\ \"é\""), "a\\nb\\u{1b}[31m\\u{9b}\\u{7f} \\\\ \"é\"");
        for c in "\u{fffe}\u{1ffff}\u{fdd0}\u{202e}\u{2066}\u{2028}\u{200b}\u{feff}\u{ad}\u{a0}\u{301}\u{e0041}".chars()
        {
            let expected = format!("a\\u{{{:x}}}b", u32::from(c));
            let text = format!("a{c}b");
            assert_eq!([escaped(&text), one_line(&text), message(&text), shown(&text, 20)], [&*expected; 4]);
        }
        for plain in ["", "u1", "2001:db8::/64", "é", "ключ", "キー", "\u{1f600}", "ไทย", "a\u{fffd}b"] {
            assert_eq!([escaped(plain), one_line(plain), message(plain), shown(plain, 20)], [plain; 4]);
        }
        assert_eq!((one_line("a\\b\nc"), message("a\\b\nc\r")), ("a\\b\\nc".to_owned(), "a\\b\nc\\r".to_owned()));
    }

    #[test]
    fn keys_that_differ_look_different() {
        let keys = "a\u{fffd}b|a\u{1}b|a\u{2}b|a\\u{1}b|ab|a b|a\u{a0}b|ab | ab|a\u{200b}b|a\nb|a\\nb|\u{e9}|e\u{301}";
        let keys: Vec<&str> = keys.split('|').collect();
        assert_eq!(shown(&format!("tenant-{}", "0".repeat(40) + "\u{1b}B"), 17), "tenant-0…0\\u{1b}B");
        assert_eq!(shown("a\u{1b}\u{1b}\u{1b}b", 9), "a…b", "not within an escape");
        let looks: HashSet<String> = keys.iter().map(|key| shown(key, 40)).collect();
        assert_eq!(looks.len(), keys.len(), "{looks:?}");
    }

    #[test]
    fn widths_are_those_of_the_terminal() {
        let rows = [["KEY", "N"], ["キー", "1"], ["é", "20"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows, &[0]), ["KEY    N", "キー   1", "é     20"]);
        let cells = [shown("abcdef", 4), shown("abcd", 4), shown("キーキー", 5), shown("  ", 20)];
        assert_eq!(cells, ["ab…f", "abcd", "キ…ー", "\\u{20}\\u{20}"]);
        assert_eq!(["abc", "キー", "é"].map(|text| text.width()), [3, 4, 1]);
    }
}
