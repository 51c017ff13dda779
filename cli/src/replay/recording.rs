//! The recording to replay: calls with their times, in the order of their lines.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use crate::error::CliError;
use crate::input;
use crate::plot::resolution;
use crate::replay::{Event, LogField, LogLine, Timed};
use pg_limiter::Call;
use pg_limiter::Op;

pub(super) enum Recording {
    Events(Vec<Event>),
    /// The time and the key of each request. Each limit is applied to all requests.
    Requests {
        limits: Vec<Arc<str>>,
        lines: Vec<(i64, Arc<str>)>,
    },
}

impl Recording {
    pub(super) fn events(path: &Path) -> Result<Self, CliError> {
        let mut events = Vec::new();
        each_line(path, |line| {
            let line = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8".to_owned())?;
            events.push(Event::parse(line)?);
            Ok(())
        })?;
        Ok(Self::Events(events))
    }

    pub(super) fn access_log(path: &Path, limits: &[String], key: LogField) -> Result<Self, CliError> {
        let mut lines = Vec::new();
        let mut keys: HashSet<Arc<str>> = HashSet::new();
        each_line(path, |line| {
            // Clients can put any bytes into a log.
            let line = String::from_utf8_lossy(line);
            let line = LogLine::parse(&line).map_err(|reason| format!("not a line of an access log: {reason}"))?;
            let field = line.field(key);
            let key = match keys.get(field) {
                Some(key) => Arc::clone(key),
                None => {
                    let key: Arc<str> = field.into();
                    keys.insert(Arc::clone(&key));
                    key
                }
            };
            lines.push((line.at_micros(), key));
            Ok(())
        })?;
        Ok(Self::Requests { limits: limits.iter().map(|name| name.as_str().into()).collect(), lines })
    }

    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Events(events) => events.len(),
            Self::Requests { lines, .. } => lines.len(),
        }
    }

    fn at(&self, place: usize) -> i64 {
        match self {
            Self::Events(events) => events[place].at,
            Self::Requests { lines, .. } => lines[place].0,
        }
    }

    /// The indexes of the lines in the order of time. Lines with the same time keep their order.
    pub(super) fn in_time_order(&self) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.len()).collect();
        places.sort_by_key(|place| self.at(*place));
        places
    }

    /// The first and the last time.
    pub(super) fn span(&self) -> Option<(i64, i64)> {
        let times = || (0..self.len()).map(|place| self.at(place));
        Some((times().min()?, times().max()?))
    }

    /// The resolution of the times: a second or less.
    pub(super) fn resolution(&self) -> i64 {
        resolution((0..self.len()).map(|place| self.at(place)))
    }

    /// The number of passes over the recording: an access log is replayed once for each limit, because each is applied alone.
    pub(super) const fn passes(&self) -> usize {
        match self {
            Self::Events(_) => 1,
            Self::Requests { limits, .. } => limits.len(),
        }
    }

    /// The calls of these lines, in this order.
    pub(super) fn calls(&self, pass: usize, places: &[usize]) -> impl Iterator<Item = Timed<usize>> {
        places.iter().map(move |place| {
            let (op, call) = match self {
                Self::Events(events) => (events[*place].op, events[*place].call.clone()),
                Self::Requests { limits, lines } => {
                    (Op::Limit, Call::from((Arc::clone(&limits[pass]), Arc::clone(&lines[*place].1))))
                }
            };
            Timed { at: self.at(*place), op, call, tag: *place }
        })
    }

    /// The keys that take tokens, by limit. Limits are in the order in which they are applied; limits of events are sorted by
    /// name.
    pub(super) fn buckets(&self) -> Vec<(Arc<str>, HashSet<Arc<str>>)> {
        match self {
            Self::Requests { limits, lines } => {
                let keys: HashSet<Arc<str>> = lines.iter().map(|(_, key)| Arc::clone(key)).collect();
                limits.iter().map(|limit| (Arc::clone(limit), keys.clone())).collect()
            }
            Self::Events(events) => {
                let mut buckets: BTreeMap<Arc<str>, HashSet<Arc<str>>> = BTreeMap::new();
                for item in events.iter().filter(|event| event.op == Op::Limit).flat_map(|event| event.call.items()) {
                    buckets.entry(item.limit_name().into()).or_default().insert(item.key().as_str().into());
                }
                buckets.into_iter().collect()
            }
        }
    }
}

/// Reads each line of a file, and skips blank lines. An invalid line ends the run with an error.
fn each_line(path: &Path, mut read: impl FnMut(&[u8]) -> Result<(), String>) -> Result<(), CliError> {
    let bytes = input::read(path)?;
    for (place, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii_end();
        if !line.is_empty() {
            read(line)
                .map_err(|reason| CliError::usage(format!("{}, line {}: {reason}", input::name(path), place + 1)))?;
        }
    }
    Ok(())
}
