//! Sharded limits, compared with the model, which has no shards.

use pg_limiter::sqlx::{self, PgConnection, Row};
use proptest::prelude::*;

use crate::model::{Item, Kind, Model, Rule, Verdict};
use crate::properties::{ALL, Event, HOURS, NOW, Said, check, event, play, rule, step_at};
use crate::support::{Answer, Step, decide};

const SHARDS: [u32; 6] = [1, 2, 3, 5, 16, 40];

fn sharded(rules: &[Rule; 3], shards: u32) -> [Rule; 3] {
    rules.clone().map(|rule| Rule { shards, ..rule })
}

/// Whether the balances were read, and not estimated.
fn is_exact(step: &Step<'_>, ok: bool) -> bool {
    let all_of_it = step.op == "credit" || step.op == "reset" || (step.op == "check" && step.items[0].3 == 0.0) || !ok;
    step.items.len() == 1 && all_of_it
}

fn compare(step: &Step<'_>, answer: &Answer, (ok, wait, balance, by): &Said) {
    assert_eq!(answer.ok, *ok, "{step:?}: {answer:?}, the model says {wait:?} {balance}");
    match (answer.wait, wait) {
        (None, None) => {}
        (Some(said), Some(wait)) if (said as f64 - wait).abs() <= 2.0 + wait * 1e-9 => {}
        (said, wait) => panic!("{step:?}: wait {said:?}, the model says {wait:?}"),
    }
    if is_exact(step, *ok) {
        assert!((answer.value - balance).abs() < 1e-6, "{step:?}: balance {}, the model says {balance}", answer.value);
    }
    let refused = step.items.iter().zip(&answer.refused).filter(|(_, refused)| **refused);
    let mut refused: Vec<String> = refused.map(|((name, ..), _)| (*name).to_owned()).collect();
    refused.dedup();
    assert_eq!(refused, *by, "{step:?}");
}

/// Runs the events under rules with these numbers of shards in turn, `size` events in a statement.
async fn follow(conn: &mut PgConnection, rules: &[Rule; 3], events: &[Event], shards: &[usize], size: usize) {
    let worlds = SHARDS.map(|shards| sharded(rules, shards));
    let played = play(rules, events);
    let steps = played.iter().enumerate().map(|(nth, (event, at, _))| {
        let world = &worlds[shards[nth % shards.len()] % worlds.len()];
        step_at(world, event, *at)
    });
    let steps: Vec<Step<'_>> = steps.collect();
    for (steps, played) in steps.chunks(size).zip(played.chunks(size)) {
        let answers = decide(conn, steps).await.expect("decisions");
        for ((step, answer), (.., said)) in steps.iter().zip(&answers).zip(played) {
            compare(step, answer, said);
        }
        all_rows_or_none(conn).await;
    }
}

/// Each bucket has as many rows as each of its rows states.
async fn all_rows_or_none(conn: &mut PgConnection) {
    let sql = "SELECT name, key, count(*) = max(shards) AND min(shards) = max(shards) AND max(shard) = max(shards) - 1
        FROM rate_limit.rate_limits GROUP BY name, key";
    for row in sqlx::query(sql).fetch_all(conn).await.expect("rows") {
        let (name, key): (&str, &str) = (row.get(0), row.get(1));
        assert!(row.get::<bool, _>(2), "{name} {key} has not all of its rows");
    }
}

fn some_shards() -> impl Strategy<Value = Vec<usize>> {
    // One number of shards throughout, or one that changes all the time.
    prop_oneof![proptest::collection::vec(0..SHARDS.len(), 1), proptest::collection::vec(0..SHARDS.len(), 7)]
}

// In these tests the clock runs forward. If it steps back, the time of a bucket stands still until the clock passes it again.
// With shards, the time of each row does so separately, and other rows follow the clock.

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![Just(1), 2..12_usize, Just(1000)]
}

/// A sliding window loses no tokens to overflow, so at all times it behaves the same when it is spread over rows.
#[test]
fn a_sharded_sliding_window_decides_like_one_row() {
    let rules = [rule(&[Kind::SlidingWindow]), rule(&[Kind::SlidingWindow]), rule(&[Kind::SlidingWindow])];
    let worlds = (rules, proptest::collection::vec(event(), 1..60), some_shards(), sizes());
    check(150, &worlds, async |conn: &mut PgConnection, (rules, mut events, shards, size)| {
        for event in &mut events {
            event.pause = event.pause.abs();
        }
        follow(conn, &rules, &events, &shards, size).await;
    });
}

/// While nothing flows in, shards of any kind decide as one row would, whatever the calls and however the number of shards
/// changes.
#[test]
fn shards_decide_like_one_row_while_nothing_flows_in() {
    let rules = [rule(ALL), rule(ALL), rule(ALL)];
    let worlds = (rules, proptest::collection::vec(event(), 1..60), some_shards(), sizes());
    check(200, &worlds, async |conn: &mut PgConnection, (rules, mut events, shards, size)| {
        for event in &mut events {
            (event.pause, event.obey) = (0, false);
        }
        follow(conn, &rules, &events, &shards, size).await;
    });
}

