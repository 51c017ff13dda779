//! A format as a row of fields with literal text between them, and how a line is divided by it. The times of its lines.

use std::borrow::Cow;
use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::Offset;
use regex::Regex;

use crate::study::replay::access_log::key::{ALL_FORWARDED, address};
use crate::study::replay::events::YEARS;
use crate::text::shortened;

/// Names and values.
pub(super) type Fields<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// The values that a field may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Time(TimeForm),
    Address,
    /// Digits, or `-`.
    Number,
    /// Anything without a blank.
    Word,
    Host,
    /// The name of a user, which may have blanks.
    User,
    Text,
}

/// In the reason if a field that must be an address is none.
pub(super) const NO_ADDRESS: &str = "is no address";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// That of nginx's variable for the same.
    pub(super) name: String,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Literal(String),
    Field(Field),
}

impl Piece {
    pub(super) const fn field(&self) -> Option<&Field> {
        match self {
            Self::Field(field) => Some(field),
            Self::Literal(_) => None,
        }
    }
}

pub(super) fn literal(text: &str) -> Piece {
    Piece::Literal(text.to_owned())
}

#[derive(Clone, Debug)]
pub(super) struct Pattern {
    pieces: Vec<Piece>,
    /// Whether other fields may follow, after a blank.
    goes_on: bool,
}

/// Why a line does not have a format, and the number of fields before that place.
pub(super) type Mismatch = (usize, String);

impl Pattern {
    /// Returns the reason if lines cannot be divided by these pieces.
    pub(super) fn new(pieces: Vec<Piece>, goes_on: bool) -> Result<Self, String> {
        let mut merged: Vec<Piece> = Vec::new();
        for piece in pieces {
            match (merged.last_mut(), piece) {
                (Some(Piece::Literal(text)), Piece::Literal(more)) => text.push_str(&more),
                (Some(Piece::Field(first)), Piece::Field(second)) => {
                    return Err(format!(
                        "nothing is between the fields {} and {}, so a line cannot be divided there",
                        first.name, second.name
                    ));
                }
                (_, piece) => merged.push(piece),
            }
        }
        let pattern = Self { pieces: merged, goes_on };
        let has_no_zone = |form: &TimeForm| matches!(form, TimeForm::Strftime(format) if !format.contains("%z") && !format.contains("%s"));
        let has_half_a_day = |form: &TimeForm| {
            matches!(form, TimeForm::Strftime(format)
            if (format.contains("%I") || format.contains("%l")) && !format.contains("%p") && !format.contains("%P"))
        };
        let times: Vec<&Field> = pattern.fields().filter(|field| matches!(field.kind, Kind::Time(_))).collect();
        match times[..] {
            [Field { kind: Kind::Time(form), .. }] if has_no_zone(form) => {
                Err("its time has no zone: let the server write it, as %{%z}t for Apache does".to_owned())
            }
            [Field { kind: Kind::Time(form), .. }] if has_half_a_day(form) => {
                Err("its hours go to 12, and AM or PM is missing: let the server write %H instead".to_owned())
            }
            [_] => Ok(pattern),
            [] => Err("it has no time: add $time_local, or %t for Apache".to_owned()),
            _ => Err("it has several times: leave out all but one".to_owned()),
        }
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &Field> {
        self.pieces.iter().filter_map(Piece::field)
    }

    /// Whether a line may have been cut, as at a rotation of the file, if it has the format up to this field: it has its time.
    pub(super) fn may_be_cut_at(&self, place: usize) -> bool {
        self.fields().take(place).any(|field| matches!(field.kind, Kind::Time(_)))
    }

    /// Divides a line. Returns its time, and its fields.
    pub(super) fn divide<'a>(&'a self, line: &'a str) -> Result<(i64, Fields<'a>), Mismatch> {
        let mut fields = Fields::new();
        let (mut at, mut rest, mut last) = (0, line, "the beginning of the line");
        for (place, piece) in self.pieces.iter().enumerate() {
            let mismatch = |reason| (fields.len(), reason);
            let next = self.pieces.get(place + 1);
            match piece {
                Piece::Literal(text) => {
                    // Servers truncate long lines, so the last quote may be missing.
                    let is_cut = rest.is_empty() && text == "\"" && next.is_none();
                    let after = rest.strip_prefix(text.as_str()).or(is_cut.then_some(""));
                    rest = after.ok_or_else(|| mismatch(format!("after {last}, {} is missing", name_of(text))))?;
                }
                Piece::Field(field) => {
                    let (value, after) = self.value(field, rest, next).map_err(mismatch)?;
                    at = check(field, &value).map_err(mismatch)?.unwrap_or(at);
                    (rest, last) = (after, &field.name);
                    fields.push((last.into(), if value == "-" { "".into() } else { value }));
                }
            }
        }
        // If the line has two addresses, the first may be that of a proxy.
        let is_name = |name: &str| matches!(name, "remote_logname" | "remote_user");
        let has_address = |list: &str| list.split(',').any(|part| address(part.trim()).is_some());
        if let Some((name, value)) = fields.iter().find(|(name, value)| is_name(name) && has_address(value)) {
            let reason = format!("\"{value}\" is an address, and no {name}");
            return Err((fields.len(), reason));
        }
        if rest.is_empty() || (self.goes_on && rest.starts_with(' ')) {
            return Ok((at, fields));
        }
        Err((fields.len(), format!("after {last}, the line goes on: \"{}\"", shortened(rest, SHOWN))))
    }

