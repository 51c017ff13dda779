//! Properties of the SQL, checked against an independent model and against the contract.

use jiff::civil::DateTime;
use pg_limiter::sqlx::{self, Connection, PgConnection, Row};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

use crate::model::{Calendar, Item, Kind, Model, Rule, Verdict};
use crate::support::function::decide_in_memory;
use crate::support::proxy::xorshift;
use crate::support::{self, Answer, Database, Step, decide};

pub const NOW: i64 = 1_767_225_600_000_000;
const NAMES: [&str; 3] = ["a", "b", "c"];
const KEYS: [&str; 2] = ["k", "l"];

/// Runs a property in one database, which is emptied for every case.
pub fn check<S: Strategy>(cases: u32, strategy: &S, property: impl AsyncFn(&mut PgConnection, S::Value)) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let database = runtime.block_on(Database::migrated());
    let mut conn = runtime.block_on(PgConnection::connect(&database.url)).expect("a connection");
    let _within = runtime.enter();
    let persistence = FileFailurePersistence::Direct("tests/suite/properties.regressions.txt");
    let config =
        Config { cases: support::cases(cases), failure_persistence: Some(Box::new(persistence)), ..Config::default() };
    let conn = std::cell::RefCell::new(&mut conn);
    TestRunner::new(config)
        .run(strategy, |value| {
            let mut conn = conn.borrow_mut();
            runtime.block_on(async {
                sqlx::query("TRUNCATE rate_limit.rate_limits").execute(&mut **conn).await.expect("truncate");
                property(&mut conn, value).await;
            });
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

pub fn rule(kinds: &'static [Kind]) -> impl Strategy<Value = Rule> {
    const PERIODS: &[i64] = &[1_000, 999_983, 1_000_000, 7_000_003, 60_000_000, 3_600_000_000, 604_800_000_000];
    (
        proptest::sample::select(kinds),
        1..80_u32,
        proptest::sample::select(PERIODS),
        proptest::option::of(0..120_u32),
        proptest::option::of(0..40_u32),
        0..10_000_000_i64,
        prop_oneof![Just(1), 2..13_u32],
    )
        .prop_map(|(kind, rate, period_us, capacity, max_reserved, start_us, resolution)| {
            let quarters = |tokens: u32| f64::from(tokens) / 4.0;
            let sliding = kind == Kind::SlidingWindow;
            Rule {
                kind,
                rate: quarters(rate),
                period_us: nominal(kind, period_us),
                capacity: capacity.filter(|_| !sliding).map(quarters),
                max_reserved: max_reserved.filter(|_| !sliding).map(quarters),
                start_us,
                resolution: if sliding { resolution } else { 1 },
                shards: 1,
            }
        })
}

pub const ALL: &[Kind] = &[
    Kind::TokenBucket,
    Kind::FixedWindow,
    Kind::SlidingWindow,
    Kind::CalendarWindow(HOURS),
    Kind::CalendarWindow(MONTHS),
];

/// Clocks there go forward and back by half an hour.
pub const HOURS: Calendar = Calendar {
    count: 5,
    unit: "hour",
    zone: "Australia/Lord_Howe",
    anchor: DateTime::constant(1990, 5, 5, 2, 15, 0, 0),
};
pub const MONTHS: Calendar =
    Calendar { count: 1, unit: "month", zone: "Europe/Berlin", anchor: DateTime::constant(2024, 1, 31, 9, 0, 0, 0) };

/// The average length of a window of the calendar; another kind has any period.
fn nominal(kind: Kind, period_us: i64) -> i64 {
    match kind {
        Kind::CalendarWindow(calendar) => calendar.micros(),
        _ => period_us,
    }
}

/// The next event: an operation on some buckets, after a pause.
#[derive(Clone, Debug)]
pub struct Event {
    pub op: &'static str,
    pub reserve: bool,
    /// In thousandths of the period; if negative, the clock steps back.
    pub pause: i64,
    /// Wait instead for exactly the `retry_after` of the last denial.
    pub obey: bool,
    /// Name, key, count in quarters of a token.
    pub items: Vec<(usize, usize, u32)>,
    /// The headroom of each item, in quarters of a token.
    pub leaves: Vec<u32>,
}

pub fn event() -> impl Strategy<Value = Event> {
    let item = (0..NAMES.len(), 0..KEYS.len(), 0..24_u32);
    let op = prop_oneof![
        12 => Just("limit"), 3 => Just("check"), 1 => Just("charge"), 1 => Just("credit"), 1 => Just("reset")
    ];
    (
        op,
        any::<bool>(),
        prop_oneof![8 => 0..400_i64, 1 => -80..0_i64, 1 => 400..4_000_i64],
        any::<bool>(),
        proptest::collection::vec(item, 1..4),
        prop_oneof![1 => Just(Vec::new()), 1 => proptest::collection::vec(prop_oneof![Just(0), 0..24_u32], 3)],
    )
        .prop_map(|(op, reserve, pause, obey, mut items, mut leaves)| {
            items.sort_unstable();
            items.dedup_by_key(|(name, key, _)| (*name, *key));
            let decides = op == "limit" || op == "check";
            let reserve = reserve && decides && leaves.is_empty();
            leaves.truncate(if decides { items.len() } else { 0 });
            Event { op, reserve, pause, obey, items, leaves }
        })
}

struct World {
    rules: [Rule; 3],
    now: i64,
    promised: Option<i64>,
}

impl World {
    fn step<'a>(&'a mut self, event: &Event) -> Step<'a> {
        let period = self.rules[event.items[0].0].period_us;
        self.now += event.pause * period / 1000;
        if let Some(wait) = self.promised.take().filter(|_| event.obey) {
            self.now += wait;
        }
        step_at(&self.rules, event, self.now)
    }
}

