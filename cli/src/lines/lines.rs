use std::io::{self, BufRead, Cursor, Read};

use crate::error::CliError;
use crate::lines::cause;
use crate::lines::compressed::Reader;
use crate::lines::counted::Position;

/// Longer lines are not read, so that a file without line breaks does not fill the memory.
const LONGEST: usize = 1 << 20;
/// The bytes from which the encoding is seen.
const HEAD: u64 = 1 << 12;

/// The lines of a source.
pub(crate) struct Lines<'s> {
    name: &'s str,
    reader: Reader<'s>,
    position: Position,
    number: usize,
    buffer: Vec<u8>,
    head: String,
}

/// A line that is not blank.
pub(crate) struct Line<'l> {
    /// The number of the line, from 1 on.
    pub(crate) number: usize,
    /// Without the line break and blanks at the end. `None` if the line is too long.
    pub(crate) bytes: Option<&'l [u8]>,
}

impl<'s> Lines<'s> {
    pub(super) fn new(name: &'s str, mut reader: Reader<'s>, position: Position) -> Result<Self, CliError> {
        let mut head = Vec::new();
        let read = reader.by_ref().take(HEAD).read_to_end(&mut head);
        read.map_err(|error| CliError::usage(format!("cannot read {name}: {error}")))?;
        if let Some(cause) = cause::of_encoding(&head) {
            return Err(CliError::usage(format!("{name}: {cause}")));
        }
        let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head).to_vec();
        let head = String::from_utf8_lossy(&text).into_owned();
        Ok(Self {
            name,
            reader: Box::new(Cursor::new(text).chain(reader)),
            position,
            number: 0,
            buffer: Vec::new(),
            head,
        })
    }

    /// The beginning of the text.
    pub(crate) fn head(&self) -> &str {
        &self.head
    }

    /// The number of bytes of the stored file that were read.
    pub(crate) fn position(&self) -> u64 {
        self.position.get()
    }

    /// Reads the next line that is not blank.
    pub(crate) fn next(&mut self) -> Result<Option<Line<'_>>, CliError> {
        loop {
            self.buffer.clear();
            let is_whole = self.read().map_err(|error| {
                CliError::usage(format!("cannot read {} after line {}: {error}", self.name, self.number))
            })?;
            if self.buffer.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            if !is_whole {
                return Ok(Some(Line { number: self.number, bytes: None }));
            }
            if !self.buffer.trim_ascii_end().is_empty() {
                return Ok(Some(Line { number: self.number, bytes: Some(self.buffer.trim_ascii_end()) }));
            }
        }
    }

    /// Reads a line. Returns whether it was read whole; otherwise the rest was skipped.
    fn read(&mut self) -> io::Result<bool> {
        self.reader.by_ref().take(LONGEST as u64).read_until(b'\n', &mut self.buffer)?;
        if self.buffer.len() < LONGEST || self.buffer.ends_with(b"\n") {
            return Ok(true);
        }
        loop {
            let rest = self.reader.fill_buf()?;
            let end = rest.iter().position(|byte| *byte == b'\n');
            let (length, is_last) = (end.map_or(rest.len(), |end| end + 1), rest.is_empty() || end.is_some());
            self.reader.consume(length);
            if is_last {
                return Ok(false);
            }
        }
    }
}
