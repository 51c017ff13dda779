//! The lines of a file, which is decompressed if need be. Its first bytes show its format, not its name.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::error::CliError;
use crate::input::{self, of_encoding};
use crate::output::Progress;

/// Longer lines are not read, so that a file without line breaks does not fill the memory.
const LONGEST: usize = 1 << 20;
/// The bytes from which the encoding is seen.
const HEAD: u64 = 1 << 12;

/// The lines of a source.
pub(crate) struct Lines<'s> {
    name: &'s str,
    reader: Reader<'s>,
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
    pub(super) fn new(name: &'s str, mut reader: Reader<'s>) -> Result<Self, CliError> {
        let mut head = Vec::new();
        reader.by_ref().take(HEAD).read_to_end(&mut head).map_err(|error| unreadable(name, &error))?;
        if let Some(cause) = of_encoding(&head) {
            return Err(CliError::usage(format!("{name}: {cause}")));
        }
        let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head).to_vec();
        let head = String::from_utf8_lossy(&text).into_owned();
        let reader = Box::new(Cursor::new(text).chain(reader));
        Ok(Self { name, reader, number: 0, buffer: Vec::new(), head })
    }

    /// The beginning of the text.
    pub(crate) fn head(&self) -> &str {
        &self.head
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

/// A file that can be read several times. All passes read the same bytes, also if the file is renamed or grows meanwhile.
pub(crate) struct Source {
    name: String,
    content: Content,
}

enum Content {
    /// With its length when it was opened.
    File(File, u64),
    Bytes(Vec<u8>),
}

impl Source {
    /// Opens a file; `-` is standard input. A file that can be read only once, such as a pipe, is copied to a temporary file.
    pub(crate) fn open(path: &Path) -> Result<Self, CliError> {
        let name = input::name(path);
        let content = open(path).map_err(|error| unreadable(&name, &error))?;
        Ok(Self { name, content })
    }

    pub(crate) fn bytes(name: &str, bytes: Vec<u8>) -> Self {
        Self { name: name.to_owned(), content: Content::Bytes(bytes) }
    }

    /// The name for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The length in bytes, as it is stored.
    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            Content::File(_, length) => *length,
            Content::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Begins to read the lines, and shows the position in the stored file. Another reader must not be in use.
    pub(crate) fn lines(&self, progress: &Progress) -> Result<Lines<'_>, CliError> {
        let buffered = |stored| Box::new(BufReader::with_capacity(1 << 16, progress.wrap_read(stored)));
        let plain = self.stored().and_then(|stored| decompressed(buffered(stored)));
        Lines::new(&self.name, plain.map_err(|error| unreadable(&self.name, &error))?)
    }

    fn stored(&self) -> io::Result<Box<dyn Read + Send + '_>> {
        match &self.content {
            Content::Bytes(bytes) => Ok(Box::new(bytes.as_slice())),
            Content::File(file, length) => {
                let mut file = file.try_clone()?;
                file.seek(SeekFrom::Start(0))?;
                Ok(Box::new(file.take(*length)))
            }
        }
    }
}

fn unreadable(name: &str, error: &io::Error) -> CliError {
    CliError::usage(format!("cannot read {name}: {error}"))
}

fn open(path: &Path) -> io::Result<Content> {
    if input::is_stdin(path) {
        return spooled(&mut io::stdin().lock());
    }
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if metadata.is_file() { Ok(Content::File(file, metadata.len())) } else { spooled(&mut file) }
}

/// Copies the input to a temporary file, so that memory does not have to hold it.
fn spooled(input: &mut dyn Read) -> io::Result<Content> {
    let mut file = tempfile::tempfile()?;
    let length = io::copy(input, &mut file)?;
    Ok(Content::File(file, length))
}

/// A reader of lines.
pub(super) type Reader<'s> = Box<dyn BufRead + Send + 's>;

const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
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
pub(super) fn decompressed(mut stored: Reader<'_>) -> io::Result<Reader<'_>> {
    let head = stored.fill_buf()?;
    if head.starts_with(GZIP) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(stored))));
    }
    if head.starts_with(ZSTD) {
        return Ok(Box::new(BufReader::new(Zstd { source: stored, decoder: FrameDecoder::new() })));
    }
    match OTHERS.iter().find(|(magic, ..)| head.starts_with(magic)) {
        None => Ok(stored),
        Some((_, format, command)) => Err(io::Error::other(format!(
            "it is compressed with {format}; only gzip and zstd are read: decompress it with {command} FILE | pg-limiter .. -"
        ))),
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
            return Err(io::Error::other("the zstd file is damaged: a checksum differs"));
        }
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.source.by_ref().take(u64::from(length)), &mut io::sink())?;
                }
                Err(error) => return Err(damaged(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 {
            if self.decoder.is_finished() {
                if !self.next_frame()? {
                    return Ok(0);
                }
            } else {
                self.decoder.decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1)).map_err(damaged)?;
            }
        }
        self.decoder.read(buffer)
    }
}

fn damaged(error: FrameDecoderError) -> io::Error {
    io::Error::other(format!("the zstd file is damaged or cut: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }
}
