//! The recording to replay: calls with their times.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::iter::Peekable;
use std::sync::Arc;
use std::vec::IntoIter;

use crate::study::bad_lines::{BadLines, LineArgs, UnreadableLine};
use crate::study::compressed::piped;
use crate::study::lines::{Lines, Source};
use crate::study::plot::{SECOND, finer};
use crate::study::replay::Event;
use crate::study::replay::access_log::format::{LogFormat, of_known_format};
use crate::study::replay::access_log::key::{LogKey, LogOptions};
use crate::study::replay::events::Leases;
use crate::study::replay::sandbox::{Asked, Purpose, Timed};
use crate::text::grouped;
use crate::{CliError, Progress, Result};
use pg_limiter::{Call, Limit, Limits, Op};

/// A recording after the first pass, which has read all lines.
pub(super) struct Recording {
    source: Source,
    /// `None` for recorded calls.
    log: Option<Log>,
    pub(super) limits: Limits,
    window: usize,
    pub(super) summary: Summary,
}

/// The findings of the first pass over a recording.
#[derive(Default)]
pub(super) struct Summary {
    /// Without blank lines.
    pub(super) lines: u64,
    pub(super) calls: u64,
    without_key: u64,
    unreadable: u64,
    /// The first and the last time.
    pub(super) span: Option<(i64, i64)>,
    /// The resolution of the times: a second or less.
    pub(super) resolution: i64,
    /// The keys that take tokens, by limit.
    buckets: BTreeMap<Arc<str>, HashSet<Arc<str>>>,
    pub(super) notes: Vec<String>,
}

/// Times that are seconds since the Unix epoch, from 1985 to 2100, if they are read as milliseconds.
const SECONDS: std::ops::Range<i64> = 473_385_600_000..4_102_444_800_000;

impl Recording {
    pub(super) fn read(source: Source, log: Option<Log>, limits: Limits, args: &LineArgs) -> Result<Self> {
        let window = args.sort_window;
        let mut recording = Self { source, log, limits, window, summary: Summary::default() };
        let name = &recording.source.name;
        let progress = Progress::bytes(format!("reading {name}"), recording.source.length);
        let mut bad_lines = BadLines::new(name, args, recording.log.as_ref().map(|log| log.advice));
        let mut summary = Summary { resolution: SECOND, ..Summary::default() };
        let mut pass = recording.pass(None, Vec::new(), &progress)?;
        while let Some(next) = pass.next().transpose() {
            pass.leases.decided();
            match next {
                Ok(timed) => summary.add(&timed, recording.log.as_ref()),
                Err(Fault::Line(line)) => bad_lines.add(line, pass.read)?,
                Err(Fault::End(error)) => return Err(error),
            }
        }
        summary.lines = pass.read;
        bad_lines.check(summary.lines)?;
        summary.notes.extend(bad_lines.note(summary.lines));
        summary.notes.extend(pass.lines.note());
        let what = if recording.source.length == 0 { "is empty" } else { "has no lines" };
        summary.notes.extend((summary.lines == 0).then(|| format!("{name} {what}")));
        if let Some(Log { key, .. }) = &recording.log {
            let (field, all) = (key.needed(), summary.calls);
            let is_key = field == key.name;
            let header = "--trusted-header, or with --log-format json:http_HEADER=FIELD";
            let option = if is_key { "--key" } else { header };
            let why = format_args!("{name}: no request has the field {field}: name another with {option}");
            CliError::refuse_if(pass.lacking > 0 && pass.lacking == all, why)?;
            let of_peer = if is_key { 0 } else { pass.lacking };
            for (number, what) in [
                (of_peer, format!("field {field}: their key is that of the peer")),
                (summary.without_key, format!("{}: they share the empty key", key.name)),
                (summary.unreadable, "readable address: they share the key unreadable".to_owned()),
            ] {
                let note = || format!("{} of {} requests have no {what}", grouped(number), grouped(all));
                summary.notes.extend((number > 0).then(note));
            }
        } else if summary.span.is_some_and(|(first, _)| SECONDS.contains(&first)) {
            // Times of events that a program made up begin at 0.
            summary.notes.push(format!("{name} begins in 1970: `at` counts milliseconds, and these may be seconds"));
        }
        drop(pass);
        recording.summary = summary;
        Ok(recording)
    }

    /// The key that the user means by this text. An address is the key of its client.
    pub(super) fn key_named(&self, text: &str) -> Arc<str> {
        self.log.as_ref().map_or_else(|| text.into(), |log| log.key.named(text).into())
    }

    /// The passes over the recording: one, or for an access log one for each limit, because each is applied alone.
    pub(super) fn passes(&self) -> Vec<Option<&Arc<str>>> {
        self.log.as_ref().map_or_else(|| vec![None], |log| log.applied.iter().map(Some).collect())
    }

