//! Checks the flags of a YugabyteDB tserver. They are read over HTTP, from its web page `/varz`: SQL does not show them.

use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::doctor::report::Finding;

const PORT: u16 = 9000;
const PATIENCE: Duration = Duration::from_secs(5);
/// The most bytes to read. A page has some hundred kilobytes.
const LONGEST: u64 = 8 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    host: String,
    port: u16,
}

impl Address {
    pub(super) fn of_host(host: &str) -> Self {
        Self { host: host.trim_start_matches('[').trim_end_matches(']').to_owned(), port: PORT }
    }

    pub(super) fn page(&self) -> String {
        format!("http://{}/varz?raw", self.authority())
    }

    fn authority(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "not HOST:PORT, such as 10.0.0.1:9000, [::1]:9000 or yb-1.example.org";
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if host.starts_with('[') == host.ends_with(']') && !port.ends_with(']') => (host, port),
            _ if text.ends_with(']') || !text.contains(':') => (text, "9000"),
            _ => return Err(WRONG),
        };
        let port = port.parse().map_err(|_| WRONG)?;
        let bare = Self::of_host(host).host;
        let unbracketed = bare.len() == host.len();
        if bare.is_empty() || (unbracketed && bare.contains(':')) || bare.contains(['/', ' ', '@', '\r', '\n']) {
            return Err(WRONG);
        }
        Ok(Self { host: bare, port })
    }
}

/// Values by name.
#[derive(Debug, Default)]
pub(super) struct Flags(HashMap<String, String>);

