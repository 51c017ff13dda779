//! The functions that decide a batch, and the choice among them. This is the only place that chooses.

use crate::limit::{Kind, Limit};
use crate::sql::batch::{Arrays, Batch};

/// A function that decides a batch, or what it can of it. The query and the reading of its answer both depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// `_take_token_bucket`: one call on one bucket. In one UPDATE, if the bucket covers the call; otherwise it hands on to
    /// `_decide_one`. So do the next two.
    TokenBucket,
    /// `_take_fixed_window`
    FixedWindow,
    /// `_take_sliding_window`: with two counters.
    SlidingWindow,
    /// `_decide_one`: any other call on one bucket, which can be sharded.
    One,
    /// `_take_two_token_buckets`: one call on two token buckets. In one UPDATE for each, if they cover the call; otherwise it hands
    /// on to `_take_few`.
    TwoTokenBuckets,
    /// `_take_few`: one call on two to eight buckets. In one UPDATE, if they cover the call; otherwise it hands on to `_decide`.
    Few,
    /// `_decide_sums`: what a batch takes from many buckets. It leaves calls open that its buckets do not cover.
    Sums,
    /// `_take_slots`: slots of many buckets, one call for each. It leaves calls open for which no slot is free.
    Slots,
    /// `_decide`: everything else.
    Each,
}

impl Door {
    /// Whether its answer is an array of numbers for one call, the last of which is how long it waited.
    pub(super) const fn is_lone(self) -> bool {
        matches!(self, Self::TokenBucket | Self::FixedWindow | Self::SlidingWindow | Self::One)
    }

    pub(super) fn of(batch: &Batch) -> Self {
        if batch.lone_limit().is_some() {
            Self::of_lone(batch)
        } else if is_one_call_on_few_buckets(batch) {
            let are_two = batch.limits_of_buckets().map(Limit::kind).eq([Kind::TokenBucket; 2]);
            if are_two { Self::TwoTokenBuckets } else { Self::Few }
        } else if batch.may_leave_calls_open && is_decided_by_sums(batch) {
            Self::Sums
        } else if batch.may_leave_calls_open && takes_slots_only(batch) {
            Self::Slots
        } else {
            Self::Each
        }
    }

    fn of_lone(batch: &Batch) -> Self {
        let (Some(limit), [count], [times], [false], [None]) = (
            batch.lone_limit(),
            batch.arrays.item_counts.as_slice(),
            batch.arrays.call_times.as_slice(),
            batch.arrays.call_reserves.as_slice(),
            batch.arrays.limit_shards.as_slice(),
        ) else {
            return Self::One;
        };
        match limit.kind() {
            _ if !takes_by_update(limit, count * f64::from(*times)) => Self::One,
            Kind::TokenBucket => Self::TokenBucket,
            Kind::FixedWindow => Self::FixedWindow,
            _ => Self::SlidingWindow,
        }
    }
}

/// Whether one UPDATE can take the tokens from a bucket of this limit. A call for no tokens only reads.
pub(super) fn takes_by_update(limit: &Limit, amount: f64) -> bool {
    let is_lean = match limit.kind() {
        Kind::TokenBucket | Kind::FixedWindow => true,
        Kind::SlidingWindow => limit.resolution() == 1,
        _ => false,
    };
    is_lean && amount > 0.0 && amount <= limit.capacity()
}

/// Whether the batch is one plain call, made once, on two to eight buckets, and one UPDATE for each bucket can take its tokens.
fn is_one_call_on_few_buckets(batch: &Batch) -> bool {
    let Arrays { item_counts, call_ops, call_times, limit_shards, .. } = &batch.arrays;
    batch.all_plain
        && batch.is_one_to_one
        && (2..=8).contains(&batch.items)
        && call_ops.len() == 1
        && *call_times == [1]
        && limit_shards.iter().all(Option::is_none)
        && batch.limits_of_buckets().zip(item_counts).all(|(limit, count)| takes_by_update(limit, *count))
}

/// Whether the sums of the calls on each bucket can decide the batch, except for calls that their buckets do not cover. A lone
/// credit or charge is always decided in one statement.
fn is_decided_by_sums(batch: &Batch) -> bool {
    (batch.all_plain || batch.all_by_sums && batch.arrays.call_ops.len() > 1)
        && batch.has_one_limit_each
        && batch.arrays.limit_shards.iter().all(Option::is_none)
}

/// Whether each call takes slots of a concurrency limit, and no two calls are on one bucket.
fn takes_slots_only(batch: &Batch) -> bool {
    batch.is_one_to_one
        && batch.arrays.call_leases.iter().all(Option::is_some)
        && batch.limits.iter().all(|(limit, _)| limit.kind() == Kind::Concurrency)
        && batch.arrays.call_sizes.iter().all(|size| *size == 1)
}
