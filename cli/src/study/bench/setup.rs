//! The arguments of `bench`, and the limits and keys that it measures.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::database::Running;
use crate::error::{CliError, Result};
use crate::output::Progress;
use crate::text::many;
use pg_limiter::{Durability, Isolation, Item, Limit, Limiter, LimiterConfig, Limits};

/// How much longer than planned the measurements may take. Soon after that, the rows of a killed run are idle.
const OVERTIME: Duration = Duration::from_secs(15);
const TO_CLEAR: Duration = Duration::from_secs(10);

/// The limits that are measured. Their names are random, so their rows belong to this run only.
pub(super) struct BenchSetup {
    /// The name of a limit that never denies. Its rows are idle immediately.
    open: String,
    /// The name of a limit whose balance stays negative for the time `owed`, which is longer than all measurements take.
    owing: String,
    owed: Duration,
    pub(super) limiters: Vec<(&'static str, Limiter)>,
    pub(super) clearing: Limiter,
}

impl BenchSetup {
    /// Prepares the limiters. This writes nothing, but verifies that rows can be removed again.
    pub(super) async fn open(running: &Running, args: &BenchArgs) -> Result<Self> {
        let pool = running.ready_pool(u32::from(args.lanes) + 1).await?;
        // A random name cannot collide with an existing limit.
        let random = RandomState::new().hash_one(std::process::id());
        let [open, owing] = ["open", "owing"].map(|what| format!("pg-limiter bench {random:016x} {what}"));
        let mut config = LimiterConfig::default();
        config.schema = running.schema.clone();
        config.durability = if args.durability == "relaxed" { Durability::Relaxed } else { Durability::Full };
        config.lanes = args.lanes.into();
        let second = Duration::from_secs(1);
        let limits = Limits::new().define(&open, Limit::token_bucket(1e12, second)).map_err(CliError::usage)?;
        let limits = limits.define(&owing, Limit::token_bucket(1, second)).map_err(CliError::usage)?;
        let limiter = |config| Limiter::with_config(pool.clone(), limits.clone(), config);
        let with = |(name, isolation)| {
            let mut config = config.clone();
            config.isolation = isolation;
            ["both", name].contains(&args.isolation.as_str()).then(|| (name, limiter(config)))
        };
        let levels = [("serializable", Isolation::Serializable), ("read-committed", Isolation::ReadCommitted)];
        let limiters: Vec<_> = levels.into_iter().filter_map(with).collect();
        let owed = limiters.iter().fold(OVERTIME, |owed, _| owed + args.seconds);
        config.isolation = Isolation::ReadCommitted;
        config.retry.deadline = TO_CLEAR;
        let clearing = limiter(config);
        let setup = Self { open, owing, owed, limiters, clearing };
        setup.forget().await?;
        Ok(setup)
    }

    /// Returns an item for each key of this work, after setting their balances up for it.
    pub(super) async fn items(&self, work: &Work) -> Result<Vec<Item>> {
        let is_denied = work.name == DENIED;
        let limit: Arc<str> = if is_denied { &*self.owing } else { &*self.open }.into();
        // Each kind of work has its own keys.
        let item = |nth: usize| Item::new(Arc::clone(&limit), format!("{} {nth}", work.name));
        let items: Vec<Item> = (0..work.keys).map(item).collect();
        if is_denied {
            self.clearing.reset_all_keys(&self.owing).await?;
            for item in items.iter().cloned() {
                self.clearing.charge(item.count(self.owed.as_secs_f64())).await?;
            }
        }
        Ok(items)
    }

    /// Waits for calls in flight, and removes every row.
    pub(super) async fn clear(&self) -> Result<()> {
        let _progress = Progress::of("removing the rows");
        for (_, limiter) in &self.limiters {
            limiter.close().await;
        }
        let forgotten = self.forget().await;
        self.clearing.close().await;
        self.clearing.pool().close().await;
        forgotten.map_err(|error| CliError::failed(format!("{error}\n{}", self.left_behind())))
    }

    pub(super) fn left_behind(&self) -> String {
        let Self { open, owing, .. } = self;
        format!(
            "rows of the limits \"{open}\" and \"{owing}\" may remain; within two minutes they are idle, and `prune` removes them"
        )
    }

    async fn forget(&self) -> Result<()> {
        for name in [&self.open, &self.owing] {
            self.clearing.reset_all_keys(name).await?;
        }
        Ok(())
    }
}

/// The calls of one measurement.
#[derive(Clone, Serialize)]
pub(super) struct Work {
    #[serde(rename = "work")]
    pub(super) name: &'static str,
    pub(super) callers: u32,
    pub(super) keys: usize,
    #[serde(skip)]
    pub(super) title: String,
}

const DENIED: &str = "all-denied";

impl Work {
    /// All measurements with so many callers.
    pub(super) fn all(callers: u32) -> [Self; 4] {
        let work = |name, callers, keys, title| Self { name, callers, keys, title };
        let many = many(callers.into(), "caller");
        [
            work("lone-caller", 1, 1, "a lone caller".to_owned()),
            work("one-key", callers, 1, format!("{many}, one key")),
            work("many-keys", callers, 10_000, format!("{many}, 10,000 keys")),
            work(DENIED, callers, 1, format!("{many}, all denied")),
        ]
    }
}

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
    #[arg(long, value_name = "N", default_value_t = LimiterConfig::default().lanes as u16, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(super) lanes: u16,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// The longest measurement. It bounds the time until the rows of a killed run are idle.
const LONGEST: Duration = Duration::from_secs(30);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let is_valid = |seconds: &Duration| !seconds.is_zero() && *seconds <= LONGEST;
    seconds.filter(is_valid).ok_or_else(|| "must be a number above 0 and at most 30".to_owned())
}
