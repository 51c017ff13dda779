//! The format of an access log, and the guess for a line of another format.

use std::str::FromStr;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::study::bad_lines::UnreadableLine;
use crate::study::replay::access_log::collector::{COLLECTORS, Collector, collected, own_time};
use crate::study::replay::access_log::key::address;
use crate::study::replay::access_log::line::{
    LogLine, NO_TIME, Renamed, any_source, is_file_of_docker, renamed, wrapped,
};
use crate::study::replay::access_log::pattern::{Mismatch, NO_ADDRESS, Pattern};
use crate::study::replay::access_log::servers::{of_apache, of_nginx};
use crate::study::replay::events::{Event, json_reason};

const COMMON: &str = "$remote_addr $remote_logname $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
const HEADERS: &str = " \"$http_referer\" \"$http_user_agent\"";

/// The format of the lines of an access log. The default is the common or the combined format.
#[derive(Clone, Debug)]
pub struct LogFormat {
    /// As the user writes it.
    text: String,
    collector: Option<&'static Collector>,
    /// Each line has one of these. None for JSON.
    patterns: Vec<Pattern>,
    /// The fields of a JSON log that the user named.
    renamed: Renamed,
}

impl LogFormat {
    /// Parses one line, without its line break.
    ///
    /// # Errors
    /// Returns the reason if the line has another format.
    pub fn parse<'a>(&'a self, line: &'a str) -> Result<LogLine<'a>, UnreadableLine> {
        self.read(line).map_err(|(place, mut reason)| {
            let option = of_known_format(line, &self.text);
            let is_other_format = option.is_some() && !self.patterns.iter().any(|pattern| pattern.may_be_cut_at(place));
            let is_cut = if is_other_format { "" } else { ", if it was not cut" };
            let hint = option.map(|option| option + " reads this line" + is_cut);
            let hint = hint.or_else(|| of_host_name(line)).or_else(|| self.hint(line, &mut reason));
            let what = if is_other_format { "another format" } else { "not a line of an access log" };
            let misses_format = !self.patterns.is_empty();
            UnreadableLine { hint, is_other_format, misses_format, ..format!("{what}: {reason}").into() }
        })
    }

    /// Advice for a line that no known format reads. Changes the reason if the line only begins like JSON.
    fn hint(&self, line: &str, reason: &mut String) -> Option<String> {
        let collected = collected(line);
        let inner = collected.map_or(line, |(_, rest)| rest);
        let is_collected_twice = COLLECTORS.iter().any(|collector| collector.rest(inner).is_some());
        let is_object = inner.starts_with('{') && !self.patterns.is_empty();
        let object = is_object.then(|| serde_json::from_str::<Map<String, Value>>(inner));
        let before = collected.map(|(collector, _)| format!("{}:", collector.name)).unwrap_or_default();
        Some(match (object, collected) {
            _ if Event::parse(line).is_ok() => "this is a recorded call: use --events FILE".into(),
            _ if is_file_of_docker(line) => {
                "this is a file of Docker: give the lines that `docker logs CONTAINER` or `jq -j .log FILE` prints"
                    .into()
            }
            _ if ["#Software:", "#Version:", "#Date:", "#Fields:"].iter().any(|begin| line.starts_with(begin)) => {
                "this is a log in the W3C format, as of IIS or CloudFront, which is not read: convert its lines to JSON with \
                 a `time` and a `remote_addr`, and use --log-format json"
                    .into()
            }
            _ if ["stdout P ", "stderr P "].iter().any(|begin| inner.starts_with(begin)) => {
                "this is a part of a long line, as Kubernetes divides it: give the lines that `kubectl logs` prints".into()
            }
            _ if line.starts_with([' ', '\t']) && !line.trim().is_empty() => {
                "the line begins with a blank: remove it, as with sed 's/^[[:blank:]]*//' FILE".into()
            }
            (_, Some((Collector { begin, .. }, _))) if is_collected_twice || inner.starts_with("std") => {
                format!("the line begins {begin}, and a second collector follows: remove the text of the first one")
            }
            (Some(Ok(object)), _) => match wrapped(|name| object.contains_key(name)) {
                Some(advice) => format!("the line is JSON: {advice}"),
                None => {
                    let fields = "json:time=FIELD,remote_addr=FIELD";
                    format!("the line is JSON: name its fields, as in --log-format {before}{fields}")
                }
            },
            // A format string of the user's own may begin so, too.
            (Some(Err(error)), _) if !self.text.trim_start().starts_with('{') => {
                *reason = format!("it begins with {{ and is no JSON: {}", json_reason(&error));
                return None;
            }
            // The format string has the collector's text.
            (_, Some(_)) if self.collector.is_none() && self.patterns.iter().any(|own| own.reads_time_of(line)) => {
                return None;
            }
            (_, Some((Collector { name, begin, .. }, _))) if self.collector.is_none_or(|own| own.name != *name) => {
                let format = "with the format string of the server; if that has no time";
                format!("the line begins {begin}: use --log-format {name}:FORMAT, {format}, {}", own_time(name, line))
            }
            (_, Some(_)) if reason.starts_with(NO_TIME) => {
                let command = r#"sed -E 's/^[^{]*([0-9]{4}-[^ {]+)[^{]*\{/{"time":"\1",/' FILE"#;
                format!("if only the collector has one, move it as with {command}, and use --log-format json")
            }
            _ if !reason.contains(NO_ADDRESS) => return None,
            _ if inner.starts_with("- ") => format!(
                "if the first field is the virtual host, use --log-format {before}vhost; if it is X-Forwarded-For, use one \
                 that begins with $http_x_forwarded_for"
            ),
            _ if self.is_own() => return None,
            _ => "give the format string of the server with --log-format".into(),
        })
    }

