//! What is replayed: calls with their times, in the order of their lines.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use crate::Call;
use crate::call::Op;
use crate::cli::error::CliError;
use crate::cli::input;
use crate::cli::replay::{Event, LogField, LogLine};

pub(super) enum Recording {
    Events(Vec<Event>),
    /// One limit, and a request a line: its time and its key.
    Requests {
        limit: Arc<str>,
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

    pub(super) fn access_log(path: &Path, limit: &str, key: LogField) -> Result<Self, CliError> {
        let mut lines = Vec::new();
        let mut keys: HashSet<Arc<str>> = HashSet::new();
        each_line(path, |line| {
            // Whatever clients send ends up in a log.
            let line = String::from_utf8_lossy(line);
            let line = LogLine::parse(&line).map_err(|reason| format!("no line of an access log: {reason}"))?;
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
        Ok(Self::Requests { limit: limit.into(), lines })
    }

    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Events(events) => events.len(),
            Self::Requests { lines, .. } => lines.len(),
        }
    }

    pub(super) fn at(&self, place: usize) -> i64 {
        match self {
            Self::Events(events) => events[place].at,
            Self::Requests { lines, .. } => lines[place].0,
        }
    }

    pub(super) fn call(&self, place: usize) -> (Op, Call) {
        match self {
            Self::Events(events) => (events[place].op, events[place].call.clone()),
            Self::Requests { limit, lines } => {
                (Op::Limit, Call::from((Arc::clone(limit), Arc::clone(&lines[place].1))))
            }
        }
    }

    /// The places in the order of time; at the same time, in that of the lines.
    pub(super) fn in_time_order(&self) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.len()).collect();
        places.sort_by_key(|place| self.at(*place));
        places
    }
}

/// Blank lines are passed over. What is no line of its kind stops the run.
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
