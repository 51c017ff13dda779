//! The field of a request that is its key, and the keys of clients, as the library's web layer makes them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use clap::Args;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request};
use regex::Regex;

use crate::error::{CliError, Result};
use crate::study::replay::access_log::format::LogFormat;
use crate::study::replay::access_log::line::{LogLine, names};
use crate::study::replay::access_log::servers::field_name;
use pg_limiter::web::{ClientAddress, InvalidNetworks, KeyExtractor, PeerAddress, TrustedProxies, stored_keys};

const CLIENT: &str = "remote_addr";

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "The access log")]
#[group(skip)]
pub(crate) struct LogOptions {
    /// Format of the lines: common, combined, vhost, json, json:time=FIELD,remote_addr=FIELD,.., or the format string of the
    /// server: nginx's ('$http_x_forwarded_for - $remote_user [$time_local] ..') or Apache's ('%v %h %l %u %t ..'). After the
    /// name of a collector: syslog, docker, compose, kubectl or cri, as in docker:json [default: common or combined]
    #[arg(long, value_name = "FORMAT", requires = "access_log")]
    pub(crate) log_format: Option<LogFormat>,
    /// Field of a request to use as the key: remote_addr (the key of the client in the web layer), path, uri, user, method,
    /// status, user_agent, referer, host, or any field of the format as it is, such as '$http_x_api_key' or '%{X-Api-Key}i'
    /// [default: remote_addr]
    #[arg(long, value_name = "FIELD", requires = "access_log")]
    pub(crate) key: Option<String>,
    /// Networks of your own proxies, such as 10.0.0.0/8,192.0.2.7, as in the web layer: a request from one of them is the
    /// client's that the header of --trusted-header reports, which must be a field of the log [default: none]
    #[arg(long, value_name = "NETWORKS", requires = "access_log", value_parser = networks)]
    pub(crate) trusted_proxies: Option<String>,
    /// Header in which the proxies report the client's address [default: x-forwarded-for]
    #[arg(long, value_name = "NAME", requires = "access_log")]
    pub(crate) trusted_header: Option<HeaderName>,
    /// Prefix length, in bits, of an IPv6 client's key [default: 64]
    #[arg(long, value_name = "BITS", requires = "access_log", value_parser = clap::value_parser!(u8).range(0..=128))]
    pub(crate) ipv6_prefix: Option<u8>,
    /// Prefix length, in bits, of an IPv4 client's key [default: 32]
    #[arg(long, value_name = "BITS", requires = "access_log", value_parser = clap::value_parser!(u8).range(0..=32))]
    pub(crate) ipv4_prefix: Option<u8>,
}

impl LogOptions {
    pub(crate) fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(CLIENT)
    }
}

fn networks(text: &str) -> Result<String, InvalidNetworks> {
    text.parse::<TrustedProxies>().map(|_| text.to_owned())
}

pub(crate) struct LogKey {
    /// As the user writes it.
    pub(crate) name: String,
    /// A name of the tool or, after a `$`, of the format. The field is the key as it is; only [`CLIENT`] is as in the web layer.
    field: String,
    client: ClientAddress,
    /// The header of the proxies, and the field that has it.
    header: HeaderName,
    header_field: String,
    has_proxies: bool,
}