    /// Reads a line without the blanks at its end or, if it cannot be read so, with them: its last field may be empty.
    fn read<'a>(&'a self, line: &'a str) -> Result<LogLine<'a>, Mismatch> {
        let text = line.trim_ascii_end();
        let with_blanks =
            |mismatch| if text == line { Err(mismatch) } else { self.read_all(line).map_err(|_| mismatch) };
        self.read_all(text).or_else(with_blanks)
    }

    fn read_all<'a>(&'a self, line: &'a str) -> Result<LogLine<'a>, Mismatch> {
        let line = match self.collector {
            Some(own) => own.rest(line).ok_or_else(|| (0, format!("it does not begin {}", own.begin)))?,
            None => line,
        };
        if self.patterns.is_empty() {
            return LogLine::of_json(line, &self.renamed).map_err(|reason| (0, reason));
        }
        let mut mismatches = Vec::new();
        for pattern in &self.patterns {
            match pattern.divide(line, &self.renamed) {
                // A format string of the user's own says which field is the user's name, and a client chooses that.
                Ok(line) => match line.second_address().filter(|_| !self.is_own()) {
                    Some(reason) => mismatches.push((line.fields.len(), reason)),
                    None => return Ok(line),
                },
                Err(mismatch) => mismatches.push(mismatch),
            }
        }
        Err(mismatches.into_iter().max_by_key(|(place, _)| *place).unwrap_or_default())
    }

    /// Whether this line is a JSON object, after the text of a collector. A format string of the user's own reads it as text.
    pub(in crate::study::replay) fn is_json(&self, line: &str) -> bool {
        let is_object = || collected(line).map_or(line, |(_, rest)| rest).starts_with('{');
        self.patterns.is_empty() || !self.is_own() && is_object()
    }

    /// Whether this is a format string, and not the name of a format.
    fn is_own(&self) -> bool {
        self.text.contains(['$', '%'])
    }

    /// Whether lines can have this field, by a name of the tool or the format's own.
    pub(super) fn has(&self, name: &str) -> bool {
        any_source(name, &|own| self.has_own(own))
    }

    /// Whether lines can have a field of this name of the format's own. Only the lines of a JSON log show which they have.
    pub(super) fn has_own(&self, name: &str) -> bool {
        self.patterns.is_empty() || self.own_names().any(|own| own == name)
    }

    /// The names of the fields in the format itself. None for JSON, whose lines have their own.
    pub(super) fn own_names(&self) -> impl Iterator<Item = &str> {
        self.patterns.iter().flat_map(|pattern| &pattern.fields).map(|field| field.name.as_str())
    }
}

impl Default for LogFormat {
    fn default() -> Self {
        let patterns = usual("").unwrap_or_default();
        Self { text: String::new(), collector: None, patterns, renamed: Renamed::new() }
    }
}

/// The combined and the common format, after this text. Servers may append fields to both.
fn usual(before: &str) -> Result<Vec<Pattern>, String> {
    Ok(vec![pattern(&format!("{before}{COMMON}{HEADERS}"), true)?, pattern(&format!("{before}{COMMON}"), false)?])
}

fn pattern(format: &str, goes_on: bool) -> Result<Pattern, String> {
    of_nginx(format)?.checked(goes_on)
}

