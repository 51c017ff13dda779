//! Formats decisions and other objects as JSON, in the style of the decisions that `replay` prints.

use crate::text::{milliseconds, plain};
use pg_limiter::{Decision, InvalidCall};

/// `{"ok": true, "retry_after_ms": null, "value": 9}`; a denial adds `denied_by`.
pub(super) fn decision(decision: &Decision) -> String {
    let wait = decision.retry_after().or(decision.wait());
    let denied_by = || array(decision.denied_by().into_iter().map(string));
    object(
        [
            ("ok", (!decision.is_denied()).to_string()),
            ("retry_after_ms", optional(wait.map(|wait| milliseconds(wait.as_micros())))),
            ("value", plain(decision.remaining())),
        ]
        .into_iter()
        .chain(decision.is_denied().then(|| ("denied_by", denied_by()))),
    )
}

/// `{"error": "count_exceeds_capacity", "message": ".."}`.
pub(super) fn impossible(error: &InvalidCall) -> String {
    object([("error", string(error.code())), ("message", string(&error.to_string()))])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_names_are_escaped() {
        let line = impossible(&InvalidCall::UnknownLimit { limit: "a\u{9b}\n".to_owned() });
        assert!(line.starts_with(r#"{"error": "unknown_limit", "message": ""#), "{line}");
        assert!(line.contains(r"a\u009b\n") && !line.chars().any(char::is_control), "{line}");
    }
}
