//! Recorded calls, one per line: each is parsed or rejected. A parsed call that is written and parsed again must be the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pg_limiter::{Headroom, Item};
use pg_limiter_cli::Event;
use pg_limiter_fuzz::bounded;
use serde_json::json;

/// From 1800 to 2199, in microseconds since 1970.
const YEARS: std::ops::RangeInclusive<i64> = -5_364_662_400_000_000..=7_258_118_399_999_999;

fuzz_target!(|text: &str| {
    for line in text.lines() {
        match bounded(line, Event::parse) {
            Ok(event) => {
                assert!(YEARS.contains(&event.at), "{event:?}");
                let written = written(&event);
                assert!(!written.contains('\n'), "{written}");
                assert_eq!(Event::parse(&written).as_ref(), Ok(&event), "{written}");
            }
            Err(reason) => assert!(!reason.is_empty(), "{line}"),
        }
    }
});

/// With every field, and the time as a decimal number.
fn written(event: &Event) -> String {
    let part = |item: &Item| {
        // No event has another headroom.
        let leave = if let Headroom::Tokens(tokens) = item.headroom() { tokens } else { 0.0 };
        let (limit, key, count) = (item.limit_name(), item.key().as_str(), item.tokens());
        json!({"limit": limit, "key": key, "count": count, "leave": leave})
    };
    let mut line = json!({"at": event.at as f64 / 1000.0, "op": event.op.as_str()});
    if !event.call.items().is_empty() || event.lease.is_none() {
        line["reserve"] = event.call.reserves().into();
        line["all"] = event.call.items().iter().map(part).collect();
    }
    if let Some(lease) = &event.lease {
        line["lease"] = lease.as_str().into();
    }
    line.to_string()
}
