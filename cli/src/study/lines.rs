//! Reads the lines of files of any size: plain or compressed, from a file, standard input or memory. The first bytes of a file
//! show its format, not its name. Lines that cannot be read are counted up to a bound; the cause is named if a file has no others.

use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek};
use std::path::Path;
use std::str::FromStr;

use clap::Args;
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::error::{CliError, Result};
use crate::input::{self, of_encoding};
use crate::output::Progress;
use crate::text::{grouped, percent};

/// Longer lines are not read, so that a file without line breaks does not fill the memory.
const LONGEST: usize = 1 << 20;
/// The bytes from which the encoding is seen.
const HEAD: u64 = 1 << 12;

pub(crate) struct Lines<'s> {
    name: &'s str,
    reader: Reader<'s>,
    number: usize,
    buffer: Vec<u8>,
}

/// The number of a line, from 1 on, and its bytes without the line break and blanks at the end. No bytes if it is too long.
type Line<'l> = (usize, Option<&'l [u8]>);

impl Lines<'_> {
    /// Reads the next line that is not blank.
    pub(crate) fn next(&mut self) -> Result<Option<Line<'_>>> {
        loop {
            let is_whole = self.read().map_err(|error| unreadable(self.name, self.number, &error))?;
            if self.buffer.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            // A log that is cut while the server writes to it, as by logrotate's copytruncate, begins with a hole.
            let length = self.buffer.trim_ascii_end().len();
            let hole = self.buffer[..length].iter().position(|byte| *byte != 0).unwrap_or_default();
            if length > 0 || !is_whole {
                return Ok(Some((self.number, is_whole.then(|| &self.buffer[hole..length]))));
            }
        }
    }

    /// Reads a line. Returns whether it was read whole; otherwise the rest was skipped.
    fn read(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        self.reader.by_ref().take(LONGEST as u64).read_until(b'\n', &mut self.buffer)?;
        let is_whole = self.buffer.len() < LONGEST || self.buffer.ends_with(b"\n");
        if !is_whole {
            self.reader.skip_until(b'\n')?;
        }
        Ok(is_whole)
    }
}

/// A file that can be read several times. All passes read the same bytes, also if the file is renamed or grows meanwhile.
pub(crate) struct Source {
    pub(crate) name: String,
    /// In bytes, as it was stored when it was opened.
    pub(crate) length: u64,
    file: File,
}

impl Source {
    /// Opens a file; `-` is standard input. A file that can be read only once, such as a pipe, is copied to a temporary file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = input::name(path);
        let (file, length) = open(path).map_err(|error| unreadable(&name, 0, &error))?;
        Ok(Self { name, length, file })
    }

    pub(crate) fn bytes(name: &str, mut bytes: &[u8]) -> Result<Self> {
        let (file, length) = spooled(&mut bytes).map_err(|error| unreadable(name, 0, &error))?;
        Ok(Self { name: name.to_owned(), length, file })
    }

    /// Begins to read the lines, and shows the position in the stored file. Another reader must not be in use. `are_events`:
    /// each line is an event, and not a request of an access log.
    pub(crate) fn lines(&self, are_events: bool, progress: &Progress) -> Result<Lines<'_>> {
        let name = self.name.as_str();
        let mut head = Vec::new();
        let opened = self.stored().and_then(|stored| {
            let buffered = BufReader::with_capacity(1 << 16, progress.wrap_read(stored));
            // Some files are compressed twice.
            let mut reader = decompressed(decompressed(Box::new(buffered))?)?;
            reader.by_ref().take(HEAD).read_to_end(&mut head)?;
            Ok(reader)
        });
        let lines = || head.iter().filter(|byte| **byte == b'\n').count();
        let reader = opened.map_err(|error| unreadable(name, lines(), &error))?;
        let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head);
        let cause = of_encoding(&head).or_else(|| of_record(&String::from_utf8_lossy(text), are_events));
        if let Some(cause) = cause {
            return Err(CliError::usage(format!("{name}: {cause}")));
        }
        let reader = Box::new(Cursor::new(text.to_vec()).chain(reader));
        Ok(Lines { name, reader, number: 0, buffer: Vec::new() })
    }

    fn stored(&self) -> io::Result<impl Read + Send + use<'_>> {
        let mut file = &self.file;
        file.rewind()?;
        Ok(file.take(self.length))
    }
}

