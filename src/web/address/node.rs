//! One entry of a header: the address of a client or a proxy, as proxies write it.

use std::net::{IpAddr, Ipv6Addr};

use crate::web::address::Reason;

/// Reads an address, with or without brackets, a zone and a port (RFC 7239, section 6, and what proxies write besides).
///
/// An IPv6 address with a port needs brackets. Without them, the last part is read as a port only if the whole is no address.
pub(super) fn node(text: &str) -> Result<IpAddr, Reason> {
    let without_port = || text.rsplit_once(':').filter(|(_, port)| is_port(port)).map(|(node, _)| node);
    address(text).or_else(|| without_port().and_then(address)).ok_or_else(|| why_not(text))
}

fn address(text: &str) -> Option<IpAddr> {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let without_zone = || {
        let (address, zone) = inner.split_once('%')?;
        address.parse::<Ipv6Addr>().ok().filter(|_| is_zone(zone)).map(IpAddr::V6)
    };
    inner.parse().ok().or_else(without_zone)
}

/// Whether this is a port: up to five digits, or an obfuscated name (RFC 7239, section 6.2).
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(is_name),
        None => text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// The name of an interface (RFC 4007, section 11), such as `eth0`, also with an encoded `%` before it (RFC 6874).
fn is_zone(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| is_name(byte) || matches!(byte, b'%' | b'~' | b':' | b'@' | b'/'))
}

fn why_not(text: &str) -> Reason {
    let name = text.split(':').next().unwrap_or_default();
    match name {
        _ if text.is_empty() => Reason::Missing,
        _ if name.eq_ignore_ascii_case("unknown") => Reason::Unknown,
        _ if name.len() > 1 && name.starts_with('_') && name.bytes().all(is_name) => Reason::Obfuscated,
        _ => Reason::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form_that_proxies_write() {
        for (text, expected) in [
            ("203.0.113.5", "203.0.113.5"),
            ("203.0.113.5:4711", "203.0.113.5"),
            ("203.0.113.5:", "203.0.113.5"),
            ("203.0.113.5:_port", "203.0.113.5"),
            ("[203.0.113.5]:80", "203.0.113.5"),
            ("2001:DB8::5", "2001:db8::5"),
            ("[2001:db8::5]", "2001:db8::5"),
            ("[2001:db8::5]:", "2001:db8::5"),
            ("[2001:db8::5]:4711", "2001:db8::5"),
            ("[2001:db8::5]:_p.o-r_t", "2001:db8::5"),
            ("fe80::1%eth0", "fe80::1"),
            ("fe80::1%25eth0", "fe80::1"),
            ("fe80::1%3", "fe80::1"),
            ("[fe80::1%eth0]:80", "fe80::1"),
            ("fe80::1%eth0.100:80", "fe80::1"),
            ("::ffff:203.0.113.5%eth0", "::ffff:203.0.113.5"),
            // A port without brackets, where the whole is no address.
            ("2001:db8:1:2:3:4:5:6:4711", "2001:db8:1:2:3:4:5:6"),
            ("2001:db8::3:4:5:6:7:4711", "2001:db8::3:4:5:6:7"),
            ("2001:db8::5:54321", "2001:db8::5"),
            ("2001:db8::5:", "2001:db8::5"),
            ("::ffff:203.0.113.5:80", "::ffff:203.0.113.5"),
            // Where the whole is an address, it is that one.
            ("2001:db8::5:4711", "2001:db8::5:4711"),
            ("2001:db8:1:2:3:4:5:80", "2001:db8:1:2:3:4:5:80"),
        ] {
            assert_eq!(node(text), Ok(expected.parse().expect(expected)), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_unreadable_with_the_reason() {
        for text in ["unknown", "Unknown", "unknown:80", "UNKNOWN:_p"] {
            assert_eq!(node(text), Err(Reason::Unknown), "{text}");
        }
        for text in ["_hidden", "_SEVKISEK", "_hidden:80", "_a.b-c_d:_p"] {
            assert_eq!(node(text), Err(Reason::Obfuscated), "{text}");
        }
        assert_eq!(node(""), Err(Reason::Missing));
        for text in [
            // Octal for some readers, decimal for others.
            "203.0.113.05",
            "0313.0.0161.05",
            "0xcb007105",
            "0xcb.0.0x71.5",
            "3405803781",
            "203.0.113",
            "203.0.113.5.6",
            "203.0.113.256",
            "203.0.113.5/32",
            "203.0.113.5:80:81",
            "203.0.113.5:123456",
            "203.0.113.5:http",
            "203.0.113.5:_",
            "203.0.113.5%eth0",
            "203.0.113.5 ",
            "1.2.3.4 5.6.7.8",
            "[2001:db8::5",
            "2001:db8::5]",
            "[[2001:db8::5]]",
            "[2001:db8::5]80",
            "[]",
            "[]:80",
            "fe80::1%",
            "fe80::1%eth 0",
            "2001:db8:1:2:3:4:5:6:7:4711",
            "2001:db8::g",
            ":",
            ":80",
            "_",
            "_hid den",
            "localhost",
            "unix:",
            "unix:/run/app.sock",
            "-",
            "(null)",
        ] {
            assert_eq!(node(text), Err(Reason::Malformed), "{text}");
        }
    }
}