    /// The value at the beginning of `rest`, and what follows it. `next`: the text that ends it.
    fn value<'a>(&self, field: &Field, rest: &'a str, next: Option<&Piece>) -> Result<(Cow<'a, str>, &'a str), String> {
        let name = &field.name;
        let end = match next {
            Some(Piece::Literal(next)) if next.starts_with('"') => {
                return match until_quote(rest) {
                    (value, Some(after)) => Ok((value, after)),
                    // The last field may be truncated; others then are missing.
                    (value, None) if next == "\"" && self.fields().last() == Some(field) => Ok((value, "")),
                    _ => Err(format!("the closing quote of {name} is missing")),
                };
            }
            Some(Piece::Literal(next)) => end_before(rest, next, field).ok_or_else(|| {
                let missing = format!("after {name}, {} is missing", name_of(next));
                let is_shown = field.kind == Kind::Address && !rest.is_empty();
                if is_shown { format!("in \"{}\", {missing}", shortened(rest, SHOWN)) } else { missing }
            })?,
            _ if self.goes_on => rest.find(' ').unwrap_or(rest.len()),
            _ => rest.len(),
        };
        Ok((Cow::Borrowed(&rest[..end]), &rest[end..]))
    }
}

/// The end of a value that this text follows. A time may have the text in it, as often as its format. A header may be a list, with
/// a blank after each comma.
fn end_before(rest: &str, next: &str, field: &Field) -> Option<usize> {
    let inside =
        if let Kind::Time(TimeForm::Strftime(format)) = &field.kind { format.matches(next).count() } else { 0 };
    let is_header = field.name.starts_with("http_") || field.name == ALL_FORWARDED;
    // The colons of an IPv6 address are within brackets.
    let first = if field.kind == Kind::Host && rest.starts_with('[') { rest.find(']').unwrap_or_default() } else { 0 };
    let ends = rest.match_indices(next).map(|(end, _)| end).filter(|end| *end >= first);
    ends.filter(|end| !is_header || !rest[..*end].ends_with(',')).nth(inside)
}

/// Checks the value of a field. Returns the time if this is one.
fn check(field: &Field, value: &str) -> Result<Option<i64>, String> {
    let (name, shown) = (&field.name, shortened(value, SHOWN));
    let refused = |reason: String| Err(format!("\"{shown}\" {reason}"));
    match &field.kind {
        Kind::Time(form) => match form.micros(value) {
            None => refused(format!("is not a time like {}", form.example())),
            at => Ok(at),
        },
        Kind::Address | Kind::Number | Kind::Word | Kind::Host if value.is_empty() => Err(format!("{name} is missing")),
        Kind::Address if address(value).is_none() => refused(format!("{NO_ADDRESS}, as {name} must be")),
        Kind::Number if value != "-" && value.contains(|c: char| !c.is_ascii_digit()) => {
            refused(format!("is no number for {name}"))
        }
        Kind::Number if name == "status" && value != "-" && value.len() != 3 => {
            refused(format!("is no {name}, which has three digits"))
        }
        Kind::Word if value.contains(char::is_whitespace) => refused(format!("is no value for {name}: it has a blank")),
        Kind::Host if value.contains([' ', '\t', ',', '/']) || (value.contains(':') && !value.ends_with(']')) => {
            refused("is no name of a host".to_owned())
        }
        // Then it is not the only field before the time.
        Kind::User if value.starts_with("- ") || value.ends_with(" -") => {
            refused(format!("is several fields, and not only {name}"))
        }
        _ => Ok(None),
    }
}

fn name_of(literal: &str) -> String {
    if literal == " " { "a blank".to_owned() } else { format!("'{literal}'") }
}

/// The most columns of a text in messages.
const SHOWN: usize = 60;

