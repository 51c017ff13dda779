//! The format of an access log, what a log collector writes before its lines, and the guess for a line that has another format.

use std::str::FromStr;
use std::sync::LazyLock;

use crate::replay::access_log::key::address;
use crate::replay::access_log::line::{Content, JsonLine, LogLine, Renamed, meanings, renamed};
use crate::replay::access_log::pattern::{Mismatch, NO_ADDRESS, Pattern};
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
                return JsonLine::parse(line, renamed).map(|(at, line)| LogLine { at, content: Content::Json(line) });
            }
        };
        let mut closest: Option<Mismatch> = None;
        for pattern in patterns {
            match pattern.divide(line) {
                Ok((at, values)) => {
                    let names = pattern.fields().map(|field| field.name.as_str());
                    return Ok(LogLine { at, content: Content::Fields(names.zip(values).collect()) });
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

const BEHIND_PROXY: &str = "$http_x_forwarded_for - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";
const BEHIND_PROXY_COMMON: &str =
    "$http_x_forwarded_for - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
const OF_HOST_NAME: &str = "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\"";
const OF_HOST_NAME_COMMON: &str = "%h %l %u %t \"%r\" %>s %b";

/// The formats of lines that begin with the name of a host.
static OF_NAMES: LazyLock<Vec<LogFormat>> = LazyLock::new(|| {
    [OF_HOST_NAME, OF_HOST_NAME_COMMON].into_iter().filter_map(|text| LogFormat::from_str(text).ok()).collect()
});

/// The formats after the name of a collector.
const LAYOUTS: [&str; 4] = ["vhost", BEHIND_PROXY, BEHIND_PROXY_COMMON, "json"];

/// The formats to try, the most usual ones first.
static KNOWN: LazyLock<Vec<LogFormat>> = LazyLock::new(|| {
    let plain = ["combined", "common"].into_iter().chain(LAYOUTS).map(str::to_owned);
    let collected = Prefix::NAMED.iter().flat_map(|(name, _)| {
        let layouts = LAYOUTS.iter().map(move |layout| format!("{name}:{layout}"));
        std::iter::once((*name).to_owned()).chain(layouts)
    });
    plain.chain(collected).filter_map(|text| LogFormat::from_str(&text).ok()).collect()
});

/// The option that reads this line, which does not have the format `given`, if the whole line has a known one.
pub(super) fn other_format(line: &str, given: &str) -> Option<String> {
    let text = &KNOWN.iter().find(|format| format.text != given && reads(format, line))?.text;
    let text = if text.contains('$') { format!("'{text}'") } else { text.clone() };
    Some(format!("--log-format {text}{}", proxies(line)))
}

/// The option for a line that begins with the name of a host, as a server writes it that looks names up.
pub(super) fn of_host_name(line: &str) -> Option<String> {
    let name = line.split(' ').next().filter(|name| is_host_name(name))?;
    let is_whole = |format: &&LogFormat| {
        let Ok(line) = format.read(line) else { return false };
        let [logname, user] = ["remote_logname", "user"].map(|name| line.field(name).unwrap_or_default().into_owned());
        address(&logname).is_none() && !user.contains(' ')
    };
    let format = &OF_NAMES.iter().find(is_whole)?.text;
    Some(format!("--log-format '{format}' --key '%h' (if \"{name}\" is the name of the client)"))
}

fn reads(format: &LogFormat, line: &str) -> bool {
    let Ok(read) = format.read(line) else { return false };
    let is_address = |field: &str| read.own(field).is_some_and(|text| address(&text).is_some());
    // Two addresses: the first may be a proxy's.
    if is_address("host") && read.own("server_port").is_none() {
        return false;
    }
    let is_client = |text: &str| address(text).is_some() || text == "unknown";
    match read.own("http_x_forwarded_for") {
        Some(list) if format.text.contains("$http_x_forwarded_for") => {
            list.split(',').all(|part| is_client(part.trim()))
        }
        // A message of an application has a time, but no client.
        _ => read.field("remote_addr").is_some_and(|client| address(&client).is_some()),
    }
}

/// The other option that a list of addresses needs.
fn proxies(line: &str) -> &'static str {
    let before_time = line.split(" [").next().unwrap_or_default();
    if before_time.contains(',') { " --trusted-proxies NETWORKS_OF_YOUR_PROXIES" } else { "" }
}

fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let last = text.rsplit('.').next().unwrap_or_default();
    text.split('.').all(is_label) && last.chars().any(|c| c.is_ascii_alphabetic())
}

/// The collector that wrote the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Prefix {
    #[default]
    None,
    /// `Dec 16 00:00:00 host nginx: `, or with a time in ISO 8601; also with the priority, `<190>`.
    Syslog,
    /// `2026-01-01T00:00:00.000000000Z `: `docker logs -t`, `kubectl logs --timestamps`.
    Docker,
    /// `web-1  | `: `docker compose logs`, also with a time.
    Compose,
    /// `2026-01-01T00:00:00.000000000Z stdout F `: the files of Kubernetes.
    Cri,
}