/// The balance of all rows together. Asserts that either no row owes tokens, or all rows are equal.
async fn held(conn: &mut PgConnection, rule: &Rule, now: i64) -> f64 {
    let rows = sqlx::query("SELECT value, ts, shards FROM rate_limit.rate_limits").fetch_all(conn).await.expect("rows");
    let balance = rows.iter().map(|row| {
        let (value, ts, shards): (f64, i64, i32) = (row.get(0), row.get(1), row.get(2));
        let part = |tokens: f64| tokens / f64::from(shards);
        let inflow = match rule.kind {
            Kind::TokenBucket => (now - ts).max(0) as f64 * part(rule.rate) / rule.period_us as f64,
            _ => (rule.window(now.max(ts)) - rule.window(ts)) as f64 * part(rule.rate),
        };
        (value + inflow).min(part(rule.capacity.unwrap_or(rule.rate)))
    });
    let balances: Vec<f64> = balance.collect();
    let (least, most) = balances.iter().fold((0.0, f64::NEG_INFINITY), |(a, b), &x| (f64::min(a, x), f64::max(b, x)));
    assert!(least >= -1e-6 || most - least < 1e-6, "some owe, some have: {balances:?}");
    if rows.is_empty() { rule.capacity.unwrap_or(rule.rate) } else { balances.iter().sum() }
}

/// Over time, shards never grant more than one row would, never deny what the rows have together, and keep every promised
/// time, while the number of shards may change.
#[test]
fn shards_never_grant_more_than_one_row_and_deny_nothing_they_have() {
    const FLOWING: &[Kind] = &[Kind::TokenBucket, Kind::FixedWindow, Kind::CalendarWindow(HOURS)];
    let step = (
        prop_oneof![3 => 0..60_i64, 3 => 0..400_i64, 1 => 400..4_000_i64],
        any::<bool>(),
        0..24_u32,
        prop_oneof![Just((false, 0)), Just((true, 0)), (0..40_u32).prop_map(|leave| (false, leave))],
        1..4_usize,
    );
    let worlds = (rule(FLOWING), proptest::collection::vec(step, 1..50), some_shards());
    check(80, &worlds, async |conn: &mut PgConnection, (rule, steps, shards)| {
        let worlds = SHARDS.map(|shards| Rule { shards, ..rule.clone() });
        let (mut model, mut now, mut promised) = (Model::new(), NOW, None);
        for (nth, (pause, obey, quarters, (reserve, leave), times)) in steps.into_iter().enumerate() {
            now += pause * rule.period_us / 1000;
            if let Some(wait) = promised.take().filter(|_| obey) {
                now += wait;
            }
            let sharded = &worlds[shards[nth % shards.len()] % worlds.len()];
            let count = f64::from(quarters) / 4.0;
            let leave = f64::from(leave) / 4.0;
            let items = [Item { limit: "a", key: "k", rule: &rule, count, leave }];
            let leaves = vec![leave];
            let ask = |op, at, count| {
                let items = vec![("a", "k", sharded, count)];
                Step { op, reserve, at: Some(at), items, leaves: leaves.clone() }
            };
            for _ in 0..times {
                let verdict = model.check(now, &items, reserve);
                if matches!(verdict, Verdict::Impossible(_)) {
                    break;
                }
                let exactly = model.balance(now, "a", "k", &rule);
                let held = held(conn, &rule, now).await;
                let look = Step { leaves: Vec::new(), reserve: false, ..ask("check", now, 0.0) };
                let looked = &decide(conn, &[look]).await.expect("a balance")[0];
                assert!(looked.value <= exactly + 1e-6, "{} of {exactly}", looked.value);
                assert!(looked.value >= held - 1e-6, "{} of {held}", looked.value);
                let checked = decide(conn, &[ask("check", now, count)]).await.expect("a decision").remove(0);
                let answer = decide(conn, &[ask("limit", now, count)]).await.expect("a decision").remove(0);
                assert_eq!((checked.ok, checked.wait), (answer.ok, answer.wait));
                if answer.ok {
                    match (answer.wait, model.limit(now, &items, reserve)) {
                        (None | Some(_), Verdict::Allowed { .. }) => {}
                        (Some(said), Verdict::Reserved { wait_us, .. }) => {
                            assert!(said as f64 >= wait_us - 2.0 - wait_us * 1e-9)
                        }
                        (said, verdict) => panic!("{said:?}, the model says {verdict:?}"),
                    }
                } else {
                    let least = if reserve { rule.max_reserved.map_or(f64::NEG_INFINITY, |most| -most) } else { leave };
                    assert!(held - count < least + 1e-6, "denied {count} of {held}");
                    let wait = answer.wait.expect("a time to wait for");
                    let at = |wait: i64| decide_one(ask("check", now + wait, count));
                    assert!(at(wait)(conn).await.ok, "{wait} was promised for {count}");
                    let early = if rule.kind != Kind::TokenBucket { wait - 2 } else { wait - wait / 1000 - 2 };
                    assert!(early < 0 || !at(early)(conn).await.ok, "{count} was allowed after {early} of {wait}");
                    promised = Some(wait);
                }
                all_rows_or_none(conn).await;
            }
        }
    });
}

fn decide_one<'s>(step: Step<'s>) -> impl AsyncFnOnce(&mut PgConnection) -> Answer {
    async move |conn: &mut PgConnection| decide(conn, &[step]).await.expect("a decision").remove(0)
}
