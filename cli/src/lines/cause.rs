//! Why a file has no lines that can be read, as seen in its beginning.

/// Why the beginning of a text is no record on a line of its own: an event or, otherwise, a request of an access log.
pub(crate) fn of_record(head: &str, is_event: bool) -> Option<String> {
    let record = if is_event { "an event" } else { "a request" };
    let text = head.trim_start();
    let first = text.lines().next().unwrap_or_default().trim_end();
    if text.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with(['{', ']'])) {
        return Some(format!(
            "the file is one JSON array, and {record} is one line each: convert it with jq -c '.[]' FILE"
        ));
    }
    if first == "{" {
        return Some(format!(
            "its JSON objects have several lines, and {record} is one line each: convert it with jq -c . FILE"
        ));
    }
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let item = first.strip_prefix("- ").unwrap_or(first);
    let is_pair = item
        .split_once(':')
        .is_some_and(|(name, value)| is_name(name.trim_matches('"')) && (value.is_empty() || value.starts_with(' ')));
    (is_event && (first == "---" || first.starts_with("%YAML") || is_pair)).then(|| {
        format!(
            "the file is YAML, and {record} is one JSON object on a line: convert it with yq -o=json -I=0 '.[]' FILE"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_forms_of_records_are_named() {
        for (head, words) in [
            ("[{\"at\": 1}]", "JSON array"),
            ("\n[\n  {\n", "JSON array"),
            ("[]", "JSON array"),
            ("{\n  \"at\": 1\n}", "several lines"),
            ("---\nat: 1\n", "YAML"),
            ("- at: 1\n  limit: a\n", "YAML"),
            ("at: 1\n", "YAML"),
            ("events:\n  - at: 1\n", "YAML"),
        ] {
            assert!(of_record(head, true).is_some_and(|cause| cause.contains(words)), "{head:?}");
        }
        for head in
            ["", "{\"at\": 1}\n", "::1 - - [", "example.com:80 ::1 - -", "[17/May/2015:10:05:03 +0000] ::1", "hello"]
        {
            assert_eq!(of_record(head, true), None, "{head:?}");
        }
    }
}