fn items<'a>(step: &Step<'a>) -> Vec<Item<'a>> {
    let item = |(nth, &(limit, key, rule, count))| Item { limit, key, rule, count, leave: step.leave(nth) };
    step.items.iter().enumerate().map(item).collect()
}

/// ok, wait, least balance, denied by
pub type Said = (bool, Option<f64>, f64, Vec<String>);

/// The model's verdict, in the form of the function's answer; `None` if the call is impossible.
pub fn expected(model: &mut Model, step: &Step<'_>) -> Option<Said> {
    let now = step.at.expect("a clock");
    let items = items(step);
    let verdict = match step.op {
        "limit" => model.limit(now, &items, step.reserve),
        "check" => model.check(now, &items, step.reserve),
        other => {
            for item in &items {
                match other {
                    "charge" => model.charge(now, item),
                    "credit" => model.credit(now, item),
                    _ => model.reset(item.limit, item.key),
                }
            }
            let balance = |item: &Item<'_>| model.balance(now, item.limit, item.key, item.rule);
            return Some((true, None, items.iter().map(balance).fold(f64::INFINITY, f64::min), Vec::new()));
        }
    };
    match verdict {
        Verdict::Allowed { balance } => Some((true, None, balance, Vec::new())),
        Verdict::Reserved { wait_us, balance } => Some((true, Some(wait_us), balance, Vec::new())),
        Verdict::Denied { wait_us, denied_by, balance } => Some((false, Some(wait_us), balance, denied_by)),
        Verdict::Impossible(_) => None,
    }
}

pub fn compare(step: &Step<'_>, answer: &Answer, (ok, wait, balance, by): Said) {
    assert_eq!(answer.ok, ok, "{step:?}: {answer:?}, the model says {wait:?} {balance}");
    match (answer.wait, wait) {
        (None, None) => {}
        (Some(said), Some(wait)) if (said as f64 - wait).abs() <= 2.0 + wait * 1e-9 => {}
        (said, wait) => panic!("{step:?}: wait {said:?}, the model says {wait:?}"),
    }
    assert!((answer.value - balance).abs() < 1e-6, "{step:?}: balance {}, the model says {balance}", answer.value);
    let named = step
        .items
        .iter()
        .zip(&answer.refused)
        .filter(|(_, refused)| **refused)
        .map(|((name, ..), _)| (*name).to_owned());
    let mut named: Vec<String> = named.collect();
    named.dedup();
    assert_eq!(named, by, "{step:?}");
}

