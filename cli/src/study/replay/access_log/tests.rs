//! An example of each format, and lines that are none.

use crate::error::CliError;
use crate::study::replay::access_log::{LogFormat, LogKey, LogOptions};

const AT: i64 = 1_431_857_103_000_000;
const COMBINED: &str =
    r#"2001:db8::7 - anna lee [17/May/2015:12:05:03 +0200] "GET /a%20b?q=1 HTTP/1.1" 200 512 "-" "say \"hi\" \\ \x41""#;
const COMMON: &str = r#"203.0.113.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 512"#;

fn format(text: &str) -> LogFormat {
    if text.is_empty() { LogFormat::default() } else { text.parse().expect(text) }
}

fn key(name: &str, format: &LogFormat) -> Result<LogKey, CliError> {
    LogKey::new(format, &LogOptions { key: name.to_owned(), ..LogOptions::default() })
}

/// The reason with its hint.
fn reason(format: &LogFormat, line: &str) -> String {
    format.parse(line).expect_err(line).to_string()
}

#[test]
fn the_usual_formats_are_parsed() {
    let combined = [
        ("remote_addr", Some("2001:db8::7")),
        ("path", Some("/a%20b")),
        ("uri", Some("/a%20b?q=1")),
        ("user", Some("anna lee")),
        ("method", Some("GET")),
        ("status", Some("200")),
        ("user_agent", Some(r#"say "hi" \ \x41"#)),
        ("referer", Some("")),
        ("host", None),
    ];
    let common = [("user", Some("")), ("path", Some("")), ("method", Some("")), ("user_agent", None)];
    let cut = format!("{COMMON} \"-\" \"Mozilla/5.0 (cut");
    let more = r#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "\x16\x03" 400 1 "-" "-" rt=0.1 "x""#;
    for (formats, line, fields) in [
        (&["", "combined"][..], COMBINED, &combined[..]),
        (&["", "common"], r#"127.0.0.1 - - [17/May/2015:10:05:03 +0000] "-" 408 -"#, &common),
        (&[""], &cut, &[("user_agent", Some("Mozilla/5.0 (cut"))]),
        (&["", "combined", "common"], more, &[("path", Some(r"\x16\x03"))]),
    ] {
        for format in formats.iter().map(|text| format(text)) {
            let read = format.parse(line).unwrap_or_else(|unreadable| panic!("{}: {line}", unreadable.reason));
            assert_eq!(read.at_micros(), AT, "{line}");
            for (name, value) in fields {
                assert_eq!(read.field(name).as_deref(), *value, "{name} of {line}");
            }
        }
    }
}

/// The formats of the servers' documentation, each with a line and the key of its client.
#[test]
fn each_format_reads_its_example() {
    let behind = "$http_x_forwarded_for - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
    let tail = "- - [17/May/2015:10:05:03 +0000] \"GET /a HTTP/1.1\" 200 512";
    let headers = "\"-\" \"Mozilla/5.0\"";
    let iso = "2015-05-17T10:05:04.123456789Z";
    for (text, line) in [
        ("vhost", format!("example.com:80 203.0.113.1 {tail} {headers}")),
        ("vhost", format!("example.com:443 203.0.113.1 {tail}")),
        ("vhost", format!("example.com 203.0.113.1 {tail} {headers}")),
        ("vhost", format!("[2001:db8::1]:80 203.0.113.1 {tail} {headers}")),
        ("vhost", format!("[::1]:8443 203.0.113.1 {tail}")),
        ("vhost", format!("[2001:db8::1] 203.0.113.1 {tail}")),
        ("%V:%p %a %l %u %t \"%r\" %>s %b", format!("[2001:db8::1]:80 203.0.113.1 {tail}")),
        ("syslog", format!("Dec 16 00:00:00 host nginx: 203.0.113.1 {tail} {headers}")),
        ("syslog:vhost", format!("<190>Dec  6 00:00:00 host httpd[7]: example.com:80 203.0.113.1 {tail}")),
        ("syslog", format!("Dec  6 00:00:00 host nginx[123]: 203.0.113.1 {tail}")),
        ("syslog", format!("Dec 16 2026 00:00:00 host nginx: 203.0.113.1 {tail}")),
        ("syslog", format!("<190>Dec 16 00:00:00 host nginx: 203.0.113.1 {tail}")),
        ("syslog", format!("2026-12-16T00:00:00.123456+01:00 host nginx: 203.0.113.1 {tail}")),
        ("syslog", format!("<190>1 2026-12-16T00:00:00.123456+01:00 host nginx 123 - - 203.0.113.1 {tail}")),
        ("syslog", format!("<190>1 2026-12-16T00:00:00Z host nginx - - [a@1 b=\"c\"] 203.0.113.1 {tail}")),
        ("syslog", format!("<190>1 2026-12-16T00:00:00Z host nginx - - [a@1 b=\"c\\] d\"] 203.0.113.1 {tail}")),
        ("syslog", format!("<190>1 2026-12-16T00:00:00Z host nginx - - [a@1 b=\"\\\\\" c=\"\\\"] d\"][e f=\"] \"] 203.0.113.1 {tail}")),
        ("syslog", format!("<190>1 - host nginx - - [a] \u{feff}203.0.113.1 {tail}")),
        ("docker", format!("{iso} 203.0.113.1 {tail} {headers}")),
        ("docker:json", format!("{iso} {{\"time\": 1431857103, \"remote_addr\": \"203.0.113.1\"}}")),
        ("compose", format!("web-1  | 203.0.113.1 {tail}")),
        ("compose", format!("web-1  | {iso} 203.0.113.1 {tail}")),
        ("compose", format!("\u{1b}[36mweb-1  | \u{1b}[0m203.0.113.1 {tail}")),
        ("compose", format!("\u{1b}[1;38;5;6mweb-1  |\u{1b}[0m {iso} 203.0.113.1 {tail}")),
        ("compose:vhost", format!("\u{1b}[33mweb_1  \u{1b}[0m| example.com:80 203.0.113.1 {tail}")),
        ("cri", format!("{iso} stdout F 203.0.113.1 {tail}")),
        (behind, format!("203.0.113.1 {tail}")),
        // Apache: mod_log_config.
        ("%h %l %u %t \"%r\" %>s %b", format!("203.0.113.1 {tail}")),
        ("%h %l %u %t \\\"%r\\\" %>s %b \\\"%{Referer}i\\\" \\\"%{User-agent}i\\\"", format!("203.0.113.1 {tail} {headers}")),
        ("%v %h %l %u %t \"%r\" %>s %b", format!("example.com 203.0.113.1 {tail}")),
        ("%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\"", format!("example.com:80 203.0.113.1 {tail} {headers}")),
        ("%a %{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t %D", "203.0.113.1 17/May/2015 10:05:03.000 +0000 99".to_owned()),
        ("%{sec}t %a %U%q", "1431857103 203.0.113.1 /a".to_owned()),
        ("%{msec}t %a", "1431857103000 203.0.113.1".to_owned()),
        // nginx: ngx_http_log_module.
        ("$remote_addr - $remote_user [$time_local] \"$request\" $status $bytes_sent \"$gzip_ratio\"", format!("203.0.113.1 {tail} \"-\"")),
        ("[$time_iso8601] ${remote_addr}:$remote_port $request_method $uri$is_args$args", "[2015-05-17T12:05:03+02:00] 203.0.113.1:4711 GET /a?b=c d".to_owned()),
        ("$msec $remote_addr rt=$request_time", "1431857103.000 203.0.113.1 rt=0.001".to_owned()),
        ("$host:${status}ms \\\"$msec\\\" $remote_addr", "example.com:200ms \"1431857103.000\" 203.0.113.1".to_owned()),
        ("{\"t\":\"$time_iso8601\",\"ip\":\"$remote_addr\",\"ua\":\"$http_user_agent\"}", "{\"t\":\"2015-05-17T10:05:03+00:00\",\"ip\":\"203.0.113.1\",\"ua\":\"a \\\"b\\\"\"}".to_owned()),
        // JSON lines: nginx with `escape=json`, Caddy, Traefik, and fields with names of one's own.
        ("json", r#"{"time_local": "17/May/2015:10:05:03 +0000", "remote_addr": "203.0.113.1", "request": "GET /a HTTP/1.1"}"#.to_owned()),
        ("json", r#"{"level": "info", "ts": 1431857103.0, "request": {"remote_ip": "203.0.113.1", "method": "GET", "uri": "/a"}, "status": 200}"#.to_owned()),
        ("json", r#"{"ClientHost": "203.0.113.1", "RequestPath": "/a", "StartUTC": "2015-05-17T10:05:03Z", "DownstreamStatus": 200}"#.to_owned()),
        ("json:time=when.at,remote_addr=from", r#"{"when": {"at": "1431857103000"}, "from": "203.0.113.1", "time": "x"}"#.to_owned()),
    ] {
        let format = format(text);
        let key = key("remote_addr", &format).expect(text);
        let read = format.parse(&line).unwrap_or_else(|unreadable| panic!("{text}: {}: {line}", unreadable.reason));
        assert_eq!((read.at_micros(), key.of(&read)), (AT, Ok(Some("203.0.113.1".to_owned()))), "{text}: {line}");
    }
}

#[test]
fn a_key_may_be_any_field_of_the_format() {
    let line = r#"example.com:80 203.0.113.1 "k \"7\"" [17/May/2015:10:05:03 +0000] GET /a?b HTTP/1.1"#;
    let apache = format("%v:%p %h \"%{X-Api-Key}i\" %t %r");
    let nginx = format("$host:$server_port $remote_addr \"$http_x_api_key\" [$time_local] $request");
    for (format, name, expected) in [
        (&apache, "%{X-Api-Key}i", "k \"7\""),
        (&apache, "http_x_api_key", "k \"7\""),
        (&apache, "%h", "203.0.113.1"),
        (&nginx, "$http_x_api_key", "k \"7\""),
        (&nginx, "$remote_addr", "203.0.113.1"),
        (&nginx, "server_port", "80"),
        (&nginx, "host", "example.com"),
        (&nginx, "path", "/a"),
        (&nginx, "method", "GET"),
    ] {
        let key = key(name, format).expect(name);
        assert_eq!(key.of(&format.parse(line).expect("a line")), Ok(Some(expected.to_owned())), "{name}");
    }
    let object = r#"{"time": 1431857103, "tenant": {"id": 7}, "headers.x": ["a", "b"], "admin": true}"#;
    let json = format("json");
    for (name, expected) in
        [("tenant.id", Some("7")), ("headers.x", Some("a, b")), ("admin", Some("true")), ("none", None)]
    {
        let key = key(name, &json).expect(name);
        assert_eq!(key.of(&json.parse(object).expect("a line")), Ok(expected.map(str::to_owned)), "{name}");
    }
    for (format, name) in
        [(&apache, "user"), (&nginx, "$http_x_user"), (&nginx, "%{X-User}i"), (&apache, "%"), (&nginx, "")]
    {
        assert!(key(name, format).is_err(), "{name}");
    }
}

#[test]
fn a_line_of_another_format_names_the_option_that_reads_it() {
    let iso = "2015-05-17T10:05:04.123456789Z";
    let from = |client: &str| COMMON.replacen("203.0.113.1", client, 1);
    let of_docker = r#"{"log":"203.0.113.1 - -\n","stream":"stdout","time":"2015-05-17T10:05:04.123456789Z"}"#;
    for (given, line, shown, option) in [
        ("", format!("example.com {COMMON} \"-\" \"x\""), "\"example.com\" is no address", "--log-format vhost"),
        ("", of_docker.to_owned(), "is no address", "`jq -j .log FILE`"),
        ("", format!("web_1 | {COMMON}"), "\"web_1\" is no address", "--log-format compose"),
        ("", format!("\u{1b}[36mweb-1  | \u{1b}[0m{COMMON}"), "is no address", "--log-format compose"),
        ("", format!("[2001:db8::1]:80 {COMMON}"), "several fields", "--log-format vhost"),
        ("", r#"{"when": 1431857103, "from": "203.0.113.1"}"#.to_owned(), "", "as in --log-format json:time=FIELD"),
        ("", r#"web-1 | {"when": 1431857103}"#.to_owned(), "", "as in --log-format compose:json:time=FIELD"),
        ("", format!("{iso} stdout F {COMMON}"), "is no address", "--log-format cri"),
        ("", format!("{iso} example.com:80 {COMMON}"), "is no address", "--log-format docker:vhost"),
        (
            "",
            format!("Dec 16 00:00:00 host nginx: unknown, {COMMON}"),
            "is no address",
            "--log-format 'syslog:$http_x_forwarded_for - ",
        ),
        ("", from("203.0.113.1,10.0.0.1"), "\"203.0.113.1,10.0.0.1\" is no address", "--trusted-proxies "),
        ("", format!("198.51 {COMMON}"), "\"198.51\" is no address", "give the format string of the server"),
        ("", from("unix:"), "\"unix:\" is no address", "give the format string of the server with --log-format"),
        ("", from("203.0.113.1, 10.0.0.1"), "\"203.0.113.1,\" is no address", "--log-format '$http_x_forwarded_for - "),
        ("", r#"{"time": 1431857103, "remote_addr": "203.0.113.1"}"#.to_owned(), "is no address", "--log-format json"),
        ("vhost", COMBINED.to_owned(), "", "--log-format combined"),
        ("vhost", COMMON.to_owned(), "", "--log-format common"),
        ("json", COMMON.to_owned(), "not a JSON object", "--log-format common"),
        ("docker", COMMON.to_owned(), "it does not begin with a time", "--log-format common"),
    ] {
        let reason = reason(&format(given), &line);
        assert!(reason.contains(shown) && reason.contains(option), "{reason}");
    }
}

#[test]
fn errors_name_the_invalid_part_of_the_line() {
    for (line, expected) in [
        ("", "after remote_addr, a blank is missing"),
        ("hello", "after remote_addr, a blank is missing"),
        (
            "hello - - world",
            "is no address, as remote_addr must be; give the format string of the server with --log-format",
        ),
        (
            "10.0.0.1 203.0.113.1 - - [17/May/2015:10:05:03 +0000] \"-\" 200 1",
            "\"- -\" is several fields, and not only remote_user",
        ),
        ("::1 - - world", "after remote_user, ' [' is missing"),
        ("1.2.3.4 - - [yesterday] \"-\" 200 1", "\"yesterday\" is not a time like 17/May/2015:10:05:03 +0000"),
        ("1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1", "the closing quote of request is missing"),
        ("1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"-\" abc 1", "\"abc\" is no number for status"),
        ("1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"-\" 200", "after status, a blank is missing"),
        ("1.2.3.4 - - [17/May/2015:10:05:03 +0000] \"-\" 200 x", "\"x\" is no number for body_bytes_sent"),
    ] {
        let reason = reason(&format(""), line);
        assert!(reason.ends_with(expected), "{reason}: {line}");
    }
    for line in ["", " ", "|", "203.0.113.1 - - [17/May/2015:10:05:03 +0000] \"GET /a|b HTTP/1.1\" 200 1"] {
        for collector in ["syslog", "docker", "compose", "cri"] {
            assert!(reason(&format(collector), line).contains("it does not begin "), "{collector}: {line}");
        }
    }
    for (line, expected) in [
        (
            r#"{"time": "2015-05-17T10:05:03Z", "remote"#,
            "it begins with { and is no JSON: EOF while parsing a string (column 40)",
        ),
        (r#"{"request": "GET /\x22"}"#, "it begins with { and is no JSON: invalid escape (column 20)"),
        ("{203.0.113.1}", "it begins with { and is no JSON: key must be a string (column 2)"),
    ] {
        assert!(reason(&format(""), line).ends_with(expected), "{}", reason(&format(""), line));
    }
    let own = format("{\"t\":\"$time_iso8601\",\"ip\":\"$remote_addr\"}");
    assert!(reason(&own, "{\"t\":\"noon\",").contains("\"noon\" is not a time"), "the closest field");
    for (line, expected) in [
        ("[]", "not a JSON object"),
        ("{\"a\": 1", "not a JSON object"),
        ("{}", "no field has the time"),
        (r#"{"time": "noon"}"#, "\"noon\" is not a time"),
    ] {
        let reason = reason(&format("json"), line);
        assert!(reason.contains(expected) && !reason.contains("the line is JSON"), "{reason}: {line}");
    }
}

#[test]
fn a_format_that_cannot_divide_lines_is_rejected() {
    for (text, reason) in [
        ("", "is no format; use common, combined"),
        ("nginx", "is no format; use common, combined"),
        ("syslog:docker:json", "two collectors"),
        ("$remote_addr $status", "it has no time"),
        ("$time_local $msec", "several times"),
        ("$remote_addr$status $time_local", "nothing is between the fields remote_addr and status"),
        ("$ $time_local", "no name of a variable"),
        ("$- $time_local", "no name of a variable"),
        ("$time_local ${status", "no name of a variable"),
        ("$time_local a$ b", "no name of a variable"),
        ("%h %Z %t", "%Z is unknown"),
        ("%t %{Referer", "is no directive"),
        ("%h %{soon}t", "no format of a time"),
        ("json:when=ts", "\"when\" is none of the names time, "),
        ("json:time", "is not NAME=FIELD"),
    ] {
        let error = text.parse::<LogFormat>().expect_err(text);
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn no_part_of_a_line_panics() {
    let text = COMBINED.replace("hi", "hé\u{1f600}");
    let formats = ["", "vhost", "syslog", "docker", "compose", "cri", "json", "%h %l %u %t \"%r\" %>s %b"].map(format);
    for (end, _) in text.char_indices() {
        for format in &formats {
            let _ = format.parse(&text[..end]);
            let _ = format.parse(&text[end..]);
        }
    }
}
