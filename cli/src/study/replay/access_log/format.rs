//! The format of an access log, what a collector writes before its lines, the guess for a line of another format, and its fields.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::str::FromStr;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

use crate::study::bad_lines::UnreadableLine;
use crate::study::replay::access_log::json::Unambiguous;
use crate::study::replay::access_log::key::address;
use crate::study::replay::access_log::pattern::{Field, Fields, Mismatch, NO_ADDRESS, Pattern, TimeForm};
use crate::study::replay::access_log::servers::{of_apache, of_nginx};
use crate::study::replay::events::{Event, json_reason};

const COMMON: &str = "$remote_addr $remote_logname $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
const HEADERS: &str = " \"$http_referer\" \"$http_user_agent\"";

const NO_TIME: &str = "no field has the time";

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
        self.patterns.iter().flat_map(Pattern::fields).map(|field| field.name.as_str())
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

/// How to use the time that a collector writes, which has no year in the classic lines of syslog.
fn own_time(collector: &str, line: &str) -> &'static str {
    let text = line.split_once('>').filter(|(priority, _)| priority.starts_with('<')).map_or(line, |(_, text)| text);
    if collector == "syslog" && text.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return "complete that of syslog, as with sed -E 's/^(<[0-9]+>)?(.{15})/YEAR \\2 +0000/' FILE, with the year and the \
                zone of the lines, and write it into the format, as in --log-format '%{%Y %b %e %H:%M:%S %z}t ..'";
    }
    "write the collector's text into it, as in --log-format '$time_iso8601 ..'"
}

/// The option for a line that begins with the name of a host, as a server writes it that looks names up.
fn of_host_name(line: &str) -> Option<String> {
    let (before, line) = collected(line).map_or((String::new(), line), |(by, rest)| (format!("{}:", by.name), rest));
    line.split(' ').next().filter(|name| is_host_name(name))?;
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
    if read.second_address().is_some() {
        return false;
    }
    // Two addresses: the first may be a proxy's. A number may be what is left of one, or a time.
    let is_number = |host: &str| host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_proxy = |host: &str| address(host).is_some() || is_number(host);
    if read.own("server_port").is_none() && read.own("host").is_some_and(is_proxy) {
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

fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let last = text.rsplit('.').next().unwrap_or_default();
    text.split('.').all(is_label) && last.chars().any(|c| c.is_ascii_alphabetic())
}

/// A program that writes a text before each line.
#[derive(Debug)]
struct Collector {
    name: &'static str,
    before: Regex,
    /// How its lines begin, for messages.
    begin: &'static str,
}

static COLLECTORS: LazyLock<[Collector; 5]> = LazyLock::new(|| {
    let whole = |before: &str| Regex::new(&format!("^(?:{before})")).expect("a regular expression");
    let collector = |name, before: &str, begin| Collector { name, before: whole(before), begin };
    let time =
        "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:[Zz]|[+-][0-9]{2}:?[0-9]{2}) ";
    let classic_time = "[A-Za-z]{3} +[0-9]+ (?:[0-9]{4} )?[0-9]{2}:[0-9]{2}:[0-9]{2}[^ ]* ";
    // The values in an element may have `\]` and `\"`.
    let structured_data = r#"(?:-|(?:\[(?:[^"\]]|"(?:[^"\\]|\\.)*")*\])+) "#;
    // The host, the program, its process, and the kind of the message; then the data.
    let rfc_5424 = format!(r"1 (?:- |{time})(?:[^ ]* ){{4}}{structured_data}\x{{feff}}*");
    // Also with the priority, `<190>`.
    let syslog = format!("(?:<[0-9]+>)?(?:{rfc_5424}|(?:{time}|{classic_time})[^ ]* [^ ]+: )");
    // `docker compose logs` and `docker service logs`, also with a time, and in colours, as on a terminal and with `--ansi always`.
    let colours = r"(?:\x1b\[[0-9;]*m)*";
    let compose = format!(r"{colours}[A-Za-z0-9._@-]+ *{colours} *\|{colours} {colours}(?:{time})?");
    // `kubectl logs --prefix`, also with a time.
    let kubectl = format!(r"\[pod/[^\] ]+\] (?:{time})?");
    // The files of Kubernetes.
    let cri = format!("{time}std(?:out|err) F ");
    [
        collector("syslog", &syslog, "as lines of syslog: Dec 16 00:00:00 host nginx: .."),
        // `docker logs -t`, `kubectl logs --timestamps`.
        collector("docker", time, "with a time like 2026-01-01T00:00:00.000000000Z"),
        collector("compose", &compose, "with the name of a service: web-1  | .."),
        collector("kubectl", &kubectl, "with the name of a pod: [pod/web-1/nginx] .."),
        collector("cri", &cri, "as in Kubernetes: 2026-01-01T00:00:00.000000000Z stdout F .."),
    ]
});

/// The collector of a line, and the line without its text. Lines of `cri` begin as those of `docker`.
fn collected(line: &str) -> Option<(&'static Collector, &str)> {
    let collected = COLLECTORS.iter().filter_map(|collector| Some((collector, collector.rest(line)?)));
    collected.min_by_key(|(_, rest)| rest.len())
}

impl Collector {
    fn rest<'l>(&self, line: &'l str) -> Option<&'l str> {
        Some(&line[self.before.find(line)?.end()..])
    }
}

