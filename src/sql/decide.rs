//! Calls as the arrays of `rate_limit_decide`, and its arrays as answers.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{PgConnection, Row};

use crate::call::{Balances, Decision, LimitState, Op, Outcome, Resolved, ResolvedItem};
use crate::limit::Limit;
use crate::sql::Statements;

/// A call, and the clock's reading for it in microseconds since the Unix epoch; `None` is the database's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) call: &'a Resolved,
    pub(crate) at: Option<i64>,
}

/// What the function said of one call.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    ok: bool,
    /// In microseconds.
    wait: Option<i64>,
    /// One a resolved item.
    refused: Vec<bool>,
    balances: Vec<f64>,
}

impl Answer {
    pub(crate) fn decision(&self, call: &Resolved) -> Decision {
        let wait = self.wait.map(|micros| Duration::from_micros(micros.unsigned_abs()));
        let outcome = match (self.ok, wait) {
            (true, None) => Outcome::Allowed,
            (true, Some(wait)) => Outcome::Reserved { wait },
            (false, wait) => Outcome::Denied { retry_after: wait.unwrap_or_default() },
        };
        let state = |place: &usize| LimitState {
            limit: call.items[*place].name.clone(),
            remaining: self.balances[*place],
            refused: self.refused[*place],
        };
        Decision { outcome, limits: call.places.iter().map(state).collect() }
    }

    pub(crate) fn balances(&self, call: &Resolved) -> Balances {
        Balances::new(call.places.iter().map(|place| self.balances[*place]).collect())
    }
}

/// Decides the calls in their order, in one statement.
pub(crate) async fn decide(
    conn: &mut PgConnection,
    statements: &Statements,
    requests: &[Request<'_>],
) -> Result<Vec<Answer>, sqlx::Error> {
    let arguments = Arguments::of(requests);
    let row = sqlx::query(statements.decide.clone())
        .bind(arguments.limit_kinds)
        .bind(arguments.limit_rates)
        .bind(arguments.limit_periods)
        .bind(arguments.limit_capacities)
        .bind(arguments.limit_max_reserved)
        .bind(arguments.limit_starts)
        .bind(arguments.limit_resolutions)
        .bind(arguments.bucket_names)
        .bind(arguments.bucket_keys)
        .bind(arguments.item_buckets)
        .bind(arguments.item_limits)
        .bind(arguments.item_counts)
        .bind(arguments.call_ops)
        .bind(arguments.call_reserves)
        .bind(arguments.call_sizes)
        .bind(arguments.call_ats)
        .fetch_one(conn)
        .await?;
    let mut ok = row.try_get::<Vec<bool>, _>(0)?.into_iter();
    let mut waits = row.try_get::<Vec<Option<i64>>, _>(1)?.into_iter();
    let mut refused = row.try_get::<Vec<bool>, _>(2)?.into_iter();
    let mut balances = row.try_get::<Vec<f64>, _>(3)?.into_iter();
    let answer = |request: &Request<'_>| {
        let items = request.call.items.len();
        let answer = Answer {
            ok: ok.next()?,
            wait: waits.next()?,
            refused: refused.by_ref().take(items).collect(),
            balances: balances.by_ref().take(items).collect(),
        };
        (answer.refused.len() == items && answer.balances.len() == items).then_some(answer)
    };
    let answers: Option<Vec<Answer>> = requests.iter().map(answer).collect();
    answers.ok_or_else(|| sqlx::Error::Decode("rate_limit_decide answered fewer calls than were asked".into()))
}

#[derive(Default)]
struct Arguments<'a> {
    limit_kinds: Vec<&'static str>,
    limit_rates: Vec<f64>,
    limit_periods: Vec<i64>,
    limit_capacities: Vec<Option<f64>>,
    limit_max_reserved: Vec<Option<f64>>,
    limit_starts: Vec<Option<i64>>,
    limit_resolutions: Vec<Option<i32>>,
    bucket_names: Vec<&'a str>,
    bucket_keys: Vec<&'a str>,
    item_buckets: Vec<i32>,
    item_limits: Vec<i32>,
    item_counts: Vec<f64>,
    call_ops: Vec<&'static str>,
    call_reserves: Vec<bool>,
    call_sizes: Vec<i32>,
    call_ats: Option<Vec<Option<i64>>>,
}

impl<'a> Arguments<'a> {
    fn of(requests: &[Request<'a>]) -> Self {
        let mut arguments = Self::default();
        let mut limits: Vec<Limit> = Vec::new();
        let mut buckets: HashMap<(&'a str, &'a str), i32> = HashMap::new();
        for request in requests {
            arguments.call_ops.push(request.call.op.as_str());
            arguments.call_reserves.push(request.call.reserve && matches!(request.call.op, Op::Limit | Op::Check));
            arguments.call_sizes.push(index(request.call.items.len()));
            for item in &request.call.items {
                let limit = arguments.limit(&mut limits, &item.limit);
                let bucket = arguments.bucket(&mut buckets, item);
                arguments.item_limits.push(limit);
                arguments.item_buckets.push(bucket);
                arguments.item_counts.push(item.count);
            }
        }
        if requests.iter().any(|request| request.at.is_some()) {
            arguments.call_ats = Some(requests.iter().map(|request| request.at).collect());
        }
        arguments
    }

    /// The place of the limit, from 1 on. There are few different ones in a statement.
    fn limit(&mut self, limits: &mut Vec<Limit>, limit: &Limit) -> i32 {
        if let Some(place) = limits.iter().position(|other| other == limit) {
            return index(place + 1);
        }
        limits.push(*limit);
        self.limit_kinds.push(limit.kind().as_str());
        self.limit_rates.push(limit.rate());
        self.limit_periods.push(limit.period_micros());
        self.limit_capacities.push(limit.given_capacity());
        self.limit_max_reserved.push(limit.max_reserved());
        self.limit_starts.push(limit.start_micros());
        self.limit_resolutions.push(limit.given_resolution().and_then(|parts| i32::try_from(parts).ok()));
        index(limits.len())
    }

    /// The place of the bucket, from 1 on.
    fn bucket(&mut self, buckets: &mut HashMap<(&'a str, &'a str), i32>, item: &'a ResolvedItem) -> i32 {
        let next = index(buckets.len() + 1);
        *buckets.entry((&*item.name, &*item.key)).or_insert_with(|| {
            self.bucket_names.push(&item.name);
            self.bucket_keys.push(&item.key);
            next
        })
    }
}

/// An index into an array of PostgreSQL. What does not fit would not fit into a message either.
fn index(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(i32::MAX)
}
