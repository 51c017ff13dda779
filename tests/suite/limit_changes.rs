//! The effects of a changed limit on a balance, as in the table on the guide's page on kinds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use pg_limiter::sqlx::{self, Connection, PgConnection};
use pg_limiter::{Calendar, Decision, Isolation, Item, Limit, Limiter, Limits};

use crate::model::{self, Kind, Rule};
use crate::support::{Database, Step, decide, gate};

const NOW: i64 = 1_767_225_600_000_000;
const SECOND: i64 = 1_000_000;

fn rule(kind: Kind, rate: f64, capacity: f64) -> Rule {
    let capacity = (kind != Kind::SlidingWindow).then_some(capacity);
    let max_reserved = None;
    Rule { kind, rate, period_us: 100 * SECOND, capacity, max_reserved, start_us: 0, resolution: 1, shards: 1 }
}

#[tokio::test]
async fn a_balance_is_kept_and_decided_by_the_limit_of_the_call() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let (bucket, window, sliding) = (Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow);
    // Kind, tokens taken of 10 per 100 s, rate and capacity of the next call, seconds until then, and the balance then.
    let cases = [
        ("a higher rate counts for the time since the last call", bucket, 10.0, (20.0, 10.0), 10, 2.0),
        ("so does a lower rate", bucket, 10.0, (5.0, 10.0), 10, 0.5),
        ("a higher capacity adds nothing at once", bucket, 10.0, (10.0, 20.0), 10, 1.0),
        ("but the balance can grow up to it", bucket, 10.0, (10.0, 20.0), 150, 15.0),
        ("a balance is cut to a lower capacity", bucket, 1.0, (10.0, 5.0), 0, 5.0),
        ("a higher rate comes with the next window", window, 10.0, (20.0, 30.0), 99, 0.0),
        ("and is granted in that", window, 10.0, (20.0, 30.0), 100, 20.0),
        ("a balance is cut to a lower capacity", window, 1.0, (10.0, 5.0), 0, 5.0),
        ("a higher rate of a sliding window is free at once", sliding, 10.0, (15.0, 0.0), 0, 5.0),
        ("a lower one is exceeded at once", sliding, 10.0, (4.0, 0.0), 0, -6.0),
    ];
    for (key, (what, kind, taken, (rate, capacity), seconds, left)) in cases.into_iter().enumerate() {
        let (before, after) = (rule(kind, 10.0, 10.0), rule(kind, rate, capacity));
        let key = key.to_string();
        let step = |op, rule, at, count| Step {
            leaves: Vec::new(),
            op,
            reserve: false,
            at: Some(at),
            items: vec![("a", &*key, rule, count)],
        };
        let took = decide(&mut conn, &[step("limit", &before, NOW, taken)]).await.expect("a decision");
        assert!(took[0].ok, "{what}");
        let peek = [step("check", &after, NOW + seconds * SECOND, 0.0)];
        let answer = &decide(&mut conn, &peek).await.expect("a balance")[0];
        assert!((answer.value - left).abs() < 1e-6, "{what}: {} left", answer.value);
        assert_eq!(answer.ok, left >= 0.0, "{what}");
    }
}

const DAY: i64 = 86_400 * SECOND;

fn windows(days: i64, start_day: i64) -> Rule {
    Rule { period_us: days * DAY, start_us: NOW + start_day * DAY, ..rule(Kind::FixedWindow, 100.0, 100.0) }
}

fn sliding(days: i64, resolution: u32) -> Rule {
    Rule { kind: Kind::SlidingWindow, capacity: None, resolution, ..windows(days, 0) }
}

fn calendar(count: i64, unit: &'static str, zone: &'static str, anchor: &str) -> Rule {
    let anchor: DateTime = anchor.parse().expect("an anchor");
    let calendar = model::Calendar { count, unit, zone, anchor };
    Rule { kind: Kind::CalendarWindow(calendar), period_us: calendar.micros(), ..windows(1, 0) }
}

