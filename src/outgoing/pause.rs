//! How long a third party asks clients to pause, in whole seconds, rounded up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

use crate::outgoing::log;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The fields of older versions of the draft.
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
/// The fields without a standard.
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// A reset from here on is a time since 1970: in seconds, and from 100 times that on in milliseconds.
const SINCE_1970: u64 = 1_000_000_000;

/// The response's fields that are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'r> {
    pub(super) headers: &'r HeaderMap,
    /// The time of this machine, for a response without its own.
    pub(super) now: SystemTime,
    /// Whether the members of `RateLimit` with a partition key are read.
    pub(super) partitions: bool,
    /// Whether `X-RateLimit-*` is read, and a reset may be a time since 1970.
    pub(super) x_ratelimit: bool,
}

impl Fields<'_> {
    /// Returns the value of `Retry-After`.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.longest(&RETRY_AFTER, |text| match Number::parse(text) {
            Some(seconds) => Some(seconds.up()),
            None => Some(self.until(httpdate::parse_http_date(text).ok()?)),
        })
    }

    /// Returns the time until the third party has tokens again, if it reports that none are left.
    pub(super) fn until_reset(&self) -> Option<Duration> {
        match self.ratelimit() {
            Quota::Empty(time) => Some(time),
            // The older fields describe the same quota.
            Quota::OfPartition => None,
            Quota::Unknown => self
                .older(&REMAINING, &RESET)
                .or_else(|| self.x_ratelimit.then(|| self.older(&X_REMAINING, &X_RESET)).flatten()),
        }
    }

    /// Reads a pair of fields: what is left, and when more arrives.
    fn older(&self, remaining: &HeaderName, reset: &HeaderName) -> Option<Duration> {
        let is_empty = self.values(remaining, Number::parse).into_iter().any(|left| left.whole == 0);
        is_empty.then(|| self.longest(reset, |text| self.reset(text))).flatten()
    }

    fn reset(&self, text: &str) -> Option<Duration> {
        let reset = Number::parse(text)?;
        if reset.whole < SINCE_1970 {
            return Some(reset.up());
        }
        let since_1970 =
            if reset.whole < 100 * SINCE_1970 { reset.up() } else { Duration::from_millis(reset.up().as_secs()) };
        self.x_ratelimit.then(|| UNIX_EPOCH.checked_add(since_1970).map_or(Duration::MAX, |reset| self.until(reset)))
    }

    /// Returns the time from the response's own date on, because clocks differ. Zero if it has passed.
    fn until(&self, time: SystemTime) -> Duration {
        let sent = self.headers.get(DATE).and_then(|sent| httpdate::parse_http_date(sent.to_str().ok()?).ok());
        let left = time.duration_since(sent.unwrap_or(self.now)).unwrap_or_default();
        Duration::from_secs(left.as_secs().saturating_add(u64::from(left.subsec_nanos() > 0)))
    }

    fn longest(&self, name: &HeaderName, read: impl Fn(&str) -> Option<Duration>) -> Option<Duration> {
        self.values(name, read).into_iter().max()
    }

    /// Reads the values of a field, of which there may be several, in one line or in more. Those that are not valid are left out.
    fn values<T>(&self, name: &HeaderName, read: impl Fn(&str) -> Option<T>) -> Vec<T> {
        let mut values = Vec::new();
        for line in self.headers.get_all(name) {
            let texts = line.to_str().map_or_else(|_| vec![""], split);
            let read: Vec<Option<T>> = texts.into_iter().map(&read).collect();
            if read.iter().any(Option::is_none) {
                log::not_valid(name, line);
            }
            values.extend(read.into_iter().flatten());
        }
        values
    }

    /// Reads the field `RateLimit`. Each line is on its own, because two servers may have written them.
    fn ratelimit(&self) -> Quota {
        self.headers.get_all(RATELIMIT).iter().map(|line| self.ratelimit_line(line)).max().unwrap_or(Quota::Unknown)
    }

    /// Reads a List of the present version of the draft, or a Dictionary of version 7.
    fn ratelimit_line(&self, line: &HeaderValue) -> Quota {
        let time = |item: &BareItem| {
            let time = Number::of(item).map(Number::up);
            if time.is_none() {
                log::not_valid(&RATELIMIT, line);
            }
            time
        };
        if let Ok(list) = Parser::new(line.as_bytes()).parse::<List>() {
            let quota = |member: &ListEntry| {
                let ListEntry::Item(item) = member else { return None };
                // A member without `t` says nothing about the time.
                let time = time(item.params.get("t").filter(|_| is_empty(item.params.get("r")))?)?;
                let counts = self.partitions || !item.params.contains_key("pk");
                Some(if counts { Quota::Empty(time) } else { Quota::OfPartition })
            };
            return list.iter().filter_map(quota).max().unwrap_or(Quota::Unknown);
        }
        let Ok(dictionary) = Parser::new(line.as_bytes()).parse::<Dictionary>() else {
            log::not_valid(&RATELIMIT, line);
            return Quota::Unknown;
        };
        let member = |name: &str| match dictionary.get(name)? {
            ListEntry::Item(item) => Some(&item.bare_item),
            ListEntry::InnerList(_) => None,
        };
        let reset = member("reset").filter(|_| is_empty(member("remaining")));
        reset.and_then(time).map_or(Quota::Unknown, Quota::Empty)
    }
}