    /// The keys that take tokens, by limit: those of an access log in the order in which they are applied, others by their names.
    /// Without calls, all limits have no keys.
    pub(super) fn buckets(&self) -> Vec<(Arc<str>, HashSet<Arc<str>>)> {
        let buckets = &self.summary.buckets;
        let names = match &self.log {
            Some(log) => log.applied.clone(),
            None if buckets.is_empty() => self.limits.iter().map(|(name, _)| name.into()).collect(),
            None => buckets.keys().cloned().collect(),
        };
        // An access log has the same keys for each limit, and they were counted once.
        let keys = |name: &str| buckets.get(name).or(buckets.values().next()).cloned().unwrap_or_default();
        names.into_iter().map(|name| (Arc::clone(&name), keys(&name))).collect()
    }

    /// Returns an error unless a later pass had as many lines and calls as the first one.
    pub(super) fn check(&self, lines: u64, calls: u64) -> Result<()> {
        let (name, first) = (&self.source.name, &self.summary);
        let numbers = |lines, calls| format!("{} lines with {} calls", grouped(lines), grouped(calls));
        let (then, now) = (numbers(first.lines, first.calls), numbers(lines, calls));
        let why =
            format_args!("{name} was changed while it was read, from {then} to {now}: copy it, and read the copy");
        CliError::refuse_if((lines, calls) != (first.lines, first.calls), why)
    }

    /// `limit`: for an access log, the one that this pass applies. `between`: questions in the order of time.
    pub(super) fn pass(&self, limit: Option<&Arc<str>>, between: Vec<Asked>, progress: &Progress) -> Result<Pass<'_>> {
        Ok(Pass {
            recording: self,
            questions: between.into_iter().peekable(),
            lines: self.source.lines(self.log.is_none(), progress)?,
            limit: limit.cloned().unwrap_or_default(),
            leases: Leases::default(),
            waiting: BTreeMap::new(),
            last: None,
            read: 0,
            lacking: 0,
        })
    }

    fn parse(&self, line: &[u8]) -> Result<(i64, Parsed), UnreadableLine> {
        if let Some(Log { format, key, .. }) = &self.log {
            let text = text_of(line, r"\x");
            // In JSON, a backslash is written as two.
            let is_json = matches!(text, Cow::Owned(_)) && format.is_json(&text);
            let text = if is_json { text_of(line, r"\\x") } else { text };
            let line = format.parse(&text)?;
            let (key, is_lacking) = key.of(&line)?;
            return Ok((line.at, Parsed::Request(key.into(), is_lacking)));
        }
        let line = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8".to_owned())?;
        let event = Event::parse(line).map_err(|reason| {
            let option = of_known_format(line, "").map(|option| format!(" {option}"));
            let is_log = option.is_some() || !line.starts_with('{');
            let option = option.unwrap_or_default();
            let of_log = || format!("to read an access log, use --access-log FILE --apply NAME{option}");
            UnreadableLine { hint: is_log.then(of_log), ..reason.into() }
        })?;
        Ok((event.at, Parsed::Event(event.into())))
    }
}

impl Summary {
    fn add(&mut self, timed: &Asked, log: Option<&Log>) {
        self.calls += 1;
        self.span = Some((self.span.map_or(timed.at, |(first, _)| first), timed.at));
        self.resolution = finer(self.resolution, timed.at);
        for item in timed.call.items() {
            let key = item.key().as_str();
            self.without_key += u64::from(key.is_empty());
            self.unreadable += u64::from(log.is_some_and(|log| log.key.is_unreadable(key)));
            if timed.op == Op::Limit {
                self.buckets.entry(item.limit_name().into()).or_default().insert(key.into());
            }
        }
    }
}

/// A line that is no call, or an error that ends the pass.
pub(super) enum Fault {
    Line(UnreadableLine),
    End(CliError),
}

/// One pass over a recording: its calls in the order of time, each with the place of its line, and questions between them, before
/// the calls at the same time. Lines are sorted within a window of so many lines, so that a file may be larger than the memory.
/// It pauses before a call that depends on decisions on others.
pub(super) struct Pass<'r> {
    recording: &'r Recording,
    questions: Peekable<IntoIter<Asked>>,
    lines: Lines<'r>,
    limit: Arc<str>,
    pub(super) leases: Leases,
    /// The window: the numbers of lines and what they have, by time. Lines with the same time keep their order.
    waiting: BTreeMap<(i64, usize), (usize, Parsed)>,
    last: Option<i64>,
    pub(super) read: u64,
    /// The number of requests that lack the field which the key needs.
    lacking: u64,
}

