//! The field of a request that is its key, and the keys of clients, as the library's web layer makes them.

use std::net::{IpAddr, Ipv4Addr};

use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Request};
use clap::Args;

use crate::error::CliError;
use crate::replay::access_log::line::names;
use crate::replay::access_log::{LogFormat, LogLine, apache};
use pg_limiter::web::{ClientAddress, InvalidNetworks, KeyExtractor, PeerAddress, TrustedProxies};

/// The name of the client's address.
const CLIENT: &str = "remote_addr";

/// What makes the key of a request.
#[derive(Clone, Debug)]
pub(crate) enum LogKey {
    /// The client's address, as the web layer uses it.
    Client(ClientKeys),
    /// A field, by a name of the tool.
    Named(String),
    /// A field as it is, by the format's own name.
    Own(String),
}

impl LogKey {
    /// Finds the field that `--key` names: by a name of the tool, or as the format writes it (`$http_x_api_key`, `%{X-Api-Key}i`).
    pub(crate) fn new(name: &str, format: &LogFormat, args: &ClientArgs) -> Result<Self, CliError> {
        let (key, field) = match name.strip_prefix('$') {
            _ if name == CLIENT => return Self::client(format, args),
            Some(own) => (Self::Own(own.to_owned()), own.to_owned()),
            None if name.starts_with('%') => {
                let own = apache::field_name(name)
                    .ok_or_else(|| CliError::usage(format!("--key {name} is no directive of Apache's log formats")))?;
                (Self::Own(own.clone()), own)
            }
            None => (Self::Named(name.to_owned()), name.to_owned()),
        };
        if args.has_proxies() {
            return Err(CliError::usage(format!(
                "--trusted-proxies finds the client for --key {CLIENT}, and the key is {name}: leave out one of them"
            )));
        }
        if format.has(&field) { Ok(key) } else { Err(no_field(name, format)) }
    }

    fn client(format: &LogFormat, args: &ClientArgs) -> Result<Self, CliError> {
        let keys = ClientKeys::new(args).map_err(|error| CliError::usage(format!("--trusted-proxies: {error}")))?;
        let header = keys.header_field();
        let has_header = [header.as_str(), ALL_FORWARDED].iter().any(|field| format.has(field));
        match format.has(CLIENT) {
            true if keys.has_proxies() && !has_header => Err(CliError::usage(format!(
                "--trusted-proxies needs the header that the proxies write, and the log format has no ${header}: add it to \
                 --log-format, or name another with --trusted-header"
            ))),
            false if !has_header => Err(no_field(CLIENT, format)),
            _ => Ok(Self::Client(keys)),
        }
    }

    /// The key of a request, or `None` if the line has no such field. Returns the reason if the field is no key.
    pub(crate) fn of(&self, line: &LogLine<'_>) -> Result<Option<String>, String> {
        let keys = match self {
            Self::Named(name) => return Ok(line.field(name).map(Into::into)),
            Self::Own(name) => return Ok(line.own(name).map(Into::into)),
            Self::Client(keys) => keys,
        };
        let peer = line.field(CLIENT);
        let reported = line.field(&keys.header_field()).or_else(|| line.own(ALL_FORWARDED));
        if peer.is_none() && reported.is_none() {
            return Err(format!(
                "no field has the client's address: name it with --log-format json:remote_addr=FIELD; {}",
                line.has()
            ));
        }
        keys.key(peer.as_deref(), reported.as_deref()).map(Some)
    }

    /// The key that the user means by this text.
    pub(crate) fn named(&self, text: &str) -> String {
        match self {
            Self::Client(keys) => keys.named(text),
            Self::Named(_) | Self::Own(_) => text.to_owned(),
        }
    }
}

/// nginx's variable with the header of the proxies and the peer after it.
const ALL_FORWARDED: &str = "proxy_add_x_forwarded_for";

fn no_field(name: &str, format: &LogFormat) -> CliError {
    let named = names().filter(|name| format.has(name)).map(str::to_owned);
    let own = format.own_names().map(|name| format!("${name}"));
    let mut all: Vec<String> = named.chain(own).collect();
    let mut known = std::collections::HashSet::new();
    all.retain(|name| known.insert(name.clone()));
    CliError::usage(format!("--key {name}: the log format has no such field; it has {}", all.join(", ")))
}

