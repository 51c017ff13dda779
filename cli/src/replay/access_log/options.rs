use clap::Args;

use crate::error::CliError;
use crate::replay::access_log::client_keys::ClientArgs;
use crate::replay::access_log::{LogFormat, LogKey};

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
