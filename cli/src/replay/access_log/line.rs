//! One request of an access log.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::replay::access_log::time::TimeForm;

/// One request of the log. A `-` stands for an absent value, and is read as the empty string.
#[derive(Debug)]
pub struct LogLine<'a> {
    pub(super) at: i64,
    pub(super) content: Content<'a>,
}

#[derive(Debug)]
pub(super) enum Content<'a> {
    /// The names and the values.
    Fields(Vec<(&'a str, Cow<'a, str>)>),
    Json(JsonLine<'a>),
}

impl<'a> LogLine<'a> {
    /// The time of the request, in microseconds since the Unix epoch.
    pub const fn at_micros(&self) -> i64 {
        self.at
    }

    /// The value of a field by a name of the tool, such as `path`, or by the format's own name. `None` if the line has no such
    /// field.
    pub fn field(&self, name: &str) -> Option<Cow<'_, str>> {
        match name {
            "path" => self.field("uri").map(|uri| Cow::Owned(path_of(&uri).to_owned())),
            "uri" => self.own("request_uri").or_else(|| self.of_request(|(_, uri)| uri)).or_else(|| self.meaning(name)),
            "method" => self.meaning(name).or_else(|| self.of_request(|(method, _)| method)),
            _ => self.meaning(name).or_else(|| self.own(name)),
        }
    }

    /// The value of a field by the format's own name.
    pub(super) fn own(&self, name: &str) -> Option<Cow<'_, str>> {
        match &self.content {
            Content::Fields(fields) => {
                fields.iter().find(|(own, _)| *own == name).map(|(_, value)| Cow::Borrowed(&**value))
            }
            Content::Json(line) => line.own(name).map(Cow::Owned),
        }
    }

    /// The names of the line's fields, for messages.
    pub(super) fn has(&self) -> String {
        match &self.content {
            Content::Fields(fields) => {
                let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
                format!("the line has the fields {}", names.join(", "))
            }
            Content::Json(line) => line.has(),
        }
    }

    fn meaning(&self, name: &str) -> Option<Cow<'_, str>> {
        match &self.content {
            Content::Fields(_) => meanings(name)?.iter().find_map(|field| self.own(field)),
            Content::Json(line) => line.meaning(name).map(Cow::Owned),
        }
    }

    fn of_request(&self, part: impl for<'x> Fn((&'x str, &'x str)) -> &'x str) -> Option<Cow<'_, str>> {
        let request = self.meaning("request")?;
        Some(Cow::Owned(part(method_and_uri(&request)).to_owned()))
    }
}

/// The tool's names, and the fields of formats that have the same meaning, the best first. A dot selects a member of a JSON object.
const NAMES: [(&str, &[&str]); 11] = [
    ("time", &["time_iso8601", "time_local", "msec", "time", "timestamp", "@timestamp", "ts", "StartUTC", "date"]),
    (
        "remote_addr",
        &[
            "remote_addr",
            "remote_ip",
            "request.remote_ip",
            "httpRequest.remoteIp",
            "client_addr",
            "client_ip",
            "clientip",
            "ClientHost",
            "client",
            "ip",
            "realip_remote_addr",
        ],
    ),
    (
        "http_x_forwarded_for",
        &["http_x_forwarded_for", "x_forwarded_for", "xff", "forwarded_for", "request.headers.X-Forwarded-For"],
    ),
    ("user", &["remote_user", "user", "auth", "ClientUsername", "user_id"]),
    ("request", &["request", "request_line"]),
    ("method", &["request_method", "method", "verb", "RequestMethod", "request.method", "httpRequest.requestMethod"]),
    ("uri", &["request_uri", "RequestPath", "request.uri", "uri", "url", "path"]),
    ("status", &["status", "DownstreamStatus", "response", "code", "httpRequest.status"]),
    ("user_agent", &["http_user_agent", "user_agent", "agent", "request.headers.User-Agent", "httpRequest.userAgent"]),
    ("referer", &["http_referer", "referer", "referrer", "http_referrer", "request.headers.Referer"]),
    ("host", &["host", "http_host", "server_name", "vhost", "RequestHost", "request.host"]),
];

