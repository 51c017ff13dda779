//! Why a file has no lines that can be read, as seen in its beginning.

/// Why this is no text in UTF-8 with line breaks.
pub(crate) fn of_encoding(head: &[u8]) -> Option<String> {
    let utf16 = |order: &str| {
        Some(format!(
            "the file is in UTF-16: convert it with iconv -f UTF-16{order} -t UTF-8 FILE, and read the result"
        ))
    };
    match head {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return utf16(""),
        [first, 0, second, 0, ..] if *first != 0 && *second != 0 => return utf16("LE"),
        [0, first, 0, second, ..] if *first != 0 && *second != 0 => return utf16("BE"),
        _ => {}
    }
    let last = head.trim_ascii_end().len();
    let has = |byte| head[..last].contains(&byte);
    (has(b'\r') && !has(b'\n'))
        .then(|| "its lines end in CR alone: convert it with tr '\\r' '\\n' < FILE, and read the result".to_owned())
}

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
    fn encodings_are_seen_in_the_first_bytes() {
        let utf16: Vec<u8> = "{\"at\"".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let reversed: Vec<u8> = "{\"at\"".encode_utf16().flat_map(u16::to_be_bytes).collect();
        for (head, words) in [
            (&[&b"\xff\xfe"[..], &utf16].concat()[..], "iconv -f UTF-16 "),
            (&[&b"\xfe\xff"[..], &reversed].concat(), "iconv -f UTF-16 "),
            (&utf16, "iconv -f UTF-16LE"),
            (&reversed, "iconv -f UTF-16BE"),
            (b"{}\r{}\r", "tr '\\r' '\\n'"),
        ] {
            assert!(of_encoding(head).is_some_and(|cause| cause.contains(words)), "{words}");
        }
        for head in ["", "{}", "{}\r\n{}\r\n", "{}\r", "\u{feff}{}\n", "é\n"] {
            assert_eq!(of_encoding(head.as_bytes()), None, "{head:?}");
        }
    }

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
