//! Decides a batch of calls in one statement, and converts the result arrays to answers.

use std::time::Duration;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};

use crate::call::{Balances, Decision, LimitState, Op, Outcome, Resolved};
use crate::limit::Kind;
use crate::sql::batch::{Arrays, AtOnce, Batch, Bucket, Place, index};
use crate::sql::server::explain;
use crate::sql::{Deciding, Statements};

/// The function's answer to one call.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    ok: bool,
    /// In microseconds.
    wait: Option<i64>,
    /// One for each resolved item.
    items: Vec<ItemAnswer>,
}

#[derive(Clone, Copy, Debug)]
struct ItemAnswer {
    denied: bool,
    balance: f64,
    /// The time that a peek returned, in microseconds: until the window ends or, for other kinds, until the bucket is full.
    peeked: Option<i64>,
}

impl Answer {
    pub(crate) const fn is_ok(&self) -> bool {
        self.ok
    }

    /// Whether the call is still undecided: one of its buckets has fewer tokens than its batch takes.
    pub(crate) const fn is_open(&self) -> bool {
        self.items.is_empty()
    }

    const fn open() -> Self {
        Self { ok: false, wait: None, items: Vec::new() }
    }

    /// Returns, for each item of a denied call, whether it denied the call.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = bool> {
        self.items.iter().map(|item| item.denied)
    }

    /// Returns the wait of a denied call.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.wait.filter(|_| !self.ok).map(|micros| Duration::from_micros(micros.unsigned_abs()))
    }

    pub(crate) fn decision(&self, call: &Resolved) -> Decision {
        let wait = self.wait.map(|micros| Duration::from_micros(micros.unsigned_abs()));
        let outcome = match (self.ok, wait) {
            (true, None) => Outcome::Allowed,
            (true, Some(wait)) => Outcome::Reserved { wait },
            (false, wait) => Outcome::Denied { retry_after: wait.unwrap_or_default() },
        };
        Decision { outcome, limits: self.states(call) }
    }

    pub(crate) fn balances(&self, call: &Resolved) -> Balances {
        Balances::new(self.states(call))
    }

    fn states(&self, call: &Resolved) -> Vec<LimitState> {
        let takes = self.ok && matches!(call.op, Op::Limit | Op::Charge);
        let state = |place: &usize| {
            let (asked, answer) = (&call.items[*place], &self.items[*place]);
            let peeked = answer.peeked.map(|micros| Duration::from_micros(micros.unsigned_abs()));
            let is_fixed = asked.limit.kind() == Kind::FixedWindow;
            LimitState {
                limit: asked.name.clone(),
                remaining: if asked.limit.is_gate() { 0.0 } else { answer.balance },
                denied: answer.denied,
                capacity: asked.limit.capacity(),
                full_in: peeked.map(|wait| if is_fixed { asked.limit.full_in(answer.balance, wait) } else { wait }),
                window_ends_in: peeked.filter(|_| is_fixed),
                is_gate: asked.limit.is_gate(),
                taken: if takes { asked.count } else { 0.0 },
            }
        };
        call.places.iter().map(state).collect()
    }

    /// Returns the wait in microseconds and the balance, if this is the denial of a call with one bucket.
    pub(crate) fn lone_denial(&self) -> Option<(i64, f64)> {
        match (self.ok, self.wait, self.items.as_slice()) {
            (false, Some(wait), &[ItemAnswer { balance, .. }]) => Some((wait, balance)),
            _ => None,
        }
    }

    /// Returns the denial of a call with one bucket: the inverse of `lone_denial`.
    pub(crate) fn denied(wait: i64, balance: f64) -> Self {
        Self { ok: false, wait: Some(wait), items: vec![ItemAnswer { denied: true, balance, peeked: None }] }
    }
}

/// Decides the calls in order, in one statement. Returns one answer for each call that was added to the batch.
pub(crate) async fn decide(
    conn: &mut PgConnection,
    statements: &Statements,
    batch: &Batch,
) -> Result<Vec<Answer>, sqlx::Error> {
    let row = query(&statements.deciding, batch).fetch_one(conn).await?;
    answers(&row, batch)
}

/// Decides the calls in a transaction of its own, which waits for the disk or not.
pub(crate) async fn decide_alone(
    conn: &mut PgConnection,
    statements: &Statements,
    batch: &Batch,
    waits_for_disk: bool,
    alone: &mut Alone,
) -> Result<Vec<Answer>, sqlx::Error> {
    let sql = if waits_for_disk { &statements.deciding } else { &statements.deciding_relaxed };
    let row = match last_row(conn, sql, batch, alone).await {
        Ok(row) => row,
        Err(error) => return Err(explain(conn, error).await),
    };
    alone.waited = waited(&row, batch)?;
    answers(&row, batch)
}

