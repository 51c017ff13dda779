//! Batches of calls, as the arrays of the deciding functions. This is the only place that forms batches.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::call::{LeaseId, Op, Resolved, ResolvedItem};
use crate::limit::Limit;

/// How many of the last limits are searched for a match. Most statements have few different limits, and listing one
/// twice does no harm.
const LIMITS_LOOKED_AT: usize = 16;

/// Calls that one statement decides, in the order in which they were added.
///
/// Equal calls on the same bucket, with no other call on it in between, become one call that is made several times. It
/// is decided in one step, whatever their number.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Each limit with the headroom of its items. SQL gets a headroom as a negative `max_reserved`.
    pub(super) limits: Vec<(Limit, f64)>,
    buckets: HashMap<Bucket, BucketUse>,
    /// The bucket of the last call, if that call had one item: successive callers often make the same call.
    last: Option<(Arc<str>, Arc<str>, BucketUse)>,
    /// The position of each added call in the arrays.
    pub(super) positions: Vec<Position>,
    pub(super) arrays: Arrays,
    pub(super) items: usize,
    pub(super) all_plain: bool,
    /// Whether the sums of the calls on each bucket can decide them.
    pub(super) all_by_sums: bool,
    /// Whether the i-th item is on the i-th bucket, and no bucket has two items.
    pub(super) is_one_to_one: bool,
    /// Whether every bucket is used with one limit only.
    pub(super) has_one_limit_each: bool,
    order: OnceLock<Order>,
    /// Whether the statement may decide what it can at once, and leave the other calls undecided.
    pub(super) may_leave_calls_open: bool,
}

/// The order in which the rows of the buckets are locked.
#[derive(Debug)]
pub(super) struct Order {
    /// The buckets, counted from 0.
    pub(super) buckets: Vec<usize>,
    /// The position of each bucket in that order.
    pub(super) ranks: Vec<usize>,
}

impl Order {
    /// Returns the values of the buckets in this order.
    pub(super) fn sorted<'a, T>(&'a self, values: &'a [T]) -> impl Iterator<Item = &'a T> {
        self.buckets.iter().map(|bucket| &values[*bucket])
    }

    /// Returns indices of buckets, from 1, as indices in this order.
    pub(super) fn rank(&self, buckets: &[i32]) -> Vec<i32> {
        let rank = |bucket: &i32| usize::try_from(bucket - 1).ok().and_then(|bucket| self.ranks.get(bucket));
        buckets.iter().map(|bucket| rank(bucket).map_or(0, |rank| index(rank + 1))).collect()
    }
}

/// The name of a limit and a key.
pub(crate) type Bucket = (Arc<str>, Arc<str>);

/// A bucket and the last call on it.
#[derive(Clone, Copy, Debug)]
struct BucketUse {
    index: i32,
    asked_by: usize,
    /// The item of that call.
    item: usize,
    /// The number of different calls on it.
    calls: usize,
}

/// The position of an added call in the arrays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// The index of its call, from 0.
    pub(super) call: usize,
    /// The repetition of that call, from 0.
    pub(super) time: i32,
    /// The index of its first item, from 0, and the number of its items.
    pub(super) item: usize,
    pub(super) items: usize,
    /// The count of its first item.
    pub(super) count: f64,
}

/// The arrays, with one element for each limit, bucket, item or call.
#[derive(Debug, Default)]
pub(super) struct Arrays {
    pub(super) limit_kinds: Vec<Cow<'static, str>>,
    pub(super) limit_rates: Vec<f64>,
    pub(super) limit_periods: Vec<i64>,
    pub(super) limit_capacities: Vec<Option<f64>>,
    pub(super) limit_max_reserved: Vec<Option<f64>>,
    pub(super) limit_starts: Vec<Option<i64>>,
    pub(super) limit_resolutions: Vec<Option<i32>>,
    pub(super) limit_shards: Vec<Option<i32>>,
    pub(super) bucket_names: Vec<Arc<str>>,
    pub(super) bucket_keys: Vec<Arc<str>>,
    pub(super) bucket_limits: Vec<i32>,
    /// The sum of the counts that the calls on each bucket take.
    pub(super) bucket_amounts: Vec<f64>,
    /// The sum of the counts that they give back. `None`: no call does.
    pub(super) bucket_credits: Vec<Option<f64>>,
    pub(super) item_buckets: Vec<i32>,
    pub(super) item_limits: Vec<i32>,
    pub(super) item_counts: Vec<f64>,
    pub(super) call_ops: Vec<Op>,
    pub(super) call_reserves: Vec<bool>,
    pub(super) call_sizes: Vec<i32>,
    pub(super) call_times: Vec<i32>,
    pub(super) call_ats: Vec<Option<i64>>,
    pub(super) call_leases: Vec<Option<i64>>,
}

