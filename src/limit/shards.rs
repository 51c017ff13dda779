//! The number of rows that a bucket is spread over: which numbers are allowed, and which are recommended.

use std::fmt;

use crate::limit::InvalidLimit;
use crate::limit::Limit;

/// The most shards. A denial reads all of them first.
const MOST: u32 = 1000;
/// With fewer tokens per row, calls often find too few in the two rows that they read.
const FEWEST_TOKENS: f64 = 5.0;
/// The recommended minimum of tokens per row.
const ENOUGH_TOKENS: f64 = 10.0;
/// Transactions per row and second. If each takes some tens of milliseconds, so few rarely collide.
const CALLS_PER_SHARD: f64 = 2.0;

/// An option that is allowed but not recommended. See [`Limit::warnings`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum LimitWarning {
    /// Each shard has so few tokens that many calls must read all shards.
    FewTokensPerShard {
        /// The capacity of the limit; for a sliding window, its rate.
        capacity: f64,
        /// The number of shards.
        shards: u32,
    },
}

impl fmt::Display for LimitWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::FewTokensPerShard { capacity, shards } = self;
        let each = capacity / f64::from(*shards);
        write!(
            f,
            "{capacity} tokens over {shards} shards are {each} each, and with fewer than {FEWEST_TOKENS} many calls must read \
             all shards; use at most {}",
            (capacity / FEWEST_TOKENS).floor().max(1.0)
        )
    }
}

impl Limit {
    /// Returns the recommended number of shards for a bucket with this peak rate of calls per second in callers'
    /// transactions: one shard for every two calls, but at least 10 tokens for each shard. The result is at least 1.
    ///
    /// A transaction that takes tokens locks the row until it ends, so other transactions wait for it or fail with a conflict.
    /// With two transactions per second and row, each of some tens of milliseconds, this is rare. The rule is that of Convex's
    /// rate limiter. A [`Limiter`](crate::Limiter) combines the calls in its own transactions: the calls of one process lock a
    /// row together, and one shard is enough for several processes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let limit = pg_limiter::Limit::token_bucket(1000, Duration::from_secs(60)).build()?;
    /// assert_eq!(limit.recommended_shards(30.0), 15);
    /// assert_eq!(limit.recommended_shards(1e6), 100); // 10 tokens each
    /// # Ok::<(), pg_limiter::InvalidLimit>(())
    /// ```
    pub fn recommended_shards(&self, peak_per_second: f64) -> u32 {
        let wanted = if peak_per_second > 0.0 { (peak_per_second / CALLS_PER_SHARD).ceil() } else { 1.0 };
        let carried = (self.capacity() / ENOUGH_TOKENS).floor();
        wanted.min(carried).min(f64::from(MOST)).max(1.0) as u32
    }

    /// Returns the options that are allowed but not recommended. A new [`Limiter`](crate::Limiter) traces these warnings.
    pub fn warnings(&self) -> Vec<LimitWarning> {
        let (capacity, shards) = (self.capacity(), self.shards());
        if shards > 1 && capacity / f64::from(shards) < FEWEST_TOKENS {
            vec![LimitWarning::FewTokensPerShard { capacity, shards }]
        } else {
            Vec::new()
        }
    }
}

/// Checks the number of shards. For a limit without a capacity, `capacity` is its rate.
pub(super) fn check(shards: u32, capacity: f64) -> Result<(), InvalidLimit> {
    if !(1..=MOST).contains(&shards) {
        return Err(InvalidLimit::new(format!("the number of shards {shards} is not between 1 and {MOST}")));
    }
    let each = capacity / f64::from(shards);
    if shards > 1 && each < 1.0 {
        return Err(InvalidLimit::new(format!(
            "{capacity} tokens over {shards} shards are {each} each, less than 1; use at most {} shards",
            capacity.floor().max(1.0)
        )));
    }
    Ok(())
}