/// `lines`: the number of lines that were read.
fn unreadable(name: &str, lines: usize, error: &io::Error) -> CliError {
    let after = if lines > 0 { format!(" after line {lines}") } else { String::new() };
    CliError::usage(format!("cannot read {name}{after}: {error}"))
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    if input::is_stdin(path) {
        return spooled(&mut io::stdin().lock());
    }
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if metadata.is_file() { Ok((file, metadata.len())) } else { spooled(&mut file) }
}

/// Copies the input to a temporary file, so that memory does not have to hold it.
fn spooled(input: &mut dyn Read) -> io::Result<(File, u64)> {
    let mut file = tempfile::tempfile()?;
    let length = io::copy(input, &mut file)?;
    Ok((file, length))
}

type Reader<'s> = Box<dyn BufRead + Send + 's>;

/// Other formats, and the commands that decompress them.
const OTHERS: [(&[u8], &str, &str); 6] = [
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"),
    (b"PK\x03\x04", "zip", "unzip -p"),
    (b"7z\xbc\xaf\x27\x1c", "7z", "7z x -so"),
    (b"\x1f\x9d", "compress", "uncompress -c"),
];

/// Decompresses gzip and zstd; any other file is read as it is.
fn decompressed(mut stored: Reader<'_>) -> io::Result<Reader<'_>> {
    let head = stored.fill_buf()?;
    if let Some((_, format, command)) = OTHERS.iter().find(|(magic, ..)| head.starts_with(magic)) {
        return Err(io::Error::other(format!(
            "it is compressed with {format}; only gzip and zstd are read: decompress it with {command} FILE | pg-limiter .. -"
        )));
    }
    Ok(match head {
        [0x1f, 0x8b, ..] => Box::new(BufReader::new(Decompressed(MultiGzDecoder::new(stored), "gzip"))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x28, 0xb5, 0x2f] => {
            let zstd = Zstd { source: stored, decoder: FrameDecoder::new() };
            Box::new(BufReader::new(Decompressed(zstd, "zstd")))
        }
        _ => stored,
    })
}

/// A reader that decompresses, and the name of its program.
struct Decompressed<R>(R, &'static str);

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let program = self.1;
        self.0.read(buffer).map_err(|error| match error.raw_os_error() {
            Some(_) => error,
            None => io::Error::other(format!(
                "the {program} file is damaged or cut off: copy it again, or read its undamaged part with \
                 {program} -dc FILE | pg-limiter .. -"
            )),
        })
    }
}

/// Decompresses all frames of a zstd file. (The crate's own reader ends after the first.)
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
}

impl<R: BufRead> Zstd<R> {
    /// Begins the next frame. Returns whether there is one.
    fn next_frame(&mut self) -> io::Result<bool> {
        let read = self.decoder.get_checksum_from_data();
        if read.is_some() && read != self.decoder.get_calculated_checksum() {
            return Err(io::Error::other("a checksum differs"));
        }
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.source.by_ref().take(u64::from(length)), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 {
            if !self.decoder.is_finished() {
                let blocks = self.decoder.decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1));
                blocks.map_err(io::Error::other)?;
            } else if !self.next_frame()? {
                return Ok(0);
            }
        }
        self.decoder.read(buffer)
    }
}

const SHOWN: usize = 5;
/// If so many lines are read and none is readable, the rest is not tried.
const HOPELESS: u64 = 1_000;

/// Why a line cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{reason}{}", hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
pub struct UnreadableLine {
    /// The reason.
    pub reason: String,
    /// Advice, such as the option that reads the line.
    pub hint: Option<String>,
    /// Whether the line has another known format, and is no line of this format that was cut.
    pub is_other_format: bool,
    /// Whether the line does not have the fields of the format, which may be the wrong one.
    pub misses_format: bool,
}

