use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, header};
use ipnet::{IpNet, Ipv4Net};

use crate::web::address::forwarded;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The networks of your own proxies, and the header in which they report the client's address. By default, there are no
/// proxies, and the header is `X-Forwarded-For`.
///
/// The header is read from its end, where the nearest proxy has appended, starting from the peer's address. While the current
/// address belongs to a trusted proxy, the next entry of the header replaces it. Reading stops at the first address that is
/// not a trusted proxy: this is the client's address. It also stops before an entry that is not an address, and then the last
/// trusted address counts. Entries that the client sent itself are further to the left, and are not read. Several lines of
/// the header form one list, and ports are ignored.
///
/// An IPv4 address that is mapped into IPv6 (`::ffff:10.0.0.1`) counts as the IPv4 address: in the header, as the peer, and in
/// this list. `::ffff:10.0.0.0/104` is `10.0.0.0/8`. So IPv6 networks never match IPv4 clients: `::/0` matches every IPv6
/// address, and `0.0.0.0/0` every IPv4 address.
///
/// Trust only networks in which every address belongs to one of your proxies: any host in them can report any client address.
/// Each proxy must append to the header or overwrite it.
///
/// ```
/// use pg_limiter::web::TrustedProxies;
/// let proxies: TrustedProxies = "10.0.0.0/8, 192.0.2.7, 2001:db8:1::/48".parse()?;
/// let none: TrustedProxies = "".parse()?;
/// # Ok::<(), pg_limiter::web::InvalidTrustedProxies>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TrustedProxies {
    networks: Arc<[IpNet]>,
    header: HeaderName,
}

/// The error for a list of networks that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is {problem}")]
#[non_exhaustive]
pub struct InvalidTrustedProxies {
    /// The part that is wrong.
    pub text: String,
    /// The problem, and what to write instead.
    problem: &'static str,
}

const NO_NETWORK: &str = "neither an address nor a network; write \"10.0.0.0/8\" or \"192.0.2.7\", separated by commas";

const BEYOND_IPV4: &str = "larger than the range of mapped IPv4 addresses, ::ffff:0:0/96; write an IPv4 network (\"10.0.0.0/8\") \
                           or an IPv6 network (\"fd00::/8\")";

impl TrustedProxies {
    /// Trusts proxies in these networks. A network within `::ffff:0:0/96` counts as the IPv4 network that is mapped there.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self { networks: networks.into_iter().map(canonical).collect(), header: X_FORWARDED_FOR }
    }

    /// Sets the header in which the proxies report the client's address (default: `X-Forwarded-For`). It contains one address
    /// (`X-Real-IP`, `CF-Connecting-IP`) or a list. `Forwarded` is read in the format of
    /// [RFC 7239](https://www.rfc-editor.org/rfc/rfc7239). Only this header is read, because a client could send any other
    /// one.
    pub fn with_header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// The client's address, for a request from this peer.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let read =
            if self.header == header::FORWARDED { forwarded::forwarded_address } else { forwarded::plain_address };
        let mut client = peer.to_canonical();
        for hop in forwarded::from_the_nearest(headers, &self.header) {
            if !self.trusts(client) {
                break;
            }
            match read(hop) {
                Some(address) => client = address,
                None => break,
            }
        }
        client
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

/// Parses a list of addresses and networks, separated by commas.
impl FromStr for TrustedProxies {
    type Err = InvalidTrustedProxies;

    fn from_str(list: &str) -> Result<Self, InvalidTrustedProxies> {
        let parts = list.split(',').map(str::trim).filter(|text| !text.is_empty());
        parts.map(network).collect()
    }
}

fn network(text: &str) -> Result<IpNet, InvalidTrustedProxies> {
    let invalid = |problem| InvalidTrustedProxies { text: text.to_owned(), problem };
    let network: IpNet = match (text.parse::<IpNet>(), text.parse::<IpAddr>()) {
        (Ok(network), _) => network,
        (_, Ok(address)) => address.into(),
        _ => return Err(invalid(NO_NETWORK)),
    };
    match network {
        // It would match unintended IPv6 addresses, and not the IPv4 addresses that it names.
        IpNet::V6(wide) if wide.addr().to_ipv4_mapped().is_some() && wide.prefix_len() < MAPPED_BITS => {
            Err(invalid(BEYOND_IPV4))
        }
        network => Ok(canonical(network)),
    }
}

/// The length, in bits, of the prefix of all mapped IPv4 addresses, `::ffff:0:0/96`.
const MAPPED_BITS: u8 = 96;

/// Converts a mapped network to its IPv4 network, like `IpAddr::to_canonical` for addresses. Returns any other network
/// unchanged.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else { return network };
    let ipv4 = mapped.addr().to_ipv4_mapped();
    let bits = mapped.prefix_len().checked_sub(MAPPED_BITS);
    ipv4.zip(bits).and_then(|(address, bits)| Ipv4Net::new(address, bits).ok()).map_or(network, IpNet::V4)
}
