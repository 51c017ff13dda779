use std::time::Duration;

use clap::Args;

use pg_limiter::{Durability, Isolation, LimiterConfig};

pub(crate) const BENCH_EXIT_CODES: &str = "\
Exit codes:
  0  done
  2  the arguments are invalid
  3  the database is unavailable or lacks the schema, another error occurred, or the run was interrupted

Without --database-url and DATABASE_URL, the run starts a private PostgreSQL server, and removes it at the end.";

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// The length of each measurement. There are 5, or 9 with both isolation levels
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, allow_negative_numbers = true)]
    pub(super) seconds: Duration,
    /// The number of concurrent callers
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) callers: u32,
    /// The isolation level of the limiter's transactions
    #[arg(long, default_value = "both", value_parser = ["serializable", "read-committed", "both"])]
    isolation: String,
    /// full: a commit waits for the disk, if the server is configured so; relaxed: it does not
    #[arg(long, default_value = "full", value_parser = ["full", "relaxed"])]
    pub(super) durability: String,
    /// The number of batches that may run concurrently, each over its own connection
    #[arg(long, value_name = "N", default_value_t = lanes(), value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(super) lanes: u16,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

impl BenchArgs {
    /// The isolation levels to measure, with their names.
    pub(super) fn isolations(&self) -> impl Iterator<Item = (&'static str, Isolation)> {
        let all = [("serializable", Isolation::Serializable), ("read-committed", Isolation::ReadCommitted)];
        all.into_iter().filter(|(name, _)| ["both", name].contains(&self.isolation.as_str()))
    }

    pub(super) fn durability(&self) -> Durability {
        if self.durability == "relaxed" { Durability::Relaxed } else { Durability::Full }
    }
}

fn lanes() -> u16 {
    u16::try_from(LimiterConfig::default().lanes).unwrap_or(1)
}

/// The longest measurement. It bounds the time until the rows of a killed run are idle.
const LONGEST: Duration = Duration::from_secs(30);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|seconds| !seconds.is_zero() && *seconds <= LONGEST)
        .ok_or_else(|| "must be a number above 0 and at most 30".to_owned())
}
