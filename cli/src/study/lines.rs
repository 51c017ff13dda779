//! Reads the lines of files of any size, plain or compressed. If the beginning of a file has no records, the cause is named.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, Take};
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use crate::input::{self, of_encoding};
use crate::study::compressed::{Reader, decompressed, piped, skip_zeros};
use crate::text::grouped;
use crate::{CliError, Progress, Result};

/// Longer lines are not read, so that a file without line breaks does not fill the memory.
const LONGEST: usize = 1 << 20;
/// The bytes from which the encoding is seen.
const HEAD: u64 = 1 << 12;

pub(crate) struct Lines<'s> {
    name: &'s str,
    reader: Reader<'s>,
    /// The commands that print the text, if it is compressed.
    pub(crate) pipe: String,
    number: usize,
    /// A line, or the part of it between NUL bytes.
    buffer: Vec<u8>,
    /// Whether the last part ended its line.
    is_ended: bool,
    /// The line of the first NUL byte, and the number of those that were left out, if there are any.
    nuls: Option<(usize, u64)>,
}

/// The number of a line, from 1 on, and its bytes without the line break. No bytes if it is too long.
type Line<'l> = (usize, Option<&'l [u8]>);

/// Some programs write it at the beginning of a file, which may then be in the middle of another.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl Lines<'_> {
    /// Reads the next line that is not blank. NUL bytes end a line, too: a crash leaves a hole after a line that was cut, and a
    /// server that writes on to a file that was cut, as by logrotate's copytruncate, one before its first line.
    pub(crate) fn next(&mut self) -> Result<Option<Line<'_>>> {
        loop {
            let is_first = self.is_ended;
            self.number += usize::from(is_first);
            let read = skip_zeros(&mut self.reader).and_then(|zeros| Ok((zeros, self.read()?)));
            let (zeros, end) = read.map_err(|error| unreadable(self.name, self.number - 1, &error))?;
            self.is_ended = end != Some(0);
            // A line of nothing else is no line of the log.
            let is_of_zeros = is_first && self.is_ended && self.buffer.trim_ascii().is_empty();
            if is_of_zeros && (1..LONGEST).contains(&zeros) {
                self.buffer = vec![0; zeros];
            } else if zeros > 0 {
                self.nuls.get_or_insert((self.number, 0)).1 += zeros as u64;
            }
            if self.buffer.len() >= LONGEST {
                return Ok(Some((self.number, None)));
            }
            if !self.buffer.trim_ascii().is_empty() {
                let end = self.buffer.iter().rposition(|byte| *byte != b'\r').map_or(0, |last| last + 1);
                let line = &self.buffer[..end];
                return Ok(Some((self.number, Some(line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line)))));
            }
            if end.is_none() {
                return Ok(None);
            }
        }
    }

    pub(crate) fn note(&self) -> Option<String> {
        let (line, count) = self.nuls?;
        let found = format!("{} NUL bytes are left out, the first ones in line {line}", grouped(count));
        Some(format!("{}: {found}: a crash or a copytruncate leaves them, and lines may be missing", self.name))
    }

    /// Reads up to a line break or a NUL byte. Returns that byte, if there is one. The bytes that are too many are skipped.
    fn read(&mut self) -> io::Result<Option<u8>> {
        self.buffer.clear();
        loop {
            let next = self.reader.fill_buf()?;
            let length = next.iter().position(|byte| matches!(byte, b'\n' | 0)).unwrap_or(next.len());
            let (end, is_at_end) = (next.get(length).copied(), next.is_empty());
            self.buffer.extend_from_slice(&next[..length.min(LONGEST - self.buffer.len())]);
            self.reader.consume(length + usize::from(end == Some(b'\n')));
            if end.is_some() || is_at_end {
                return Ok(end);
            }
        }
    }
}

/// A file that is read up to the length that it had when it was opened. If it ends before, this is an error.
struct Whole<'f> {
    rest: Take<&'f File>,
    length: u64,
}

impl Read for Whole<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.rest.read(buffer)?;
        if count == 0 && self.rest.limit() > 0 && !buffer.is_empty() {
            let [read, length] = [self.length - self.rest.limit(), self.length].map(grouped);
            return Err(io::Error::other(format!(
                "the file was cut from {length} to {read} bytes while it was read: copy it, and read the copy"
            )));
        }
        Ok(count)
    }
}

/// A file that can be read several times. All passes read the same bytes, also if the file is renamed or grows meanwhile. If it was
/// cut, reading fails.
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

    /// Begins to read the lines: events, or the requests of an access log. Another reader must not be in use.
    pub(crate) fn lines(&self, are_events: bool, progress: &Progress) -> Result<Lines<'_>> {
        let name = self.name.as_str();
        let mut head = Vec::new();
        let mut open = || {
            let mut file = &self.file;
            file.rewind()?;
            let whole = Whole { rest: file.take(self.length), length: self.length };
            let buffered = BufReader::with_capacity(1 << 16, progress.wrap_read(whole));
            // Some files are compressed twice.
            let (reader, pipe) = decompressed(Box::new(buffered), "")?;
            let (mut reader, pipe) = decompressed(reader, &pipe)?;
            reader.by_ref().take(HEAD).read_to_end(&mut head)?;
            Ok((reader, pipe))
        };
        let opened = open();
        let lines = || head.iter().filter(|byte| **byte == b'\n').count();
        let (reader, pipe) = opened.map_err(|error| unreadable(name, lines(), &error))?;
        let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&head);
        let cause = of_encoding(&head).or_else(|| of_record(&String::from_utf8_lossy(text), are_events));
        if let Some(cause) = cause {
            return Err(CliError::usage(format!("{name}: {}", piped(&cause, &pipe))));
        }
        let reader = Box::new(Cursor::new(text.to_vec()).chain(reader));
        Ok(Lines { name, reader, pipe, number: 0, buffer: Vec::new(), is_ended: true, nuls: None })
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
    let mut file = tempfile::tempfile().map_err(|error| {
        let folder = std::env::temp_dir();
        io::Error::other(format!(
            "a copy of it cannot be created in {} ({error}): set TMPDIR to a folder with room for it",
            folder.display()
        ))
    })?;
    let length = io::copy(input, &mut file)?;
    Ok((file, length))
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
        ("the file is YAML", "JSON object on a line", format!("yq -o=json -I=0 '{}'", records_of_yaml(text, is_event)?))
    };
    // Another program of this name has other options.
    let tool = if command.starts_with("yq") { " (yq 4 from github.com/mikefarah/yq)" } else { "" };
    let record = if is_event { "an event" } else { "a request" };
    Some(format!("{finding}, and {record} is one {form}: convert it with {command} FILE{tool}"))
}

