//! A format as a row of fields with literal text between them, and how a line is divided by it. The times of its lines.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use jiff::fmt::strtime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::Offset;
use jiff::{Timestamp, Zoned};
use regex::Regex;

use crate::study::replay::access_log::key::{ALL_FORWARDED, UNIX, address};
use crate::study::replay::access_log::line::{LogLine, Renamed};
use crate::study::replay::events::YEARS;
use crate::text::shortened;

pub(super) type Fields<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Time(TimeForm),
    Address,
    /// Digits, perhaps with a point among them, or `-`.
    Number,
    /// Anything without a blank.
    Word,
    Host,
    /// The name of a user, which may have blanks.
    User,
    /// Words with `, ` or ` : ` between them: nginx has one for each upstream server that it tried.
    List,
    Text,
}

pub(super) const NO_ADDRESS: &str = "is no address, as ";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// That of nginx's variable for the same.
    pub(super) name: String,
    kind: Kind,
    /// The text between it and the next field.
    after: String,
}

impl Field {
    const fn is_time(&self) -> bool {
        matches!(self.kind, Kind::Time(_))
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Pattern {
    before: String,
    pub(super) fields: Vec<Field>,
    /// Whether other fields may follow, after a blank.
    goes_on: bool,
}

/// Why a line does not have a format, and the number of fields before that place.
pub(super) type Mismatch = (usize, String);

impl Pattern {
    pub(super) fn push_text(&mut self, text: &str) {
        self.fields.last_mut().map_or(&mut self.before, |field| &mut field.after).push_str(text);
    }

    pub(super) fn push_field(&mut self, name: impl Into<String>, kind: Kind) {
        self.fields.push(Field { name: name.into(), kind, after: String::new() });
    }

    /// Returns the reason if lines cannot be divided by this pattern.
    pub(super) fn checked(self, goes_on: bool) -> Result<Self, String> {
        if let Some([first, second]) = self.fields.array_windows().find(|[first, _]| first.after.is_empty()) {
            let [first, second] = [&first.name, &second.name];
            return Err(format!(
                "nothing is between the fields {first} and {second}, so a line cannot be divided there"
            ));
        }
        let times: Vec<&Field> = self.fields.iter().filter(|field| field.is_time()).collect();
        let wrong = match times[..] {
            [Field { kind: Kind::Time(form), .. }] => return form.check().map(|()| Self { goes_on, ..self }),
            [] => {
                "it has no time: add $time_local, or %t for Apache; if only a log collector writes one, leave out the \
                 collector's name, and write its text into the format, as in '$time_iso8601 ..'"
            }
            _ => "it has several times: leave out all but one",
        };
        Err(wrong.to_owned())
    }

    /// Whether a line may have been cut, as at a rotation of the file, if it has the format up to this field: it has its time.
    pub(super) fn may_be_cut_at(&self, place: usize) -> bool {
        self.fields.iter().take(place).any(Field::is_time)
    }

    /// Whether a line has the format up to the time.
    pub(super) fn reads_time_of(&self, line: &str) -> bool {
        let mut begin = Self { goes_on: true, ..self.clone() };
        if let Some(place) = begin.fields.iter().position(Field::is_time) {
            begin.fields.truncate(place + 1);
            begin.fields[place].after.clear();
        }
        begin.divide(line, &Renamed::new()).is_ok()
    }

    pub(super) fn divide<'a>(&'a self, line: &'a str, renamed: &'a Renamed) -> Result<LogLine<'a>, Mismatch> {
        let mut readings = Readings {
            pattern: self,
            line,
            tried: HashMap::new(),
            found: vec![None; self.fields.len()],
            divided: LogLine { at: 0, fields: Vec::new(), ambiguous: Vec::new(), renamed },
            mismatch: None,
            work: 0,
        };
        let is_read = match after(line, &self.before) {
            Some(rest) => readings.read(0, rest),
            None => readings.refuse(0, || format!("the line does not begin with {}", name_of(&self.before))),
        };
        let Readings { found, mut divided, mismatch, work, .. } = readings;
        if !is_read {
            return Err(mismatch.unwrap_or_default());
        }
        let value = |value: Option<Cow<'a, str>>| value.filter(|value| value != "-").unwrap_or_default();
        divided.fields =
            self.fields.iter().zip(found).map(|(field, found)| (field.name.as_str().into(), value(found))).collect();
        let reason = match () {
            () if work > MOST_WORK => "it can be read in too many ways",
            () if divided.ambiguous.iter().any(|field| field.is_time()) => "it can be read with several times",
            () => return Ok(divided),
        };
        Err((divided.fields.len(), reason.to_owned()))
    }
}