/// The steps that are possible according to the model, with their times and expected answers.
pub fn play(rules: &[Rule; 3], events: &[Event]) -> Vec<(Event, i64, Said)> {
    let mut world = World { rules: rules.clone(), now: NOW, promised: None };
    let mut model = Model::new();
    let mut played = Vec::new();
    for event in events {
        let step = world.step(event);
        let at = step.at.expect("a clock");
        let Some(verdict) = expected(&mut model, &step) else { continue };
        world.promised = verdict.1.map(|wait| wait.ceil() as i64);
        played.push((event.clone(), at, verdict));
    }
    played
}

pub fn step_at<'a>(rules: &'a [Rule; 3], event: &Event, at: i64) -> Step<'a> {
    let item =
        |&(name, key, count): &(usize, usize, u32)| (NAMES[name], KEYS[key], &rules[name], f64::from(count) / 4.0);
    let leaves = event.leaves.iter().map(|quarters| f64::from(*quarters) / 4.0).collect();
    Step { op: event.op, reserve: event.reserve, at: Some(at), items: event.items.iter().map(item).collect(), leaves }
}

fn worlds() -> impl Strategy<Value = ([Rule; 3], Vec<Event>)> {
    ([rule(ALL), rule(ALL), rule(ALL)], proptest::collection::vec(event(), 1..60))
}

#[test]
fn single_decisions_match_the_model() {
    check(150, &worlds(), async |conn: &mut PgConnection, (rules, events)| {
        for (event, at, verdict) in play(&rules, &events) {
            let step = step_at(&rules, &event, at);
            let answers = decide(conn, std::slice::from_ref(&step)).await.expect("a decision");
            compare(&step, &answers[0], verdict);
        }
    });
}

#[test]
fn decisions_in_one_statement_match_the_model() {
    check(300, &worlds(), async |conn: &mut PgConnection, (rules, events)| {
        let played = play(&rules, &events);
        let steps: Vec<Step<'_>> = played.iter().map(|(event, at, _)| step_at(&rules, event, *at)).collect();
        if steps.is_empty() {
            return;
        }
        let answers = decide(conn, &steps).await.expect("decisions");
        for ((step, answer), (.., verdict)) in steps.iter().zip(&answers).zip(played) {
            compare(step, answer, verdict);
        }
    });
}

/// A random choice below `most`.
fn below(random: &mut u64, most: u64) -> u64 {
    xorshift(random) % most
}

fn random_rule(random: &mut u64) -> Rule {
    const PERIODS: [i64; 7] = [1_000, 999_983, 1_000_000, 7_000_003, 60_000_000, 3_600_000_000, 604_800_000_000];
    let kind = ALL[below(random, 3) as usize];
    let is_sliding = kind == Kind::SlidingWindow;
    let mut option = |most| (below(random, 2) == 0 && !is_sliding).then(|| below(random, most) as f64 / 4.0);
    let (capacity, max_reserved) = (option(120), option(40));
    Rule {
        kind,
        rate: (1 + below(random, 79)) as f64 / 4.0,
        period_us: PERIODS[below(random, 7) as usize],
        capacity,
        max_reserved,
        start_us: below(random, 10_000_000).cast_signed(),
        resolution: if is_sliding { 1 + below(random, 2) as u32 * below(random, 12) as u32 } else { 1 },
        shards: 1,
    }
}

fn random_event(random: &mut u64) -> Event {
    let op = match below(random, 18) {
        0..12 => "limit",
        12..15 => "check",
        15 => "charge",
        16 => "credit",
        _ => "reset",
    };
    let pause = match below(random, 10) {
        0..8 => below(random, 400).cast_signed(),
        8 => -below(random, 80).cast_signed(),
        _ => 400 + below(random, 3_600).cast_signed(),
    };
    let item = |random: &mut u64| (below(random, 3) as usize, below(random, 2) as usize, below(random, 24) as u32);
    let mut items: Vec<_> = (0..1 + below(random, 3)).map(|_| item(random)).collect();
    items.sort_unstable();
    items.dedup_by_key(|(name, key, _)| (*name, *key));
    let decides = op == "limit" || op == "check";
    let reserve = below(random, 2) == 0 && decides;
    let leaves = if decides && !reserve && below(random, 2) == 0 {
        items.iter().map(|_| (below(random, 2) * below(random, 24)) as u32).collect()
    } else {
        Vec::new()
    };
    Event { op, reserve, pause, obey: below(random, 2) == 0, items, leaves }
}

