//! The buckets that have denied a call lately. Calls on them are decided one by one, apart from calls on buckets that have
//! enough tokens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::call::Resolved;
use crate::sql::{Answer, Bucket};

/// How long a bucket is remembered at most. Tokens may be given back before the wait of the denial has passed, and then its calls
/// are decided one by one without need.
const LONGEST: Duration = Duration::from_secs(60);

/// The most buckets.
const MOST: usize = 10_000;

#[derive(Default)]
pub(super) struct ShortBuckets {
    until: Mutex<HashMap<Bucket, Instant>>,
    are_some: AtomicBool,
}

impl ShortBuckets {
    /// Learns from the answer to a call.
    pub(super) fn learn(&self, call: &Resolved, answer: &Answer) {
        let Some(wait) = answer.retry_after() else { return };
        let now = Instant::now();
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner); // Nothing in it is ever half-done.
        if until.len() >= MOST {
            until.retain(|_, until| *until > now);
            if until.len() >= MOST {
                until.clear();
            }
        }
        for (item, _) in call.items.iter().zip(answer.refusals()).filter(|(_, refused)| *refused) {
            until.insert((item.name.clone(), item.key.clone()), now + wait.min(LONGEST));
        }
        self.are_some.store(!until.is_empty(), Ordering::Relaxed);
    }

    /// For each of the calls, whether it asks such a bucket.
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
