//! Headroom: calls that are allowed only if they leave tokens in the bucket.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::queue::Job;
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, PgPool};
use pg_limiter::{
    Call, Connections, Decision, DenialMemory, Error, InvalidCall, Isolation, Item, Limit, Limiter, Limits, Op, Outcome,
};
use serde_json::{Value, json};

use crate::queue::queue_with;
use crate::rate_limit_all::{bucket, call, refused, with};
use crate::shards_contended::LEVELS;
use crate::support::Database;
use crate::support::gate::{CENTURY, Gate, limiter};

const CAPACITY: f64 = 100.0;
const KINDS: [&str; 3] = ["bucket", "fixed", "sliding"];

/// One limit of each kind, which hardly refills while a test runs.
fn limits(shards: u32) -> Limits {
    Limits::new()
        .define("bucket", Limit::token_bucket(CAPACITY, CENTURY).shards(shards))
        .and_then(|limits| limits.define("fixed", Limit::fixed_window(CAPACITY, CENTURY).shards(shards)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(CAPACITY, CENTURY).shards(shards)))
        .expect("limits")
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-4
}

/// Makes the call in the limiter's own transaction, or in one of this isolation level.
async fn ask(limiter: &Limiter, level: Option<&str>, op: Op, call: Call) -> Decision {
    let Some(level) = level else {
        let decided = if op == Op::Check { limiter.check(call).await } else { limiter.limit(call).await };
        return decided.expect("a decision");
    };
    let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
    let mut tx = limiter.pool().begin_with(begin).await.expect("begin");
    let within = limiter.within(&mut tx);
    let decided = if op == Op::Check { within.check(call).await } else { within.limit(call).await };
    tx.commit().await.expect("commit");
    decided.expect("a decision")
}

#[tokio::test]
async fn a_call_is_allowed_only_if_it_leaves_its_headroom() {
    for shards in [1, 4] {
        let database = Database::migrated().await;
        let limiter = limiter(&database.pool, limits(shards), |_| {});
        for name in KINDS {
            for (nth, level) in [None].into_iter().chain(LEVELS.map(Some)).enumerate() {
                let key = format!("{nth}");
                let item = |count: f64, leave: f64| Item::new(name, key.as_str()).count(count).leave(leave);
                let asked = async |call: Call, left: f64| {
                    let checked = ask(&limiter, level, Op::Check, call.clone()).await;
                    let decision = ask(&limiter, level, Op::Limit, call).await;
                    assert_eq!(checked.is_denied(), decision.is_denied(), "{name}, {level:?}");
                    let balance = limiter.peek(item(7.0, 50.0)).await.expect("a balance").remaining();
                    assert!(near(balance, left), "{name}, {shards} shards, {level:?}: {balance}, not {left}");
                    decision
                };
                assert!(asked(item(50.0, 40.0).into(), 50.0).await.is_allowed());
                let denied = asked(item(20.0, 40.0).into(), 50.0).await;
                assert_eq!(denied.denied_by(), [name]);
                assert!(near(denied.remaining(), 50.0), "{denied:?}");
                let wait = denied.retry_after().expect("a wait");
                match name {
                    // 10 tokens are missing.
                    "bucket" => assert!(wait.abs_diff(CENTURY / 10) < CENTURY / 10_000, "{wait:?}"),
                    _ => assert!(wait > Duration::from_secs(3600), "{wait:?}"),
                }
                assert!(asked(item(10.0, 40.0).into(), 40.0).await.is_allowed(), "{name}, {shards}, {level:?}");
                assert!(asked(item(0.0, 40.0).into(), 40.0).await.is_allowed());
                assert!(asked(item(0.0, 41.0).into(), 40.0).await.is_denied());
                let fraction = Item::new(name, key.as_str()).leave_fraction(0.4);
                assert!(asked(fraction.clone().into(), 40.0).await.is_denied());
                assert!(asked(fraction.leave_fraction(0.39).into(), 39.0).await.is_allowed());
                // The counts on one bucket add up, and the larger headroom holds.
                assert!(asked([item(5.0, 30.0), item(5.0, 1.0)].into(), 39.0).await.is_denied());
                assert!(asked([item(5.0, 1.0), item(4.0, 30.0)].into(), 30.0).await.is_allowed());
                assert!(asked(item(1.0, 30.0).into(), 30.0).await.is_denied());
                assert!(asked(item(30.0, 0.0).into(), 0.0).await.is_allowed());
            }
        }
    }
}

