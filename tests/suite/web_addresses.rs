//! The client's address, with and without proxies: headers that the client itself has written are never trusted.

use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request};
use pg_limiter::Key;
use pg_limiter::web::{ClientAddress, KeyExtractor, NoKey, PeerAddress, TrustedProxies};
use proptest::prelude::*;

const PROXIES: &str = "10.0.0.0/8, 192.168.1.7, fd00::/8, 2001:db8:ffff::1";

fn request(peer: &str, lines: &[(&str, &[u8])]) -> Parts {
    let mut request = Request::new(());
    request.extensions_mut().insert(PeerAddress(peer.parse().expect("an address")));
    for (name, value) in lines {
        let name: HeaderName = name.parse().expect("a name");
        request.headers_mut().append(name, HeaderValue::from_bytes(value).expect("a value"));
    }
    request.into_parts().0
}

fn behind(header: &'static str) -> ClientAddress {
    let proxies: TrustedProxies = PROXIES.parse().expect("networks");
    ClientAddress::behind(proxies.with_header(HeaderName::from_static(header)))
}

fn client(header: &'static str, peer: &str, lines: &[&str]) -> String {
    let lines: Vec<(&str, &[u8])> = lines.iter().map(|line| (header, line.as_bytes())).collect();
    behind(header).find(&request(peer, &lines)).expect("an address").to_string()
}

fn forwarded_for(peer: &str, lines: &[&str]) -> String {
    client("x-forwarded-for", peer, lines)
}

fn key(extractor: &ClientAddress, peer: &str) -> Key {
    extractor.key(&request(peer, &[])).expect("a key").expect("a limit")
}

/// tower_governor's SmartIpKeyExtractor and many others do believe it.
#[test]
fn a_peer_that_is_not_a_proxy_is_not_believed() {
    for header in ["x-forwarded-for", "x-real-ip", "forwarded"] {
        for spoof in ["10.0.0.1", "198.51.100.9", "for=198.51.100.9", "198.51.100.9, 10.0.0.1", ""] {
            assert_eq!(client(header, "203.0.113.5", &[spoof]), "203.0.113.5", "{header}: {spoof}");
        }
    }
    let direct = ClientAddress::direct();
    let parts = request("203.0.113.5", &[("x-forwarded-for", b"198.51.100.9"), ("forwarded", b"for=198.51.100.9")]);
    assert_eq!(direct.find(&parts), "203.0.113.5".parse().ok());
}

#[test]
fn the_last_address_that_is_not_a_proxy_is_the_client() {
    let cases = [
        (vec!["203.0.113.5"], "203.0.113.5"),
        (vec!["198.51.100.9, 203.0.113.5"], "203.0.113.5"),
        (vec!["198.51.100.9, 203.0.113.5, 10.1.2.3, 192.168.1.7"], "203.0.113.5"),
        (vec!["10.0.0.9, 203.0.113.5, 10.1.2.3"], "203.0.113.5"),
        // Several header lines form one list.
        (vec!["198.51.100.9", "203.0.113.5, 10.9.9.9", "10.1.2.3"], "203.0.113.5"),
        (vec!["203.0.113.5", "198.51.100.9"], "198.51.100.9"),
        // If all are proxies, the farthest one counts.
        (vec!["10.0.0.7, 10.0.0.8"], "10.0.0.7"),
        (vec![], "10.0.0.1"),
    ];
    for (lines, expected) in cases {
        assert_eq!(forwarded_for("10.0.0.1", &lines), expected, "{lines:?}");
    }
    assert_eq!(forwarded_for("fd00::1", &["2001:db8::5, 2001:db8:ffff::1"]), "2001:db8::5");
}

