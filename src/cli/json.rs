//! Decisions as JSON, as the contract of replays writes them.

use crate::cli::text::{milliseconds, plain};
use crate::{Decision, InvalidCall};

/// `{"ok": true, "retry_after_ms": null, "value": 9}`; a denial adds `denied_by`.
pub(super) fn decision(decision: &Decision) -> String {
    let ok = !decision.is_denied();
    let wait = decision.retry_after().map_or_else(|| "null".to_owned(), |wait| milliseconds(wait.as_micros()));
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

fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
