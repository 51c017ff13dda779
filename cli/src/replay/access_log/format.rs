//! The format of an access log.

use std::str::FromStr;

use crate::replay::access_log::fields::meanings;
use crate::replay::access_log::guess::{of_host_name, other_format};
use crate::replay::access_log::json_line::{JsonLine, Renamed, renamed};
use crate::replay::access_log::line::{Content, LogLine};
use crate::replay::access_log::pattern::{Mismatch, NO_ADDRESS, Pattern};
use crate::replay::access_log::prefix::Prefix;
use crate::replay::access_log::{apache, nginx};

const COMMON: &str = "$remote_addr $remote_logname $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
const HEADERS: &str = " \"$http_referer\" \"$http_user_agent\"";

/// The names of formats, for messages.
const NAMES: &str =
    "common, combined, vhost, json, syslog, docker, compose, cri, or a format string of nginx or Apache";

/// The format of the lines of an access log. The default is the common or the combined format.
#[derive(Clone, Debug)]
pub struct LogFormat {
    /// As the user writes it.
    pub(super) text: String,
    prefix: Prefix,
    layout: Layout,
}

#[derive(Clone, Debug)]
enum Layout {
    /// Each line has one of these.
    Patterns(Vec<Pattern>),
    Json(Renamed),
}

/// Why a line cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub struct UnreadableLine {
    /// The reason.
    pub reason: String,
    /// The option that reads the line, if it is a whole line of another known format.
    pub other_format: Option<String>,
}

impl LogFormat {
    /// Parses one line, without its line break.
    ///
    /// # Errors
    /// Returns the reason if the line has another format.
    pub fn parse<'a>(&'a self, line: &'a str) -> Result<LogLine<'a>, UnreadableLine> {
        self.read(line).map_err(|reason| {
            let other_format = other_format(line, &self.text);
            let hint = other_format.clone().or_else(|| of_host_name(line));
            let hint = match hint {
                Some(option) => format!("; {option} reads this line"),
                None if reason.contains(NO_ADDRESS) => {
                    "; give the format string of the server with --log-format".to_owned()
                }
                None => String::new(),
            };
            UnreadableLine { reason: format!("not a line of an access log: {reason}{hint}"), other_format }
        })
    }

    pub(super) fn read<'a>(&'a self, line: &'a str) -> Result<LogLine<'a>, String> {
        let line = self.prefix.strip(line)?;
        let patterns = match &self.layout {
            Layout::Patterns(patterns) => patterns,
            Layout::Json(renamed) => {
                return JsonLine::parse(line, renamed).map(|(at, line)| LogLine::new(at, Content::Json(line)));
            }
        };
        let mut closest: Option<Mismatch> = None;
        for pattern in patterns {
            match pattern.divide(line) {
                Ok((at, values)) => {
                    let names = pattern.fields().map(|field| field.name.as_str());
                    return Ok(LogLine::new(at, Content::Fields(names.zip(values).collect())));
                }
                Err(mismatch) if closest.as_ref().is_none_or(|other| other.place <= mismatch.place) => {
                    closest = Some(mismatch);
                }
                Err(_) => {}
            }
        }
        Err(closest.map(|mismatch| mismatch.reason).unwrap_or_default())
    }

    /// Whether lines can have this field, by a name of the tool or the format's own.
    pub(super) fn has(&self, name: &str) -> bool {
        let has_own = |name: &str| self.own_names().any(|own| own == name);
        match name {
            _ if matches!(self.layout, Layout::Json(_)) => true,
            "path" => self.has("uri"),
            "uri" | "method" if has_own("request") => true,
            _ => has_own(name) || meanings(name).is_some_and(|fields| fields.iter().any(|field| has_own(field))),
        }
    }

    /// The names of the fields in the format itself. None for JSON, whose lines have their own.
    pub(super) fn own_names(&self) -> impl Iterator<Item = &str> {
        let patterns = match &self.layout {
            Layout::Patterns(patterns) => patterns.as_slice(),
            Layout::Json(_) => &[],
        };
        patterns.iter().flat_map(Pattern::fields).map(|field| field.name.as_str())
    }

    fn new(text: &str, layout: Layout) -> Self {
        Self { text: text.to_owned(), prefix: Prefix::None, layout }
    }
}

impl Default for LogFormat {
    fn default() -> Self {
        let named = usual("");
        Self::new("", Layout::Patterns(named.unwrap_or_default()))
    }
}

/// The combined and the common format, after this text. Servers may append fields to both.
fn usual(before: &str) -> Result<Vec<Pattern>, String> {
    Ok(vec![pattern(&format!("{before}{COMMON}{HEADERS}"), true)?, pattern(&format!("{before}{COMMON}"), false)?])
}

fn pattern(format: &str, goes_on: bool) -> Result<Pattern, String> {
    Pattern::new(nginx::pieces(format)?, goes_on)
}

/// Parses the name of a format, a format string of nginx or Apache, or one of them after the name of a collector, as in
/// `syslog:combined`.
impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, rest) = text.split_once(':').unwrap_or((text, ""));
        if let Some((_, prefix)) = Prefix::NAMED.iter().find(|(name, _)| *name == first) {
            let inner = if rest.is_empty() { Self::default() } else { rest.parse()? };
            if inner.prefix != Prefix::None {
                return Err(format!("\"{text}\" has two collectors: give one"));
            }
            return Ok(Self { text: text.to_owned(), prefix: *prefix, layout: inner.layout });
        }
        let layout = match (first, text) {
            (_, "common") => Layout::Patterns(vec![pattern(COMMON, true)?]),
            (_, "combined") => Layout::Patterns(vec![pattern(&format!("{COMMON}{HEADERS}"), true)?]),
            (_, "vhost") => Layout::Patterns([usual("$host:$server_port ")?, usual("$host ")?].concat()),
            ("json", _) => Layout::Json(renamed(rest)?),
            _ if text.contains('$') => Layout::Patterns(vec![pattern(text, false)?]),
            _ if text.contains('%') => Layout::Patterns(vec![Pattern::new(apache::pieces(text)?, false)?]),
            _ => return Err(format!("\"{text}\" is no format; use {NAMES}")),
        };
        Ok(Self::new(text, layout))
    }
}