#[test]
fn addresses_with_ports_or_brackets_and_mapped_ones_are_read() {
    for (written, expected) in [
        ("203.0.113.5:4711", "203.0.113.5"),
        ("[2001:db8::5]:4711", "2001:db8::5"),
        ("[2001:db8::5]", "2001:db8::5"),
        ("  203.0.113.5\t", "203.0.113.5"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("[::ffff:203.0.113.5]:80", "203.0.113.5"),
        ("203.0.113.5,", "203.0.113.5"),
        (", ,203.0.113.5, ,", "203.0.113.5"),
    ] {
        assert_eq!(forwarded_for("10.0.0.1", &[written]), expected, "{written}");
        // A dual-stack socket reports the peer as a mapped address.
        assert_eq!(forwarded_for("::ffff:10.0.0.1", &[written]), expected, "{written}");
    }
}

#[test]
fn parsing_stops_at_an_invalid_address() {
    for rubbish in [
        "unknown",
        "_hidden",
        "203.0.113",
        "203.0.113.5.6",
        "203.0.113.05",
        "1.2.3.4 5.6.7.8",
        "\"203.0.113.5\"",
        "x\u{e4}",
    ] {
        assert_eq!(forwarded_for("10.0.0.1", &[rubbish]), "10.0.0.1", "{rubbish}");
        let after = format!("203.0.113.5, {rubbish}, 10.1.2.3");
        assert_eq!(forwarded_for("10.0.0.1", &[&after]), "10.1.2.3", "{rubbish}");
        let before = format!("{rubbish}, 203.0.113.5");
        assert_eq!(forwarded_for("10.0.0.1", &[&before]), "203.0.113.5", "{rubbish}");
    }
}

#[test]
fn forwarded_is_parsed_as_in_rfc_7239() {
    for (written, expected) in [
        ("for=203.0.113.5", "203.0.113.5"),
        ("For=\"[2001:db8::5]:4711\";proto=https;by=10.0.0.1", "2001:db8::5"),
        ("proto=https ; for=\"203.0.113.5:80\";", "203.0.113.5"),
        ("for=198.51.100.9, for=203.0.113.5;proto=http, for=10.1.2.3", "203.0.113.5"),
        ("for=_hidden, for=10.1.2.3", "10.1.2.3"),
        ("for=unknown", "10.0.0.1"),
        ("proto=https", "10.0.0.1"),
        ("203.0.113.5", "10.0.0.1"),
        // A quote that the client opens does not hide later elements.
        ("for=\"198.51.100.9, for=203.0.113.5", "203.0.113.5"),
        ("for=\"198.51.100.9;x=\\\", for=203.0.113.5;proto=\"https\"", "203.0.113.5"),
        // Text that a client might smuggle into the proxy's own element.
        ("for=203.0.113.5;host=\"x\";for=198.51.100.9;y=\"\"", "10.0.0.1"),
    ] {
        assert_eq!(client("forwarded", "10.0.0.1", &[written]), expected, "{written}");
    }
}

#[test]
fn only_the_chosen_header_counts() {
    let spoofed: [(&str, &[u8]); 3] =
        [("forwarded", b"for=198.51.100.9"), ("x-real-ip", b"198.51.100.9"), ("x-forwarded-for", b"203.0.113.5")];
    let found = behind("x-forwarded-for").find(&request("10.0.0.1", &spoofed));
    assert_eq!(found, "203.0.113.5".parse().ok());
    assert_eq!(client("cf-connecting-ip", "10.0.0.1", &["203.0.113.5"]), "203.0.113.5");
}

#[test]
fn an_ipv6_client_is_identified_by_its_network() {
    let network = ClientAddress::direct();
    assert_eq!(key(&network, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64".into());
    assert_eq!(key(&network, "2001:db8:1:2:ffff::"), key(&network, "2001:db8:1:2::1"));
    assert_ne!(key(&network, "2001:db8:1:3::1"), key(&network, "2001:db8:1:2::1"));
    assert_eq!(key(&network, "::ffff:192.0.2.1"), "192.0.2.1".into());
    assert_eq!(key(&network, "192.0.2.1"), "192.0.2.1".into());
    assert_eq!(key(&network.clone().ipv6_prefix(48), "2001:db8:1:2::1"), "2001:db8:1::/48".into());
    for single in [128, 200] {
        assert_eq!(key(&network.clone().ipv6_prefix(single), "2001:db8::1"), "2001:db8::1".into());
    }
    assert_eq!(key(&network.clone().ipv4_prefix(24), "192.0.2.1"), "192.0.2.0/24".into());
    assert_eq!(key(&network.ipv4_prefix(0).ipv6_prefix(0), "2001:db8::1"), "::/0".into());
}

#[test]
fn networks_are_parsed_or_rejected_with_the_reason() {
    for (list, peer, trusted) in [
        ("", "10.0.0.1", false),
        (" , ", "10.0.0.1", false),
        ("10.0.0.1", "10.0.0.1", true),
        ("10.0.0.1", "10.0.0.2", false),
        ("::ffff:10.0.0.1", "10.0.0.1", true),
        ("fd00::/8,10.0.0.0/8", "fdff::1", true),
        // A mapped network is an IPv4 network, as a mapped address is an IPv4 address.
        ("::ffff:10.0.0.0/104", "10.200.0.1", true),
        ("::ffff:10.0.0.0/104", "::ffff:10.200.0.1", true),
        ("::ffff:10.0.0.0/104", "11.0.0.1", false),
        ("::ffff:10.1.2.3/104", "10.200.0.1", true),
        ("::ffff:a00:1/128", "10.0.0.1", true),
        ("::ffff:10.0.0.1/128", "10.0.0.2", false),
        ("::ffff:0:0/96", "203.0.113.77", true),
        ("::ffff:0:0/96", "2001:db8::1", false),
        ("0.0.0.0/0", "::ffff:203.0.113.77", true),
        // An IPv6 network matches no IPv4 address, however large it is.
        ("::/0", "2001:db8::1", true),
        ("::/0", "10.0.0.1", false),
        ("::/0", "::ffff:10.0.0.1", false),
    ] {
        let proxies: TrustedProxies = list.parse().expect(list);
        let found = ClientAddress::behind(proxies).find(&request(peer, &[("x-forwarded-for", b"203.0.113.5")]));
        assert_eq!(found == "203.0.113.5".parse().ok(), trusted, "{list}: {peer}");
    }
    for wrong in ["10.0.0.0/33", "10.0.0", "proxy.example", "10.0.0.0/8 fd00::/8", "*"] {
        let error = format!("10.0.0.0/8, {wrong}").parse::<TrustedProxies>().expect_err(wrong);
        assert_eq!(error.text, wrong);
        assert!(error.to_string().contains(wrong), "{error}");
    }
    // These are written as IPv4 networks, but are larger than all of IPv4.
    for wrong in ["::ffff:0:0/90", "::ffff:10.0.0.0/8", "::ffff:10.0.0.0/95", "::ffff:0:0/0"] {
        let error = wrong.parse::<TrustedProxies>().expect_err(wrong);
        assert_eq!(error.text, wrong);
        assert!(error.to_string().contains(wrong) && error.to_string().contains("::ffff:0:0/96"), "{error}");
    }
}

#[test]
fn a_mapped_network_given_in_code_is_an_ipv4_network() {
    for (network, peer, trusted) in [
        ("::ffff:10.0.0.0/104", "10.1.2.3", true),
        ("::ffff:10.0.0.0/104", "::ffff:10.1.2.3", true),
        ("::ffff:10.0.0.0/104", "11.1.2.3", false),
        ("fd00::/8", "fd00::1", true),
        ("10.0.0.0/8", "::ffff:10.1.2.3", true),
    ] {
        let proxies = TrustedProxies::new([network.parse().expect("a network")]);
        let found = ClientAddress::behind(proxies).find(&request(peer, &[("x-forwarded-for", b"203.0.113.5")]));
        assert_eq!(found == "203.0.113.5".parse().ok(), trusted, "{network}: {peer}");
    }
}

/// The prefix for IPv4 clients applies to mapped addresses, and that for IPv6 clients does not.
#[test]
fn a_mapped_client_is_grouped_as_an_ipv4_client() {
    let by_network = ClientAddress::direct().ipv4_prefix(24).ipv6_prefix(32);
    assert_eq!(key(&by_network, "::ffff:192.0.2.1"), "192.0.2.0/24".into());
    let proxies: TrustedProxies = PROXIES.parse().expect("networks");
    let behind = ClientAddress::behind(proxies.clone()).ipv4_prefix(24);
    let parts = request("::ffff:10.0.0.1", &[("x-forwarded-for", b"::ffff:203.0.113.77")]);
    assert_eq!(behind.key(&parts).expect("a key"), Some("203.0.113.0/24".into()));
    let forwarded = ClientAddress::behind(proxies.with_header(http::header::FORWARDED)).ipv4_prefix(24);
    let parts = request("10.0.0.1", &[("forwarded", b"for=\"[::ffff:203.0.113.77]:4711\"")]);
    assert_eq!(forwarded.key(&parts).expect("a key"), Some("203.0.113.0/24".into()));
}

#[test]
fn without_a_peer_no_header_is_trusted() {
    let mut request = Request::new(());
    request.headers_mut().insert("x-forwarded-for", HeaderValue::from_static("203.0.113.5"));
    let (parts, ()) = request.into_parts();
    assert_eq!(behind("x-forwarded-for").find(&parts), None);
    let error = behind("x-forwarded-for").key(&parts).expect_err("no peer");
    assert!(matches!(error, NoKey::Misconfigured { .. }), "{error:?}");
}

fn any_line() -> impl Strategy<Value = Vec<u8>> {
    let address = prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)];
    let element = prop_oneof![
        address.prop_map(|address| address.to_string().into_bytes()),
        Just(b"10.0.0.1".to_vec()),
        Just(b"for=10.0.0.1".to_vec()),
        Just(b"for=\"10.0.0.1".to_vec()),
        Just(b"\"".to_vec()),
        proptest::collection::vec(any::<u8>().prop_filter("a header", |byte| *byte >= 32 && *byte != 127), 0..20),
    ];
    proptest::collection::vec(element, 0..6).prop_map(|elements| elements.join(&b", "[..]))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A chain of proxies, each of which appends its peer's address, in the same header line or in a new one.
    #[test]
    fn forged_headers_never_change_the_client_address(
        lines in proptest::collection::vec(any_line(), 0..4),
        client in prop_oneof![
            any::<[u8; 4]>().prop_filter("no proxy", |octets| octets[0] != 10 && octets[0] != 192).prop_map(IpAddr::from),
            any::<[u8; 14]>().prop_map(|rest| IpAddr::from([&[0x20, 0x02][..], &rest].concat().as_chunks::<16>().0[0])),
        ],
        proxies in proptest::collection::vec((any::<[u8; 3]>(), any::<bool>()), 1..4),
        forwarded in any::<bool>(),
    ) {
        let header = if forwarded { "forwarded" } else { "x-forwarded-for" };
        let mut lines = lines;
        let mut from = client;
        for (octets, same_line) in proxies {
            let element = match (forwarded, from) {
                (false, _) => from.to_string(),
                (true, IpAddr::V4(_)) => format!("for={from};proto=https"),
                (true, IpAddr::V6(_)) => format!("proto=https;for=\"[{from}]:443\""),
            };
            match lines.last_mut().filter(|_| same_line) {
                Some(line) => line.extend_from_slice(format!(", {element}").as_bytes()),
                None => lines.push(element.into_bytes()),
            }
            from = IpAddr::from([10, octets[0], octets[1], octets[2]]);
        }
        let lines: Vec<(&str, &[u8])> = lines.iter().map(|line| (header, line.as_slice())).collect();
        let found = behind(header).find(&request(&from.to_string(), &lines));
        prop_assert_eq!(found, Some(client));
        // Without proxies, the client is the peer.
        let alone = behind(header).find(&request(&client.to_string(), &lines));
        prop_assert_eq!(alone, Some(client));
    }
}
