//! Checks the flags of a YugabyteDB tserver. They are read over HTTP, from its web page `/varz`: SQL does not show them.

use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::operate::doctor::{Finding, Findings};

const PATIENCE: Duration = Duration::from_secs(5);
/// The most bytes to read. A page has some hundred kilobytes.
const LONGEST: u64 = 8 << 20;

/// The address of a tserver on this host: `10.0.0.1:9000`, `[::1]:9000`.
pub(super) fn address_on(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.contains(':') { format!("[{host}]:9000") } else { format!("{host}:9000") }
}

pub(super) fn parse_address(text: &str) -> Result<String, &'static str> {
    let authority = text.parse::<http::uri::Authority>().ok().filter(|authority| !authority.host().is_empty());
    let parts = authority.as_ref().map(|authority| (authority.host(), authority.port_u16()));
    match parts {
        Some((host, None)) if host == text => Ok(format!("{host}:9000")),
        Some((host, Some(port))) if format!("{host}:{port}") == text => Ok(text.to_owned()),
        _ => Err("not HOST:PORT, such as 10.0.0.1:9000, [::1]:9000 or yb-1.example.org"),
    }
}

type Flags = HashMap<String, String>;

async fn flags(patience: Duration, address: &str) -> Result<Flags, Error> {
    let no_answer = |_| Error::new(ErrorKind::TimedOut, format!("no answer within {patience:?}"));
    parse(&tokio::time::timeout(patience, fetch(address)).await.map_err(no_answer)??)
}

