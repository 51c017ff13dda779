use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::length::parse_length;
use pg_limiter::{Durability, Isolation, LimiterConfig};

pub(crate) const BENCH_EXIT_CODES: &str = "\
Exit codes:
  0  done; of --soak: no violation, and nothing grows
  1  of --soak: there was a violation, or memory or a table grows
  2  a mistake in the arguments
  3  the database is unavailable, lacks the schema, or anything else failed; or it was interrupted

--soak asks in all ways that there are: over connections of the limiter's own and of a pool, SERIALIZABLE and READ
COMMITTED, one limit and groups, shards, reservations, idempotency keys, in transactions that commit or roll back, in units
of work, with futures that are dropped, and on keys that are used once, with `prune` every 3 seconds (which also removes
idle rows of other limits, as it always does). It uses limits, keys and a table of its own, and up to about 60 connections;
nothing of it is left, unless the process is killed: then what is named `pg-limiter soak ..` is to be removed. Meanwhile
its own sessions, and no others, are ended with pg_terminate_backend and pg_cancel_backend, rows are held for up to a
second, and time-outs strike; where the role may not do one of these, it says so and goes on. Every 10 seconds (or a 20th
of the time) it prints a line. In the end, there must be:
  no violation   Books are kept besides: admitted <= spent <= admitted + of unknown outcome; never more than the capacity;
                 the same of all members of a group; as many rows of units of work as tokens; one token for each
                 idempotency key, and the same answer to all who bring it; of limits that refill no more than has flowed
                 in, and of a sliding window no more than its rate in any period less one of its parts (the part that is
                 leaving counts by its share, so a whole period may hold more). An error of a kind that faults do not
                 explain is a violation, too.
  nothing grows  The median of the last quarter, of the memory of this process and of the tables with their indexes, is at
                 most 1.2 times that of the second quarter plus 8 MiB. Not judged in less than a minute.

Without --database-url and DATABASE_URL, a private PostgreSQL server is started for this run only.";

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Instead of measuring, ask in all ways for so long ("10m"), with faults on, and show that nothing grows and every
    /// count is right
    #[arg(long, value_name = "TIME", value_parser = soak_time, conflicts_with_all = ["seconds", "isolation"])]
    pub(super) soak: Option<Duration>,
    /// With --soak: no sessions or statements are ended, no rows held, no time-outs set
    #[arg(long, requires = "soak")]
    pub(super) no_faults: bool,
    /// How long each measurement takes: 5 of them, or 9 with both isolation levels
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, allow_negative_numbers = true)]
    pub(super) seconds: Duration,
    /// How many callers ask at the same time (with --soak: about so many, shared out among all kinds of work)
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) callers: u32,
    /// The isolation level of the limiter's transactions
    #[arg(long, value_enum, default_value_t = IsolationChoice::Both)]
    isolation: IsolationChoice,
    /// full: a decision waits for the disk, if the server is set up so; relaxed: it does not
    #[arg(long, value_enum, default_value_t = DurabilityChoice::Full)]
    pub(super) durability: DurabilityChoice,
    /// How many batches may be on their way at once, each over a connection of its own
    #[arg(long, value_name = "N", default_value_t = lanes(), value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(super) lanes: u16,
    /// Print one JSON object; with --soak one for each line, and one with the summary
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

/// A week.
const LONGEST_SOAK: Duration = Duration::from_secs(7 * 86_400);

fn soak_time(text: &str) -> Result<Duration, String> {
    let time = parse_length(text)?;
    if !(Duration::from_secs(1)..=LONGEST_SOAK).contains(&time) {
        return Err("it is not between 1s and 7d".to_owned());
    }
    Ok(time)
}

/// Rows that a killed run has left are idle soon after this.
const LONGEST: Duration = Duration::from_secs(30);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|seconds| !seconds.is_zero() && *seconds <= LONGEST)
        .ok_or_else(|| "it is not a number above 0 and up to 30".to_owned())
}