/// One request of the log. A `-` stands for an absent value, and is read as the empty string.
#[derive(Debug)]
pub struct LogLine<'a> {
    pub(super) at: i64,
    pub(super) fields: Fields<'a>,
    /// The fields that have other values in other readings of the line.
    pub(super) ambiguous: Vec<&'a Field>,
    pub(super) renamed: &'a Renamed,
}

impl<'a> LogLine<'a> {
    fn of_json(line: &str, renamed: &'a Renamed) -> Result<Self, String> {
        let no_object = |why: &dyn Display| format!("not a JSON object: {why}");
        let Unambiguous(value) =
            serde_json::from_str(&with_long_numbers(line)).map_err(|error| no_object(&json_reason(&error)))?;
        let Value::Object(object) = value else { return Err(no_object(&"it does not begin with {")) };
        if renamed.is_empty() && is_file_of_docker(line) {
            return Err("its line is the text of the field log".to_owned());
        }
        let line = Self { at: 0, fields: fields_of(object)?, ambiguous: Vec::new(), renamed };
        // A duration may have the name of a time.
        let at = line.values("time").find_map(|(_, text)| TimeForm::Any.micros(text));
        if let Some(at) = at {
            return Ok(Self { at, ..line });
        }
        let example =
            format!("{}, 17/May/2015:10:05:03 +0000 or 1431857103.000 (or in ms, us or ns)", TimeForm::Any.example());
        let reason = match line.values("time").find(|(_, text)| !text.is_empty()) {
            Some((field, text)) => format!("\"{text}\" is not a time like {example}, which the field {field} must be"),
            None => NO_TIME.to_owned(),
        };
        Err(format!("{reason}: name the right one with --log-format json:time=FIELD; {}", line.has()))
    }

    /// The time of the request, in microseconds since the Unix epoch.
    pub const fn at_micros(&self) -> i64 {
        self.at
    }

    /// The value of a field by a name of the tool, such as `path`, or by the format's own name, if the line has the field.
    pub fn field(&self, name: &str) -> Option<&str> {
        match name {
            // Without the query.
            "path" => self.field("uri")?.split('?').next(),
            // No other field takes the place of the one that the user named.
            _ if self.renamed.contains_key(name) => self.meaning(name),
            "uri" => {
                let of_request = || self.request().map(|(_, uri)| uri);
                self.own("request_uri").or_else(of_request).or_else(|| self.meaning(name))
            }
            "method" => self.meaning(name).or_else(|| self.request().map(|(method, _)| method)),
            _ => self.named(name).or_else(|| self.headers(name.strip_prefix("http_")?).next()),
        }
    }