/// Fetches the page. With HTTP/1.0 the response ends with the connection, and is not chunked.
async fn fetch(address: &str) -> Result<String, Error> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request =
        format!("GET /varz?raw HTTP/1.0\r\nHost: {address}\r\nUser-Agent: pg-limiter\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Reads lines of `--name=value`. Continuation lines of long values are skipped: no check needs them.
fn parse(answer: &str) -> Result<Flags, Error> {
    let status = answer.lines().next().unwrap_or_default();
    match status.strip_prefix("HTTP/").and_then(|rest| rest.split_whitespace().nth(1)) {
        Some("200") => {}
        Some(_) => return Err(Error::other(format!("the server returned {status}"))),
        None => return Err(Error::other("the server does not speak HTTP")),
    }
    let (_, page) = answer.split_once("\r\n\r\n").ok_or_else(|| Error::other("the response is incomplete"))?;
    let flag = |line: &str| {
        let (name, value) = line.trim_end().strip_prefix("--")?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    let flags: Flags = page.lines().filter_map(flag).collect();
    if flags.is_empty() { Err(Error::other("the page shows no flags")) } else { Ok(flags) }
}

const SKIP_PREFIX_LOCKS: &str = "skip_prefix_locks";
const READ_COMMITTED: &str = "yb_enable_read_committed_isolation";
const WAIT_QUEUES: &str = "enable_wait_queues";
const ADVISORY_LOCKS: &str = "ysql_yb_enable_advisory_locks";

pub(super) async fn check(address: &str) -> Findings {
    match flags(PATIENCE, address).await {
        Ok(flags) => judge(&flags),
        Err(error) => {
            let page = format!("http://{address}/varz?raw");
            let finding = Finding::note(format!("not checked: {page} cannot be read: {error}"))
                .advise("Give the address of a tserver with --tserver HOST:PORT, or check each tserver yourself:")
                .advise(format!("curl -s '{page}' | grep -E '{SKIP_PREFIX_LOCKS}|{READ_COMMITTED}|{WAIT_QUEUES}'"))
                .advise("With Isolation::Serializable, skip_prefix_locks must be false (new clusters since 2025.2 default to true).")
                .advise("With Isolation::ReadCommitted, yb_enable_read_committed_isolation must be true.");
            vec![("tserver flags", finding)]
        }
    }
}

fn judge(flags: &Flags) -> Findings {
    let names = [SKIP_PREFIX_LOCKS, READ_COMMITTED, WAIT_QUEUES, ADVISORY_LOCKS, "max_clock_skew_usec"];
    names.map(|name| (name, judge_flag(name, flags.get(name).map(String::as_str)))).into()
}

fn judge_flag(name: &str, value: Option<&str>) -> Finding {
    match (name, value) {
        (SKIP_PREFIX_LOCKS, Some("false")) => Finding::ok("false, as SERIALIZABLE transactions require"),
        (SKIP_PREFIX_LOCKS, None) => {
            Finding::ok("this release does not have the flag: SERIALIZABLE transactions lock what they should")
        }
        (SKIP_PREFIX_LOCKS, Some(value)) => {
            Finding::warning(format!("{value}: SERIALIZABLE transactions lock far more than their row"))
                .advise(
                    "Set the tserver flag skip_prefix_locks=false on every tserver, or set LimiterConfig::isolation to",
                )
                .advise("Isolation::ReadCommitted (with the tserver flag yb_enable_read_committed_isolation=true).")
        }
        (READ_COMMITTED, Some("true")) => Finding::ok("true: READ COMMITTED is in force"),
        (READ_COMMITTED, value) => {
            Finding::note(format!("{}: READ COMMITTED is snapshot isolation", value.unwrap_or("not set")))
                .advise("To use Isolation::ReadCommitted, set it to true on every tserver.")
        }
        (WAIT_QUEUES, Some("false")) => {
            Finding::warning("false: transactions that need the same row fail instead of waiting")
                .advise("Set it to true on every tserver; it is the default since 2024.1.")
        }
        (WAIT_QUEUES, _) => Finding::ok("true: transactions that need the same row wait"),
        (ADVISORY_LOCKS, Some("true")) => Finding::ok("true: an advisory lock serializes concurrent migrations"),
        (ADVISORY_LOCKS, _) => {
            Finding::note("advisory locks are not available: concurrent migrations are retried until they succeed")
        }
        (_, value) => {
            let micros = value.and_then(|value| value.parse::<u64>().ok());
            let Some(micros) = micros else { return Finding::note("unknown") };
            let most = format!("the clocks of the nodes may differ by up to {} ms", micros / 1000);
            Finding::note(format!("{most}, and limits may be off by as much"))
                .advise("Synchronize the clocks with NTP, and set the flag back to its default of 500000.")
                .ok_if(micros <= 500_000)
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::operate::doctor::State::{Note, Ok, Warning};

    #[test]
    fn flags_are_read_from_the_page() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n--skip_prefix_locks=true\n\
             --rpc_bind_addresses=127.0.0.1:9100\n--ysql_pg_conf_csv=\n no flag=1\n--max_clock_skew_usec=500000\r\n";
        let flags = parse(answer).unwrap();
        let read = ["skip_prefix_locks", "ysql_pg_conf_csv", "max_clock_skew_usec"].map(|name| &*flags[name]);
        assert_eq!(read, ["true", "", "500000"]);
        assert_eq!([flags.get("no flag"), flags.get("enable_wait_queues")], [None, None]);
    }

    #[test]
    fn a_page_without_flags_is_an_error() {
        for (answer, message) in [
            ("HTTP/1.1 404 Not Found\r\n\r\nno", "the server returned HTTP/1.1 404 Not Found"),
            ("SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
            ("", "does not speak HTTP"),
            ("HTTP/1.1 200 OK\r\n", "is incomplete"),
            ("HTTP/1.1 200 OK\r\n\r\n<html>hello</html>", "shows no flags"),
        ] {
            let error = parse(answer).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[tokio::test]
    async fn a_request_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(flags(Duration::from_millis(20), &address).await.unwrap_err().to_string(), "no answer within 20ms");
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for (text, address) in [
            ("yb-1.example.org", "yb-1.example.org:9000"),
            ("10.0.0.1:9001", "10.0.0.1:9001"),
            ("[::1]:9001", "[::1]:9001"),
            ("[::1]", "[::1]:9000"),
        ] {
            assert_eq!(parse_address(text), Result::Ok(address.to_owned()), "{text}");
        }
        for text in ["", ":9000", "::1", "::1:9000", "a:b", "http://a:9000", "a:70000", "[::1:9000", "a:9000/varz"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
        assert_eq!(address_on("::1"), "[::1]:9000");
    }

    #[test]
    fn each_flag_is_judged() {
        let judged = |page: &str| judge(&parse(&format!("HTTP/1.1 200 OK\r\n\r\n{page}")).unwrap());
        let states = |page: &str| judged(page).iter().map(|(_, finding)| finding.state).collect::<Vec<_>>();
        let good = "--skip_prefix_locks=false\n--yb_enable_read_committed_isolation=true\n--enable_wait_queues=true\n\
                    --ysql_yb_enable_advisory_locks=true\n--max_clock_skew_usec=500000\n";
        assert_eq!(states(good), [Ok, Ok, Ok, Ok, Ok]);
        let bad = "--skip_prefix_locks=true\n--yb_enable_read_committed_isolation=false\n--enable_wait_queues=false\n\
                   --ysql_yb_enable_advisory_locks=false\n--max_clock_skew_usec=5000000\n";
        assert_eq!(states(bad), [Warning, Note, Warning, Note, Note]);
        assert_eq!(states("--an_old_release=1\n"), [Ok, Note, Ok, Note, Note]);
        assert!(judged(bad)[4].1.found.contains("5000 ms"));
    }
}