/// Parses the name of a format, a format string of nginx or Apache, or one of them after a collector: `syslog:combined`.
impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, rest) = text.split_once(':').unwrap_or((text, ""));
        if let Some(collector) = COLLECTORS.iter().find(|collector| collector.name == first) {
            let inner = if rest.is_empty() { Self::default() } else { rest.parse()? };
            if inner.collector.is_some() {
                return Err(format!("\"{text}\" has two collectors: give one"));
            }
            return Ok(Self { text: text.to_owned(), collector: Some(collector), ..inner });
        }
        let patterns = match text {
            "common" => vec![pattern(COMMON, true)?],
            "combined" => vec![pattern(&format!("{COMMON}{HEADERS}"), true)?],
            "vhost" => [usual("$host:$server_port ")?, usual("$host ")?].concat(),
            _ if first == "json" => Vec::new(),
            _ if text.contains('$') => vec![pattern(text, false)?],
            _ if text.contains('%') => vec![of_apache(text)?.checked(false)?],
            _ => {
                return Err(format!(
                    "\"{text}\" is no format; use common, combined, vhost, json, syslog, docker, compose, kubectl, cri, or a format \
                     string of nginx or Apache"
                ));
            }
        };
        let renamed = if patterns.is_empty() { renamed(rest)? } else { Renamed::new() };
        Ok(Self { text: text.to_owned(), collector: None, patterns, renamed })
    }
}

const BEHIND_PROXY: &str = "$http_x_forwarded_for - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";

/// The formats to try, the most usual ones first.
static KNOWN: LazyLock<Vec<LogFormat>> = LazyLock::new(|| {
    let behind = |host| [HEADERS, ""].map(|headers| format!("{host}{BEHIND_PROXY}{headers}"));
    let behind = ["", "$host:$server_port ", "$host "].map(behind).concat();
    let layouts = [&["vhost", "json"].map(str::to_owned)[..], &behind].concat();
    let mut texts = [&["combined", "common"].map(str::to_owned)[..], &layouts].concat();
    for Collector { name, .. } in COLLECTORS.iter() {
        texts.push((*name).to_owned());
        texts.extend(layouts.iter().map(|layout| format!("{name}:{layout}")));
    }
    texts.iter().filter_map(|text| text.parse().ok()).collect()
});

/// The option that reads this line, which does not have the format `given`, if the whole line has a known one.
pub(in crate::study::replay) fn of_known_format(line: &str, given: &str) -> Option<String> {
    // Without the fields that the user named, it reads others.
    let is_given = |text: &str| text == given || text.ends_with("json") && given.starts_with(text);
    let format = KNOWN.iter().find(|format| !is_given(&format.text) && reads(format, line))?;
    let text = if format.text.contains('$') { format!("'{}'", format.text) } else { format.text.clone() };
    // A list of addresses needs another option.
    let forwarded = |line: LogLine<'_>| line.field("http_x_forwarded_for").is_some_and(|list| list.contains(','));
    let is_list = format.read(line).is_ok_and(forwarded);
    let proxies = if is_list { " --trusted-proxies NETWORKS_OF_YOUR_PROXIES" } else { "" };
    Some(format!("--log-format {text}{proxies}"))
}

/// The option for a line that begins with the name of a host, as a server writes it that looks names up.
fn of_host_name(line: &str) -> Option<String> {
    let (before, line) = collected(line).map_or((String::new(), line), |(by, rest)| (format!("{}:", by.name), rest));
    let is_label = |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let has_letter = |label: &str| label.chars().any(|c| c.is_ascii_alphabetic());
    let is_host_name = |text: &&str| text.split('.').all(is_label) && text.rsplit('.').next().is_some_and(has_letter);
    line.split(' ').next().filter(is_host_name)?;
    let is_whole = |format: &LogFormat| {
        let Ok(line) = format.read(line) else { return false };
        let user = line.field("user").unwrap_or_default();
        line.second_address().is_none() && !user.contains(' ')
    };
    let formats = [r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i""#, r#"%h %l %u %t "%r" %>s %b"#];
    let format = formats.into_iter().find(|text| text.parse().is_ok_and(|format| is_whole(&format)))?;
    Some(format!(
        "--log-format '{before}{format}' --key '%h' (if the first field is the name of the client) reads this line"
    ))
}

fn reads(format: &LogFormat, line: &str) -> bool {
    let Ok(read) = format.read(line) else { return false };
    // Two addresses: the first may be a proxy's. A number may be what is left of one, or a time.
    let is_number = |host: &str| host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_proxy = |host: &str| address(host).is_some() || is_number(host);
    let has_proxy = read.own("server_port").is_none() && read.own("host").is_some_and(is_proxy);
    if has_proxy || read.second_address().is_some() {
        return false;
    }
    let is_client = |text: &str| address(text).is_some() || text == "unknown";
    match read.own("http_x_forwarded_for") {
        Some(list) if format.text.contains("$http_x_forwarded_for") => {
            list.is_empty() || !list.starts_with(' ') && list.split(',').all(|part| is_client(part.trim()))
        }
        // A message of an application has a time, but no client.
        _ => read.field("remote_addr").is_some_and(|client| address(client).is_some()),
    }
}