impl LogKey {
    /// Finds the field that `--key` names: by a name of the tool, or as the format writes it (`$http_x_api_key`, `%{X-Api-Key}i`).
    pub(crate) fn new(format: &LogFormat, options: &LogOptions) -> Result<Self> {
        let (name, trusted) = (options.key().to_owned(), options.trusted_proxies.as_deref());
        let is_own = |name: &str| format.own_names().any(|own| own == name);
        let no_field = || CliError::usage(format!("--key {name} is no directive of Apache's log formats"));
        let field = match name.strip_prefix('%') {
            None => name.clone(),
            Some(_) if is_own(&name) => format!("${name}"),
            Some("h") if is_own("remote_host") => "$remote_host".to_owned(),
            Some(_) => format!("${}", field_name(&name).ok_or_else(no_field)?),
        };
        if name != CLIENT {
            let of_clients = [
                ("--trusted-proxies", trusted.is_some()),
                ("--trusted-header", options.trusted_header.is_some()),
                ("--ipv6-prefix", options.ipv6_prefix.is_some()),
                ("--ipv4-prefix", options.ipv4_prefix.is_some()),
            ];
            CliError::refuse_without(&format!("--key {CLIENT}"), &format!("--key {name}"), &of_clients)?;
        }
        let trusted = trusted.unwrap_or_default();
        let proxies: TrustedProxies = format!("{trusted},{UNKNOWN_PEER}").parse().map_err(CliError::usage)?;
        let header = options.trusted_header.clone().unwrap_or(X_FORWARDED_FOR);
        let client = ClientAddress::behind(proxies.with_header(header.clone()));
        let client =
            client.ipv6_prefix(options.ipv6_prefix.unwrap_or(64)).ipv4_prefix(options.ipv4_prefix.unwrap_or(32));
        let header_field = format!("http_{}", header.as_str().replace('-', "_"));
        let has_proxies = !trusted.trim().is_empty();
        // Whether lines of this format can have the key.
        let has_field = field.strip_prefix('$').map_or_else(|| format.has(&field), |own| format.has_own(own));
        let has_header = field == CLIENT && (format.has(&header_field) || format.has(ALL_FORWARDED));
        let why = format_args!(
            "--trusted-header {header} is not read without --trusted-proxies, because the log has the address of the peer: \
             add --trusted-proxies with the networks of your proxies"
        );
        CliError::refuse_if(options.trusted_header.is_some() && has_field && !has_proxies, why)?;
        let why = format_args!(
            "--trusted-proxies needs the header that the proxies write, and the log format has no ${header_field}: add it \
             to --log-format, or name another with --trusted-header"
        );
        CliError::refuse_if(has_field && has_proxies && !has_header, why)?;
        let named = names().filter(|name| format.has(name)).map(str::to_owned);
        let own = format.own_names().map(|name| format!("${name}"));
        let mut seen = HashSet::new();
        let all: Vec<String> = named.chain(own).filter(|name| seen.insert(name.clone())).collect();
        let why = format_args!("--key {name}: the log format has no such field; it has {}", all.join(", "));
        CliError::refuse_if(!has_field && !has_header, why)?;
        Ok(Self { name, field, client, header, header_field, has_proxies })
    }

    /// The key of a request, and whether the request lacks the needed field. Returns the reason if the field is no key.
    pub(crate) fn of(&self, line: &LogLine<'_>) -> Result<(String, bool), String> {
        let field = if self.field == CLIENT { &self.header_field } else { &self.field };
        if line.is_ambiguous(field) {
            return Err(format!(
                "several fields may be the header {field}: name one with --log-format json:{field}=FIELD"
            ));
        }
        let is_header_used = self.has_proxies || line.field(CLIENT).is_none();
        let (names, value): (&[&str], _) = match self.field.strip_prefix('$') {
            Some(own) => (&[own], line.own(own)),
            None if self.field != CLIENT => (&[field], line.field(field)),
            None if is_header_used => (&[CLIENT, field, ALL_FORWARDED], None),
            None => (&[CLIENT], None),
        };
        if let Some(name) = names.iter().find(|name| line.has_other_readings(name)) {
            return Err(format!(
                "the line can be read with several values of {name}, because a field without quotes has the text that ends \
                 it: use another --key, or let the server write such fields in quotes"
            ));
        }
        if self.field != CLIENT {
            return Ok((value.map(stored).unwrap_or_default(), value.is_none()));
        }
        let peer = line.field(CLIENT);
        let reported = line.field(&self.header_field).or_else(|| line.own(ALL_FORWARDED));
        if peer.is_none() && (reported.is_none() || line.renamed.contains_key(CLIENT)) {
            return Err(format!(
                "no field has the client's address: name it with --log-format json:remote_addr=FIELD; {}",
                line.has()
            ));
        }
        let own = line.source(CLIENT).map_or(CLIENT, |(own, _)| own);
        Ok((self.of_client(peer, own, reported)?, self.has_proxies && reported.is_none()))
    }

    /// Whether this is the key that clients with an unreadable address share.
    pub(crate) fn is_unreadable(&self, key: &str) -> bool {
        self.field == CLIENT && key == UNREADABLE
    }

