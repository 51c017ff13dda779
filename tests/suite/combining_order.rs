//! A batch decides its calls as if they were made one after the other, credits first.

use std::time::Duration;

use pg_limiter::sqlx::{self, Connection, PgConnection};
use pg_limiter::{Call, Decision, Error, Isolation, Item, Limit, Limiter, Limits, Outcome};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

use crate::model::{Kind, Rule};
use crate::support::gate::{CENTURY, Gate, limiter};
use crate::support::{self, Database, Step, decide, function::decide_repeated};

const NAMES: [&str; 4] = ["tokens", "paced", "pages", "searches"];
const KEYS: [&str; 2] = ["k", "l"];

/// Nearly nothing flows in while a test runs.
fn limits() -> Limits {
    let define = || {
        Limits::new()
            .define("tokens", Limit::token_bucket(6, CENTURY))?
            .define("paced", Limit::token_bucket(4, CENTURY).capacity(3).max_reserved(2))?
            .define("pages", Limit::fixed_window(3, CENTURY).capacity(5).max_reserved(2).start(Duration::ZERO))?
            .define("searches", Limit::sliding_window(5, CENTURY).resolution(3))
    };
    define().expect("limits")
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Limit,
    /// With a headroom of 1.5 tokens in every bucket.
    LimitLeaving,
    Reserve,
    Check,
    Peek,
    Credit,
    Charge,
    Reset,
}

/// A call: an operation on (name, key, quarters of a token).
type Ask = (Op, Vec<(usize, usize, u32)>);

/// Its answer.
#[derive(Debug)]
struct Answered {
    outcome: Option<&'static str>,
    wait: Option<Duration>,
    balances: Vec<f64>,
    refused: Vec<bool>,
}

impl From<Decision> for Answered {
    fn from(decision: Decision) -> Self {
        let outcome = match decision.outcome() {
            Outcome::Allowed => "allowed",
            Outcome::Reserved { .. } => "reserved",
            _ => "denied",
        };
        let states = decision.limits();
        Self {
            outcome: Some(outcome),
            wait: decision.retry_after().or(decision.wait()),
            balances: states.iter().map(|state| state.remaining).collect(),
            refused: states.iter().map(|state| state.denied).collect(),
        }
    }
}

async fn ask(limiter: &Limiter, (op, items): &Ask) -> Result<Answered, String> {
    let item = |&(name, key, quarters): &(usize, usize, u32)| {
        let leave = if *op == Op::LimitLeaving { 1.5 } else { 0.0 };
        Item::new(NAMES[name], KEYS[key]).count(f64::from(quarters) / 4.0).leave(leave)
    };
    let call = Call::from(items.iter().map(item).collect::<Vec<_>>());
    let only = |balances: Vec<f64>| Answered { outcome: None, wait: None, balances, refused: Vec::new() };
    let balances = |balances: pg_limiter::Balances| only(balances.to_vec());
    let answered = match op {
        Op::Limit | Op::LimitLeaving => limiter.limit(call).await.map(Answered::from),
        Op::Reserve => limiter.limit(call.reserve()).await.map(Answered::from),
        Op::Check => limiter.check(call).await.map(Answered::from),
        Op::Peek => limiter.peek(call).await.map(balances),
        Op::Credit => limiter.credit(call).await.map(balances),
        Op::Charge => limiter.charge(call).await.map(balances),
        Op::Reset => limiter.reset(call).await.map(|()| only(Vec::new())),
    };
    answered.map_err(|error| match error {
        Error::Invalid(error) => error.to_string(),
        error => panic!("{op:?} {items:?}: {error}"),
    })
}

