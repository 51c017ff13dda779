//! The formats of access logs: what is read of a line, and what the reason for an unreadable line names.

use pg_limiter_cli::LogFormat;

const AT: i64 = 1_431_857_103_000_000;
const COMBINED: &str =
    r#"2001:db8::7 - anna lee [17/May/2015:12:05:03 +0200] "GET /a%20b?q=1 HTTP/1.1" 200 512 "-" "say \"hi\" \\ \x41""#;
const COMMON: &str = r#"203.0.113.1 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 512"#;

fn format(text: &str) -> LogFormat {
    if text.is_empty() { LogFormat::default() } else { text.parse().expect(text) }
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
            assert_eq!(read.at, AT, "{line}");
            for (name, value) in fields {
                assert_eq!(read.field(name), *value, "{name} of {line}");
            }
        }
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
        ("", from("203.0.113.1, 10.0.0.1"), "\"203.0.113.1,\" is no address", "--log-format '$http_x_forwarded_for - "),
        ("", r#"{"time": 1431857103, "remote_addr": "203.0.113.1"}"#.to_owned(), "is no address", "--log-format json"),
        ("vhost", COMBINED.to_owned(), "", "--log-format combined"),
        ("vhost", COMMON.to_owned(), "", "--log-format common"),
        ("json", COMMON.to_owned(), "not a JSON object", "--log-format common"),
        ("docker", COMMON.to_owned(), "it does not begin with a time", "--log-format common"),
        ("", format!(" {COMMON}"), "remote_addr is missing", "begins with a blank: remove it"),
        ("", format!("[pod/web-7d9f/nginx] {COMMON}"), "is no address", "--log-format kubectl"),
        ("", format!("[pod/web-7d9f/nginx] {iso} example.com {COMMON}"), "is no address", "--log-format kubectl:vhost"),
        ("", format!("{iso} stdout P 203.0.113.1 - - [17/May"), "", "a part of a long line"),
        (
            "cri",
            format!("{iso} stderr P 203.0.113.1 - - [17/May"),
            "does not begin as in Kubernetes",
            "a part of a long line",
        ),
        ("", format!("{iso} stdout F 203.0.113.1;17/May"), "", "--log-format cri:FORMAT"),
        ("", format!("web-1  | {iso} stdout F {COMMON}"), "", "a second collector follows"),
        ("", format!("Dec 16 00:00:00 host app: web-1  | {COMMON}"), "", "a second collector follows"),
        (
            "",
            format!("e.com:443 198.51.100.1, {COMMON}"),
            "",
            "--log-format '$host:$server_port $http_x_forwarded_for - ",
        ),
        (
            "vhost",
            format!("e.com 198.51.100.1, {COMMON} \"-\" \"x\""),
            "",
            "--log-format '$host $http_x_forwarded_for - ",
        ),
        ("", format!("web-1  | {}", from("client.example")), "", "--log-format 'compose:%h %l %u %t"),
        ("", "#Software: Microsoft Internet Information Services 10.0".to_owned(), "", "in the W3C format"),
        ("combined", "#Fields: date time c-ip cs-method".to_owned(), "", "in the W3C format"),
        (
            "",
            format!("- {COMMON}"),
            "\"-\" is no address",
            "if the first field is the virtual host, use --log-format vhost;",
        ),
        ("syslog", format!("Dec 16 00:00:00 host httpd: - {COMMON}"), "", "use --log-format syslog:vhost;"),
        ("combined", format!("-:443 {COMMON} \"-\" \"x\""), "", "--log-format vhost reads this line"),
        ("", format!("{COMMON} \"-\""), "after http_referer", "--log-format common reads this line, if it was not cut"),
    ] {
        let reason = reason(&format(given), &line);
        assert!(reason.contains(shown) && reason.contains(option), "{reason}");
    }
    // Lines in the text of a field.
    let log = COMMON.replace('"', "\\\"");
    for (line, command) in [
        (format!(r#"{{"stream":"stdout","log":"{log}\n","time":"2015-05-17T10:05:04.1Z"}}"#), "`jq -j .log FILE`"),
        (format!(r#"{{"__REALTIME_TIMESTAMP":"1431857103000000","MESSAGE":"{log}"}}"#), "`jq -r .MESSAGE FILE`"),
        (format!(r#"{{"labels":{{}},"line":"{log}","timestamp":"2015-05-17T10:05:04Z"}}"#), "`jq -r .line FILE`"),
    ] {
        let reason = reason(&format(""), &line);
        assert!(reason.contains(command) && !reason.contains("=FIELD"), "{reason}");
    }
    let of_journald = reason(&format("json"), &format!(r#"{{"MESSAGE":"{log}"}}"#));
    assert!(of_journald.contains("`jq -r .MESSAGE FILE`"), "{of_journald}");
    // Apache writes it for a request without a host.
    let line = format!("- {COMMON}");
    assert_eq!(format("vhost").parse(&line).expect("a line").field("remote_addr"), Some("203.0.113.1"));
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
        for collector in ["syslog", "docker", "compose", "kubectl", "cri"] {
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
        ("%h [%{%d/%b/%Y %I:%M:%S %z}t] \"%r\"", "AM or PM is missing"),
        ("%h [%{%Y-%m-%d}t]", "%Y-%m-%d, hour, AM or PM, minute, second, zone is missing"),
        ("%h [%{%Y-%m-%d %z}t]", "hour, AM or PM, minute, second is missing"),
        ("%h [%{%H:%M:%S %z}t]", "year, month, day is missing"),
        ("%h [%{%b %d %H:%M:%S}t]", "year, zone is missing: let the server write it"),
        ("%h [%{%Y-%m-%d %H:%M %z}t]", "second is missing"),
        ("%h [%{%d/%b/%Y:%H:%M:%S.%f}t]", "zone is missing: let the server write it, as %{%z}t for Apache"),
        ("%h [%{%D %r %z}t]", "its time %D %r %z cannot be read: "),
        ("%h [%{%F %T %Z}t]", "its time %F %T %Z cannot be read: "),
        ("json:when=ts", "\"when\" is none of the names time, "),
        ("json:time", "is not NAME=FIELD"),
    ] {
        let error = text.parse::<LogFormat>().expect_err(text);
        assert!(error.contains(reason), "{text}: {error}");
    }
}

/// A log collector's text has the only time of some logs. The hint is followed in each of them.
#[test]
fn the_time_of_a_collector_can_be_the_time_of_the_request() {
    let heroku = "2015-05-17T10:05:03.000000+00:00 heroku[router]: at=info method=GET path=\"/a\" host=a.example \
                  fwd=\"203.0.113.1\" dyno=web.1 status=200";
    let elb = "2015-05-17T10:05:03.000000Z balancer 203.0.113.1:2817 10.0.0.1:80 0.000073 200 200 \
               \"GET http://a.example/a HTTP/1.1\"";
    let compose = "web-1  | 2015-05-17T10:05:03Z 203.0.113.1 GET /a";
    let syslog = "May 17 10:05:03 host haproxy[7]: 203.0.113.1:5678 fe GET /a";
    let with_year = "2015 May 17 10:05:03 +0000 host haproxy[7]: 203.0.113.1:5678 fe GET /a";
    for (line, hint, format, read, path) in [
        (
            heroku,
            "'$time_iso8601 ..'",
            "$time_iso8601 heroku[router]: at=info method=$request_method path=\"$request_uri\" host=$host \
             fwd=\"$http_x_forwarded_for\" dyno=$dyno status=$status",
            heroku,
            "/a",
        ),
        (
            elb,
            "'$time_iso8601 ..'",
            "$time_iso8601 $elb $remote_addr:$remote_port $upstream_addr $request_time $status $upstream_status \
             \"$request\"",
            elb,
            "http://a.example/a",
        ),
        (compose, "'$time_iso8601 ..'", "$service | $time_iso8601 $remote_addr $request_method $uri", compose, "/a"),
        (
            syslog,
            "as with sed -E 's/^(<[0-9]+>)?(.{15})/YEAR \\2 +0000/' FILE, with the year and the zone of the lines, and write it \
             into the format, as in --log-format '%{%Y %b %e %H:%M:%S %z}t ..'",
            "%{%Y %b %e %H:%M:%S %z}t %v %{program}n: %h:%{remote}p %{frontend}n %m %U",
            with_year,
            "/a",
        ),
    ] {
        let reason = reason(&self::format(""), line);
        assert!(reason.contains("if that has no time, ") && reason.contains(hint), "{reason}");
        let format = self::format(format);
        let read = format.parse(read).unwrap_or_else(|unreadable| panic!("{unreadable}: {line}"));
        assert_eq!((read.at, read.field("path")), (AT, Some(path)), "{line}");
    }
    // With the priority of syslog.
    let with_priority = reason(&format(""), &format!("<134>{syslog}"));
    assert!(with_priority.contains("YEAR \\2 +0000/") && with_priority.contains("%{%Y"), "{with_priority}");
    // The format has the collector's text: its name would not help.
    let agent = "$time_iso8601 $remote_addr \"$request\" $status \"$http_user_agent\"";
    let router = "$time_iso8601 heroku[router]: at=info method=$request_method path=\"$request_uri\"";
    let of_service = "$service | $time_iso8601 $remote_addr $request_method $uri";
    for (text, line) in [
        (agent, "2015-05-17T10:05:03Z 203.0.113.1 \"GET / HT"),
        (agent, "2015-05-17T10:05:03Z host.example \"GET / HTTP/1.1\" 200 \"x\""),
        (router, "2015-05-17T10:05:03Z heroku[router]: sock=client at=warning method=GET path=\"/\""),
        (router, "2015-05-17T10:05:03Z app[web.1]: started"),
        (of_service, "web-1  | 2015-05-17T10:05:03Z GET /a"),
    ] {
        let reason = reason(&format(text), line);
        assert!(!reason.contains("the line begins") && !reason.contains("--log-format"), "{reason}");
    }
    for line in ["2015-05-17T10:05:03Z 203.0.113.1 GET /a", "web-1  | 2015-05-17T10:05:03Z 203.0.113.1 GET /a"] {
        let reason = reason(&format("$msec $remote_addr $request_method $uri"), line);
        assert!(reason.contains("the line begins with ") && reason.contains(":FORMAT"), "{reason}");
    }
    // Days are padded with a blank.
    let padded = format("%{%Y %b %e %H:%M:%S %z}t %h");
    let at = padded.parse("2015 May  7 10:05:03 +0000 203.0.113.1").expect("a line").at;
    assert_eq!(at, AT - 10 * 86_400_000_000);
    for text in ["docker:$remote_addr $status", "syslog:%h %>s"] {
        let error = text.parse::<LogFormat>().expect_err(text);
        assert!(error.contains("it has no time") && error.contains("leave out the collector's name"), "{error}");
    }
    let json = reason(&format("docker:json"), r#"2015-05-17T10:05:03Z {"remote_addr":"203.0.113.1"}"#);
    assert!(
        json.contains(
            r#"with sed -E 's/^[^{]*([0-9]{4}-[^ {]+)[^{]*\{/{"time":"\1",/' FILE, and use --log-format json"#
        ),
        "{json}"
    );
}

#[test]
fn a_time_format_with_all_parts_is_accepted() {
    for (format, time) in [
        ("%s", "1431857103"),
        ("%F %T %z", "2015-05-17 10:05:03 +0000"),
        ("%a, %d %b %y %l:%M:%S %p %z", "Sun, 17 May 15 10:05:03 AM +0000"),
        ("%Y %j %H:%M:%S %z", "2015 137 10:05:03 +0000"),
        ("%Y %b %e %H:%M:%S %z", "2015 May 17 10:05:03 +0000"),
        ("%d/%b/%Y:%H:%M:%S.%f %:z", "17/May/2015:10:05:03.000 +00:00"),
    ] {
        let line = format!("203.0.113.1 [{time}]");
        let format = self::format(&format!("%h [%{{{format}}}t]"));
        let read = format.parse(&line).unwrap_or_else(|unreadable| panic!("{}: {line}", unreadable.reason));
        assert_eq!(read.at, AT, "{line}");
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

/// Formats that have one field twice, a number that is no time, or an address in the place of a name.
#[test]
fn a_field_is_what_its_format_says() {
    let time = "[17/May/2015:10:05:03 +0000]";
    for (text, line, name, value) in [
        ("%h %p %{remote}p %t", format!("1.2.3.4 8080 4711 {time}"), "remote_port", Some("4711")),
        ("%h %p %{remote}p %t", format!("1.2.3.4 8080 4711 {time}"), "server_port", Some("8080")),
        ("%h %p %{local}p %t", format!("1.2.3.4 80 8080 {time}"), "%{local}p", Some("8080")),
        ("%h %{remote}p %t", format!("1.2.3.4 4711 {time}"), "server_port", None),
        ("%h %s %>s %t", format!("1.2.3.4 301 200 {time}"), "%>s", Some("200")),
        ("%h %v %V %t", format!("1.2.3.4 a.example b.example {time}"), "%V", Some("b.example")),
        ("%h %T %{ms}T %t", format!("1.2.3.4 1 2 {time}"), "%{ms}T", Some("2")),
        ("%h %a %t %f", format!("host.example 1.2.3.4 {time} x"), "remote_addr", Some("1.2.3.4")),
        ("%h %a %t %f", format!("host.example 1.2.3.4 {time} x"), "remote_host", Some("host.example")),
        ("%h %{sec}t.%{msec_frac}t %>s", "1.2.3.4 1431857103.000 200".to_owned(), "status", Some("200")),
        ("%h %{sec}t.%{usec_frac}t %>s", "1.2.3.4 1431857103.000000 200".to_owned(), "status", Some("200")),
        ("docker", format!("2015-05-17t10:05:04.1z {COMMON}"), "path", Some("/a")),
        ("syslog", format!("2015-05-17t10:05:04z host nginx[1]: {COMMON}"), "path", Some("/a")),
        ("json:uri=p", r#"{"ts":1431857103,"request":"GET /zz HTTP/1.1","p":"/p?x"}"#.to_owned(), "path", Some("/p")),
        ("json:uri=p", r#"{"ts":1431857103,"request":"GET /zz HTTP/1.1"}"#.to_owned(), "path", None),
        // No other field takes the place of the one that is named.
        ("json:remote_addr=c.ip", r#"{"ts":1431857103,"remote_addr":"10.0.0.5"}"#.to_owned(), "remote_addr", None),
        ("json:host=vh", r#"{"ts":1431857103,"host":"a","http_host":"b"}"#.to_owned(), "host", None),
        ("json:user=uid", r#"{"ts":1431857103,"user":"a"}"#.to_owned(), "user", None),
        ("json:method=verb", r#"{"ts":1431857103,"request":"GET / HTTP/1.1"}"#.to_owned(), "method", None),
        ("json:http_x_real_ip=fw", r#"{"ts":1431857103,"fw":"1.2.3.4"}"#.to_owned(), "http_x_real_ip", Some("1.2.3.4")),
        ("json", r#"{"ts":1431857103,"X-Real-IP":"1.2.3.4"}"#.to_owned(), "http_x_real_ip", Some("1.2.3.4")),
        ("json", r#"{"ts":1431857103,"request_X-Real-Ip":"1.2.3.4"}"#.to_owned(), "http_x_real_ip", Some("1.2.3.4")),
        (
            "json",
            r#"{"ts":1431857103,"resp_headers":{"X-Real-Ip":"0"},"request":{"headers":{"X-Real-Ip":["1.2.3.4"]}}}"#
                .to_owned(),
            "http_x_real_ip",
            Some("1.2.3.4"),
        ),
        (
            "json",
            r#"{"ts":1431857103,"headers":{"x-forwarded-for":"1.2.3.4"}}"#.to_owned(),
            "http_x_forwarded_for",
            Some("1.2.3.4"),
        ),
        // The object of a response, as pino writes it.
        (
            "json",
            r#"{"ts":1431857103,"res":{"headers":{"X-Real-Ip":"0"}},"req":{"headers":{"x-real-ip":"1.2.3.4"}}}"#
                .to_owned(),
            "http_x_real_ip",
            Some("1.2.3.4"),
        ),
        ("json", r#"{"ts":1431857103,"res":{"headers":{"x-real-ip":"0"}}}"#.to_owned(), "http_x_real_ip", None),
        // Larger than 64 bits.
        ("json", r#"{"ts":1431857103,"a":18446744073709551617}"#.to_owned(), "a", Some("18446744073709551617")),
        ("json", r#"{"ts":1431857103,"a":-18446744073709551617}"#.to_owned(), "a", Some("-18446744073709551617")),
        (
            "json",
            r#"{"ts":1431857103000000000,"x":"\"18446744073709551617","a":0.12345678901234567890}"#.to_owned(),
            "a",
            Some("0.12345678901234568"),
        ),
        ("compose", format!("web.1.abc@node-1    | {COMMON}"), "path", Some("/a")),
        ("json", r#"{"time":0.005,"@timestamp":"2015-05-17T10:05:03Z","a":1}"#.to_owned(), "a", Some("1")),
        ("json", r#"{"ts":1431857103,"remote_user":"-","user":"bob"}"#.to_owned(), "user", Some("bob")),
        (
            "json",
            r#"{"ts":1431857103,"remote_addr":null,"client_ip":"1.2.3.4"}"#.to_owned(),
            "remote_addr",
            Some("1.2.3.4"),
        ),
    ] {
        let format = format(text);
        let read = format.parse(&line).unwrap_or_else(|unreadable| panic!("{}: {line}", unreadable.reason));
        assert_eq!((read.at, read.field(name)), (AT, value), "{name} of {line}");
    }
    for time in ["0", "99", "-5", "0.005"] {
        let reason = reason(&format("json"), &format!("{{\"time\":{time},\"remote_addr\":\"1.2.3.4\"}}"));
        assert!(reason.contains(&format!("\"{time}\" is not a time")), "{reason}");
    }
    // The client may be the second address: the first would be that of a proxy.
    for fields in [
        "10.0.0.1 203.0.113.9 -",
        "10.0.0.1 - 203.0.113.9",
        "10.0.0.1 - 2001:db8::9",
        "10.0.0.1 - 203.0.113.9, 203.0.113.8",
        "10.0.0.1 203.0.113.9,203.0.113.8 -",
        "10.0.0.1 unknown,203.0.113.9 -",
    ] {
        let reason = reason(&format(""), &COMMON.replacen("203.0.113.1 - -", fields, 1));
        assert!(reason.contains("is an address, and no remote_"), "{reason}");
        let of_vhost =
            self::reason(&format("vhost"), &format!("e.com {}", COMMON.replacen("203.0.113.1 - -", fields, 1)));
        assert!(of_vhost.contains("is an address, and no remote_"), "{of_vhost}");
    }
    // A client chooses the name of a user, and a format string says where it is.
    let line = format!("203.0.113.1 - 10.9.8.7 {time} \"GET / HTTP/1.1\" 200");
    for text in ["$remote_addr - $remote_user [$time_local] \"$request\" $status", "%h %l %u %t \"%r\" %>s"] {
        let format = format(text);
        let read = format.parse(&line).expect(text);
        assert_eq!((read.field("remote_addr"), read.field("user")), (Some("203.0.113.1"), Some("10.9.8.7")), "{text}");
    }
}

/// Durations in nanoseconds, microseconds and milliseconds.
#[test]
fn a_duration_in_a_json_log_is_no_time() {
    for number in ["120000000", "900000000", "5200000000", "250000000000", "8000", "-1", "120ms"] {
        for (text, field) in [("json", "time"), ("json:time=took.all", "took.all")] {
            let line = format!(r#"{{"time":"{number}","took":{{"all":"{number}"}},"remote_addr":"1.2.3.4"}}"#);
            let reason = reason(&format(text), &line);
            let words = [
                format!("\"{number}\" is not a time like 2015-05-17T10:05:03Z"),
                format!("which the field {field} must be"),
                "--log-format json:time=FIELD".to_owned(),
            ];
            assert!(words.iter().all(|words| reason.contains(words)), "{reason}");
        }
    }
    for text in ["$request_time $remote_addr $msec", "%{ms}T %h %{sec}t"] {
        let reason = reason(&format(text), "1431857103.000 1.2.3.4 310");
        assert!(reason.contains("\"310\" is not a time like 1431857103.000"), "{reason}");
    }
    // The forms of times are named.
    let line = r#"{"when":"17.05.2015 10:05","remote_addr":"1.2.3.4"}"#;
    let other = reason(&format("json:time=when"), line);
    assert!(other.contains("Z, 17/May/2015:10:05:03 +0000 or 1431857103.000 (or in ms, us or ns)"), "{other}");
    // Also if it may be a time: a field with another name is surely one.
    for other in ["ts", "timestamp", "@timestamp", "StartUTC"] {
        let line = format!(r#"{{"time":1200000000,"{other}":"2015-05-17T10:05:03Z","remote_addr":"1.2.3.4"}}"#);
        assert_eq!(format("json").parse(&line).expect(&line).at, AT, "{line}");
    }
}

#[test]
fn a_number_in_the_place_of_the_status_is_no_status() {
    for number in ["20", "1200", "51234", "0"] {
        let line = COMMON.replace(" 200 ", &format!(" {number} "));
        assert_eq!(
            reason(&format(""), &line),
            format!("not a line of an access log: \"{number}\" is no status, which has three digits")
        );
    }
    for status in ["000", "499", "-"] {
        let line = COMMON.replace(" 200 ", &format!(" {status} "));
        assert_eq!(format("").parse(&line).expect(status).field("status"), Some(status.trim_matches('-')));
    }
}

#[test]
fn a_field_of_a_json_log_has_one_value() {
    let line = |more: &str| format!(r#"{{"time": "2015-05-17T10:05:03Z", "remote_addr": "203.0.113.1"{more}}}"#);
    for (more, field) in
        [(r#", "remote_addr": "5.6.7.8""#, "remote_addr"), (r#", "time": "2016-05-17T10:05:03Z""#, "time")]
    {
        let reason = reason(&format("json"), &line(more));
        assert!(reason.contains(&format!("the field {field} has two values")), "{reason}");
    }
    for more in [r#", "request": {"uri": "/", "uri": "/b"}"#, r#", "request": {"uri": "/"}, "request.uri": "/b""#] {
        let reason = reason(&format("json"), &line(more));
        assert!(reason.contains("uri has two values"), "{reason}");
    }
    let same = line(r#", "remote_addr": "203.0.113.1""#);
    assert_eq!(format("json").parse(&same).expect("one value").field("remote_addr"), Some("203.0.113.1"));
}