#[tokio::test]
async fn a_headroom_in_a_group_denies_the_whole_group() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(1), |_| {});
    for level in [None].into_iter().chain(LEVELS.map(Some)) {
        let key = level.unwrap_or("own");
        let group = |leave: f64| {
            let items = [Item::new("bucket", key), Item::new("fixed", key).leave(leave), Item::new("sliding", key)];
            Call::from(items)
        };
        let balances = async || limiter.peek(group(0.0)).await.expect("balances").to_vec();
        // On new rows, and on existing ones.
        for left in [99.0, 98.0] {
            assert!(ask(&limiter, level, Op::Limit, group(left)).await.is_allowed());
            let denied = ask(&limiter, level, Op::Limit, group(left)).await;
            assert_eq!(denied.denied_by(), ["fixed"]);
            assert!(balances().await.iter().all(|balance| near(*balance, left)), "{:?}", balances().await);
        }
    }
}

fn refusal(result: Result<Decision, Error>) -> InvalidCall {
    match result {
        Err(Error::Invalid(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_invalid_headroom_is_rejected_before_anything_is_sent() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(1), |_| {});
    let item = |count: f64| Item::new("bucket", "k").count(count);
    let error = refusal(limiter.limit(item(60.5).leave(40)).await);
    let expected = "the count 60.5 can never be served by the limit \"bucket\", which grants at most 60 and leaves 40; lower the \
                    count, or leave less";
    assert_eq!((error.code(), error.to_string().as_str()), ("count_exceeds_capacity", expected));
    let error = refusal(limiter.check([item(30.0).leave(40), item(31.0).leave(1)]).await);
    assert!(
        matches!(error, InvalidCall::CountExceedsCapacity { count: 61.0, leave: 40.0, max: 60.0, .. }),
        "{error:?}"
    );
    for leave in [-1.0, 100.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = refusal(limiter.limit(item(0.0).leave(leave)).await);
        let expected = format!(
            "the headroom {leave} for the limit \"bucket\" is not valid; use a number from 0 to the capacity, 100"
        );
        assert_eq!((error.code(), error.to_string()), ("invalid_leave", expected));
    }
    for fraction in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let error = refusal(limiter.limit(item(0.0).leave_fraction(fraction)).await);
        assert_eq!(error.code(), "invalid_leave");
        assert!(error.to_string().contains(&format!("the fraction {fraction}; use a fraction from 0 to 1")), "{error}");
    }
    let error = refusal(limiter.limit(item(1.0).leave(1).reserve()).await);
    let expected = "the call has a headroom for the limit \"bucket\", which only limit and check without a reservation support; \
                    remove the headroom";
    assert_eq!((error.code(), error.to_string().as_str()), ("leave_unsupported", expected));
    for op in [Op::Credit, Op::Charge, Op::Reset] {
        let error = Call::from(item(1.0).leave(1)).validate(op, &limiter.limits()).expect_err("no headroom");
        assert_eq!(error.code(), "leave_unsupported", "{op:?}");
        assert_eq!(Call::from(item(1.0).leave(0)).validate(op, &limiter.limits()), Ok(()));
    }
    assert!(limiter.limit(item(1.0).leave(0).reserve()).await.expect("a decision").is_allowed());
    assert_eq!(database.rows().await, 1);
    // A job reserves.
    let queue = queue_with(&database, limits(1)).await;
    let job = Job::new(item(1.0).leave(1), &1).expect("a job");
    let error = queue.enqueue(job).await.expect_err("no headroom");
    assert!(matches!(error, Error::Invalid(InvalidCall::HeadroomUnsupported { .. })), "{error}");
}

/// Any caller may send any arrays.
#[tokio::test]
async fn the_deciding_functions_reject_an_invalid_headroom() {
    let database = Database::migrated().await;
    let mut conn = database.app.acquire().await.expect("a connection");
    let mut decide = async |most: &str, op: &str, reserves: &str, times: &str| -> Result<i32, String> {
        let sql = format!(
            "SELECT coalesce(call_admitted[1], 1) FROM rate_limit._decide(ARRAY['token_bucket'], ARRAY[10::float8], \
             ARRAY[3155760000000000], NULL, ARRAY[{most}]::float8[], NULL, NULL, NULL, ARRAY['d'], ARRAY['{times}'], NULL, \
             NULL, ARRAY[1::float8], {op}, {reserves}, NULL, {times}, NULL)"
        );
        let row = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *conn).await;
        row.map_err(|error| error.as_database_error().expect("of the database").message().to_owned())
    };
    for most in ["-10.5", "-1e13", "'-Infinity'", "'NaN'"] {
        assert_eq!(decide(most, "NULL", "NULL", "NULL").await, Err("limit 1 is not valid".to_owned()), "{most}");
    }
    let unsupported =
        |what: &str| Err(format!("leave_unsupported: {what} of the limit \"d\" cannot leave tokens in its bucket"));
    assert_eq!(decide("-1", "NULL", "ARRAY[true]", "NULL").await, unsupported("a reservation"));
    for op in ["credit", "charge", "reset"] {
        let expected = unsupported(&format!("the operation \"{op}\""));
        assert_eq!(decide("-1", &format!("ARRAY['{op}']"), "NULL", "NULL").await, expected);
    }
    let expected = "count_exceeds_capacity: the count 1 can never be served by the limit \"d\", which grants at most 0.5 and \
                    leaves 9.5";
    assert_eq!(decide("-9.5", "NULL", "NULL", "NULL").await, Err(expected.to_owned()));
    // A call that is made several times is allowed as often as its headroom is left.
    assert_eq!(decide("-7.5", "NULL", "NULL", "ARRAY[20]").await, Ok(2));
    assert_eq!(decide("-7.5", "NULL", "NULL", "ARRAY[20]").await, Ok(0));
    assert_eq!(decide("-7", "NULL", "NULL", "ARRAY[20]").await, Ok(1));
    assert_eq!(decide("NULL", "NULL", "NULL", "ARRAY[7]").await, Ok(7));
    // The functions for one call, and for few buckets.
    let sql = "SELECT rate_limit._decide_one('one', 'k', 'token_bucket', 10, 3155760000000000, 10, -6, NULL, 1, 1, 3, 1, false)";
    for allowed in [1.0, 0.0] {
        let answer: Vec<Option<f64>> = sqlx::query_scalar(sql).fetch_one(&database.app).await.expect("an answer");
        assert_eq!(answer[0], Some(allowed));
    }
    let sql = "SELECT call_admitted FROM rate_limit._decide(ARRAY['token_bucket', 'token_bucket'], ARRAY[10::float8, 10], \
               ARRAY[3155760000000000, 3155760000000000], NULL, ARRAY[NULL, -6]::float8[], NULL, NULL, NULL, \
               ARRAY['few', 'few'], ARRAY['k', 'l'], NULL, ARRAY[1, 2], ARRAY[3::float8, 3], NULL, NULL, ARRAY[2], NULL, NULL)";
    // In one session, because the first decision of a session is slow and does not go the fast way.
    for allowed in [1, 0, 0, 0, 0] {
        let admitted: Option<Vec<i32>> = sqlx::query_scalar(sql).fetch_one(&mut *conn).await.expect("an answer");
        assert_eq!(admitted, Some(vec![allowed]));
    }
}

