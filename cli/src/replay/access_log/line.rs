//! One request of an access log.

use std::borrow::Cow;

use crate::replay::access_log::fields::{meanings, method_and_uri, path_of};
use crate::replay::access_log::json_line::JsonLine;

/// One request of the log. A `-` stands for an absent value, and is read as the empty string.
#[derive(Debug)]
pub struct LogLine<'a> {
    at: i64,
    content: Content<'a>,
}

#[derive(Debug)]
pub(super) enum Content<'a> {
    /// The names and the values.
    Fields(Vec<(&'a str, Cow<'a, str>)>),
    Json(JsonLine<'a>),
}

impl<'a> LogLine<'a> {
    pub(super) const fn new(at: i64, content: Content<'a>) -> Self {
        Self { at, content }
    }

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
