//! The format strings of nginx's `log_format` and of Apache's `LogFormat`.

use crate::study::replay::access_log::pattern::{COMMON, Field, Kind, Piece, TimeForm, literal};

/// Divides a format string into its pieces. Quotes may be escaped, as in nginx's configuration.
pub(super) fn of_nginx(format: &str) -> Result<Vec<Piece>, String> {
    // The query with its question mark: together with the path, this is the URI as the client sent it.
    let format = format.replace("\\\"", "\"").replace("$uri$is_args$args", "$request_uri");
    let mut pieces = Vec::new();
    let mut rest = format.as_str();
    while let Some((text, after)) = rest.split_once('$') {
        pieces.push(literal(text));
        let (name, after) = variable(after).ok_or_else(|| format!("after $, \"{after}\" is no name of a variable"))?;
        pieces.push(Piece::Field(variable_field(name)));
        rest = after;
    }
    pieces.push(literal(rest));
    pieces.retain(|piece| *piece != literal(""));
    Ok(pieces)
}

/// The name of a variable, written `name` or `{name}`, and what follows it.
fn variable(text: &str) -> Option<(&str, &str)> {
    let is_other = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let (name, rest) = match text.strip_prefix('{') {
        Some(text) => text.split_once('}')?,
        None => text.split_at(text.find(is_other).unwrap_or(text.len())),
    };
    (!name.is_empty() && !name.contains(is_other)).then_some((name, rest))
}

fn variable_field(name: &str) -> Field {
    let kind = match name {
        "time_local" => Kind::Time(TimeForm::Strftime(COMMON.to_owned())),
        "time_iso8601" => Kind::Time(TimeForm::Iso),
        "msec" => Kind::Time(TimeForm::Number(1)),
        "remote_addr" | "realip_remote_addr" => Kind::Address,
        "remote_user" => Kind::User,
        "host" | "server_name" => Kind::Host,
        "status" | "body_bytes_sent" | "bytes_sent" | "request_length" | "remote_port" | "server_port" => Kind::Number,
        "remote_logname" | "hostname" | "server_addr" | "request_method" | "scheme" | "server_protocol" => Kind::Word,
        "request_id" | "request_time" | "pid" | "connection" | "connection_requests" => Kind::Word,
        _ => Kind::Text,
    };
    Field { name: name.to_owned(), kind }
}

/// Divides a format string into its pieces. Quotes may be escaped, as in Apache's configuration.
pub(super) fn of_apache(format: &str) -> Result<Vec<Piece>, String> {
    let format = format.replace("\\\"", "\"").replace("\\t", "\t");
    // The path and the query: together, the URI as the client sent it.
    let format = format.replace("%U%q", "%{request_uri}n");
    let mut pieces = Vec::new();
    let mut rest = format.as_str();
    while let Some((text, after)) = rest.split_once('%') {
        push(&mut pieces, literal(text));
        let invalid = || format!("after %, \"{after}\" is no directive");
        let (letter, argument, after) = directive(after).ok_or_else(invalid)?;
        match letter {
            '%' => push(&mut pieces, literal("%")),
            't' => time(argument)?.into_iter().for_each(|piece| push(&mut pieces, piece)),
            _ => pieces.push(Piece::Field(directive_field(letter, argument)?)),
        }
        rest = after;
    }
    push(&mut pieces, literal(rest));
    Ok(pieces)
}

/// The name of the field that one directive writes, such as `%{X-Api-Key}i`.
pub(super) fn field_name(directive: &str) -> Option<String> {
    let pieces = of_apache(directive).ok()?;
    pieces.iter().find_map(Piece::field).map(|field| field.name.clone())
}

/// Adds a piece. A time in several directives, such as `%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t`, becomes one field.
fn push(pieces: &mut Vec<Piece>, mut piece: Piece) {
    if piece == literal("") {
        return;
    }
    if let Some(more) = strftime(&mut piece) {
        let between = pieces.pop_if(|last| last.field().is_none());
        if let Some(format) = pieces.last_mut().and_then(strftime) {
            if let Some(Piece::Literal(text)) = between {
                format.push_str(&text);
            }
            format.push_str(more);
            return;
        }
        pieces.extend(between);
    }
    pieces.push(piece);
}

fn strftime(piece: &mut Piece) -> Option<&mut String> {
    match piece {
        Piece::Field(Field { kind: Kind::Time(TimeForm::Strftime(format)), .. }) => Some(format),
        _ => None,
    }
}