/// The items of the calls that take tokens.
#[derive(Debug, Default)]
pub(super) struct Taking {
    pub(super) buckets: Vec<i32>,
    pub(super) counts: Vec<f64>,
    pub(super) sizes: Vec<i32>,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self { all_plain: true, all_by_sums: true, is_one_to_one: true, has_one_limit_each: true, ..Self::default() }
    }

    /// Returns a batch of one call.
    pub(crate) fn of(call: &Resolved) -> Self {
        let mut batch = Self::new();
        batch.add(call, None);
        batch
    }

    /// Whether the batch has no calls.
    pub(crate) const fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Adds a call. `at` is the time of the call in microseconds since the Unix epoch; `None` uses the database's
    /// clock.
    pub(crate) fn add(&mut self, call: &Resolved, at: Option<i64>) {
        let reserve = call.reserve && matches!(call.op, Op::Limit | Op::Check);
        if call.op == Op::Limit
            && !reserve
            && at.is_none()
            && call.lease.is_none()
            && call.items.len() == 1
            && let Some(position) = self.again(&call.items[0])
        {
            self.positions.push(position);
            return;
        }
        let nth = self.arrays.call_ops.len();
        self.all_plain &= call.is_plain() && at.is_none();
        self.all_by_sums &= call.is_by_sums() && at.is_none();
        // Each item of a peek is a call of its own, because a call has only one wait.
        let is_peek = call.op == Op::Peek;
        let (calls, size) = if is_peek { (call.items.len(), 1) } else { (1, call.items.len()) };
        self.positions.push(Position {
            call: nth,
            time: 0,
            item: self.items,
            items: call.items.len(),
            count: call.items.first().map_or(0.0, |item| item.count),
        });
        let first_item = self.items;
        self.items += call.items.len();
        for _ in 0..calls {
            self.arrays.call_ops.push(call.op);
            self.arrays.call_reserves.push(reserve);
            self.arrays.call_sizes.push(index(size));
            self.arrays.call_times.push(1);
            self.arrays.call_ats.push(at);
            self.arrays.call_leases.push(call.lease.map(LeaseId::get));
        }
        for (place, item) in call.items.iter().enumerate() {
            let limit = self.limit(item);
            let asked_by = if is_peek { nth + place } else { nth };
            let bucket = self.bucket(item, limit, asked_by, first_item + place);
            self.arrays.sum(bucket.index, call.op, item.count);
            self.arrays.item_limits.push(limit);
            self.arrays.item_buckets.push(bucket.index);
            self.arrays.item_counts.push(item.count);
            self.last = (call.items.len() == 1).then(|| (item.name.clone(), item.key.clone(), bucket));
        }
    }

    /// Returns the position of a call that only takes tokens, if it repeats the last call on its bucket.
    fn again(&mut self, item: &ResolvedItem) -> Option<Position> {
        let bucket = match &self.last {
            Some((name, key, bucket)) if *key == item.key && *name == item.name => *bucket,
            _ => *self.buckets.get(&(item.name.clone(), item.key.clone()))?,
        };
        let BucketUse { asked_by: call, item: nth, .. } = bucket;
        let arrays = &mut self.arrays;
        let only_takes = arrays.call_ops[call] == Op::Limit
            && !arrays.call_reserves[call]
            && arrays.call_sizes[call] == 1
            && arrays.call_ats[call].is_none()
            && arrays.call_leases[call].is_none();
        let limit = self.limits[usize::try_from(arrays.item_limits[nth] - 1).ok()?];
        if !only_takes || limit != (item.limit, item.leave) || arrays.item_counts[nth] != item.count {
            return None;
        }
        let time = arrays.call_times[call];
        arrays.call_times[call] = time.checked_add(1)?;
        arrays.bucket_amounts[usize::try_from(bucket.index - 1).ok()?] += item.count;
        Some(Position { call, time, item: nth, items: 1, count: item.count })
    }

    /// Returns the index of the item's limit and headroom, from 1.
    fn limit(&mut self, item: &ResolvedItem) -> i32 {
        let ResolvedItem { limit, leave, .. } = item;
        let same = |(_, other): &(usize, &(Limit, f64))| other.0 == *limit && other.1 == *leave;
        if let Some((place, _)) = self.limits.iter().enumerate().rev().take(LIMITS_LOOKED_AT).find(same) {
            return index(place + 1);
        }
        self.limits.push((*limit, *leave));
        let arrays = &mut self.arrays;
        arrays.limit_kinds.push(limit.kind_in_sql());
        arrays.limit_rates.push(limit.rate());
        arrays.limit_periods.push(limit.period_micros());
        arrays.limit_capacities.push(limit.given_capacity());
        arrays.limit_max_reserved.push(if *leave > 0.0 { Some(-leave) } else { limit.max_reserved() });
        arrays.limit_starts.push(limit.start_micros());
        arrays.limit_resolutions.push(limit.given_resolution().and_then(|parts| i32::try_from(parts).ok()));
        arrays.limit_shards.push(limit.given_shards().and_then(|shards| i32::try_from(shards).ok()));
        index(self.limits.len())
    }

    fn bucket(&mut self, item: &ResolvedItem, limit: i32, asked_by: usize, nth: usize) -> BucketUse {
        let arrays = &mut self.arrays;
        let entry = self.buckets.entry((item.name.clone(), item.key.clone()));
        let bucket = entry.or_insert_with(|| {
            arrays.bucket_names.push(item.name.clone());
            arrays.bucket_keys.push(item.key.clone());
            arrays.bucket_limits.push(limit);
            arrays.bucket_amounts.push(0.0);
            arrays.bucket_credits.push(None);
            BucketUse { index: index(arrays.bucket_names.len()), asked_by, item: nth, calls: 0 }
        });
        bucket.asked_by = asked_by;
        bucket.item = nth;
        bucket.calls += 1;
        self.is_one_to_one &= bucket.calls == 1;
        let place = usize::try_from(bucket.index - 1).unwrap_or_default();
        self.has_one_limit_each &= arrays.bucket_limits[place] == limit;
        *bucket
    }

    /// Returns the number of items in each call.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.positions.iter().map(|position| position.items)
    }

    /// Whether the calls are on more than one bucket.
    pub(crate) const fn has_several_buckets(&self) -> bool {
        self.arrays.bucket_names.len() > 1
    }

    /// Whether any call is neither a check nor a peek.
    pub(crate) fn may_write(&self) -> bool {
        self.arrays.call_ops.iter().any(|op| !matches!(op, Op::Check | Op::Peek))
    }

    /// Returns the limit if the batch is one plain call, made once or several times, or one reservation on a bucket
    /// without shards.
    pub(super) fn lone_limit(&self) -> Option<&Limit> {
        let [(limit, _)] = self.limits.as_slice() else { return None };
        let is_lone = self.is_one_to_one && self.items == 1;
        (is_lone && (self.all_plain || self.is_lone_reservation(limit))).then_some(limit)
    }

    /// Returns the limit of each bucket, if each has only one.
    pub(super) fn limits_of_buckets(&self) -> impl Iterator<Item = &Limit> {
        self.arrays.bucket_limits.iter().map(|nth| &self.limits[usize::try_from(nth - 1).unwrap_or_default()].0)
    }

    fn is_lone_reservation(&self, limit: &Limit) -> bool {
        let Arrays { call_ops, call_reserves, call_ats, call_leases, .. } = &self.arrays;
        let asked = (call_ops.as_slice(), call_reserves.as_slice(), call_ats.as_slice(), call_leases.as_slice());
        matches!(asked, ([Op::Limit], [true], [None], [None])) && limit.given_shards().is_none()
    }

    /// Lets the statement decide what it can at once, and leave the other calls undecided. Only for a transaction of its own.
    pub(crate) const fn allow_open_calls(&mut self) {
        self.may_leave_calls_open = true;
    }

    /// Returns the order of the buckets by the bytes of name and key.
    pub(super) fn order(&self) -> &Order {
        self.order.get_or_init(|| {
            let Arrays { bucket_names: names, bucket_keys: keys, .. } = &self.arrays;
            let mut buckets: Vec<usize> = (0..names.len()).collect();
            buckets.sort_unstable_by_key(|bucket| (&names[*bucket], &keys[*bucket]));
            let mut ranks = vec![0; buckets.len()];
            buckets.iter().enumerate().for_each(|(rank, bucket)| ranks[*bucket] = rank);
            Order { buckets, ranks }
        })
    }
}

impl Arrays {
    fn sum(&mut self, bucket: i32, op: Op, count: f64) {
        let place = usize::try_from(bucket - 1).unwrap_or_default();
        match op {
            Op::Credit => *self.bucket_credits[place].get_or_insert(0.0) += count,
            _ => self.bucket_amounts[place] += count,
        }
    }

    /// Returns the items of the calls that take tokens: their buckets, and what each takes in total, over all repetitions of its
    /// call. Returns the numbers of items of these calls, too.
    pub(super) fn taking(&self) -> Taking {
        let mut taking = Taking::default();
        let mut first = 0;
        for ((op, size), times) in self.call_ops.iter().zip(&self.call_sizes).zip(&self.call_times) {
            let items = first..first + usize::try_from(*size).unwrap_or_default();
            first = items.end;
            if *op != Op::Credit {
                taking.buckets.extend(&self.item_buckets[items.clone()]);
                taking.counts.extend(self.item_counts[items].iter().map(|count| count * f64::from(*times)));
                taking.sizes.push(*size);
            }
        }
        taking
    }
}

/// Converts to an index into a PostgreSQL array. An index that does not fit would not fit into a message either.
pub(super) fn index(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(i32::MAX)
}
