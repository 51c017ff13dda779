//! An example of each format, and the keys of its lines.

use crate::study::replay::access_log::format::LogFormat;
use crate::study::replay::access_log::key::{LogKey, LogOptions};

const AT: i64 = 1_431_857_103_000_000;
const TIME: &str = "[17/May/2015:10:05:03 +0000]";

fn options(key: &str) -> LogOptions {
    LogOptions { key: Some(key.to_owned()), ..LogOptions::default() }
}

/// The time and the key of a line, or the reason why it has none.
fn read(text: &str, options: &LogOptions, line: &str) -> Result<(i64, Option<String>), String> {
    let format: LogFormat = text.parse().expect(text);
    let line = format.parse(line).map_err(|unreadable| unreadable.to_string())?;
    let (key, is_lacking) = LogKey::new(&format, options).expect(text).of(&line)?;
    Ok((line.at_micros(), (!is_lacking).then_some(key)))
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
        ("kubectl", format!("[pod/web-7d9f/nginx] {iso} 203.0.113.1 {tail}")),
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
        let expected = Ok((AT, Some("203.0.113.1".to_owned())));
        assert_eq!(read(text, &options("remote_addr"), &line), expected, "{text}: {line}");
    }
}

#[test]
fn a_key_may_be_any_field_of_the_format() {
    let line = r#"example.com:80 203.0.113.1 "k \"7\"" [17/May/2015:10:05:03 +0000] GET /a?b HTTP/1.1"#;
    let apache = ("%v:%p %h \"%{X-Api-Key}i\" %t %r", line);
    let nginx = ("$host:$server_port $remote_addr \"$http_x_api_key\" [$time_local] $request", line);
    let object = r#"{"time": 1431857103, "tenant": {"id": 7}, "headers.x": ["a", "b"], "admin": true}"#;
    let json = ("json", object);
    for ((text, line), name, expected) in [
        (apache, "%{X-Api-Key}i", Some("k \"7\"")),
        (apache, "http_x_api_key", Some("k \"7\"")),
        (apache, "%h", Some("203.0.113.1")),
        (nginx, "$http_x_api_key", Some("k \"7\"")),
        (nginx, "$remote_addr", Some("203.0.113.1")),
        (nginx, "server_port", Some("80")),
        (nginx, "host", Some("example.com")),
        (nginx, "path", Some("/a")),
        (nginx, "method", Some("GET")),
        (json, "tenant.id", Some("7")),
        (json, "headers.x", Some("a, b")),
        (json, "admin", Some("true")),
        (json, "none", None),
    ] {
        assert_eq!(read(text, &options(name), line), Ok((AT, expected.map(str::to_owned))), "{name}");
    }
    for ((text, _), name) in
        [(apache, "user"), (nginx, "$http_x_user"), (nginx, "%{X-User}i"), (apache, "%"), (nginx, "")]
    {
        assert!(LogKey::new(&text.parse().expect(text), &options(name)).is_err(), "{name}");
    }
}

#[test]
fn a_value_with_blanks_does_not_shift_the_fields_after_it() {
    let upstream = "$upstream_addr $upstream_status $upstream_response_time $remote_addr [$time_local] $status";
    let tried = "10.0.0.1:80, 10.0.0.2:80 502, 200 0.001, 0.002 1.2.3.4 TIME 200";
    let again = "10.0.0.1:80 : 10.0.0.2:80, unix:/a 302 : 502, 200 0.1 : -, 0.2 1.2.3.4 TIME 200";
    let agent = "$http_user_agent $request_time $remote_addr [$time_local] \"$request\" $status";
    let browser = "Mozilla/5.0 (X11; Linux x86_64)";
    let in_city = "[$time_local] $remote_addr $geoip_city $status $uri";
    let browsed = "$remote_addr $geoip_city $status $http_user_agent [$time_local]";
    let separated = "$remote_addr;$uri;$status;$time_iso8601";
    let user = "a [17/May/2014:10:05:03 +0000] b";
    for (text, line, name, value) in [
        (upstream, tried, "$upstream_status", "502, 200"),
        (upstream, again, "$upstream_status", "302 : 502, 200"),
        (upstream, tried, "status", "200"),
        (upstream, "- - - 1.2.3.4 TIME 499", "remote_addr", "1.2.3.4"),
        (agent, &format!("{browser} 0.003 1.2.3.4 TIME \"GET / HTTP/1.1\" 200"), "user_agent", browser),
        (agent, "a 5 0.003 1.2.3.4 TIME \"GET / HTTP/1.1\" 200", "user_agent", "a 5"),
        ("%h %t %U %>s", "1.2.3.4 TIME /a b 404 200", "uri", "/a b 404"),
        ("%h %U %t %q %>s", "1.2.3.4 /a b TIME  200", "uri", "/a b"),
        (in_city, "TIME 1.2.3.4 New York 200 /a", "$geoip_city", "New York"),
        (browsed, &format!("1.2.3.4 New York 200 {browser} TIME"), "user_agent", browser),
        (separated, "1.2.3.4;/a;200;b;200;2015-05-17T10:05:03Z", "uri", "/a;200;b"),
        ("$remote_addr - $remote_user [$time_local] $status", &format!("1.2.3.4 - {user} TIME 200"), "user", user),
        ("${remote_addr}:$remote_port [$time_local]", "2001:db8::1:4711 TIME", "remote_addr", "2001:db8::/64"),
        ("%{%d/%b/%Y %T}t %{%z}t %h %U", "17/May/2015 10:05:03 +0000 1.2.3.4 /a b", "uri", "/a b"),
    ] {
        let line = line.replace("TIME", TIME);
        assert_eq!(read(text, &options(name), &line), Ok((AT, Some(value.to_owned()))), "{text}: {line}");
    }
}

