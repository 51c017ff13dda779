//! Recorded calls, one per line: each is parsed or rejected. A parsed call that is written and parsed again must be the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_limiter_cli::Event;
use pg_limiter_fuzz::bounded;

/// From 1800 to 2199, in microseconds since 1970.
const YEARS: std::ops::RangeInclusive<i64> = -5_364_662_400_000_000..=7_258_118_399_999_999;

fuzz_target!(|text: &str| {
    for line in text.lines() {
        match bounded(line, Event::parse) {
            Ok(event) => {
                assert!(YEARS.contains(&event.at_micros()), "{event:?}");
                let written = event.to_line();
                assert!(!written.contains('\n'), "{written}");
                assert_eq!(Event::parse(&written).as_ref(), Ok(&event), "{written}");
            }
            Err(reason) => assert!(!reason.is_empty(), "{line}"),
        }
    }
});
