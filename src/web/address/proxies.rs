use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, header};
use ipnet::{IpNet, Ipv4Net};

use crate::web::address::hops;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The networks of your own proxies, and the header in which they tell from whom they have a request. By default, that
/// is `X-Forwarded-For`, and there are no proxies.
///
/// The header is read from its end, where the proxy next to this server has written: as long as the one that speaks is a
/// trusted proxy, the address before is believed. It ends at the first address that is no proxy of yours, or, at the
/// latest trustworthy one, at something that is no address. So whatever a client sends itself stands to the left of
/// where reading stops. Lines of the same name are one list; ports are ignored.
///
/// An IPv4 address that is mapped into IPv6 (`::ffff:10.0.0.1`) is taken as the IPv4 address, wherever it stands: in the
/// header, as the peer, and in this list. `::ffff:10.0.0.0/104` is `10.0.0.0/8`. So IPv6 networks never match IPv4 clients:
/// `::/0` is every IPv6 address, and `0.0.0.0/0` every IPv4 address.
///
/// Trust those networks only where nobody but your proxies can have an address, and let each proxy append to the header,
/// or overwrite it. Everybody in them can pretend to be anybody.
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

/// A list of networks that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is {problem}")]
#[non_exhaustive]
pub struct InvalidTrustedProxies {
    /// The part that is wrong.
    pub text: String,
    /// What is wrong with it, and what to write.
    problem: &'static str,
}

const NO_NETWORK: &str =
    "neither an address nor a network; write \"10.0.0.0/8\" or \"192.0.2.7\", and commas between them";

const BEYOND_IPV4: &str = "larger than the range of mapped IPv4 addresses, ::ffff:0:0/96; write the IPv4 network (\"10.0.0.0/8\") \
                           or the IPv6 network (\"fd00::/8\") that you mean";

impl TrustedProxies {
    /// Proxies in these networks. A network within `::ffff:0:0/96` is the IPv4 network that is mapped there.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self { networks: networks.into_iter().map(canonical).collect(), header: X_FORWARDED_FOR }
    }

    /// They tell it in this header instead: a single address (`X-Real-IP`, `CF-Connecting-IP`), or a list of them; for
    /// `Forwarded` in the form of [RFC 7239](https://www.rfc-editor.org/rfc/rfc7239). Only one header counts: a client could
    /// send the other one.
    pub fn with_header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// From whom the peer has the request.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let read = if self.header == header::FORWARDED { hops::forwarded } else { hops::address };
        let mut client = peer.to_canonical();
        for hop in hops::from_the_nearest(headers, &self.header) {
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

/// Addresses and networks, with commas between them.
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
        // It would match some IPv6 addresses that nobody means, and not the IPv4 addresses that it names.
        IpNet::V6(wide) if wide.addr().to_ipv4_mapped().is_some() && wide.prefix_len() < MAPPED_BITS => {
            Err(invalid(BEYOND_IPV4))
        }
        network => Ok(canonical(network)),
    }
}

/// The prefix that all mapped IPv4 addresses share, `::ffff:0:0/96`, in bits.
const MAPPED_BITS: u8 = 96;

/// The IPv4 network that this one is mapped from, as `IpAddr::to_canonical` for addresses; any other one stays as it is.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else { return network };
    let ipv4 = mapped.addr().to_ipv4_mapped();
    let bits = mapped.prefix_len().checked_sub(MAPPED_BITS);
    ipv4.zip(bits).and_then(|(address, bits)| Ipv4Net::new(address, bits).ok()).map_or(network, IpNet::V4)
}
