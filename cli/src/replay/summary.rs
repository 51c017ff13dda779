use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::plot::{SECOND, finer};
use crate::replay::Timed;
use pg_limiter::Op;

/// What the first pass over a recording has found.
pub(super) struct Summary {
    /// The number of lines, without blank lines.
    pub(super) lines: u64,
    pub(super) calls: u64,
    /// The first and the last time.
    pub(super) span: Option<(i64, i64)>,
    /// The resolution of the times: a second or less.
    pub(super) resolution: i64,
    /// The keys that take tokens, by limit, if they are needed.
    buckets: Option<BTreeMap<Arc<str>, HashSet<Arc<str>>>>,
}

impl Summary {
    pub(super) fn new(needs_keys: bool) -> Self {
        Self { lines: 0, calls: 0, span: None, resolution: SECOND, buckets: needs_keys.then(BTreeMap::new) }
    }

    pub(super) fn add(&mut self, timed: &Timed<usize>) {
        self.calls += 1;
        self.span = Some((self.span.map_or(timed.at, |(first, _)| first), timed.at));
        self.resolution = finer(self.resolution, timed.at);
        let (Some(buckets), Op::Limit) = (&mut self.buckets, timed.op) else { return };
        for item in timed.call.items() {
            let keys = match buckets.get_mut(item.limit_name()) {
                Some(keys) => keys,
                None => buckets.entry(item.limit_name().into()).or_default(),
            };
            if !keys.contains(item.key().as_str()) {
                keys.insert(item.key().as_str().into());
            }
        }
    }

    /// The keys that take tokens, by limit, sorted by the names of limits.
    pub(super) fn buckets(&self) -> Vec<(Arc<str>, HashSet<Arc<str>>)> {
        self.buckets.iter().flatten().map(|(name, keys)| (Arc::clone(name), keys.clone())).collect()
    }
}