    /// The values of a header of the request, by its name in lower case with `_` for `-`. JSON logs name its field in many ways.
    /// Other objects, such as those of queries and cookies, have names that a client chooses.
    fn headers<'l>(&'l self, header: &str) -> impl Iterator<Item = &'l str> {
        let is_header = move |own: &str| {
            let own = own.to_ascii_lowercase().replace('-', "_");
            let (object, name) = own.rsplit_once('.').unwrap_or(("", &own));
            let is_of_headers = ["", "header", "headers", "request_headers", "req_headers", "requestheaders"]
                .contains(&object.rsplit('.').next().unwrap_or_default());
            let is_of_response = object.contains("resp") || object.split('.').any(|part| part == "res");
            is_of_headers && !is_of_response && name.strip_prefix("request_").unwrap_or(name) == header
        };
        self.fields.iter().filter(move |(own, _)| is_header(own)).map(|(_, value)| &**value)
    }

    /// The reason if the name of a user is an address: then the first address may be that of a proxy.
    fn second_address(&self) -> Option<String> {
        let is_name = |name: &str| matches!(name, "remote_logname" | "remote_user");
        let has_address = |list: &str| list.split(',').any(|part| address(part.trim()).is_some());
        let (name, value) = self.fields.iter().find(|(name, value)| is_name(name) && has_address(value))?;
        Some(format!("\"{value}\" is an address, and no {name}"))
    }

    pub(super) fn has_other_readings(&self, name: &str) -> bool {
        any_source(name, &|own| self.ambiguous.iter().any(|field| field.name == own))
    }

    /// Whether the line has several values for a field that is a header of the request.
    pub(super) fn is_ambiguous(&self, name: &str) -> bool {
        let Some(header) = name.strip_prefix("http_") else { return false };
        let mut values = self.headers(header);
        let has_field = self.renamed.contains_key(name) || self.named(name).is_some();
        !has_field && values.next().is_some_and(|first| values.any(|other| other != first))
    }

    /// The value of a field by the format's own name.
    pub(super) fn own(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }

    pub(super) fn has(&self) -> String {
        let names: Vec<&str> = self.fields.iter().map(|(name, _)| &**name).take(20).collect();
        let advice = wrapped(|name| self.own(name).is_some()).map(|advice| format!("; {advice}")).unwrap_or_default();
        format!("the line has the fields {}{advice}", names.join(", "))
    }

    fn named(&self, name: &str) -> Option<&str> {
        self.meaning(name).or_else(|| self.own(name))
    }

    /// The value with the meaning of one of the tool's names: the first one that is not absent.
    fn meaning(&self, name: &str) -> Option<&str> {
        self.source(name).map(|(_, value)| value)
    }

    /// The field that is read for one of the tool's names, and its value.
    pub(super) fn source(&self, name: &str) -> Option<(&str, &str)> {
        self.values(name).find(|(_, value)| !value.is_empty()).or_else(|| self.values(name).next())
    }

    /// The fields that may have this meaning, the best first, and their values.
    fn values(&self, name: &str) -> impl Iterator<Item = (&str, &str)> {
        let fields: Vec<&str> = match self.renamed.get(name) {
            Some(field) => vec![field],
            None => meanings(name).into_iter().flatten().collect(),
        };
        fields.into_iter().filter_map(|field| Some((field, self.own(field)?)))
    }

    /// The method and the URI of `GET /path?query HTTP/1.1`. A malformed request, as of a port scanner, is a URI without a method.
    fn request(&self) -> Option<(&str, &str)> {
        let request = self.meaning("request")?;
        let (method, rest) = request.split_once(' ').unwrap_or(("", request));
        let uri =
            rest.rsplit_once(' ').filter(|(_, protocol)| protocol.starts_with("HTTP/")).map_or(rest, |(uri, _)| uri);
        Some((method, uri))
    }
}

/// The fields of a JSON object and of the objects in it. The names of inner fields follow a dot. Outer fields are first.
fn fields_of(object: Map<String, Value>) -> Result<Fields<'static>, String> {
    let mut fields = Fields::new();
    let mut dotted: HashMap<String, String> = HashMap::new();
    let mut objects = VecDeque::from([(String::new(), object)]);
    while let Some((before, object)) = objects.pop_front() {
        for (name, value) in object {
            let name = format!("{before}{name}");
            match value {
                Value::Object(inner) => objects.push_back((name + ".", inner)),
                value => {
                    let Some(text) = text(value) else { continue };
                    let has_dot = name.contains('.');
                    if has_dot && dotted.insert(name.clone(), text.clone()).is_some_and(|earlier| earlier != text) {
                        return Err(format!("the field {name} has two values"));
                    }
                    fields.push((name.into(), text.into()));
                }
            }
        }
    }
    Ok(fields)
}

/// Advice for JSON in which a line of the log is the text of a field, as Docker, journald and Loki write it.
fn wrapped(has: impl Fn(&str) -> bool) -> Option<String> {
    let wrappers =
        [(["log", "stream"], "-j .log"), (["MESSAGE", "MESSAGE"], "-r .MESSAGE"), (["line", "timestamp"], "-r .line")];
    let (_, options) = wrappers.into_iter().find(|(names, _)| names.iter().all(|name| has(name)))?;
    Some(format!("if a field has the line of the server, give the lines that `jq {options} FILE` prints"))
}