/// All is used up on 1 January. Whatever the limit becomes, a window that started before that use grants nothing for it.
#[tokio::test]
async fn a_start_of_the_changed_limit_counts_only_after_the_last_change() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let month = |anchor| calendar(1, "month", "UTC", anchor);
    // The limit of the use at NOW, the changed limit, and the days from NOW until its first start after that.
    let cases = [
        ("a shorter period", windows(30, -9), windows(7, -5), 2),
        ("a longer period", windows(7, -5), windows(30, -9), 21),
        ("a later start", windows(30, -9), windows(30, -5), 25),
        ("an earlier start", windows(30, -5), windows(30, -29), 1),
        ("another anchor", month("2025-12-23"), month("2025-12-28"), 27),
        ("an earlier anchor", month("2025-12-28"), month("2025-12-03"), 2),
        ("another number of units", calendar(3, "month", "UTC", "2025-12-03"), month("2025-12-31"), 30),
        ("another unit", month("2025-12-03"), calendar(1, "week", "UTC", "2025-12-29"), 4),
        (
            "another zone",
            calendar(2, "day", "UTC", "2025-12-31"),
            calendar(2, "day", "Asia/Tokyo", "2025-12-30T09:00"),
            2,
        ),
        ("a calendar instead of a fixed window", windows(30, -9), month("2025-12-28"), 27),
        ("a fixed window instead of a calendar", month("2025-12-03"), windows(7, -5), 2),
        ("a fixed instead of a sliding window", sliding(30, 1), windows(7, -5), 2),
        ("a calendar instead of a sliding window", sliding(30, 12), month("2025-12-28"), 27),
        ("a sliding instead of a fixed window", windows(30, -9), sliding(7, 1), 7),
        ("a sliding window instead of a calendar", month("2025-12-03"), sliding(7, 7), 7),
    ];
    for (key, (what, before, after, days)) in cases.into_iter().enumerate() {
        let key = key.to_string();
        let ask = |op, rule, at, count| Step {
            leaves: Vec::new(),
            op,
            reserve: false,
            at: Some(at),
            items: vec![("a", &*key, rule, count)],
        };
        let took = decide(&mut conn, &[ask("limit", &before, NOW, 100.0)]).await.expect("a decision");
        assert!(took[0].ok, "{what}");
        // The last one leaves a row of the changed limit.
        for (op, at) in
            [("check", NOW), ("limit", NOW + DAY / 2), ("credit", NOW + DAY / 2), ("check", NOW + days * DAY - 1)]
        {
            let answer = &decide(&mut conn, &[ask(op, &after, at, if op == "credit" { 0.0 } else { 1.0 })])
                .await
                .expect("a decision")[0];
            assert!(op == "credit" || !answer.ok, "{what}: {op}: {answer:?}");
            if after.kind != Kind::SlidingWindow && op != "credit" {
                assert_eq!(answer.wait, Some(NOW + days * DAY - at), "{what}: {op}");
            }
        }
        let granted =
            &decide(&mut conn, &[ask("limit", &after, NOW + 2 * days * DAY, 100.0)]).await.expect("a decision")[0];
        assert!(granted.ok, "{what}: {granted:?}");
    }
}

/// A calendar day that starts at the time of day of `at`.
fn days_from(count: u32, at: Timestamp) -> Limit {
    let local = at.to_zoned(TimeZone::UTC).datetime().strftime("%Y-%m-%d %H:%M:%S").to_string();
    Limit::calendar(10, Calendar::days(count)).anchor(&local).build().expect("a limit")
}

