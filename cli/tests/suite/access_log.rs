//! Access logs of other formats than the default: what is counted as a client, and what is refused.

use std::fmt::Write;

use crate::binary::{Run, files, run};
use crate::support::Database;

const LIMITS: &str = "[limits.api]\nkind = \"fixed_window\"\nrate = 2\nperiod = \"1h\"\nstart = \"0s\"\n";
const TAIL: &str = "- - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1";

fn replay(url: Option<&str>, log: &str, more: &[&str]) -> Run {
    let (_dir, path) = files(&[("limits.toml", LIMITS), ("access.log", log)]);
    let args = ["replay", "--limits", &path("limits.toml"), "--apply", "api", "--access-log", &path("access.log")];
    run(url, &[&args, more].concat(), "")
}

/// Three requests of each of these clients.
fn log(line: impl Fn(usize) -> String) -> String {
    (0..9).fold(String::new(), |mut text, place| {
        let _ = writeln!(text, "{}", line(place));
        text
    })
}

#[test]
fn a_first_field_that_is_no_address_names_the_format() {
    for (first, words) in [
        ("example.com:80 203.0.113.1", ["\"example.com:80\"", "--log-format vhost"]),
        ("Dec 16 00:00:00 host nginx: 203.0.113.1", ["\"Dec\"", "--log-format syslog"]),
        ("2026-01-01T00:00:00.000000000Z 203.0.113.1", ["\"2026-01-01T00:00:00.000000000Z\"", "--log-format docker"]),
        ("203.0.113.1, 10.0.0.1", ["\"203.0.113.1,\"", "--trusted-proxies"]),
        ("crawler.example.com", ["\"crawler.example.com\"", "--key '%h'"]),
    ] {
        let refused = replay(None, &log(|_| format!("{first} {TAIL}")), &[]);
        refused.refuses(2, &["access.log, line 1: ", " is no address", words[0], words[1]]);
    }
}