/// A repetition after an unknown outcome must not take tokens twice because it asks for another headroom.
#[tokio::test]
async fn a_repeated_call_may_have_another_headroom() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(1), |_| {});
    let call = |key: &str, leave: f64| Call::from(Item::new("bucket", "k").leave(leave)).idempotency_key(key);
    let first = limiter.limit(call("1", 99.0)).await.expect("a decision");
    assert!(first.is_allowed());
    for leave in [99.0, 50.0, 0.0] {
        assert_eq!(limiter.limit(call("1", leave)).await.expect("a decision").remaining(), first.remaining());
    }
    // A denial is not stored.
    assert!(limiter.limit(call("2", 99.0)).await.expect("a decision").is_denied());
    assert!(limiter.limit(call("2", 98.0)).await.expect("a decision").is_allowed());
    let balance = limiter.peek(("bucket", "k")).await.expect("a balance").remaining();
    assert!(near(balance, 98.0), "{balance}");
}

#[tokio::test]
async fn a_remembered_denial_is_for_its_headroom_only() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(1), |config| config.remember_denials = Some(DenialMemory::default()));
    let denied = async |count: f64, leave: f64| {
        let item = Item::new("bucket", "k").count(count).leave(leave);
        limiter.limit(item).await.expect("a decision").is_denied()
    };
    assert!(!denied(50.0, 0.0).await);
    assert!(denied(1.0, 60.0).await);
    let asked = limiter.batches();
    assert!(denied(1.0, 60.0).await);
    assert_eq!(limiter.batches(), asked, "remembered");
    assert!(!denied(1.0, 0.0).await && !denied(1.0, 48.0).await);
    // And the reverse: a denial without a headroom, which a credit makes obsolete.
    assert!(denied(60.0, 0.0).await && denied(60.0, 1.0).await);
    limiter.credit(("bucket", "k", 48)).await.expect("a balance");
    assert!(!denied(60.0, 1.0).await);
}

