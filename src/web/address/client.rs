use std::net::IpAddr;

use http::request::Parts;
use ipnet::IpNet;

use crate::call::Key;
use crate::web::address::TrustedProxies;
use crate::web::address::peer::peer;
use crate::web::keys::{KeyExtractor, NoKey};

/// The client's address: that of the peer ([`direct`](Self::direct)), or, if that is a proxy of yours, what it says
/// ([`behind`](Self::behind)). What a client says of itself never counts.
///
/// An IPv6 client is known by its /64 network, because it can take any address in there; change that with
/// [`ipv6_prefix`](Self::ipv6_prefix). IPv4 addresses that are mapped into IPv6 are taken as IPv4.
///
/// If the server does not tell the peer (see [`PeerAddress`](crate::web::PeerAddress)), that is a mistake of its set-up: 500.
///
/// ```
/// use pg_limiter::web::ClientAddress;
/// let by_address = ClientAddress::behind("10.0.0.0/8".parse()?);
/// # Ok::<(), pg_limiter::web::InvalidTrustedProxies>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientAddress {
    proxies: TrustedProxies,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
}

impl ClientAddress {
    /// The peer's address, for servers that clients reach directly. Behind a proxy, all clients are that proxy.
    pub fn direct() -> Self {
        Self::behind(TrustedProxies::default())
    }

    /// The address that these proxies tell.
    pub const fn behind(proxies: TrustedProxies) -> Self {
        Self { proxies, ipv4_prefix: 32, ipv6_prefix: 64 }
    }

    /// By how many bits an IPv6 client is known (default: 64; 56 and 48 are what many are given, 128 is a single address).
    /// More than 128 is 128.
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = if bits > 128 { 128 } else { bits };
        self
    }

    /// By how many bits an IPv4 client is known (default: 32, a single address). More than 32 is 32.
    pub const fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.ipv4_prefix = if bits > 32 { 32 } else { bits };
        self
    }

    /// The client's whole address. `None` if the server does not tell the peer.
    pub fn find(&self, request: &Parts) -> Option<IpAddr> {
        peer(&request.extensions).map(|peer| self.proxies.client(peer, &request.headers))
    }

    /// `192.0.2.1`, or the network: `2001:db8::/64`.
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
        match self.find(request) {
            Some(address) => Ok(Some(self.group(address).into())),
            None => Err(NoKey::Misconfigured {
                advice: "the peer's address is not known; serve with \
                         into_make_service_with_connect_info::<SocketAddr>(), or put a PeerAddress among the extensions"
                    .into(),
            }),
        }
    }
}
