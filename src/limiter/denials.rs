//! Recent denials. A client that keeps calling with a denied key is answered without the database.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::call::{Op, Resolved, ResolvedItem};
use crate::limit::Kind;
use crate::limiter::DenialMemory;
use crate::sql::Answer;

/// The memory has several shards, so that tasks rarely wait for each other. The most shards, and the fewest keys in
/// one.
const MOST_SHARDS: usize = 16;
const FEWEST_KEYS: usize = 64;

/// The denials of one handle. Only of calls with one bucket and without a reservation: a denied group does not show the
/// wait of each of its buckets. Denials of slots are not remembered, because any holder can release them at any time.
#[derive(Debug)]
pub(super) struct Denials {
    max_age: Duration,
    /// In each shard.
    max_keys: usize,
    /// Randomly seeded, so that a client cannot construct names and keys that collide.
    hashes: RandomState,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    /// Denials by the hash of name and key, so that a lookup needs no owned strings. If two hashes collide, the later
    /// denial stays.
    by_hash: HashMap<u64, Denial>,
    /// When a denial was last discarded here.
    discarded_at: Option<Instant>,
}

struct Denial {
    item: ResolvedItem,
    /// When the answer arrived.
    since: Instant,
    /// Counted from `since`.
    lifetime: Duration,
    /// In microseconds.
    wait: i64,
    balance: f64,
}

impl Denials {
    pub(super) fn new(config: DenialMemory) -> Self {
        let shards = (config.max_keys / FEWEST_KEYS).clamp(1, MOST_SHARDS);
        Self {
            max_age: config.max_age,
            max_keys: config.max_keys / shards,
            hashes: RandomState::new(),
            shards: (0..shards).map(|_| Mutex::default()).collect(),
        }
    }

    /// Returns the database's answer to the same call, if it still holds. The count and the headroom must be the same too,
    /// because the wait is exact only for these.
    pub(super) fn recall(&self, call: &Resolved, now: Instant) -> Option<Answer> {
        let item = lone_item(call)?;
        let hash = self.hash(item);
        let (wait, balance) = {
            let mut shard = self.shard(hash);
            let denial = shard.by_hash.get(&hash)?;
            let elapsed = denial.elapsed(now);
            if elapsed >= denial.lifetime {
                shard.by_hash.remove(&hash);
                return None;
            }
            if !denial.is_of(item) {
                return None;
            }
            // The wait is rounded up, so that it ends no sooner than the database's answer said.
            let gone = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
            (denial.wait.saturating_sub(gone).max(1), denial.balance)
        };
        Some(Answer::denied(wait, balance))
    }

    /// Remembers the answer to a call that was made at `asked`, if it is a denial.
    pub(super) fn remember(&self, call: &Resolved, answer: &Answer, asked: Instant, now: Instant) {
        let Some(item) = lone_item(call) else { return };
        let Some((wait, balance)) = answer.lone_denial() else { return };
        let lifetime = Duration::from_micros(wait.max(0).unsigned_abs()).min(self.max_age);
        if lifetime.is_zero() || self.max_keys == 0 {
            return;
        }
        let hash = self.hash(item);
        let mut shard = self.shard(hash);
        // The call may have been decided before a reset that has finished since.
        if shard.discarded_at.is_some_and(|discarded_at| discarded_at >= asked) {
            return;
        }
        if shard.by_hash.len() >= self.max_keys && !shard.by_hash.contains_key(&hash) {
            shard.make_room(self.max_keys, now);
        }
        shard.by_hash.insert(hash, Denial { item: item.clone(), since: now, lifetime, wait, balance });
    }

    /// Discards the denials of a call's buckets, and any denial of them that is about to arrive.
    pub(super) fn discard(&self, call: &Resolved, now: Instant) {
        for item in &call.items {
            let hash = self.hash(item);
            let mut shard = self.shard(hash);
            shard.by_hash.remove(&hash);
            shard.discarded_at = Some(now);
        }
    }

