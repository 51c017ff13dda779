//! Text from outside (keys, names, lines of files, messages that quote them) for a terminal: it can neither control the terminal
//! nor pretend to be other text.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

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

/// Shortens a name or a key to a cell of at most `width` columns. Blanks at its ends are escaped, too.
pub(super) fn shown(text: &str, width: usize) -> String {
    let inner = text.trim_matches(' ');
    let start = text.len() - text.trim_start_matches(' ').len();
    let blanks = |number: usize| "\\u{20}".repeat(number);
    let text = format!("{}{}{}", blanks(start), escaped(inner), blanks(text.len() - inner.len() - start));
    shortened(&text, width)
}

/// Shortens a text without escapes to at most `width` columns.
pub(super) fn shortened(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let fits = |c: &char| {
        let columns = c.width().unwrap_or_default();
        let fits = columns <= room;
        room = room.saturating_sub(columns);
        fits
    };
    let kept: String = text.chars().take_while(fits).collect();
    format!("{kept}…")
}

/// The number of columns that a text has on a terminal.
pub(super) fn columns(text: &str) -> usize {
    text.width()
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
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_hidden)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn characters_that_control_hide_or_reorder_are_escaped() {
        assert_eq!(escaped("a\nb\u{1b}[31m\u{9b}\u{7f} \\ \"é\""), "a\\nb\\u{1b}[31m\\u{9b}\\u{7f} \\\\ \"é\"");
        for c in
            ['\u{202e}', '\u{2066}', '\u{2028}', '\u{200b}', '\u{feff}', '\u{ad}', '\u{a0}', '\u{301}', '\u{e0041}']
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
        let keys = [
            "a\u{fffd}b",
            "a\u{1}b",
            "a\u{2}b",
            "a\\u{1}b",
            "ab",
            "a b",
            "a\u{a0}b",
            "ab ",
            " ab",
            "a\u{200b}b",
            "a\nb",
            "a\\nb",
            "\u{e9}",
            "e\u{301}",
        ];
        let looks: HashSet<String> = keys.iter().map(|key| shown(key, 40)).collect();
        assert_eq!(looks.len(), keys.len(), "{looks:?}");
    }

    #[test]
    fn width_is_that_of_the_terminal() {
        assert_eq!(
            [shown("abcdef", 4), shown("abcd", 4), shown("キーキー", 5), shown("  ", 20)],
            ["abc…", "abcd", "キー…", "\\u{20}\\u{20}"]
        );
        assert_eq!([columns("abc"), columns("キー"), columns("é")], [3, 4, 1]);
    }
}
