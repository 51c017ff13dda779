//! Prints values as JSON on one line, in the style of the decisions that `replay` prints: `{"ok": true, "value": 9}`.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Value, json};

use crate::text::{is_plain, plain};
use pg_limiter::{Decision, InvalidCall};

/// `{"ok": true, "retry_after_ms": null, "value": 9}`; a denial adds `denied_by`.
pub(super) fn decision(decision: &Decision) -> Value {
    let wait = decision.retry_after().or(decision.wait());
    let mut object = json!({
        "ok": !decision.is_denied(),
        "retry_after_ms": wait.map(milliseconds),
        "value": decision.remaining(),
    });
    if decision.is_denied() {
        object["denied_by"] = json!(decision.denied_by());
    }
    object
}

/// `{"error": "count_exceeds_capacity", "message": ".."}`.
pub(super) fn impossible(error: &InvalidCall) -> String {
    line(&json!({"error": error.code(), "message": error.to_string()}))
}

/// Formats the value on one line. The members of a `json!` object keep their order.
pub(super) fn line(value: &impl Serialize) -> String {
    let mut text = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut text, OneLine));
    debug_assert!(written.is_ok(), "only keys that are no strings and lossy maps fail: {written:?}");
    String::from_utf8_lossy(&text).into_owned()
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

/// With spaces, with numbers as in other output, and with escapes for what controls a terminal or is invisible.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(plain(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let is_hidden = |c: char| !is_plain(c);
        for part in fragment.split_inclusive(is_hidden) {
            let text = part.trim_end_matches(is_hidden);
            writer.write_all(text.as_bytes())?;
            part[text.len()..].encode_utf16().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?;
        }
        Ok(())
    }

    fn write_raw_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        self.write_string_fragment(writer, fragment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_names_are_escaped() {
        let line = impossible(&InvalidCall::UnknownLimit { limit: "a\u{9b}\n".to_owned() });
        assert!(line.starts_with(r#"{"error": "unknown_limit", "message": ""#), "{line}");
        assert!(line.contains(r"a\u009b\n") && !line.chars().any(char::is_control), "{line}");
        let key = "\u{202e}\u{2028}\u{e0041}é";
        assert_eq!(super::line(&json!(key)), r#""\u202e\u2028\udb40\udc41é""#);
        assert_eq!(serde_json::from_str::<Value>(&super::line(&json!(key))).unwrap(), json!(key));
    }

    #[test]
    fn numbers_have_no_exponent_and_objects_keep_their_order() {
        let numbers = json!({"z": 9.0, "a": [1e21, -0.0, 5999.5, 0.1 + 0.2, f64::NAN], "m": milliseconds(Duration::from_micros(5))});
        let expected = r#"{"z": 9, "a": [1000000000000000000000, 0, 5999.5, 0.30000000000000004, null], "m": 0.005}"#;
        assert_eq!(line(&numbers), expected);
    }
}