    /// The field that requests should have: the key or, behind proxies, the header with the client's address.
    pub(crate) fn needed(&self) -> &str {
        if self.field == CLIENT { &self.header_field } else { &self.name }
    }

    /// The key of a client, by the address of the peer, from the field `own`, and the header of the proxies. Both are empty where the
    /// server had none.
    fn of_client(&self, peer: Option<&str>, own: &str, reported: Option<&str>) -> Result<String, String> {
        let no_peer = |text: &str| match text {
            "" => "the field with the client's address is empty".to_owned(),
            UNIX => "\"unix:\" is no address, but a proxy on a unix socket, which has the client's in a header: use a \
                     --log-format with $http_x_forwarded_for, and --trusted-proxies 127.0.0.1"
                .to_owned(),
            _ => {
                format!("\"{text}\" is no address; if this is what to limit by, --key '${own}' takes it as it is")
            }
        };
        let of_proxy = |text: &str| (text == UNIX && self.has_proxies).then_some(UNKNOWN_PEER);
        let peer =
            peer.map(|text| address(text).or_else(|| of_proxy(text)).ok_or_else(|| no_peer(text))).transpose()?;
        if let Some(peer) = peer.filter(|_| !self.has_proxies) {
            return Ok(self.client.key_of(peer).as_str().to_owned());
        }
        let (peer, reported) = (peer.unwrap_or(UNKNOWN_PEER), reported.unwrap_or_default());
        if peer == UNKNOWN_PEER && reported.is_empty() {
            return Ok(String::new());
        }
        if !self.has_proxies && reported.contains(',') {
            return Err(format!(
                "\"{reported}\" is a list of addresses: give the networks of your proxies, such as --trusted-proxies 10.0.0.0/8; \
                 the client is the last address that is none of theirs"
            ));
        }
        let key = |reported: &str| {
            let key = self.client.key(&request(peer, &self.header, reported)?).ok()?;
            Some(key.map(|key| key.as_str().to_owned()).unwrap_or_default())
        };
        let is_read = |reported: &str| key(reported).is_some_and(|key| key != UNREADABLE);
        // Without the peer, the header is the client's only field, so it must have an address, or a name in the place of it.
        let is_hidden = || is_read(&HIDDEN.replace_all(reported, "${1}255.255.255.255"));
        key(reported)
            .filter(|key| key != UNREADABLE || peer != UNKNOWN_PEER || is_hidden())
            .ok_or_else(|| format!("\"{reported}\" is no address"))
    }

    /// The key that the user means by this text: that of the client with this address; any other text is a key as it is.
    pub(crate) fn named(&self, text: &str) -> String {
        match address(text).filter(|_| self.field == CLIENT) {
            Some(address) => self.client.key_of(address).as_str().to_owned(),
            None => stored(text),
        }
    }
}

/// The key as the web layer stores it: a long one, such as a path, becomes its hash.
fn stored(key: &str) -> String {
    if key.len() <= LONGEST_KEY { key.to_owned() } else { stored_keys(key).usual.as_str().to_owned() }
}

const LONGEST_KEY: usize = 1024;

/// The web layer's key for all clients with an unreadable address.
const UNREADABLE: &str = "unreadable";

/// nginx's variable with the header of the proxies and the peer after it.
pub(super) const ALL_FORWARDED: &str = "proxy_add_x_forwarded_for";

/// nginx writes this for a peer on a unix socket.
pub(super) const UNIX: &str = "unix:";

/// Stands for the peer in logs that have only what the last proxy reports. No client can have this address.
const UNKNOWN_PEER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Proxies may write this in the place of an address (RFC 7239, section 6): `unknown`, or a name that they have chosen.
static HIDDEN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"(^|[,="\s])(?i:unknown|_[^,;:"\s]*)"#).expect("a regular expression"));

/// Reads an address in any form that the library reads, such as with a port.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if text.is_empty() || text.contains([',', ' ']) {
        return None;
    }
    let request = request(UNKNOWN_PEER, &X_FORWARDED_FOR, text)?;
    ClientAddress::behind(TrustedProxies::new([UNKNOWN_PEER.into()])).find(&request)
}

