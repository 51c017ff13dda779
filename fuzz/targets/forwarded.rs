//! The headers in which proxies forward client addresses. Nothing that a client sends may hide an address that a trusted proxy
//! appends.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderName, HeaderValue, Request};
use libfuzzer_sys::fuzz_target;
use pg_limiter::web::{ClientAddress, KeyExtractor, PeerAddress, TrustedProxies};
use pg_limiter_fuzz::bounded;

const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));

fuzz_target!(|data: &[u8]| {
    for (header, appended) in [
        ("x-forwarded-for", "198.51.100.7"),
        ("x-forwarded-for", "[64:ff9b::198.51.100.7]:443"),
        ("forwarded", "for=198.51.100.7;proto=https"),
        ("forwarded", "for=\"198.51.100.7:_p\";host=\"a,b;c=\\\",\\\\\""),
    ] {
        let header = HeaderName::from_static(header);
        let sent: Vec<&[u8]> = data.split(|byte| *byte == b'\n').filter(|line| is_value(line)).collect();
        // The headers of a peer that is not a trusted proxy are ignored.
        assert_eq!(find(&header, CLIENT, &sent), Some(CLIENT));
        // If the proxy adds nothing, the client's headers may be believed, but parsing them must end. A header that reports
        // nothing is not a request of the proxy's own.
        let found = find(&header, PROXY, &sent);
        assert!(
            found != Some(PROXY) || sent.is_empty() || sent.iter().any(|line| !line.iter().all(|byte| is_empty(*byte)))
        );
        // One proxy adds a line, and another appends to the last line.
        assert_eq!(find(&header, PROXY, &[&sent[..], &[appended.as_bytes()]].concat()), Some(CLIENT));
        if let Some((last, before)) = sent.split_last() {
            let longer = [*last, b", ", appended.as_bytes()].concat();
            assert_eq!(find(&header, PROXY, &[before, &[&longer]].concat()), Some(CLIENT));
        }
    }
});

fn is_value(line: &[u8]) -> bool {
    HeaderValue::from_bytes(line).is_ok()
}

/// Whether a line of only such bytes has no element.
fn is_empty(byte: u8) -> bool {
    matches!(byte, b',' | b' ' | b'\t')
}

/// The client's address. It has a key even if it cannot be read.
fn find(header: &HeaderName, peer: IpAddr, lines: &[&[u8]]) -> Option<IpAddr> {
    let mut request = Request::new(());
    request.extensions_mut().insert(PeerAddress(peer));
    for line in lines {
        request.headers_mut().append(header, HeaderValue::from_bytes(line).expect("a value"));
    }
    let (parts, ()) = request.into_parts();
    let proxies: TrustedProxies = "10.0.0.0/8, fd00::/8".parse().expect("networks");
    let client = ClientAddress::behind(proxies.with_header(header.clone()));
    assert!(matches!(client.key(&parts), Ok(Some(key)) if !key.as_str().is_empty()));
    bounded(&lines.concat(), |_| client.find(&parts))
}
