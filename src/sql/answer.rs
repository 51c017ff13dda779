//! Converts the result arrays of the deciding functions to answers.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::call::{Balances, Decision, LimitState, Op, Outcome, Resolved};
use crate::limit::Kind;
use crate::sql::batch::{Arrays, Batch, Position};
use crate::sql::door::Door;

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

/// Reads the answer of this door.
pub(super) fn answers(row: &PgRow, door: Door, batch: &Batch) -> Result<Vec<Answer>, sqlx::Error> {
    match door {
        Door::TokenBucket | Door::FixedWindow | Door::SlidingWindow | Door::One => {
            answers_of(&Results::of_one(row)?, batch)
        }
        Door::TwoTokenBuckets | Door::Few => answers_of(&Results::of_few(row, batch)?, batch),
        Door::Sums => of_sums(row.try_get(0)?, batch),
        Door::Slots => of_slots(row.try_get(0)?, batch),
        Door::Each => of_several(row, 0, batch),
    }
}

/// Converts the result of `_decide_sums`. The balances are those after all allowed calls; the balance after a
/// call is higher by the counts of the later calls. A call is undecided if one of its buckets has no balance here, or
/// if an earlier call on the same bucket is undecided. Credits come before all other calls, and are never undecided.
fn of_sums(mut results: Vec<Option<f64>>, batch: &Batch) -> Result<Vec<Answer>, sqlx::Error> {
    let missing = || sqlx::Error::Decode("_decide_sums returned fewer balances than buckets".into());
    let Arrays { item_buckets, item_counts, call_ops, bucket_names, .. } = &batch.arrays;
    let only_credited = results.split_off(results.len().min(bucket_names.len()));
    let ranks = &batch.order().ranks;
    let mut balances: Vec<Option<f64>> =
        ranks.iter().map(|rank| results.get(*rank).copied()).collect::<Option<_>>().ok_or_else(missing)?;
    let asked = |position: &Position| {
        (position.item..position.item + position.items)
            .map(|item| (item, usize::try_from(item_buckets[item] - 1).unwrap_or(usize::MAX)))
    };
    let is_credit = |position: &Position| call_ops[position.call] == Op::Credit;
    let mut left_open: Vec<bool> = balances.iter().map(Option::is_none).collect();
    let mut is_left_open = Vec::with_capacity(batch.positions.len());
    for position in &batch.positions {
        let is_open = !is_credit(position) && asked(position).any(|(_, bucket)| left_open[bucket]);
        if is_open {
            asked(position).for_each(|(_, bucket)| left_open[bucket] = true);
        }
        is_left_open.push(is_open);
    }
    let mut answers = vec![Answer::open(); batch.positions.len()];
    let done = |items| Answer { ok: true, wait: None, items };
    for (nth, position) in
        batch.positions.iter().enumerate().rev().filter(|(nth, position)| !is_left_open[*nth] && !is_credit(position))
    {
        let item = |(item, bucket): (usize, usize)| {
            let balance = balances[bucket].as_mut()?;
            let remaining = if *balance <= 1e-9 { 0.0 } else { *balance }; // Ignores rounding errors.
            *balance += item_counts[item];
            Some(ItemAnswer { denied: false, balance: remaining, peeked: None })
        };
        answers[nth] = done(asked(position).filter_map(item).collect());
    }
    for (nth, position) in batch.positions.iter().enumerate().filter(|(_, position)| is_credit(position)) {
        let item = |(_, bucket): (usize, usize)| {
            let balance = balances[bucket].or_else(|| only_credited.get(ranks[bucket]).copied().flatten());
            Some(ItemAnswer { denied: false, balance: balance?, peeked: None })
        };
        answers[nth] = done(asked(position).map(item).collect::<Option<_>>().ok_or_else(missing)?);
    }
    Ok(answers)
}

/// Converts the result of `_take_slots`. A call is undecided if its bucket has no balance here.
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
    answers.ok_or_else(|| sqlx::Error::Decode("_take_slots returned fewer balances than buckets".into()))
}

/// Reads the answers from four columns, starting at this one.
pub(super) fn of_several(row: &PgRow, first: usize, batch: &Batch) -> Result<Vec<Answer>, sqlx::Error> {
    answers_of(&Results::of_several(row, first)?, batch)
}

