use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// The address of the peer, at the other end of the connection: the client, or the last proxy before this server.
///
/// With axum, `ConnectInfo<SocketAddr>` provides it, if the app is served with `into_make_service_with_connect_info`. With
/// other servers, or if the listener knows a better address (PROXY protocol), insert a `PeerAddress` into the request's
/// extensions, in a layer outside of the rate limits. It takes precedence over `ConnectInfo`. A peer on a Unix socket has no
/// address: insert the [loopback address](crate::guide::addresses#unix-sockets).
///
/// ```
/// use std::net::SocketAddr;
/// use pg_limiter::web::PeerAddress;
/// # let mut request = http::Request::new(());
/// # let peer: SocketAddr = "192.0.2.1:4711".parse().unwrap();
/// request.extensions_mut().insert(PeerAddress::from(peer));
/// ```
///
/// With the server of tonic, an interceptor does it, with TLS or without:
///
/// ```no_run
/// # #[cfg(feature = "tonic")]
/// # fn f(rate_limits: pg_limiter::web::RateLimitLayer) {
/// use pg_limiter::web::PeerAddress;
/// use tonic::service::InterceptorLayer;
/// use tonic::transport::Server;
/// use tonic::{Request, Status};
///
/// fn with_peer(mut request: Request<()>) -> Result<Request<()>, Status> {
///     if let Some(peer) = request.remote_addr() {
///         request.extensions_mut().insert(PeerAddress::from(peer));
///     }
///     Ok(request)
/// }
///
/// let server = Server::builder().layer(InterceptorLayer::new(with_peer)).layer(rate_limits);
/// # }
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

/// The peer's address, if the server provides it.
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