impl From<String> for UnreadableLine {
    fn from(reason: String) -> Self {
        Self { reason, ..Self::default() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct BadLine {
    /// Its place among the lines that are not blank.
    pub(crate) place: usize,
    /// The number of the line in the file.
    pub(crate) number: usize,
    pub(crate) why: UnreadableLine,
}

/// Counts unreadable lines, and ends the run if there are too many.
pub(crate) struct BadLines<'a> {
    name: &'a str,
    args: &'a LineArgs,
    /// Advice for lines that have no hint.
    advice: Option<&'a str>,
    first: Vec<BadLine>,
    count: u64,
    /// The number of those that have another format.
    of_other_formats: u64,
}

impl<'a> BadLines<'a> {
    /// `name`: that of the file, for messages.
    pub(crate) const fn new(name: &'a str, args: &'a LineArgs, advice: Option<&'a str>) -> Self {
        Self { name, args, advice, first: Vec::new(), count: 0, of_other_formats: 0 }
    }

    /// Counts a line. `read`: the number of lines that were read, with this one.
    pub(crate) fn add(&mut self, line: BadLine, read: u64) -> Result<()> {
        if self.args.strict {
            return Err(CliError::usage(self.of(&line)));
        }
        self.count += 1;
        self.of_other_formats += u64::from(line.why.is_other_format);
        if self.first.len() < SHOWN {
            self.first.push(line);
        }
        if self.count < HOPELESS || self.count < read {
            return Ok(());
        }
        self.check(read).map_err(|error| CliError::usage(format!("{error}; the lines after these were not read")))
    }

    /// Whether the file may be used that has so many lines.
    pub(crate) fn check(&self, all: u64) -> Result<()> {
        let [first, others @ ..] = self.first.as_slice() else { return Ok(()) };
        if self.args.max_bad_lines.allows(self.count, all) {
            return Ok(());
        }
        let mut reason = format!(
            "{}\n{} of {} lines cannot be read ({} %), and --max-bad-lines allows {}",
            self.of(first),
            grouped(self.count),
            grouped(all),
            percent(self.count, all),
            self.args.max_bad_lines
        );
        if !others.is_empty() {
            let numbers: Vec<String> = others.iter().map(|line| line.number.to_string()).collect();
            reason.push_str(&format!("; others are the lines {}", numbers.join(", ")));
        }
        if self.of_other_formats > 0 && self.count < all {
            reason.push_str(
                "; the log has lines of more than one format: divide the file, or give a --log-format that reads all of them",
            );
        }
        Err(CliError::usage(reason))
    }

    /// A note on the lines that were left out, if there are any.
    pub(crate) fn note(&self, all: u64) -> Option<String> {
        let (bad, all) = (grouped(self.count), grouped(all));
        let mut note = format!("{}: {bad} of {all} lines cannot be read and are left out:", self.name);
        let mut hints = HashSet::new();
        for BadLine { number, why, .. } in &self.first {
            let why = if hints.insert(&why.hint) { why.to_string() } else { why.reason.clone() };
            note.push_str(&format!("\n  line {number}: {why}"));
        }
        let more = self.count.saturating_sub(self.first.len() as u64);
        if more > 0 {
            note.push_str(&format!("\n  and {} more", grouped(more)));
        }
        (self.count > 0).then_some(note)
    }

    fn of(&self, line: &BadLine) -> String {
        let advice = self
            .advice
            .filter(|_| line.why.hint.is_none() && line.why.misses_format)
            .map(|advice| format!("; {advice}"));
        format!("{}, line {}: {}{}", self.name, line.number, line.why, advice.unwrap_or_default())
    }
}

/// How lines are read.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct LineArgs {
    /// Lines that may be unreadable: a share of all lines, such as 1%, or a number of lines. The first five are shown
    #[arg(long, help_heading = HEADING, value_name = "SHARE", default_value = "1%")]
    pub(crate) max_bad_lines: Bound,
    /// Stop at the first line that cannot be read
    #[arg(long, help_heading = HEADING, conflicts_with = "max_bad_lines")]
    pub(crate) strict: bool,
    /// Number of lines within which lines are sorted by time; more need more memory
    #[arg(long, help_heading = HEADING, value_name = "LINES", default_value = "250000")]
    pub(crate) sort_window: usize,
}

const HEADING: &str = "Lines";

/// The most lines that may be unreadable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    Percent(f64),
    Lines(u64),
}