/// Returns the result once its transaction has ended.
async fn last_row(
    conn: &mut PgConnection,
    sql: &Deciding,
    batch: &Batch,
    alone: &mut Alone,
) -> Result<PgRow, sqlx::Error> {
    let mut rows = query(sql, batch).fetch(conn);
    let mut result = None;
    while let Some(row) = std::future::poll_fn(|cx| rows.as_mut().poll_next(cx)).await {
        let row = row?;
        alone.committing = true;
        result = Some(row);
    }
    result.ok_or(sqlx::Error::RowNotFound)
}

/// Returns how long the statement waited for a row, as far as that is known.
fn waited(row: &PgRow, batch: &Batch) -> Result<Duration, sqlx::Error> {
    if batch.lone_limit().is_none() {
        return Ok(Duration::ZERO);
    }
    let [.., micros]: [Option<f64>; 4] = row.try_get(0)?;
    Ok(Duration::from_micros(micros.unwrap_or_default() as u64))
}

/// The details that a statement in a transaction of its own reports besides its answers.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    /// Set once the result has arrived. From then on, an error does not mean that nothing was changed.
    pub(crate) committing: bool,
    /// How long it waited for a row, as far as that is known.
    pub(crate) waited: Duration,
}

/// Waits until all earlier commits are on disk, by a commit of next to nothing.
pub(crate) async fn flush(conn: &mut PgConnection, statements: &Statements) -> Result<(), sqlx::Error> {
    statements.flush.query().execute(conn).await.map(|_| ())
}

/// Returns which of these buckets have a row that another transaction has locked; `None` for a bucket without a row.
pub(crate) async fn held(
    conn: &mut PgConnection,
    statements: &Statements,
    buckets: &[Bucket],
) -> Result<Vec<Option<bool>>, sqlx::Error> {
    let (names, keys): (Vec<&str>, Vec<&str>) = buckets.iter().map(|(name, key)| (&**name, &**key)).unzip();
    statements.held.scalar().bind(names).bind(keys).fetch_one(conn).await
}

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

/// Returns the statement that decides the batch, with its arguments.
fn query<'q>(sql: &Deciding, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    if let Some(limit) = batch.lone_limit() {
        let arrays = &batch.arrays;
        return sql
            .one
            .query()
            .bind(arrays.bucket_names.first().map(|name| &**name))
            .bind(arrays.bucket_keys.first().map(|key| &**key))
            .bind(arrays.limit_kinds.first())
            .bind(limit.rate())
            .bind(limit.period_micros())
            .bind(limit.capacity())
            .bind(limit.max_reserved())
            .bind(limit.start_micros())
            .bind(index(limit.resolution() as usize))
            .bind(arrays.limit_shards.first().copied().flatten().unwrap_or(1))
            .bind(arrays.item_counts.first())
            .bind(arrays.call_times.first())
            .bind(arrays.call_reserves.first());
    }
    match batch.at_once {
        Some(AtOnce::Sums) => query_sums(sql, batch),
        Some(AtOnce::Slots) => query_slots(sql, batch),
        None if batch.has_leases() => query_leases(sql, batch),
        None => query_each(sql, batch),
    }
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

/// Returns the statement that also decides on leases, with the buckets in order.
fn query_leases<'q>(sql: &Deciding, batch: &'q Batch) -> Query<'q, Postgres, PgArguments> {
    let arrays = &batch.arrays;
    let order = batch.order();
    bind_limits(sql.leases.query(), batch)
        .bind(order.sorted(&arrays.bucket_names).map(|name| &**name).collect::<Vec<&str>>())
        .bind(order.sorted(&arrays.bucket_keys).map(|key| &**key).collect::<Vec<&str>>())
        .bind(order.rank(&arrays.item_buckets))
        .bind(&arrays.item_limits)
        .bind(&arrays.item_counts)
        .bind(arrays.call_ops.iter().map(|op| op.as_str()).collect::<Vec<_>>())
        .bind(&arrays.call_reserves)
        .bind(&arrays.call_sizes)
        .bind(&arrays.call_times)
        .bind(given(&arrays.call_ats))
        .bind(&arrays.call_leases)
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
        bucket_names,
        bucket_keys,
        ..
    } = &batch.arrays;
    bind_limits(sql.each.query(), batch)
        .bind(bucket_names.iter().map(|name| &**name).collect::<Vec<&str>>())
        .bind(bucket_keys.iter().map(|key| &**key).collect::<Vec<&str>>())
        .bind(unless(batch.is_one_to_one(), item_buckets))
        .bind(unless(item_limits.iter().all(|limit| *limit == 1), item_limits))
        .bind(unless(item_counts.iter().all(|count| *count == 1.0), item_counts))
        // With a headroom they are always listed: the functions of an older schema then reject it, instead of ignoring it.
        .bind(
            (batch.has_headroom() || !call_ops.iter().all(|op| *op == Op::Limit))
                .then(|| call_ops.iter().map(|op| op.as_str()).collect::<Vec<_>>()),
        )
        .bind(unless(!call_reserves.contains(&true), call_reserves))
        .bind(unless(call_sizes.iter().all(|size| *size == 1), call_sizes))
        .bind(unless(call_times.iter().all(|times| *times == 1), call_times))
        .bind(given(call_ats))
}