/// Returns the text before a quote, and the text from that quote on, if there is one. `\"` and `\\` are unescaped to a quote
/// and a backslash; other escapes are kept, because their bytes may not be text.
fn until_quote(text: &str) -> (Cow<'_, str>, Option<&str>) {
    let mut is_escaped = false;
    let is_end = |byte: u8| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    };
    // A quote is one byte, so both ends are at character boundaries.
    let (inside, after) = match text.bytes().position(is_end) {
        Some(end) => (&text[..end], Some(&text[end..])),
        None => (text, None),
    };
    (if inside.contains('\\') { ESCAPED.replace_all(inside, "$1") } else { inside.into() }, after)
}

static ESCAPED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#"\\(["\\])"#).expect("a regular expression"));

/// The time of the common log format: `17/May/2015:10:05:03 +0000`.
pub(super) const COMMON: &str = "%d/%b/%Y:%H:%M:%S %z";

/// How a format writes times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TimeForm {
    /// As `strftime` with this format.
    Strftime(String),
    /// ISO 8601, with an offset from UTC.
    Iso,
    /// The number of these units since the Unix epoch; so many units are a second.
    Number(u32),
    /// Any of these, as JSON has them.
    Any,
}

impl TimeForm {
    /// Reads a time, in microseconds since the Unix epoch.
    pub(super) fn micros(&self, text: &str) -> Option<i64> {
        let micros = match self {
            Self::Strftime(format) => {
                let time = strtime::parse(format, text).ok().filter(|time| time.offset().is_none_or(is_of_a_zone))?;
                time.to_timestamp().ok()?.as_microsecond()
            }
            Self::Iso => {
                Pieces::parse(text).ok()?.to_numeric_offset().filter(|offset| is_of_a_zone(*offset))?;
                text.parse::<Timestamp>().ok()?.as_microsecond()
            }
            Self::Number(unit) => {
                let number = text.parse().ok().filter(|number: &f64| number.is_finite())?;
                // The cast saturates, and the range of years rejects such numbers.
                (number * (1_000_000.0 / f64::from(*unit))).round() as i64
            }
            Self::Any => return any(text),
        };
        Some(micros).filter(|micros| YEARS.contains(micros))
    }

    /// An example of such a time, for messages.
    pub(super) fn example(&self) -> &str {
        match self {
            Self::Strftime(format) if format == COMMON => "17/May/2015:10:05:03 +0000",
            Self::Strftime(format) => format,
            Self::Iso | Self::Any => "2015-05-17T10:05:03Z",
            Self::Number(1) => "1431857103.000",
            Self::Number(_) => "1431857103000",
        }
    }
}

/// The bound of PostgreSQL. No time zone is farther from UTC.
fn is_of_a_zone(offset: Offset) -> bool {
    offset.seconds().abs() < 16 * 3600
}

fn any(text: &str) -> Option<i64> {
    let Ok(number) = text.parse::<f64>() else {
        return TimeForm::Iso.micros(text).or_else(|| TimeForm::Strftime(COMMON.to_owned()).micros(text));
    };
    // Each unit is the only one that gives a year between 1973 and 5138. A smaller number is a duration.
    let unit = match number {
        duration if duration < 1e8 => return None,
        seconds if seconds < 1e11 => 1,
        millis if millis < 1e14 => 1_000,
        micros if micros < 1e17 => 1_000_000,
        _ => 1_000_000_000,
    };
    TimeForm::Number(unit).micros(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_to_the_same_time() {
        for (form, text) in [
            (&TimeForm::Iso, "2015-05-17T10:05:03Z"),
            (&TimeForm::Iso, "2015-05-17T12:05:03.000+0200"),
            (&TimeForm::Any, "17/May/2015:10:05:03 +0000"),
            (&TimeForm::Any, "2015-05-17T10:05:03.000000Z"),
            (&TimeForm::Any, "1431857103.0"),
            (&TimeForm::Any, "1431857103000"),
            (&TimeForm::Any, "1431857103000000"),
            (&TimeForm::Any, "1431857103000000000"),
        ] {
            assert_eq!(form.micros(text), Some(1_431_857_103_000_000), "{form:?} of {text}");
        }
        for text in [
            "",
            "0",
            "0.005",
            "-5",
            "99",
            "yesterday",
            "2015-05-17",
            "2015-05-17T10:05:03",
            "NaN",
            "inf",
            "1e300",
            "2015-05-17T10:05:03+16:00",
            "17/May/2015:10:05:03 +2400",
            "17/May/2015:10:05:03 -1959",
        ] {
            assert_eq!(TimeForm::Any.micros(text), None, "{text}");
        }
    }
}