/// The functions that decide in memory neither read nor write a table. `PG_LIMITER_TEST_STEPS=1000000` makes more steps.
#[tokio::test]
async fn decisions_in_memory_match_the_model() {
    const STEPS: usize = 1_000;
    let steps = std::env::var("PG_LIMITER_TEST_STEPS").ok().and_then(|text| text.parse().ok());
    let steps = steps.unwrap_or_else(|| support::cases(200_000) as usize);
    let seed = std::env::var("PG_LIMITER_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_260_101);
    let mut random: u64 = seed;
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    for world in 0..usize::div_ceil(steps, STEPS) {
        let rules = std::array::from_fn(|_| random_rule(&mut random));
        let mut events: Vec<Event> = Vec::new();
        let mut played = Vec::new();
        // Events that are impossible calls are left out.
        while played.len() < STEPS {
            events.extend((0..STEPS - played.len()).map(|_| random_event(&mut random)));
            played = play(&rules, &events);
        }
        let steps: Vec<Step<'_>> = played.iter().map(|(event, at, _)| step_at(&rules, event, *at)).collect();
        let answers = decide_in_memory(&mut conn, &steps).await.expect("decisions");
        assert_eq!(answers.len(), STEPS, "seed {seed}, world {world}");
        for ((step, answer), (.., verdict)) in steps.iter().zip(&answers).zip(played) {
            compare(step, answer, verdict);
        }
    }
    assert_eq!(table(&mut conn).await, Vec::<String>::new());
}

async fn table(conn: &mut PgConnection) -> Vec<String> {
    let rows = sqlx::query("SELECT r::text AS line FROM rate_limit.rate_limits AS r ORDER BY name, key, shard")
        .fetch_all(conn)
        .await;
    rows.expect("rows").iter().map(|row| row.get("line")).collect()
}

#[test]
fn denials_and_checks_change_nothing_and_check_agrees_with_limit() {
    check(100, &worlds(), async |conn: &mut PgConnection, (rules, events)| {
        for (event, at, _) in play(&rules, &events) {
            let step = step_at(&rules, &event, at);
            if step.op != "limit" {
                decide(conn, &[step]).await.expect("a decision");
                continue;
            }
            let before = table(conn).await;
            let checked = decide(conn, &[Step { op: "check", ..step.clone() }]).await.expect("a decision");
            assert_eq!(table(conn).await, before, "a check wrote");
            let limited = decide(conn, &[step]).await.expect("a decision");
            assert_eq!(checked, limited);
            if !limited[0].ok {
                assert_eq!(table(conn).await, before, "a denial wrote");
            }
        }
    });
}

#[test]
fn the_order_of_limits_does_not_matter() {
    check(100, &worlds(), async |conn: &mut PgConnection, (rules, events)| {
        let played = play(&rules, &events);
        let forth: Vec<Step<'_>> = played.iter().map(|(event, at, _)| step_at(&rules, event, *at)).collect();
        let back: Vec<Step<'_>> = forth
            .iter()
            .map(|step| {
                let leaves = (0..step.items.len()).rev().map(|item| step.leave(item)).collect();
                Step { items: step.items.iter().rev().copied().collect(), leaves, ..step.clone() }
            })
            .collect();
        for (forth, back) in forth.iter().zip(&back) {
            let mut tx = sqlx::Connection::begin(&mut *conn).await.expect("begin");
            let one = decide(&mut tx, std::slice::from_ref(back)).await.expect("a decision");
            let rows = table(&mut tx).await;
            tx.rollback().await.expect("rollback");
            let other = decide(conn, std::slice::from_ref(forth)).await.expect("a decision");
            assert_eq!((one[0].ok, one[0].wait, one[0].value), (other[0].ok, other[0].wait, other[0].value));
            assert_eq!(table(conn).await, rows);
        }
    });
}

/// Balances do not fall between calls, so one call at a time can test a wait.
#[test]
fn retry_after_is_exact() {
    check(150, &worlds(), async |conn: &mut PgConnection, (rules, events)| {
        for (event, at, _) in play(&rules, &events) {
            let step = step_at(&rules, &event, at);
            let answer = decide(conn, std::slice::from_ref(&step)).await.expect("a decision").remove(0);
            let Some(wait) = answer.wait.filter(|_| !answer.ok) else { continue };
            // A noticeable time: that in which a millionth of a token arrives, but at least 2 us.
            let slowest =
                step.items.iter().map(|(_, _, rule, _)| rule.period_us as f64 / rule.rate).fold(0.0, f64::max);
            let noticeable = (slowest * 1e-6).ceil() as i64 + 2;
            let then = |wait: i64| Step { op: "check", at: Some(at + wait), ..step.clone() };
            let answers = decide(conn, &[then(wait)]).await.expect("a decision");
            assert!(answers[0].ok, "{step:?} was denied after the promised {wait} us: {answers:?}");
            if wait > noticeable {
                let answers = decide(conn, &[then(wait - noticeable)]).await.expect("a decision");
                assert!(!answers[0].ok, "{step:?} was allowed {noticeable} us before the promised {wait} us");
            }
        }
    });
}

/// Under calls at every moment, the amount admitted in any stretch of time is bounded.
#[test]
fn no_window_is_over_admitted() {
    let hammer = (rule(ALL), proptest::collection::vec((0..300_i64, 0..12_u32), 1..120));
    check(150, &hammer, async |conn: &mut PgConnection, (rule, pauses)| {
        let mut now = NOW;
        let mut steps = Vec::new();
        for (pause, count) in pauses {
            now += pause * rule.period_us / 1000;
            let count = (f64::from(count) / 4.0).min(rule.capacity.unwrap_or(rule.rate));
            steps.push(Step {
                leaves: Vec::new(),
                op: "limit",
                reserve: false,
                at: Some(now),
                items: vec![("a", "k", &rule, count)],
            });
        }
        let answers = decide(conn, &steps).await.expect("decisions");
        let admitted: Vec<(i64, f64)> = steps
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.ok)
            .map(|(step, _)| (step.at.expect("a clock"), step.items[0].3))
            .collect();
        let capacity = rule.capacity.unwrap_or(rule.rate);
        let period = rule.period_us as f64;
        let part = |t: i64| {
            let n = i128::from(rule.resolution);
            (i128::from(t - rule.start_us) * n).div_euclid(i128::from(rule.period_us))
        };
        for (first, &(from, _)) in admitted.iter().enumerate() {
            let mut sum = 0.0;
            for &(to, count) in &admitted[first..] {
                sum += count;
                let bound = match rule.kind {
                    Kind::TokenBucket => capacity + (to - from) as f64 * rule.rate / period,
                    Kind::FixedWindow | Kind::CalendarWindow(_) => {
                        capacity + (rule.window(to) - rule.window(from)) as f64 * rule.rate
                    }
                    Kind::SlidingWindow if part(to) - part(from) < i128::from(rule.resolution) => rule.rate,
                    Kind::SlidingWindow => f64::INFINITY,
                };
                assert!(sum <= bound + 1e-6, "{sum} admitted from {from} to {to}, the bound is {bound}");
            }
        }
    });
}

