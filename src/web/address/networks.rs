use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};

/// A list of networks and addresses. Cheap to clone.
///
/// An IPv4 address that is mapped into IPv6 (`::ffff:10.0.0.1`) counts as the IPv4 address, in this list and as the address
/// that is looked up. `::ffff:10.0.0.0/104` is `10.0.0.0/8`. So IPv6 networks never contain IPv4 clients: `::/0` contains every
/// IPv6 address, and `0.0.0.0/0` every IPv4 address.
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
        self.networks.iter().any(|network| network.contains(&address))
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

/// Converts a mapped network to its IPv4 network, like `IpAddr::to_canonical` for addresses. Returns any other network
/// unchanged.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else { return network };
    let ipv4 = mapped.addr().to_ipv4_mapped();
    let bits = mapped.prefix_len().checked_sub(MAPPED_BITS);
    ipv4.zip(bits).and_then(|(address, bits)| Ipv4Net::new(address, bits).ok()).map_or(network, IpNet::V4)
}
