use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::length::parse_length;
use pg_limiter::{Durability, Isolation, LimiterConfig};

pub(crate) const BENCH_EXIT_CODES: &str = "\
Exit codes:
  0  done; with --soak: no violation was found, and nothing grew
  1  with --soak: a violation was found, or memory or a table grew
  2  the arguments are invalid
  3  the database is unavailable or lacks the schema, another error occurred, or the run was interrupted

--soak makes calls of every kind: over the limiter's own connections and over a pool, at SERIALIZABLE and READ COMMITTED,
on one limit and on groups, with shards, reservations and idempotency keys. Calls run in transactions that commit or roll
back, in units of work, with futures that are dropped, and on keys that are used once. `prune` runs every 3 seconds; it
also removes idle rows of other limits, as it always does.

The run has its own limits, keys and table, and uses up to about 60 connections. It removes its rows and its table at the
end. If the process is killed, remove everything whose name begins with `pg-limiter soak`.

Unless you set --no-faults, the run ends its own sessions with pg_terminate_backend, cancels its own statements with
pg_cancel_backend, locks rows for up to a second, and sets short time-outs. It touches no other sessions. If the role may
not cause a fault, the run prints a note and skips that fault.

The run prints a line every 10 seconds, or about 20 lines in all if it is shorter than 200 seconds. It passes if there is

  no violation   The run keeps its own count of the tokens, and compares it with the balances in the database:
                 - admitted <= spent <= admitted + unknown outcomes, and never more than the limit allows
                 - all limits of a group have spent the same
                 - units of work wrote as many rows as they spent tokens
                 - each idempotency key spent one token, and every call with it got the same answer
                 - a limit that refills admitted at most what it held and what was refilled
                 - a sliding window admitted at most its rate in any time of one period less one of its parts. (The oldest
                   part is weighted by how much of it remains in the window, so a whole period may admit more.)
                 An error of a kind that the faults do not explain is a violation, too.
  no growth      For the memory of this process, and for the size of each table with its indexes: the median of the last
                 quarter of the run is at most 1.2 times the median of the second quarter, plus 8 MiB. This is not judged
                 in runs of less than a minute.

Without --database-url and DATABASE_URL, the run starts a private PostgreSQL server, and removes it at the end.";

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Instead of measuring, make calls of every kind for this time ("10m"), with faults. Check that every count is right
    /// and that memory and tables do not grow
    #[arg(long, value_name = "TIME", value_parser = soak_time, conflicts_with_all = ["seconds", "isolation"])]
    pub(super) soak: Option<Duration>,
    /// With --soak: do not cause faults (ended sessions and statements, locked rows, time-outs)
    #[arg(long, requires = "soak")]
    pub(super) no_faults: bool,
    /// The length of each measurement. There are 5, or 9 with both isolation levels
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, allow_negative_numbers = true)]
    pub(super) seconds: Duration,
    /// The number of concurrent callers (with --soak: their approximate number, divided among all kinds of work)
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) callers: u32,
    /// The isolation level of the limiter's transactions
    #[arg(long, value_enum, default_value_t = IsolationChoice::Both)]
    isolation: IsolationChoice,
    /// full: a commit waits for the disk, if the server is configured so; relaxed: it does not
    #[arg(long, value_enum, default_value_t = DurabilityChoice::Full)]
    pub(super) durability: DurabilityChoice,
    /// The number of batches that may run concurrently, each over its own connection
    #[arg(long, value_name = "N", default_value_t = lanes(), value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(super) lanes: u16,
    /// Print one JSON object; with --soak, one for each line and one with the summary
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IsolationChoice {
    Serializable,
    ReadCommitted,
    Both,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DurabilityChoice {
    Full,
    Relaxed,
}

impl From<DurabilityChoice> for Durability {
    fn from(choice: DurabilityChoice) -> Self {
        match choice {
            DurabilityChoice::Full => Self::Full,
            DurabilityChoice::Relaxed => Self::Relaxed,
        }
    }
}

impl BenchArgs {
    pub(super) const fn isolations(&self) -> &'static [Isolation] {
        match self.isolation {
            IsolationChoice::Serializable => &[Isolation::Serializable],
            IsolationChoice::ReadCommitted => &[Isolation::ReadCommitted],
            IsolationChoice::Both => &[Isolation::Serializable, Isolation::ReadCommitted],
        }
    }
}

fn lanes() -> u16 {
    u16::try_from(LimiterConfig::default().lanes).unwrap_or(1)
}

/// The longest soak: a week.
const LONGEST_SOAK: Duration = Duration::from_secs(7 * 86_400);

fn soak_time(text: &str) -> Result<Duration, String> {
    let time = parse_length(text)?;
    if !(Duration::from_secs(1)..=LONGEST_SOAK).contains(&time) {
        return Err("must be between 1s and 7d".to_owned());
    }
    Ok(time)
}

/// The longest measurement. It bounds the time until the rows of a killed run are idle.
const LONGEST: Duration = Duration::from_secs(30);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|seconds| !seconds.is_zero() && *seconds <= LONGEST)
        .ok_or_else(|| "must be a number above 0 and at most 30".to_owned())
}
