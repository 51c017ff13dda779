//! An example of each format, and the keys of its lines.

use crate::study::replay::access_log::format::LogFormat;
use crate::study::replay::access_log::key::{LogKey, LogOptions};

const AT: i64 = 1_431_857_103_000_000;
const TIME: &str = "[17/May/2015:10:05:03 +0000]";

fn options(key: &str) -> LogOptions {
    LogOptions { key: Some(key.to_owned()), ..LogOptions::default() }
}

/// The key of a line at this time, or the reason why it has none.
fn read(text: &str, options: &LogOptions, line: &str) -> Result<Option<String>, String> {
    let format: LogFormat = text.parse().expect(text);
    let line = format.parse(line).map_err(|unreadable| unreadable.to_string())?;
    assert_eq!(line.at, AT, "{text}: {line:?}");
    let (key, is_lacking) = LogKey::new(&format, options).expect(text).of(&line)?;
    Ok((!is_lacking).then_some(key))
}

fn has(text: &str, name: &str, line: &str, value: &str) {
    let line = line.replace("TIME", TIME);
    assert_eq!(read(text, &options(name), &line), Ok(Some(value.to_owned())), "{name} of {line}, as {text}");
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
        has(text, "remote_addr", &line, "203.0.113.1");
    }
}

#[test]
fn a_key_may_be_any_field_of_the_format() {
    let line = r#"example.com:80 203.0.113.1 "k \"7\"" [17/May/2015:10:05:03 +0000] GET /a?b HTTP/1.1"#;
    let apache = "%v:%p %h \"%{X-Api-Key}i\" %t %r";
    let nginx = "$host:$server_port $remote_addr \"$http_x_api_key\" [$time_local] $request";
    let object = r#"{"time": 1431857103, "tenant": {"id": 7}, "headers.x": ["a", "b"], "admin": true}"#;
    let escaped = "$host:${status}ms \\\"$msec\\\" $remote_addr";
    let directives = "%h %t %{c}a %>s %400,501{User-Agent}i %!200,304,302{Referer}i %{SSL_CIPHER}x";
    let directed = "1.2.3.4 TIME 5.6.7.8 200 x y AES";
    // squid's native log, and one of nginx: columns may be padded with blanks.
    let squid =
        "$msec $request_time $remote_addr $result/$status $body_bytes_sent $request_method $uri $user $peer $type";
    let of_squid =
        "1431857103.000    310 192.168.0.1 TCP_MISS/200 4096 GET http://a.example/200/ - DIRECT/1.2.3.4 text/html";
    let columns = "$remote_addr - $remote_user [$time_local] $status $uri";
    let (padded, plain) = ("1.2.3.4   -  bob   TIME   200   /a", "1.2.3.4 - bob TIME 200 /a");
    // A value with blanks does not shift the fields after it.
    let upstream = "$upstream_addr $upstream_status $upstream_response_time $remote_addr [$time_local] $status";
    let tried = "10.0.0.1:80, 10.0.0.2:80 502, 200 0.001, 0.002 1.2.3.4 TIME 200";
    let again = "10.0.0.1:80 : 10.0.0.2:80, unix:/a 302 : 502, 200 0.1 : -, 0.2 1.2.3.4 TIME 200";
    let agent = "$http_user_agent $request_time $remote_addr [$time_local] \"$request\" $status";
    let browser = "Mozilla/5.0 (X11; Linux x86_64)";
    let of_browser = format!("user_agent={browser}");
    let in_city = "[$time_local] $remote_addr $geoip_city $status $uri";
    let browsed = "$remote_addr $geoip_city $status $http_user_agent [$time_local]";
    let separated = "$remote_addr;$uri;$status;$time_iso8601";
    let of_user = "$remote_addr - $remote_user [$time_local] $status";
    for (text, line, fields) in [
        (apache, line, "%{X-Api-Key}i=k \"7\"|http_x_api_key=k \"7\"|%h=203.0.113.1"),
        (nginx, line, "$http_x_api_key=k \"7\"|$remote_addr=203.0.113.1|server_port=80"),
        (nginx, line, "host=example.com|path=/a|method=GET"),
        ("json", object, "tenant.id=7|headers.x=a, b|admin=true"),
        (escaped, "a.example:200ms \"1431857103\" 1.2.3.4", "$host=a.example|$status=200"),
        ("$uri$is_args$args\\t$msec", "/a?b\t1431857103", "$request_uri=/a?b"),
        ("${uri}$is_args$args\\t$msec", "/a?b\t1431857103", "$request_uri=/a?b"),
        ("$uri${is_args}${query_string}\\t$msec", "/a?b\t1431857103", "$request_uri=/a?b"),
        (directives, directed, "$realip_remote_addr=5.6.7.8|$status=200|$SSL_CIPHER=AES"),
        (directives, directed, "$http_user_agent=x|$http_referer=y"),
        (squid, of_squid, "remote_addr=192.168.0.1|status=200|uri=http://a.example/200/|$type=text/html"),
        (columns, padded, "user=bob|uri=/a"),
        (columns, plain, "user=bob|uri=/a"),
        (upstream, tried, "$upstream_status=502, 200|status=200"),
        (upstream, again, "$upstream_status=302 : 502, 200"),
        (upstream, "- - - 1.2.3.4 TIME 499", "remote_addr=1.2.3.4"),
        (agent, &format!("{browser} 0.003 1.2.3.4 TIME \"GET / HTTP/1.1\" 200"), &of_browser),
        (agent, "a 5 0.003 1.2.3.4 TIME \"GET / HTTP/1.1\" 200", "user_agent=a 5"),
        ("%h %t %U %>s", "1.2.3.4 TIME /a b 404 200", "uri=/a b 404"),
        ("%h %U %t %q %>s", "1.2.3.4 /a b TIME  200", "uri=/a b"),
        (in_city, "TIME 1.2.3.4 New York 200 /a", "$geoip_city=New York"),
        (browsed, &format!("1.2.3.4 New York 200 {browser} TIME"), &of_browser),
        (separated, "1.2.3.4;/a;200;b;200;2015-05-17T10:05:03Z", "uri=/a;200;b"),
        (of_user, "1.2.3.4 - a [17/May/2014:10:05:03 +0000] b TIME 200", "user=a [17/May/2014:10:05:03 +0000] b"),
        ("${remote_addr}:$remote_port [$time_local]", "2001:db8::1:4711 TIME", "remote_addr=2001:db8::/64"),
        ("%{%d/%b/%Y %T}t %{%z}t %h %U", "17/May/2015 10:05:03 +0000 1.2.3.4 /a b", "uri=/a b"),
    ] {
        for (name, value) in fields.split('|').map(|field| field.split_once('=').expect(field)) {
            has(text, name, line, value);
        }
    }
    assert_eq!(read("json", &options("none"), object), Ok(None));
    for (text, name) in [(apache, "user"), (nginx, "$http_x_user"), (nginx, "%{X-User}i"), (apache, "%"), (nginx, "")] {
        assert!(LogKey::new(&text.parse().expect(text), &options(name)).is_err(), "{name}");
    }
}

