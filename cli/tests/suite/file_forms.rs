//! Compressed files, files in other encodings and forms, NUL bytes, and input that is copied first.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::binary::{run, tool};
use crate::lines::{CUT, EVENT, LIMITS, REQUEST, between, counted, replay, written};
use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn compressed_files_are_read_as_they_are() {
    let database = Database::empty().await;
    let url = Some(database.url.as_str());
    let gzip = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).expect("compress");
        encoder.finish().expect("compress")
    };
    let zstd = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    let skipped = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc";
    // A request in a frame of zstd, without and with the checksum of the usual tool.
    let alone = [b"\x28\xb5\x2f\xfd\x20\x44\x21\x02\0", REQUEST.as_bytes()].concat();
    let checked = [b"\x28\xb5\x2f\xfd\x24\x44\x21\x02\0", REQUEST.as_bytes(), b"\x9d\xea\xf0\xd6"].concat();
    let half = REQUEST.repeat(300);
    for (name, content) in [
        ("access.log.gz", gzip(&half.repeat(2))),
        ("access.log", [gzip(&half), gzip(&half)].concat()),
        // Backups and tapes fill up their blocks with zeros.
        ("access.log", [&gzip(&half)[..], &[0; 5], &gzip(&half), &[0; 512]].concat()),
        ("access.log.zst", zstd(&half.repeat(2))),
        ("access.log", [&zstd(&half)[..], skipped, &zstd(&half)].concat()),
        ("access.log", [&skipped[..], &checked.repeat(100), &alone.repeat(200), &zstd(&half)].concat()),
    ] {
        counted(&replay(url, name, &content, &[]), "600");
    }
    counted(&replay(url, "events.jsonl.gz", &gzip(&EVENT.repeat(3)), &[]), "3");
    let twice = |inner: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(inner).and_then(|()| encoder.finish()).expect("compress")
    };
    for inner in [gzip(&half), zstd(&half)] {
        counted(&replay(url, "access.log.gz", &twice(&inner), &[]), "300");
    }
    replay(None, "access.log.gz", &twice(b"BZh91AY"), &[]).refuses(2, &["compressed with bzip2"]);
    for cut in 1..zstd("").len().min(5) {
        let refused = replay(None, "access.log.zst", &zstd(&half)[..cut], &[]);
        assert!(refused.code == Some(2) && (cut < 3 || refused.stderr.contains("the zstd file is damaged")), "{cut}");
    }
    for (content, words) in [(gzip(&half), "cannot read "), (zstd(&half), "the zstd file is damaged or cut")] {
        let cut = &content[..content.len() - 9];
        replay(None, "access.log", cut, &[]).refuses(2, &["cannot read ", words]);
    }
    let mut damaged = checked.clone();
    damaged[checked.len() - 1] ^= 1;
    let more = [&gzip(&half)[..], b"x"].concat();
    for content in [&damaged[..], &checked[..checked.len() - 1], &alone[..12], &gzip(&half)[..20], &more] {
        replay(None, "access.log", content, &[]).refuses(2, &["cannot read ", " file is damaged or cut off"]);
    }
    // Lines that differ, so that most of them are before the cut.
    let lines: String = (0..12_000)
        .map(|place: u64| REQUEST.replace("GET /", &format!("GET /{}", place.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
        .collect();
    for (content, program) in [(gzip(&lines), "gzip"), (zstd(&lines), "zstd")] {
        for part in [3, 10] {
            let cut = &content[..content.len() * part / 11];
            let damaged = &format!(": the {program} file is damaged or cut off: copy it again");
            let refused = replay(None, "access.log", cut, &[]);
            refused.refuses(2, &["cannot read ", " after line ", damaged, &format!("{program} -dc < FILE")]);
        }
        replay(None, "events.jsonl", &content[..9], &[]).refuses(2, &["cannot read ", " file is damaged or cut off: "]);
    }
    for (magic, words) in [
        (&b"\xfd7zXZ\0\0"[..], "xz -dc < FILE"),
        (b"BZh91AY", "bzip2 -dc < FILE"),
        (b"PK\x03\x04", "unzip -p FILE NAME"),
        (b"Rar!\x1a\x07\x01\0", "unrar p -inul FILE NAME"),
    ] {
        replay(None, "access.log", magic, &[]).refuses(2, &["access.log", words]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_encodings_and_forms_name_their_cause() {
    let database = Database::empty().await;
    let url = Some(database.url.as_str());
    counted(&replay(url, "events.jsonl", format!("\u{feff}{EVENT}{EVENT}").as_bytes(), &[]), "2");
    counted(&replay(url, "access.log", REQUEST.replace('\n', "\r\n").repeat(2).as_bytes(), &[]), "2");
    // The hole that logrotate's copytruncate leaves.
    counted(&replay(url, "access.log", format!("{}{REQUEST}{REQUEST}", "\0".repeat(5000)).as_bytes(), &[]), "2");
    let seconds = replay(url, "events.jsonl", EVENT.replace("600000", "600").as_bytes(), &[]);
    counted(&seconds, "1");
    assert!(seconds.stderr.contains("begins in 1970: `at` counts milliseconds"), "{}", seconds.stderr);
    let with_mark = format!("\u{feff}{EVENT}");
    let utf16: Vec<u8> = with_mark.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let reversed: Vec<u8> = with_mark.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let utf32: Vec<u8> = with_mark.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
    for (name, content, words) in [
        ("events.jsonl", &utf16[..], "iconv -f UTF-16 "),
        ("events.jsonl", &utf16[2..], "iconv -f UTF-16LE"),
        ("events.jsonl", &reversed, "iconv -f UTF-16 "),
        ("events.jsonl", &reversed[2..], "iconv -f UTF-16BE"),
        ("events.jsonl", &utf32, "iconv -f UTF-32 "),
        ("events.jsonl", b"{}\r{}\r", "tr '\\r' '\\n'"),
        ("access.log", &REQUEST.replace('\n', "\r").repeat(2).into_bytes(), "CR alone"),
        // Lines of text, which are no events.
        ("events.jsonl", b"{}", "missing field"),
        ("events.jsonl", b"{}\r", "missing field"),
        ("events.jsonl", b"{}\r\n{}\r\n", "missing field"),
        ("events.jsonl", "\u{feff}{}\n".as_bytes(), "missing field"),
        ("events.jsonl", "é\n".as_bytes(), "not a JSON object"),
        ("events.json", b"[{\"at\": 1, \"limit\": \"api\"}]", "one JSON array"),
        ("events.json", b"{\n  \"at\": 1\n}\n", "several lines"),
        ("events.yaml", b"- at: 1\n  limit: api\n", "YAML"),
        ("events.yaml", b"- at: 1\n  limit: api\n", "yq -o=json -I=0 '.[]' FILE"),
        ("events.yaml", b"at: 1\nlimit: api\n", "yq -o=json -I=0 '.' FILE"),
    ] {
        replay(None, name, content, &[]).refuses(2, &[name, words]);
    }
    for (content, words) in [("", "is empty"), ("\n \n", "has no lines")] {
        let empty = replay(url, "events.jsonl", content.as_bytes(), &[]);
        counted(&empty, "0");
        assert!(empty.stderr.contains(words), "{}", empty.stderr);
    }
    let (dir, path) = written("limits.json", &utf16);
    let limits = dir.path().join("limits.toml").display().to_string();
    fs::write(&limits, format!("\u{feff}{LIMITS}")).expect("write the limits");
    counted(&run(url, &["replay", "--limits", &limits, "--events", "-"], EVENT), "1");
    run(url, &["limit", "api", "--limits", &path], "").refuses(2, &["limits.json", "UTF-16"]);
}

/// The commands in messages work as they are: here, on a file that the shell's commands decompress.
#[test]
fn a_command_for_a_compressed_file_decompresses_it() {
    let gzip = |inner: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(inner).and_then(|()| encoder.finish()).expect("compress")
    };
    let zstd = |inner: &[u8]| compress_to_vec(inner, CompressionLevel::Fastest);
    let utf16: Vec<u8> = format!("\u{feff}{EVENT}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let tar = [&b"access.log".repeat(26)[..257], b"ustar\x0000"].concat();
    let of_docker = b"{\"log\":\"{}\\n\",\"stream\":\"stdout\",\"time\":\"2025-10-10T20:55:36.1Z\"}\n";
    let long = "x".repeat(1 << 20);
    for (name, content, command) in [
        ("events.json", &b"[{\"at\": 1, \"limit\": \"api\"}]"[..], "jq -c '.[]'"),
        ("events.json", b"- at: 1\n  limit: api\n", "yq -o=json -I=0 '.[]'"),
        ("events.json", &utf16, "iconv -f UTF-16 -t UTF-8"),
        ("access.log", REQUEST.replace('\n', "\r").repeat(2).as_bytes(), "tr '\\r' '\\n'"),
        ("access.log", &tar, "tar -xOf - NAME"),
        ("access.log", of_docker, "jq -j .log"),
        ("access.log", format!(" {REQUEST}").as_bytes(), "sed 's/^[[:blank:]]*//'"),
        ("access.log", long.as_bytes(), "sed -n 1p"),
    ] {
        replay(None, name, &gzip(content), &[]).refuses(2, &[&format!("gzip -dc < FILE | {command}")]);
        replay(None, name, &zstd(content), &[]).refuses(2, &[&format!("zstd -dc < FILE | {command}")]);
        replay(None, name, &gzip(&zstd(content)), &[])
            .refuses(2, &[&format!("gzip -dc < FILE | zstd -dc | {command}")]);
        let plain = replay(None, name, content, &[]);
        assert!(plain.stderr.contains(command) && !plain.stderr.contains("FILE | zstd"), "{}", plain.stderr);
    }
    replay(None, "access.log", &gzip(b"BZh91AY"), &[])
        .refuses(2, &["with gzip -dc < FILE | bzip2 -dc | pg-limiter .. -"]);
    let cut = gzip(&zstd(REQUEST.repeat(300).as_bytes())[..30]);
    replay(None, "access.log", &cut, &[])
        .refuses(2, &["the zstd file is damaged", "with gzip -dc < FILE | zstd -dc | pg-limiter"]);
}

/// A crash or logrotate's copytruncate leaves a stretch of zeros, at the beginning of a line or within one.
#[tokio::test(flavor = "multi_thread")]
async fn nul_bytes_are_left_out_and_counted() {
    let database = Database::empty().await;
    let url = Some(database.url.as_str());
    for (zeros, number) in [(2, "2"), (5000, "5,000"), (3 << 20, "3,145,728")] {
        let hole = "\0".repeat(zeros);
        let logs = [format!("{hole}{REQUEST}{REQUEST}"), format!("{REQUEST}{hole}{REQUEST}")];
        for (log, line) in logs.into_iter().zip(1..) {
            let note = format!("access.log: {number} NUL bytes are left out, the first ones in line {line}: ");
            let read = replay(url, "access.log", log.as_bytes(), &[]);
            counted(&read, "2");
            assert!(read.stderr.contains(&note), "{zeros}: {}", read.stderr);
        }
    }
    // The request after the hole is read, although the line before it was cut.
    let cut = format!("{}\0\0\0{REQUEST}{CUT}", CUT.trim_end());
    let read = replay(url, "access.log", &between(REQUEST, &cut), &[]);
    counted(&read, "201");
    for words in ["3 NUL bytes are left out, the first ones in line 101: ", "  line 101: ", "  line 102: "] {
        assert!(read.stderr.contains(words), "{words}: {}", read.stderr);
    }
    let events = replay(url, "events.jsonl", format!("{EVENT}\0\0{EVENT}").as_bytes(), &[]);
    counted(&events, "2");
    assert!(events.stderr.contains("events.jsonl: 2 NUL bytes are left out"), "{}", events.stderr);
}

#[test]
fn a_copy_that_cannot_be_created_names_the_folder() {
    let (dir, _) = written("access.log", b"");
    let limits = dir.path().join("limits.toml");
    let mut command = Command::new(tool());
    command.args(["replay", "--apply", "api", "--access-log", "-", "--limits"]).arg(limits);
    let output = command.env("TMPDIR", "/nonexistent").stdin(Stdio::null()).output().expect("start the tool");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("cannot read standard input: ") && message.contains("/nonexistent"), "{message}");
    assert!(message.contains("set TMPDIR to a folder"), "{message}");
}
