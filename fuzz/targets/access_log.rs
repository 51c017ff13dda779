//! Lines of an access log: each is parsed or rejected. A parsed line that is written and parsed again must be the same.
#![no_main]

use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use pg_limiter_cli::{LogField, LogLine};
use pg_limiter_fuzz::bounded;

const FIELDS: [LogField; 8] = [
    LogField::RemoteAddr,
    LogField::Path,
    LogField::Uri,
    LogField::User,
    LogField::Method,
    LogField::Status,
    LogField::UserAgent,
    LogField::Referer,
];

fuzz_target!(|data: &[u8]| {
    // Split into lines as the tool does.
    for line in data.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line.trim_ascii_end());
        match bounded(&*line, |line: &str| LogLine::parse(line).map(|read| (read.at_micros(), written(&read)))) {
            Ok((at, written)) => {
                let (read, again) = (LogLine::parse(&line).expect("the same"), LogLine::parse(&written));
                let again = again.unwrap_or_else(|reason| panic!("{written}: {reason}"));
                assert_eq!(again.at_micros(), at, "{written}");
                for field in FIELDS {
                    assert_eq!(again.field(field), read.field(field), "{field:?} of {written}");
                }
            }
            Err(reason) => assert!(!reason.is_empty(), "{line}"),
        }
    }
});

fn written(line: &LogLine<'_>) -> String {
    let time = Timestamp::from_microsecond(line.at_micros()).expect("a time");
    let absent = |field| Some(line.field(field)).filter(|text| !text.is_empty()).unwrap_or("-");
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""));
    format!(
        "{} - {} [{}] {} {} - {} {}",
        line.field(LogField::RemoteAddr),
        absent(LogField::User),
        time.strftime("%d/%b/%Y:%H:%M:%S +0000"),
        quoted(&format!("{} {} HTTP/1.1", line.field(LogField::Method), line.field(LogField::Uri))),
        line.field(LogField::Status),
        quoted(absent(LogField::Referer)),
        quoted(absent(LogField::UserAgent)),
    )
}
