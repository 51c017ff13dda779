use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::CliError;
use crate::lines::{BadLine, BadLines};
use crate::replay::Event;
use crate::replay::access_log::{LogFormat, LogKey, LogOptions, UnreadableLine};
use pg_limiter::{Call, Item, Kind, LeaseId, Limits, Op};

/// Parses the lines of a recording.
pub(super) enum Parser {
    Events,
    Requests(Box<Requests>),
}

/// How requests are read from an access log.
pub(super) struct Requests {
    format: LogFormat,
    key: LogKey,
    /// The name of the key, for messages.
    pub(super) key_name: String,
}

/// What a line has.
pub(super) enum Parsed {
    Event(Box<Event>),
    /// The time and the key of a request.
    Request(i64, Arc<str>),
}

/// The keys that were read, each of them once in memory.
#[derive(Default)]
pub(super) struct Keys {
    known: HashSet<Arc<str>>,
    /// The number of requests with the empty key.
    pub(super) empty: u64,
}

impl Parser {
    pub(super) fn requests(options: &LogOptions) -> Result<Self, CliError> {
        let (format, key) = options.read()?;
        Ok(Self::Requests(Box::new(Requests { format, key, key_name: options.key.clone() })))
    }

    pub(super) fn parse(&self, line: &[u8], keys: &mut Keys) -> Result<Parsed, UnreadableLine> {
        let unreadable = |reason| UnreadableLine { reason, other_format: None };
        match self {
            Self::Events => {
                let line = std::str::from_utf8(line).map_err(|_| unreadable("the line is not UTF-8".to_owned()))?;
                Event::parse(line).map(|event| Parsed::Event(Box::new(event))).map_err(unreadable)
            }
            Self::Requests(requests) => {
                // Clients can put any bytes into a log.
                let line: Cow<'_, str> = String::from_utf8_lossy(line);
                let line = requests.format.parse(&line)?;
                let key = requests.key.of(&line).map_err(unreadable)?.unwrap_or_default();
                Ok(Parsed::Request(line.at_micros(), keys.one(key)))
            }
        }
    }
}

impl Parsed {
    pub(super) fn at(&self) -> i64 {
        match self {
            Self::Event(event) => event.at,
            Self::Request(at, _) => *at,
        }
    }
}

impl Keys {
    fn one(&mut self, key: String) -> Arc<str> {
        self.empty += u64::from(key.is_empty());
        if let Some(known) = self.known.get(key.as_str()) {
            return Arc::clone(known);
        }
        let key: Arc<str> = key.into();
        self.known.insert(Arc::clone(&key));
        key
    }
}

/// The calls that took leases, by the names that the file gives to them.
pub(super) struct Leases<'l> {
    limits: &'l Limits,
    named: HashMap<String, Call>,
}

impl<'l> Leases<'l> {
    pub(super) fn new(limits: &'l Limits) -> Self {
        Self { limits, named: HashMap::new() }
    }

    /// Gives a call on a concurrency limit a lease, and a release or a renewal the call that it is for: the last one before it
    /// with that lease. Events must be in the order of time. `place`: that of the event's line.
    pub(super) fn name(&mut self, event: &mut Event, place: usize) -> Result<(), String> {
        if matches!(event.op, Op::Release | Op::Renew) {
            let name = event.lease.as_deref().unwrap_or_default();
            let call = self.named.get(name).ok_or_else(|| format!("no earlier call has the lease \"{name}\""))?;
            event.call = call.clone();
            return Ok(());
        }
        let has_slots =
            |item: &Item| self.limits.get(item.limit_name()).is_some_and(|limit| limit.kind() == Kind::Concurrency);
        if event.op == Op::Limit && (event.lease.is_some() || event.call.items().iter().any(has_slots)) {
            let id = i64::try_from(place).ok().and_then(|place| LeaseId::new(place + 2));
            event.call = event.call.clone().lease(id.unwrap_or_else(LeaseId::random));
            if let Some(name) = event.lease.clone() {
                self.named.insert(name, event.call.clone());
            }
        }
        Ok(())
    }
}

/// The faults of a recording that a pass over it has met, beside its calls.
pub(super) struct Faults(Mutex<State>);

struct State {
    lines: Unreadable,
    /// The error that has ended the pass.
    error: Option<CliError>,
}

/// How a pass treats lines that it cannot read.
pub(super) enum Unreadable {
    /// Counts lines, and ends the pass if there are too many.
    Count(BadLines),
    /// Keeps lines until they are taken.
    Keep(Vec<BadLine>),
    /// Leaves lines out: those of a file that was read before.
    LeaveOut,
}

impl Faults {
    pub(super) fn new(lines: Unreadable) -> Self {
        Self(Mutex::new(State { lines, error: None }))
    }

    /// Adds a line. `read`: the number of lines that were read, with this one.
    pub(super) fn add(&self, line: BadLine, read: u64) -> Result<(), CliError> {
        match &mut self.locked().lines {
            Unreadable::Count(lines) => lines.add(line, read),
            Unreadable::Keep(lines) => {
                lines.push(line);
                Ok(())
            }
            Unreadable::LeaveOut => Ok(()),
        }
    }

    /// Ends the pass.
    pub(super) fn end(&self, error: CliError) {
        self.locked().error = Some(error);
    }

    /// Returns the kept lines, and removes them. Returns the error that has ended the pass, if one has.
    pub(super) fn take(&self) -> Result<Vec<BadLine>, CliError> {
        let mut state = self.locked();
        match (state.error.take(), &mut state.lines) {
            (Some(error), _) => Err(error),
            (None, Unreadable::Keep(lines)) => Ok(std::mem::take(lines)),
            (None, _) => Ok(Vec::new()),
        }
    }

    /// The note on the lines that were counted, after all lines were read. Returns an error if there are too many.
    pub(super) fn note(&self, all: u64) -> Result<Option<String>, CliError> {
        match &self.locked().lines {
            Unreadable::Count(lines) => lines.check(all).map(|()| lines.note(all)),
            Unreadable::Keep(_) | Unreadable::LeaveOut => Ok(None),
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
