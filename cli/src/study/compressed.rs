//! Decompresses gzip and zstd files. The first bytes of a file show its format, not its name.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

pub(super) type Reader<'s> = Box<dyn BufRead + Send + 's>;

/// Other formats, and the commands that decompress them.
const OTHERS: [(&[u8], &str, &str); 7] = [
    (b"\xfd7zXZ\0", "xz", "xz -dc < FILE"),
    (b"BZh", "bzip2", "bzip2 -dc < FILE"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc < FILE"),
    (b"\x1f\x9d", "compress", "uncompress -c < FILE"),
    // Archives may have several files, of which one is the log.
    (b"PK\x03\x04", "zip", "unzip -p FILE NAME"),
    (b"7z\xbc\xaf\x27\x1c", "7z", "7z x -so FILE NAME"),
    (b"Rar!\x1a\x07", "rar", "unrar p -inul FILE NAME"),
];

/// Decompresses gzip and zstd. `pipe`: the commands that print what is stored, if it is no file; those that print the text are returned.
pub(super) fn decompressed<'s>(mut stored: Reader<'s>, pipe: &str) -> io::Result<(Reader<'s>, String)> {
    let head = stored.fill_buf()?;
    if let Some((_, format, command)) = OTHERS.iter().find(|(magic, ..)| head.starts_with(magic)) {
        let reason = format!(
            "it is compressed with {format}; only gzip and zstd are read: decompress it with {command} | pg-limiter .. -"
        );
        return Err(io::Error::other(piped(&reason, pipe)));
    }
    let (reader, program): (Box<dyn Read + Send + 's>, _) = match head {
        [0x1f, 0x8b, ..] => (Box::new(Gzip(Some(GzDecoder::new(stored)))), "gzip"),
        // It may begin with a frame of other data.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x28, 0xb5, 0x2f] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            (Box::new(Zstd { source: stored, decoder: FrameDecoder::new() }), "zstd")
        }
        _ => return Ok((stored, pipe.to_owned())),
    };
    // By its standard input, a program reads a file of any name.
    let pipe = if pipe.is_empty() { format!("{program} -dc < FILE | ") } else { format!("{pipe}{program} -dc | ") };
    let damage = format!(
        "the {program} file is damaged or cut off: copy it again, or read its undamaged part with {pipe}pg-limiter .. -"
    );
    Ok((Box::new(BufReader::new(Decompressed { reader, damage })), pipe))
}

/// A message with the command for a file in it (`with jq . FILE`), so that it reads what these commands print, if there are any.
pub(super) fn piped(message: &str, pipe: &str) -> String {
    let command = message.split_once(" FILE").filter(|_| !pipe.is_empty()).and_then(|(before, after)| {
        let start = before.rfind("with ").map(|at| at + 5).max(before.rfind('`').map(|at| at + 1))?;
        Some(format!("{}{pipe}{}{after}", &before[..start], before[start..].trim_end_matches(" <")))
    });
    command.unwrap_or_else(|| message.to_owned())
}

struct Decompressed<'s> {
    reader: Box<dyn Read + Send + 's>,
    damage: String,
}

impl Read for Decompressed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let explained = |error: io::Error| error.raw_os_error().map_or(io::Error::other(&*self.damage), |_| error);
        self.reader.read(buffer).map_err(explained)
    }
}

/// Skips NUL bytes. Returns their number.
pub(super) fn skip_zeros(source: &mut impl BufRead) -> io::Result<usize> {
    let mut count = 0;
    while let zeros @ 1.. = source.fill_buf()?.iter().take_while(|byte| **byte == 0).count() {
        source.consume(zeros);
        count += zeros;
    }
    Ok(count)
}

/// Decompresses all members of a gzip file, which zeros may follow: backups and tapes fill up their blocks.
struct Gzip<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let length = member.read(buffer)?;
            if length > 0 || buffer.is_empty() {
                return Ok(length);
            }
            let Some(mut source) = self.0.take().map(GzDecoder::into_inner) else { break };
            skip_zeros(&mut source)?;
            self.0 = (!source.fill_buf()?.is_empty()).then(|| GzDecoder::new(source));
        }
        Ok(0)
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
