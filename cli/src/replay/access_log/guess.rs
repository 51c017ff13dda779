//! Finds the format of a line that has another one than was given.

use std::str::FromStr;
use std::sync::LazyLock;

use crate::replay::access_log::LogFormat;
use crate::replay::access_log::client_keys::address;
use crate::replay::access_log::prefix::Prefix;

const BEHIND_PROXY: &str = "$http_x_forwarded_for - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";
const BEHIND_PROXY_COMMON: &str =
    "$http_x_forwarded_for - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
const OF_HOST_NAME: &str = "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\"";
const OF_HOST_NAME_COMMON: &str = "%h %l %u %t \"%r\" %>s %b";

/// The formats of lines that begin with the name of a host.
static OF_NAMES: LazyLock<Vec<LogFormat>> = LazyLock::new(|| {
    [OF_HOST_NAME, OF_HOST_NAME_COMMON].into_iter().filter_map(|text| LogFormat::from_str(text).ok()).collect()
});

/// The formats after the name of a collector.
const LAYOUTS: [&str; 4] = ["vhost", BEHIND_PROXY, BEHIND_PROXY_COMMON, "json"];

/// The formats to try, the most usual ones first.
static KNOWN: LazyLock<Vec<LogFormat>> = LazyLock::new(|| {
    let plain = ["combined", "common"].into_iter().chain(LAYOUTS).map(str::to_owned);
    let collected = Prefix::NAMED.iter().flat_map(|(name, _)| {
        let layouts = LAYOUTS.iter().map(move |layout| format!("{name}:{layout}"));
        std::iter::once((*name).to_owned()).chain(layouts)
    });
    plain.chain(collected).filter_map(|text| LogFormat::from_str(&text).ok()).collect()
});

/// The option that reads this line, which does not have the format `given`, if the whole line has a known one.
pub(super) fn other_format(line: &str, given: &str) -> Option<String> {
    let text = &KNOWN.iter().find(|format| format.text != given && reads(format, line))?.text;
    let text = if text.contains('$') { format!("'{text}'") } else { text.clone() };
    Some(format!("--log-format {text}{}", proxies(line)))
}

/// The option for a line that begins with the name of a host, as a server writes it that looks names up.
pub(super) fn of_host_name(line: &str) -> Option<String> {
    let name = line.split(' ').next().filter(|name| is_host_name(name))?;
    let is_whole = |format: &&LogFormat| {
        let Ok(line) = format.read(line) else { return false };
        let [logname, user] = ["remote_logname", "user"].map(|name| line.field(name).unwrap_or_default().into_owned());
        address(&logname).is_none() && !user.contains(' ')
    };
    let format = &OF_NAMES.iter().find(is_whole)?.text;
    Some(format!("--log-format '{format}' --key '%h' (if \"{name}\" is the name of the client)"))
}

fn reads(format: &LogFormat, line: &str) -> bool {
    let Ok(read) = format.read(line) else { return false };
    let is_address = |field: &str| read.own(field).is_some_and(|text| address(&text).is_some());
    // Two addresses: the first may be a proxy's.
    if is_address("host") && read.own("server_port").is_none() {
        return false;
    }
    let is_client = |text: &str| address(text).is_some() || text == "unknown";
    match read.own("http_x_forwarded_for") {
        Some(list) if format.text.contains("$http_x_forwarded_for") => {
            list.split(',').all(|part| is_client(part.trim()))
        }
        // A message of an application has a time, but no client.
        _ => read.field("remote_addr").is_some_and(|client| address(&client).is_some()),
    }
}

/// The other option that a list of addresses needs.
fn proxies(line: &str) -> &'static str {
    let before_time = line.split(" [").next().unwrap_or_default();
    if before_time.contains(',') { " --trusted-proxies NETWORKS_OF_YOUR_PROXIES" } else { "" }
}

fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let last = text.rsplit('.').next().unwrap_or_default();
    text.split('.').all(is_label) && last.chars().any(|c| c.is_ascii_alphabetic())
}
