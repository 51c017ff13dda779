//! Parses recorded calls, one JSON object per line. It does no I/O, and no input makes it panic.

use std::collections::HashMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use pg_limiter::{Call, Item, Kind, LeaseId, Limits, Op};

/// The valid times, in microseconds: the years 1800 to 2199. The range rejects times in units other than milliseconds.
pub(crate) const YEARS: std::ops::RangeInclusive<i64> = -5_364_662_400_000_000..=7_258_118_399_999_999;

/// A recorded call: one line of a file of events.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The time of the call, in microseconds since the Unix epoch.
    pub at: i64,
    /// The operation of the call.
    pub op: Op,
    /// Without items for a release or a renewal, which name only the lease.
    pub call: Call,
    /// The name that the file gives to the lease.
    pub lease: Option<String>,
}

impl Event {
    /// Parses one line: `{"at": 1767225600123, "op": "limit", "limit": "send_message", "key": "u1", "count": 1}`.
    ///
    /// # Errors
    /// Returns the reason if the line is not an event.
    pub fn parse(line: &str) -> Result<Self, String> {
        if !line.trim_start().starts_with('{') {
            let cause =
                serde_json::from_str::<IgnoredAny>(line).err().map(|error| format!(": {}", json_reason(&error)));
            return Err(format!("the line is not a JSON object{}", cause.unwrap_or_default()));
        }
        let line: Line = serde_json::from_str(line).map_err(|error| json_reason(&error))?;
        let (at, op, name) = (micros(&line.at)?, line.op, line.op.as_str());
        let by_lease = matches!(op, Op::Release | Op::Renew);
        let has_parts = line.key.is_some() || line.count.is_some() || line.leave.is_some();
        match (&line.limit, &line.all) {
            (None, None) if by_lease && (has_parts || line.reserve) => Err(format!("a {name} names only its `lease`")),
            (None, None) if by_lease && line.lease.is_none() => {
                Err(format!("a {name} needs the `lease` that it is for"))
            }
            (None, None) if by_lease => Ok(()),
            _ if by_lease => Err(format!("a {name} names only its `lease`, no limit")),
            (None, Some(_)) if has_parts => {
                Err("`key`, `count` and `leave` belong in the items of `all`, not beside it".to_owned())
            }
            (Some(_), Some(_)) => Err("both `limit` and `all` are given".to_owned()),
            (None, None) => Err("neither `limit` nor `all` is given".to_owned()),
            _ if line.lease.is_some() && op != Op::Limit => Err(format!("a {name} takes no `lease`")),
            _ => Ok(()),
        }?;
        let (key, leave) = (line.key.unwrap_or_default(), line.leave.unwrap_or_default());
        let one = line.limit.map(|limit| Part { limit, key, count: line.count, leave });
        let parts = line.all.unwrap_or_else(|| one.into_iter().collect());
        let item = |part: Part| Item::new(part.limit, part.key).count(part.count.unwrap_or(1.0)).leave(part.leave);
        let call = Call::from(parts.into_iter().map(item).collect::<Vec<_>>());
        Ok(Self { at, op, call: if line.reserve { call.reserve() } else { call }, lease: line.lease })
    }
}

/// The calls that take leases, by the names that the file gives to them.
#[derive(Default)]
pub(super) struct Leases {
    last: HashMap<String, Call>,
    /// Those that hold their leases. A call that is denied takes no name.
    held: HashMap<String, Call>,
    /// The calls since the last decision that may take a name, by this name: their number since its last release.
    undecided: HashMap<String, usize>,
}

impl Leases {
    /// Whether the lease of this event depends on calls that are not decided.
    pub(super) fn is_open(&self, event: &Event) -> bool {
        let name = event.lease.as_deref().filter(|_| matches!(event.op, Op::Release | Op::Renew));
        name.is_some_and(|name| {
            let undecided = self.undecided.get(name).copied().unwrap_or_default();
            undecided > usize::from(!self.held.contains_key(name))
        })
    }

