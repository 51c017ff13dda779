//! Decompresses gzip and zstd files. The first bytes of a file show its format, not its name.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

pub(super) type Reader<'s> = Box<dyn BufRead + Send + 's>;

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
    if let Some((_, format, command)) = OTHERS.iter().find(|(magic, ..)| head.starts_with(magic)) {
        return Err(io::Error::other(format!(
            "it is compressed with {format}; only gzip and zstd are read: decompress it with {command} FILE | pg-limiter .. -"
        )));
    }
    Ok(match head {
        [0x1f, 0x8b, ..] => Box::new(BufReader::new(Decompressed(Gzip(Some(GzDecoder::new(stored))), "gzip"))),
        // It may begin with a frame of other data.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x28, 0xb5, 0x2f] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
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
            while let zeros @ 1.. = source.fill_buf()?.iter().take_while(|byte| **byte == 0).count() {
                source.consume(zeros);
            }
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
            (&[&gzip[..], &[0; 5], gzip, &[0; 512]].concat(), "one\ntwo\none\ntwo\n"),
            (zstd, "one\ntwo\n"),
            (&[&zstd[..], more, skipped, zstd].concat(), "one\ntwo\nthree\none\ntwo\n"),
            (&[&skipped[..], zstd].concat(), "one\ntwo\n"),
            (b"plain\n", "plain\n"),
            (b"", ""),
        ] {
            assert_eq!(read(bytes).expect(expected), expected);
        }
        let (last, damaged) = (zstd.len() - 1, &mut zstd.to_owned());
        damaged[last] ^= 1;
        for bytes in [&damaged[..], &zstd[..last], &more[..12], &gzip[..20], &[&gzip[..], b"x"].concat()] {
            let error = read(bytes).expect_err("damaged").to_string();
            assert!(error.contains(" file is damaged or cut off"), "{error}: {bytes:?}");
        }
    }
}