/// As servers write the header of a request that several proxies have passed on.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_addresses_is_read_in_any_format() {
    let database = Database::empty().await;
    let tail = "[17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1";
    for (format, before) in [
        ("%{X-Forwarded-For}i %l %u %t \"%r\" %>s %b", "LIST - -"),
        ("%v:%p %{X-Forwarded-For}i %l %u %t \"%r\" %>s %b", "example.com:80 LIST - -"),
        ("%{X-Forwarded-For}i %h %l %u %t \"%r\" %>s %b", "LIST 10.0.0.9 - -"),
        ("%h %{X-Forwarded-For}i %l %u %t \"%r\" %>s %b", "10.0.0.9 LIST - -"),
        (
            "$http_x_forwarded_for $remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent",
            "LIST 10.0.0.9 - -",
        ),
        ("$http_x_forwarded_for $request_time [$time_local] \"$request\" $status $body_bytes_sent", "LIST 0.003"),
    ] {
        let line =
            |place: usize| format!("{} {tail}", before.replace("LIST", &format!("203.0.113.{}, 10.0.0.1", place % 3)));
        let run = replay(Some(&database.url), &log(line), &["--log-format", format, "--trusted-proxies", "10.0.0.0/8"]);
        assert_eq!(run.code, Some(0), "{format}: {}", run.stderr);
        for key in ["203.0.113.0", "203.0.113.1", "203.0.113.2"] {
            assert!(run.stdout.contains(key), "{format}: {}", run.stdout);
        }
        assert!(!run.stdout.contains("10.0.0."), "{format}: {}", run.stdout);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_named_format_finds_the_clients() {
    let database = Database::empty().await;
    let client = |place: usize| format!("203.0.113.{}", place % 3);
    let lines: [(&[&str], String); 5] = [
        (&["--log-format", "vhost"], log(|place| format!("example.com:80 {} {TAIL}", client(place)))),
        (
            &["--log-format", "syslog"],
            log(|place| format!("Dec 16 00:00:0{place} host nginx: {} {TAIL}", client(place))),
        ),
        (
            &["--log-format", "docker"],
            log(|place| format!("2026-01-01T00:00:0{place}.000000000Z {} {TAIL}", client(place))),
        ),
        (
            &[
                "--log-format",
                "$http_x_forwarded_for - $remote_user [$time_local] \"$request\" $status $body_bytes_sent",
                "--trusted-proxies",
                "10.0.0.0/8",
            ],
            log(|place| format!("{}, 10.0.0.{place} {TAIL}", client(place))),
        ),
        (
            &["--log-format", "%h %l %u %t \"%r\" %>s %b", "--key", "%h"],
            log(|place| format!("client{} {TAIL}", place % 3)),
        ),
    ];
    for (options, text) in lines {
        let counted = replay(Some(&database.url), &text, options);
        for line in ["9 requests: 6 admitted, 3 denied (33.3 %)", "3 keys: 3 ever denied (100.0 %)"] {
            assert!(counted.stdout.contains(line), "{options:?}: {}{}", counted.stdout, counted.stderr);
        }
    }
}

/// Requests that reach the server directly have no X-Forwarded-For.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_forwarded_addresses_may_have_requests_without_one() {
    let database = Database::empty().await;
    let headers = " \"-\" \"Mozilla/5.0\"";
    let format = "$http_x_forwarded_for - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
    for (before, collector) in [("", ""), ("Dec 16 00:00:00 host nginx: ", "syslog:"), ("web-1  | ", "compose:")] {
        for headers in ["", headers] {
            let client = |place: usize| if place < 3 { "-".to_owned() } else { format!("203.0.113.{}", place % 3) };
            let log = log(|place| format!("{before}{} {TAIL}{headers}", client(place)));
            let given = ["--log-format", collector.trim_end_matches(':')];
            let refused = replay(None, &log, if collector.is_empty() { &[] } else { &given });
            let advice = format!("--log-format '{collector}$http_x_forwarded_for - ");
            refused.refuses(2, &["access.log, line 1: ", "\"-\" is no address", &advice, "3 of 9 lines"]);
            let more = if headers.is_empty() { "" } else { " \"$http_referer\" \"$http_user_agent\"" };
            let format = format!("{collector}{format}{more}");
            for proxies in [&[][..], &["--trusted-proxies", "10.0.0.0/8"]] {
                let counted = replay(Some(&database.url), &log, &[&["--log-format", &format], proxies].concat());
                for line in ["9 requests: 8 admitted, 1 denied (11.1 %)", "4 keys: 1 ever denied (25.0 %)"] {
                    assert!(counted.stdout.contains(line), "{format}: {}{}", counted.stdout, counted.stderr);
                }
                let note = "3 of 9 requests have no remote_addr: they share the empty key";
                assert!(counted.stderr.contains(note), "{}", counted.stderr);
            }
        }
    }
    let more = replay(None, &log(|_| format!("- {TAIL} 0.003 x y z")), &[]);
    more.refuses(2, &["\"-\" is no address", "X-Forwarded-For", "$http_x_forwarded_for"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_option_that_would_be_ignored_is_refused() {
    let database = Database::empty().await;
    let addresses = log(|place| format!("203.0.113.{place} {TAIL}"));
    for header in ["x-real-ip", "x-forwarded-for"] {
        let refused = replay(None, &addresses, &["--trusted-header", header]);
        refused.refuses(2, &["--trusted-header", header, "add --trusted-proxies"]);
    }
    let options = [["--trusted-header", "x-real-ip"], ["--ipv6-prefix", "48"], ["--ipv4-prefix", "24"]];
    for [option, value] in options {
        let refused = replay(None, &addresses, &[option, value, "--key", "path"]);
        refused.refuses(2, &[option, "--key remote_addr", "path"]);
    }
    // The log has only the header: it is read.
    let format = "$http_x_real_ip - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
    let read = replay(Some(&database.url), &addresses, &["--log-format", format, "--trusted-header", "x-real-ip"]);
    assert!(read.stdout.contains("9 keys: 0 ever denied"), "{}{}", read.stdout, read.stderr);
}

/// Behind proxies, a client without a readable address has the key that the web layer gives it.
#[tokio::test(flavor = "multi_thread")]
async fn clients_without_a_readable_address_are_counted_in_a_note() {
    let database = Database::empty().await;
    let hidden = log(|place| format!("{} {TAIL}", if place % 3 == 0 { "unknown" } else { "203.0.113.1" }));
    let format = "$http_x_forwarded_for - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
    let read = replay(Some(&database.url), &hidden, &["--log-format", format]);
    let note = "3 of 9 requests have no readable address: they share the key unreadable";
    assert!(read.stderr.contains(note) && read.stdout.contains("2 keys: "), "{}{}", read.stdout, read.stderr);
    let wrong = log(|_| format!("a.example {TAIL}"));
    replay(None, &wrong, &["--log-format", format]).refuses(2, &["line 1: \"a.example\" is no address"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_clients_are_those_of_the_web_layer() {
    let database = Database::empty().await;
    let addresses = log(|place| format!("2001:db8::{place} {TAIL}"));
    for (options, keys) in [
        (&[][..], "1 key: 1 ever"),
        (&["--ipv6-prefix", "128"], "9 keys: 0 ever"),
        (&["--key", "$remote_addr"], "9 keys: 0 ever"),
    ] {
        let counted = replay(Some(&database.url), &addresses, options);
        assert!(counted.stdout.contains(keys), "{options:?}: {}{}", counted.stdout, counted.stderr);
    }
    let refused = replay(None, &addresses, &["--trusted-proxies", "10.0.0.0/8"]);
    refused.refuses(2, &["--trusted-proxies", "$http_x_forwarded_for", "--log-format"]);
    let other = replay(None, &addresses, &["--trusted-proxies", "10.0.0.0/8", "--key", "path"]);
    other.refuses(2, &["--trusted-proxies", "--key remote_addr", "path"]);
    replay(None, &addresses, &["--key", "tenant"]).refuses(2, &["--key tenant", "remote_addr, user, method"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_the_key_are_counted() {
    let database = Database::empty().await;
    let counted = replay(Some(&database.url), &log(|_| format!("203.0.113.1 {TAIL}")), &["--key", "user"]);
    assert_eq!(counted.code, Some(0), "{}", counted.stderr);
    assert!(counted.stderr.contains("9 of 9 requests have no user: they share the empty key"), "{}", counted.stderr);
    let json = |more: &str| format!("{{\"time\": 1431857103, \"remote_addr\": \"203.0.113.1\"{more}}}\n");
    let options = ["--log-format", "json", "--key", "tenant"];
    replay(None, &json("").repeat(3), &options).refuses(2, &["no request has the field tenant", "--key"]);
    for tenant in [", \"tenant\": \"a\"", ", \"tenant\": null"] {
        let counted = replay(Some(&database.url), &(json("").repeat(3) + &json(tenant)), &options);
        assert!(
            counted.code == Some(0) && counted.stderr.contains(" of 4 requests have no tenant"),
            "{}",
            counted.stderr
        );
    }
    // A long key is the hash under which the web layer stores it.
    let long =
        log(|place| format!("203.0.113.1 {TAIL}").replace(" /", &format!(" /{}{}", "p".repeat(1100), place % 3)));
    let counted = replay(Some(&database.url), &long, &["--key", "path"]);
    assert!(counted.stdout.contains("9 requests: ") && counted.stdout.contains("sha256:"), "{}", counted.stdout);
    replay(None, &json("").replace("203.0.113.1", "-"), &options[..2]).refuses(2, &["client's address is empty"]);
    let given = ["--log-format", "json:remote_addr=client.ipp"];
    replay(None, &json("").repeat(3), &given).refuses(2, &["no field has the client's address", "time, remote_addr"]);
    // Behind proxies, the header is needed, too.
    let behind = ["--log-format", "json", "--trusted-proxies", "203.0.113.0/24"];
    replay(None, &json("").repeat(3), &behind)
        .refuses(2, &["no request has the field http_x_forwarded_for", "--trusted-header"]);
    for field in ["x_forwarded_for", "X-Forwarded-For", "request_X-Forwarded-For"] {
        let log = json("").repeat(3) + &json(&format!(", \"{field}\": \"198.51.100.7\""));
        let counted = replay(Some(&database.url), &log, &behind);
        assert!(counted.stdout.contains("2 keys: "), "{field}: {}{}", counted.stdout, counted.stderr);
        assert!(counted.stderr.contains("3 of 4 requests have no field http_x_forwarded_for"), "{}", counted.stderr);
    }
    // A client chooses the names of its query, and of headers.
    let real = "\"headers\": {\"x-forwarded-for\": \"198.51.100.7\"";
    for more in [
        format!("\"query\": {{\"x-forwarded-for\": \"192.0.2.9\"}}, {real}}}"),
        format!("{real}, \"a.x-forwarded-for\": \"192.0.2.9\"}}"),
    ] {
        let counted = replay(Some(&database.url), &json(&format!(", {more}")).repeat(9), &behind);
        let is_listed = counted.stdout.lines().any(|line| line.starts_with("198.51.100.7 "));
        assert!(is_listed, "{more}: {}{}", counted.stdout, counted.stderr);
    }
    let two = json(&format!(", {real}, \"headers.X-Forwarded-For\": \"192.0.2.9\"}}"));
    replay(None, &two.repeat(3), &behind).refuses(2, &["several fields may be the header http_x_forwarded_for"]);
    // The field that was read.
    let host = "{\"time\": 1431857103, \"client\": \"host.example\", \"ip\": \"1.2.3.4\"}\n";
    replay(None, host, &options[..2]).refuses(2, &["\"host.example\" is no address", "--key '$client' takes it"]);
    let given = ["--log-format", "json", "--key", "$client"];
    assert_eq!(replay(Some(&database.url), host, &given).code, Some(0));
    let of_loki = "{\"line\": \"..\", \"timestamp\": \"2015-05-17T10:05:04Z\"}\n";
    replay(None, of_loki, &options[..2]).refuses(2, &["no field has the client's address", "`jq -r .line FILE`"]);
    let of_docker = "{\"log\":\"{}\\n\",\"stream\":\"stdout\",\"time\":\"2025-10-10T20:55:36.1Z\"}\n";
    replay(None, &of_docker.repeat(3), &options[..2]).refuses(2, &["jq -j .log FILE"]);
}
