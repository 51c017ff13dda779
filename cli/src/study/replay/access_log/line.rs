//! The fields of a line, and their meanings.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;

use serde_json::{Map, Value};

use crate::study::replay::access_log::json::Unambiguous;
use crate::study::replay::access_log::key::address;
use crate::study::replay::access_log::pattern::{Field, Fields, TimeForm};
use crate::study::replay::events::json_reason;

pub(super) const NO_TIME: &str = "no field has the time";

/// One request of the log. A `-` stands for an absent value, and is read as the empty string.
#[derive(Debug)]
pub struct LogLine<'a> {
    /// The time of the request, in microseconds since the Unix epoch.
    pub at: i64,
    pub(super) fields: Fields<'a>,
    /// The fields that have other values in other readings of the line.
    pub(super) ambiguous: Vec<&'a Field>,
    pub(super) renamed: &'a Renamed,
}

impl<'a> LogLine<'a> {
    pub(super) fn of_json(line: &str, renamed: &'a Renamed) -> Result<Self, String> {
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
            _ => self.meaning(name).or(self.own(name)).or_else(|| self.headers(name.strip_prefix("http_")?).next()),
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
    pub(super) fn second_address(&self) -> Option<String> {
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
        let has_field = self.renamed.contains_key(name) || self.meaning(name).or(self.own(name)).is_some();
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
    let mut objects = VecDeque::from([(String::new(), object)]);
    while let Some((before, object)) = objects.pop_front() {
        for (name, value) in object {
            let name = format!("{before}{name}");
            match value {
                Value::Object(inner) => objects.push_back((name + ".", inner)),
                value => {
                    let Some(text) = text(value) else { continue };
                    if name.contains('.') && fields.iter().any(|(own, earlier)| *own == name && *earlier != text) {
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
pub(super) fn wrapped(has: impl Fn(&str) -> bool) -> Option<String> {
    let wrappers =
        [(["log", "stream"], "-j .log"), (["MESSAGE", "MESSAGE"], "-r .MESSAGE"), (["line", "timestamp"], "-r .line")];
    let (_, options) = wrappers.into_iter().find(|(names, _)| names.iter().all(|name| has(name)))?;
    Some(format!("if a field has the line of the server, give the lines that `jq {options} FILE` prints"))
}

pub(super) fn is_file_of_docker(line: &str) -> bool {
    line.starts_with(r#"{"log":""#) && line.contains(r#","stream":""#)
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
pub(super) fn any_source(name: &str, is_so: &dyn Fn(&str) -> bool) -> bool {
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
pub(super) fn renamed(text: &str) -> Result<Renamed, String> {
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