/// The most bytes of values that are examined to read a line.
const MOST_WORK: usize = 1 << 20;

/// All ways to read a line: a value without quotes may contain the text that ends it. The first reading has the shortest values.
struct Readings<'a> {
    pattern: &'a Pattern,
    line: &'a str,
    /// Whether the fields from this one on can be read from a rest of this length.
    tried: HashMap<(usize, usize), bool>,
    /// The value of each field in the first reading.
    found: Vec<Option<Cow<'a, str>>>,
    divided: LogLine<'a>,
    /// The one after most fields.
    mismatch: Option<Mismatch>,
    work: usize,
}

impl<'a> Readings<'a> {
    /// Reads the fields from this one on in the rest of the line. Returns whether that is possible.
    fn read(&mut self, place: usize, rest: &'a str) -> bool {
        if place == self.pattern.fields.len() {
            let last = self.pattern.fields.last().map_or("", |field| &field.name);
            return rest.is_empty()
                || (self.pattern.goes_on && rest.starts_with(' '))
                || self.refuse(place, || format!("after {last}, the line goes on: \"{}\"", shortened(rest, SHOWN)));
        }
        if let Some(known) = self.tried.get(&(place, rest.len())) {
            return *known;
        }
        let is_read = self.read_field(place, rest);
        self.tried.insert((place, rest.len()), is_read);
        is_read
    }

    fn read_field(&mut self, place: usize, rest: &'a str) -> bool {
        let Field { name, kind, after: next } = &self.pattern.fields[place];
        if next.starts_with('"') {
            let (value, after) = until_quote(rest);
            return self.try_value(place, value, after);
        }
        // Columns may be padded with blanks. A value of which nothing is written may be between them, too.
        let is_column = self.line[..self.line.len() - rest.len()].ends_with(' ');
        let text = if is_column { rest.trim_start_matches(' ') } else { rest };
        let may_have_blank = matches!(kind, Kind::Time(_) | Kind::User | Kind::List | Kind::Text);
        let is_header = name.starts_with("http_") || name == ALL_FORWARDED;
        let end_of_last = if self.pattern.goes_on { text.find(' ').unwrap_or(text.len()) } else { text.len() };
        let ends = next.chars().next().into_iter().flat_map(|first| text.match_indices(first)).map(|(end, _)| end);
        let ends =
            ends.filter(|end| after(&text[*end..], next).is_some()).chain(next.is_empty().then_some(end_of_last));
        let nothing = (text != rest && !next.is_empty() && after(rest, next).is_some()).then_some(("", rest));
        let mut values = ends.map(|end| text.split_at(end)).chain(nothing).peekable();
        if values.peek().is_none() {
            return self.refuse(place, || {
                let is_shown = *kind == Kind::Address && !text.is_empty();
                let shown = if is_shown { format!("in \"{}\", ", shortened(text, SHOWN)) } else { String::new() };
                format!("{shown}after {name}, {} is missing", name_of(next))
            });
        }
        let mut is_read = false;
        for (number, (value, after)) in values.enumerate() {
            if self.work > MOST_WORK || number > 0 && !may_have_blank && value.contains(' ') {
                break;
            }
            // The list of a header has a blank after each comma.
            if !(next.starts_with(' ') && value.ends_with(' ') || is_header && value.ends_with(',')) {
                is_read |= self.try_value(place, value.into(), after);
            }
        }
        is_read
    }

