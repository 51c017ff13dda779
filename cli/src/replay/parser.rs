use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use crate::replay::Event;
use crate::replay::access_log::{LogFormat, LogKey, UnreadableLine};

/// Parses the lines of a recording.
pub(super) enum Parser {
    Events,
    Requests(Box<Requests>),
}

/// How requests are read from an access log.
pub(super) struct Requests {
    pub(super) format: LogFormat,
    pub(super) key: LogKey,
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
