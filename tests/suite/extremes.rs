//! Every valid limit works at every time: nothing overflows, and no answer is absurd.

use pg_limiter::sqlx::{Connection, PgConnection};

use crate::model::{Kind, Rule};
use crate::support::{Database, Step, decide};

const CENTURY: i64 = 3_155_760_000_000_000;

#[tokio::test]
async fn nothing_overflows_at_the_edges() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let mut rules = Vec::new();
    for kind in [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow] {
        let sliding = kind == Kind::SlidingWindow;
        for rate in [1e-6, 0.3, 1e13_f64] {
            for period_us in [1, 999_983, CENTURY] {
                for (capacity, max_reserved) in
                    [(None, None), (Some(0.0), Some(1e13)), (Some((rate * 1e9).min(1e13)), Some(0.0))]
                {
                    let (capacity, max_reserved) = if sliding { (None, None) } else { (capacity, max_reserved) };
                    for resolution in if sliding { [1, 7, 1000] } else { [1, 1, 1] } {
                        let start_us = period_us / 3;
                        let rule =
                            Rule { kind, rate, period_us, capacity, max_reserved, start_us, resolution, shards: 1 };
                        if !rules.contains(&rule) {
                            rules.push(rule);
                        }
                    }
                }
            }
        }
    }
    // The years 1800, 1970, 2026 and 2099, and a century after each.
    let times = [-5_364_662_400_000_000_i64, 0, 1_767_225_600_000_000, 4_070_908_800_000_000];
    let mut decided = 0;
    for (nth, rule) in rules.iter().enumerate() {
        let name = format!("limit {nth}");
        for at in times {
            let most = rule.capacity.unwrap_or(rule.rate);
            let reserve = rule.kind != Kind::SlidingWindow;
            let step = |op: &'static str, reserve: bool, pause: i64, count: f64| Step {
                leaves: Vec::new(),
                op,
                reserve,
                at: Some(at + pause),
                items: vec![(name.as_str(), "k", rule, count)],
            };
            let owed = most + rule.max_reserved.unwrap_or(1e13);
            let steps = [
                step("reset", false, 0, 0.0),
                step("limit", false, 0, most),
                step("limit", false, 0, most),
                step("limit", reserve, 1, if reserve { owed.min(5e12) } else { most }),
                step("charge", false, 2, most.clamp(1.0, 1e12)),
                step("limit", false, 3, 0.0),
                step("credit", false, 4, 1e13),
                step("limit", false, CENTURY, most),
                step("limit", false, 0, most),
            ];
            let mut one_by_one = Vec::new();
            for step in &steps {
                let answers = decide(&mut conn, std::slice::from_ref(step)).await;
                one_by_one.extend(answers.unwrap_or_else(|error| panic!("{step:?}: {error}")));
            }
            let at_once = decide(&mut conn, &steps).await.unwrap_or_else(|error| panic!("{rule:?}: {error}"));
            assert_eq!(one_by_one, at_once, "{rule:?}");
            for answer in at_once {
                assert!(answer.value.is_finite(), "{rule:?}: {answer:?}");
                assert!(answer.wait.is_none_or(|wait| (0..=2_000_000_000_000_000_000).contains(&wait)), "{answer:?}");
                assert!(answer.ok || answer.wait.is_some(), "a denial has a retry_after: {answer:?}");
                decided += 1;
            }
        }
    }
    assert!(decided > 2000, "{decided}");
}