fn answers_of(results: &Results, batch: &Batch) -> Result<Vec<Answer>, sqlx::Error> {
    let times = &batch.arrays.call_times;
    let ops = &batch.arrays.call_ops;
    let answer = |position: &Position| match *ops.get(position.call)? {
        Op::Peek => results.of_peek(position),
        op => results.of(position, times, op),
    };
    let answers: Option<Vec<Answer>> = batch.positions.iter().map(answer).collect();
    answers.ok_or_else(|| sqlx::Error::Decode("_decide returned fewer answers than calls".into()))
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

    /// Reads {balance, waited}, if one UPDATE has taken all tokens, or else {admitted, wait, balance, waited}.
    fn of_one(row: &PgRow) -> Result<Self, sqlx::Error> {
        let missing = || sqlx::Error::Decode("the function for one call returned no number".into());
        let numbers: Vec<Option<f64>> = row.try_get(0)?;
        let (admitted, wait, value) = match *numbers.as_slice() {
            [Some(balance), _] => {
                return Ok(Self { admitted: None, waits: None, denied: None, balances: vec![balance] });
            }
            [admitted, wait, value, _] => (admitted, wait, value),
            _ => return Err(missing()),
        };
        Ok(Self {
            admitted: Some(vec![admitted.ok_or_else(missing)? as i32]),
            waits: Some(vec![wait.map(|micros| micros as i64)]),
            // The only item denies every denied call.
            denied: Some(vec![true]),
            balances: vec![value.ok_or_else(missing)?],
        })
    }

    /// Reads the balances, if the buckets cover the call, or else {admitted, wait, the balances, whether each bucket denies}. They are in
    /// the order of the locks.
    fn of_few(row: &PgRow, batch: &Batch) -> Result<Self, sqlx::Error> {
        let missing = || sqlx::Error::Decode("_take_few returned fewer numbers than buckets".into());
        let numbers: Vec<Option<f64>> = row.try_get(0)?;
        let ranks = &batch.order().ranks;
        let in_order = |numbers: &[Option<f64>]| -> Result<Vec<f64>, sqlx::Error> {
            ranks.iter().map(|rank| numbers.get(*rank).copied().flatten().ok_or_else(missing)).collect()
        };
        match numbers.as_slice() {
            balances if balances.len() == ranks.len() => {
                Ok(Self { admitted: None, waits: None, denied: None, balances: in_order(balances)? })
            }
            [Some(admitted), wait, rest @ ..] => {
                let (balances, denied) = rest.split_at_checked(ranks.len()).ok_or_else(missing)?;
                Ok(Self {
                    admitted: Some(vec![*admitted as i32]),
                    waits: Some(vec![wait.map(|micros| micros as i64)]),
                    denied: Some(in_order(denied)?.into_iter().map(|denied| denied != 0.0).collect()),
                    balances: in_order(balances)?,
                })
            }
            _ => Err(missing()),
        }
    }

    /// Each item of a peek was a call of its own.
    fn of_peek(&self, position: &Position) -> Option<Answer> {
        let item = |nth: usize| {
            Some(ItemAnswer {
                denied: self.denied.as_ref().map_or(Some(false), |denied| denied.get(position.item + nth).copied())?,
                balance: *self.balances.get(position.item + nth)?,
                peeked: *self.waits.as_ref()?.get(position.call + nth)?,
            })
        };
        Some(Answer { ok: true, wait: None, items: (0..position.items).map(item).collect::<Option<_>>()? })
    }

    fn of(&self, position: &Position, times: &[i32], op: Op) -> Option<Answer> {
        let admitted = match &self.admitted {
            Some(admitted) => *admitted.get(position.call)?,
            None => *times.get(position.call)?,
        };
        let ok = position.time < admitted;
        let wait = match &self.waits {
            Some(waits) => *waits.get(position.call)?,
            None => None,
        };
        let balances = self.balances.get(position.item..position.item + position.items)?;
        // The repetitions that were allowed later took their tokens from what this one left.
        let after_this = if ok { f64::from(admitted - 1 - position.time) * position.count } else { 0.0 };
        let item = |(nth, balance): (usize, &f64)| {
            let denied = match &self.denied {
                // A release gives back what is still held, whatever else has ended.
                Some(denied) => *denied.get(position.item + nth)? && (!ok || op == Op::Release),
                None => false,
            };
            Some(ItemAnswer { denied, balance: balance + after_this, peeked: None })
        };
        // A call that is made several times reserves nothing: its wait is for the repetitions that were denied.
        let wait = if ok && times.get(position.call).is_some_and(|times| *times > 1) { None } else { wait };
        let items: Vec<ItemAnswer> = balances.iter().enumerate().map(item).collect::<Option<_>>()?;
        let ok = ok && (op != Op::Release || !items.iter().any(|item| item.denied));
        Some(Answer { ok, wait, items })
    }
}
