//! The recording to replay: calls with their times.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::error::CliError;
use crate::lines::{BadLine, BadLines, Line, LineArgs, Lines, Source, of_record};
use crate::output::Progress;
use crate::plot::{SECOND, finer};
use crate::replay::parser::{Faults, Keys, Leases, Parsed, Parser, Unreadable};
use crate::replay::sandbox::{Purpose, Timed};
use crate::text::grouped;
use pg_limiter::{Call, Limits, Op};

/// A recording whose lines were all read once.
pub(super) struct Recording {
    source: Source,
    parser: Parser,
    limits: Limits,
    /// For an access log: the limits to apply, each alone.
    applied: Vec<Arc<str>>,
    window: usize,
    pub(super) summary: Summary,
    /// What the user should know about the lines.
    pub(super) notes: Vec<String>,
}

impl Recording {
    /// Reads all lines. `applied`: for an access log, the limits to apply.
    pub(super) fn read(
        source: Source,
        parser: Parser,
        limits: &Limits,
        applied: Vec<Arc<str>>,
        args: &LineArgs,
        needs_keys: bool,
    ) -> Result<Self, CliError> {
        let (window, summary) = (args.sort_window, Summary::new(needs_keys));
        let read = Self { source, parser, limits: limits.clone(), applied, window, summary, notes: Vec::new() };
        let (summary, notes) = read.first_pass(args, needs_keys)?;
        Ok(Self { summary, notes, ..read })
    }

    fn first_pass(&self, args: &LineArgs, needs_keys: bool) -> Result<(Summary, Vec<String>), CliError> {
        let name = self.source.name();
        let progress = Progress::bytes(format!("reading {name}"), self.source.len());
        let faults = Faults::new(Unreadable::Count(BadLines::new(name, args)));
        let mut summary = Summary::new(needs_keys);
        let mut pass = self.pass(0, &faults, &progress)?;
        pass.by_ref().for_each(|timed| summary.add(&timed));
        faults.take()?;
        summary.lines = pass.read;
        let mut notes: Vec<String> = faults.note(summary.lines)?.into_iter().collect();
        if summary.lines == 0 {
            notes.push(format!("{name} {}", if self.source.len() == 0 { "is empty" } else { "has no lines" }));
        }
        notes.extend(self.without_key(pass.keys.empty, summary.calls));
        Ok((summary, notes))
    }

    fn without_key(&self, without: u64, all: u64) -> Option<String> {
        let Parser::Requests(requests) = &self.parser else { return None };
        let (empty, all) = (grouped(without), grouped(all));
        (without > 0)
            .then(|| format!("{empty} of {all} requests have no {}: they share the empty key", requests.key_name))
    }

    /// The number of passes over the recording: an access log is replayed once for each limit, because each is applied alone.
    pub(super) const fn passes(&self) -> usize {
        if self.applied.is_empty() { 1 } else { self.applied.len() }
    }

    /// The keys that take tokens, by limit: limits of an access log in the order in which they are applied, limits of events by
    /// their names.
    pub(super) fn buckets(&self) -> Vec<(Arc<str>, HashSet<Arc<str>>)> {
        let buckets = self.summary.buckets();
        match (self.applied.as_slice(), buckets.as_slice()) {
            ([], _) | (_, []) => buckets,
            (applied, [(_, keys), ..]) => applied.iter().map(|limit| (Arc::clone(limit), keys.clone())).collect(),
        }
    }

    /// Begins a pass.
    pub(super) fn pass<'r>(
        &'r self,
        number: usize,
        faults: &'r Faults,
        progress: &Progress,
    ) -> Result<Pass<'r>, CliError> {
        let lines = self.source.lines(progress)?;
        if let Some(cause) = of_record(lines.head(), matches!(self.parser, Parser::Events)) {
            return Err(CliError::usage(format!("{}: {cause}", self.source.name())));
        }
        let limit = self.applied.get(number).cloned();
        Ok(Pass {
            recording: self,
            lines,
            limit,
            leases: Leases::new(&self.limits),
            waiting: BTreeMap::new(),
            keys: Keys::default(),
            last: None,
            read: 0,
            is_at_end: false,
            faults,
        })
    }
}

/// The findings of the first pass over a recording.
pub(super) struct Summary {
    /// The number of lines, without blank lines.
    pub(super) lines: u64,
    pub(super) calls: u64,
    /// The first and the last time.
    pub(super) span: Option<(i64, i64)>,
    /// The resolution of the times: a second or less.
    pub(super) resolution: i64,
    /// The keys that take tokens, by limit, if they are needed.
    buckets: Option<BTreeMap<Arc<str>, HashSet<Arc<str>>>>,
}