    /// The call of the next event, in the order of time. A call on a concurrency limit gets a lease; that of a release or a renewal
    /// is the one that it is for: the one that holds this lease, or else the last one with it. `place`: that of the event's line.
    pub(super) fn call_of(&mut self, event: &Event, place: usize, limits: &Limits) -> Result<Call, String> {
        let Event { op, call, lease, .. } = event;
        if let (Op::Release | Op::Renew, Some(name)) = (op, lease) {
            let call = self.held.get(name).or_else(|| self.last.get(name)).cloned();
            if *op == Op::Release {
                self.held.remove(name);
                self.undecided.remove(name);
            }
            return call.ok_or_else(|| format!("no earlier call has the lease \"{name}\""));
        }
        let has_slots =
            |item: &Item| limits.get(item.limit_name()).is_some_and(|limit| limit.kind() == Kind::Concurrency);
        if *op != Op::Limit || lease.is_none() && !call.items().iter().any(has_slots) {
            return Ok(call.clone());
        }
        let id = i64::try_from(place).ok().and_then(|place| LeaseId::new(place + 2));
        let call = call.clone().lease(id.unwrap_or_else(LeaseId::random));
        if let Some(name) = lease {
            self.last.insert(name.clone(), call.clone());
            *self.undecided.entry(name.clone()).or_default() += 1;
        }
        Ok(call)
    }

    /// Ends the calls until now: they are decided, or nothing is.
    pub(super) fn decided(&mut self) {
        self.undecided.clear();
    }

