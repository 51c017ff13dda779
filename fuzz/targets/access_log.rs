//! Lines of an access log: each is parsed or rejected. A parsed line that is written and parsed again must be the same.
#![no_main]

use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use pg_limiter_cli::{LogFormat, LogLine};
use pg_limiter_fuzz::bounded;

const FIELDS: [&str; 8] = ["remote_addr", "path", "uri", "user", "method", "status", "user_agent", "referer"];

fuzz_target!(|data: &[u8]| {
    let format = LogFormat::default();
    // The formats from which the reason for a line is guessed are made once, and not for each line.
    assert!(format.parse("host.example").is_err());
    // Split into lines as the tool does.
    for line in data.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line.trim_ascii_end());
        match bounded(&*line, |line: &str| format.parse(line).map(|read| (read.at, written(&read)))) {
            Ok((at, written)) => {
                let (read, again) = (format.parse(&line).expect("the same"), format.parse(&written));
                let again = again.unwrap_or_else(|reason| panic!("{written}: {reason:?}"));
                assert_eq!(again.at, at, "{written}");
                for field in FIELDS {
                    assert_eq!(value(&again, field), value(&read, field), "{field} of {written}");
                }
            }
            Err(unreadable) => assert!(!unreadable.reason.is_empty(), "{line}"),
        }
    }
});

fn value(line: &LogLine<'_>, field: &str) -> String {
    line.field(field).unwrap_or_default().to_owned()
}

fn written(line: &LogLine<'_>) -> String {
    let time = Timestamp::from_microsecond(line.at).expect("a time");
    let absent = |field| Some(value(line, field)).filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""));
    let (method, uri) = (value(line, "method"), value(line, "uri"));
    // Without a method, as if a client speaks TLS. A blank after a quote might be the end of another value.
    let is_word = method.is_empty() && !uri.contains(' ');
    let request = if is_word { uri } else { format!("{method} {uri} HTTP/1.1") };
    format!(
        "{} - {} [{}] {} {} - {} {}",
        value(line, "remote_addr"),
        absent("user"),
        time.strftime("%d/%b/%Y:%H:%M:%S +0000"),
        quoted(&request),
        absent("status"),
        quoted(&absent("referer")),
        quoted(&absent("user_agent")),
    )
}
