//! Files with odd lines, and files that are not in the order of time. `file_forms` tests compressed files and other forms.

use std::fs;

use tempfile::TempDir;

use crate::binary::{Run, run};
use crate::support::Database;

pub const LIMITS: &str = "[limits.api]\nkind = \"fixed_window\"\nrate = 2\nperiod = \"1h\"\nstart = \"0s\"\n";
pub const REQUEST: &str = "203.0.113.1 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n";
pub const EVENT: &str = "{\"at\": 1767225600000, \"limit\": \"api\"}\n";
pub const CUT: &str = "203.0.113.1 - - [17/May/2015:10:05:03 +0000] \"GET /\n";

/// Replays a file with this content.
pub fn replay(url: Option<&str>, name: &str, content: &[u8], more: &[&str]) -> Run {
    let (dir, path) = written(name, content);
    let limits = dir.path().join("limits.toml").display().to_string();
    let recorded: &[&str] =
        if name.starts_with("events") { &["--events", &path] } else { &["--apply", "api", "--access-log", &path] };
    run(url, &[&["replay", "--limits", &limits], recorded, more].concat(), "")
}

pub fn written(name: &str, content: &[u8]) -> (TempDir, String) {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("limits.toml"), LIMITS).expect("write the limits");
    let path = dir.path().join(name);
    fs::write(&path, content).expect("write a file");
    (dir, path.display().to_string())
}

/// 100 good lines, these lines, and 100 good lines.
pub fn between(good: &str, odd: &str) -> Vec<u8> {
    format!("{}{odd}{}", good.repeat(100), good.repeat(100)).into_bytes()
}

