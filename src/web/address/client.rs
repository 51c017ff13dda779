use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use ipnet::{IpNet, Ipv6Net};

use crate::call::Key;
use crate::observability::unreadable_client;
use crate::web::address::peer::peer;
use crate::web::address::unreadable::OncePerMinute;
use crate::web::address::{InvalidNetworks, Networks, Reason, TrustedProxies, Unreadable, embedded};
use crate::web::keys::{KeyExtractor, NoKey};
use crate::web::log;

/// Uses the client's address as the key. This is the address of the peer ([`direct`](Self::direct)) or, if the peer is one of
/// your proxies, the address that the proxy reports ([`behind`](Self::behind)). Addresses that clients report themselves are
/// ignored. The guide's page [Addresses](crate::guide::addresses) has a table of all forms that are read.
///
/// The key of an IPv6 client is its /64 network, because a client can use any address in it. Change that with
/// [`ipv6_prefix`](Self::ipv6_prefix). An IPv4 address that is mapped, translated or tunnelled in an IPv6 address counts as the
/// IPv4 address. [`key_of`](Self::key_of) returns the key of an address.
///
/// If your proxy reports no readable address, the client is never taken for the proxy. Such clients share the key `unreadable`, or
/// are rejected: see [`unreadable`](Self::unreadable).
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
    nat64: Vec<Ipv6Net>,
    unreadable: Option<Unreadable>,
    reports: Arc<OncePerMinute>,
}

/// The key of all clients without a readable address.
const UNREADABLE: &str = "unreadable";

/// Why there is no address.
enum NoAddress {
    /// The server does not provide the peer's address.
    NoPeer,
    /// The header does not report one.
    Unreadable(Reason),
}

impl ClientAddress {
    /// Uses the peer's address, for servers that clients reach directly. Behind a proxy, all clients would share the proxy's
    /// address.
    pub fn direct() -> Self {
        Self::behind(TrustedProxies::default())
    }