/// A JSON text in which long integers are in quotes: as numbers, they would be rounded.
fn with_long_numbers(line: &str) -> Cow<'_, str> {
    if line.split(|c: char| !c.is_ascii_digit()).all(|digits| digits.len() < 19) {
        return line.into();
    }
    let is_of_number = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    let (mut text, mut is_escaped, mut is_quoted, mut rest) = (String::new(), false, false, line);
    while let Some(first) = rest.chars().next() {
        let end = if is_quoted { 0 } else { rest.find(|c| !is_of_number(c)).unwrap_or(rest.len()) };
        let (part, after) = rest.split_at(end.max(first.len_utf8()));
        let digits = part.strip_prefix('-').unwrap_or(part);
        let is_long = digits.len() > 18 && !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        text.extend(if is_long { ["\"", part, "\""] } else { ["", part, ""] });
        is_quoted ^= first == '"' && !is_escaped;
        is_escaped = is_quoted && first == '\\' && !is_escaped;
        rest = after;
    }
    text.into()
}

fn is_file_of_docker(line: &str) -> bool {
    line.starts_with(r#"{"log":""#) && line.contains(r#","stream":""#)
}

/// The tool's names, and the fields of formats that have the same meaning, the best first. A dot selects a member of a JSON object.
const FIELDS: [(&str, &str); 11] = [
    // The last one is a duration in some logs.
    ("time", "time_iso8601 time_local msec timestamp @timestamp ts StartUTC date time"),
    (
        "remote_addr",
        "remote_addr remote_host remote_ip request.remote_ip httpRequest.remoteIp client_addr client_ip clientip ClientHost client ip \
         realip_remote_addr",
    ),
    ("http_x_forwarded_for", "http_x_forwarded_for x_forwarded_for xff forwarded_for request.headers.X-Forwarded-For"),
    ("user", "remote_user user auth ClientUsername user_id"),
    ("request", "request request_line"),
    ("method", "request_method method verb RequestMethod request.method httpRequest.requestMethod"),
    ("uri", "request_uri RequestPath request.uri uri url path"),
    ("status", "status DownstreamStatus response code httpRequest.status"),
    ("user_agent", "http_user_agent user_agent agent request.headers.User-Agent httpRequest.userAgent"),
    ("referer", "http_referer referer referrer http_referrer request.headers.Referer"),
    ("host", "host http_host server_name vhost RequestHost request.host"),
];

/// The fields of formats with the meaning of this name, the best first. `None` if the tool has no such name.
fn meanings(name: &str) -> Option<impl Iterator<Item = &'static str> + use<>> {
    FIELDS.iter().find(|(own, _)| *own == name).map(|(_, fields)| fields.split(' '))
}

/// Whether this is so for one of the format's own fields that are read for this name of the tool or of the format.
fn any_source(name: &str, is_so: &dyn Fn(&str) -> bool) -> bool {
    match name {
        "path" => any_source("uri", is_so),
        "uri" | "method" if is_so("request") => true,
        _ => is_so(name) || meanings(name).is_some_and(|mut fields| fields.any(is_so)),
    }
}

/// The tool's names, without the time, which is no key.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|(name, _)| *name).filter(|name| !matches!(*name, "time" | "request")).chain(["path"])
}

/// The fields that the user gave for names of the tool: the name and the field.
pub(super) type Renamed = HashMap<String, String>;

/// Parses `time=ts,remote_addr=client.ip`.
fn renamed(text: &str) -> Result<Renamed, String> {
    let pair = |pair: &str| {
        let (name, field) = pair.split_once('=').ok_or_else(|| format!("\"{pair}\" is not NAME=FIELD"))?;
        let (name, field) = (name.trim(), field.trim());
        if meanings(name).is_none() && !name.starts_with("http_") {
            let names: Vec<&str> = names().filter(|name| *name != "path").collect();
            return Err(format!("\"{name}\" is none of the names time, request, {}, http_HEADER", names.join(", ")));
        }
        Ok((name.to_owned(), field.to_owned()))
    };
    text.split(',').filter(|text| !text.trim().is_empty()).map(pair).collect()
}

/// A scalar as text. Headers may be arrays of their lines, which form one list.
fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) if text != "-" => Some(text),
        Value::String(_) | Value::Null => Some(String::new()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Array(lines) => Some(lines.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?.join(", ")),
        Value::Object(_) => None,
    }
}
