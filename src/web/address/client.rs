use std::net::IpAddr;

use http::request::Parts;
use ipnet::IpNet;

use crate::call::Key;
use crate::web::address::TrustedProxies;
use crate::web::address::peer::peer;
use crate::web::keys::{KeyExtractor, NoKey};

/// Uses the client's address as the key. This is the address of the peer ([`direct`](Self::direct)) or, if the peer is one of
/// your proxies, the address that the proxy reports ([`behind`](Self::behind)). Addresses that clients report themselves are
/// ignored.
///
/// The key of an IPv6 client is its /64 network, because a client can use any address in it. Change that with
/// [`ipv6_prefix`](Self::ipv6_prefix). IPv4 addresses that are mapped into IPv6 count as IPv4.
///
/// If the server does not provide the peer's address (see [`PeerAddress`](crate::web::PeerAddress)), it is misconfigured and
/// the response is 500.
///
/// ```
/// use pg_limiter::web::ClientAddress;
/// let by_address = ClientAddress::behind("10.0.0.0/8".parse()?);
/// # Ok::<(), pg_limiter::web::InvalidNetworks>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientAddress {
    proxies: TrustedProxies,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
}

impl ClientAddress {
    /// Uses the peer's address, for servers that clients reach directly. Behind a proxy, all clients would share the proxy's
    /// address.
    pub fn direct() -> Self {
        Self::behind(TrustedProxies::default())
    }

    /// Uses the address that these proxies report.
    pub const fn behind(proxies: TrustedProxies) -> Self {
        Self { proxies, ipv4_prefix: 32, ipv6_prefix: 64 }
    }

    /// Sets the prefix length, in bits, of an IPv6 client's key (default: 64). Many clients are assigned a /56 or a /48; 128 is
    /// a single address. More than 128 is taken as 128.
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = if bits > 128 { 128 } else { bits };
        self
    }

    /// Sets the prefix length, in bits, of an IPv4 client's key (default: 32, a single address). More than 32 is taken as 32.
    pub const fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.ipv4_prefix = if bits > 32 { 32 } else { bits };
        self
    }

    /// Returns the client's full address, or `None` if the server does not provide the peer's address.
    pub fn find(&self, request: &Parts) -> Option<IpAddr> {
        peer(&request.extensions).map(|peer| self.proxies.client(peer, &request.headers))
    }

    /// Like `find`; without a peer's address, the server is misconfigured.
    pub(in crate::web) fn require(&self, request: &Parts) -> Result<IpAddr, NoKey> {
        self.find(request).ok_or_else(|| NoKey::Misconfigured {
            advice: "the peer's address is unknown; with axum, serve with \
                     into_make_service_with_connect_info::<SocketAddr>(); otherwise, insert a PeerAddress into the extensions"
                .into(),
        })
    }

    /// The key: the address, as in `192.0.2.1`, or its network, as in `2001:db8::/64`.
    fn group(&self, address: IpAddr) -> String {
        let (bits, all) = match address {
            IpAddr::V4(_) => (self.ipv4_prefix, 32),
            IpAddr::V6(_) => (self.ipv6_prefix, 128),
        };
        match IpNet::new(address, bits) {
            Ok(network) if bits < all => network.trunc().to_string(),
            _ => address.to_string(),
        }
    }
}

impl KeyExtractor for ClientAddress {
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey> {
        Ok(Some(self.group(self.require(request)?).into()))
    }
}