/// How an access log is read. The defaults are those of the command line.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct LogOptions {
    /// Format of the lines: common, combined, vhost, json, json:time=FIELD,remote_addr=FIELD,.., or the format string of the
    /// server: nginx's ('$http_x_forwarded_for - $remote_user [$time_local] ..') or Apache's ('%v %h %l %u %t ..'). After the
    /// name of a collector: syslog, docker, compose or cri, as in docker:json [default: common or combined]
    #[arg(long, help_heading = HEADING, value_name = "FORMAT", requires = "access_log")]
    pub(crate) log_format: Option<LogFormat>,
    /// Field of a request to use as the key: remote_addr (the key of the client in the web layer), path, uri, user, method,
    /// status, user_agent, referer, host, or any field of the format as it is, such as '$http_x_api_key' or '%{X-Api-Key}i'
    #[arg(long, help_heading = HEADING, value_name = "FIELD", requires = "access_log", default_value = "remote_addr")]
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

const HEADING: &str = "The access log";

impl LogOptions {
    /// The format, and the field that is the key.
    pub(crate) fn read(&self) -> Result<(LogFormat, LogKey), CliError> {
        let format = self.log_format.clone().unwrap_or_default();
        let key = LogKey::new(&self.key, &format, &self.client)?;
        Ok((format, key))
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { log_format: None, key: "remote_addr".to_owned(), client: ClientArgs::default() }
    }
}

/// How the addresses of an access log become keys. The defaults are those of `ClientAddress`.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct ClientArgs {
    /// Networks of your own proxies, such as 10.0.0.0/8,192.0.2.7, as in the web layer: a request from one of them is the
    /// client's that the header of --trusted-header reports, which must be a field of the log [default: none]
    #[arg(long, help_heading = HEADING, value_name = "NETWORKS", requires = "access_log", value_parser = networks)]
    trusted_proxies: Option<String>,
    /// Header in which the proxies report the client's address
    #[arg(long, help_heading = HEADING, value_name = "NAME", requires = "access_log", default_value = "x-forwarded-for")]
    trusted_header: HeaderName,
    /// Prefix length, in bits, of an IPv6 client's key
    #[arg(long, help_heading = HEADING, value_name = "BITS", requires = "access_log", default_value = "64",
          value_parser = clap::value_parser!(u8).range(0..=128))]
    ipv6_prefix: u8,
    /// Prefix length, in bits, of an IPv4 client's key
    #[arg(long, help_heading = HEADING, value_name = "BITS", requires = "access_log", default_value = "32",
          value_parser = clap::value_parser!(u8).range(0..=32))]
    ipv4_prefix: u8,
}

/// Stands for the peer in logs that have only what the last proxy reports. No client can have this address.
const UNKNOWN_PEER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl Default for ClientArgs {
    fn default() -> Self {
        let header = HeaderName::from_static("x-forwarded-for");
        Self { trusted_proxies: None, trusted_header: header, ipv6_prefix: 64, ipv4_prefix: 32 }
    }
}

impl ClientArgs {
    pub(super) const fn has_proxies(&self) -> bool {
        self.trusted_proxies.is_some()
    }
}

/// Whether the text is a list of networks.
fn networks(text: &str) -> Result<String, InvalidNetworks> {
    text.parse::<TrustedProxies>().map(|_| text.to_owned())
}

/// Makes keys of clients.
#[derive(Clone, Debug)]
pub(crate) struct ClientKeys {
    client: ClientAddress,
    header: HeaderName,
    has_proxies: bool,
}

impl ClientKeys {
    pub(super) fn new(args: &ClientArgs) -> Result<Self, InvalidNetworks> {
        let trusted = args.trusted_proxies.as_deref().unwrap_or_default();
        let proxies: TrustedProxies = format!("{trusted},{UNKNOWN_PEER}").parse()?;
        let client = ClientAddress::behind(proxies.with_header(args.trusted_header.clone()));
        Ok(Self {
            client: client.ipv6_prefix(args.ipv6_prefix).ipv4_prefix(args.ipv4_prefix),
            header: args.trusted_header.clone(),
            has_proxies: !trusted.trim().is_empty(),
        })
    }

    /// Whether requests of trusted proxies are their clients'.
    pub(super) const fn has_proxies(&self) -> bool {
        self.has_proxies
    }

    /// The name of the field with the header of the proxies.
    pub(super) fn header_field(&self) -> String {
        format!("http_{}", self.header.as_str().replace('-', "_"))
    }

