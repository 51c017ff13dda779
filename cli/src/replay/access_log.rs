//! Parses lines of a web server's access log, in the common and the combined format. It does no I/O, and no input makes it
//! panic.
//! `host ident user [17/May/2015:10:05:03 +0000] "GET /path?query HTTP/1.1" status bytes "referer" "user agent"`

use std::borrow::Cow;

use jiff::fmt::strtime;

use crate::replay::events::YEARS;

const TIME: &str = "%d/%b/%Y:%H:%M:%S %z";

/// One request of the log. A `-` stands for an absent field, and is read as the empty string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    at: i64,
    remote_addr: &'a str,
    user: &'a str,
    request: Cow<'a, str>,
    status: &'a str,
    referer: Cow<'a, str>,
    user_agent: Cow<'a, str>,
}

/// A field of a request that can be the key of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LogField {
    /// The client's address, or its host name if the server looks names up
    RemoteAddr,
    /// The path, without the query
    Path,
    /// The path and the query
    Uri,
    /// The name of the authenticated user
    User,
    /// The method: GET, POST, ..
    Method,
    /// The status code of the response
    Status,
    /// The User-Agent header (combined format)
    UserAgent,
    /// The Referer header (combined format)
    Referer,
}

impl<'a> LogLine<'a> {
    /// Parses one line, without its line break.
    ///
    /// # Errors
    /// Returns the reason if this is not a line of an access log.
    pub fn parse(line: &'a str) -> Result<Self, String> {
        let (remote_addr, rest) = word(line).ok_or("it does not begin with an address")?;
        let (_ident, rest) = word(rest).ok_or("after the address, the ident is missing")?;
        // The name of a user may contain blanks.
        let (user, rest) = rest.split_once(" [").ok_or("the time in [ ] is missing")?;
        let (time, rest) = rest.split_once("] ").ok_or("after the time, ] is missing")?;
        let at = micros(time).ok_or_else(|| format!("\"{time}\" is not a time like 17/May/2015:10:05:03 +0000"))?;
        let (request, rest, closed) = quoted(rest).ok_or("the request in quotes is missing")?;
        if !closed {
            return Err("the request's closing quote is missing".to_owned());
        }
        let rest = rest.strip_prefix(' ').ok_or("after the request, the status is missing")?;
        let (status, bytes) = word(rest).ok_or("after the status, the size is missing")?;
        if !is_number(status) {
            return Err(format!("\"{status}\" is not a status"));
        }
        let (bytes, rest) = bytes.split_once(' ').unwrap_or((bytes, ""));
        if !is_number(bytes) {
            return Err(format!("\"{bytes}\" is not a size"));
        }
        let (referer, user_agent) = headers(rest)?;
        Ok(Self {
            at,
            remote_addr,
            user: if user == "-" { "" } else { user },
            request: absent(request),
            status,
            referer: absent(referer),
            user_agent: absent(user_agent),
        })
    }

    /// The time of the request, in microseconds since the Unix epoch.
    pub const fn at_micros(&self) -> i64 {
        self.at
    }

    /// Returns one field, or the empty string if the log does not have it.
    pub fn field(&self, field: LogField) -> &str {
        match field {
            LogField::RemoteAddr => self.remote_addr,
            LogField::Path => self.uri().split_once('?').map_or(self.uri(), |(path, _)| path),
            LogField::Uri => self.uri(),
            LogField::User => self.user,
            LogField::Method => self.request.split_once(' ').map_or("", |(method, _)| method),
            LogField::Status => self.status,
            LogField::UserAgent => &self.user_agent,
            LogField::Referer => &self.referer,
        }
    }

    /// The URI of "GET /path HTTP/1.1". A malformed request, as port scanners send them, is returned whole.
    fn uri(&self) -> &str {
        let rest = self.request.split_once(' ').map_or(&*self.request, |(_, rest)| rest);
        match rest.rsplit_once(' ') {
            Some((uri, protocol)) if protocol.starts_with("HTTP/") => uri,
            _ => rest,
        }
    }
}

/// Parses the referer and the user agent, which the common format does not have. Servers truncate long lines, so the last
/// quote may be missing. They may also append other fields.
fn headers(rest: &str) -> Result<(Cow<'_, str>, Cow<'_, str>), String> {
    if rest.is_empty() {
        return Ok((Cow::Borrowed(""), Cow::Borrowed("")));
    }
    let (referer, rest, closed) = quoted(rest).ok_or("after the size, the referer in quotes is missing")?;
    if !closed {
        return Err("the referer's closing quote is missing".to_owned());
    }
    let rest = rest.strip_prefix(' ').ok_or("after the referer, the user agent is missing")?;
    let (user_agent, rest, _) = quoted(rest).ok_or("after the referer, the user agent in quotes is missing")?;
    if !rest.is_empty() && !rest.starts_with(' ') {
        return Err("after the user agent's closing quote, the line goes on".to_owned());
    }
    Ok((referer, user_agent))
}