impl Bound {
    fn allows(self, bad: u64, all: u64) -> bool {
        match self {
            Self::Percent(percent) => bad as f64 * 100.0 <= percent * all as f64,
            Self::Lines(most) => bad <= most,
        }
    }
}

impl FromStr for Bound {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent = text.strip_suffix('%').map(|number| number.trim().parse());
        match (percent, text.parse()) {
            (Some(Ok(percent)), _) if (0.0..=100.0).contains(&percent) => Ok(Self::Percent(percent)),
            (None, Ok(lines)) => Ok(Self::Lines(lines)),
            _ => Err("use a share from 0% to 100%, such as 0.5%, or a whole number of lines"),
        }
    }
}

impl Display for Bound {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Lines(lines) => write!(f, "{lines}"),
        }
    }
}

/// Why the beginning of a text is no record on a line of its own: an event or, otherwise, a request of an access log.
fn of_record(head: &str, is_event: bool) -> Option<String> {
    let text = head.trim_start();
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let (first, next) = (lines.next().unwrap_or_default().trim_end(), lines.next());
    // A log may begin with an odd line, after which its own lines follow.
    let goes_on = next.is_none_or(|next| next.starts_with([' ', '\t', '{', '}', '[', ']', '"', ',']));
    let is_array = text.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with(['{', ']']));
    let (finding, form, command) = if is_array && goes_on {
        ("the file is one JSON array", "line each", "jq -c '.[]'".to_owned())
    } else if first == "{" && goes_on {
        ("its JSON objects have several lines", "line each", "jq -c .".to_owned())
    } else {
        ("the file is YAML", "JSON object on a line", format!("yq -o=json -I=0 '{}'", records_of_yaml(text)?))
    };
    let record = if is_event { "an event" } else { "a request" };
    Some(format!("{finding}, and {record} is one {form}: convert it with {command} FILE"))
}