/// The report of the field `RateLimit`. The longest time is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Quota {
    /// It reports nothing, or that something is left.
    Unknown,
    /// Nothing is left for a partition, to which other requests need not belong.
    OfPartition,
    /// Nothing is left for this time.
    Empty(Duration),
}

/// Splits a field at its commas, but not after the name of a day, which begins a date.
fn split(line: &str) -> Vec<&str> {
    let is_day =
        |text: &str| text.trim_ascii().bytes().all(|byte| byte.is_ascii_alphabetic()) && !text.trim_ascii().is_empty();
    let mut texts = Vec::new();
    let mut rest = Some(line);
    while let Some(line) = rest {
        let date = line.find(',').filter(|comma| is_day(&line[..*comma])).map_or(0, |comma| comma + 1);
        let end = line[date..].find(',').map(|comma| date + comma);
        texts.push(line[..end.unwrap_or(line.len())].trim_ascii());
        rest = end.map(|comma| &line[comma + 1..]);
    }
    if texts.iter().any(|text| !text.is_empty()) {
        texts.retain(|text| !text.is_empty()); // Empty members of a list are allowed.
    }
    texts
}

/// Whether less than one is left.
fn is_empty(remaining: Option<&BareItem>) -> bool {
    remaining.and_then(Number::of).is_some_and(|left| left.whole == 0)
}