impl Flags {
    /// Parses lines of `--name=value`. Continuation lines of long values are skipped: no check needs them.
    pub(super) fn parse(page: &str) -> Self {
        let flag = |line: &str| {
            let (name, value) = line.trim_end().strip_prefix("--")?.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        Self(page.lines().filter_map(flag).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

pub(super) async fn flags(address: &Address) -> Result<Flags, Error> {
    flags_within(PATIENCE, address).await
}

async fn flags_within(patience: Duration, address: &Address) -> Result<Flags, Error> {
    match tokio::time::timeout(patience, page(address)).await {
        Ok(page) => {
            let flags = Flags::parse(&page?);
            if flags.0.is_empty() { Err(other("the page shows no flags")) } else { Ok(flags) }
        }
        Err(_) => Err(Error::new(ErrorKind::TimedOut, format!("no answer within {patience:?}"))),
    }
}

/// Fetches the page. With HTTP/1.0 the response ends with the connection, and is not chunked.
async fn page(address: &Address) -> Result<String, Error> {
    let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    let request = format!(
        "GET /varz?raw HTTP/1.0\r\nHost: {}\r\nUser-Agent: pg-limiter\r\nConnection: close\r\n\r\n",
        address.authority()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.lines().next().unwrap_or_default();
    let mut words = status.split_whitespace();
    match (words.next(), words.next()) {
        (Some(protocol), Some("200")) if protocol.starts_with("HTTP/") => {}
        (Some(protocol), Some(_)) if protocol.starts_with("HTTP/") => {
            return Err(other(format!("the server returned {status}")));
        }
        _ => return Err(other("the server does not speak HTTP")),
    }
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).ok_or_else(|| other("the response is incomplete"))
}

fn other(message: impl Into<String>) -> Error {
    Error::other(message.into())
}

const SKIP_PREFIX_LOCKS: &str = "skip_prefix_locks";
const READ_COMMITTED: &str = "yb_enable_read_committed_isolation";
const WAIT_QUEUES: &str = "enable_wait_queues";
const ADVISORY_LOCKS: &str = "ysql_yb_enable_advisory_locks";
const CLOCK_SKEW: &str = "max_clock_skew_usec";
/// The default of YugabyteDB, in microseconds.
const USUAL_SKEW: u64 = 500_000;

/// Returns one finding for each flag. If they cannot be read, returns one that explains how to check them.
pub(super) async fn check(address: &Address) -> Vec<(&'static str, Finding)> {
    match flags(address).await {
        Ok(flags) => judge(&flags),
        Err(error) => vec![("tserver flags", unseen(address, &error))],
    }
}

fn unseen(address: &Address, error: &std::io::Error) -> Finding {
    let page = address.page();
    Finding::note(format!("not checked: {page} cannot be read: {error}"))
        .advise("Give the address of a tserver with --tserver HOST:PORT, or check each tserver yourself:")
        .advise(format!("curl -s '{page}' | grep -E '{SKIP_PREFIX_LOCKS}|{READ_COMMITTED}|{WAIT_QUEUES}'"))
        .advise("With Isolation::Serializable, skip_prefix_locks must be false (new clusters since 2025.2 default to true).")
        .advise("With Isolation::ReadCommitted, yb_enable_read_committed_isolation must be true.")
}

fn judge(flags: &Flags) -> Vec<(&'static str, Finding)> {
    vec![
        (SKIP_PREFIX_LOCKS, skip_prefix_locks(flags.get(SKIP_PREFIX_LOCKS))),
        (READ_COMMITTED, read_committed(flags.get(READ_COMMITTED))),
        (WAIT_QUEUES, wait_queues(flags.get(WAIT_QUEUES))),
        (ADVISORY_LOCKS, advisory_locks(flags.get(ADVISORY_LOCKS))),
        (CLOCK_SKEW, clock_skew(flags.get(CLOCK_SKEW))),
    ]
}

fn skip_prefix_locks(value: Option<&str>) -> Finding {
    match value {
        Some("false") => Finding::ok("false, as SERIALIZABLE transactions require"),
        None => Finding::ok("this release does not have the flag: SERIALIZABLE transactions lock what they should"),
        Some(value) => Finding::warning(format!("{value}: SERIALIZABLE transactions lock far more than their row"))
            .advise("Set the tserver flag skip_prefix_locks=false on every tserver, or set LimiterConfig::isolation to")
            .advise("Isolation::ReadCommitted (with the tserver flag yb_enable_read_committed_isolation=true)."),
    }
}

fn read_committed(value: Option<&str>) -> Finding {
    match value {
        Some("true") => Finding::ok("true: READ COMMITTED is in force"),
        value => Finding::note(format!("{}: READ COMMITTED is snapshot isolation", value.unwrap_or("not set")))
            .advise("To use Isolation::ReadCommitted, set it to true on every tserver."),
    }
}

fn wait_queues(value: Option<&str>) -> Finding {
    match value {
        Some("false") => Finding::warning("false: transactions that need the same row fail instead of waiting")
            .advise("Set it to true on every tserver; it is the default since 2024.1."),
        _ => Finding::ok("true: transactions that need the same row wait"),
    }
}

fn advisory_locks(value: Option<&str>) -> Finding {
    match value {
        Some("true") => Finding::ok("true: an advisory lock serializes concurrent migrations"),
        _ => Finding::note("advisory locks are not available: concurrent migrations are retried until they succeed"),
    }
}

fn clock_skew(value: Option<&str>) -> Finding {
    let micros = value.and_then(|value| value.parse::<u64>().ok());
    let Some(micros) = micros else {
        return Finding::note("unknown");
    };
    let found =
        format!("the clocks of the nodes may differ by up to {} ms, and limits may be off by as much", micros / 1000);
    if micros <= USUAL_SKEW {
        return Finding::ok(found);
    }
    Finding::note(found).advise("Synchronize the clocks with NTP, and set the flag back to its default of 500000.")
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::doctor::report::State::{self, Note, Ok, Warning};

    /// A server that answers one request with these bytes. The task returns the request.
    async fn server(answer: &'static str) -> (Address, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(request).unwrap()
        });
        (Address { host: "127.0.0.1".to_owned(), port }, served)
    }

    #[tokio::test]
    async fn flags_are_read_from_the_page() {
        let (address, served) = server(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n--skip_prefix_locks=true\n\
             --rpc_bind_addresses=127.0.0.1:9100\n--ysql_pg_conf_csv=\n no flag=1\n--max_clock_skew_usec=500000\r\n",
        )
        .await;
        let flags = flags(&address).await.unwrap();
        assert!(served.await.unwrap().starts_with("GET /varz?raw HTTP/1.0\r\nHost: 127.0.0.1:"));
        assert_eq!(flags.get("skip_prefix_locks"), Some("true"));
        assert_eq!(flags.get("ysql_pg_conf_csv"), Some(""));
        assert_eq!(flags.get("max_clock_skew_usec"), Some("500000"));
        assert_eq!([flags.get("no flag"), flags.get("enable_wait_queues")], [None, None]);
    }

    #[tokio::test]
    async fn a_page_without_flags_is_an_error() {
        for (answer, message) in [
            ("HTTP/1.1 404 Not Found\r\n\r\nno", "the server returned HTTP/1.1 404 Not Found"),
            ("SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
            ("", "does not speak HTTP"),
            ("HTTP/1.1 200 OK\r\n", "is incomplete"),
            ("HTTP/1.1 200 OK\r\n\r\n<html>hello</html>", "shows no flags"),
        ] {
            let (address, _served) = server(answer).await;
            let error = flags(&address).await.unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        // No process listens on a port that was just released.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = flags(&Address { host: "127.0.0.1".to_owned(), port }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_request_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = Address { host: "127.0.0.1".to_owned(), port };
        let error = flags_within(Duration::from_millis(20), &address).await.unwrap_err();
        assert_eq!(error.to_string(), "no answer within 20ms");
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for (text, page) in [
            ("yb-1.example.org", "http://yb-1.example.org:9000/varz?raw"),
            ("10.0.0.1:9001", "http://10.0.0.1:9001/varz?raw"),
            ("[::1]:9001", "http://[::1]:9001/varz?raw"),
            ("[::1]", "http://[::1]:9000/varz?raw"),
        ] {
            assert_eq!(text.parse::<Address>().map(|address| address.page()), Result::Ok(page.to_owned()), "{text}");
        }
        for text in ["", ":9000", "::1", "::1:9000", "a:b", "http://a:9000", "a:70000", "[::1:9000", "a:9000/varz"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert_eq!(Address::of_host("::1").page(), "http://[::1]:9000/varz?raw");
    }

    fn states(page: &str) -> Vec<State> {
        judge(&Flags::parse(page)).iter().map(|(_, finding)| finding.state).collect()
    }

    #[test]
    fn each_flag_is_judged() {
        let good = "--skip_prefix_locks=false\n--yb_enable_read_committed_isolation=true\n--enable_wait_queues=true\n\
                    --ysql_yb_enable_advisory_locks=true\n--max_clock_skew_usec=500000\n";
        assert_eq!(states(good), [Ok, Ok, Ok, Ok, Ok]);
        let bad = "--skip_prefix_locks=true\n--yb_enable_read_committed_isolation=false\n--enable_wait_queues=false\n\
                   --ysql_yb_enable_advisory_locks=false\n--max_clock_skew_usec=5000000\n";
        assert_eq!(states(bad), [Warning, Note, Warning, Note, Note]);
        assert_eq!(states("--an_old_release=1\n"), [Ok, Note, Ok, Note, Note]);
        let findings = judge(&Flags::parse(bad));
        assert!(findings[0].1.advice[0].contains("skip_prefix_locks=false"), "{findings:?}");
        assert!(findings[0].1.advice[0].contains("LimiterConfig::isolation"), "{findings:?}");
        assert!(findings[4].1.found.contains("5000 ms"), "{findings:?}");
    }

    #[test]
    fn if_the_flags_cannot_be_read_the_advice_shows_the_command() {
        let address = Address::of_host("yb-1");
        let finding = unseen(&address, &std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        assert_eq!(finding.state, Note);
        assert!(finding.found.contains("http://yb-1:9000/varz?raw cannot be read: connection refused"), "{finding:?}");
        assert!(finding.advice[1].starts_with("curl -s 'http://yb-1:9000/varz?raw' | grep -E 'skip_prefix_locks|"));
    }
}
