//! The names of fields: those of the tool, which mean the same in every format, and those of a format.

/// The tool's names, and the fields of formats that have the same meaning, the best first. A dot selects a member of a JSON object.
const NAMES: [(&str, &[&str]); 11] = [
    ("time", &["time_iso8601", "time_local", "msec", "time", "timestamp", "@timestamp", "ts", "StartUTC", "date"]),
    (
        "remote_addr",
        &[
            "remote_addr",
            "remote_ip",
            "request.remote_ip",
            "httpRequest.remoteIp",
            "client_addr",
            "client_ip",
            "clientip",
            "ClientHost",
            "client",
            "ip",
            "realip_remote_addr",
        ],
    ),
    (
        "http_x_forwarded_for",
        &["http_x_forwarded_for", "x_forwarded_for", "xff", "forwarded_for", "request.headers.X-Forwarded-For"],
    ),
    ("user", &["remote_user", "user", "auth", "ClientUsername", "user_id"]),
    ("request", &["request", "request_line"]),
    ("method", &["request_method", "method", "verb", "RequestMethod", "request.method", "httpRequest.requestMethod"]),
    ("uri", &["request_uri", "RequestPath", "request.uri", "uri", "url", "path"]),
    ("status", &["status", "DownstreamStatus", "response", "code", "httpRequest.status"]),
    ("user_agent", &["http_user_agent", "user_agent", "agent", "request.headers.User-Agent", "httpRequest.userAgent"]),
    ("referer", &["http_referer", "referer", "referrer", "http_referrer", "request.headers.Referer"]),
    ("host", &["host", "http_host", "server_name", "vhost", "RequestHost", "request.host"]),
];

/// The fields of formats with the meaning of this name, the best first. `None` if the tool has no such name.
pub(super) fn meanings(name: &str) -> Option<&'static [&'static str]> {
    NAMES.iter().find(|(own, _)| *own == name).map(|(_, fields)| *fields)
}

/// The tool's names, without the time, which is no key.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name).filter(|name| !matches!(*name, "time" | "request")).chain(["path"])
}

/// The parts of `GET /path?query HTTP/1.1`. A malformed request, as port scanners send them, has no method, and is the URI.
pub(super) fn method_and_uri(request: &str) -> (&str, &str) {
    let (method, rest) = request.split_once(' ').unwrap_or(("", request));
    match rest.rsplit_once(' ') {
        Some((uri, protocol)) if protocol.starts_with("HTTP/") => (method, uri),
        _ => (method, rest),
    }
}

/// A URI without its query.
pub(super) fn path_of(uri: &str) -> &str {
    uri.split_once('?').map_or(uri, |(path, _)| path)
}
