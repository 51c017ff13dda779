//! The addresses that proxies write into a header.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName};

/// The non-empty elements of the list, from the last to the first.
///
/// The list is split at every comma, even within quotes. Read from the right, a quote may open or close, and a quote that a
/// client opens must not hide what a proxy appends. No address contains a comma.
pub(super) fn from_the_nearest<'h>(headers: &'h HeaderMap, name: &'h HeaderName) -> impl Iterator<Item = &'h [u8]> {
    let lines = headers.get_all(name).iter().rev();
    let elements = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// Parses an address: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
pub(super) fn plain_address(element: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(element).ok().and_then(node)
}

/// Parses the `for` of an element of `Forwarded`, as in `for="[2001:db8::1]:80";proto=https`. Returns `None` if it is
/// obfuscated, unknown, or appears twice.
pub(super) fn forwarded_address(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in std::str::from_utf8(element).ok()?.split(';').filter(|pair| !pair.trim().is_empty()) {
        let (name, value) = pair.split_once('=')?;
        if !name.trim().eq_ignore_ascii_case("for") {
            continue;
        }
        if found.is_some() {
            return None;
        }
        let value = value.trim();
        let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        found = Some(node(quoted.unwrap_or(value))?);
    }
    found
}

fn node(text: &str) -> Option<IpAddr> {
    let alone = || text.parse::<IpAddr>().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    alone().or_else(with_port).or_else(bracketed).map(|address| address.to_canonical())
}