pub fn counted(run: &Run, requests: &str) {
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let is_total = |line: &str| line.starts_with(&format!("{requests} request"));
    assert!(run.stdout.lines().any(is_total), "{}{}", run.stdout, run.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_odd_line_is_shown_and_left_out() {
    let database = Database::empty().await;
    let url = Some(database.url.as_str());
    let long = format!("{}\n", "x".repeat(3 << 20));
    for (name, good, odd, reason) in [
        ("access.log", REQUEST, CUT, "the closing quote of request is missing"),
        ("access.log", REQUEST, &format!("{}\n", "\0".repeat(99)), "\\0\\0…\", after remote_addr"),
        ("access.log", REQUEST, &long, "the line is longer than 1 MiB; see how it begins with sed -n 101p FILE"),
        ("events.jsonl", EVENT, "{\"at\": 1767225600000, \"lim\n", "EOF while parsing"),
        (
            "events.jsonl",
            EVENT,
            "{\"at\": 1767225600000, \"op\": \"release\", \"lease\": \"l\"}\n",
            "no earlier call has the lease",
        ),
    ] {
        let content = between(good, odd);
        let left_out = replay(url, name, &content, &[]);
        counted(&left_out, "200");
        let note = format!("{name}: 1 of 201 lines cannot be read and are left out:\n  line 101: ");
        assert!(left_out.stderr.contains(&note) && left_out.stderr.contains(reason), "{}", left_out.stderr);
        for options in [&["--strict"][..], &["--max-bad-lines", "0"], &["--max-bad-lines", "0.4%"]] {
            replay(None, name, &content, options).refuses(2, &[&format!("{name}, line 101: "), reason]);
        }
        counted(&replay(url, name, &[content, odd.repeat(3).into_bytes()].concat(), &["--max-bad-lines", "4"]), "200");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_five_odd_lines_are_shown() {
    let database = Database::empty().await;
    let content = format!("{}{}", CUT.repeat(7), REQUEST.repeat(993));
    let left_out = replay(Some(&database.url), "access.log", content.as_bytes(), &[]);
    counted(&left_out, "993");
    let shown = left_out.stderr.lines().filter(|line| line.starts_with("  line ")).count();
    assert!(shown == 5 && left_out.stderr.contains("\n  and 2 more\n"), "{}", left_out.stderr);
    let refused = replay(None, "access.log", format!("{CUT}{REQUEST}{CUT}").as_bytes(), &[]);
    refused.refuses(
        2,
        &["access.log, line 1: ", "2 of 3 lines", "66.7 %", "--max-bad-lines allows 1%; another is line 3"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn json_has_an_object_for_each_line_that_is_not_blank() {
    let database = Database::empty().await;
    let content = between(EVENT, "\nhello\n");
    let decided = replay(Some(&database.url), "events.jsonl", &content, &["--json"]);
    let lines: Vec<&str> = decided.stdout.lines().collect();
    assert_eq!((decided.code, lines.len()), (Some(0), 201), "{}", decided.stderr);
    assert!(lines[100].starts_with(r#"{"error": "invalid_line", "message": "line 102: "#), "{}", lines[100]);
    assert!(lines[101].starts_with(r#"{"ok": false"#), "{}", lines[101]);
}

/// Parts of a line that another format reads are still parts of that line.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_was_cut_anywhere_is_left_out() {
    let database = Database::empty().await;
    let combined = REQUEST.replace('\n', " \"https://www.example.com/a\" \"Mozilla/5.0 (X11; Linux x86_64)\"\n");
    let main = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \
                \"$http_user_agent\" \"$http_x_forwarded_for\"";
    let line_of_main = combined.replace('\n', " \"198.51.100.7\"\n");
    let docker = format!("2026-01-01T00:00:00.000000000Z {combined}");
    let vhost = format!("example.com:80 {combined}");
    for (format, line) in
        [(None, &combined), (Some(main), &line_of_main), (Some("docker"), &docker), (Some("vhost"), &vhost)]
    {
        let options = format.map_or_else(Vec::new, |format| vec!["--log-format", format]);
        let ends = (1..line.len() - 1).step_by(7).map(|end| format!("{}\n", &line[..end]));
        let junk = format!("{}\u{1b}[31mred\n", line.trim_end());
        let cut =
            ends.chain((1..40).step_by(3).map(|start| line[start..].to_owned())).chain([junk]).collect::<String>();
        let content = format!("{}{cut}{}", line.repeat(300), line.repeat(300));
        let run = replay(
            Some(&database.url),
            "access.log",
            content.as_bytes(),
            &[&options[..], &["--max-bad-lines", "50%"]].concat(),
        );
        assert_eq!(run.code, Some(0), "{format:?}: {}", run.stderr);
    }
}

/// The bytes that clients put into a log stay different.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_text_make_different_keys() {
    let database = Database::empty().await;
    let mut content = Vec::new();
    for agent in [&b"a\xffb"[..], b"a\xfeb", "a\u{fffd}b".as_bytes()] {
        let line = [REQUEST.trim_end().as_bytes(), b" \"-\" \"", agent, b"\"\n"].concat();
        content.extend(line.repeat(3));
    }
    let run = replay(Some(&database.url), "access.log", &content, &["--key", "user_agent"]);
    counted(&run, "9");
    for key in ["a\\\\xFFb", "a\\\\xFEb", "a\u{fffd}b"] {
        assert!(run.stdout.contains(key), "{key}: {}", run.stdout);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_bad_lines_at_the_beginning_say_that_the_rest_was_not_read() {
    let database = Database::empty().await;
    let content = format!("{}{}", "starting\n".repeat(1_100), REQUEST.repeat(900));
    let refused = replay(None, "access.log", content.as_bytes(), &[]);
    refused.refuses(2, &["1,000 of 1,000 lines", "the lines after these were not read", "give --max-bad-lines"]);
    // The user gave a bound: it is judged at the end.
    counted(&replay(Some(&database.url), "access.log", content.as_bytes(), &["--max-bad-lines", "55%"]), "900");
    let refused = replay(None, "access.log", content.as_bytes(), &["--max-bad-lines", "54%"]);
    refused.refuses(2, &["1,100 of 2,000 lines"]);
    assert!(!refused.stderr.contains("not read"), "{}", refused.stderr);
}

/// A file that is overwritten between the two passes. The test changes it when the tool connects to the database.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_while_it_is_read_is_an_error() {
    let database = Database::empty().await;
    let content = REQUEST.repeat(1000);
    let longer = REQUEST.replace("GET /", "GET /a").repeat(1000);
    let cut = longer[..content.len()].to_owned();
    let grown = content.repeat(30);
    for (changed, words) in [
        // Its first lines are read.
        (grown, ""),
        (String::new(), "the file was cut from 68,000 to 0 bytes while it was read: copy it, and read the copy"),
        (content[..10].to_owned(), "the file was cut from 68,000 to 10 bytes"),
        (content[..40_000].to_owned(), "the file was cut from 68,000 to 40,000 bytes"),
        (
            cut,
            "access.log was changed while it was read, from 1,000 lines with 1,000 calls to 986 lines with 985 calls",
        ),
    ] {
        for options in [&[][..], &["--json"]] {
            let (dir, path) = written("access.log", content.as_bytes());
            let limits = dir.path().join("limits.toml").display().to_string();
            let url = changing(&database.url, path.clone(), changed.clone()).await;
            let args = ["replay", "--limits", &limits, "--apply", "api", "--access-log", &path];
            let run = run(Some(&url), &[&args, options].concat(), "");
            assert_eq!(run.code, Some(if words.is_empty() { 0 } else { 2 }), "{}{}", run.stdout, run.stderr);
            assert!(run.stderr.contains(words), "no {words:?} in {}", run.stderr);
        }
    }
}

/// The URL of a proxy of this server, which writes this content into a file before it passes a connection on.
async fn changing(url: &str, path: String, content: String) -> String {
    let (before, rest) = url.split_once("//").expect("a URL");
    let (server, database) = rest.split_once('/').expect("a database");
    let (user, address) = server.rsplit_once('@').expect("a user");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let proxy = format!("{before}//{user}@{}/{database}", listener.local_addr().expect("an address"));
    let address = address.to_owned();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            fs::write(&path, &content).expect("change the file");
            let mut server = tokio::net::TcpStream::connect(&address).await.expect("the server");
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    proxy
}

/// The last field of a line may be empty, and nothing ends it.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_last_field_is_read() {
    let database = Database::empty().await;
    let at = "[17/May/2015:10:05:03 +0000]";
    let cached = "$remote_addr [$time_local] \"$request\" $status $upstream_cache_status";
    let keys = "$time_iso8601\\t$remote_addr\\t$status\\t$http_x_api_key";
    let cells = "2015-05-17T10:05:03Z\t1.2.3.4\t200\t";
    for (format, key, empty, full, shown) in [
        (cached, "status", format!("1.2.3.4 {at} \"-\" 200 "), format!("1.2.3.4 {at} \"-\" 200 HIT"), "200"),
        (
            cached,
            "$upstream_cache_status",
            format!("1.2.3.4 {at} \"-\" 200 "),
            format!("1.2.3.4 {at} \"-\" 200 HIT"),
            "HIT",
        ),
        ("%h %l %u %t %m %U %q", "uri", format!("1.2.3.4 - - {at} GET / "), format!("1.2.3.4 - - {at} GET / ?a"), "/"),
        (keys, "$http_x_api_key", cells.to_owned(), format!("{cells}k1"), "k1"),
    ] {
        // Blanks after a field that is not empty are no part of it.
        let log = format!("{empty}\n{empty}\r\n{full}\n{full} \t\r\n{full}\t\n");
        let run = replay(Some(&database.url), "access.log", log.as_bytes(), &["--log-format", format, "--key", key]);
        counted(&run, "5");
        let found = run.stdout.lines().find(|line| line.split_whitespace().next() == Some(shown));
        let is_counted = |line: &str| {
            line.split_whitespace().nth(1) == Some(if shown.len() > 1 && shown != "200" { "3" } else { "5" })
        };
        assert!(found.is_some_and(is_counted), "{format}: {}", run.stdout);
    }
}

/// A byte that is no text is written as in other formats.
#[tokio::test(flavor = "multi_thread")]
async fn a_json_line_may_have_bytes_that_are_no_text() {
    let database = Database::empty().await;
    let line = |agent: &[u8]| {
        let before = b"{\"time\":\"2015-05-17T10:05:03Z\",\"remote_addr\":\"203.0.113.1\",\"ua\":\"";
        [&before[..], agent, b"\"}\n"].concat().repeat(3)
    };
    let log = [line(b"caf\xe9"), line(b"caf\xe8"), line("caf\u{e9}".as_bytes())].concat();
    let options = ["--log-format", "json", "--key", "ua"];
    let run = replay(Some(&database.url), "access.log", &log, &options);
    counted(&run, "9");
    for key in ["caf\\\\xE9 ", "caf\\\\xE8 ", "caf\u{e9} "] {
        assert!(run.stdout.contains(key), "{key}: {}", run.stdout);
    }
    let collected = [b"web-1 | ", &line(b"caf\xe9")[..line(b"caf\xe9").len() / 3]].concat().repeat(3);
    let run = replay(Some(&database.url), "access.log", &collected, &["--log-format", "compose:json", "--key", "ua"]);
    assert!(run.stdout.contains("caf\\\\xE9 "), "{}{}", run.stdout, run.stderr);
    // The hint is about the format, and not about the byte.
    replay(None, "access.log", &line(b"caf\xe9"), &[]).refuses(2, &["--log-format json reads this line"]);
    replay(None, "access.log", &collected, &[]).refuses(2, &["--log-format compose:json reads this line"]);
}

/// Parts of files that were put together.
#[tokio::test(flavor = "multi_thread")]
async fn a_byte_order_mark_may_begin_any_line() {
    let database = Database::empty().await;
    let url = Some(database.url.as_str());
    counted(&replay(url, "access.log", format!("\u{feff}{REQUEST}\u{feff}{REQUEST}").as_bytes(), &[]), "2");
    counted(&replay(url, "events.jsonl", format!("\u{feff}{EVENT}\u{feff}{EVENT}").as_bytes(), &[]), "2");
    let json = "\u{feff}{\"time\": 1431857103, \"remote_addr\": \"203.0.113.1\"}\n".repeat(2);
    counted(&replay(url, "access.log", json.as_bytes(), &["--log-format", "json"]), "2");
}

/// A call that is denied does not take over the name of a lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_ends_the_lease_that_is_held() {
    let database = Database::empty().await;
    let dir = tempfile::tempdir().expect("a folder");
    let limits = dir.path().join("limits.toml");
    fs::write(&limits, "[limits.c]\nkind = \"concurrency\"\ncapacity = 2\nlease = \"1h\"\n").expect("write the limits");
    let limits = limits.display().to_string();
    let take = |at: usize, count: usize, lease: &str| {
        format!("{{\"at\": {at}, \"limit\": \"c\", \"key\": \"k\", \"count\": {count}, \"lease\": \"{lease}\"}}\n")
    };
    let of_lease = |at: usize, op: &str| format!("{{\"at\": {at}, \"op\": \"{op}\", \"lease\": \"job-7\"}}\n");
    let others: String = (0..300).map(|place| take(1050, 2, &format!("other-{place}"))).collect();
    let is_ok = |line: &str| line.starts_with("{\"ok\": true");
    for between in ["", &others] {
        for (events, expected) in [
            // Denied, renewed, released, and taken again.
            (
                vec![
                    take(1000, 2, "job-7"),
                    between.to_owned(),
                    take(1100, 2, "job-7"),
                    of_lease(1150, "renew"),
                    of_lease(1200, "release"),
                    take(1300, 2, "job-7"),
                    of_lease(1400, "release"),
                    of_lease(1500, "release"),
                ],
                &[true, false, true, true, true, true, false][..],
            ),
            // The last call that was admitted has the name.
            (
                vec![
                    take(1000, 1, "job-7"),
                    take(1010, 1, "job-7"),
                    between.to_owned(),
                    take(1100, 1, "job-7"),
                    of_lease(1200, "release"),
                    take(1300, 2, "x"),
                    take(1400, 1, "x"),
                    of_lease(1500, "release"),
                ],
                &[true, true, false, true, false, true, false],
            ),
            // Denied only.
            (
                vec![
                    take(1000, 2, "x"),
                    between.to_owned(),
                    take(1100, 1, "job-7"),
                    of_lease(1200, "release"),
                    take(1300, 1, "y"),
                ],
                &[true, false, false, false],
            ),
        ] {
            let run =
                run(Some(&database.url), &["replay", "--limits", &limits, "--json", "--events", "-"], &events.concat());
            let decided: Vec<bool> = run.stdout.lines().filter(|line| !line.is_empty()).map(is_ok).collect();
            let first = events.iter().position(|event| event == between).unwrap_or_default();
            let own = [&decided[..first], &decided[first + between.lines().count()..]].concat();
            assert_eq!(own, expected, "{}{}", run.stdout, run.stderr);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_another_format_is_left_out_within_the_bound() {
    let database = Database::empty().await;
    let url = Some(database.url.as_str());
    let json = "{\"time\": 1431857103, \"remote_addr\": \"203.0.113.1\", \"request\": \"GET / HTTP/1.1\"}\n";
    for (other, option) in [
        (format!("example.com:80 {REQUEST}"), "vhost"),
        (json.to_owned(), "json"),
        (REQUEST.replacen("203.0.113.1", "203.0.113.1, 10.0.0.1", 1), "'$http_x_forwarded_for - "),
    ] {
        let hint = format!("--log-format {option}");
        let left_out = replay(url, "access.log", &between(REQUEST, &other), &[]);
        counted(&left_out, "200");
        for words in ["1 of 201 lines cannot be read", "  line 101: another format: ", &hint, " reads this line"] {
            assert!(left_out.stderr.contains(words), "no {words:?} in {}", left_out.stderr);
        }
        for options in [&["--strict"][..], &["--max-bad-lines", "0"]] {
            replay(None, "access.log", &between(REQUEST, &other), options)
                .refuses(2, &["access.log, line 101: another format: ", &hint]);
        }
        // The first lines, and more than can be the only ones of a file.
        let mixed = format!("{}{}", other.repeat(3), REQUEST.repeat(200));
        let words = ["3 of 203 lines", "lines of more than one format: divide the file, or give a --log-format", &hint];
        replay(None, "access.log", mixed.as_bytes(), &[]).refuses(2, &words);
        let mixed = between(REQUEST, &other.repeat(1500));
        replay(None, "access.log", &mixed, &[]).refuses(2, &["1,500 of 1,700 lines", words[1], &hint]);
        counted(&replay(url, "access.log", &mixed, &["--max-bad-lines", "100%"]), "200");
        // All lines have the other format: it is one.
        let refused = replay(None, "access.log", other.repeat(3).as_bytes(), &[]);
        refused.refuses(2, &["access.log, line 1: ", "3 of 3 lines", &hint]);
        assert!(!refused.stderr.contains("more than one format"), "{}", refused.stderr);
    }
}

/// A hint is shown once, and only if it is about this line.
#[tokio::test(flavor = "multi_thread")]
async fn a_hint_is_shown_once() {
    let database = Database::empty().await;
    let url = Some(database.url.as_str());
    let names = REQUEST.replace("203.0.113.1", "a.example.com") + &REQUEST.replace("203.0.113.1", "b.example.com");
    let odd = format!("example.com:80 {REQUEST}example.com:443 {REQUEST}{names}{CUT}");
    let left_out = replay(url, "access.log", &between(REQUEST, &odd), &["--max-bad-lines", "9"]);
    counted(&left_out, "200");
    for (words, times) in [("--log-format vhost reads", 1), ("--key '%h'", 1), ("--log-format", 2), ("  line ", 5)] {
        assert_eq!(left_out.stderr.matches(words).count(), times, "{words}: {}", left_out.stderr);
    }
    let events = between(EVENT, &format!("{REQUEST}{REQUEST}"));
    let left_out = replay(url, "events.jsonl", &events, &["--json"]);
    assert_eq!(left_out.stderr.matches("--access-log").count(), 1, "{}", left_out.stderr);
    assert_eq!(left_out.stdout.matches("--access-log").count(), 2, "{}", left_out.stdout);
}

#[test]
fn a_file_of_the_other_kind_names_its_option() {
    let json = "{\"ts\": 1431857103, \"client\": \"203.0.113.1\"}\n";
    for (content, words) in [
        (REQUEST.to_owned(), "use --access-log FILE --apply NAME --log-format common"),
        (format!("example.com:80 {REQUEST}"), "--log-format vhost"),
        (json.to_owned(), "--log-format json"),
        ("203.0.113.1;17/May/2015:10:05:03 +0000;/;200\n".to_owned(), "use --access-log FILE --apply NAME"),
    ] {
        let refused = replay(None, "events.jsonl", content.as_bytes(), &[]);
        refused.refuses(2, &["events.jsonl, line 1: ", words]);
        assert!(!refused.stderr.contains("struct"), "{}", refused.stderr);
    }
    let release = "{\"at\": 1767225600000, \"op\": \"release\", \"lease\": \"a\"}\n";
    for (content, options) in [(EVENT, &[][..]), (release, &[]), (EVENT, &["--log-format", "json"])] {
        replay(None, "access.log", content.as_bytes(), options)
            .refuses(2, &["access.log, line 1: ", "use --events FILE"]);
    }
}

#[test]
fn a_format_string_that_does_not_fit_is_named_with_what_to_do() {
    let main = "$remote_addr | $remote_user [$time_local] \"$request\" $status";
    let longer = REQUEST.replace('\n', " \"-\" \"-\" 0.003\n");
    let separated = "203.0.113.1;17/May/2015:10:05:03 +0000;/;200\n";
    for (format, line, words) in [
        (Some(main), REQUEST, "--log-format common reads this line"),
        (Some(main), &*format!("example.com:80 {REQUEST}"), "--log-format vhost reads this line"),
        (Some(main), &format!("Dec 16 00:00:00 host nginx: {separated}"), "use --log-format syslog:FORMAT"),
        (Some(main), separated, "compare --log-format with the format in the configuration of the server"),
        (
            Some("syslog"),
            &format!("Dec 16 00:00:00 host nginx: {separated}"),
            "give the format string of the server with",
        ),
        (Some("%a %l %u %t"), "a b c\n", "compare --log-format with the format"),
        (Some("%h %l %u %t \"%r\" %>s %b"), &longer, "--log-format combined reads this line"),
        (None, separated, "give the format string of the server with --log-format"),
        (None, &format!("web-1  | {separated}"), "use --log-format compose:FORMAT"),
    ] {
        let options = format.map_or_else(Vec::new, |format| vec!["--log-format", format]);
        let refused = replay(None, "access.log", line.repeat(2).as_bytes(), &options);
        refused.refuses(2, &["access.log, line 1: ", words]);
        replay(None, "access.log", line.as_bytes(), &[&options[..], &["--strict"]].concat()).refuses(2, &[words]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_sorted_within_the_window() {
    let database = Database::empty().await;
    let url = Some(database.url.as_str());
    let event = |second: usize| format!("{{\"at\": {}, \"limit\": \"api\"}}\n", 1_767_225_600_000 + second * 1000);
    let late: String = (1..=100).chain([0]).chain(101..=200).map(event).collect();
    let sorted = replay(url, "events.jsonl", late.as_bytes(), &["--json"]);
    assert!(sorted.stdout.lines().nth(100).is_some_and(|line| line.starts_with("{\"ok\": true")), "{}", sorted.stdout);
    counted(&replay(url, "events.jsonl", late.as_bytes(), &["--sort-window", "100"]), "201");
    let beyond = replay(url, "events.jsonl", late.as_bytes(), &["--sort-window", "50"]);
    counted(&beyond, "200");
    assert!(
        beyond.stderr.contains("line 101: its time is before")
            && !beyond.stderr.contains("--log-format")
            && beyond.stderr.contains("--sort-window"),
        "{}",
        beyond.stderr
    );
}
