//! The format strings of Apache's `LogFormat`.

use crate::replay::access_log::nginx;
use crate::replay::access_log::pattern::{Field, Kind, Piece};
use crate::replay::access_log::time::{COMMON, TimeForm};

/// Divides a format string into its pieces. Quotes may be escaped, as in Apache's configuration.
pub(super) fn pieces(format: &str) -> Result<Vec<Piece>, String> {
    let format = format.replace("\\\"", "\"").replace("\\t", "\t");
    // The path and the query: together, the URI as the client sent it.
    let format = format.replace("%U%q", "%{request_uri}n");
    let mut pieces: Vec<Piece> = Vec::new();
    let mut rest = format.as_str();
    while let Some((text, after)) = rest.split_once('%') {
        push(&mut pieces, Piece::Literal(text.to_owned()));
        let (directive, after) = Directive::parse(after)?;
        directive.pieces()?.into_iter().for_each(|piece| push(&mut pieces, piece));
        rest = after;
    }
    push(&mut pieces, Piece::Literal(rest.to_owned()));
    Ok(pieces)
}

/// The name of the field that one directive writes, such as `%{X-Api-Key}i`.
pub(super) fn field_name(directive: &str) -> Option<String> {
    let pieces = pieces(directive).ok()?;
    pieces.into_iter().find_map(|piece| match piece {
        Piece::Field(field) => Some(field.name),
        Piece::Literal(_) => None,
    })
}

/// Adds a piece. A time in several directives, such as `%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t`, becomes one field.
fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    if piece == Piece::Literal(String::new()) {
        return;
    }
    let Piece::Field(Field { kind: Kind::Time(TimeForm::Strftime(more)), .. }) = &piece else {
        pieces.push(piece);
        return;
    };
    let between = match pieces.as_slice() {
        [.., Piece::Field(_), Piece::Literal(between)] => between.clone(),
        _ => String::new(),
    };
    let place = pieces.len().checked_sub(if between.is_empty() { 1 } else { 2 });
    match place.and_then(|place| pieces.get_mut(place)) {
        Some(Piece::Field(Field { kind: Kind::Time(TimeForm::Strftime(format)), .. })) => {
            format.push_str(&between);
            format.push_str(more);
            if !between.is_empty() {
                pieces.pop();
            }
        }
        _ => pieces.push(piece),
    }
}

struct Directive<'a> {
    /// The text in braces.
    argument: &'a str,
    letter: char,
}

impl<'a> Directive<'a> {
    /// Parses the text after a `%`: conditions (`400,501`, `!200`), `<` or `>`, an argument in braces, and the letter.
    fn parse(text: &'a str) -> Result<(Self, &'a str), String> {
        let invalid = || format!("after %, \"{text}\" is no directive");
        let rest = text.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, ',' | '!' | '<' | '>'));
        let (argument, rest) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_once('}').ok_or_else(invalid)?,
            None => ("", rest),
        };
        let rest = rest.trim_start_matches(['<', '>']);
        let letter = rest.chars().next().ok_or_else(invalid)?;
        Ok((Self { argument, letter }, &rest[letter.len_utf8()..]))
    }

    fn pieces(&self) -> Result<Vec<Piece>, String> {
        let named = |name: &str, kind: Kind| vec![Piece::Field(Field { name: name.to_owned(), kind })];
        let as_nginx = |name: &str| vec![Piece::Field(nginx::field(name))];
        Ok(match (self.letter, self.argument) {
            ('%', _) => vec![Piece::Literal("%".to_owned())],
            // It is a name if the server looks names up.
            ('h', _) => named("remote_addr", Kind::Word),
            ('a', "c") => as_nginx("realip_remote_addr"),
            ('a', _) => as_nginx("remote_addr"),
            ('A', _) => as_nginx("server_addr"),
            ('b' | 'B', _) => as_nginx("body_bytes_sent"),
            ('O', _) => as_nginx("bytes_sent"),
            ('I', _) => as_nginx("request_length"),
            ('D', _) => named("request_micros", Kind::Number),
            ('T', _) => as_nginx("request_time"),
            ('H', _) => as_nginx("server_protocol"),
            ('l', _) => named("remote_logname", Kind::Word),
            ('m', _) => as_nginx("request_method"),
            ('p', _) => as_nginx("server_port"),
            ('P', _) => as_nginx("pid"),
            ('q', _) => as_nginx("query_string"),
            ('r', _) => as_nginx("request"),
            ('s', _) => as_nginx("status"),
            ('t', argument) => time(argument)?,
            ('u', _) => as_nginx("remote_user"),
            ('U', _) => as_nginx("uri"),
            ('v' | 'V', _) => as_nginx("host"),
            ('i', header) => named(&format!("http_{}", header.to_ascii_lowercase().replace('-', "_")), Kind::Text),
            ('o', header) => named(&format!("sent_http_{}", header.to_ascii_lowercase().replace('-', "_")), Kind::Text),
            ('C', cookie) => named(&format!("cookie_{cookie}"), Kind::Text),
            ('e' | 'n' | 'x', name) => named(name, Kind::Text),
            ('f' | 'R' | 'L' | 'k' | 'X' | 'S', _) => named(&self.letter.to_string(), Kind::Text),
            (letter, _) => return Err(format!("the directive %{letter} is unknown")),
        })
    }
}

/// `%t`, and `%{format}t`.
fn time(argument: &str) -> Result<Vec<Piece>, String> {
    let field = |form| Piece::Field(Field { name: "time_local".to_owned(), kind: Kind::Time(form) });
    let format = argument.strip_prefix("begin:").or_else(|| argument.strip_prefix("end:")).unwrap_or(argument);
    Ok(vec![match format {
        "" | "begin" | "end" => {
            let literal = |text: &str| Piece::Literal(text.to_owned());
            let time = field(TimeForm::Strftime(COMMON.to_owned()));
            return Ok(vec![literal("["), time, literal("]")]);
        }
        "sec" => field(TimeForm::Number(1)),
        "msec" => field(TimeForm::Number(1_000)),
        "usec" => field(TimeForm::Number(1_000_000)),
        "msec_frac" | "usec_frac" => field(TimeForm::Strftime("%f".to_owned())),
        format if format.contains('%') => field(TimeForm::Strftime(format.to_owned())),
        _ => return Err(format!("%{{{argument}}}t is no format of a time")),
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_have_the_names_of_nginx_variables() {
        for (directive, name) in [
            ("%h", "remote_addr"),
            ("%{c}a", "realip_remote_addr"),
            ("%>s", "status"),
            ("%400,501{User-Agent}i", "http_user_agent"),
            ("%!200,304,302{Referer}i", "http_referer"),
            ("%{X-Api-Key}i", "http_x_api_key"),
            ("%{SSL_CIPHER}x", "SSL_CIPHER"),
        ] {
            assert_eq!(field_name(directive).as_deref(), Some(name), "{directive}");
        }
        for broken in ["%", "%{Referer", "%Z", "%{soon}t"] {
            assert!(pieces(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_time_in_several_directives_is_one_field() {
        let pieces = pieces("%h [%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t]").unwrap();
        let times: Vec<&Piece> = pieces.iter().filter(|piece| matches!(piece, Piece::Field(_))).skip(1).collect();
        let [Piece::Field(Field { kind: Kind::Time(form), .. })] = times[..] else { panic!("{pieces:?}") };
        assert_eq!(form.micros("17/May/2015 12:05:03.250 +0200"), Some(1_431_857_103_250_000));
    }
}