/// Accepted numbers are exact: a call takes what it asks for, and an empty bucket allows nothing. All else is an error that names
/// the range.
#[tokio::test]
async fn accepted_numbers_are_exact_and_others_are_refused() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let numbers = [1e-12, 1e-7, 1e-6, 1e-3, 0.1, 0.7, 1.0, 1.5, 1e3, 1e6, 1e9, 1.1e12, 1e13, 1.1e13, 1e15, 2e16];
    let (mut accepted, mut refused) = (0, 0);
    for kind in [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow] {
        for capacity in numbers {
            let rule = Rule { kind, period_us: CENTURY, ..bucket(capacity, None, None) };
            for count in numbers.into_iter().filter(|count| count * 1000.0 <= capacity) {
                let key = format!("{kind:?} {capacity} {count}");
                let step = |op, count| Step { op, items: vec![("a", &*key, &rule, count)], ..ask(&rule, 0, count) };
                let calls: Vec<_> = (0..1000).map(|_| step("limit", count)).collect();
                match decide(&mut conn, &calls).await {
                    Ok(answers) => {
                        assert!((1e-6..=1e13).contains(&capacity) && (1e-6..=1e13).contains(&count), "{key}");
                        assert!(answers.iter().all(|answer| answer.ok), "{key}");
                        let taken = capacity - answers[999].value;
                        assert!((taken / (count * 1000.0) - 1.0).abs() < 1e-3, "{key}: {taken} taken");
                        assert!(count.fract() != 0.0 || taken == count * 1000.0, "{key}: {taken} taken");
                        let rest = (capacity / count).floor() * count - count * 1000.0;
                        let emptied = decide(&mut conn, &[step("charge", rest), step("limit", count)]).await;
                        let is_whole = capacity.fract() == 0.0 && count.fract() == 0.0;
                        match emptied {
                            Ok(emptied) => assert!(!emptied[1].ok && emptied[1].value < count, "{key}: {emptied:?}"),
                            Err(error) => assert!(rest == 0.0 || !is_whole, "{key}: {error}"),
                        }
                        accepted += 1;
                    }
                    Err(error) => {
                        let error = error.to_string();
                        let is_named =
                            ["limit 1 is not valid", "a number from 1e-6 to 1e13", "a billionth of the capacity"];
                        assert!(is_named.iter().any(|part| error.contains(part)), "{key}: {error}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(accepted > 50 && refused > 50, "{accepted} accepted, {refused} refused");
}

/// Reservations go no deeper than numbers are exact: then they are denied.
#[tokio::test]
async fn debts_stay_exact() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let rule = bucket(10.0, Some(0.0), None);
    let reserve = |count| Step { reserve: true, ..ask(&rule, 0, count) };
    let answers = decide(&mut conn, &[reserve(1e13), reserve(1.0), reserve(0.5)]).await.expect("decisions");
    assert_eq!(answers.iter().map(|answer| answer.ok).collect::<Vec<_>>(), [true, false, false], "{answers:?}");
    let error = decide(&mut conn, &[Step { op: "charge", ..ask(&rule, 0, 1.0) }]).await.expect_err("too deep");
    assert!(error.to_string().contains("invalid_count"), "{error}");
    decide(&mut conn, &[Step { op: "reset", ..ask(&rule, 0, 0.0) }]).await.expect("reset");
    let answers = decide(&mut conn, &[reserve(1e9), reserve(0.5), reserve(1.0)]).await.expect("decisions");
    assert_eq!(answers.iter().map(|answer| answer.ok).collect::<Vec<_>>(), [true, false, true], "{answers:?}");
}

/// The same rules in Rust, in limits files and in SQL.
#[tokio::test]
async fn inexact_numbers_are_refused_everywhere() {
    let database = Database::migrated().await;
    let month = std::time::Duration::from_secs(30 * 86_400);
    for (rate, capacity) in [(2e16, None), (1e-12, None), (10.0, Some(1e15)), (1e-7, Some(1.0)), (f64::NAN, None)] {
        let limit = pg_limiter::Limit::token_bucket(rate, month);
        let limit = match capacity {
            Some(capacity) => limit.capacity(capacity).build(),
            None => limit.build(),
        };
        let error = limit.expect_err("not exact").to_string();
        assert!(error.contains("1e13") || error.contains("billionth"), "{error}");
        let file = format!(
            "[limits.a]\nkind = \"token_bucket\"\nrate = {rate}\nperiod = \"30 days\"\ncapacity = {}\n",
            capacity.unwrap_or(rate)
        );
        assert!(pg_limiter::Limits::from_toml(&file).is_err(), "{file}");
        let sql = format!(
            "SELECT rate_limit.limit_with('a', 'k', 'token_bucket', '{rate}'::float8, '30 days', '{}'::float8)",
            capacity.unwrap_or(rate)
        );
        let error = pg_limiter::sqlx::raw_sql(pg_limiter::sqlx::AssertSqlSafe(sql))
            .execute(&database.pool)
            .await
            .expect_err("not exact");
        assert!(error.to_string().contains("invalid_limit"), "{error}");
    }
    let limits = pg_limiter::Limits::new().define("a", pg_limiter::Limit::token_bucket(1e13, month)).expect("a limit");
    let limiter = database.limiter(limits);
    for count in [0.5, 1.5, 1e14, 1e-12] {
        let error = limiter.limit(("a", "k", count)).await.expect_err("not exact").to_string();
        assert!(error.contains("1e13") || error.contains("billionth"), "{error}");
    }
    assert!(limiter.limit(("a", "k", 10_000.5)).await.expect("a decision").is_allowed());
    assert!(limiter.settle(("a", "k", 10_000.5), 9_999.0).await.is_ok(), "differences are rounded");
}

fn bucket(rate: f64, capacity: Option<f64>, max_reserved: Option<f64>) -> Rule {
    let period_us = 3_600_000_000;
    Rule { kind: Kind::TokenBucket, rate, period_us, capacity, max_reserved, start_us: 0, resolution: 1, shards: 1 }
}

const NOW: i64 = 1_767_225_600_000_000;

fn ask<'a>(rule: &'a Rule, at: i64, count: f64) -> Step<'a> {
    Step { leaves: Vec::new(), op: "limit", reserve: false, at: Some(NOW + at), items: vec![("a", "k", rule, count)] }
}

/// The tolerance for rounding is in proportion to the balance, not to the allowed debt or to a former balance.
#[tokio::test]
async fn large_bounds_do_not_widen_the_tolerance() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    for kind in [Kind::TokenBucket, Kind::FixedWindow] {
        let rule = Rule { kind, ..bucket(10.0, Some(10.0), Some(1e13)) };
        decide(&mut conn, &[Step { op: "reset", ..ask(&rule, 0, 0.0) }]).await.expect("reset");
        let steps: Vec<_> = (0..2_000).map(|_| ask(&rule, 0, 1.0)).collect();
        let answers = decide(&mut conn, &steps).await.expect("decisions");
        assert_eq!(answers.iter().filter(|answer| answer.ok).count(), 10, "{kind:?}");
        let error = decide(&mut conn, &[ask(&rule, 0, 5_000.0)]).await.expect_err("never possible");
        assert!(error.to_string().contains("count_exceeds_capacity"), "{error}");

        let large = Rule { kind, ..bucket(1e13, None, None) };
        decide(&mut conn, &[Step { op: "reset", ..ask(&large, 0, 0.0) }]).await.expect("reset");
        assert!(decide(&mut conn, &[ask(&large, 0, 1.0)]).await.expect("a decision")[0].ok);
        let small = Rule { kind, ..bucket(10.0, None, None) };
        let error = decide(&mut conn, &[ask(&small, 0, 9_000.0)]).await.expect_err("never possible");
        assert!(error.to_string().contains("count_exceeds_capacity"), "{error}");
        let steps: Vec<_> = (0..30).map(|_| ask(&small, 0, 1.0)).collect();
        let answers = decide(&mut conn, &steps).await.expect("decisions");
        assert_eq!(answers.iter().filter(|answer| answer.ok).count(), 10, "{kind:?}");
    }
}

#[tokio::test]
async fn a_much_lower_limit_clamps_the_balance() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let month = 2_592_000_000_000;
    let high = Rule { period_us: month, ..bucket(5e6, None, None) };
    let low = Rule { period_us: month, ..bucket(1.0, None, None) };
    assert!(decide(&mut conn, &[ask(&high, 0, 1.0)]).await.expect("a decision")[0].ok);
    let answers = decide(&mut conn, &[ask(&low, 0, 1.0), ask(&low, 0, 1.0)]).await.expect("decisions");
    assert_eq!((answers[0].ok, answers[1].ok, answers[1].wait), (true, false, Some(month)));
}

