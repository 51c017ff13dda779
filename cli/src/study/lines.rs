//! Reads the lines of files of any size, plain or compressed. If the beginning of a file has no records, the cause is named.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek};
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use crate::error::{CliError, Result};
use crate::input::{self, of_encoding};
use crate::output::Progress;
use crate::study::compressed::{Reader, decompressed, piped};
use crate::text::grouped;

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
    /// A line, of which this much was returned.
    buffer: Vec<u8>,
    start: usize,
    /// The line of the first NUL byte, and the number of those that were left out, if there are any.
    nuls: Option<(usize, u64)>,
}

/// The number of a line, from 1 on, and its bytes without the line break and blanks at the end. No bytes if it is too long.
type Line<'l> = (usize, Option<&'l [u8]>);

impl Lines<'_> {
    /// Reads the next line that is not blank. NUL bytes end a line, too: a crash leaves a hole after a line that was cut, and a
    /// server that writes on to a file that was cut, as by logrotate's copytruncate, one before its first line.
    pub(crate) fn next(&mut self) -> Result<Option<Line<'_>>> {
        loop {
            if self.start == self.buffer.len() {
                self.number += 1;
                let is_whole = self.read().map_err(|error| unreadable(self.name, self.number - 1, &error))?;
                self.start = if is_whole { 0 } else { self.buffer.len() };
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                if !is_whole {
                    return Ok(Some((self.number, None)));
                }
            }
            let rest = self.buffer[self.start..].trim_ascii_end();
            let hole = rest.iter().take_while(|byte| **byte == 0).count();
            // A line of nothing else is no line of the log.
            let hole = if self.start == 0 && hole == rest.len() { 0 } else { hole };
            let text = &rest[hole..];
            let cut = text.iter().position(|byte| *byte == 0).filter(|cut| *cut > 0);
            let (begin, length) = (self.start + hole, cut.unwrap_or(text.len()));
            self.start = cut.map_or(self.buffer.len(), |cut| begin + cut);
            self.count(hole);
            if length > 0 {
                return Ok(Some((self.number, Some(&self.buffer[begin..begin + length]))));
            }
        }
    }

    fn count(&mut self, nuls: usize) {
        if nuls > 0 {
            self.nuls.get_or_insert((self.number, 0)).1 += nuls as u64;
        }
    }

    pub(crate) fn note(&self) -> Option<String> {
        let (line, count) = self.nuls?;
        let found = format!("{} NUL bytes are left out, the first ones in line {line}", grouped(count));
        Some(format!("{}: {found}: a crash or a copytruncate leaves them, and lines may be missing", self.name))
    }

    /// Returns whether a line was read whole; otherwise the rest was skipped.
    fn read(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        while self.reader.by_ref().take(LONGEST as u64).read_until(b'\n', &mut self.buffer)? == LONGEST
            && self.buffer.iter().all(|byte| *byte == 0)
        {
            self.count(LONGEST);
            self.buffer.clear();
        }
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

    /// Begins to read the lines: events, or the requests of an access log. Another reader must not be in use.
    pub(crate) fn lines(&self, are_events: bool, progress: &Progress) -> Result<Lines<'_>> {
        let name = self.name.as_str();
        let mut head = Vec::new();
        let mut open = || {
            let mut file = &self.file;
            file.rewind()?;
            let buffered = BufReader::with_capacity(1 << 16, progress.wrap_read(file.take(self.length)));
            // Some files are compressed twice.
            let (reader, pipe) = decompressed(Box::new(buffered), "")?;
            let (mut reader, pipe) = decompressed(reader, &pipe)?;
            reader.by_ref().take(HEAD).read_to_end(&mut head)?;
            Ok((reader, pipe))
        };
        let opened = open();
        let lines = || head.iter().filter(|byte| **byte == b'\n').count();
        let (reader, pipe) = opened.map_err(|error| unreadable(name, lines(), &error))?;
        let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head);
        let cause = of_encoding(&head).or_else(|| of_record(&String::from_utf8_lossy(text), are_events));
        if let Some(cause) = cause {
            return Err(CliError::usage(format!("{name}: {}", piped(&cause, &pipe))));
        }
        let reader = Box::new(Cursor::new(text.to_vec()).chain(reader));
        Ok(Lines { name, reader, pipe, number: 0, buffer: Vec::new(), start: 0, nuls: None })
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
fn records_of_yaml(text: &str) -> Option<String> {
    let is_content = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(is_content).collect();
    let marks = lines.iter().take_while(|line| **line == "---" || line.starts_with("%YAML")).count();
    let (first, next) = (lines.get(marks).copied().unwrap_or_default(), lines.get(marks + 1).copied());
    let name = |line: &str| NAMED.captures(line).map(|found| found[1].to_owned());
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
        let plain =
            ["", "::1 - - [", "{\"at\": 1}\n", "example.com:80 ::1 - -", "[17/May/2015:10:05:03 +0000] ::1", "hello"];
        let odd = ["nginx: [warn] reopened\n::1 - - [", "{\n::1 - - [", "[{\"x\": 1}\n::1 - - ["];
        let alike = ["unix: - - [\nunix: - - [", "unix: - - [", "ip: ::1 t: [1] a\nip: ::1 t: [2] a"];
        let levels = ["INFO:     ::1:54321 - \"GET / HTTP/1.1\" 200 OK", "INFO:     ::1 - \"GET\nWARNING:  invalid"];
        for head in [&plain[..], &odd, &alike, &levels].concat() {
            assert_eq!(of_record(head, true), None, "{head:?}");
        }
    }
}
