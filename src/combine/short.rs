//! Buckets that have recently denied a call. Calls on them are decided one by one, apart from calls on buckets that
//! have enough tokens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::call::{Resolved, ResolvedItem};
use crate::sql::{Answer, Bucket};

/// The longest time to remember a bucket. If tokens are given back before the denial's wait has passed, its calls are
/// needlessly decided one by one.
const LONGEST: Duration = Duration::from_secs(60);

/// The most buckets to remember.
const MOST: usize = 10_000;

#[derive(Default)]
pub(super) struct ShortBuckets {
    until: Mutex<HashMap<Bucket, Instant>>,
    are_some: AtomicBool,
}

impl ShortBuckets {
    /// Remembers the buckets that denied this call. A bucket that denied a headroom may have enough tokens for other calls.
    pub(super) fn learn(&self, call: &Resolved, answer: &Answer) {
        let Some(wait) = answer.retry_after() else { return };
        let now = Instant::now();
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner); // A panic never leaves it half-updated.
        if until.len() >= MOST {
            until.retain(|_, until| *until > now);
            if until.len() >= MOST {
                until.clear();
            }
        }
        let is_short = |(item, refused): &(&ResolvedItem, bool)| *refused && item.leave == 0.0;
        for (item, _) in call.items.iter().zip(answer.refusals()).filter(is_short) {
            until.insert((item.name.clone(), item.key.clone()), now + wait.min(LONGEST));
        }
        self.are_some.store(!until.is_empty(), Ordering::Relaxed);
    }

    /// Returns, for each call, whether it names such a bucket.
    pub(super) fn are_asked<'a>(&self, calls: impl Iterator<Item = &'a Resolved>) -> Vec<bool> {
        if !self.are_some.load(Ordering::Relaxed) {
            return calls.map(|_| false).collect();
        }
        let now = Instant::now();
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_short = |call: &Resolved| {
            call.items.iter().any(|item| {
                let bucket = (item.name.clone(), item.key.clone());
                let is_over = until.get(&bucket).map(|until| *until <= now);
                if is_over == Some(true) {
                    until.remove(&bucket);
                }
                is_over == Some(false)
            })
        };
        let asked = calls.map(&mut is_short).collect();
        self.are_some.store(!until.is_empty(), Ordering::Relaxed);
        asked
    }
}
