use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use sqlx::PgPool;

use crate::bench::args::BenchArgs;
use crate::bench::work::{Target, Work};
use crate::database::Running;
use crate::error::CliError;
use pg_limiter::{Isolation, Limit, Limiter, LimiterConfig, Limits, RetryPolicy};

/// How much longer than planned the measurements may take. Soon after that, the rows of a killed run are idle.
const OVERTIME: Duration = Duration::from_secs(15);
const TO_CLEAR: Duration = Duration::from_secs(10);

/// The limits that are measured. Their names are random, so their rows belong to this run only.
pub(super) struct BenchSetup {
    pool: PgPool,
    /// The name of a limit that never denies. Its rows are idle immediately.
    open: String,
    /// The name of a limit whose balance stays negative for longer than all measurements take.
    owing: String,
    /// How long the balance of `owing` stays negative.
    owed: Duration,
    /// One limiter for each isolation level.
    limiters: Vec<(Isolation, Limiter)>,
    clearing: Limiter,
}

impl BenchSetup {
    /// Prepares the limiters. This writes nothing, but verifies that rows can be removed again.
    pub(super) async fn open(running: &Running, args: &BenchArgs) -> Result<Self, CliError> {
        let pool = running.ready_pool(u32::from(args.lanes) + 1).await?;
        // A random name cannot collide with an existing limit.
        let random = RandomState::new().hash_one(std::process::id());
        let [open, owing] = ["open", "owing"].map(|what| format!("pg-limiter bench {random:016x} {what}"));
        let mut config = LimiterConfig::default();
        config.schema = running.schema().clone();
        config.durability = args.durability.into();
        config.lanes = args.lanes.into();
        let second = Duration::from_secs(1);
        let limits = Limits::new()
            .define(&open, Limit::token_bucket(1e12, second))
            .and_then(|limits| limits.define(&owing, Limit::token_bucket(1, second)))
            .map_err(CliError::usage)?;
        let limiter = |config| Limiter::with_config(pool.clone(), limits.clone(), config);
        let with = |isolation| {
            let mut config = config.clone();
            config.isolation = isolation;
            (isolation, limiter(config))
        };
        let limiters: Vec<_> = args.isolations().iter().copied().map(with).collect();
        let owed = limiters.iter().fold(OVERTIME, |owed, _| owed + args.seconds);
        config.isolation = Isolation::ReadCommitted;
        config.retry = RetryPolicy::default();
        config.retry.deadline = TO_CLEAR;
        let clearing = limiter(config);
        let setup = Self { open, owing, owed, limiters, clearing, pool };
        setup.forget().await?;
        Ok(setup)
    }

    pub(super) const fn pool(&self) -> &PgPool {
        &self.pool
    }

    pub(super) fn limiters(&self) -> &[(Isolation, Limiter)] {
        &self.limiters
    }

    /// Returns the keys for this work, after setting their balances up for it.
    pub(super) async fn target(&self, work: Work) -> Result<Target, CliError> {
        if work != Work::AllDenied {
            return Ok(Target::new(&self.open, work));
        }
        let target = Target::new(&self.owing, work);
        self.clearing.reset_all_keys(&self.owing).await?;
        for item in target.each() {
            self.clearing.charge(item.count(self.owed.as_secs_f64())).await?;
        }
        Ok(target)
    }

    /// Waits for calls in flight, and removes every row.
    pub(super) async fn clear(&self) -> Result<(), CliError> {
        for (_, limiter) in &self.limiters {
            limiter.close().await;
        }
        let forgotten = self.forget().await;
        self.clearing.close().await;
        self.pool.close().await;
        forgotten.map_err(|error| CliError::failed(format!("{error}\n{}", self.left_behind())))
    }

    /// The message to the user if the rows could not be removed.
    pub(super) fn left_behind(&self) -> String {
        let Self { open, owing, .. } = self;
        format!(
            "rows of the limits \"{open}\" and \"{owing}\" may remain; within two minutes they are idle, and `prune` removes them"
        )
    }

    async fn forget(&self) -> Result<(), CliError> {
        for name in [&self.open, &self.owing] {
            self.clearing.reset_all_keys(name).await?;
        }
        Ok(())
    }
}
