//! The entries that proxies write into a header, from the nearest proxy to the farthest.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, header};

use crate::web::address::Reason;
use crate::web::address::node::node;

/// Reads the non-empty entries of the header, from the last to the first. Several lines form one list.
pub(super) fn entries(headers: &HeaderMap, name: &HeaderName) -> impl Iterator<Item = Result<IpAddr, Reason>> {
    let is_forwarded = name == header::FORWARDED;
    let lines = headers.get_all(name).iter().rev().map(http::HeaderValue::as_bytes);
    lines
        .flat_map(move |line| Elements { rest: Some(line), has_quotes: is_forwarded })
        .filter(|element| *element != Ok(&b""[..])) // RFC 9110, section 5.6.1
        .map(move |element| element.and_then(if is_forwarded { forwarded } else { plain }))
}

/// The elements of one line, from its end: `a, b` is `b`, then `a`.
///
/// A client's text is to the left of the text that a proxy appends, and must not change how the latter is read. So the line is read
/// from its end. In a well-formed element, each quote closes or opens a string, or is escaped, so its start is found without a look
/// at what comes before it.
struct Elements<'l> {
    rest: Option<&'l [u8]>,
    has_quotes: bool,
}

impl<'l> Iterator for Elements<'l> {
    type Item = Result<&'l [u8], Reason>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.rest.take()?;
        let mut start = line.len();
        while start > 0 {
            match line[start - 1] {
                b',' => {
                    self.rest = Some(&line[..start - 1]);
                    break;
                }
                b'"' if self.has_quotes => match opening_quote(&line[..start]) {
                    Some(quote) => start = quote,
                    None => return Some(Err(Reason::Malformed)),
                },
                _ => start -= 1,
            }
        }
        Some(Ok(line[start..].trim_ascii()))
    }
}

/// The place of the quote that opens the string at the end of `text`.
fn opening_quote(text: &[u8]) -> Option<usize> {
    let is_escaped = |quote: usize| {
        let backslashes = text[..quote].iter().rev().take_while(|byte| **byte == b'\\').count();
        backslashes % 2 == 1
    };
    let closing = text.len() - 1;
    let mut quotes = (0..closing).rev().filter(|place| text[*place] == b'"');
    if is_escaped(closing) { None } else { quotes.find(|quote| !is_escaped(*quote)) }
}

/// Reads an element of a list of addresses. Some proxies write quotes around it.
fn plain(element: &[u8]) -> Result<IpAddr, Reason> {
    let text = std::str::from_utf8(element).map_err(|_| Reason::Malformed)?;
    node(text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text))
}

/// Reads the `for` of an element of `Forwarded`, as in `for="[2001:db8::1]:80";proto=https` (RFC 7239, section 4).
fn forwarded(mut element: &[u8]) -> Result<IpAddr, Reason> {
    let mut client = None;
    while !element.is_empty() {
        let (pair, rest) = pair(element)?;
        if let Some((name, value)) = pair
            && name.eq_ignore_ascii_case(b"for")
            && client.replace(value).is_some()
        {
            return Err(Reason::Malformed); // One of them may be a client's.
        }
        element = rest;
    }
    let client = client.ok_or(Reason::Missing)?;
    node(std::str::from_utf8(&client).map_err(|_| Reason::Malformed)?)
}

type Pair<'e> = (&'e [u8], Cow<'e, [u8]>);

/// Splits the first pair off. It is `None` if there is nothing before the next semicolon.
fn pair(element: &[u8]) -> Result<(Option<Pair<'_>>, &[u8]), Reason> {
    let element = element.trim_ascii_start();
    if let Some(rest) = element.strip_prefix(b";") {
        return Ok((None, rest));
    }
    let equals = element.iter().position(|byte| *byte == b'=').ok_or(Reason::Malformed)?;
    let (name, value) = (&element[..equals], &element[equals + 1..]);
    if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
        return Err(Reason::Malformed);
    }
    let (value, rest) = match value.strip_prefix(b"\"") {
        Some(quoted) => {
            let (value, rest) = unquoted(quoted)?;
            // A quote of the client's, in what a proxy did not escape, can begin a string that hides the proxy's own `for`.
            if value.windows(4).any(|part| part.eq_ignore_ascii_case(b"for=")) {
                return Err(Reason::Malformed);
            }
            (Cow::Owned(value), rest)
        }
        None => {
            let end = value.iter().position(|byte| matches!(byte, b';' | b' ' | b'\t' | b'"')).unwrap_or(value.len());
            (Cow::Borrowed(&value[..end]), &value[end..])
        }
    };
    match rest.trim_ascii_start() {
        [] => Ok((Some((name, value)), &[])),
        [b';', rest @ ..] => Ok((Some((name, value)), rest)),
        _ => Err(Reason::Malformed),
    }
}

/// Reads the rest of a string in quotes, and returns what follows it.
fn unquoted(text: &[u8]) -> Result<(Vec<u8>, &[u8]), Reason> {
    let mut value = Vec::new();
    let mut bytes = text.iter().enumerate();
    while let Some((place, byte)) = bytes.next() {
        match byte {
            b'"' => return Ok((value, &text[place + 1..])),
            b'\\' => value.push(*bytes.next().ok_or(Reason::Malformed)?.1),
            byte => value.push(*byte),
        }
    }
    Err(Reason::Malformed)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