/// The caller passes the limit: a call with a new rate or capacity is decided by these, on the stored balance.
#[test]
fn a_changed_limit_applies_from_the_next_call() {
    let rules = rule(ALL).prop_flat_map(|rule| {
        let sliding = rule.kind == Kind::SlidingWindow;
        let changed = (1..80_u32, proptest::option::of(0..120_u32)).prop_map(move |(rate, capacity)| Rule {
            rate: f64::from(rate) / 4.0,
            capacity: capacity.filter(|_| !sliding).map(|tokens| f64::from(tokens) / 4.0),
            ..rule.clone()
        });
        proptest::collection::vec(changed, 2..4)
    });
    let steps = proptest::collection::vec((0..600_i64, 0..4_usize, 0..24_u32, any::<bool>()), 1..40);
    check(150, &(rules, steps, any::<bool>()), async |conn: &mut PgConnection, (rules, pauses, together)| {
        let mut model = Model::new();
        let mut now = NOW;
        let mut steps = Vec::new();
        for (pause, nth, count, reserve) in pauses {
            let rule = &rules[nth % rules.len()];
            now += pause * rule.period_us / 1000;
            let reserve = reserve && rule.kind != Kind::SlidingWindow;
            let items = vec![("a", "k", rule, f64::from(count) / 4.0)];
            let step = Step { leaves: Vec::new(), op: "limit", reserve, at: Some(now), items };
            if let Some(verdict) = expected(&mut model, &step) {
                steps.push((step, verdict));
            }
        }
        let all: Vec<Step<'_>> = steps.iter().map(|(step, _)| step.clone()).collect();
        let mut answers = Vec::new();
        if together && !all.is_empty() {
            answers = decide(conn, &all).await.expect("decisions");
        } else {
            for step in &all {
                answers.extend(decide(conn, std::slice::from_ref(step)).await.expect("a decision"));
            }
        }
        for ((step, verdict), answer) in steps.into_iter().zip(&answers) {
            compare(&step, answer, verdict);
        }
    });
}