/// The same call in every way that a call can run; each has a bucket of its own, and its answer is that of the limit "w".
async fn every_way(limiter: &Limiter, database: &Database) -> Vec<(String, Decision)> {
    let mut decisions = Vec::new();
    let mut add = |way: &str, decision| decisions.push((way.to_owned(), decision));
    add("alone", limiter.limit(("w", "alone")).await.expect("a decision"));
    add("checked", limiter.check(("w", "alone")).await.expect("a decision"));
    add("two", limiter.limit([Item::new("w", "two"), Item::new("other", "two")]).await.expect("a decision"));
    let batch = join_all((0..6).map(|n| limiter.limit(("w", format!("batch {n}"))))).await;
    batch.into_iter().for_each(|decision| add("in a batch", decision.expect("a decision")));
    let mut tx = database.pool.begin().await.expect("begin");
    add("in a transaction", limiter.within(&mut tx).limit(("w", "tx")).await.expect("a decision"));
    tx.commit().await.expect("commit");
    let mut tx = database.pool.begin().await.expect("begin");
    let two = [Item::new("w", "two in a transaction"), Item::new("other", "two")];
    add("two in a transaction", limiter.within(&mut tx).limit(two).await.expect("a decision"));
    tx.commit().await.expect("commit");
    decisions
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_window_grants_nothing_again_in_any_way() {
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        let database = Database::migrated().await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time");
        let day = |days: i64| Duration::from_secs(now.as_secs().checked_add_signed(86_400 * days).expect("a time"));
        let date = |days: i64| Timestamp::UNIX_EPOCH + SignedDuration::try_from(day(days)).expect("a time");
        let length = |days: u64| Duration::from_secs(86_400 * days);
        let fixed = |days, start| Limit::fixed_window(10, length(days)).start(day(start)).build().expect("a limit");
        let cases = [
            (fixed(30, -9), fixed(7, -5)),
            (days_from(30, date(-9)), days_from(7, date(-5))),
            (fixed(30, -9), days_from(7, date(-5))),
            (days_from(30, date(-9)), fixed(7, -5)),
        ];
        for (before, after) in cases {
            let clock = database.test_clock().await;
            let limits = |limit: &Limit| {
                let other = Limit::token_bucket(1000, gate::CENTURY);
                Limits::new().define("w", *limit).and_then(|limits| limits.define("other", other)).expect("limits")
            };
            let limiter = gate::limiter(&database.app, limits(&before), |config| config.isolation = isolation);
            for _ in 0..10 {
                for (way, decision) in every_way(&limiter, &database).await {
                    assert!(decision.is_allowed() || way == "checked", "{way}: {decision:?}");
                }
            }
            limiter.replace_limits(limits(&after));
            for advance in [Duration::ZERO, length(1)] {
                clock.advance(advance).await.expect("advance");
                for (way, decision) in every_way(&limiter, &database).await {
                    let wait = decision.retry_after().unwrap_or_else(|| panic!("{way}: {decision:?}"));
                    assert!(
                        wait <= length(2) - advance && wait > length(2) - advance - Duration::from_secs(600),
                        "{way}: {wait:?}"
                    );
                }
            }
            clock.advance(length(1)).await.expect("advance");
            for nth in 0..11 {
                for (way, decision) in every_way(&limiter, &database).await {
                    assert!(decision.is_allowed() == (nth < 10) || way == "checked", "{way} {nth}: {decision:?}");
                }
            }
            sqlx::query("TRUNCATE rate_limit.rate_limits").execute(&database.pool).await.expect("an empty table");
            clock.uninstall().await.expect("back to the time from which the windows are reckoned");
        }
    }
}

/// The recipe of the guide: the difference of the capacities, credited once, makes the rest of the month that of the new plan.
#[tokio::test]
async fn a_change_of_plan_in_mid_month_credits_the_difference() {
    let database = Database::migrated().await;
    let plan = |rate: i32| Limit::calendar(rate, Calendar::months(1)).build().expect("a limit");
    let limiter = database.limiter(Limits::new());
    let item = |rate, key: &'static str| Item::new(("requests", plan(rate)), key);
    let left = async |rate, key| limiter.peek(item(rate, key)).await.expect("a balance").remaining();
    assert!(limiter.limit(item(100, "used").count(60)).await.expect("a decision").is_allowed());
    assert_eq!((left(1_000, "used").await, left(1_000, "new").await), (40.0, 1_000.0), "nothing at once");
    for key in ["used", "new"] {
        let mut tx = database.pool.begin().await.expect("begin");
        limiter.within(&mut tx).credit(item(1_000, key).count(900)).await.expect("a credit");
        tx.commit().await.expect("commit");
    }
    assert_eq!((left(1_000, "used").await, left(1_000, "new").await), (940.0, 1_000.0));
}
