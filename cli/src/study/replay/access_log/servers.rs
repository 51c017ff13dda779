//! The format strings of nginx's `log_format` and of Apache's `LogFormat`.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::study::replay::access_log::pattern::{COMMON, Kind, Pattern, TimeForm};

/// A variable, written `$name` or `${name}`.
static VARIABLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\$(?:([A-Za-z0-9_]+)|\{([A-Za-z0-9_]+)\})?").expect("a regular expression"));
/// The query with its question mark, after the path: together, this is the URI as the client sent it.
static URI_AND_QUERY: LazyLock<Regex> = LazyLock::new(|| {
    let query = r"(?:args|query_string|\{args\}|\{query_string\})";
    Regex::new(&format!(r"\$(?:uri|\{{uri\}})\$(?:is_args|\{{is_args\}})\${query}")).expect("a regular expression")
});
/// A directive: conditions (`400,501`, `!200`), `<` or `>`, an argument in braces, and the letter.
static DIRECTIVE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"%[0-9,!<>]*(?:\{([^}]*)\})?[<>]*([^{<>])?").expect("a regular expression"));
/// Two parts of a time, such as `%{%d/%b/%Y %T}t.%{%f}t`, and the text between them.
static TWO_TIMES: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"%\{([^}]*%[^}]*)\}t([^%]*)%\{([^}]*%[^}]*)\}t").expect("a regular expression"));

pub(super) fn of_nginx(format: &str) -> Result<Pattern, String> {
    divided(&URI_AND_QUERY.replace_all(&unescaped(format), "$${request_uri}"), &VARIABLE, |pattern, variable, after| {
        let name = variable.get(1).or(variable.get(2)).map(|name| name.as_str());
        let name = name.ok_or_else(|| format!("after $, \"{after}\" is no name of a variable"))?;
        pattern.push_field(name, kind_of(name));
        Ok(())
    })
}

/// A format string without the escapes that it has in the configuration of a server.
fn unescaped(format: &str) -> String {
    format.replace("\\\"", "\"").replace("\\t", "\t")
}