#[tokio::test]
async fn until_ready_waits_for_the_headroom_and_reserves_nothing() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("paced", Limit::token_bucket(20, Duration::from_secs(1))).expect("limits");
    let limiter = limiter(&database.pool, limits, |_| {});
    let item = |leave: f64| Item::new("paced", "k").leave(leave);
    limiter.charge(("paced", "k", 20)).await.expect("a balance");
    // Others take tokens meanwhile, which calls with a headroom must not have reserved.
    let waiting = join_all((0..3).map(|_| limiter.until_ready(item(10.0), Duration::from_secs(60))));
    let taking = async {
        for _ in 0..5 {
            let decision = limiter.until_ready(item(0.0), Duration::from_secs(60)).await.expect("a decision");
            assert!(decision.is_allowed());
        }
    };
    let (waited, ()) = tokio::join!(waiting, taking);
    for decision in waited {
        let decision = decision.expect("a decision");
        assert!(decision.outcome() == Outcome::Allowed && decision.remaining() >= 10.0 - 1e-9, "{decision:?}");
    }
    let denied = limiter.until_ready(item(19.0).count(1), Duration::ZERO).await.expect("a decision");
    assert!(denied.is_denied() || denied.remaining() >= 19.0 - 1e-9, "{denied:?}");
    let error = limiter.until_ready(item(19.5), Duration::from_secs(1)).await.expect_err("never possible");
    assert!(matches!(error, Error::Invalid(InvalidCall::CountExceedsCapacity { .. })), "{error}");
    let error = limiter.until_ready(item(1.0).reserve(), Duration::from_secs(1)).await.expect_err("a reservation");
    assert!(matches!(error, Error::Invalid(InvalidCall::HeadroomUnsupported { .. })), "{error}");
}

/// A waiter of a low priority must not hold up those of a higher one. This limit allows no debt, so all wait in lines.
#[tokio::test]
async fn waiters_without_a_headroom_do_not_queue_behind_those_with_one() {
    let database = Database::migrated().await;
    let limit = Limit::token_bucket(10, Duration::from_secs(1)).capacity(10_000).max_reserved(0);
    let limiter = limiter(&database.pool, Limits::new().define("paced", limit).expect("limits"), |_| {});
    limiter.charge(("paced", "k", 10_000)).await.expect("a balance");
    // It waits until the bucket is full: for a quarter of an hour.
    let mut low = Box::pin(limiter.until_ready(Item::new("paced", "k").leave(9_999), Duration::from_secs(7200)));
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut low).await.is_err());
    let high = Box::pin(limiter.until_ready(Item::new("paced", "k").count(20), Duration::from_secs(600)));
    match futures_util::future::select(high, low).await {
        futures_util::future::Either::Left((decision, _)) => assert!(decision.expect("a decision").is_allowed()),
        futures_util::future::Either::Right((decision, _)) => panic!("{decision:?}"),
    }
}

