//! Runs the worked examples of `tests/data/kinds.jsonl` through the library on the recorded clock: call by call, and each
//! example in one statement.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use pg_limiter::sqlx::{Connection, PgConnection};
use pg_limiter::{Call, CallAt, Decision, InvalidCall, Item, Kind, LeaseId, Limits, Op, TransactionLimiter};
use serde::Deserialize;

use crate::support::Database;

#[derive(Deserialize)]
struct Example {
    name: String,
    limits: String,
    events: Vec<Event>,
    expect: Vec<Expect>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    /// In milliseconds.
    at: u64,
    op: String,
    limit: Option<String>,
    #[serde(default)]
    key: String,
    count: Option<f64>,
    #[serde(default)]
    leave: f64,
    #[serde(default)]
    all: Vec<Part>,
    lease: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    limit: String,
    key: String,
}

#[derive(Deserialize)]
struct Expect {
    ok: Option<bool>,
    retry_after_ms: Option<f64>,
    error: Option<String>,
    denied_by: Option<Vec<String>>,
}

/// Converts the events to calls on keys of their own. A release or renewal is of the last call with its lease.
fn calls(events: &[Event], prefix: &str, limits: &Limits) -> Vec<CallAt> {
    let mut held: HashMap<String, Call> = HashMap::new();
    let call = |(nth, event): (usize, &Event)| {
        let lease = event.lease.as_deref().unwrap_or_default();
        let key = |key: &str| format!("{prefix} {key}");
        let op = match event.op.as_str() {
            "limit" => Op::Limit,
            "check" => Op::Check,
            "release" => Op::Release,
            "renew" => Op::Renew,
            other => panic!("the operation {other}"),
        };
        let call = if matches!(op, Op::Release | Op::Renew) {
            held[lease].clone()
        } else {
            let items: Vec<Item> = match &event.limit {
                Some(limit) => {
                    let item = Item::new(limit.as_str(), key(&event.key)).count(event.count.unwrap_or(1.0));
                    vec![item.leave(event.leave)]
                }
                None => event.all.iter().map(|part| Item::new(part.limit.as_str(), key(&part.key))).collect(),
            };
            let has_slots =
                |item: &Item| limits.get(item.limit_name()).map(|limit| limit.kind()) == Some(Kind::Concurrency);
            let mut call = Call::from(items);
            if op == Op::Limit && call.items().iter().any(has_slots) {
                call = call.lease(LeaseId::new(nth as i64 + 2).expect("an id"));
                held.insert(lease.to_owned(), call.clone());
            }
            call
        };
        CallAt::new(UNIX_EPOCH + Duration::from_millis(event.at), op, call)
    };
    events.iter().enumerate().map(call).collect()
}

impl Expect {
    fn compare(&self, place: &str, decision: Result<Decision, InvalidCall>) {
        let decision = match (decision, &self.error) {
            (Ok(decision), None) => decision,
            (Err(error), Some(expected)) => return assert_eq!(error.code(), expected, "{place}"),
            (decision, expected) => panic!("{place}: {decision:?}, expected the error {expected:?}"),
        };
        assert_eq!(Some(!decision.is_denied()), self.ok, "{place}");
        if let Some(denied_by) = &self.denied_by {
            assert_eq!(decision.denied_by(), *denied_by, "{place}");
        }
        let wait = decision.retry_after().or(decision.wait()).filter(|wait| !wait.is_zero());
        match (wait.map(|wait| wait.as_secs_f64() * 1000.0), self.retry_after_ms) {
            (None, None) => {}
            (Some(wait), Some(expected)) if (wait - expected).abs() <= 0.002 => {}
            (wait, expected) => panic!("{place}: retry after {wait:?}, expected {expected:?}"),
        }
    }
}

#[tokio::test]
async fn recorded_calls_get_the_worked_answers_one_by_one_and_together() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let mut compared = 0;
    for line in include_str!("../data/kinds.jsonl").lines() {
        let Example { name, limits, events, expect } = serde_json::from_str(line).expect("an example");
        let limits = Limits::from_toml(&limits).expect("a limits file");
        let limiter = TransactionLimiter::new(limits.clone());
        for together in [false, true] {
            let calls = calls(&events, &format!("{together} {name}"), &limits);
            let mut decisions = Vec::new();
            for part in calls.chunks(if together { calls.len() } else { 1 }) {
                decisions.extend(limiter.decide_at(&mut conn, part).await.expect("decisions"));
            }
            for (nth, (decision, expect)) in decisions.into_iter().zip(&expect).enumerate() {
                expect.compare(&format!("{name} event {nth}, together: {together}"), decision);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 2 * 2_112);
}
