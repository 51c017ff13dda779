//! A limits file, as TOML and as JSON: it is parsed or rejected. Parsed limits that are written and parsed again must be the
//! same.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use pg_limiter::{Limit, Limits};
use pg_limiter_fuzz::bounded;

fuzz_target!(|text: &str| {
    let readers = [Limits::from_toml as fn(&str) -> Result<Limits, _>, Limits::from_json];
    for read in readers {
        match bounded(text, read) {
            Ok(limits) => check(&limits),
            Err(error) => assert!(error.to_string().starts_with("limits file: ")),
        }
    }
});

fn check(limits: &Limits) {
    for (name, limit) in limits.iter() {
        assert!(!name.is_empty() && name.len() <= 255 && !name.contains('\0'), "{name:?}");
        assert!(limit.rate().is_normal() && limit.capacity().is_finite(), "{limit:?}");
        assert!(!limit.period().is_zero() && limit.start().is_none_or(|start| start < limit.period()), "{limit:?}");
        limit.warnings().iter().for_each(|warning| assert!(!warning.to_string().is_empty()));
    }
    let by_name: BTreeMap<&str, &Limit> = limits.iter().collect();
    let file = BTreeMap::from([("limits", by_name)]);
    let json = serde_json::to_string(&file).expect("JSON");
    assert_eq!(Limits::from_json(&json).as_ref(), Ok(limits), "{json}");
    let toml = toml::to_string(&file).expect("TOML");
    assert_eq!(Limits::from_toml(&toml).as_ref(), Ok(limits), "{toml}");
}
