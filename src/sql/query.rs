//! The statements that decide a batch, with its arrays as arguments.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use crate::call::Op;
use crate::limit::Limit;
use crate::sql::Deciding;
use crate::sql::batch::{Arrays, Batch, index};
use crate::sql::door::Door;

fn unless<T>(usual: bool, array: T) -> Option<T> {
    (!usual).then_some(array)
}

fn given<T>(array: &[Option<T>]) -> Option<&[Option<T>]> {
    array.iter().any(Option::is_some).then_some(array)
}

/// Binds the limits of a batch, as eight arguments. An array of defaults is sent as NULL, which is faster.
fn bind_limits<'q>(query: Query<'q, Postgres, PgArguments>, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    let arrays = &batch.arrays;
    query
        .bind(&arrays.limit_kinds)
        .bind(&arrays.limit_rates)
        .bind(&arrays.limit_periods)
        .bind(given(&arrays.limit_capacities))
        .bind(given(&arrays.limit_max_reserved))
        .bind(given(&arrays.limit_starts))
        .bind(given(&arrays.limit_resolutions))
        .bind(given(&arrays.limit_shards))
}

/// Binds the limits, buckets and items of a batch and the sizes of its calls, as fourteen arguments. No array is left
/// out.
pub(super) fn bind_items<'q>(
    query: Query<'q, Postgres, PgArguments>,
    batch: &'q Batch,
) -> Query<'q, Postgres, PgArguments> {
    let arrays = &batch.arrays;
    bind_limits(query, batch)
        .bind(arrays.bucket_names.iter().map(|name| &**name).collect::<Vec<&str>>())
        .bind(arrays.bucket_keys.iter().map(|key| &**key).collect::<Vec<&str>>())
        .bind(&arrays.item_buckets)
        .bind(&arrays.item_limits)
        .bind(&arrays.item_counts)
        .bind(&arrays.call_sizes)
}

/// Returns the statement of this door, with the batch as its arguments.
pub(super) fn query<'q>(sql: &Deciding, door: Door, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    match door {
        Door::TokenBucket | Door::FixedWindow | Door::SlidingWindow => query_lone(sql, door, batch),
        Door::One => query_one(sql, batch),
        Door::TwoTokenBuckets => query_two(sql, batch),
        Door::Few => query_few(sql, batch),
        Door::Sums => query_sums(sql, batch),
        Door::Slots => query_slots(sql, batch),
        Door::Each => query_each(sql, batch),
    }
}

/// Returns the statement that takes the tokens of one call, made once or several times.
fn query_lone<'q>(sql: &Deciding, door: Door, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    let arrays = &batch.arrays;
    let (name, key) = (arrays.bucket_names.first(), arrays.bucket_keys.first());
    let limit = batch.lone_limit();
    let (rate, period) = (limit.map(Limit::rate), limit.map(Limit::period_micros));
    let capacity = limit.map(Limit::capacity);
    let phase = limit.zip(name.zip(key)).and_then(|(limit, (name, key))| limit.phase(name, key));
    let (name, key) = (name.map(|name| &**name), key.map(|key| &**key));
    let query = match door {
        Door::FixedWindow => {
            sql.fixed_window.query().bind(name).bind(key).bind(rate).bind(period).bind(capacity).bind(phase)
        }
        Door::SlidingWindow => sql.sliding_window.query().bind(name).bind(key).bind(rate).bind(period).bind(phase),
        _ => {
            // As a number that needs no conversion in the function.
            let period = period.map(|period| period as f64);
            sql.token_bucket.query().bind(name).bind(key).bind(rate).bind(period).bind(capacity)
        }
    };
    query.bind(arrays.bucket_amounts.first()).bind(arrays.item_counts.first()).bind(arrays.call_times.first())
}

/// Returns the statement that decides one call on one bucket.
fn query_one<'q>(sql: &Deciding, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    let arrays = &batch.arrays;
    let limit = batch.lone_limit();
    sql.one
        .query()
        .bind(arrays.bucket_names.first().map(|name| &**name))
        .bind(arrays.bucket_keys.first().map(|key| &**key))
        .bind(arrays.limit_kinds.first())
        .bind(limit.map(Limit::rate))
        .bind(limit.map(Limit::period_micros))
        .bind(limit.map(Limit::capacity))
        .bind(limit.map(Limit::max_reserved))
        .bind(limit.and_then(Limit::start_micros))
        .bind(limit.map(|limit| index(limit.resolution() as usize)))
        .bind(arrays.limit_shards.first().copied().flatten().unwrap_or(1))
        .bind(arrays.item_counts.first())
        .bind(arrays.call_times.first())
        .bind(arrays.call_reserves.first())
}

/// Returns the statement that takes the tokens of one call from two token buckets, in the order of their locks.
fn query_two<'q>(sql: &Deciding, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    let Arrays { bucket_names, bucket_keys, bucket_amounts, .. } = &batch.arrays;
    let order = batch.order();
    let limits: Vec<&Limit> = batch.limits_of_buckets().collect();
    let names = order.sorted(bucket_names).zip(order.sorted(bucket_keys));
    let takes = order.sorted(&limits).zip(order.sorted(bucket_amounts));
    names.zip(takes).fold(sql.two_token_buckets.query(), |query, ((name, key), (limit, amount))| {
        let query = query.bind(&**name).bind(&**key).bind(limit.rate()).bind(limit.period_micros() as f64);
        query.bind(limit.capacity()).bind(*amount)
    })
}