impl Pass<'_> {
    /// Returns whether there was a line.
    fn read_line(&mut self) -> Result<bool, Fault> {
        let Some((number, bytes)) = self.lines.next().map_err(Fault::End)? else { return Ok(false) };
        let place = usize::try_from(self.read).unwrap_or(usize::MAX);
        self.read += 1;
        let with_hint = |reason: &str, hint| UnreadableLine { hint: Some(hint), ..reason.to_owned().into() };
        let look = || format!("see how it begins with sed -n {number}p FILE | head -c 200");
        let parsed = match bytes {
            Some(bytes) => self.recording.parse(bytes),
            None => Err(with_hint("the line is longer than 1 MiB", look())),
        };
        let bad = |why: UnreadableLine| {
            let hint = why.hint.map(|hint| piped(&hint, &self.lines.pipe));
            Fault::Line(UnreadableLine { place, number, hint, ..why })
        };
        let (at, parsed) = parsed.map_err(bad)?;
        if self.last.is_some_and(|last| at < last) {
            let window = grouped(self.recording.window as u64);
            let reason = format!("its time is before that of calls more than {window} lines before it");
            let hint = "sort the file by time, or use a larger --sort-window".to_owned();
            return Err(bad(with_hint(&reason, hint)));
        }
        self.waiting.insert((at, place), (number, parsed));
        Ok(true)
    }

    pub(super) fn next(&mut self) -> Result<Option<Asked>, Fault> {
        while self.waiting.len() <= self.recording.window && self.read_line()? {}
        let next = self.waiting.first_entry();
        let is_due = |question: &Asked| next.as_ref().is_none_or(|next| question.at <= next.key().0);
        if let Some(question) = self.questions.next_if(is_due) {
            return Ok(Some(question));
        }
        let is_open = |parsed: &Parsed| matches!(parsed, Parsed::Event(event) if self.leases.is_open(event));
        let Some(next) = next.filter(|next| !is_open(&next.get().1)) else { return Ok(None) };
        let ((at, place), (number, parsed)) = next.remove_entry();
        self.last = Some(at);
        let (op, call, lease) = match parsed {
            Parsed::Request(key, is_lacking) => {
                self.lacking += u64::from(is_lacking);
                (Op::Limit, Ok(Call::from((Arc::clone(&self.limit), &*key))), None)
            }
            Parsed::Event(event) => (event.op, self.leases.call_of(&event, place, &self.recording.limits), event.lease),
        };
        let call = call.map_err(|reason| Fault::Line(UnreadableLine { place, number, ..reason.into() }))?;
        Ok(Some(Timed { at, op, call, tag: Purpose::Line(place, lease) }))
    }
}

pub(super) struct Log {
    format: LogFormat,
    key: LogKey,
    /// Advice for lines that do not have the format.
    advice: &'static str,
    applied: Vec<Arc<str>>,
}

impl Log {
    pub(super) fn new(options: &LogOptions, applied: &[(Arc<str>, Limit)]) -> Result<Self> {
        let format = options.log_format.clone().unwrap_or_default();
        let advice = match options.log_format {
            Some(_) => "compare --log-format with the format in the configuration of the server",
            None => "give the format string of the server with --log-format",
        };
        let applied = applied.iter().map(|(name, _)| Arc::clone(name)).collect();
        Ok(Self { key: LogKey::new(&format, options)?, format, advice, applied })
    }
}

/// The content of a line, without its time.
enum Parsed {
    Event(Box<Event>),
    /// The key of a request, which needs less memory than a call, and whether it lacks the field which the key needs.
    Request(Box<str>, bool),
}

/// The text of a line. Bytes that are no text are escaped, as nginx and Apache do it, so that values that differ stay different.
/// `before`: what is written before the two digits of a byte.
fn text_of<'l>(line: &'l [u8], before: &str) -> Cow<'l, str> {
    let escaped = |bytes: &[u8]| bytes.iter().map(|byte| format!("{before}{byte:02X}")).collect::<String>();
    match std::str::from_utf8(line) {
        Ok(line) => line.into(),
        Err(_) => line.utf8_chunks().flat_map(|part| [part.valid().into(), escaped(part.invalid())]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass_over(questions: &[i64], calls: &[i64]) -> String {
        let event = |at: &i64| format!("{{\"at\": {at}, \"limit\": \"a\"}}\n");
        let source = Source::bytes("events", calls.iter().map(event).collect::<String>().as_bytes()).unwrap();
        let args = LineArgs { max_bad_lines: None, strict: false, sort_window: 2 };
        let recording = Recording::read(source, None, Limits::new(), &args).unwrap();
        let (op, call, tag) = (Op::Check, Call::from(("a", "")), || Purpose::Balance(0));
        let question = |at: &i64| Timed { at: at * 1000, op, call: call.clone(), tag: tag() };
        let mut pass = recording.pass(None, questions.iter().map(question).collect(), &Progress::hidden()).unwrap();
        let next = || pass.next().unwrap_or_else(|_| panic!("a call"));
        std::iter::from_fn(next).map(|timed| format!("{} {}, ", timed.op.as_str(), timed.at / 1000)).collect()
    }

    #[test]
    fn a_pass_has_every_question_and_call_and_questions_go_first() {
        let all = pass_over(&[1, 3, 3, 9], &[4, 0, 3]);
        assert_eq!(all, "limit 0, check 1, check 3, check 3, limit 3, limit 4, check 9, ");
        assert_eq!(pass_over(&[], &[5]), "limit 5, ");
    }
}
