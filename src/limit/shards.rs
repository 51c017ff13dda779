//! Over how many rows a limit is spread: what is allowed, what is wise.

use std::fmt;

use crate::error::InvalidLimit;
use crate::limit::Limit;

/// All of them are read before a denial.
const MOST: u32 = 1000;
/// Fewer tokens in a row, and calls often find too few in the two rows they look at.
const FEWEST_TOKENS: f64 = 5.0;
/// What is better.
const ENOUGH_TOKENS: f64 = 10.0;
/// Transactions that take from one row, a second: of some tens of milliseconds, so few seldom meet.
const CALLS_PER_SHARD: f64 = 2.0;

/// What is allowed, and hardly wise. See [`Limit::warnings`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum LimitWarning {
    /// The shards have so few tokens each that many calls have to look at all of them.
    FewTokensPerShard {
        /// The capacity of the whole limit; for a sliding window its rate.
        capacity: f64,
        /// How many shards share it.
        shards: u32,
    },
}

impl fmt::Display for LimitWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::FewTokensPerShard { capacity, shards } = self;
        let each = capacity / f64::from(*shards);
        write!(
            f,
            "{capacity} tokens over {shards} shards are {each} each, and with fewer than {FEWEST_TOKENS} many calls look at \
             all shards; take at most {}",
            (capacity / FEWEST_TOKENS).floor().max(1.0)
        )
    }
}

impl Limit {
    /// How many shards suit a bucket that is asked so often a second, in transactions of its callers, when it is busiest:
    /// one for every two calls, and no more than leave 10 tokens to each. At least 1.
    ///
    /// Whoever takes tokens in a transaction holds the row until it ends, so others wait for it or fail with a conflict;
    /// with two transactions a second of some tens of milliseconds in each row that is rare (the rule is that of Convex's
    /// rate limiter). The calls that a [`Limiter`](crate::Limiter) makes on its own are combined: those of one process hold a row
    /// together, and one shard is enough for several processes.
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

    /// What is allowed here, but hardly wise. A [`Limiter`](crate::Limiter) traces these warnings when it is made.
    pub fn warnings(&self) -> Vec<LimitWarning> {
        let (capacity, shards) = (self.capacity(), self.shards());
        if shards > 1 && capacity / f64::from(shards) < FEWEST_TOKENS {
            vec![LimitWarning::FewTokensPerShard { capacity, shards }]
        } else {
            Vec::new()
        }
    }
}

/// `capacity` is the rate where there is none.
pub(super) fn check(shards: u32, capacity: f64) -> Result<(), InvalidLimit> {
    if !(1..=MOST).contains(&shards) {
        return Err(InvalidLimit::new(format!("the number of shards {shards} is not between 1 and {MOST}")));
    }
    let each = capacity / f64::from(shards);
    if shards > 1 && each < 1.0 {
        return Err(InvalidLimit::new(format!(
            "{capacity} tokens over {shards} shards are {each} each, less than 1: at most {} shards have one",
            capacity.floor().max(1.0)
        )));
    }
    Ok(())
}
