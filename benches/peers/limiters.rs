//! The limits, and the handles that decide them.

use std::time::Duration;

use pg_limiter::{DenialMemory, Isolation, Limit, Limiter, LimiterConfig, Limits, RetryPolicy};
use sqlx::postgres::PgPoolOptions;

use crate::Failure;
use crate::names::SHARDED;

/// The tokens of a bucket that is never empty. One comes back in an hour, so that no row is idle (and pruned) soon.
pub(crate) const PLENTY: f64 = 1e9;
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// The period of a bucket of one token: once it is taken, all is denied.
pub(crate) const CENTURY: Duration = Duration::from_secs(36_500 * 86_400);

/// Of the sliding log and the sliding counter.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

pub(crate) const AMPLE: &str = "ample";
pub(crate) const SPENT: &str = "spent";
pub(crate) const SLIDING: &str = "sliding";
/// Windows of an [hour](HOUR) for [plenty](PLENTY) of tokens: none of them ends while a load runs, or hardly ever.
pub(crate) const SLIDING_HOUR: &str = "sliding, an hour";
pub(crate) const FIXED_HOUR: &str = "fixed, an hour";
/// Tokens of a bucket that is there to be emptied.
pub(crate) const FEW: u32 = 2_000;

/// Ample.
pub(crate) fn sharded(shards: u32) -> String {
    format!("sharded over {shards}")
}

/// With so [few](FEW) tokens that it is soon empty.
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
        .define(FIXED_HOUR, Limit::fixed_window(PLENTY, HOUR))?;
    for name in FOUR {
        limits = limits.define(name, ample())?;
    }
    for (shards, _) in SHARDED {
        let few = Limit::token_bucket(1e-6, CENTURY).capacity(FEW).shards(shards);
        limits = limits.define(&sharded(shards), ample().shards(shards))?.define(&sharded_few(shards), few)?;
    }
    Ok(limits)
}

/// A handle with a pool of its own, as sqlx makes it but for its size.
pub(crate) async fn connect(
    url: &str,
    isolation: Isolation,
    remember_denials: Option<DenialMemory>,
) -> Result<Limiter, Failure> {
    let pool = PgPoolOptions::new().max_connections(32).connect(url).await?;
    let mut config = LimiterConfig::default();
    // What is too slow shows in the figures; it should not end the run.
    config.retry = RetryPolicy { max_attempts: u32::MAX, deadline: Duration::from_secs(60), ..config.retry };
    config.isolation = isolation;
    config.remember_denials = remember_denials;
    Ok(Limiter::with_config(pool, limits()?, config))
}