/// Waits may differ by the time between the two calls, and balances by the refill in it.
fn same(one: &Result<Answered, String>, other: &Result<Answered, String>) -> bool {
    let (one, other) = match (one, other) {
        (Ok(one), Ok(other)) => (one, other),
        (Err(one), Err(other)) => return one == other,
        _ => return false,
    };
    let near = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    let waits = match (one.wait, other.wait) {
        (Some(one), Some(other)) => one.abs_diff(other) < Duration::from_secs(600),
        (one, other) => one == other,
    };
    waits && one.outcome == other.outcome && one.refused == other.refused && near(&one.balances, &other.balances)
}

async fn truncate(database: &Database) {
    database.execute("TRUNCATE rate_limit.rate_limits").await;
}

async fn together_is_one_by_one(database: &Database, gathering: &Limiter, lanes: usize, asks: &[Ask]) {
    truncate(database).await;
    let gate = Gate::close(database, gathering, lanes).await;
    let before = gathering.batches();
    let together = gate.gathered(asks.iter().map(|each| ask(gathering, each))).await;
    let lanes = lanes as u64;
    // The gate's call, the calls decided as sums, those that the sums left undecided, and those decided one by one.
    assert!(gathering.batches() - before <= 4 * lanes, "{} batches", gathering.batches() - before);
    truncate(database).await;
    let alone = limiter(&database.pool, limits(), |_| ());
    let (credits, others): (Vec<_>, Vec<_>) = asks.iter().zip(&together).partition(|((op, _), _)| *op == Op::Credit);
    let mut credited = Vec::new();
    for (each, together) in credits {
        credited.push((each, together, ask(&alone, each).await));
    }
    // A credit may return the balance after the other credits of its batch.
    for (each, together, one) in credited {
        let peek = ask(&alone, &(Op::Peek, each.1.clone())).await;
        assert!(
            same(together, &one) || same(together, &peek),
            "{each:?}: together {together:?}, alone {one:?}, last {peek:?}"
        );
    }
    for (nth, (each, together)) in others.into_iter().enumerate() {
        let one = ask(&alone, each).await;
        assert!(same(together, &one), "{nth}: {each:?}: together {together:?}, alone {one:?}");
    }
}

const MODES: [(Isolation, usize); 4] = [
    (Isolation::Serializable, 1),
    (Isolation::ReadCommitted, 1),
    (Isolation::Serializable, 4),
    (Isolation::ReadCommitted, 4),
];

fn gathering(database: &Database, isolation: Isolation, lanes: usize) -> Limiter {
    limiter(&database.pool, limits(), |config| (config.isolation, config.lanes) = (isolation, lanes))
}

#[tokio::test]
async fn a_mixed_batch_is_decided_in_the_order_of_its_calls() {
    let one = |op, name, key, quarters| (op, vec![(name, key, quarters)]);
    let mut asks = Vec::new();
    for name in 0..NAMES.len() {
        let reserve = if name == 3 { Op::Limit } else { Op::Reserve };
        asks.extend([
            one(Op::Limit, name, 0, 4),
            one(Op::Limit, name, 0, 4),
            one(Op::Limit, name, 0, 1),
            one(Op::LimitLeaving, name, 0, 1),
            one(Op::LimitLeaving, name, 0, 1),
            one(Op::Check, name, 0, 4),
            one(Op::Peek, name, 0, 0),
            one(Op::Limit, name, 0, 4),
            one(Op::Limit, name, 0, 4),
            one(Op::Limit, name, 0, 4),
            one(reserve, name, 0, 8),
            one(reserve, name, 0, 8),
            one(Op::Limit, name, 0, 0),
            one(Op::Credit, name, 0, 9),
            one(Op::Limit, name, 0, 3),
            one(Op::Limit, name, 0, 3),
            one(Op::Charge, name, 0, 31),
            one(Op::Credit, name, 1, 4),
            one(Op::Peek, name, 0, 0),
            one(Op::Limit, name, 0, 4),
            one(Op::Reset, name, 0, 0),
            one(Op::Limit, name, 0, 4),
            one(Op::Limit, name, 0, 400),
            one(Op::Limit, name, 0, 4),
        ]);
    }
    let groups = [
        (Op::Limit, vec![(0, 0, 4), (1, 1, 2), (2, 0, 4)]),
        (Op::Limit, vec![(2, 0, 4), (0, 0, 4), (3, 1, 6), (0, 0, 1)]),
        (Op::LimitLeaving, vec![(1, 1, 1), (0, 0, 1), (3, 1, 3)]),
        one(Op::Limit, 0, 0, 4),
        (Op::Charge, vec![(0, 0, 9), (2, 0, 9)]),
        (Op::Limit, vec![(3, 1, 2), (2, 0, 1)]),
        (Op::Check, vec![(3, 1, 2), (1, 1, 1)]),
        (Op::Reset, vec![(0, 0, 0), (3, 1, 0)]),
        (Op::Limit, vec![(3, 1, 2), (0, 0, 1)]),
    ];
    for (isolation, lanes) in MODES {
        let database = Database::migrated().await;
        let limiter = gathering(&database, isolation, lanes);
        together_is_one_by_one(&database, &limiter, lanes, &asks).await;
        // Lanes have no order between them: a group may be decided before calls that a lane has not reached yet.
        if lanes == 1 {
            let asks: Vec<Ask> = asks.iter().chain(&groups).cloned().collect();
            together_is_one_by_one(&database, &limiter, lanes, &asks).await;
        }
    }
}

