//! The limits, and the limiters that decide on them.

use std::time::Duration;

use pg_limiter::{DenialMemory, Isolation, Limit, Limiter, LimiterConfig, Limits};
use sqlx::postgres::PgPoolOptions;

use crate::Failure;
use crate::names::SHARDED;

/// The tokens of a bucket that is never empty. It refills one token an hour, so that its row does not become idle (and pruned)
/// soon.
pub(crate) const PLENTY: f64 = 1e9;
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// The period of a bucket of one token: once that is taken, every call is denied.
pub(crate) const CENTURY: Duration = Duration::from_secs(36_500 * 86_400);

/// The period of the sliding log and of the sliding counters.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

pub(crate) const AMPLE: &str = "ample";
pub(crate) const SPENT: &str = "spent";
pub(crate) const SLIDING: &str = "sliding";
/// Windows of an [hour](HOUR) with [plenty](PLENTY) of tokens, so that a window rarely ends during a load.
pub(crate) const SLIDING_HOUR: &str = "sliding, an hour";
pub(crate) const FIXED_HOUR: &str = "fixed, an hour";
/// Slots of a key, more than its callers ever hold.
pub(crate) const SLOTS: &str = "slots";
pub(crate) const SLOTS_OF_A_KEY: u32 = 100;
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// The tokens of a bucket that is to be emptied.
pub(crate) const FEW: u32 = 2_000;

/// The name of the limit that is never empty, with this number of shards.
pub(crate) fn sharded(shards: u32) -> String {
    format!("sharded over {shards}")
}

/// The name of the limit with so [few](FEW) tokens that it is soon empty, with this number of shards.
pub(crate) fn sharded_few(shards: u32) -> String {
    format!("few, sharded over {shards}")
}

pub(crate) const FOUR: [&str; 4] = ["per_user", "per_org", "per_address", "per_route"];

pub(crate) fn limits() -> Result<Limits, Failure> {
    let ample = || Limit::token_bucket(1, HOUR).capacity(PLENTY);
    let mut limits = Limits::new()
        .define(AMPLE, ample())?
        .define(SPENT, Limit::token_bucket(1, CENTURY))?
        .define(SLIDING, Limit::sliding_window(PLENTY, WINDOW))?
        .define(SLIDING_HOUR, Limit::sliding_window(PLENTY, HOUR))?
        .define(FIXED_HOUR, Limit::fixed_window(PLENTY, HOUR))?
        .define(SLOTS, Limit::concurrency(SLOTS_OF_A_KEY).lease(LEASE))?;
    for name in FOUR {
        limits = limits.define(name, ample())?;
    }
    for (shards, _) in SHARDED {
        let few = Limit::token_bucket(1e-5, CENTURY).capacity(FEW).shards(shards);
        limits = limits.define(&sharded(shards), ample().shards(shards))?.define(&sharded_few(shards), few)?;
    }
    Ok(limits)
}

/// A limiter with its own pool, which has sqlx's defaults except for its size.
pub(crate) async fn connect(
    url: &str,
    isolation: Isolation,
    remember_denials: Option<DenialMemory>,
) -> Result<Limiter, Failure> {
    let pool = PgPoolOptions::new().max_connections(32).connect(url).await?;
    let mut config = LimiterConfig::default();
    // A slow call shows in the figures, and must not end the run.
    config.retry.max_attempts = u32::MAX;
    config.retry.deadline = Duration::from_secs(60);
    config.isolation = isolation;
    config.remember_denials = remember_denials;
    Ok(Limiter::with_config(pool, limits()?, config))
}