impl Prefix {
    pub(super) const NAMED: [(&str, Self); 4] =
        [("syslog", Self::Syslog), ("docker", Self::Docker), ("compose", Self::Compose), ("cri", Self::Cri)];

    /// The line without the prefix, or the reason if it has none.
    pub(super) fn strip(self, line: &str) -> Result<&str, &'static str> {
        match self {
            Self::None => Ok(line),
            Self::Syslog => syslog(line).ok_or("it does not begin as lines of syslog: Dec 16 00:00:00 host nginx: .."),
            Self::Docker => time(line).ok_or("it does not begin with a time like 2026-01-01T00:00:00.000000000Z"),
            Self::Compose => compose(line).ok_or("it does not begin with the name of a service: web-1  | .."),
            Self::Cri => {
                cri(line).ok_or("it does not begin as in Kubernetes: 2026-01-01T00:00:00.000000000Z stdout F ..")
            }
        }
    }
}

fn syslog(line: &str) -> Option<&str> {
    let line = match line.strip_prefix('<') {
        Some(rest) => rest.split_once('>').filter(|(priority, _)| is_digits(priority))?.1,
        None => line,
    };
    let rest = time(line).or_else(|| classic_time(line))?;
    let (_host, rest) = rest.split_once(' ')?;
    let (tag, rest) = rest.split_once(": ")?;
    (!tag.is_empty() && !tag.contains(' ')).then_some(rest)
}

/// Skips `Dec 16 00:00:00 `, also with a blank in place of the first digit of the day, or with a year.
fn classic_time(line: &str) -> Option<&str> {
    let (month, rest) = line.split_once(' ')?;
    let (day, rest) = rest.trim_start_matches(' ').split_once(' ')?;
    let (clock, rest) = match rest.split_once(' ')? {
        (year, rest) if year.len() == 4 && is_digits(year) => rest.split_once(' ')?,
        clock => clock,
    };
    let is_clock = clock.get(..8).is_some_and(|clock| clock.bytes().filter(|byte| *byte == b':').count() == 2);
    let is_month = month.len() == 3 && month.bytes().all(|byte| byte.is_ascii_alphabetic());
    (is_month && is_digits(day) && is_clock).then_some(rest)
}

/// Skips a time in ISO 8601, and the blank after it.
fn time(line: &str) -> Option<&str> {
    let (time, rest) = line.split_once(' ')?;
    time.parse::<jiff::Timestamp>().ok().map(|_| rest)
}

fn compose(line: &str) -> Option<&str> {
    let (name, rest) = line.split_once('|')?;
    let (name, rest) = (name.trim_end(), rest.strip_prefix(' ')?);
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    is_name.then(|| time(rest).unwrap_or(rest))
}

fn cri(line: &str) -> Option<&str> {
    let rest = time(line)?;
    ["stdout F ", "stderr F "].iter().find_map(|stream| rest.strip_prefix(stream))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_every_collector_is_removed() {
        for (prefix, line) in [
            (Prefix::None, "::1 - x"),
            (Prefix::Syslog, "Dec 16 00:00:00 host nginx: ::1 - x"),
            (Prefix::Syslog, "Dec  6 00:00:00 host nginx[123]: ::1 - x"),
            (Prefix::Syslog, "Dec 16 2026 00:00:00 host nginx: ::1 - x"),
            (Prefix::Syslog, "<190>Dec 16 00:00:00 host nginx: ::1 - x"),
            (Prefix::Syslog, "2026-12-16T00:00:00.123456+01:00 host nginx: ::1 - x"),
            (Prefix::Docker, "2026-12-16T00:00:00.123456789Z ::1 - x"),
            (Prefix::Compose, "web-1  | ::1 - x"),
            (Prefix::Compose, "web-1  | 2026-12-16T00:00:00.123456789Z ::1 - x"),
            (Prefix::Cri, "2026-12-16T00:00:00.123456789Z stdout F ::1 - x"),
        ] {
            assert_eq!(prefix.strip(line), Ok("::1 - x"), "{line}");
        }
        let others = [Prefix::Syslog, Prefix::Docker, Prefix::Compose, Prefix::Cri];
        for line in ["", " ", "|", "203.0.113.1 - - [17/May/2015:10:05:03 +0000] \"GET /a|b HTTP/1.1\" 200 1"] {
            assert!(others.iter().all(|prefix| prefix.strip(line).is_err()), "{line}");
        }
    }
}
