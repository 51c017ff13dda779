//! A line that is a JSON object.

use serde_json::{Map, Value};

use crate::replay::access_log::fields::{meanings, names};
use crate::replay::access_log::time::TimeForm;

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