/// A number that is not negative.
#[derive(Clone, Copy, Debug)]
struct Number {
    /// Its whole part. One that is too large for the type is as large as the type can express.
    whole: u64,
    has_fraction: bool,
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let mut digits = whole.bytes().chain(fraction.bytes()).peekable();
        digits.peek()?;
        digits.all(|byte| byte.is_ascii_digit()).then(|| Self {
            whole: if whole.is_empty() { 0 } else { whole.parse().unwrap_or(u64::MAX) },
            has_fraction: fraction.bytes().any(|digit| digit != b'0'),
        })
    }

    fn of(item: &BareItem) -> Option<Self> {
        let thousandths = match item {
            BareItem::Integer(number) => {
                return Some(Self { whole: i64::from(*number).try_into().ok()?, has_fraction: false });
            }
            BareItem::Decimal(number) => u64::try_from(i64::from(number.as_integer_scaled_1000())).ok()?,
            _ => return None,
        };
        Some(Self { whole: thousandths / 1000, has_fraction: thousandths % 1000 > 0 })
    }

    /// Returns this number of seconds, rounded up.
    fn up(self) -> Duration {
        Duration::from_secs(self.whole.saturating_add(u64::from(self.has_fraction)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lines = &'static [(&'static str, &'static str)];

    /// 30 s before the dates of the tests.
    const NOW: &str = "Sun, 06 Nov 1994 08:49:07 GMT";

    fn read(lines: &[(&str, &str)], reading: impl Fn(&Fields<'_>) -> Option<Duration>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().expect("a name");
            headers.append(name, value.parse().expect("a value"));
        }
        let now = httpdate::parse_http_date(NOW).expect("a date") - Duration::from_millis(300);
        reading(&Fields { headers: &headers, now, partitions: false, x_ratelimit: false }).map(|time| time.as_secs())
    }

    fn retry_after(values: &[&str]) -> Option<u64> {
        let lines: Vec<_> = values.iter().map(|value| ("retry-after", *value)).collect();
        read(&lines, |fields| fields.retry_after())
    }

    #[test]
    fn retry_after_is_read_as_servers_write_it() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let cases: [(&[&str], u64); 22] = [
            (&["30"], 30),
            (&["  007 "], 7),
            (&["0"], 0),
            (&["0.0"], 0),
            (&["2.0"], 2),
            (&["2."], 2),
            (&[".25"], 1),
            (&["299.997"], 300),
            (&["299.0000000000000000000000001"], 300),
            (&["99999999999999999999999999.5"], u64::MAX),
            (&["10", "30", "20"], 30),
            (&["10, 30,20"], 30),
            (&["10,,"], 10),
            (&[date], 31),
            (&["Sunday, 06-Nov-94 08:49:37 GMT"], 31),
            (&["Sun Nov  6 08:49:37 1994"], 31),
            (&["Sun, 06 Nov 1994 08:48:37 GMT"], 0),
            (&["Thu, 01 Jan 1970 00:00:00 GMT"], 0),
            (&["5, Sun, 06 Nov 1994 08:49:37 GMT, 7"], 31),
            (&["Sun, 06 Nov 1994 08:49:37 GMT, Sunday, 06-Nov-94 08:59:37 GMT"], 631),
            (&["soon", "5"], 5),
            (&["5; 3, 4"], 4),
        ];
        for (values, seconds) in cases {
            assert_eq!(retry_after(values), Some(seconds), "{values:?}");
        }
        // The response's own date comes first.
        let dated = [("retry-after", date), ("date", "Sun, 06 Nov 1994 08:49:27 GMT")];
        assert_eq!(read(&dated, |fields| fields.retry_after()), Some(10));
        for value in ["", ",", ".", "-1", "+5", "1e3", "0x10", "NaN", "inf", "5s", "1.2.3", "Sun", "Sun, 06 Nov 1994"] {
            assert_eq!(retry_after(&[value]), None, "{value:?}");
        }
    }

    #[test]
    fn an_empty_quota_is_read_as_servers_write_it() {
        let cases: [(Lines, Option<u64>); 20] = [
            (&[("ratelimit", "\"a\";r=0;t=18.001")], Some(19)),
            (&[("ratelimit", "\"a\";r=0.5;t=18.0")], Some(18)),
            (&[("ratelimit", "\"a\";r=0;t=0")], Some(0)),
            (&[("ratelimit", "\"a\";r=1;t=18")], None),
            (&[("ratelimit", "\"a\";r=0;t=5, \"b\";r=0;t=9"), ("ratelimit", "\"c\";r=0;t=7")], Some(9)),
            (&[("ratelimit", "\"a\";r=0;t=5, \"a\";r=0;t=9;pk=:AA==:")], Some(5)),
            (&[("ratelimit", "\"a\";r=0;t=9;pk=:AA==:")], None),
            (&[("ratelimit", "\"a\";r=0;t=9;pk=:AA==:"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "9")], None),
            (&[("ratelimit", "\"a\";r=0"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "9")], Some(9)),
            (&[("ratelimit", "\"a\";r=0;t=-5, \"a\";r=0;t=8")], Some(8)),
            (&[("ratelimit", "\"a"), ("ratelimit", "\"a\";r=0;t=9")], Some(9)),
            (&[("ratelimit", "limit=5, remaining=0, reset=17.2")], Some(18)),
            (&[("ratelimit", "limit=5, remaining=0, reset=17"), ("ratelimit", "remaining=3, reset=5")], Some(17)),
            (&[("ratelimit-remaining", "0"), ("ratelimit-reset", "17.2")], Some(18)),
            (&[("ratelimit-remaining", "0.0"), ("ratelimit-reset", "17")], Some(17)),
            (
                &[
                    ("ratelimit-remaining", "3"),
                    ("ratelimit-remaining", "0"),
                    ("ratelimit-reset", "17"),
                    ("ratelimit-reset", "12, 19"),
                ],
                Some(19),
            ),
            (&[("ratelimit-remaining", "1"), ("ratelimit-reset", "17")], None),
            (&[("ratelimit-remaining", "0"), ("ratelimit-reset", "784111777")], Some(784_111_777)),
            (&[("ratelimit-remaining", "0"), ("ratelimit-reset", "1800000000")], None),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "17")], None),
        ];
        for (lines, seconds) in cases {
            assert_eq!(read(lines, |fields| fields.until_reset()), seconds, "{lines:?}");
        }
        let partitions = |fields: &Fields<'_>| Fields { partitions: true, ..*fields }.until_reset();
        let lines = [("ratelimit", "\"a\";r=0;t=5, \"a\";r=0;t=9;pk=:AA==:, \"a\";r=3;t=99;pk=:AB==:")];
        assert_eq!(read(&lines, partitions), Some(9));
    }

    #[test]
    fn x_ratelimit_is_read_as_a_time_or_as_seconds() {
        let cases: [(Lines, Option<u64>); 8] = [
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "17.2")], Some(18)),
            (&[("x-ratelimit-remaining", "2"), ("x-ratelimit-reset", "17")], None),
            (&[("x-ratelimit-remaining", "0")], None),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225660")], Some(60)),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225660.5")], Some(61)),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225660250")], Some(61)),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225540")], Some(0)),
            (&[("ratelimit-remaining", "0"), ("ratelimit-reset", "1767225660")], Some(60)),
        ];
        for (lines, seconds) in cases {
            let mut lines = lines.to_vec();
            lines.push(("date", "Thu, 01 Jan 2026 00:00:00 GMT"));
            let x_ratelimit = |fields: &Fields<'_>| Fields { x_ratelimit: true, ..*fields }.until_reset();
            assert_eq!(read(&lines, x_ratelimit), seconds, "{lines:?}");
        }
        let far = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "99999999999999999999999")];
        let x_ratelimit = |fields: &Fields<'_>| Fields { x_ratelimit: true, ..*fields }.until_reset();
        assert!(read(&far, x_ratelimit).is_some_and(|seconds| seconds > 1_000_000_000));
    }
}