/// The fields of formats with the meaning of this name, the best first. `None` if the tool has no such name.
pub(super) fn meanings(name: &str) -> Option<&'static [&'static str]> {
    NAMES.iter().find(|(own, _)| *own == name).map(|(_, fields)| *fields)
}

/// The tool's names, without the time, which is no key.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name).filter(|name| !matches!(*name, "time" | "request")).chain(["path"])
}

/// The parts of `GET /path?query HTTP/1.1`. A malformed request, as port scanners send them, has no method, and is the URI.
pub(super) fn method_and_uri(request: &str) -> (&str, &str) {
    let (method, rest) = request.split_once(' ').unwrap_or(("", request));
    match rest.rsplit_once(' ') {
        Some((uri, protocol)) if protocol.starts_with("HTTP/") => (method, uri),
        _ => (method, rest),
    }
}

/// A URI without its query.
pub(super) fn path_of(uri: &str) -> &str {
    uri.split_once('?').map_or(uri, |(path, _)| path)
}

/// The fields that the user gave for names of the tool: the name and the field.
pub(super) type Renamed = Vec<(String, String)>;

/// Parses `time=ts,remote_addr=client.ip`.
pub(super) fn renamed(text: &str) -> Result<Renamed, String> {
    let pair = |pair: &str| {
        let (name, field) = pair.split_once('=').ok_or_else(|| format!("\"{pair}\" is not NAME=FIELD"))?;
        let (name, field) = (name.trim(), field.trim());
        if meanings(name).is_none() {
            let names: Vec<&str> = names().filter(|name| *name != "path").collect();
            return Err(format!("\"{name}\" is none of the names time, request, {}", names.join(", ")));
        }
        Ok((name.to_owned(), field.to_owned()))
    };
    text.split(',').filter(|text| !text.trim().is_empty()).map(pair).collect()
}

#[derive(Debug)]
pub(super) struct JsonLine<'a> {
    object: Map<String, Value>,
    renamed: &'a Renamed,
}

impl<'a> JsonLine<'a> {
    /// Parses a line. Returns its time, too.
    pub(super) fn parse(line: &str, renamed: &'a Renamed) -> Result<(i64, Self), String> {
        let object = serde_json::from_str(line).map_err(|error| format!("not a JSON object: {error}"))?;
        let line = Self { object, renamed };
        let text = line.meaning("time").filter(|text| !text.is_empty()).ok_or_else(|| {
            format!("no field has the time: name it with --log-format json:time=FIELD; {}", line.has())
        })?;
        let at = TimeForm::Any.micros(&text);
        Ok((at.ok_or_else(|| format!("\"{text}\" is not a time like {}", TimeForm::Any.example()))?, line))
    }

    /// The fields of the line, for messages.
    pub(super) fn has(&self) -> String {
        let names: Vec<&str> = self.object.keys().map(String::as_str).take(20).collect();
        format!("the line has the fields {}", names.join(", "))
    }

    /// The value with the meaning of one of the tool's names.
    pub(super) fn meaning(&self, name: &str) -> Option<String> {
        if let Some((_, field)) = self.renamed.iter().find(|(own, _)| own == name) {
            return self.own(field);
        }
        meanings(name)?.iter().find_map(|field| self.own(field))
    }

    /// The value of a field. A dot selects a member, unless the name of a field has one.
    pub(super) fn own(&self, field: &str) -> Option<String> {
        let value = self.object.get(field).or_else(|| {
            let mut parts = field.split('.');
            let first = self.object.get(parts.next()?)?;
            parts.try_fold(first, |value, part| value.get(part))
        });
        text(value?)
    }
}

/// A scalar as text. Headers may be arrays of their lines, which form one list.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text == "-" => Some(String::new()),
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null => Some(String::new()),
        Value::Array(values) => {
            let lines: Option<Vec<&str>> = values.iter().map(Value::as_str).collect();
            Some(lines?.join(", "))
        }
        Value::Object(_) => None,
    }
}