/// Splits at the first blank. Returns `None` if the word or the rest is empty.
fn word(text: &str) -> Option<(&str, &str)> {
    text.split_once(' ').filter(|(word, rest)| !word.is_empty() && !rest.is_empty())
}

fn is_number(text: &str) -> bool {
    text == "-" || (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn absent(text: Cow<'_, str>) -> Cow<'_, str> {
    if text == "-" { Cow::Borrowed("") } else { text }
}

/// Returns the text between two quotes, the rest, and whether the second quote is present. `\"` and `\\` are unescaped to
/// a quote and a backslash; other escapes are kept, because their bytes may not be text.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str, bool)> {
    let text = text.strip_prefix('"')?;
    let mut escaped = false;
    let mut escapes = false;
    let mut end = None;
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => (escaped, escapes) = (true, true),
            b'"' => {
                end = Some(place);
                break;
            }
            _ => {}
        }
    }
    // A quote is one byte, so both ends are at character boundaries.
    let (inside, rest, closed) = match end {
        Some(place) => (&text[..place], &text[place + 1..], true),
        None => (text, "", false),
    };
    Some((if escapes { unescape(inside).into() } else { inside.into() }, rest, closed))
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let next = chars.next_if(|next| c == '\\' && matches!(next, '"' | '\\'));
        plain.push(next.unwrap_or(c));
    }
    plain
}

fn micros(time: &str) -> Option<i64> {
    let time = strtime::parse(TIME, time).and_then(|parsed| parsed.to_timestamp()).ok()?;
    Some(time.as_microsecond()).filter(|micros| YEARS.contains(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMBINED: &str = r#"2001:db8::7 - anna lee [17/May/2015:12:05:03 +0200] "GET /a%20b?q=1 HTTP/1.1" 200 512 "-" "say \"hi\" \\ \x41""#;

    #[test]
    fn the_combined_format_is_parsed() {
        let line = LogLine::parse(COMBINED).unwrap();
        assert_eq!(line.at_micros(), 1_431_857_103_000_000);
        let fields = [
            (LogField::RemoteAddr, "2001:db8::7"),
            (LogField::Path, "/a%20b"),
            (LogField::Uri, "/a%20b?q=1"),
            (LogField::User, "anna lee"),
            (LogField::Method, "GET"),
            (LogField::Status, "200"),
            (LogField::UserAgent, r#"say "hi" \ \x41"#),
            (LogField::Referer, ""),
        ];
        for (field, expected) in fields {
            assert_eq!(line.field(field), expected, "{field:?}");
        }
    }

    #[test]
    fn the_common_format_is_parsed() {
        let line = LogLine::parse(r#"127.0.0.1 - - [17/May/2015:10:05:03 +0000] "-" 408 -"#).unwrap();
        assert_eq!([line.field(LogField::User), line.field(LogField::Path), line.field(LogField::UserAgent)], [""; 3]);
    }

    #[test]
    fn truncated_and_extended_lines_are_parsed() {
        let cut = r#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "Mozilla/5.0 (cut"#;
        assert_eq!(LogLine::parse(cut).unwrap().field(LogField::UserAgent), "Mozilla/5.0 (cut");
        let more = r#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "\x16\x03" 400 1 "-" "-" rt=0.1 "x""#;
        assert_eq!(LogLine::parse(more).unwrap().field(LogField::Path), r"\x16\x03");
    }

    #[test]
    fn errors_name_the_invalid_part_of_the_line() {
        let reasons = [
            ("", "it does not begin with an address"),
            ("hello", "it does not begin with an address"),
            ("hello world", "after the address, the ident is missing"),
            ("hello - - world", "the time in [ ] is missing"),
            ("1.2.3.4 - - [yesterday] \"-\" 200 1", "\"yesterday\" is not a time like 17/May/2015:10:05:03 +0000"),
            ("1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1", "the request's closing quote is missing"),
            ("1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"-\" abc 1", "\"abc\" is not a status"),
            ("1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"-\" 200", "after the status, the size is missing"),
            ("1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"-\" 200 x", "\"x\" is not a size"),
        ];
        for (line, reason) in reasons {
            assert_eq!(LogLine::parse(line).unwrap_err(), reason, "{line}");
        }
    }

    #[test]
    fn no_part_of_a_line_panics() {
        let text = COMBINED.replace("hi", "hé\u{1f600}");
        for (end, _) in text.char_indices() {
            let _ = LogLine::parse(&text[..end]);
            let _ = LogLine::parse(&text[end..]);
        }
    }
}