/// Calls over few keys, some made several times in a row.
fn asks(most_items: usize) -> impl Strategy<Value = Vec<Ask>> {
    let op = prop_oneof![
        12 => Just(Op::Limit), 4 => Just(Op::LimitLeaving), 2 => Just(Op::Reserve), 1 => Just(Op::Check), 1 => Just(Op::Peek),
        1 => Just(Op::Credit), 1 => Just(Op::Charge), 1 => Just(Op::Reset)
    ];
    let item =
        (prop_oneof![3 => Just(0), 1 => 1..NAMES.len()], 0..KEYS.len(), prop_oneof![2 => Just(4), 1 => 0..10_u32]);
    let items = prop_oneof![
        3 => proptest::collection::vec(item.clone(), 1..2),
        1 => proptest::collection::vec(item, 1..=most_items),
    ];
    proptest::collection::vec((op, items, 1..5_usize), 1..25).prop_map(|asks| {
        let repeated = |(op, items, times): (Op, Vec<_>, usize)| std::iter::repeat_n((op, items), times);
        asks.into_iter().flat_map(repeated).collect()
    })
}

fn check<S: Strategy>(cases: u32, strategy: &S, property: impl AsyncFn(S::Value)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let persistence = FileFailurePersistence::Direct("tests/suite/combining.regressions.txt");
    let config =
        Config { cases: support::cases(cases), failure_persistence: Some(Box::new(persistence)), ..Config::default() };
    TestRunner::new(config)
        .run(strategy, |value| {
            runtime.block_on(property(value));
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// Each case has its own limiter, because its connections belong to the runtime that runs the case.
fn random_calls(isolation: Isolation, lanes: usize) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let database = runtime.block_on(Database::migrated());
    check(30, &asks(if lanes == 1 { 3 } else { 1 }), async |asks: Vec<Ask>| {
        let limiter = gathering(&database, isolation, lanes);
        together_is_one_by_one(&database, &limiter, lanes, &asks).await;
        limiter.close().await;
    });
}

#[test]
fn serializable_batches_decide_random_calls_as_one_by_one() {
    random_calls(Isolation::Serializable, 1);
}

#[test]
fn read_committed_batches_decide_random_calls_as_one_by_one() {
    random_calls(Isolation::ReadCommitted, 1);
}

#[test]
fn batches_in_four_lanes_decide_random_calls_as_one_by_one() {
    random_calls(Isolation::Serializable, 4);
    random_calls(Isolation::ReadCommitted, 4);
}

const NOW: i64 = 1_767_225_600_000_000;

/// The rule, the time since the previous call in thousandths of the period, the count, the headroom as a part of the rest of the
/// capacity, and the number of repeats.
type Times = (usize, i64, f64, f64, i32);

fn repeated() -> impl Strategy<Value = (Vec<Rule>, Vec<Times>)> {
    let kinds = [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow];
    let rule =
        (0..3_usize, 1..60_u32, prop_oneof![Just(1_000_i64), Just(999_983), Just(60_000_000)], 0..90_u32, 1..6_u32);
    let rule = rule.prop_map(move |(kind, rate, period_us, capacity, resolution)| {
        let sliding = kinds[kind] == Kind::SlidingWindow;
        Rule {
            kind: kinds[kind],
            rate: f64::from(rate) / 4.0,
            period_us,
            capacity: (!sliding && capacity > 2).then(|| f64::from(capacity) / 4.0),
            max_reserved: None,
            start_us: 0,
            resolution: if sliding { resolution } else { 1 },
            shards: 1,
        }
    });
    let count = prop_oneof![
        3 => Just(1.0), 1 => Just(0.0), 1 => (0..12_u32).prop_map(|quarters| f64::from(quarters) / 4.0),
        1 => Just(0.1), 1 => Just(1.0 / 3.0), 1 => Just(1e-3), 1 => 1e-6..3.0_f64
    ];
    let times = prop_oneof![2 => 1..12_i32, 1 => 12..200_i32];
    let leave = prop_oneof![1 => Just(0.0), 1 => 0.0..1.0];
    let steps = proptest::collection::vec((0..3_usize, 0..700_i64, count, leave, times), 1..12);
    (proptest::collection::vec(rule, 3), steps)
}

/// Decides one by one: returns the number of admissions, the wait of the first denial, and the balance.
async fn in_single_steps(conn: &mut PgConnection, step: &Step<'_>, times: i32) -> (i32, Option<i64>, f64) {
    let steps = vec![step.clone(); usize::try_from(times).expect("some")];
    let answers = decide(conn, &steps).await.expect("decisions");
    let admitted = answers.iter().filter(|answer| answer.ok).count();
    let last = answers.last().expect("an answer");
    (i32::try_from(admitted).expect("few"), answers.iter().find_map(|answer| answer.wait), last.value)
}

#[test]
fn a_repeated_call_is_decided_as_that_many_calls() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let database = runtime.block_on(Database::migrated());
    check(150, &repeated(), async |(rules, steps): (Vec<Rule>, Vec<Times>)| {
        let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
        truncate(&database).await;
        let names = ["a", "b", "c"];
        let mut now = NOW;
        let (mut asked, mut times, mut single) = (Vec::new(), Vec::new(), Vec::new());
        let most = |rule: &Rule| rule.capacity.unwrap_or(rule.rate);
        for (nth, pause, count, leave, repeat) in &steps {
            let rule = &rules[*nth];
            now += pause * rule.period_us / 1000;
            let count = count.min(most(rule));
            let (items, leaves) = (vec![(names[*nth], "k", rule, count)], vec![leave * (most(rule) - count)]);
            asked.push(Step { leaves, op: "limit", reserve: false, at: Some(now), items });
            times.push(*repeat);
            single.push(in_single_steps(&mut conn, asked.last().expect("a step"), *repeat).await);
        }
        truncate(&database).await;
        let at_once = decide_repeated(&mut conn, &asked, &times).await.expect("decisions");
        for (nth, ((admitted, wait, value), (alone, wait_alone, value_alone))) in
            at_once.iter().zip(&single).enumerate()
        {
            let step = &asked[nth];
            assert_eq!(admitted, alone, "{nth}: {step:?} made {} times", times[nth]);
            assert!((value - value_alone).abs() < 1e-6, "{nth}: {value}, alone {value_alone}: {step:?}");
            match (wait, wait_alone) {
                (Some(wait), Some(alone)) => {
                    assert!((wait - alone).abs() <= 2 + alone / 1_000_000, "{wait}, {alone}: {step:?}")
                }
                (wait, alone) => assert_eq!(wait, alone, "{step:?}"),
            }
        }
    });
}

/// A balance that is short of a multiple of the count by just the tolerance, give or take a rounding error.
#[tokio::test]
async fn a_repeated_call_near_exhaustion_admits_none_for_free() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    for (value, capacity, count) in [
        (0.599_999_998_999, 100.0, 0.1),
        (22.199_999_998_999_7, 30.0, 3.7),
        (26.949_581_626_410_957, 100.0, 2.694_958_162_741_196),
        (7.999_999_998_999_7, 30.0, 1.0),
        (0.899_999_998_999_93, 7.0, 0.1),
        (0.0, 10.0, 1.0),
        (-1e-9, 10.0, 1.0),
        (10.0, 10.0, 10.0),
    ] {
        let rule = Rule {
            kind: Kind::TokenBucket,
            rate: capacity,
            period_us: 60_000_000,
            capacity: None,
            max_reserved: None,
            start_us: 0,
            resolution: 1,
            shards: 1,
        };
        truncate(&database).await;
        sqlx::query("INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) VALUES ('a', 'k', $1, $2, 0)")
            .bind(value)
            .bind(NOW)
            .execute(&mut conn)
            .await
            .expect("a row");
        let step = Step {
            leaves: Vec::new(),
            op: "limit",
            reserve: false,
            at: Some(NOW),
            items: vec![("a", "k", &rule, count)],
        };
        let (admitted, ..) = decide_repeated(&mut conn, &[step], &[50]).await.expect("a decision")[0];
        let left: f64 =
            sqlx::query_scalar("SELECT value FROM rate_limit.rate_limits").fetch_one(&mut conn).await.expect("a row");
        let charged = (value - left) / count;
        assert!(
            (charged - f64::from(admitted)).abs() < 1e-6,
            "{admitted} were admitted, {charged} charged: {value} {count}"
        );
        assert!(f64::from(admitted) * count <= value + 1e-8, "{admitted} times {count} of {value}");
    }
}