fn answers(row: &PgRow, batch: &Batch) -> Result<Vec<Answer>, sqlx::Error> {
    match batch.lone_limit() {
        Some(_) => answers_of(&Results::of_one(row)?, batch),
        None => match batch.at_once {
            Some(AtOnce::Sums) => of_sums(row.try_get(0)?, batch),
            Some(AtOnce::Slots) => of_slots(row.try_get(0)?, batch),
            None => of_several(row, 0, batch),
        },
    }
}

/// Converts the result of `rate_limit_decide_sums`. The balances are those after all allowed calls; the balance after a
/// call is higher by the counts of the later calls. A call is undecided if one of its buckets has no balance here, or
/// if an earlier call on the same bucket is undecided. Credits come before all other calls, and are never undecided.
fn of_sums(mut results: Vec<Option<f64>>, batch: &Batch) -> Result<Vec<Answer>, sqlx::Error> {
    let missing = || sqlx::Error::Decode("rate_limit_decide_sums returned fewer balances than buckets".into());
    let Arrays { item_buckets, item_counts, call_ops, bucket_names, .. } = &batch.arrays;
    let only_credited = results.split_off(results.len().min(bucket_names.len()));
    let ranks = &batch.order().ranks;
    let mut balances: Vec<Option<f64>> =
        ranks.iter().map(|rank| results.get(*rank).copied()).collect::<Option<_>>().ok_or_else(missing)?;
    let asked = |place: &Place| {
        (place.item..place.item + place.items)
            .map(|item| (item, usize::try_from(item_buckets[item] - 1).unwrap_or(usize::MAX)))
    };
    let is_credit = |place: &Place| call_ops[place.call] == Op::Credit;
    let mut left_open: Vec<bool> = balances.iter().map(Option::is_none).collect();
    let mut open_places = Vec::with_capacity(batch.places.len());
    for place in &batch.places {
        let is_open = !is_credit(place) && asked(place).any(|(_, bucket)| left_open[bucket]);
        if is_open {
            asked(place).for_each(|(_, bucket)| left_open[bucket] = true);
        }
        open_places.push(is_open);
    }
    let mut answers = vec![Answer::open(); batch.places.len()];
    let done = |items| Answer { ok: true, wait: None, items };
    for (nth, place) in
        batch.places.iter().enumerate().rev().filter(|(nth, place)| !open_places[*nth] && !is_credit(place))
    {
        let item = |(item, bucket): (usize, usize)| {
            let balance = balances[bucket].as_mut()?;
            let remaining = if *balance <= 1e-9 { 0.0 } else { *balance }; // Ignores rounding errors.
            *balance += item_counts[item];
            Some(ItemAnswer { denied: false, balance: remaining, peeked: None })
        };
        answers[nth] = done(asked(place).filter_map(item).collect());
    }
    for (nth, place) in batch.places.iter().enumerate().filter(|(_, place)| is_credit(place)) {
        let item = |(_, bucket): (usize, usize)| {
            let balance = balances[bucket].or_else(|| only_credited.get(ranks[bucket]).copied().flatten());
            Some(ItemAnswer { denied: false, balance: balance?, peeked: None })
        };
        answers[nth] = done(asked(place).map(item).collect::<Option<_>>().ok_or_else(missing)?);
    }
    Ok(answers)
}