/// A field of a YAML mapping, which may be an item of a list. It has a lower-case letter: `INFO: ..` is a line of a log.
static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"^(?:- )?"*([A-Za-z0-9_]*[a-z][A-Za-z0-9_]*)"*:(?: ?$| [^-])"#).expect("a regular expression")
});

/// The expression of yq for the records of a YAML file: the items of a list, or the mapping itself. `None` if it is no YAML.
/// `is_event`: a mapping of one line may be a record.
fn records_of_yaml(text: &str, is_event: bool) -> Option<String> {
    let is_content = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(is_content).collect();
    let marks = lines.iter().take_while(|line| **line == "---" || line.starts_with("%YAML")).count();
    let (first, next) = (lines.get(marks).copied().unwrap_or_default(), lines.get(marks + 1).copied());
    let name = |line: &str| NAMED.captures(line).map(|found| found[1].to_owned());
    let name_of_first = name(first);
    // The lines of a log may all begin with the same name.
    let of_mapping =
        |next: &str| next.starts_with([' ', '-']) || name(next).is_some_and(|next| Some(next) != name_of_first);
    let is_mapping = name_of_first.is_some() && next.map_or(is_event, of_mapping);
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
    fn other_forms_of_records_are_named() {
        let one = ["at: 1\nlimit: a\n", "%YAML 1.2\n---\nat: 1\nlimit: a\n---\nat: 2\n", "all:\n  a: 1\n"];
        let list = ["events:\n- at: 1\n", "---\n\"events\": # last week\n  - at: 1\n"];
        for (words, heads) in [
            ("JSON array", &["\n[\n  {\n", "[]"][..]),
            ("YAML", &["---\nat: 1\n", "at: 1\n", "events:\n  - at: 1\n", "# recorded\n\n- {at: 1, limit: a}\n"]),
            ("with yq -o=json -I=0 '.' FILE", &one),
            ("with yq -o=json -I=0 '.events[]' FILE", &list),
            ("with yq -o=json -I=0 '.[]' FILE", &["---\n- at: 1\n", "---\n[{at: 1}]\n"]),
        ] {
            for head in heads {
                let cause = of_record(head, true).unwrap_or_default();
                assert!(cause.contains(words), "{head:?}: {cause}");
            }
        }
        let plain =
            ["", "::1 - - [", "{\"at\": 1}\n", "example.com:80 ::1 - -", "[17/May/2015:10:05:03 +0000] ::1", "hello"];
        let odd = ["nginx: [warn] reopened\n::1 - - [", "{\n::1 - - [", "[{\"x\": 1}\n::1 - - ["];
        let alike = ["unix: - - [\nunix: - - [", "unix: - - [", "ip: ::1 t: [1] a\nip: ::1 t: [2] a"];
        let levels = ["INFO:     ::1:54321 - \"GET / HTTP/1.1\" 200 OK", "INFO:     ::1 - \"GET\nWARNING:  invalid"];
        for head in [&plain[..], &odd, &alike, &levels].concat() {
            assert_eq!(of_record(head, true), None, "{head:?}");
        }
        // A log of one line is no YAML.
        assert_eq!(of_record("ip: 203.0.113.1 t: 2015-05-17T10:05:03Z\n", false), None);
    }

    /// The numbers and lengths of the lines, and the number of NUL bytes.
    fn lines(content: &str) -> (Vec<(usize, usize)>, Option<u64>) {
        let source = Source::bytes("the log", content.as_bytes()).unwrap();
        let mut lines = source.lines(false, &Progress::hidden()).unwrap();
        let mut read = Vec::new();
        while let Some((number, line)) = lines.next().unwrap() {
            read.push((number, line.map_or(0, <[u8]>::len)));
        }
        (read, lines.nuls.map(|(_, count)| count))
    }

    #[test]
    fn nul_bytes_end_a_line_and_do_not_count_as_its_length() {
        for zeros in [1, 99, LONGEST - 50, LONGEST, 5_000_000] {
            let hole = "\0".repeat(zeros);
            let log = format!("one\ncut{hole}{}\nthree\n", "x".repeat(100));
            let expected = (vec![(1, 3), (2, 3), (2, 100), (3, 5)], Some(zeros as u64));
            assert_eq!(lines(&log), expected, "{zeros}");
        }
        let long = "x".repeat(LONGEST);
        let log = format!("{long}\n{long}x\0three\n{}\nfive", &long[1..]);
        let expected = vec![(1, 0), (2, 0), (2, 5), (3, LONGEST - 1), (4, 4)];
        assert_eq!(lines(&log).0, expected);
        // A byte order mark begins a line.
        let log = "\u{feff}one\r\n\u{feff}two \r\n \n\nfive\t\n";
        assert_eq!(lines(log).0, [(1, 3), (2, 4), (5, 5)]);
    }
}