/// A request from this peer, with this header unless it is empty.
fn request(peer: IpAddr, header: &HeaderName, value: &str) -> Option<Parts> {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.extensions.insert(PeerAddress(peer));
    if !value.is_empty() {
        parts.headers.insert(header.clone(), HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(options: LogOptions) -> LogKey {
        LogKey::new(&"json".parse().unwrap(), &options).unwrap()
    }

    #[test]
    fn clients_have_the_keys_of_the_web_layer() {
        let alone = keys(LogOptions::default());
        let wide = keys(LogOptions { ipv6_prefix: Some(48), ipv4_prefix: Some(24), ..LogOptions::default() });
        let trusted_proxies = Some("10.0.0.0/8".to_owned());
        let trusted_header = Some(HeaderName::from_static("forwarded"));
        let behind = keys(LogOptions { trusted_proxies: trusted_proxies.clone(), ..LogOptions::default() });
        let forwarded = keys(LogOptions { trusted_proxies, trusted_header, ..LogOptions::default() });
        let hidden = "unknown|_hidden|203.0.113.1, unknown|unknown, 10.0.0.3|203.0.113.1, _hidden, 10.0.0.1|\
                      junk, UNKNOWN:443, 10.0.0.1,";
        let hidden_there = "for=unknown|for=_hidden|for=1.2.3.4, for=unknown|\
                            for=unknown;host=\"a,b\", For=\"_hidden:_port\";by=_x, for=10.0.0.1";
        // A `-` stands for a field that the log does not have.
        for (keys, peers, headers, key) in [
            (&alone, "203.0.113.7|203.0.113.7:4711|::ffff:203.0.113.7", "-", "203.0.113.7"),
            (&alone, "2001:db8::1|[2001:DB8::1]:443", "-", "2001:db8::/64"),
            (&alone, "fe80::1%eth0", "-", "fe80::/64"),
            (&alone, "-", "203.0.113.7", "203.0.113.7"),
            (&wide, "2001:db8::1", "-", "2001:db8::/48"),
            (&wide, "203.0.113.7", "-", "203.0.113.0/24"),
            (&behind, "10.0.0.1|-", "203.0.113.7|198.51.100.9, 203.0.113.7, 10.0.0.2", "203.0.113.7"),
            (&behind, "10.0.0.1", "2001:db8::1", "2001:db8::/64"),
            (&behind, "10.0.0.1", "unknown", "unreadable"),
            (&behind, "10.0.0.1", "", "10.0.0.1"),
            (&behind, "192.0.2.1", "203.0.113.7", "192.0.2.1"),
            (&behind, "-", "", ""),
            (&behind, "-", "unknown, 203.0.113.7, 10.0.0.2", "203.0.113.7"),
            (&behind, "-", hidden, "unreadable"),
            (&forwarded, "-", "for=_hidden, for=1.2.3.4", "1.2.3.4"),
            (&forwarded, "-", hidden_there, "unreadable"),
        ] {
            for (peer, header) in peers.split('|').flat_map(|peer| headers.split('|').map(move |header| (peer, header)))
            {
                let [peer, header] = [peer, header].map(|text| (text != "-").then_some(text));
                assert_eq!(keys.of_client(peer, CLIENT, header).as_deref(), Ok(key), "{peer:?} {header:?}");
            }
        }
        for peer in ["", "example.com:80", "Dec", "unix:", "203.0.113.1, 10.0.0.1", "203.0.113.1,"] {
            assert!(alone.of_client(Some(peer), CLIENT, None).is_err(), "{peer}");
        }
        // A header that is the only field of the client is an address.
        let junk = "junk, 10.0.0.1|unknown, junk, 10.0.0.1|unknown.example";
        for (keys, all) in [(&alone, "a.example"), (&behind, junk), (&forwarded, "for=unknown, for=junk|by=unknown")] {
            for reported in all.split('|') {
                let reason = keys.of_client(None, CLIENT, Some(reported)).unwrap_err();
                assert_eq!(reason, format!("\"{reported}\" is no address"));
            }
        }
        let reason = alone.of_client(None, CLIENT, Some("203.0.113.7, 10.0.0.1")).unwrap_err();
        assert!(reason.contains("--trusted-proxies"), "{reason}");
    }
}