    /// Discards all denials, and any denial that is about to arrive.
    pub(super) fn clear(&self, now: Instant) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.by_hash.clear();
            shard.discarded_at = Some(now);
        }
    }

    fn hash(&self, item: &ResolvedItem) -> u64 {
        self.hashes.hash_one((&*item.name, &*item.key))
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let place = usize::from((hash >> 32) as u16) % self.shards.len();
        lock(&self.shards[place])
    }
}

/// A poisoned lock is safe to use: no panic leaves a shard half-updated.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lone_item(call: &Resolved) -> Option<&ResolvedItem> {
    match call.items.as_slice() {
        [item] if call.op == Op::Limit && !call.reserve && item.limit.kind() != Kind::Concurrency => Some(item),
        _ => None,
    }
}

impl Shard {
    /// Removes expired denials first, then any, until three quarters are left. The insertions that then need no room
    /// pay for this scan.
    fn make_room(&mut self, max_keys: usize, now: Instant) {
        self.by_hash.retain(|_, denial| denial.elapsed(now) < denial.lifetime);
        let mut surplus = self.by_hash.len().saturating_sub(max_keys - max_keys.div_ceil(4));
        self.by_hash.retain(|_, _| {
            let stays = surplus == 0;
            surplus = surplus.saturating_sub(1);
            stays
        });
    }
}

impl Denial {
    fn is_of(&self, item: &ResolvedItem) -> bool {
        self.item.count.to_bits() == item.count.to_bits()
            && self.item.leave.to_bits() == item.leave.to_bits()
            && self.item.limit == item.limit
            && self.item.key == item.key
            && self.item.name == item.name
    }

    /// A time before the answer arrived counts as the time of its arrival.
    fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// Shows no key: keys are often personal data.
impl std::fmt::Debug for Denial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Denial").field("name", &self.item.name).field("wait", &self.wait).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Call, Item};
    use crate::limit::{Limit, Limits};

    const SECOND: Duration = Duration::from_secs(1);

    fn memory(max_keys: usize) -> Denials {
        Denials::new(DenialMemory { max_keys, max_age: SECOND })
    }

    fn item(name: &str, rate: f64, key: &str) -> Item {
        Item::new((name, Limit::token_bucket(rate, 60 * SECOND).build().expect("a limit")), key)
    }

    fn resolve(op: Op, call: impl Into<Call>) -> Resolved {
        Resolved::new(op, call.into(), &Limits::new(), None).expect("a call")
    }

    fn call(key: &str) -> Resolved {
        resolve(Op::Limit, item("a", 10.0, key))
    }

    fn remember(denials: &Denials, call: &Resolved, wait: Duration, now: Instant) {
        denials.remember(call, &Answer::denied(wait.as_micros() as i64, 0.25), now, now);
    }

    fn wait(denials: &Denials, call: &Resolved, now: Instant) -> Option<Duration> {
        denials.recall(call, now)?.decision(call).retry_after()
    }

    #[test]
    fn a_remembered_wait_counts_down_and_ends() {
        let (denials, call, now) = (memory(100), call("k"), Instant::now());
        assert_eq!(wait(&denials, &call, now), None);
        remember(&denials, &call, SECOND / 2, now);
        assert_eq!(wait(&denials, &call, now), Some(SECOND / 2));
        let later = now + Duration::from_nanos(100_000_900);
        assert_eq!(wait(&denials, &call, later), Some(Duration::from_millis(400)), "rounded up");
        let decision = denials.recall(&call, later).expect("remembered").decision(&call);
        assert_eq!((decision.remaining(), decision.denied_by()), (0.25, vec!["a"]));
        assert_eq!(wait(&denials, &call, now + SECOND / 2 - Duration::from_nanos(1)), Some(Duration::from_micros(1)));
        assert_eq!(wait(&denials, &call, now + SECOND / 2), None);
        assert_eq!(wait(&denials, &call, now), None, "gone");
    }

