//! A format as a row of fields with literal text between them, and how a line is divided by it.

use std::borrow::Cow;

use crate::replay::access_log::key::address;
use crate::replay::access_log::time::TimeForm;

/// What a field may contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Time(TimeForm),
    /// An address in any form that the library reads.
    Address,
    /// Digits, or `-`.
    Number,
    /// Anything without a blank.
    Word,
    /// The name of a host.
    Host,
    /// The name of a user, which may have blanks.
    User,
    Text,
}

/// In the reason if a field that must be an address is none.
pub(super) const NO_ADDRESS: &str = "is no address";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// The name of nginx's variable for the same.
    pub(super) name: String,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Literal(String),
    Field(Field),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    pieces: Vec<Piece>,
    /// Whether other fields may follow, after a blank.
    goes_on: bool,
}

/// Why a line does not have a format.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// The number of fields before it.
    pub(super) place: usize,
    pub(super) reason: String,
}

/// The values of a line, in the order of the fields.
pub(super) type Values<'a> = Vec<Cow<'a, str>>;

impl Pattern {
    /// Returns the reason if lines cannot be divided by these pieces.
    pub(super) fn new(pieces: impl IntoIterator<Item = Piece>, goes_on: bool) -> Result<Self, String> {
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
        match pattern.fields().filter(|field| matches!(field.kind, Kind::Time(_))).count() {
            1 => Ok(pattern),
            0 => Err("it has no time: add $time_local, or %t for Apache".to_owned()),
            _ => Err("it has several times: leave out all but one".to_owned()),
        }
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &Field> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Field(field) => Some(field),
            Piece::Literal(_) => None,
        })
    }

    /// Divides a line. Returns its time, and the values of its fields.
    pub(super) fn divide<'a>(&self, line: &'a str) -> Result<(i64, Values<'a>), Mismatch> {
        let mut values = Values::new();
        let mut at = 0;
        let mut rest = line;
        let mut last = "the beginning of the line";
        for (place, piece) in self.pieces.iter().enumerate() {
            let mismatch = |reason| Mismatch { place: values.len(), reason };
            match piece {
                Piece::Literal(text) => {
                    // Servers truncate long lines, so the last quote may be missing.
                    let is_cut = rest.is_empty() && text == "\"" && place + 1 == self.pieces.len();
                    rest = match rest.strip_prefix(text.as_str()) {
                        Some(rest) => rest,
                        None if is_cut => rest,
                        None => return Err(mismatch(format!("after {last}, {} is missing", name_of(text)))),
                    };
                }
                Piece::Field(field) => {
                    let next = match self.pieces.get(place + 1) {
                        Some(Piece::Literal(text)) => text.as_str(),
                        _ => "",
                    };
                    let (value, after) = self.value(field, rest, next).map_err(mismatch)?;
                    at = check(field, &value).map_err(mismatch)?.unwrap_or(at);
                    (rest, last) = (after, field.name.as_str());
                    values.push(if value == "-" { Cow::Borrowed("") } else { value });
                }
            }
        }
        if rest.is_empty() || (self.goes_on && rest.starts_with(' ')) {
            return Ok((at, values));
        }
        Err(Mismatch {
            place: values.len(),
            reason: format!("after {last}, the line goes on: \"{}\"", shortened(rest)),
        })
    }

    /// The value at the beginning of `rest`, and what follows it. `next`: the text that ends it.
    fn value<'a>(&self, field: &Field, rest: &'a str, next: &str) -> Result<(Cow<'a, str>, &'a str), String> {
        let name = &field.name;
        if next.starts_with('"') {
            let (value, after) = until_quote(rest);
            return match after {
                Some(after) => Ok((value, after)),
                // The last field may be truncated; others then are missing.
                None if next == "\"" && self.fields().last() == Some(field) => Ok((value, "")),
                None => Err(format!("the closing quote of {name} is missing")),
            };
        }
        let end = match next {
            "" if self.goes_on => rest.find(' ').unwrap_or(rest.len()),
            "" => rest.len(),
            _ => end_before(rest, next, field).ok_or_else(|| format!("after {name}, {} is missing", name_of(next)))?,
        };
        Ok((Cow::Borrowed(&rest[..end]), &rest[end..]))
    }
}

/// The end of a value that this text follows. A time may have the text in it, as often as its format.
fn end_before(rest: &str, next: &str, field: &Field) -> Option<usize> {
    let inside = match &field.kind {
        Kind::Time(TimeForm::Strftime(format)) => format.matches(next).count(),
        _ => 0,
    };
    rest.match_indices(next).nth(inside).map(|(end, _)| end)
}

/// Checks the value of a field. Returns the time if this is one.
fn check(field: &Field, value: &str) -> Result<Option<i64>, String> {
    let name = &field.name;
    let is_valid = match &field.kind {
        Kind::Time(form) => {
            return form
                .micros(value)
                .map(Some)
                .ok_or_else(|| format!("\"{}\" is not a time like {}", shortened(value), form.example()));
        }
        Kind::Address => address(value).is_some(),
        Kind::Number => value == "-" || (!value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit())),
        Kind::Word => !value.is_empty() && !value.contains(char::is_whitespace),
        Kind::Host => {
            !value.is_empty() && !value.contains([' ', '\t', ',']) && (!value.contains(':') || value.ends_with(']'))
        }
        // Then it is not the only field before the time.
        Kind::User => !value.starts_with("- ") && !value.ends_with(" -"),
        Kind::Text => true,
    };
    match (is_valid, &field.kind) {
        (true, _) => Ok(None),
        (false, _) if value.is_empty() => Err(format!("{name} is missing")),
        (false, Kind::Address) => Err(format!("\"{}\" {NO_ADDRESS}, as {name} must be", shortened(value))),
        (false, Kind::Host) => Err(format!("\"{}\" is no name of a host", shortened(value))),
        (false, Kind::User) => Err(format!("\"{}\" is several fields, and not only {name}", shortened(value))),
        (false, Kind::Number) => Err(format!("\"{}\" is no number for {name}", shortened(value))),
        (false, _) => Err(format!("\"{}\" is no value for {name}: it has a blank", shortened(value))),
    }
}

fn name_of(literal: &str) -> String {
    match literal {
        " " => "a blank".to_owned(),
        _ => format!("'{literal}'"),
    }
}

/// The beginning of a text, for messages.
pub(super) fn shortened(text: &str) -> &str {
    text.char_indices().nth(60).map_or(text, |(end, _)| &text[..end])
}

/// Returns the text before a quote, and the text from that quote on, if there is one. `\"` and `\\` are unescaped to a quote
/// and a backslash; other escapes are kept, because their bytes may not be text.
fn until_quote(text: &str) -> (Cow<'_, str>, Option<&str>) {
    let (mut escaped, mut escapes) = (false, false);
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
    let (inside, after) = end.map_or((text, None), |end| (&text[..end], Some(&text[end..])));
    (if escapes { unescape(inside).into() } else { inside.into() }, after)
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
