//! The recording to replay: calls with their times.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::CliError;
use crate::lines::{BadLines, LineArgs, Source, of_record};
use crate::progress::Progress;
use crate::replay::access_log::LogOptions;
use crate::replay::faults::Faults;
use crate::replay::parser::{Parser, Requests};
use crate::replay::pass::Pass;
use crate::replay::summary::Summary;
use crate::text::grouped;
use pg_limiter::Limits;

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
    pub(super) fn events(source: Source, limits: &Limits, args: &LineArgs, needs_keys: bool) -> Result<Self, CliError> {
        Self::read(source, Parser::Events, limits, Vec::new(), args, needs_keys)
    }

    pub(super) fn access_log(
        source: Source,
        options: &LogOptions,
        limits: &Limits,
        applied: Vec<Arc<str>>,
        args: &LineArgs,
        needs_keys: bool,
    ) -> Result<Self, CliError> {
        let (format, key) = options.read()?;
        let parser = Parser::Requests(Box::new(Requests { format, key, key_name: options.key.clone() }));
        Self::read(source, parser, limits, applied, args, needs_keys)
    }

    fn read(
        source: Source,
        parser: Parser,
        limits: &Limits,
        applied: Vec<Arc<str>>,
        args: &LineArgs,
        needs_keys: bool,
    ) -> Result<Self, CliError> {
        let window = args.sort_window;
        let summary = Summary::new(needs_keys);
        let mut recording =
            Self { source, parser, limits: limits.clone(), applied, window, summary, notes: Vec::new() };
        let (summary, notes) = recording.first_pass(args, needs_keys)?;
        (recording.summary, recording.notes) = (summary, notes);
        Ok(recording)
    }

    fn first_pass(&self, args: &LineArgs, needs_keys: bool) -> Result<(Summary, Vec<String>), CliError> {
        let name = self.source.name();
        let progress = Progress::bytes(format!("reading {name}"), self.source.len());
        let faults = Faults::counted(BadLines::new(name, args));
        let mut summary = Summary::new(needs_keys);
        let mut pass = self.pass(0, &faults)?.with_progress(&progress);
        pass.by_ref().for_each(|timed| summary.add(&timed));
        faults.take()?;
        summary.lines = pass.read();
        let mut notes: Vec<String> = faults.note(summary.lines)?.into_iter().collect();
        if summary.lines == 0 {
            notes.push(format!("{name} {}", if self.source.len() == 0 { "is empty" } else { "has no lines" }));
        }
        notes.extend(self.without_key(pass.without_key(), summary.calls));
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
    pub(super) fn pass<'r>(&'r self, number: usize, faults: &'r Faults) -> Result<Pass<'r>, CliError> {
        let lines = self.source.lines()?;
        if let Some(cause) = of_record(lines.head(), matches!(self.parser, Parser::Events)) {
            return Err(CliError::usage(format!("{}: {cause}", self.source.name())));
        }
        let limit = self.applied.get(number).cloned();
        Ok(Pass::new(lines, &self.parser, limit, &self.limits, self.window, faults))
    }
}
