use std::net::IpAddr;
use std::str::FromStr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::web::address::{InvalidNetworks, Networks, Reason, forwarded};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The networks of your own proxies, and the header in which they report the client's address. By default, there are no
/// proxies, and the header is `X-Forwarded-For`.
///
/// The header is read from its end, where the nearest proxy has appended, starting from the peer's address. While the current
/// address belongs to a trusted proxy, the next entry of the header replaces it. Reading stops at the first address that is
/// not a trusted proxy: this is the client's address. If all addresses belong to trusted proxies, the last one that was read is
/// the client's. Entries that the client sent itself are further to the left, and are not read. Several lines of the header form
/// one list, and ports and zones are ignored.
///
/// If a trusted proxy reports something that is no address, the client's address cannot be read: see
/// [`ClientAddress::unreadable`](crate::web::ClientAddress::unreadable). So it is if the header is empty. Without the header, the
/// request is the proxy's own, such as a health check.
///
/// An IPv4 address that is mapped into IPv6 counts as the IPv4 address: in the header, as the peer, and in this list (see
/// [`Networks`]).
///
/// Trust only networks in which every address belongs to one of your proxies: any host in them can report any client address.
/// Each proxy must append to the header or overwrite it.
///
/// ```
/// use pg_limiter::web::TrustedProxies;
/// let proxies: TrustedProxies = "10.0.0.0/8, 192.0.2.7, 2001:db8:1::/48".parse()?;
/// let none: TrustedProxies = "".parse()?;
/// # Ok::<(), pg_limiter::web::InvalidNetworks>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TrustedProxies {
    networks: Networks,
    header: HeaderName,
}

impl TrustedProxies {
    /// Trusts proxies in these networks. A network within `::ffff:0:0/96` counts as the IPv4 network that is mapped there.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self { networks: Networks::new(networks), header: X_FORWARDED_FOR }
    }

    /// Sets the header in which the proxies report the client's address (default: `X-Forwarded-For`). It contains one address
    /// (`X-Real-IP`, `CF-Connecting-IP`) or a list. `Forwarded` is read in the format of
    /// [RFC 7239](https://www.rfc-editor.org/rfc/rfc7239). Only this header is read, because a client could send any other
    /// one.
    pub fn with_header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    pub(super) const fn networks(&self) -> &Networks {
        &self.networks
    }

    pub(super) const fn header(&self) -> &HeaderName {
        &self.header
    }

    /// The client's address, for a request from this peer.
    pub(super) fn client(
        &self,
        peer: IpAddr,
        headers: &HeaderMap,
        is_trusted: impl Fn(IpAddr) -> bool,
    ) -> Result<IpAddr, Reason> {
        let mut client = peer.to_canonical();
        let mut entries = forwarded::entries(headers, &self.header).peekable();
        if is_trusted(client) && entries.peek().is_none() && headers.contains_key(&self.header) {
            return Err(Reason::Missing);
        }
        while is_trusted(client) {
            match entries.next() {
                Some(entry) => client = entry?.to_canonical(),
                None => break,
            }
        }
        Ok(client)
    }
}

impl Default for TrustedProxies {
    fn default() -> Self {
        Self::new([])
    }
}

impl FromIterator<IpNet> for TrustedProxies {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        Self::new(networks)
    }
}

/// Trusts proxies in these networks.
impl From<Networks> for TrustedProxies {
    fn from(networks: Networks) -> Self {
        Self { networks, header: X_FORWARDED_FOR }
    }
}

/// Parses a list of addresses and networks, as [`Networks`] does.
impl FromStr for TrustedProxies {
    type Err = InvalidNetworks;

    fn from_str(list: &str) -> Result<Self, InvalidNetworks> {
        list.parse().map(Networks::into)
    }
}