#[test]
fn every_form_of_a_time_is_read_to_the_same_time() {
    for time in ["2015-05-17T10:05:03Z", "2015-05-17T12:05:03.000+0200"] {
        has("$time_iso8601 $remote_addr", "remote_addr", &format!("{time} 1.2.3.4"), "1.2.3.4");
    }
    // A time in several directives is one field.
    let in_parts = "%h [%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t]".parse::<LogFormat>().expect("a format");
    let line = in_parts.parse("1.2.3.4 [17/May/2015 12:05:03.250 +0200]").expect("a line");
    assert_eq!(line.at, AT + 250_000);
    let object = |time: &str| format!(r#"{{"time": "{time}", "remote_addr": "1.2.3.4"}}"#);
    let dates = ["17/May/2015:10:05:03 +0000", "2015-05-17T10:05:03.000000Z"];
    let numbers = ["1431857103.0", "1431857103000", "1431857103000000", "1431857103000000000"];
    for time in dates.iter().chain(&numbers) {
        has("json", "remote_addr", &object(time), "1.2.3.4");
    }
    let no_times = ["", "0", "0.005", "-5", "99", "yesterday", "2015-05-17", "NaN", "inf", "1e300"];
    let no_zones = ["2015-05-17T10:05:03", "2015-05-17T10:05:03+16:00"];
    let far_zones = ["17/May/2015:10:05:03 +2400", "17/May/2015:10:05:03 -1959"];
    for time in no_times.iter().chain(&no_zones).chain(&far_zones) {
        let reason = read("json", &options("remote_addr"), &object(time)).expect_err(time);
        let is_named = reason.contains(&format!("\"{time}\" is not a time like "));
        assert!(is_named || time.is_empty() && reason.contains("no field has the time"), "{reason}");
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
        has(agent, name, browsed, value);
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
        assert_eq!(read(header, &behind, &line), Ok(Some(key.to_owned())), "{line}");
    }
    has("common", "path", &format!("unix: {tail}"), "/");
}
