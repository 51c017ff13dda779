//! The field of a request that is its key.

use clap::Args;

use crate::error::CliError;
use crate::replay::access_log::client_keys::{ClientArgs, ClientKeys};
use crate::replay::access_log::line::names;
use crate::replay::access_log::{LogFormat, LogLine, apache};

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