/// The calls that the UPDATE alone decides: no clock is given, and each bucket, of one or several, is named once.
#[tokio::test]
async fn a_repeated_plain_call_is_decided_as_that_many_calls() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let sql = "SELECT coalesce(call_admitted, $3), item_values FROM rate_limit._decide(
        '{token_bucket}', '{10}', '{3155760000000000}', NULL, NULL, NULL, NULL, NULL,
        array_fill('a'::text, ARRAY[cardinality($1::text[])]), $1, NULL, NULL, $2, NULL, NULL, NULL, $3, NULL)";
    for keys in [&["k"][..], &["k", "l", "m"]] {
        for count in [0.0, 0.1, 1.0 / 3.0, 1.0, 2.5, 10.0] {
            truncate(&database).await;
            let mut left = 10.0_f64;
            for times in [1, 1, 3, 7, 2, 40, 1] {
                let (counts, repeats) = (vec![count; keys.len()], vec![times; keys.len()]);
                let (admitted, values): (Vec<i32>, Vec<f64>) = sqlx::query_as(sql)
                    .bind(keys)
                    .bind(counts)
                    .bind(repeats)
                    .fetch_one(&mut conn)
                    .await
                    .expect("an answer");
                let fits = if count == 0.0 { times } else { times.min(((left + 1e-6) / count).floor() as i32) };
                left -= f64::from(fits) * count;
                assert_eq!(admitted, vec![fits; keys.len()], "{count} made {times} times, {left} left");
                assert!(values.iter().all(|value| (value - left).abs() < 1e-6), "{values:?}, not {left}");
            }
        }
    }
}
