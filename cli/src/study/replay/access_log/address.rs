//! Addresses of clients, as the library's web layer reads them.

use std::net::{IpAddr, Ipv4Addr};

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request};

use pg_limiter::web::{ClientAddress, PeerAddress, TrustedProxies};

/// nginx's variable with the header of the proxies and the peer after it.
pub(super) const ALL_FORWARDED: &str = "proxy_add_x_forwarded_for";

/// Stands for the peer in logs that have only what the last proxy reports. No client can have this address.
pub(super) const UNKNOWN_PEER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Reads an address in any form that the library reads, such as with a port.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if text.is_empty() || text.contains([',', ' ']) {
        return None;
    }
    let request = request(UNKNOWN_PEER, &X_FORWARDED_FOR, text)?;
    ClientAddress::behind(TrustedProxies::new([UNKNOWN_PEER.into()])).find(&request)
}

/// A request from this peer, with this header unless it is empty.
pub(super) fn request(peer: IpAddr, header: &HeaderName, value: &str) -> Option<Parts> {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.extensions.insert(PeerAddress(peer));
    if !value.is_empty() {
        parts.headers.insert(header.clone(), HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    Some(parts)
}
