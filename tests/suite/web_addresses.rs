//! The client's address, with and without proxies: headers that the client itself has written are never trusted.

use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request};
use pg_limiter::Key;
use pg_limiter::web::{ClientAddress, KeyExtractor, Networks, NoKey, PeerAddress, TrustedProxies, Unreadable};
use proptest::prelude::*;

use crate::support::guide;

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

/// `None` if the address cannot be read.
fn read(header: &'static str, peer: &str, lines: &[&str]) -> Option<String> {
    let lines: Vec<(&str, &[u8])> = lines.iter().map(|line| (header, line.as_bytes())).collect();
    behind(header).find(&request(peer, &lines)).map(|address| address.to_string())
}

fn client(header: &'static str, peer: &str, lines: &[&str]) -> String {
    read(header, peer, lines).expect("an address")
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

/// Neither is it an address that the client has sent before.
#[test]
fn a_client_that_cannot_be_read_is_never_the_proxy() {
    for rubbish in [
        "unknown",
        "unknown:80",
        "_hidden",
        "_hidden:4711",
        "203.0.113",
        "203.0.113.5.6",
        "203.0.113.05",
        "0xcb.0.0x71.5",
        "203.0.113.5/32",
        "1.2.3.4 5.6.7.8",
        "203.0.113.5;80",
        "[2001:db8::5",
        "2001:db8:1:2:3:4:5:6:7:4711",
        "fe80::1%",
        "unix:",
        "localhost",
        "-",
        "\"",
        "x\u{e4}",
    ] {
        assert_eq!(read("x-forwarded-for", "10.0.0.1", &[rubbish]), None, "{rubbish}");
        let after = format!("203.0.113.5, {rubbish}, 10.1.2.3");
        assert_eq!(read("x-forwarded-for", "10.0.0.1", &[&after]), None, "{rubbish}");
        assert_eq!(read("x-forwarded-for", "10.0.0.1", &["203.0.113.5", rubbish, "10.1.2.3"]), None, "{rubbish}");
        let before = format!("{rubbish}, 203.0.113.5");
        assert_eq!(forwarded_for("10.0.0.1", &[&before]), "203.0.113.5", "{rubbish}");
        // A peer that is no proxy is the client, whatever it sends.
        assert_eq!(forwarded_for("203.0.113.9", &[rubbish]), "203.0.113.9", "{rubbish}");
    }
    for header in ["x-forwarded-for", "forwarded"] {
        for empty in [&[""][..], &[" , ,"], &["", ","]] {
            assert_eq!(read(header, "10.0.0.1", empty), None, "{header}: {empty:?}");
        }
        assert_eq!(client(header, "10.0.0.1", &[]), "10.0.0.1", "the proxy's own request has no header");
    }
}

#[test]
fn addresses_are_read_as_proxies_write_them() {
    for (written, expected) in [
        ("198.51.100.7:", "198.51.100.7"),
        ("198.51.100.7:_port", "198.51.100.7"),
        ("\"198.51.100.7\"", "198.51.100.7"),
        ("\"[2001:db8::5]:4711\"", "2001:db8::5"),
        ("2001:db8:1:2:3:4:5:6:4711", "2001:db8:1:2:3:4:5:6"),
        ("2001:db8::5:54321", "2001:db8::5"),
        ("2001:db8::5:4711", "2001:db8::5:4711"),
        ("2001:DB8::5", "2001:db8::5"),
        ("fe80::1%eth0", "fe80::1"),
        ("[fe80::1%25eth0]:80", "fe80::1"),
        ("64:ff9b::203.0.113.5", "203.0.113.5"),
        ("[64:ff9b::cb00:7105]:80", "203.0.113.5"),
        ("2002:cb00:7105::1", "2002:cb00:7105::1"),
    ] {
        assert_eq!(forwarded_for("10.0.0.1", &[written]), expected, "{written}");
        let behind_another = format!("198.51.100.9, {written}, 10.1.2.3");
        assert_eq!(forwarded_for("10.0.0.1", &[&behind_another]), expected, "{written}");
        let quoted = format!("for=\"{}\";proto=https", written.trim_matches('"'));
        assert_eq!(client("forwarded", "10.0.0.1", &[&quoted]), expected, "{quoted}");
    }
}

#[test]
fn forwarded_is_parsed_as_in_rfc_7239() {
    for (written, expected) in [
        ("for=203.0.113.5", "203.0.113.5"),
        ("For=\"[2001:db8::5]:4711\";proto=https;by=10.0.0.1", "2001:db8::5"),
        ("proto=https ; for=\"203.0.113.5:80\";", "203.0.113.5"),
        ("for=198.51.100.9, for=203.0.113.5;proto=http, for=10.1.2.3", "203.0.113.5"),
        // Commas, semicolons and escapes within quotes.
        ("for=203.0.113.5;host=\"a,b\"", "203.0.113.5"),
        ("host=\"a,b\";for=203.0.113.5", "203.0.113.5"),
        ("for=198.51.100.9, host=\"a, b;c=d\";for=203.0.113.5;by=\"[fd00::1]:80\", for=10.1.2.3", "203.0.113.5"),
        ("for=203.0.113.5;host=\"a\\\"b, c\"", "203.0.113.5"),
        ("for=203.0.113.5;host=\"a\\\\\", for=10.1.2.3;host=\"\\\",\\\\\"", "203.0.113.5"),
        ("for=\"\\[2001:db8::5\\]:47\\11\"", "2001:db8::5"),
        // Some proxies leave out the quotes that the RFC demands.
        ("for=[2001:db8::5]:4711", "2001:db8::5"),
        ("for=2001:db8::5;proto=https", "2001:db8::5"),
        ("for=203.0.113.5:4711", "203.0.113.5"),
        ("FOR=203.0.113.5", "203.0.113.5"),
        (";for=203.0.113.5;;proto=https;", "203.0.113.5"),
        // A quote that the client opens does not hide later elements.
        ("for=\"198.51.100.9, for=203.0.113.5", "203.0.113.5"),
        ("for=\"198.51.100.9;x=\\\", for=203.0.113.5;proto=\"https\"", "203.0.113.5"),
        ("for=\"198.51.100.9;x=\\\", for=203.0.113.5;host=\"a, b\"", "203.0.113.5"),
        ("\\\", for=203.0.113.5;host=\"a, b\"", "203.0.113.5"),
    ] {
        assert_eq!(client("forwarded", "10.0.0.1", &[written]), expected, "{written}");
    }
    for unreadable in [
        "for=_hidden, for=10.1.2.3",
        "for=unknown",
        "for=\"unknown:80\"",
        "for=",
        "for=\"\"",
        "proto=https",
        "proto=https, for=10.1.2.3",
        "203.0.113.5",
        "for",
        "=203.0.113.5",
        "for =203.0.113.5",
        "for=203.0.113.5 proto=https",
        "for=203.0.113.5;host=\"a\"b",
        "for=203.0.113.5;host=a\"b\"",
        "for=203.0.113.5;host=\"a",
        "for=203.0.113.5;host=\"a\\\"",
        "for=203.0.113.5;host=a\"",
        "for=\"203.0.113.5",
        // Text that a client might smuggle into the proxy's own element.
        "for=203.0.113.5;host=\"x\";for=198.51.100.9;y=\"\"",
        "for=198.51.100.9;x=\", for=203.0.113.5;host=\"",
    ] {
        assert_eq!(read("forwarded", "10.0.0.1", &[unreadable]), None, "{unreadable}");
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

#[test]
fn a_client_counts_as_the_ipv4_address_in_its_address() {
    let direct = ClientAddress::direct();
    for embedded in [
        "::ffff:203.0.113.7",
        "::ffff:0:203.0.113.7",
        "::203.0.113.7",
        "64:ff9b::203.0.113.7",
        "64:ff9b:1::203.0.113.7",
        "2002:cb00:7107::1",
        "2002:cb00:7107:ffff:1:2:3:4",
        "2001:0:4136:e378:8000:63bf:34ff:8ef8",
    ] {
        assert_eq!(key(&direct, embedded), "203.0.113.7".into(), "{embedded}");
        assert_eq!(key(&direct.clone().ipv4_prefix(24).ipv6_prefix(128), embedded), "203.0.113.0/24".into());
        assert_eq!(direct.key_of(embedded.parse().expect(embedded)), "203.0.113.7".into(), "{embedded}");
        for list in ["203.0.113.0/24", "198.51.100.1, 203.0.113.7", "::ffff:203.0.113.0/120", "64:ff9b::cb00:7100/120"]
        {
            let networks: Networks = list.parse().expect(list);
            assert!(networks.contains(embedded.parse().expect(embedded)), "{list}: {embedded}");
            assert!(networks.contains("203.0.113.7".parse().expect("an address")), "{list}");
            assert!(!networks.contains("64:ff9b::198.51.100.7".parse().expect("an address")), "{list}");
        }
        let proxies: TrustedProxies = "203.0.113.7".parse().expect("networks");
        let found = ClientAddress::behind(proxies).find(&request(embedded, &[("x-forwarded-for", b"198.51.100.9")]));
        assert_eq!(found, "198.51.100.9".parse().ok(), "{embedded} is trusted as 203.0.113.7 is");
    }
    // A site of 6to4 is one IPv4 address.
    let site: Networks = "2002:cb00:7107::/48".parse().expect("networks");
    assert!(site.contains("203.0.113.7".parse().expect("an address")));
    // Any client can choose such an address, so these are no IPv4 addresses.
    for (chosen, expected) in [
        ("2001:db8::5efe:203.0.113.7", "2001:db8::/64"),
        ("2001:db8::203.0.113.7", "2001:db8::/64"),
        ("2002:a00:1::1", "2002:a00:1::/64"),
        ("2001:0:4136:e378:8000:63bf:f5ff:fffe", "2001:0:4136:e378::/64"),
        ("::1", "::/64"),
        ("64:ff9b:2::203.0.113.7", "64:ff9b:2::/64"),
    ] {
        assert_eq!(key(&direct, chosen), expected.into(), "{chosen}");
    }
    let own: Networks = "10.0.0.0/8, 127.0.0.0/8, 0.0.0.0/8".parse().expect("networks");
    for forged in ["2002:a00:1::1", "2001:0:4136:e378:8000:63bf:f5ff:fffe", "::10.0.0.1", "2002:7f00:1::1", "::1"] {
        assert!(!own.contains(forged.parse().expect(forged)), "{forged}");
    }
}

#[test]
fn a_whole_prefix_of_a_translator_is_no_list_of_all_ipv4_addresses() {
    for (list, translated) in [
        ("64:ff9b::/96", "64:ff9b::203.0.113.7"),
        ("64:ff9b:1::/48", "64:ff9b:1::203.0.113.7"),
        ("2002::/16", "2002:cb00:7107::1"),
        ("2001::/32", "2001:0:4136:e378:8000:63bf:34ff:8ef8"),
        ("2002:cb00:7107:1::/64", "2002:cb00:7107:1::1"),
    ] {
        let networks: Networks = list.parse().expect(list);
        assert!(networks.contains(translated.parse().expect(translated)), "{list}");
        assert!(!networks.contains("203.0.113.7".parse().expect("an address")), "{list}");
    }
}

#[test]
fn a_prefix_of_the_networks_own_nat64_is_translated() {
    let prefix = |text: &str| ClientAddress::direct().nat64_prefix(text.parse().expect(text));
    for (text, address) in [
        ("2001:db8:122:344::/96", "2001:db8:122:344::203.0.113.7"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:cb:71:700:0"),
        ("2001:db8:122::/48", "2001:db8:122:cb00:71:700::"),
        ("64:ff9b:1::/48", "64:ff9b:1:cb00:71:700::"),
    ] {
        let client = prefix(text).expect(text);
        assert_eq!(key(&client, address), "203.0.113.7".into(), "{text}");
        assert_eq!(client.find(&request(address, &[])), "203.0.113.7".parse().ok(), "{text}");
        assert_eq!(key(&client, "2001:db8:1::1"), "2001:db8:1::/64".into());
    }
    let error = prefix("2001:db8::/50").expect_err("no such prefix");
    assert!(error.to_string().contains("2001:db8::/50") && error.to_string().contains("96 bits"), "{error}");
    let trusted: TrustedProxies = "203.0.113.7".parse().expect("networks");
    let behind = ClientAddress::behind(trusted).nat64_prefix("2001:db8:64::/96".parse().expect("a prefix"));
    let parts = request("2001:db8:64::203.0.113.7", &[("x-forwarded-for", b"2001:db8:64::198.51.100.9")]);
    assert_eq!(behind.expect("a prefix").key(&parts), Ok(Some("198.51.100.9".into())));
}

/// The key of all that cannot be read is of its own kind: no address has it.
#[test]
fn an_unreadable_client_has_a_key_of_its_own_or_is_rejected() {
    for entry in ["unknown", "_hidden", "203.0.113.07", ""] {
        let parts = request("10.0.0.1", &[("x-forwarded-for", entry.as_bytes())]);
        let behind = behind("x-forwarded-for");
        assert_eq!(behind.key(&parts), Ok(Some("unreadable".into())), "{entry}");
        assert_eq!(behind.clone().unreadable(Unreadable::SharedKey).key(&parts), Ok(Some("unreadable".into())));
        let rejecting = behind.unreadable(Unreadable::Reject);
        for extractor in [
            Box::new(rejecting.clone()) as Box<dyn KeyExtractor>,
            Box::new(rejecting.clone().or_shared()),
            Box::new(rejecting.clone().or_unlimited()),
        ] {
            let Err(NoKey::Unusable { what, .. }) = extractor.key(&parts) else { panic!("{entry} is no key") };
            assert_eq!(what, "the client's address in the header x-forwarded-for");
        }
        assert_eq!(rejecting.find(&parts), None, "{entry}");
    }
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

/// A host that the client chose, in quotes, as a proxy writes it: with a backslash before each quote and backslash.
fn any_host() -> impl Strategy<Value = String> {
    let character =
        prop_oneof![Just('"'), Just('\\'), Just(','), Just(';'), Just('='), Just(' '), proptest::char::range('a', 'e')];
    proptest::collection::vec(character, 0..12).prop_map(|host| {
        let escaped = host.into_iter().map(|c| if matches!(c, '"' | '\\') { format!("\\{c}") } else { c.to_string() });
        format!("\"{}\"", escaped.collect::<String>())
    })
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
        proxies in proptest::collection::vec((any::<[u8; 3]>(), any::<bool>(), any_host()), 1..4),
        forwarded in any::<bool>(),
    ) {
        let header = if forwarded { "forwarded" } else { "x-forwarded-for" };
        let mut lines = lines;
        let mut from = client;
        for (octets, same_line, host) in proxies {
            let element = match (forwarded, from) {
                (false, _) => from.to_string(),
                (true, IpAddr::V4(_)) => format!("for={from};host={host};proto=https"),
                (true, IpAddr::V6(_)) => format!("host={host};for=\"[{from}]:443\""),
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

/// The rows of a table of the guide, by its first heading. Each cell is a list of its code.
fn guides_table(heading: &str) -> Vec<Vec<Vec<&'static str>>> {
    let lines = guide::chapter("addresses").lines().skip_while(|line| !line.starts_with(&format!("| {heading} |")));
    let code = |cell: &'static str| {
        let cell = cell.split_once("`: ").map_or(cell, |(code, _)| &cell[..=code.len()]);
        cell.split('`').skip(1).step_by(2).collect::<Vec<_>>()
    };
    let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split(" | ").map(code).collect()).collect()
}

#[test]
fn the_guides_tables_say_what_is_read_as_what() {
    for (heading, header) in [("`X-Forwarded-For`", "x-forwarded-for"), ("`Forwarded`", "forwarded")] {
        let rows = guides_table(heading);
        assert!(rows.len() >= 6, "{rows:?}");
        for row in rows {
            let expected = row[1].first().map(|text| (*text).to_owned());
            assert!(!row[0].is_empty(), "{row:?}");
            for written in &row[0] {
                assert_eq!(read(header, "10.0.0.1", &[written]), expected, "{header}: {written}");
            }
        }
    }
    let embedded = guides_table("form");
    assert!(embedded.len() >= 9, "{embedded:?}");
    for row in embedded {
        assert_eq!(key(&ClientAddress::direct(), row[1][0]), row[2][0].into(), "{row:?}");
    }
    for row in &guides_table("client")[..2] {
        for address in &row[0] {
            assert_eq!(key(&ClientAddress::direct(), address), row[1][0].into(), "{row:?}");
        }
    }
}