/// Converts the result of `rate_limit_take_slots`. A call is undecided if its bucket has no balance here.
fn of_slots(balances: Vec<Option<f64>>, batch: &Batch) -> Result<Vec<Answer>, sqlx::Error> {
    let answer = |rank: &usize| {
        Some(match *balances.get(*rank)? {
            Some(balance) => {
                Answer { ok: true, wait: None, items: vec![ItemAnswer { denied: false, balance, peeked: None }] }
            }
            None => Answer::open(),
        })
    };
    let answers: Option<Vec<Answer>> = batch.order().ranks.iter().map(answer).collect();
    answers.ok_or_else(|| sqlx::Error::Decode("rate_limit_take_slots returned fewer balances than buckets".into()))
}

/// Reads the answers from four columns, starting at this one.
pub(super) fn of_several(row: &PgRow, first: usize, batch: &Batch) -> Result<Vec<Answer>, sqlx::Error> {
    answers_of(&Results::of_several(row, first)?, batch)
}

fn answers_of(results: &Results, batch: &Batch) -> Result<Vec<Answer>, sqlx::Error> {
    let times = &batch.arrays.call_times;
    let ops = &batch.arrays.call_ops;
    let answer = |place: &Place| match *ops.get(place.call)? {
        Op::Peek => results.of_peek(place),
        op => results.of(place, times, op),
    };
    let answers: Option<Vec<Answer>> = batch.places.iter().map(answer).collect();
    answers.ok_or_else(|| sqlx::Error::Decode("rate_limit_decide returned fewer answers than calls".into()))
}

/// The results of the function. `None` is the usual case: all calls allowed, no wait, none denied.
struct Results {
    admitted: Option<Vec<i32>>,
    waits: Option<Vec<Option<i64>>>,
    denied: Option<Vec<bool>>,
    balances: Vec<f64>,
}

impl Results {
    fn of_several(row: &PgRow, first: usize) -> Result<Self, sqlx::Error> {
        Ok(Self {
            admitted: row.try_get(first)?,
            waits: row.try_get(first + 1)?,
            denied: row.try_get(first + 2)?,
            balances: row.try_get(first + 3)?,
        })
    }

    /// Reads the result of `rate_limit_decide_one`: {admitted, wait, value, waited}.
    fn of_one(row: &PgRow) -> Result<Self, sqlx::Error> {
        let [admitted, wait, value, _]: [Option<f64>; 4] = row.try_get(0)?;
        let missing = || sqlx::Error::Decode("rate_limit_decide_one returned no number".into());
        Ok(Self {
            admitted: Some(vec![admitted.ok_or_else(missing)? as i32]),
            waits: Some(vec![wait.map(|micros| micros as i64)]),
            // The only item denies every denied call.
            denied: Some(vec![true]),
            balances: vec![value.ok_or_else(missing)?],
        })
    }

    /// Each item of a peek was a call of its own.
    fn of_peek(&self, place: &Place) -> Option<Answer> {
        let item = |nth: usize| {
            Some(ItemAnswer {
                denied: self.denied.as_ref().map_or(Some(false), |denied| denied.get(place.item + nth).copied())?,
                balance: *self.balances.get(place.item + nth)?,
                peeked: *self.waits.as_ref()?.get(place.call + nth)?,
            })
        };
        Some(Answer { ok: true, wait: None, items: (0..place.items).map(item).collect::<Option<_>>()? })
    }

    fn of(&self, place: &Place, times: &[i32], op: Op) -> Option<Answer> {
        let admitted = match &self.admitted {
            Some(admitted) => *admitted.get(place.call)?,
            None => *times.get(place.call)?,
        };
        let ok = place.time < admitted;
        let wait = match &self.waits {
            Some(waits) => *waits.get(place.call)?,
            None => None,
        };
        let balances = self.balances.get(place.item..place.item + place.items)?;
        // The repetitions that were allowed later took their tokens from what this one left.
        let after_this = if ok { f64::from(admitted - 1 - place.time) * place.count } else { 0.0 };
        let item = |(nth, balance): (usize, &f64)| {
            let denied = match &self.denied {
                // A release gives back what is still held, whatever else has ended.
                Some(denied) => *denied.get(place.item + nth)? && (!ok || op == Op::Release),
                None => false,
            };
            Some(ItemAnswer { denied, balance: balance + after_this, peeked: None })
        };
        // A call that is made several times reserves nothing: its wait is for the repetitions that were denied.
        let wait = if ok && times.get(place.call).is_some_and(|times| *times > 1) { None } else { wait };
        let items: Vec<ItemAnswer> = balances.iter().enumerate().map(item).collect::<Option<_>>()?;
        let ok = ok && (op != Op::Release || !items.iter().any(|item| item.denied));
        Some(Answer { ok, wait, items })
    }
}
