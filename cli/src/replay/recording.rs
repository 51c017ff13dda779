//! The recording to replay: calls with their times, in the order of their lines.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use crate::error::CliError;
use crate::input;
use crate::plot::resolution;
use crate::replay::{Event, LogField, LogLine, Timed};
use pg_limiter::{Call, Item, Kind, LeaseId, Limits, Op};

pub(super) enum Recording {
    Events(Vec<Event>),
    /// The time and the key of each request. Each limit is applied to all requests.
    Requests {
        limits: Vec<Arc<str>>,
        lines: Vec<(i64, Arc<str>)>,
    },
}

impl Recording {
    pub(super) fn events(path: &Path, limits: &Limits) -> Result<Self, CliError> {
        let (bytes, name) = (input::read(path)?, input::name(path));
        let mut events = Vec::new();
        let mut numbers = Vec::new();
        each_line(&bytes, &name, |number, line| {
            let line = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8".to_owned())?;
            events.push(Event::parse(line)?);
            numbers.push(number);
            Ok(())
        })?;
        let mut recording = Self::Events(events);
        let order = recording.in_time_order();
        if let Self::Events(events) = &mut recording {
            name_leases(events, &order, limits)
                .map_err(|(place, reason)| invalid_line(&name, numbers[place], &reason))?;
        }
        Ok(recording)
    }

    /// `name`: that of the log, for messages.
    pub(super) fn access_log(bytes: &[u8], name: &str, limits: &[String], key: LogField) -> Result<Self, CliError> {
        let mut lines = Vec::new();
        let mut keys: HashSet<Arc<str>> = HashSet::new();
        each_line(bytes, name, |_, line| {
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

/// Gives each call on a concurrency limit a lease, and each release and renewal the call that it is for: the last one before it
/// with that lease. Otherwise returns the place of the event, and the reason.
fn name_leases(events: &mut [Event], order: &[usize], limits: &Limits) -> Result<(), (usize, String)> {
    let mut named: HashMap<String, Call> = HashMap::new();
    for place in order {
        let event = &mut events[*place];
        if matches!(event.op, Op::Release | Op::Renew) {
            let name = event.lease.clone().unwrap_or_default();
            let Some(call) = named.get(&name) else {
                return Err((*place, format!("no earlier call has the lease \"{name}\"")));
            };
            event.call = call.clone();
            continue;
        }
        let has_slots =
            |item: &Item| limits.get(item.limit_name()).is_some_and(|limit| limit.kind() == Kind::Concurrency);
        if event.op == Op::Limit && (event.lease.is_some() || event.call.items().iter().any(has_slots)) {
            let id = i64::try_from(*place).ok().and_then(|place| LeaseId::new(place + 2));
            event.call = event.call.clone().lease(id.unwrap_or_else(LeaseId::random));
            if let Some(name) = event.lease.clone() {
                named.insert(name, event.call.clone());
            }
        }
    }
    Ok(())
}

fn invalid_line(name: &str, number: usize, reason: &str) -> CliError {
    CliError::usage(format!("{name}, line {number}: {reason}"))
}

/// Reads each line with its number, and skips blank lines. An invalid line ends the run with an error.
fn each_line(
    bytes: &[u8],
    name: &str,
    mut read: impl FnMut(usize, &[u8]) -> Result<(), String>,
) -> Result<(), CliError> {
    for (place, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii_end();
        if !line.is_empty() {
            read(place + 1, line).map_err(|reason| invalid_line(name, place + 1, &reason))?;
        }
    }
    Ok(())
}