    /// Reads on after a field with this value. `rest`: what follows it.
    fn try_value(&mut self, place: usize, value: Cow<'a, str>, rest: &'a str) -> bool {
        self.work += value.len() + 1;
        let field = &self.pattern.fields[place];
        let next = &field.after;
        let at = match check(field, &value) {
            Err(wrong) => {
                let is_shown = !wrong[0].is_empty();
                let shown = || if is_shown { format!("\"{}\" ", shortened(&value, SHOWN)) } else { String::new() };
                return self.refuse(place, || shown() + &wrong.concat());
            }
            Ok(at) => at,
        };
        let is_read = match after(rest, next) {
            Some(rest) => self.read(place + 1, rest),
            // Servers truncate long lines, so the last quote may be missing.
            None if rest.is_empty() && next == "\"" && place + 1 == self.found.len() => true,
            None if rest.is_empty() => {
                self.refuse(place + 1, || format!("the closing quote of {} is missing", field.name))
            }
            None => self.refuse(place + 1, || format!("after {}, {} is missing", field.name, name_of(next))),
        };
        match &self.found[place] {
            _ if !is_read => {}
            Some(found) if *found == value || at == Some(self.divided.at) => {}
            Some(_) => self.divided.ambiguous.push(field),
            None => {
                self.divided.at = at.unwrap_or(self.divided.at);
                self.found[place] = Some(value);
            }
        }
        is_read
    }

    /// Notes why the line does not have the format, which has so many fields before that place.
    fn refuse(&mut self, fields: usize, reason: impl FnOnce() -> String) -> bool {
        if self.mismatch.as_ref().is_none_or(|(farthest, _)| fields > *farthest) {
            self.mismatch = Some((fields, reason()));
        }
        false
    }
}

/// The rest of a text that begins with a literal. A blank in it may be several in the text; those at its end are the next field's.
fn after<'l>(text: &'l str, literal: &str) -> Option<&'l str> {
    let mut words = literal.split(' ');
    let rest = text.strip_prefix(words.next()?)?;
    words.try_fold(rest, |rest, word| {
        let rest = rest.strip_prefix(' ')?;
        if word.is_empty() { Some(rest) } else { rest.trim_start_matches(' ').strip_prefix(word) }
    })
}

/// The time, if the value is one; or what is wrong with it, in three parts: only the text of the reason that is shown is made.
fn check<'f>(Field { name, kind, .. }: &'f Field, value: &str) -> Result<Option<i64>, [&'f str; 3]> {
    let is_number = |text: &str| {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        text == "-" || [whole, fraction].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let is_word = |text: &str| !text.contains(' ') && !text.ends_with(',') && text != ":";
    match kind {
        Kind::Time(form) => form.micros(value).map(Some).ok_or(["is not a time like ", form.example(), ""]),
        Kind::Address | Kind::Number | Kind::Word | Kind::Host if value.is_empty() => Err(["", name, " is missing"]),
        Kind::Address if value != UNIX && address(value).is_none() => Err([NO_ADDRESS, name, " must be"]),
        Kind::Number if !is_number(value) => Err(["is no number for ", name, ""]),
        Kind::Number if name == "status" && value != "-" && (value.len() != 3 || value.contains('.')) => {
            Err(["is no ", name, ", which has three digits"])
        }
        Kind::Word if value.contains(char::is_whitespace) => Err(["is no value for ", name, ": it has a blank"]),
        Kind::Host if value.contains([' ', '\t', ',', '/']) || (value.contains(':') && !value.ends_with(']')) => {
            Err(["is no name of a host", "", ""])
        }
        Kind::List if !value.split(", ").flat_map(|part| part.split(" : ")).all(is_word) => {
            Err(["is no list for ", name, ""])
        }
        // Then it is not the only field before the time.
        Kind::User if value.starts_with("- ") || value.ends_with(" -") => {
            Err(["is several fields, and not only ", name, ""])
        }
        _ => Ok(None),
    }
}

fn name_of(literal: &str) -> String {
    if literal == " " { "a blank".to_owned() } else { format!("'{literal}'") }
}

/// Columns of a text in messages.
const SHOWN: usize = 60;

/// The text before a quote, and the text from it on. Escapes but `\"` and `\\` stay: their bytes may be no text.
fn until_quote(text: &str) -> (Cow<'_, str>, &str) {
    let mut is_escaped = false;
    let is_end = |byte: u8| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    };
    // A quote is one byte, so both ends are at character boundaries.
    let (inside, after) = text.split_at(text.bytes().position(is_end).unwrap_or(text.len()));
    (if inside.contains('\\') { ESCAPED.replace_all(inside, "$1") } else { inside.into() }, after)
}