/// Whatever changes in whatever order, the counts of a sliding window do not leave too soon, and no call fails.
#[test]
fn a_changed_grid_or_kind_never_grants_more_at_once() {
    let rules = proptest::collection::vec(rule(ALL), 2..4);
    let steps = proptest::collection::vec((0..900_i64, 0..4_usize, 1..24_u32), 1..40);
    check(150, &(rules, steps), async |conn: &mut PgConnection, (rules, pauses)| {
        let mut now = NOW;
        for (pause, nth, count) in pauses {
            let rule = &rules[nth % rules.len()];
            now += pause * rule.period_us / 1000;
            let capacity = rule.capacity.unwrap_or(rule.rate);
            // At one moment, at most the capacity is granted, whatever the row holds.
            let count = (f64::from(count) / 4.0).min(capacity);
            let ask = || Step {
                leaves: Vec::new(),
                op: "limit",
                reserve: false,
                at: Some(now),
                items: vec![("a", "k", rule, count)],
            };
            let answers = decide(conn, &[ask(), ask(), ask()]).await.expect("decisions");
            let granted = answers.iter().filter(|answer| answer.ok).count() as f64 * count;
            assert!(granted <= capacity + 1e-6, "{granted} at once of {rule:?}");
            assert!(answers.iter().all(|answer| answer.value <= capacity + 1e-6), "{answers:?} of {rule:?}");
        }
    });
}

/// A million steps against exact integers, in units of a token divided by the period, so that nothing is rounded.
#[test]
#[ignore = "takes long: run tests/long"]
fn balances_do_not_drift_over_a_million_steps() {
    const STEPS: usize = 1_000_000;
    const BATCH: usize = 5_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let database = Database::migrated().await;
        let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
        let rule = Rule {
            kind: Kind::TokenBucket,
            rate: 7.0,
            period_us: 999_983,
            capacity: Some(11.0),
            max_reserved: None,
            start_us: 0,
            resolution: 1,
            shards: 1,
        };
        let unit = i128::from(rule.period_us);
        let (mut now, mut since, mut balance) = (NOW, NOW, 11 * unit);
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let (mut allowed, mut denied) = (0, 0);
        for _ in 0..STEPS / BATCH {
            let mut steps = Vec::with_capacity(BATCH);
            let mut expected = Vec::with_capacity(BATCH);
            for _ in 0..BATCH {
                now += next(400_000).cast_signed();
                let count = next(4) + 1;
                let grown = (balance + i128::from(now - since) * 7).min(11 * unit);
                let ok = grown >= i128::from(count) * unit;
                if ok {
                    balance = grown - i128::from(count) * unit;
                    since = now;
                }
                expected.push((ok, if ok { balance } else { grown }));
                let items = vec![("a", "k", &rule, count as f64)];
                steps.push(Step { leaves: Vec::new(), op: "limit", reserve: false, at: Some(now), items });
            }
            for (answer, (ok, balance)) in decide(&mut conn, &steps).await.expect("decisions").iter().zip(expected) {
                assert_eq!(answer.ok, ok);
                assert!((answer.value - balance as f64 / unit as f64).abs() < 1e-9, "{answer:?}, exactly {balance}");
                if ok { allowed += 1 } else { denied += 1 }
            }
        }
        assert!(allowed > STEPS / 4 && denied > STEPS / 4, "{allowed} allowed, {denied} denied");
    });
}