#[test]
fn a_line_with_two_readings_has_no_key_that_differs() {
    let proxied = "$http_x_forwarded_for - $remote_user [$time_local] $status";
    let agent = "$remote_addr [$time_local] $uri $http_user_agent $status";
    let after_agent = "$http_user_agent $remote_addr $http_referer [$time_local]";
    let iso = "$remote_addr $http_user_agent $time_iso8601 $http_referer";
    let browsed = "1.2.3.4 TIME /a b Mozilla/5.0 200";
    for (name, value) in [("remote_addr", "1.2.3.4"), ("status", "200")] {
        let line = browsed.replace("TIME", TIME);
        assert_eq!(read(agent, &options(name), &line), Ok((AT, Some(value.to_owned()))), "{name}");
    }
    let values = ["can be read with several values of ", "--key"];
    for (text, name, line, words) in [
        (agent, "path", browsed, values),
        (agent, "$uri", browsed, values),
        (agent, "%{User-Agent}i", browsed, values),
        // A client wrote the first address into its header, and the second is its own.
        (proxied, "remote_addr", "6.6.6.6 - x, 1.2.3.4 - bob TIME 200", values),
        (after_agent, "remote_addr", "a 6.6.6.6 b 1.2.3.4 c TIME", values),
        (iso, "remote_addr", "1.2.3.4 a 2014-05-17T10:05:03Z b 2015-05-17T10:05:03Z c", ["several times"; 2]),
        (
            "$remote_addr $a $b $c $d [$time_local]",
            "remote_addr",
            &format!("1.2.3.4 {} TIME", "x ".repeat(100_000)),
            ["too many ways"; 2],
        ),
    ] {
        let reason = read(text, &options(name), &line.replace("TIME", TIME)).expect_err(text);
        assert!(words.iter().all(|words| reason.contains(words)), "{reason}");
    }
    // The name of the user, or the text of the client, has the same moment in another zone.
    let text = "$remote_addr $remote_user [$time_local] $http_user_agent";
    for (nth, zoned) in ["12:05:03 +0200", "10:05:03 +0000", "10:05:04 +0000"].into_iter().enumerate() {
        let line = format!("1.2.3.4 ann {TIME} [17/May/2015:{zoned}] x");
        assert_eq!(read(text, &options("remote_addr"), &line).is_ok(), nth < 2, "{line}");
    }
}

/// squid's native log, and one of nginx.
#[test]
fn columns_may_be_padded_with_blanks() {
    let squid =
        "$msec $request_time $remote_addr $result/$status $body_bytes_sent $request_method $uri $user $peer $type";
    let line =
        "1431857103.000    310 192.168.0.1 TCP_MISS/200 4096 GET http://a.example/200/ - DIRECT/1.2.3.4 text/html";
    let nginx = "$remote_addr - $remote_user [$time_local] $status $uri";
    let padded = "1.2.3.4   -  bob   [17/May/2015:10:05:03 +0000]   200   /a";
    let plain = "1.2.3.4 - bob [17/May/2015:10:05:03 +0000] 200 /a";
    for (text, line, name, value) in [
        (squid, line, "remote_addr", "192.168.0.1"),
        (squid, line, "status", "200"),
        (squid, line, "uri", "http://a.example/200/"),
        (squid, line, "$type", "text/html"),
        (nginx, padded, "user", "bob"),
        (nginx, padded, "uri", "/a"),
        (nginx, plain, "user", "bob"),
        (nginx, plain, "uri", "/a"),
    ] {
        assert_eq!(read(text, &options(name), line), Ok((AT, Some(value.to_owned()))), "{name}: {line}");
    }
}

/// nginx writes this for a peer on a unix socket.
#[test]
fn a_peer_on_a_unix_socket_has_its_client_in_a_header() {
    let tail = format!("- - {TIME} \"GET / HTTP/1.1\" 200 1");
    let header =
        "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_x_forwarded_for\"";
    for (text, line) in [
        ("common", &format!("unix: {tail}")),
        (header, &format!("unix: {tail} \"203.0.113.1\"")),
        ("json", &r#"{"time": 1431857103, "remote_addr": "unix:"}"#.to_owned()),
    ] {
        let reason = read(text, &LogOptions::default(), line).expect_err(text);
        for words in ["\"unix:\" is no address", "unix socket", "$http_x_forwarded_for", "--trusted-proxies 127.0.0.1"]
        {
            assert!(reason.contains(words), "{text}: no {words} in {reason}");
        }
    }
    let behind = LogOptions { trusted_proxies: Some("127.0.0.1".to_owned()), ..LogOptions::default() };
    for (peer, reported, key) in [
        ("unix:", "203.0.113.1", "203.0.113.1"),
        ("unix:", "6.6.6.6, 203.0.113.1", "203.0.113.1"),
        ("unix:", "-", ""),
        ("127.0.0.1", "203.0.113.1", "203.0.113.1"),
        ("198.51.100.7", "203.0.113.1", "198.51.100.7"),
    ] {
        let line = format!("{peer} {tail} \"{reported}\"");
        assert_eq!(read(header, &behind, &line), Ok((AT, Some(key.to_owned()))), "{line}");
    }
    assert_eq!(read("common", &options("path"), &format!("unix: {tail}")), Ok((AT, Some("/".to_owned()))));
}