    /// The key of a request. `peer`: the address of the peer, if the log has it. `reported`: the header of the proxies, if
    /// the log has it. Both are empty where the server had none.
    pub(super) fn key(&self, peer: Option<&str>, reported: Option<&str>) -> Result<String, String> {
        let peer = match peer {
            Some(text) => {
                let address = address(text).ok_or_else(|| {
                    format!(
                        "\"{text}\" is no address; if this is what to limit by, --key '$remote_addr' takes it as it is"
                    )
                })?;
                if !self.has_proxies {
                    return Ok(self.client.key_of(address).as_str().to_owned());
                }
                address
            }
            None => UNKNOWN_PEER,
        };
        let reported = reported.unwrap_or_default();
        if peer == UNKNOWN_PEER && reported.is_empty() {
            return Ok(String::new());
        }
        if !self.has_proxies && reported.contains(',') {
            return Err(format!(
                "\"{reported}\" is a list of addresses: give the networks of your proxies, such as --trusted-proxies 10.0.0.0/8; \
                 the client is the last address that is none of theirs"
            ));
        }
        let request = request(peer, &self.header, reported).ok_or_else(|| format!("\"{reported}\" is no address"))?;
        match self.client.key(&request) {
            Ok(key) => Ok(key.map(|key| key.as_str().to_owned()).unwrap_or_default()),
            Err(_) => Err(format!("\"{reported}\" is no address")),
        }
    }

    /// The key of a client with this address. Any other text is a key as it is.
    pub(super) fn named(&self, text: &str) -> String {
        address(text).map_or_else(|| text.to_owned(), |address| self.client.key_of(address).as_str().to_owned())
    }
}

/// Reads an address in any form that the library reads, such as with a port.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let is_single = !text.is_empty() && !text.contains([',', ' ']);
    let header = HeaderName::from_static("x-forwarded-for");
    let request = is_single.then(|| request(UNKNOWN_PEER, &header, text)).flatten()?;
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

    fn keys(proxies: &str) -> ClientKeys {
        let trusted_proxies = Some(proxies.to_owned()).filter(|text| !text.is_empty());
        ClientKeys::new(&ClientArgs { trusted_proxies, ..ClientArgs::default() }).unwrap()
    }

    #[test]
    fn a_peer_has_the_key_of_the_web_layer() {
        for (peer, key) in [
            ("203.0.113.7", "203.0.113.7"),
            ("203.0.113.7:4711", "203.0.113.7"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("2001:db8::1", "2001:db8::/64"),
            ("[2001:DB8::1]:443", "2001:db8::/64"),
            ("fe80::1%eth0", "fe80::/64"),
        ] {
            assert_eq!(keys("").key(Some(peer), None).as_deref(), Ok(key), "{peer}");
        }
        for peer in ["", "example.com:80", "Dec", "unix:", "203.0.113.1, 10.0.0.1", "203.0.113.1,"] {
            assert!(keys("").key(Some(peer), None).is_err(), "{peer}");
        }
        let wide = ClientKeys::new(&ClientArgs { ipv6_prefix: 48, ipv4_prefix: 24, ..ClientArgs::default() }).unwrap();
        assert_eq!(wide.key(Some("2001:db8::1"), None).as_deref(), Ok("2001:db8::/48"));
        assert_eq!(wide.key(Some("203.0.113.7"), None).as_deref(), Ok("203.0.113.0/24"));
    }

    #[test]
    fn a_request_of_a_trusted_proxy_is_its_clients() {
        let keys = keys("10.0.0.0/8");
        for (peer, reported, key) in [
            (Some("10.0.0.1"), "203.0.113.7", "203.0.113.7"),
            (Some("10.0.0.1"), "198.51.100.9, 203.0.113.7, 10.0.0.2", "203.0.113.7"),
            (Some("10.0.0.1"), "2001:db8::1", "2001:db8::/64"),
            (Some("10.0.0.1"), "unknown", "unreadable"),
            (Some("10.0.0.1"), "", "10.0.0.1"),
            (Some("192.0.2.1"), "203.0.113.7", "192.0.2.1"),
            (None, "203.0.113.7", "203.0.113.7"),
            (None, "198.51.100.9, 203.0.113.7, 10.0.0.2", "203.0.113.7"),
            (None, "", ""),
        ] {
            assert_eq!(keys.key(peer, Some(reported)).as_deref(), Ok(key), "{peer:?} {reported}");
        }
    }

    #[test]
    fn a_list_of_addresses_needs_the_networks_of_the_proxies() {
        assert_eq!(keys("").key(None, Some("203.0.113.7")).as_deref(), Ok("203.0.113.7"));
        let reason = keys("").key(None, Some("203.0.113.7, 10.0.0.1")).unwrap_err();
        assert!(reason.contains("--trusted-proxies"), "{reason}");
    }
}