/// The newest sub-interval is empty, and both grids end together, but the counts still belong to the other grid.
#[tokio::test]
async fn a_changed_period_of_a_sliding_window_is_noticed() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let minute = Rule { kind: Kind::SlidingWindow, period_us: 60_000_000, ..bucket(10.0, None, None) };
    let two_minutes = Rule { period_us: 120_000_000, ..minute.clone() };
    let steps = [ask(&minute, 50_000_000, 10.0), ask(&minute, 100_000_000, 0.0)];
    assert!(decide(&mut conn, &steps).await.expect("decisions").iter().all(|answer| answer.ok));
    let answers = decide(&mut conn, &[ask(&two_minutes, 100_000_000, 1.0)]).await.expect("a decision");
    assert!(!answers[0].ok && answers[0].value == 0.0, "10 were used 50 s ago: {answers:?}");
}

/// The deciding function returns an error for malformed arguments, and never a decision.
#[tokio::test]
async fn malformed_arrays_are_rejected() {
    let database = Database::migrated().await;
    let good = [
        "'{token_bucket}'",
        "'{10}'",
        "'{60000000}'",
        "'{NULL}'",
        "'{NULL}'",
        "'{NULL}'",
        "'{NULL}'",
        "'{NULL}'",
        "'{a}'",
        "'{k}'",
        "'{1}'",
        "'{1}'",
        "'{1}'",
        "'{limit}'",
        "NULL",
        "NULL",
        "NULL",
        "NULL",
    ];
    let call = |arguments: &[&str]| format!("SELECT rate_limit._decide({})", arguments.join(", "));
    database.execute(&call(&good)).await;
    let mut tried = 0;
    for (place, bad) in [
        (0, "'{NULL}'"),
        (0, "NULL"),
        (1, "NULL"),
        (2, "NULL"),
        (7, "'{0}'"),
        (7, "'{-1}'"),
        (7, "'{1001}'"),
        (8, "NULL"),
        (9, "NULL"),
        (9, "'{NULL}'"),
        (8, "'{a,a}'"),
        (10, "'{2}'"),
        (10, "'{0}'"),
        (11, "'{2}'"),
        (11, "'{1,1}'"),
        (12, "'{NULL}'"),
        (12, "'{1,1}'"),
        (13, "'{NULL}'"),
        (13, "'{drain}'"),
        (15, "'{2}'"),
        (15, "'{0}'"),
        (16, "'{0}'"),
        (16, "'{NULL}'"),
        (16, "'{1,1}'"),
        (13, "'{limit,limit}'"),
    ] {
        let mut arguments = good;
        arguments[place] = bad;
        if (place, bad) == (8, "'{a,a}'") {
            arguments[9] = "'{k,k}'";
        }
        let result =
            pg_limiter::sqlx::raw_sql(pg_limiter::sqlx::AssertSqlSafe(call(&arguments))).execute(&database.pool).await;
        // A size below 1 counts as 1.
        if (place, bad) != (15, "'{0}'") {
            assert!(result.is_err(), "argument {place} = {bad} was accepted");
            tried += 1;
        }
    }
    assert_eq!((tried, database.rows().await), (24, 1));
    // An array that is left out means its default.
    for places in [vec![7], vec![10], vec![11], vec![12], vec![13], vec![10, 11, 12, 13]] {
        let mut arguments = good;
        places.iter().for_each(|place| arguments[*place] = "NULL");
        database.execute(&call(&arguments)).await;
    }
    // Both the fast path and the general one reject malformed arguments.
    let plain = |arguments: &mut [&str; 18]| [10, 11, 12, 13].iter().for_each(|place| arguments[*place] = "NULL");
    for (place, bad) in [
        (0, "NULL"),
        (1, "'{NaN}'"),
        (2, "'{0}'"),
        (3, "'{-1}'"),
        (7, "'{0}'"),
        (7, "'{1001}'"),
        (12, "'{NaN}'"),
        (12, "'{-1}'"),
        (16, "'{-1}'"),
        (16, "'{0}'"),
    ] {
        let mut arguments = good;
        plain(&mut arguments);
        arguments[place] = bad;
        let result =
            pg_limiter::sqlx::raw_sql(pg_limiter::sqlx::AssertSqlSafe(call(&arguments))).execute(&database.pool).await;
        assert!(result.is_err(), "argument {place} = {bad} was accepted");
    }
}
