//! The format strings of nginx's `log_format`.

use crate::replay::access_log::pattern::{Field, Kind, Piece};
use crate::replay::access_log::time::{COMMON, TimeForm};

/// Divides a format string into its pieces. Quotes may be escaped, as in nginx's configuration.
pub(super) fn pieces(format: &str) -> Result<Vec<Piece>, String> {
    // The query with its question mark: together with the path, this is the URI as the client sent it.
    let format = format.replace("\\\"", "\"").replace("$uri$is_args$args", "$request_uri");
    let mut pieces = Vec::new();
    let mut rest = format.as_str();
    while let Some((text, after)) = rest.split_once('$') {
        pieces.push(Piece::Literal(text.to_owned()));
        let (name, after) = variable(after).ok_or_else(|| format!("after $, \"{after}\" is no name of a variable"))?;
        pieces.push(Piece::Field(field(name)));
        rest = after;
    }
    pieces.push(Piece::Literal(rest.to_owned()));
    pieces.retain(|piece| *piece != Piece::Literal(String::new()));
    Ok(pieces)
}

/// The name of a variable, written `name` or `{name}`, and what follows it.
fn variable(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = match text.strip_prefix('{') {
        Some(text) => text.split_once('}')?,
        None => text.split_at(text.find(|c: char| !is_name(c)).unwrap_or(text.len())),
    };
    (!name.is_empty() && name.chars().all(is_name)).then_some((name, rest))
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

pub(super) fn field(name: &str) -> Field {
    let kind = match name {
        "time_local" => Kind::Time(TimeForm::Strftime(COMMON.to_owned())),
        "time_iso8601" => Kind::Time(TimeForm::Iso),
        "msec" => Kind::Time(TimeForm::Number(1)),
        "remote_addr" | "realip_remote_addr" => Kind::Address,
        "remote_user" => Kind::User,
        "host" | "server_name" => Kind::Host,
        "status" | "body_bytes_sent" | "bytes_sent" | "request_length" | "remote_port" | "server_port" => Kind::Number,
        "remote_logname"
        | "hostname"
        | "server_addr"
        | "request_method"
        | "scheme"
        | "server_protocol"
        | "request_id"
        | "request_time"
        | "pid"
        | "connection"
        | "connection_requests" => Kind::Word,
        _ => Kind::Text,
    };
    Field { name: name.to_owned(), kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_divided_from_the_text_between_them() {
        let text = |text: &str| Piece::Literal(text.to_owned());
        let expected = [Piece::Field(field("host")), text(":"), Piece::Field(field("status")), text("ms \"")];
        assert_eq!(pieces("$host:${status}ms \\\"").unwrap(), expected);
        let uri = pieces("$uri$is_args$args|").unwrap();
        assert_eq!(uri, [Piece::Field(field("request_uri")), text("|")]);
        for broken in ["$", "$-", "${status", "a$ b"] {
            assert!(pieces(broken).is_err(), "{broken}");
        }
    }
}
