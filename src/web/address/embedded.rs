//! IPv4 addresses within IPv6 addresses. The guide's page on addresses has the table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv6Net;

/// Returns the IPv4 address that was mapped or translated into this one. Returns any other address as it is.
pub(super) fn host(address: IpAddr) -> IpAddr {
    let IpAddr::V6(ipv6) = address else { return address };
    match ipv6.segments() {
        // Mapped (RFC 4291, 2.5.5.2), translated (RFC 2765, 2.1), and the well-known prefix of NAT64 (RFC 6052, 2.1).
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => ipv4(high, low).into(),
        // The local-use prefix of NAT64 (RFC 8215), if it is used with 96 bits. With fewer bits, these three octets are 0.
        [0x64, 0xff9b, 1, _, _, _, high, low] if high & 0xff != 0 || low != 0 => ipv4(high, low).into(),
        // Compatible (RFC 4291, 2.5.5.1): `::` and `::1` are not.
        [0, 0, 0, 0, 0, 0, high, low] if is_public(ipv4(high, low)) => ipv4(high, low).into(),
        _ => address,
    }
}

/// Returns the public IPv4 address of the site that a client tunnels from, by 6to4 (RFC 3056) or Teredo (RFC 4380). Both forbid
/// private addresses, so an address with a private one is forged.
pub(super) fn site(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(ipv6) = address else { return None };
    let site = match ipv6.segments() {
        [0x2002, high, low, ..] => ipv4(high, low),
        [0x2001, 0, _, _, _, _, high, low] => ipv4(!high, !low),
        _ => return None,
    };
    is_public(site).then_some(site.into())
}

/// The lengths of the prefixes of NAT64, in bits (RFC 6052, 2.2).
pub(super) const NAT64_BITS: [u8; 6] = [32, 40, 48, 56, 64, 96];

/// Returns the IPv4 address that was translated with this prefix (RFC 6052, 2.2).
pub(super) fn translated(address: Ipv6Addr, prefix: Ipv6Net) -> Option<Ipv4Addr> {
    if !prefix.contains(&address) {
        return None;
    }
    let octets = address.octets();
    let mut places = (usize::from(prefix.prefix_len() / 8)..16).filter(|place| *place != 8).map(|place| octets[place]);
    Some(Ipv4Addr::new(places.next()?, places.next()?, places.next()?, places.next()?))
}

/// Returns the IPv4 address in an address of a host, or of a site of 6to4, and its first bit.
pub(super) fn ipv4_from(address: Ipv6Addr) -> Option<(Ipv4Addr, u8)> {
    match (host(address.into()), site(address.into()), address.segments()) {
        (IpAddr::V4(host), _, _) => Some((host, 96)),
        (_, Some(IpAddr::V4(site)), [0x2002, ..]) => Some((site, 16)),
        _ => None,
    }
}

fn ipv4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}

/// Whether a host on the Internet can have this address. (Addresses for documentation count as such.)
fn is_public(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    let is_shared = first == 100 && second & 0xc0 == 64; // RFC 6598
    !(first == 0
        || first >= 224
        || is_shared
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts_as(text: &str) -> (String, Option<String>) {
        let address: IpAddr = text.parse().expect(text);
        (host(address).to_string(), site(address).map(|site| site.to_string()))
    }

    #[test]
    fn mapped_and_translated_addresses_are_ipv4_hosts() {
        for (text, expected) in [
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::ffff:0:203.0.113.7", "203.0.113.7"),
            ("64:ff9b::cb00:7107", "203.0.113.7"),
            ("64:ff9b::10.0.0.1", "10.0.0.1"),
            ("64:ff9b:1::203.0.113.7", "203.0.113.7"),
            ("64:ff9b:1:fffe:1:2:203.0.113.7", "203.0.113.7"),
            ("::203.0.113.7", "203.0.113.7"),
            // With fewer bits, the address stands elsewhere.
            ("64:ff9b:1:0:cb:71:700:0", "64:ff9b:1:0:cb:71:700:0"),
            ("64:ff9b:1:cb00:71:700::", "64:ff9b:1:cb00:71:700::"),
            ("64:ff9b:2::203.0.113.7", "64:ff9b:2::cb00:7107"),
            ("::", "::"),
            ("::1", "::1"),
            ("::10.0.0.1", "::a00:1"),
            // ISATAP (RFC 5214): any client can choose such an address.
            ("2001:db8::5efe:203.0.113.7", "2001:db8::5efe:cb00:7107"),
            ("2001:db8::200:5efe:203.0.113.7", "2001:db8::200:5efe:cb00:7107"),
            ("203.0.113.7", "203.0.113.7"),
        ] {
            assert_eq!(counts_as(text), (expected.to_owned(), None), "{text}");
        }
    }

    #[test]
    fn tunnelled_clients_belong_to_the_public_ipv4_address_of_their_site() {
        for (text, expected) in [
            ("2002:cb00:7107::1", Some("203.0.113.7")),
            ("2002:cb00:7107:ffff:1:2:3:4", Some("203.0.113.7")),
            // The example of RFC 4380, section 4.
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Some("192.0.2.45")),
            ("2002:a00:1::1", None),
            ("2002:7f00:1::1", None),
            ("2002:6440:1::1", None),
            ("2002:e000:1::1", None),
            ("2001:0:4136:e378:8000:63bf:f5ff:fffe", None),
            ("2001:db8::1", None),
        ] {
            let address: IpAddr = text.parse().expect(text);
            assert_eq!(site(address).map(|site| site.to_string()).as_deref(), expected, "{text}");
            assert_eq!(host(address), address, "{text}");
        }
    }

    /// The examples of RFC 6052, section 2.4.
    #[test]
    fn addresses_are_translated_with_prefixes_of_every_length() {
        for (prefix, address) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ] {
            let prefix: Ipv6Net = prefix.parse().expect(prefix);
            assert!(NAT64_BITS.contains(&prefix.prefix_len()));
            let address = address.parse().expect(address);
            assert_eq!(translated(address, prefix), Some(Ipv4Addr::new(192, 0, 2, 33)), "{prefix}");
            assert_eq!(translated(Ipv6Addr::LOCALHOST, prefix), None);
        }
    }
}
