use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::web::address::embedded;

/// A list of networks and addresses. Cheap to clone.
///
/// An IPv4 address that is mapped into IPv6 (`::ffff:10.0.0.1`) counts as the IPv4 address, in this list and as the address
/// that is looked up. `::ffff:10.0.0.0/104` is `10.0.0.0/8`. So IPv6 networks never contain IPv4 clients: `::/0` contains every
/// IPv6 address, and `0.0.0.0/0` every IPv4 address.
///
/// An IPv6 address that a NAT64 has translated, or that belongs to a tunnel of 6to4 or Teredo, is in the IPv4 networks of its
/// IPv4 address, too: `10.0.0.0/8` contains `64:ff9b::10.0.0.1`, and `64:ff9b::10.0.0.0/104` is the same network. The guide's
/// page [Addresses](crate::guide::addresses) lists all these forms.
///
/// As text, it has commas or new lines between the networks:
///
/// ```
/// use pg_limiter::web::Networks;
/// let networks: Networks = "10.0.0.0/8, 192.0.2.7, 2001:db8:1::/48".parse()?;
/// assert!(networks.contains("10.1.2.3".parse().unwrap()));
/// assert!(!networks.contains("192.0.2.8".parse().unwrap()));
/// # Ok::<(), pg_limiter::web::InvalidNetworks>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Networks {
    networks: Arc<[IpNet]>,
}

/// The error for a list of networks that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is {problem}")]
#[non_exhaustive]
pub struct InvalidNetworks {
    /// The part that is wrong.
    pub text: String,
    /// The problem, and what to write instead.
    problem: &'static str,
}

const NO_NETWORK: &str = "neither an address nor a network; write \"10.0.0.0/8\" or \"192.0.2.7\", separated by commas";

const BEYOND_IPV4: &str = "larger than the range of mapped IPv4 addresses, ::ffff:0:0/96; write an IPv4 network (\"10.0.0.0/8\") \
                           or an IPv6 network (\"fd00::/8\")";

impl Networks {
    /// Creates a list. A network within `::ffff:0:0/96` counts as the IPv4 network that is mapped there.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self { networks: networks.into_iter().map(canonical).collect() }
    }

    /// Whether one of the networks contains this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let (host, site) = (embedded::host(address), embedded::site(address));
        let contains =
            |network: &IpNet| [Some(address), Some(host), site].iter().flatten().any(|form| network.contains(form));
        self.networks.iter().any(contains)
    }
}

impl Networks {
    /// The network, if the list has only one.
    pub(super) fn only(&self) -> Option<IpNet> {
        if let [network] = *self.networks { Some(network) } else { None }
    }
}

impl InvalidNetworks {
    pub(super) fn no_nat64_prefix(prefix: Ipv6Net) -> Self {
        Self { text: prefix.to_string(), problem: "no prefix of NAT64; it must have 32, 40, 48, 56, 64 or 96 bits" }
    }
}

impl FromIterator<IpNet> for Networks {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        Self::new(networks)
    }
}

/// Parses a list of addresses and networks, separated by commas or new lines.
impl FromStr for Networks {
    type Err = InvalidNetworks;

    fn from_str(list: &str) -> Result<Self, InvalidNetworks> {
        let parts = list.split([',', '\n']).map(str::trim).filter(|text| !text.is_empty());
        parts.map(network).collect()
    }
}

fn network(text: &str) -> Result<IpNet, InvalidNetworks> {
    let invalid = |problem| InvalidNetworks { text: text.to_owned(), problem };
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

/// Converts a network of mapped or translated addresses, or of sites of 6to4, to its IPv4 network. Returns any other network
/// unchanged, such as the whole prefix of a translator.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(wide) = network else { return network };
    let is_mapped = wide.addr().to_ipv4_mapped().is_some();
    let ipv4 = embedded::ipv4_from(wide.addr()).and_then(|(address, first)| {
        let bits = wide.prefix_len().checked_sub(first).filter(|bits| *bits > 0 || is_mapped)?;
        Ipv4Net::new(address, bits).ok() // A part of a site of 6to4 is less than its IPv4 address.
    });
    ipv4.map_or(network, IpNet::V4)
}
