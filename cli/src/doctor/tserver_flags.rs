//! Checks the flags of a YugabyteDB tserver.

use crate::doctor::finding::Finding;
use crate::doctor::tserver::{Address, Flags, flags};

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
    use super::*;
    use crate::doctor::finding::State::{self, Note, Ok, Warning};

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
