use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// The address at the other end of the connection: of the client, or of the last proxy before this server.
///
/// With axum, `ConnectInfo<SocketAddr>` says so, if the app is served with `into_make_service_with_connect_info`. Elsewhere,
/// or where a listener knows better (PROXY protocol, a Unix socket), put this among the request's extensions. It comes
/// first if there are both.
///
/// ```
/// use std::net::SocketAddr;
/// use pg_limiter::web::PeerAddress;
/// # let mut request = http::Request::new(());
/// # let peer: SocketAddr = "192.0.2.1:4711".parse().unwrap();
/// request.extensions_mut().insert(PeerAddress::from(peer));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        Self(address.ip())
    }
}

impl From<IpAddr> for PeerAddress {
    fn from(address: IpAddr) -> Self {
        Self(address)
    }
}

/// The peer of a request, if the server tells.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    if let Some(PeerAddress(address)) = extensions.get() {
        return Some(*address);
    }
    #[cfg(feature = "axum")]
    if let Some(address) = crate::web::axum::connect_info(extensions) {
        return Some(address.ip());
    }
    None
}