#[tokio::test]
async fn a_settled_estimate_may_have_had_a_headroom() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(1), |_| {});
    let estimate = Item::new("bucket", "k").count(30).leave(60);
    assert!(limiter.limit(estimate.clone()).await.expect("a decision").is_allowed());
    assert!(near(limiter.settle(estimate.clone(), 50).await.expect("a balance").remaining(), 50.0));
    assert!(near(limiter.settle(estimate, 10).await.expect("a balance").remaining(), 70.0));
}

#[tokio::test]
async fn rate_limit_all_takes_a_headroom() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let (a, b) = (bucket("a", "k", 10.0), bucket("b", "k", 10.0));
    let leaving = |limit: &Value, count: f64, leave: f64| with(with(limit.clone(), "count", count), "leave", leave);
    for (calls, denied_by) in [
        (json!([leaving(&a, 4.0, 6.0), b]), vec![]),
        (json!([leaving(&a, 1.0, 5.5), b]), vec!["a"]),
        // The counts add up, and the largest headroom holds.
        (json!([leaving(&a, 0.5, 5.0), with(a.clone(), "count", 0.6), leaving(&a, 0.0, 1.0), b]), vec!["a"]),
        (json!([leaving(&a, 0.5, 5.0), with(a.clone(), "count", 0.5), leaving(&b, 0.0, 0.0)]), vec![]),
        (json!([with(a.clone(), "leave", Value::Null)]), vec![]),
    ] {
        for function in ["check_all_with", "limit_all_with"] {
            let decided = call(&mut conn, function, &calls, false).await.expect("a decision");
            assert_eq!(
                (decided.ok, decided.denied_by),
                (denied_by.is_empty(), denied_by.iter().map(|name| (*name).to_owned()).collect()),
                "{function}: {calls}"
            );
        }
    }
    let field = |value: Value| json!([b, with(a.clone(), "leave", value)]);
    for (calls, expected) in [
        (
            field(json!(-1)),
            "invalid_leave: element 2: the headroom -1 for the limit \"a\" is not a number from 0 to the capacity 10",
        ),
        (
            field(json!(10.5)),
            "invalid_leave: element 2: the headroom 10.5 for the limit \"a\" is not a number from 0 to the capacity 10",
        ),
        (field(json!(1e301)), "invalid_leave: element 2: the field \"leave\" is "),
        (field(json!("1")), "invalid_call: element 2: the field \"leave\" is of type string, not number"),
        (
            field(json!(9.5)),
            "count_exceeds_capacity: the count 1 can never be served by the limit \"a\", which grants at most 0.5 and leaves 9.5",
        ),
    ] {
        let (code, message, hint) = refused(&mut conn, "limit_all_with", &calls).await;
        assert!(code == "22023" && message.starts_with(expected) && !hint.is_empty(), "{code} {message} {hint}");
    }
    let error =
        call(&mut conn, "limit_all_with", &json!([leaving(&a, 1.0, 1.0)]), true).await.expect_err("a reservation");
    assert!(error.to_string().contains("leave_unsupported: a reservation of the limit \"a\""), "{error}");
}

/// Equal calls with a headroom are decided as often as it is left, and calls without one are decided apart from them.
#[tokio::test]
async fn calls_of_one_batch_are_decided_by_their_own_headrooms() {
    for shards in [1, 4] {
        let database = Database::migrated().await;
        for name in KINDS {
            let limiter = limiter(&database.pool, limits(shards), |config| config.lanes = 1);
            let gate = Gate::close(&database, &limiter, 1).await;
            let leaves = (0..120).map(|nth| [80.0, 80.0, 95.0, 0.0][nth / 4 % 4]);
            let calls = leaves.clone().map(|leave| limiter.limit(Item::new(name, "k").leave(leave)));
            let decisions = gate.gathered(calls).await;
            let mut left = CAPACITY;
            for (leave, decision) in leaves.zip(decisions) {
                let decision = decision.expect("a decision");
                assert_eq!(
                    decision.is_allowed(),
                    left - 1.0 >= leave,
                    "{name}, {shards}: {left} left, {leave} to leave"
                );
                left -= if decision.is_allowed() { 1.0 } else { 0.0 };
            }
            let balance = limiter.peek((name, "k")).await.expect("a balance").remaining();
            assert!(near(balance, left), "{name}: {balance}, not {left}");
            database.execute("DELETE FROM rate_limit.rate_limits WHERE name = 'gate'").await;
        }
    }
}