static ESCAPED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#"\\(["\\])"#).expect("a regular expression"));

/// The time of the common log format: `17/May/2015:10:05:03 +0000`.
pub(super) const COMMON: &str = "%d/%b/%Y:%H:%M:%S %z";

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
    /// Returns the reason if such a time is no moment, because a part of it is missing.
    fn check(&self) -> Result<(), String> {
        let Self::Strftime(format) = self else { return Ok(()) };
        // Each differs from the first in one part. The day of the week is the same.
        let times = [
            ("", "2015-03-17T10:05:03+00"),
            ("year", "2026-03-17T10:05:03+00"),
            ("month", "2015-11-17T10:05:03+00"),
            ("day", "2015-03-24T10:05:03+00"),
            ("hour", "2015-03-17T11:05:03+00"),
            ("AM or PM", "2015-03-17T22:05:03+00"),
            ("minute", "2015-03-17T10:06:03+00"),
            ("second", "2015-03-17T10:05:04+00"),
            ("zone", "2015-03-17T10:05:03+02"),
        ];
        let text = |time: &str| strtime::format(format, &format!("{time}[{}]", &time[19..]).parse::<Zoned>()?);
        let texts = times.iter().map(|(_, time)| text(time)).collect::<Result<Vec<String>, _>>();
        let texts = texts.and_then(|texts| strtime::parse(format, &texts[0]).map(|_| texts));
        let texts = texts.map_err(|error| {
            format!("its time {format} cannot be read: {error}; write its parts, as %I:%M:%S %p for %r")
        })?;
        let is_missing = |place: &usize| *place > 0 && texts[*place] == texts[0];
        let missing: Vec<&str> = (0..times.len()).filter(is_missing).map(|place| times[place].0).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(format!(
            "in its time {format}, {} is missing: let the server write it, as %{{%z}}t for Apache writes the zone; or add \
             it to the lines and the format: sed -E 's/(:[0-9.]+)]/\\1 +0000]/' adds UTC to a time in brackets, and %z reads it",
            missing.join(", ")
        ))
    }

    /// Reads a time, in microseconds since the Unix epoch.
    pub(super) fn micros(&self, text: &str) -> Option<i64> {
        if text.len() > LONGEST_TIME {
            return None; // The parser writes the text into its error, and a line may have many such places.
        }
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
                // The cast saturates, and the range of years rejects such numbers. It also rejects durations.
                let micros = (number * (1_000_000.0 / f64::from(*unit))).round() as i64;
                Some(micros).filter(|micros| YEARS_OF_NUMBERS.contains(micros))?
            }
            Self::Any => {
                let Ok(number) = text.parse::<f64>() else {
                    return Self::Iso.micros(text).or_else(|| Self::Strftime(COMMON.to_owned()).micros(text));
                };
                // Each unit is the only one that gives a year between 1973 and 5138.
                let unit = match number {
                    seconds if seconds < 1e11 => 1,
                    millis if millis < 1e14 => 1_000,
                    micros if micros < 1e17 => 1_000_000,
                    _ => 1_000_000_000,
                };
                return Self::Number(unit).micros(text);
            }
        };
        Some(micros).filter(|micros| YEARS.contains(micros))
    }

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

const LONGEST_TIME: usize = 100;

/// The years 2000 to 2099, in microseconds since the Unix epoch.
const YEARS_OF_NUMBERS: Range<i64> = 946_684_800_000_000..4_102_444_800_000_000;

/// The bound of PostgreSQL. No time zone is farther from UTC.
fn is_of_a_zone(offset: Offset) -> bool {
    offset.seconds().abs() < 16 * 3600
}