/// Parses the text after a `%`: conditions (`400,501`, `!200`), `<` or `>`, an argument in braces, and the letter. Returns the
/// letter, the argument, and what follows.
fn directive(text: &str) -> Option<(char, &str, &str)> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, ',' | '!' | '<' | '>'));
    let (argument, rest) = match rest.strip_prefix('{') {
        Some(rest) => rest.split_once('}')?,
        None => ("", rest),
    };
    let mut rest = rest.trim_start_matches(['<', '>']).chars();
    Some((rest.next()?, argument, rest.as_str()))
}

fn directive_field(letter: char, argument: &str) -> Result<Field, String> {
    let header = || argument.to_ascii_lowercase().replace('-', "_");
    let (name, kind) = match (letter, argument) {
        // It is a name if the server looks names up.
        ('h', _) => ("remote_addr".to_owned(), Kind::Word),
        ('D', _) => ("request_micros".to_owned(), Kind::Number),
        ('i', _) => (format!("http_{}", header()), Kind::Text),
        ('o', _) => (format!("sent_http_{}", header()), Kind::Text),
        ('C', cookie) => (format!("cookie_{cookie}"), Kind::Text),
        ('e' | 'n' | 'x', name) => (name.to_owned(), Kind::Text),
        ('f' | 'R' | 'L' | 'k' | 'X' | 'S', _) => (letter.to_string(), Kind::Text),
        _ => return as_variable(letter, argument).ok_or_else(|| format!("the directive %{letter} is unknown")),
    };
    Ok(Field { name, kind })
}

/// The directives that write the same as a variable of nginx.
const VARIABLES: &str = "a remote_addr A server_addr b body_bytes_sent B body_bytes_sent O bytes_sent I request_length \
                         T request_time H server_protocol l remote_logname m request_method p server_port P pid \
                         q query_string r request s status u remote_user U uri v host V host";

/// The field of a directive that writes the same as a variable of nginx.
fn as_variable(letter: char, argument: &str) -> Option<Field> {
    if (letter, argument) == ('a', "c") {
        return Some(variable_field("realip_remote_addr"));
    }
    let mut words = VARIABLES.split(' ');
    words.find(|word| word.chars().eq([letter]))?;
    words.next().map(variable_field)
}

/// `%t`, and `%{format}t`.
fn time(argument: &str) -> Result<Vec<Piece>, String> {
    let format = argument.strip_prefix("begin:").or_else(|| argument.strip_prefix("end:")).unwrap_or(argument);
    let form = match format {
        "" | "begin" | "end" => {
            return Ok(vec![literal("["), Piece::Field(variable_field("time_local")), literal("]")]);
        }
        "sec" => TimeForm::Number(1),
        "msec" => TimeForm::Number(1_000),
        "usec" => TimeForm::Number(1_000_000),
        "msec_frac" | "usec_frac" => TimeForm::Strftime("%f".to_owned()),
        _ if format.contains('%') => TimeForm::Strftime(format.to_owned()),
        _ => return Err(format!("%{{{argument}}}t is no format of a time")),
    };
    Ok(vec![Piece::Field(Field { name: "time_local".to_owned(), kind: Kind::Time(form) })])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_divided_from_the_text_between_them() {
        let field = |name: &str| Piece::Field(variable_field(name));
        let literal = |text: &str| Piece::Literal(text.to_owned());
        let expected = [field("host"), literal(":"), field("status"), literal("ms \"")];
        assert_eq!(of_nginx("$host:${status}ms \\\"").unwrap(), expected);
        let uri = of_nginx("$uri$is_args$args|").unwrap();
        assert_eq!(uri, [field("request_uri"), literal("|")]);
        for broken in ["$", "$-", "${status", "a$ b"] {
            assert!(of_nginx(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn directives_have_the_names_of_nginx_variables() {
        for (directive, name) in [
            ("%{c}a", "realip_remote_addr"),
            ("%>s", "status"),
            ("%400,501{User-Agent}i", "http_user_agent"),
            ("%!200,304,302{Referer}i", "http_referer"),
            ("%{SSL_CIPHER}x", "SSL_CIPHER"),
        ] {
            assert_eq!(field_name(directive).as_deref(), Some(name), "{directive}");
        }
        for broken in ["%", "%{Referer", "%Z", "%{soon}t"] {
            assert!(of_apache(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_time_in_several_directives_is_one_field() {
        let pieces = of_apache("%h [%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t]").unwrap();
        let times: Vec<&Field> = pieces.iter().filter_map(Piece::field).skip(1).collect();
        let [Field { kind: Kind::Time(form), .. }] = times[..] else { panic!("{pieces:?}") };
        assert_eq!(form.micros("17/May/2015 12:05:03.250 +0200"), Some(1_431_857_103_250_000));
    }
}