    /// Uses the address that these proxies report.
    pub fn behind(proxies: TrustedProxies) -> Self {
        Self { proxies, ipv4_prefix: 32, ipv6_prefix: 64, nat64: Vec::new(), unreadable: None, reports: Arc::default() }
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

    /// Adds a prefix with which a NAT64 of your network translates IPv4 addresses
    /// ([RFC 6052](https://www.rfc-editor.org/rfc/rfc6052)). Its clients then count as their IPv4 addresses. The well-known
    /// prefix `64:ff9b::/96` needs no setting, nor do prefixes of 96 bits in `64:ff9b:1::/48`.
    ///
    /// ```
    /// use pg_limiter::web::ClientAddress;
    /// let client = ClientAddress::direct().nat64_prefix("2001:db8:64::/96".parse().unwrap())?;
    /// assert_eq!(client.key_of("2001:db8:64::203.0.113.7".parse().unwrap()), "203.0.113.7".into());
    /// # Ok::<(), pg_limiter::web::InvalidNetworks>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidNetworks`] if the prefix does not have 32, 40, 48, 56, 64 or 96 bits.
    pub fn nat64_prefix(mut self, prefix: Ipv6Net) -> Result<Self, InvalidNetworks> {
        if !embedded::NAT64_BITS.contains(&prefix.prefix_len()) {
            return Err(InvalidNetworks::no_nat64_prefix(prefix));
        }
        self.nat64.push(prefix);
        Ok(self)
    }

    /// Sets what to do with an unreadable client. Your proxy reports it as `unknown`, under an obfuscated name, or in a form that is
    /// no address.
    ///
    /// # Default
    /// As the key of a limit, [`Unreadable::SharedKey`]. For
    /// [`deny_networks`](crate::web::RateLimitLayer::deny_networks), [`Unreadable::Reject`]: such a client may be in a denied
    /// network. For [`allow_networks`](crate::web::RateLimitLayer::allow_networks), the client is in no network.
    ///
    /// In any case, an event of level WARN is logged, at most once a minute, and the metric
    /// `pg_limiter_unreadable_clients_total` counts the request.
    pub const fn unreadable(mut self, unreadable: Unreadable) -> Self {
        self.unreadable = Some(unreadable);
        self
    }

    /// Returns the client's full address. `None` if the server does not provide the peer's address, or if the address that the
    /// proxies report cannot be read.
    pub fn find(&self, request: &Parts) -> Option<IpAddr> {
        self.reported(request).ok().map(|reported| self.host(reported))
    }

    /// Returns the key of a client with this address, as the layer uses it: to [block](crate::Limiter::block) the client, or to
    /// [forget](crate::Limiter::forget) it.
    ///
    /// ```
    /// use pg_limiter::web::ClientAddress;
    /// let client = ClientAddress::direct();
    /// assert_eq!(client.key_of("2001:db8::1".parse().unwrap()), "2001:db8::/64".into());
    /// assert_eq!(client.key_of("::ffff:203.0.113.7".parse().unwrap()), "203.0.113.7".into());
    /// ```
    pub fn key_of(&self, address: IpAddr) -> Key {
        let host = self.host(address);
        let counted = embedded::site(host).unwrap_or(host);
        let (bits, all) = match counted {
            IpAddr::V4(_) => (self.ipv4_prefix, 32),
            IpAddr::V6(_) => (self.ipv6_prefix, 128),
        };
        match IpNet::new(counted, bits) {
            Ok(network) if bits < all => network.trunc().to_string().into(),
            _ => counted.to_string().into(),
        }
    }

    /// Whether the client is in one of these networks. `unreadable` is the default for unreadable clients.
    pub(in crate::web) fn is_in(
        &self,
        networks: &Networks,
        request: &Parts,
        unreadable: Unreadable,
    ) -> Result<bool, NoKey> {
        match self.reported(request) {
            Ok(reported) => Ok(self.contains(networks, reported)),
            Err(no_address) => self.without(no_address, unreadable).map(|()| false),
        }
    }

    /// The address as the peer or a proxy reports it.
    fn reported(&self, request: &Parts) -> Result<IpAddr, NoAddress> {
        let peer = peer(&request.extensions).ok_or(NoAddress::NoPeer)?;
        let is_trusted = |address| self.contains(self.proxies.networks(), address);
        self.proxies.client(peer, &request.headers, is_trusted).map_err(NoAddress::Unreadable)
    }

    /// Returns the IPv4 address from which this one was translated; any other address as it is.
    fn host(&self, address: IpAddr) -> IpAddr {
        let IpAddr::V6(ipv6) = address else { return address };
        let translated = self.nat64.iter().find_map(|prefix| embedded::translated(ipv6, *prefix));
        translated.map_or_else(|| embedded::host(address), IpAddr::V4)
    }

    fn contains(&self, networks: &Networks, address: IpAddr) -> bool {
        networks.contains(address) || (!self.nat64.is_empty() && networks.contains(self.host(address)))
    }

    /// Reports a client without an address. Returns whether the request may go on without one.
    fn without(&self, no_address: NoAddress, unreadable: Unreadable) -> Result<(), NoKey> {
        match no_address {
            NoAddress::NoPeer => Err(NoKey::Misconfigured { advice: NO_PEER.into() }),
            NoAddress::Unreadable(reason) => {
                let header = self.proxies.header();
                unreadable_client(reason.as_str());
                if let Some(left_out) = self.reports.next() {
                    log::unreadable_client(header, reason.as_str(), left_out);
                }
                match self.unreadable.unwrap_or(unreadable) {
                    Unreadable::SharedKey => Ok(()),
                    Unreadable::Reject => Err(NoKey::Unusable {
                        what: format!("the client's address in the header {header}").into(),
                        reason: "cannot be read".into(),
                    }),
                }
            }
        }
    }
}

const NO_PEER: &str = "the peer's address is unknown; with axum, serve with \
                       into_make_service_with_connect_info::<SocketAddr>(); otherwise, insert a PeerAddress into the \
                       extensions (on a Unix socket, the loopback address)";

impl KeyExtractor for ClientAddress {
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey> {
        match self.reported(request) {
            Ok(reported) => Ok(Some(self.key_of(reported))),
            Err(no_address) => self.without(no_address, Unreadable::SharedKey).map(|()| Some(UNREADABLE.into())),
        }
    }
}
