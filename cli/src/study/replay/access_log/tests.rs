//! An example of each format, and the keys of its lines.

use crate::error::Result;
use crate::study::replay::access_log::{LogFormat, LogKey, LogOptions};

const AT: i64 = 1_431_857_103_000_000;

fn format(text: &str) -> LogFormat {
    if text.is_empty() { LogFormat::default() } else { text.parse().expect(text) }
}

fn key(name: &str, format: &LogFormat) -> Result<LogKey> {
    LogKey::new(format, &LogOptions { key: Some(name.to_owned()), ..LogOptions::default() })
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