    /// Notes a decision, in the order of the calls.
    pub(super) fn note(&mut self, op: Op, name: &str, call: &Call, is_admitted: bool) {
        match op {
            Op::Limit if is_admitted => drop(self.held.insert(name.to_owned(), call.clone())),
            Op::Release => drop(self.held.remove(name)),
            _ => {}
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at: serde_json::Number,
    #[serde(default = "limit", with = "LineOp")]
    op: Op,
    #[serde(default, deserialize_with = "given")]
    limit: Option<String>,
    #[serde(default, deserialize_with = "given")]
    key: Option<String>,
    #[serde(default, deserialize_with = "given")]
    count: Option<f64>,
    #[serde(default, deserialize_with = "given")]
    leave: Option<f64>,
    #[serde(default)]
    reserve: bool,
    #[serde(default, deserialize_with = "given")]
    all: Option<Vec<Part>>,
    #[serde(default, deserialize_with = "given")]
    lease: Option<String>,
}

#[derive(Deserialize)]
#[serde(remote = "Op", rename_all = "snake_case")]
enum LineOp {
    Limit,
    Check,
    Reset,
    Release,
    Renew,
}

const fn limit() -> Op {
    Op::Limit
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with a `limit`")]
struct Part {
    limit: String,
    #[serde(default)]
    key: String,
    #[serde(default, deserialize_with = "given")]
    count: Option<f64>,
    #[serde(default)]
    leave: f64,
}

/// A field that may be omitted, but not null: a null key would put unrelated callers into one bucket.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

fn micros(at: &serde_json::Number) -> Result<i64, String> {
    // The cast saturates, so the range check rejects numbers that are too large. Those in the range are exact.
    let micros = at.as_f64().map(|millis| (millis * 1000.0).round() as i64);
    let no_time = || format!("`at` is {at}, which is not a time in milliseconds between the years 1800 and 2199");
    micros.filter(|micros| YEARS.contains(micros)).ok_or_else(no_time)
}

/// Removes the line number from the message, because the caller adds the line number of the file.
pub(super) fn json_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(text) if error.column() > 0 => format!("{text} (column {})", error.column()),
        Some(text) => text.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> String {
        Event::parse(line).unwrap_err()
    }

    #[test]
    fn every_field_is_parsed_and_has_a_default() {
        let both = r#"{"at": 0.0015, "op": "check", "reserve": true, "all": [{"limit": "a", "key": "k", "count": 0.5}, {"limit": "b"}]}"#;
        let check = Call::from([Item::new("a", "k").count(0.5), Item::global("b")]).reserve();
        let headroom = r#"{"at": 0, "limit": "a", "key": "k", "count": 2, "leave": 0.5}"#;
        let headrooms = Call::from([Item::global("a").leave(3), Item::global("b")]);
        let odd = r#"{"at": -1.5, "op": "reset", "reserve": true, "all": [{"limit": "a\"\n", "key": "k\u007fé", "count": 0.30000000000000004, "leave": 0.7}, {"limit": "b", "count": -1e-300}]}"#;
        let odd_items = [Item::new("a\"\n", "k\u{7f}é").count(0.1 + 0.2).leave(0.7), Item::global("b").count(-1e-300)];
        let released = Call::from(Vec::<Item>::new());
        for (line, at, op, call, lease) in [
            (r#"{"at": 1767225600123, "limit": "a"}"#, 1_767_225_600_123_000, Op::Limit, ("a", "").into(), None),
            (both, 2, Op::Check, check, None),
            (headroom, 0, Op::Limit, Item::new("a", "k").count(2).leave(0.5).into(), None),
            (r#"{"at": 0, "all": [{"limit": "a", "leave": 3}, {"limit": "b"}]}"#, 0, Op::Limit, headrooms, None),
            (odd, -1500, Op::Reset, Call::from(odd_items).reserve(), None),
            (r#"{"at": 0, "limit": "a", "key": "k", "lease": "l\n"}"#, 0, Op::Limit, ("a", "k").into(), Some("l\n")),
            (r#"{"at": 5.0, "op": "release", "lease": "l"}"#, 5000, Op::Release, released, Some("l")),
        ] {
            assert_eq!(Event::parse(line), Ok(Event { at, op, call, lease: lease.map(str::to_owned) }));
        }
        for (at, micros) in [
            ("1767225600123.4567", 1_767_225_600_123_457),
            ("1767225600123.456", 1_767_225_600_123_456),
            ("-1.5", -1500),
            ("-0.001", -1),
            ("0.001", 1),
            ("1e3", 1_000_000),
        ] {
            assert_eq!(Event::parse(&format!(r#"{{"at": {at}, "limit": "a"}}"#)).unwrap().at, micros);
        }
    }

    #[test]
    fn errors_name_the_invalid_field() {
        for (line, begin) in [
            (r#"{"at": 1, "limit": "a", "kee": "x"}"#, "unknown field `kee`, expected one of"),
            (r#"{"at": 1, "limit": "a", "key": 7}"#, "invalid type: integer `7`"),
            (r#"{"at": 1, "limit": "a", "key": null}"#, "invalid type: null"),
            (r#"{"at": 1, "limit": "a", "leave": null}"#, "invalid type: null"),
            (r#"{"at": 1, "limit": "a", "op": "peek"}"#, "unknown variant `peek`"),
            (r#"{"at": 1, "limit": "a", "limit": "b"}"#, "duplicate field `limit`"),
            (r#"{"at": 1, "all": [{"limit": "a", "count": 1, "count": 2}]}"#, "duplicate field `count`"),
            (r#"{"at": 1, "all": [], "key": "a"}"#, "`key`, `count` and `leave` belong in the items"),
            (r#"{"at": 1, "all": [], "leave": 1}"#, "`key`, `count` and `leave` belong in the items"),
        ] {
            assert!(refusal(line).starts_with(begin), "{}", refusal(line));
        }
        let no_time = "`at` is 1767225600123000, which is not a time in milliseconds between the years 1800 and 2199";
        for (line, reason) in [
            (r#"{"at": 1767225600123000, "limit": "a"}"#, no_time),
            (r#"{"at": 1}"#, "neither `limit` nor `all` is given"),
            (r#"{"at": 1, "limit": "a", "all": []}"#, "both `limit` and `all` are given"),
            (r#"{"at": 1, "op": "renew"}"#, "a renew needs the `lease` that it is for"),
            (r#"{"at": 1, "op": "release", "lease": "l", "key": "k"}"#, "a release names only its `lease`"),
            (r#"{"at": 1, "op": "release", "lease": "l", "limit": "a"}"#, "a release names only its `lease`, no limit"),
            (r#"{"at": 1, "op": "check", "limit": "a", "lease": "l"}"#, "a check takes no `lease`"),
        ] {
            assert_eq!(refusal(line), reason);
        }
        for line in ["", "7", "null", "[]", "{", "\u{0}", "{\"at\": 1e999, \"limit\": \"a\"}", &"[".repeat(9999)] {
            assert!(!refusal(line).contains(" at line "), "{line}");
        }
    }
}