    #[test]
    fn denials_are_forgotten_after_max_age() {
        let (denials, call, now) = (memory(100), call("k"), Instant::now());
        remember(&denials, &call, 60 * SECOND, now);
        assert_eq!(wait(&denials, &call, now + SECOND - Duration::from_micros(1)).map(|wait| wait.as_secs()), Some(59));
        assert_eq!(wait(&denials, &call, now + SECOND), None);
        for (max_keys, max_age) in [(0, SECOND), (100, Duration::ZERO)] {
            let denials = Denials::new(DenialMemory { max_keys, max_age });
            remember(&denials, &call, SECOND, now);
            assert_eq!(wait(&denials, &call, now), None);
        }
    }

    #[test]
    fn a_denial_is_recalled_only_for_the_same_call() {
        let (denials, now) = (memory(100), Instant::now());
        remember(&denials, &call("k"), SECOND, now);
        let same = || item("a", 10.0, "k");
        for other in [
            resolve(Op::Limit, same().count(2)),
            resolve(Op::Limit, same().count(0.5)),
            resolve(Op::Limit, same().leave(2)),
            resolve(Op::Limit, item("a", 11.0, "k")),
            resolve(Op::Limit, item("b", 10.0, "k")),
            resolve(Op::Limit, item("a", 10.0, "l")),
            resolve(Op::Limit, item("ak", 10.0, "")),
            resolve(Op::Limit, same().reserve()),
            resolve(Op::Check, same()),
            resolve(Op::Limit, [same(), item("b", 10.0, "k")]),
        ] {
            assert!(denials.recall(&other, now).is_none(), "{other:?}");
            let denials = memory(100);
            remember(&denials, &other, SECOND, now);
            let plain = other.op == Op::Limit && !other.reserve && other.items.len() == 1;
            assert_eq!(denials.recall(&other, now).is_some(), plain, "{other:?}");
        }
        assert_eq!(wait(&denials, &call("k"), now), Some(SECOND));
    }

    #[test]
    fn a_forgotten_denial_is_not_remembered_again() {
        let (denials, asked) = (memory(100), Instant::now());
        let reset = resolve(Op::Reset, [item("a", 10.0, "k"), item("a", 10.0, "l")]);
        let discard = |denials: &Denials| denials.discard(&reset, Instant::now());
        let clear = |denials: &Denials| denials.clear(Instant::now());
        for discard in [&discard as &dyn Fn(&Denials), &clear] {
            let now = Instant::now() + SECOND / 4;
            ["k", "l"].iter().for_each(|key| remember(&denials, &call(key), SECOND, now));
            assert!(["k", "l"].iter().all(|key| denials.recall(&call(key), now).is_some()));
            discard(&denials);
            for call in ["k", "l"].map(call) {
                assert!(denials.recall(&call, now).is_none());
                // A denial that was about to arrive.
                denials.remember(&call, &Answer::denied(500_000, 0.0), asked, now);
                assert!(denials.recall(&call, now).is_none());
            }
        }
    }

    #[test]
    fn at_most_max_keys_are_kept_and_ended_denials_are_evicted_first() {
        let now = Instant::now();
        for max_keys in [1, 2, 3, 63, 100, 1000] {
            let denials = memory(max_keys);
            let len = || denials.shards.iter().map(|shard| lock(shard).by_hash.len()).sum::<usize>();
            for nth in 0..max_keys * 5 {
                let last = call(&nth.to_string());
                remember(&denials, &last, SECOND, now);
                assert!(len() <= max_keys, "{} of {max_keys}", len());
                assert!(denials.recall(&last, now).is_some(), "the latest is there");
            }
            assert!(len() >= max_keys / 2, "{} of {max_keys}", len());
        }
        let denials = memory(100);
        let later = now + SECOND / 2;
        (0..60).for_each(|nth| remember(&denials, &call(&format!("ended {nth}")), SECOND / 4, now));
        (0..60).for_each(|nth| remember(&denials, &call(&format!("lasts {nth}")), SECOND, later));
        assert!((0..60).all(|nth| denials.recall(&call(&format!("lasts {nth}")), later).is_some()));
    }
}