impl Summary {
    pub(super) fn new(needs_keys: bool) -> Self {
        Self { lines: 0, calls: 0, span: None, resolution: SECOND, buckets: needs_keys.then(BTreeMap::new) }
    }

    pub(super) fn add(&mut self, timed: &Timed<Purpose>) {
        self.calls += 1;
        self.span = Some((self.span.map_or(timed.at, |(first, _)| first), timed.at));
        self.resolution = finer(self.resolution, timed.at);
        let (Some(buckets), Op::Limit) = (&mut self.buckets, timed.op) else { return };
        for item in timed.call.items() {
            let keys = match buckets.get_mut(item.limit_name()) {
                Some(keys) => keys,
                None => buckets.entry(item.limit_name().into()).or_default(),
            };
            if !keys.contains(item.key().as_str()) {
                keys.insert(item.key().as_str().into());
            }
        }
    }

    /// The keys that take tokens, by limit, sorted by the names of limits.
    pub(super) fn buckets(&self) -> Vec<(Arc<str>, HashSet<Arc<str>>)> {
        self.buckets.iter().flatten().map(|(name, keys)| (Arc::clone(name), keys.clone())).collect()
    }
}

/// One pass over a recording: its calls in the order of time, each with the place of its line. Lines are sorted within a window
/// of so many lines, so that a file may be larger than the memory.
pub(super) struct Pass<'r> {
    recording: &'r Recording,
    lines: Lines<'r>,
    /// For an access log: the limit that is applied.
    limit: Option<Arc<str>>,
    leases: Leases<'r>,
    /// The window: the numbers of lines and what they have, by time. Lines with the same time keep their order.
    waiting: BTreeMap<(i64, usize), (usize, Parsed)>,
    keys: Keys,
    /// The time of the last call.
    last: Option<i64>,
    read: u64,
    is_at_end: bool,
    faults: &'r Faults,
}

impl<'r> Pass<'r> {
    /// Reads a line into the window. Returns whether there was one.
    fn read_line(&mut self) -> Result<bool, CliError> {
        let Some(Line { number, bytes }) = self.lines.next()? else { return Ok(false) };
        let place = usize::try_from(self.read).unwrap_or(usize::MAX);
        self.read += 1;
        let bad = |reason, is_of_other_format| BadLine { place, number, reason, is_of_other_format };
        let Some(bytes) = bytes else {
            self.faults.add(bad("the line is longer than 1 MiB".to_owned(), false), self.read)?;
            return Ok(true);
        };
        match self.recording.parser.parse(bytes, &mut self.keys) {
            Err(unreadable) => self.faults.add(bad(unreadable.reason, unreadable.other_format.is_some()), self.read)?,
            Ok(parsed) if self.last.is_some_and(|last| parsed.at() < last) => {
                let reason = format!(
                    "its time is before that of calls more than {} lines before it: sort the file by time, or use a larger \
                     --sort-window",
                    grouped(self.recording.window as u64)
                );
                self.faults.add(bad(reason, false), self.read)?;
            }
            Ok(parsed) => drop(self.waiting.insert((parsed.at(), place), (number, parsed))),
        }
        Ok(true)
    }

    fn fill(&mut self) -> Result<(), CliError> {
        while !self.is_at_end && self.waiting.len() <= self.recording.window {
            self.is_at_end = !self.read_line()?;
        }
        Ok(())
    }

    /// The next call in time, or `None` at the end.
    fn next_call(&mut self) -> Result<Option<Timed<Purpose>>, CliError> {
        loop {
            self.fill()?;
            let Some(((at, place), (number, parsed))) = self.waiting.pop_first() else { return Ok(None) };
            self.last = Some(at);
            let (op, call) = match (parsed, &self.limit) {
                (Parsed::Event(mut event), _) => match self.leases.name(&mut event, place) {
                    Ok(()) => (event.op, event.call),
                    Err(reason) => {
                        self.faults.add(BadLine { place, number, reason, is_of_other_format: false }, self.read)?;
                        continue;
                    }
                },
                (Parsed::Request(_, key), Some(limit)) => (Op::Limit, Call::from((Arc::clone(limit), key))),
                (Parsed::Request(..), None) => continue,
            };
            return Ok(Some(Timed { at, op, call, tag: Purpose::Line(place) }));
        }
    }
}

impl Iterator for Pass<'_> {
    type Item = Timed<Purpose>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_call().unwrap_or_else(|error| {
            self.faults.end(error);
            None
        })
    }
}