/// Returns the statement that decides one call on a few buckets, in the order of their locks.
fn query_few<'q>(sql: &Deciding, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    let Arrays { bucket_names, bucket_keys, bucket_amounts, .. } = &batch.arrays;
    let order = batch.order();
    let limits: Vec<&Limit> = batch.limits_of_buckets().collect();
    let phases: Vec<Option<i64>> = limits
        .iter()
        .zip(bucket_names.iter().zip(bucket_keys))
        .map(|(limit, (name, key))| limit.phase(name, key))
        .collect();
    let limits: Vec<&Limit> = order.sorted(&limits).copied().collect();
    sql.few
        .query()
        .bind(order.sorted(bucket_names).map(|name| &**name).collect::<Vec<&str>>())
        .bind(order.sorted(bucket_keys).map(|key| &**key).collect::<Vec<&str>>())
        .bind(limits.iter().map(|limit| limit.kind_in_sql()).collect::<Vec<_>>())
        .bind(limits.iter().map(|limit| limit.rate()).collect::<Vec<f64>>())
        .bind(limits.iter().map(|limit| limit.period_micros()).collect::<Vec<i64>>())
        .bind(limits.iter().map(|limit| limit.capacity()).collect::<Vec<f64>>())
        .bind(order.sorted(&phases).copied().collect::<Vec<_>>())
        .bind(order.sorted(bucket_amounts).copied().collect::<Vec<f64>>())
}

/// Returns the statement that decides by sums. The items are listed only if some call that takes tokens has several.
fn query_sums<'q>(sql: &Deciding, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    let arrays = &batch.arrays;
    let order = batch.order();
    let taking = arrays.call_sizes.iter().any(|size| *size > 1).then(|| arrays.taking());
    let taking = taking.filter(|taking| taking.sizes.iter().any(|size| *size > 1));
    let has_credits = arrays.bucket_credits.iter().any(Option::is_some);
    sql.sums
        .query()
        .bind(&arrays.limit_kinds)
        .bind(&arrays.limit_rates)
        .bind(&arrays.limit_periods)
        .bind(given(&arrays.limit_capacities))
        .bind(given(&arrays.limit_starts))
        .bind(given(&arrays.limit_resolutions))
        .bind(order.sorted(&arrays.bucket_names).map(|name| &**name).collect::<Vec<&str>>())
        .bind(order.sorted(&arrays.bucket_keys).map(|key| &**key).collect::<Vec<&str>>())
        .bind(unless(
            arrays.bucket_limits.iter().all(|limit| *limit == 1),
            order.sorted(&arrays.bucket_limits).copied().collect::<Vec<i32>>(),
        ))
        .bind(order.sorted(&arrays.bucket_amounts).copied().collect::<Vec<f64>>())
        .bind(has_credits.then(|| order.sorted(&arrays.bucket_credits).copied().collect::<Vec<Option<f64>>>()))
        .bind(taking.as_ref().map(|taking| order.rank(&taking.buckets)))
        .bind(taking.as_ref().map(|taking| taking.counts.clone()))
        .bind(taking.map(|taking| taking.sizes))
}

/// Returns the statement that takes, releases and renews slots, one call for each bucket.
fn query_slots<'q>(sql: &Deciding, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    let arrays = &batch.arrays;
    let order = batch.order();
    let ops: Vec<&str> = arrays.call_ops.iter().map(|op| op.as_str()).collect();
    sql.slots
        .query()
        .bind(&arrays.limit_rates)
        .bind(&arrays.limit_periods)
        .bind(order.sorted(&arrays.bucket_names).map(|name| &**name).collect::<Vec<&str>>())
        .bind(order.sorted(&arrays.bucket_keys).map(|key| &**key).collect::<Vec<&str>>())
        .bind(order.sorted(&arrays.item_limits).copied().collect::<Vec<i32>>())
        .bind(order.sorted(&ops).copied().collect::<Vec<&str>>())
        .bind(order.sorted(&arrays.item_counts).copied().collect::<Vec<f64>>())
        .bind(order.sorted(&arrays.call_leases).copied().collect::<Vec<Option<i64>>>())
}

fn query_each<'q>(sql: &Deciding, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    let Arrays {
        item_buckets,
        item_limits,
        item_counts,
        call_ops,
        call_reserves,
        call_sizes,
        call_times,
        call_ats,
        call_leases,
        bucket_names,
        bucket_keys,
        ..
    } = &batch.arrays;
    bind_limits(sql.each.query(), batch)
        .bind(bucket_names.iter().map(|name| &**name).collect::<Vec<&str>>())
        .bind(bucket_keys.iter().map(|key| &**key).collect::<Vec<&str>>())
        .bind(unless(batch.is_one_to_one, item_buckets))
        .bind(unless(item_limits.iter().all(|limit| *limit == 1), item_limits))
        .bind(unless(item_counts.iter().all(|count| *count == 1.0), item_counts))
        .bind(
            (!call_ops.iter().all(|op| *op == Op::Limit))
                .then(|| call_ops.iter().map(|op| op.as_str()).collect::<Vec<_>>()),
        )
        .bind(unless(!call_reserves.contains(&true), call_reserves))
        .bind(unless(call_sizes.iter().all(|size| *size == 1), call_sizes))
        .bind(unless(call_times.iter().all(|times| *times == 1), call_times))
        .bind(given(call_ats))
        .bind(given(call_leases))
}