/// The expression of yq for the records of a YAML file: the items of a list, or the mapping itself. `None` if it is no YAML.
fn records_of_yaml(text: &str) -> Option<String> {
    let is_content = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(is_content).collect();
    let marks = lines.iter().take_while(|line| **line == "---" || line.starts_with("%YAML")).count();
    let (first, next) = (lines.get(marks).copied().unwrap_or_default(), lines.get(marks + 1).copied());
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let name = |line: &'_ str| {
        let (name, value) = line.strip_prefix("- ").unwrap_or(line).split_once(':')?;
        Some(name.trim_matches('"').to_owned()).filter(|name| {
            is_name(&name.as_str()) && (value.is_empty() || value.starts_with(' ') && !value.starts_with(" -"))
        })
    };
    let name_of_first = name(first);
    // The lines of a log may all begin with the same name.
    let of_mapping =
        |next: &str| next.starts_with([' ', '-']) || name(next).is_some_and(|next| Some(next) != name_of_first);
    let is_mapping = name_of_first.is_some() && next.is_none_or(of_mapping);
    if marks == 0 && !first.starts_with("- {") && !is_mapping {
        return None;
    }
    let holds_list = first.split(" #").next().is_some_and(|first| first.trim_end().ends_with(':'))
        && next.is_some_and(|next| next.trim_start().starts_with('-'));
    Some(match name_of_first {
        _ if first.starts_with(['-', '[']) => ".[]".to_owned(),
        Some(name) if holds_list => format!(".{name}[]"),
        _ => ".".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_share_or_a_number() {
        for (text, bound) in [("1%", Bound::Percent(1.0)), ("0.5 %", Bound::Percent(0.5)), ("7", Bound::Lines(7))] {
            assert_eq!(text.parse(), Ok(bound), "{text}");
        }
        for text in ["", "%", "-1", "0.5", "101%", "NaN%", "1 line"] {
            assert!(text.parse::<Bound>().is_err(), "{text}");
        }
        let one = Bound::Percent(1.0);
        assert!(one.allows(1, 100) && !one.allows(1, 99) && one.allows(0, 0) && !Bound::Lines(1).allows(2, 1000));
    }

    #[test]
    fn other_forms_of_records_are_named() {
        for (head, words) in [
            ("\n[\n  {\n", "JSON array"),
            ("[]", "JSON array"),
            ("---\nat: 1\n", "YAML"),
            ("at: 1\n", "YAML"),
            ("events:\n  - at: 1\n", "YAML"),
            ("# recorded\n\n- {at: 1, limit: a}\n", "YAML"),
            ("at: 1\nlimit: a\n", "with yq -o=json -I=0 '.' FILE"),
            ("%YAML 1.2\n---\nat: 1\nlimit: a\n---\nat: 2\n", "with yq -o=json -I=0 '.' FILE"),
            ("all:\n  a: 1\n", "with yq -o=json -I=0 '.' FILE"),
            ("events:\n- at: 1\n", "with yq -o=json -I=0 '.events[]' FILE"),
            ("---\n\"events\": # last week\n  - at: 1\n", "with yq -o=json -I=0 '.events[]' FILE"),
            ("---\n- at: 1\n", "with yq -o=json -I=0 '.[]' FILE"),
            ("---\n[{at: 1}]\n", "with yq -o=json -I=0 '.[]' FILE"),
        ] {
            let cause = of_record(head, true).unwrap_or_default();
            assert!(cause.contains(words), "{head:?}: {cause}");
        }
        for head in [
            "",
            "{\"at\": 1}\n",
            "::1 - - [",
            "example.com:80 ::1 - -",
            "[17/May/2015:10:05:03 +0000] ::1",
            "hello",
            "nginx: [warn] reopened\n::1 - - [",
            "{\n::1 - - [",
            "[{\"x\": 1}\n::1 - - [",
            "unix: - - [\nunix: - - [",
            "unix: - - [",
            "ip: ::1 t: [1] a\nip: ::1 t: [2] a",
        ] {
            assert_eq!(of_record(head, true), None, "{head:?}");
        }
    }

    fn read(bytes: &[u8]) -> io::Result<String> {
        let mut text = String::new();
        decompressed(Box::new(bytes))?.read_to_string(&mut text).map(|_| text)
    }

    /// The bytes are what gzip and zstd write for "one\ntwo\n", and zstd without a checksum for "three\n".
    #[test]
    fn files_of_the_usual_tools_are_decompressed() {
        let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xcb\xcf\x4b\xe5\x2a\x29\xcf\xe7\x02\0\xe6\x0b\xba\x12\x08\0\0\0";
        let zstd = b"\x28\xb5\x2f\xfd\x24\x08\x41\0\0one\ntwo\n\xe6\xa6\x0e\x40";
        let more = b"\x28\xb5\x2f\xfd\x20\x06\x31\0\0three\n";
        let skipped = b"\x50\x2a\x4d\x18\x02\0\0\0xx";
        for (bytes, expected) in [
            (&gzip[..], "one\ntwo\n"),
            (&[&gzip[..], gzip].concat(), "one\ntwo\none\ntwo\n"),
            (zstd, "one\ntwo\n"),
            (&[&zstd[..], more, skipped, zstd].concat(), "one\ntwo\nthree\none\ntwo\n"),
            (b"plain\n", "plain\n"),
            (b"", ""),
        ] {
            assert_eq!(read(bytes).expect(expected), expected);
        }
        let (last, damaged) = (zstd.len() - 1, &mut zstd.to_owned());
        damaged[last] ^= 1;
        for bytes in [&damaged[..], &zstd[..last], &more[..12], &gzip[..20]] {
            let error = read(bytes).expect_err("damaged").to_string();
            assert!(error.contains(" file is damaged or cut off"), "{error}: {bytes:?}");
        }
    }
}
