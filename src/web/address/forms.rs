//! The keys under which a layer may count an address.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::web::address::node::node;
use crate::web::address::{ClientAddress, Networks};

/// Returns the keys of a client with this address: first that of a [`ClientAddress`] without settings, then its networks of every
/// other length. For a network, returns its key. `None` if this is no address and no network.
pub(in crate::web) fn keys_of_client(text: &str) -> Option<(String, Vec<String>)> {
    if let Ok(address) = node(text) {
        let usual = ClientAddress::direct().key_of(address).as_str().to_owned();
        let counted = usual.split('/').next().and_then(|text| text.parse().ok());
        let others = match counted {
            Some(ipv4 @ IpAddr::V4(_)) => networks(ipv4, 31),
            _ => networks(address, 128),
        };
        return Some((usual, others));
    }
    let network = text.parse::<Networks>().ok()?.only()?;
    Some((key_of_network(network), Vec::new()))
}

/// The networks of an address, from this length down.
fn networks(address: IpAddr, longest: u8) -> Vec<String> {
    let networks = (1..=longest).rev().filter_map(|bits| IpNet::new(address, bits).ok());
    networks.map(key_of_network).collect()
}

fn key_of_network(network: IpNet) -> String {
    if network.prefix_len() == network.max_prefix_len() {
        network.addr().to_string()
    } else {
        network.trunc().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_any_form_has_the_key_that_the_layer_counts() {
        for (text, expected) in [
            ("203.0.113.7", "203.0.113.7"),
            ("203.0.113.7:4711", "203.0.113.7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("64:ff9b::203.0.113.7", "203.0.113.7"),
            ("2002:cb00:7107::1", "203.0.113.7"),
            ("2001:DB8::1", "2001:db8::/64"),
            ("[2001:db8::1]:443", "2001:db8::/64"),
            ("fe80::1%eth0", "fe80::/64"),
            ("2001:db8::1/64", "2001:db8::/64"),
            ("2001:db8::1/128", "2001:db8::1"),
            ("203.0.113.7/24", "203.0.113.0/24"),
            ("203.0.113.7/32", "203.0.113.7"),
            ("::ffff:203.0.113.7/120", "203.0.113.0/24"),
        ] {
            assert_eq!(keys_of_client(text).map(|(usual, _)| usual).as_deref(), Some(expected), "{text}");
        }
        for text in ["u1", "", "10.0.0.0/8, 10.1.0.0/16", "203.0.113", "unknown", "acme.example"] {
            assert_eq!(keys_of_client(text), None, "{text}");
        }
    }

    #[test]
    fn the_networks_of_an_address_are_those_of_every_length() {
        let (_, others) = keys_of_client("2001:db8::1").unwrap();
        assert_eq!((others.len(), others[0].as_str(), others[1].as_str()), (128, "2001:db8::1", "2001:db8::/127"));
        assert!(others.contains(&"2001:db8::/48".to_owned()), "{others:?}");
        let (_, others) = keys_of_client("::ffff:203.0.113.7").unwrap();
        assert_eq!((others.len(), others[7].as_str()), (31, "203.0.113.0/24"));
    }
}
