use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::error::CliError;
use crate::lines::{BadLine, Line, Lines};
use crate::progress::Progress;
use crate::replay::Timed;
use crate::replay::faults::Faults;
use crate::replay::leases::Leases;
use crate::replay::parser::{Keys, Parsed, Parser};
use crate::text::grouped;
use pg_limiter::{Call, Limits, Op};

/// One pass over a recording: its calls in the order of time, each with the place of its line. Lines are sorted within a window
/// of so many lines, so that a file may be larger than the memory.
pub(super) struct Pass<'r> {
    lines: Lines<'r>,
    parser: &'r Parser,
    /// For an access log: the limit that is applied.
    limit: Option<Arc<str>>,
    leases: Leases<'r>,
    window: usize,
    waiting: BinaryHeap<Waiting>,
    keys: Keys,
    /// The time of the last call.
    last: Option<i64>,
    read: u64,
    is_at_end: bool,
    faults: &'r Faults,
    progress: Option<&'r Progress>,
}

impl<'r> Pass<'r> {
    pub(super) fn new(
        lines: Lines<'r>,
        parser: &'r Parser,
        limit: Option<Arc<str>>,
        limits: &'r Limits,
        window: usize,
        faults: &'r Faults,
    ) -> Self {
        Self {
            lines,
            parser,
            limit,
            leases: Leases::new(limits),
            window,
            waiting: BinaryHeap::new(),
            keys: Keys::default(),
            last: None,
            read: 0,
            is_at_end: false,
            faults,
            progress: None,
        }
    }

    /// Shows the position in the file.
    pub(super) const fn with_progress(mut self, progress: &'r Progress) -> Self {
        self.progress = Some(progress);
        self
    }

    /// The number of lines that were read, without blank lines.
    pub(super) const fn read(&self) -> u64 {
        self.read
    }

    /// The number of requests with the empty key.
    pub(super) const fn without_key(&self) -> u64 {
        self.keys.empty
    }

    /// Reads a line into the window. Returns whether there was one.
    fn read_line(&mut self) -> Result<bool, CliError> {
        let position = self.lines.position();
        let Some(Line { number, bytes }) = self.lines.next()? else { return Ok(false) };
        let place = usize::try_from(self.read).unwrap_or(usize::MAX);
        self.read += 1;
        if let (Some(progress), 0) = (self.progress, self.read % 1024) {
            progress.at(position);
        }
        let bad = |reason, is_of_other_format| BadLine { place, number, reason, is_of_other_format };
        let Some(bytes) = bytes else {
            self.faults.add(bad("the line is longer than 1 MiB".to_owned(), false), self.read)?;
            return Ok(true);
        };
        match self.parser.parse(bytes, &mut self.keys) {
            Err(unreadable) => self.faults.add(bad(unreadable.reason, unreadable.other_format.is_some()), self.read)?,
            Ok(parsed) if self.last.is_some_and(|last| parsed.at() < last) => {
                let reason = format!(
                    "its time is before that of calls more than {} lines before it: sort the file by time, or use a larger \
                     --sort-window",
                    grouped(self.window as u64)
                );
                self.faults.add(bad(reason, false), self.read)?;
            }
            Ok(parsed) => self.waiting.push(Waiting { at: parsed.at(), place, number, parsed }),
        }
        Ok(true)
    }

    fn fill(&mut self) -> Result<(), CliError> {
        while !self.is_at_end && self.waiting.len() <= self.window {
            self.is_at_end = !self.read_line()?;
        }
        Ok(())
    }

    /// The next call in time, or `None` at the end.
    fn next_call(&mut self) -> Result<Option<Timed<usize>>, CliError> {
        loop {
            self.fill()?;
            let Some(waiting) = self.waiting.pop() else { return Ok(None) };
            self.last = Some(waiting.at);
            if let Some(call) = self.call(waiting)? {
                return Ok(Some(call));
            }
        }
    }

    fn call(&mut self, Waiting { at, place, number, parsed }: Waiting) -> Result<Option<Timed<usize>>, CliError> {
        let (op, call) = match (parsed, &self.limit) {
            (Parsed::Event(mut event), _) => {
                if let Err(reason) = self.leases.name(&mut event, place) {
                    self.faults.add(BadLine { place, number, reason, is_of_other_format: false }, self.read)?;
                    return Ok(None);
                }
                (event.op, event.call)
            }
            (Parsed::Request(_, key), Some(limit)) => (Op::Limit, Call::from((Arc::clone(limit), key))),
            (Parsed::Request(..), None) => return Ok(None),
        };
        Ok(Some(Timed { at, op, call, tag: place }))
    }
}

impl Iterator for Pass<'_> {
    type Item = Timed<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_call().unwrap_or_else(|error| {
            self.faults.end(error);
            None
        })
    }
}

/// A line that waits in the window. The first in time is the greatest; lines with the same time keep their order.
struct Waiting {
    at: i64,
    place: usize,
    number: usize,
    parsed: Parsed,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.place).cmp(&(self.at, self.place))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}