/// Each caller asks until it is denied. Nothing flows in, so what the calls with a headroom of at least L have taken together with
/// all calls before the last of them is at most the capacity minus L; and no token is left that a caller could have had.
async fn race(pool: &PgPool, shards: u32, name: &'static str, level: Option<&'static str>, connections: Connections) {
    const LEAVES: [f64; 4] = [0.0, 10.0, 40.0, 75.0];
    const COUNTS: [f64; 3] = [1.0, 2.0, 0.5];
    let isolation = if level == Some("READ COMMITTED") { Isolation::ReadCommitted } else { Isolation::Serializable };
    // Two handles decide as two processes do.
    let handles = [0; 2].map(|_| {
        limiter(pool, limits(shards), |config| (config.isolation, config.connections) = (isolation, connections))
    });
    let caller = |nth: usize| {
        let limiter = handles[nth % 2].clone();
        let (leave, count) = (LEAVES[nth % LEAVES.len()], COUNTS[nth % COUNTS.len()]);
        tokio::spawn(async move {
            let mut taken = 0.0;
            loop {
                let call = Call::from(Item::new(name, "race").count(count).leave(leave));
                let decision = match level {
                    None => limiter.limit(call).await.expect("a decision"),
                    Some(level) => loop {
                        let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
                        let mut tx = limiter.pool().begin_with(begin).await.expect("begin");
                        match limiter.within(&mut tx).limit(call.clone()).await {
                            Ok(decision) => {
                                if tx.commit().await.is_ok() {
                                    break decision;
                                }
                            }
                            Err(Error::Conflict { .. }) => tx.rollback().await.expect("rollback"),
                            Err(error) => panic!("{error}"),
                        }
                    },
                };
                if decision.is_denied() {
                    return (leave, taken);
                }
                // The balance of a sharded bucket is an estimate.
                assert!(shards > 1 || decision.remaining() >= leave - 1e-6, "{leave}: {decision:?}");
                taken += count;
            }
        })
    };
    let mut taken = Vec::new();
    for caller in (0..24).map(caller).collect::<Vec<_>>() {
        taken.push(caller.await.expect("a caller"));
    }
    for leave in LEAVES {
        let sum: f64 = taken.iter().filter(|(other, _)| *other >= leave).map(|(_, taken)| taken).sum();
        assert!(
            sum <= CAPACITY - leave + 1e-4,
            "{name}, {shards}, {level:?}: {sum} were taken, {leave} were to be left"
        );
    }
    let all: f64 = taken.iter().map(|(_, taken)| taken).sum();
    let left = handles[0].peek((name, "race")).await.expect("a balance").remaining();
    assert!(near(left, CAPACITY - all), "{name}, {shards}, {level:?}: {left} left of {all} taken");
    assert!(left < 0.5, "{name}, {shards}, {level:?}: a call for 0.5 was denied with {left} left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn concurrent_callers_never_go_below_their_headroom() {
    for shards in [1, 4] {
        for name in KINDS {
            let database = Database::migrated().await;
            for (level, connections) in [
                (None, Connections::Own),
                (None, Connections::Pool),
                (Some(LEVELS[0]), Connections::Own),
                (Some(LEVELS[2]), Connections::Own),
            ] {
                race(&database.pool, shards, name, level, connections).await;
                database.execute("DELETE FROM rate_limit.rate_limits").await;
            }
        }
    }
}

/// The example of the guide.
#[tokio::test]
async fn calls_of_a_lower_priority_are_denied_first() -> Result<(), Box<dyn std::error::Error>> {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(1), |_| {});
    let mut admitted = [0, 0];
    for _ in 0..100 {
        for (priority, leave) in [0.0, 0.3].into_iter().enumerate() {
            let item = Item::new("bucket", "org-7").leave_fraction(leave);
            admitted[priority] += u32::from(limiter.limit(item).await?.is_allowed());
        }
    }
    assert_eq!(admitted, [65, 35]);
    Ok(())
}
