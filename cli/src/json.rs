//! Formats decisions and other objects as JSON, in the style of the decisions that `replay` prints.

use crate::text::{milliseconds, plain};
use pg_limiter::{Decision, InvalidCall};

/// `{"ok": true, "retry_after_ms": null, "value": 9}`; a denial adds `denied_by`.
pub(super) fn decision(decision: &Decision) -> String {
    let ok = !decision.is_denied();
    let wait = decision.retry_after().or(decision.wait());
    let wait = wait.map_or_else(|| "null".to_owned(), |wait| milliseconds(wait.as_micros()));
    let value = plain(decision.remaining());
    let mut text = format!("{{\"ok\": {ok}, \"retry_after_ms\": {wait}, \"value\": {value}");
    if !ok {
        let names: Vec<String> = decision.denied_by().into_iter().map(string).collect();
        text.push_str(&format!(", \"denied_by\": [{}]", names.join(", ")));
    }
    text.push('}');
    text
}

/// `{"error": "count_exceeds_capacity", "message": ".."}`.
pub(super) fn impossible(error: &InvalidCall) -> String {
    format!("{{\"error\": {}, \"message\": {}}}", string(error.code()), string(&error.to_string()))
}

/// Builds `{"a": 1, "b": null}` on one line from values that are JSON already. It escapes control characters from 0x7f on,
/// too: JSON allows them in strings, but terminals may interpret them.
pub(super) fn object<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields: Vec<String> = fields.into_iter().map(|(name, value)| format!("{}: {value}", string(name))).collect();
    let mut text = String::from("{");
    for c in fields.join(", ").chars() {
        if c.is_control() {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text.push('}');
    text
}

pub(super) fn array(values: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", values.into_iter().collect::<Vec<_>>().join(", "))
}

pub(super) fn optional(value: Option<String>) -> String {
    value.unwrap_or_else(|| "null".to_owned())
}

pub(super) fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