/// Divides a format string at what the expression finds. `read` appends a match; it also gets the text after its first character.
fn divided(
    format: &str,
    expression: &Regex,
    mut read: impl FnMut(&mut Pattern, Captures<'_>, &str) -> Result<(), String>,
) -> Result<Pattern, String> {
    let (mut pattern, mut end) = (Pattern::default(), 0);
    for found in expression.captures_iter(format) {
        let place = found.get_match().range();
        pattern.push_text(&format[end..place.start]);
        read(&mut pattern, found, &format[place.start + 1..])?;
        end = place.end;
    }
    pattern.push_text(&format[end..]);
    Ok(pattern)
}

fn kind_of(variable: &str) -> Kind {
    match variable {
        "time_local" => Kind::Time(TimeForm::Strftime(COMMON.to_owned())),
        "time_iso8601" => Kind::Time(TimeForm::Iso),
        "msec" => Kind::Time(TimeForm::Number(1)),
        "remote_addr" | "realip_remote_addr" => Kind::Address,
        "remote_user" => Kind::User,
        "host" | "server_name" => Kind::Host,
        "status" | "body_bytes_sent" | "bytes_sent" | "request_length" | "remote_port" | "server_port" => Kind::Number,
        "connection" | "connection_requests" | "connection_time" | "gzip_ratio" | "request_time" => Kind::Number,
        "remote_logname" | "hostname" | "server_addr" | "request_method" | "scheme" | "server_protocol" => Kind::Word,
        "request_id" | "pid" => Kind::Word,
        _ if variable.starts_with("upstream_") && !variable.starts_with("upstream_http_") => Kind::List,
        _ => Kind::Text,
    }
}

pub(super) fn of_apache(format: &str) -> Result<Pattern, String> {
    // The path and the query: together, the URI as the client sent it.
    let format = unescaped(format).replace("%U%q", "%{request_uri}n");
    let format = format.replace("%{begin:", "%{").replace("%{end:", "%{");
    // A time in several directives is one field.
    let mut format = format.replace("%{msec_frac}t", "%{%f}t").replace("%{usec_frac}t", "%{%f}t");
    format = format.replace("%{sec}t.%{%f}t", "%{%s.%f}t");
    while let Cow::Owned(joined) = TWO_TIMES.replace(&format, "%{$1$2$3}t") {
        format = joined;
    }
    // A field that the log has twice, by two directives, has the name of its directive the second time.
    let mut names: Vec<String> = Vec::new();
    // The address comes before the name of the client, which may be no address.
    let has_address = format.contains("%a");
    divided(&format, &DIRECTIVE, |pattern, directive, after| {
        let written = directive.get_match().as_str();
        let argument = directive.get(1).map_or("", |argument| argument.as_str());
        match directive.get(2).and_then(|letter| letter.as_str().chars().next()) {
            Some('%') => pattern.push_text("%"),
            Some('t') if ["", "begin", "end"].contains(&argument) => {
                pattern.push_text("[");
                pattern.push_field("time_local", kind_of("time_local"));
                pattern.push_text("]");
            }
            Some('t') => pattern.push_field("time_local", Kind::Time(time(argument)?)),
            Some(letter) => {
                let (mut name, kind) = name_and_kind(letter, argument)?;
                if letter == 'h' && has_address {
                    "remote_host".clone_into(&mut name);
                } else if names.contains(&name) {
                    written.clone_into(&mut name);
                }
                names.push(name.clone());
                pattern.push_field(name, kind);
            }
            None => return Err(format!("after %, \"{after}\" is no directive")),
        }
        Ok(())
    })
}

/// The name of the field that one directive writes, such as `%{X-Api-Key}i`.
pub(super) fn field_name(directive: &str) -> Option<String> {
    of_apache(directive).ok()?.fields.into_iter().next().map(|field| field.name)
}

fn name_and_kind(letter: char, argument: &str) -> Result<(String, Kind), String> {
    let header = || argument.to_ascii_lowercase().replace('-', "_");
    let variable = VARIABLES.split(' ').skip_while(|word| !word.chars().eq([letter])).nth(1);
    Ok(match (letter, argument) {
        // It is a name if the server looks names up.
        ('h', _) => ("remote_addr".to_owned(), Kind::Word),
        ('a', "c") => ("realip_remote_addr".to_owned(), Kind::Address),
        ('p', "remote") => ("remote_port".to_owned(), Kind::Number),
        ('D', _) => ("request_micros".to_owned(), Kind::Number),
        ('i', _) => (format!("http_{}", header()), Kind::Text),
        ('o', _) => (format!("sent_http_{}", header()), Kind::Text),
        ('C', cookie) => (format!("cookie_{cookie}"), Kind::Text),
        ('e' | 'n' | 'x', name) => (name.to_owned(), Kind::Text),
        ('f' | 'R' | 'L' | 'k' | 'X' | 'S', _) => (letter.to_string(), Kind::Text),
        _ => variable
            .map(|name| (name.to_owned(), kind_of(name)))
            .ok_or_else(|| format!("the directive %{letter} is unknown"))?,
    })
}

/// The directives that write the same as a variable of nginx.
const VARIABLES: &str = "a remote_addr A server_addr b body_bytes_sent B body_bytes_sent O bytes_sent I request_length \
                         T request_time H server_protocol l remote_logname m request_method p server_port P pid \
                         q query_string r request s status u remote_user U uri v host V host";

fn time(format: &str) -> Result<TimeForm, String> {
    match format {
        "sec" => Ok(TimeForm::Number(1)),
        "msec" => Ok(TimeForm::Number(1_000)),
        "usec" => Ok(TimeForm::Number(1_000_000)),
        _ if format.contains('%') => Ok(TimeForm::Strftime(format.to_owned())),
        _ => Err(format!("%{{{format}}}t is no format of a time")),
    }
}
