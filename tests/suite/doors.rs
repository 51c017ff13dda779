//! The functions for one call on one bucket: each is the general function, only faster.

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, Row};

use crate::support::proxy::xorshift;
use crate::support::{Database, cases};

pub(crate) const NOW: i64 = 1_767_225_600_000_000;
pub(crate) const HOUR: i64 = 3_600_000_000;
pub(crate) const NUMBERS: [f64; 8] = [1.0, 2.0, 3.0, 0.5, 0.1, 10.0, 7.25, 100.0];

/// One limit, and a call under it.
#[derive(Debug)]
struct Ask {
    kind: &'static str,
    rate: f64,
    period: i64,
    capacity: f64,
    start: i64,
    count: f64,
    times: i32,
}

impl Ask {
    /// The function for one call, on the bucket "one".
    fn one(&self) -> String {
        let Self { kind, rate, period, capacity, start, count, times } = self;
        let amount = count * f64::from(*times);
        let limit = match *kind {
            "token_bucket" => format!("{rate}, {period}, {capacity}"),
            "fixed_window" => format!("{rate}, {period}, {capacity}, {start}"),
            _ => format!("{rate}, {period}, {}", start % period),
        };
        format!("SELECT rate_limit._take_{kind}('one', 'k', {limit}, {amount}, {count}, {times})")
    }

    /// The general function, on the bucket "all".
    fn all(&self) -> String {
        let Self { kind, rate, period, capacity, start, count, times } = self;
        let capacity = if *kind == "sliding_window" { "NULL".into() } else { format!("ARRAY[{capacity}]") };
        format!(
            "SELECT call_admitted, call_waits, item_values FROM rate_limit._decide(ARRAY['{kind}'], ARRAY[{rate}], \
             ARRAY[{period}], {capacity}, NULL, ARRAY[{start}], NULL, NULL, ARRAY['all'], ARRAY['k'], NULL, NULL, \
             ARRAY[{count}], NULL, NULL, NULL, ARRAY[{times}], NULL)"
        )
    }
}

/// A database with a clock that is the setting `test.now` of the session.
pub(crate) async fn on_a_clock_of_its_own() -> Database {
    let database = Database::migrated().await;
    database
        .execute(
            "CREATE OR REPLACE FUNCTION rate_limit._clock() RETURNS bigint LANGUAGE sql VOLATILE AS \
             $$ SELECT pg_catalog.current_setting('test.now')::bigint $$",
        )
        .await;
    database
}

pub(crate) async fn run(conn: &mut PgConnection, sql: String) -> Result<sqlx::postgres::PgRow, String> {
    let error = |error: sqlx::Error| match error {
        sqlx::Error::Database(error) => error.message().replace("\"one\"", "\"all\"").replace("\"few\"", "\"all\""),
        error => panic!("{error}"),
    };
    sqlx::query(AssertSqlSafe(sql)).fetch_one(conn).await.map_err(error)
}

/// The answer: how often the call was allowed, its wait, and the balance.
async fn one(conn: &mut PgConnection, ask: &Ask) -> Result<(i32, Option<i64>, f64), String> {
    let numbers: Vec<Option<f64>> = run(conn, ask.one()).await?.get(0);
    Ok(match *numbers.as_slice() {
        [Some(balance), _] => (ask.times, None, balance),
        [Some(admitted), wait, Some(balance), _] => (admitted as i32, wait.map(|wait| wait as i64), balance),
        _ => panic!("{numbers:?}"),
    })
}

async fn all(conn: &mut PgConnection, ask: &Ask) -> Result<(i32, Option<i64>, f64), String> {
    let row = run(conn, ask.all()).await?;
    let admitted: Option<Vec<i32>> = row.get(0);
    let waits: Option<Vec<Option<i64>>> = row.get(1);
    let balances: Vec<f64> = row.get(2);
    Ok((admitted.map_or(ask.times, |admitted| admitted[0]), waits.and_then(|waits| waits[0]), balances[0]))
}

pub(crate) async fn rows(conn: &mut PgConnection) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', round(value::numeric, 6), ts, round(idle_at, -1), detail) FROM rate_limit.rate_limits ORDER BY name, key";
    sqlx::query_scalar(sql).fetch_all(conn).await.expect("rows")
}

/// Random calls of all three kinds, on new, full, short and indebted buckets, also of another kind and of another limit before.
#[tokio::test]
async fn each_decides_as_the_general_function_does() {
    let database = on_a_clock_of_its_own().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let mut random = 0x5eed_u64;
    let mut next = move |below: usize| (xorshift(&mut random) % below as u64) as usize;
    let (mut allowed, mut denied, mut failed) = (0, 0, 0);
    for _ in 0..cases(400) {
        sqlx::query("TRUNCATE rate_limit.rate_limits").execute(&mut conn).await.expect("truncate");
        let mut now = NOW;
        let mut kind = ["token_bucket", "fixed_window", "sliding_window"][next(3)];
        let (mut rate, mut period, mut start) =
            (NUMBERS[next(8)], [1, 999, HOUR, 24 * HOUR][next(4)], next(5) as i64 * HOUR / 2);
        for _ in 0..20 {
            now += [0, 1, 1_000, HOUR / 3, HOUR, -HOUR / 5][next(6)];
            match next(25) {
                0 => kind = ["token_bucket", "fixed_window", "sliding_window"][next(3)],
                1 => rate = NUMBERS[next(8)],
                2 => period = [1, 999, HOUR, 24 * HOUR][next(4)],
                3 => start = next(5) as i64 * HOUR / 2,
                _ => {}
            }
            let capacity = if kind == "sliding_window" { rate } else { [rate, rate * 2.0, 5.0][next(3)] };
            let ask =
                Ask { kind, rate, period, capacity, start, count: NUMBERS[next(8)], times: [1, 1, 1, 2, 5][next(5)] };
            if ask.times > 1 && ask.count * f64::from(ask.times) > capacity {
                continue; // The client does not ask these functions.
            }
            sqlx::query(AssertSqlSafe(format!("SET test.now = {now}"))).execute(&mut conn).await.expect("set");
            let (found, expected) = (one(&mut conn, &ask).await, all(&mut conn, &ask).await);
            match (&found, &expected) {
                (Ok(found), Ok(expected)) => {
                    assert_eq!((found.0, found.1), (expected.0, expected.1), "{ask:?}: {found:?} {expected:?}");
                    // After its clock has stepped back, a sliding window is weighted as of the earlier time: it reports less.
                    let reports_less = kind == "sliding_window" && found.2 <= expected.2;
                    assert!(reports_less || (found.2 - expected.2).abs() < 1e-6, "{ask:?}: {found:?} {expected:?}");
                    if found.0 == ask.times { allowed += 1 } else { denied += 1 }
                }
                _ => {
                    assert_eq!(found, expected, "{ask:?}");
                    failed += 1;
                }
            }
            if let [of_all, of_one] = rows(&mut conn).await.as_slice() {
                assert_eq!(of_all, of_one, "{ask:?}");
            }
        }
    }
    assert!(allowed > 300 && denied > 100 && failed > 20, "{allowed} allowed, {denied} denied, {failed} failed");
}

fn list<T: std::fmt::Display>(asks: &[Ask], of: impl Fn(&Ask) -> T) -> String {
    asks.iter().map(|ask| of(ask).to_string()).collect::<Vec<_>>().join(", ")
}

/// A call on several buckets, each with a limit of its own: by the function for a few buckets, or by the general one.
fn several(name: &str, asks: &[Ask]) -> String {
    let nths = || (1..=asks.len()).map(|nth| nth.to_string()).collect::<Vec<_>>().join(", ");
    let names = format!(
        "array_fill('{name}'::text, ARRAY[{}]), ARRAY(SELECT 'k' || n FROM unnest(ARRAY[{}]) AS n)",
        asks.len(),
        nths()
    );
    let kinds = list(asks, |ask| format!("'{}'", ask.kind));
    let (rates, periods) = (list(asks, |ask| ask.rate), list(asks, |ask| ask.period));
    let (capacities, counts) = (list(asks, |ask| ask.capacity), list(asks, |ask| ask.count));
    if name == "few" {
        let phases = list(asks, |ask| match ask.kind {
            "token_bucket" => "NULL".to_owned(),
            "fixed_window" => ask.start.to_string(),
            _ => (ask.start % ask.period).to_string(),
        });
        if let [Ask { kind: "token_bucket", .. }, Ask { kind: "token_bucket", .. }] = asks {
            let arguments = asks.iter().enumerate().map(|(nth, Ask { rate, period, capacity, count, .. })| {
                format!("'few', 'k{}', {rate}, {period}, {capacity}, {count}", nth + 1)
            });
            let arguments: Vec<String> = arguments.collect();
            return format!("SELECT rate_limit._take_two_token_buckets({})", arguments.join(", "));
        }
        format!(
            "SELECT rate_limit._take_few({names}, ARRAY[{kinds}], ARRAY[{rates}]::float8[], ARRAY[{periods}]::bigint[], \
             ARRAY[{capacities}]::float8[], ARRAY[{phases}]::bigint[], ARRAY[{counts}]::float8[])"
        )
    } else {
        let starts = list(asks, |ask| ask.start);
        format!(
            "SELECT ARRAY[coalesce(call_admitted[1], 1), call_waits[1]]::float8[] || item_values || coalesce(item_refused::int[]::float8[], \
             array_fill(0::float8, ARRAY[{size}])) FROM rate_limit._decide(ARRAY[{kinds}], ARRAY[{rates}]::float8[], \
             ARRAY[{periods}]::bigint[], ARRAY[{capacities}]::float8[], NULL, ARRAY[{starts}]::bigint[], NULL, NULL, {names}, NULL, \
             ARRAY[{nths}], ARRAY[{counts}]::float8[], NULL, NULL, ARRAY[{size}], NULL, NULL)",
            size = asks.len(),
            nths = nths(),
        )
    }
}

/// The answer: {admitted, wait, balances, whether each bucket denies}.
async fn numbers(conn: &mut PgConnection, sql: String, buckets: usize) -> Result<Vec<f64>, String> {
    let numbers: Vec<Option<f64>> = run(conn, sql).await?.get(0);
    let mut numbers: Vec<f64> = numbers.into_iter().map(|number| number.unwrap_or(-1.0)).collect();
    if numbers.len() == buckets {
        numbers.splice(0..0, [1.0, -1.0]);
        numbers.extend(vec![0.0; buckets]);
    }
    Ok(numbers)
}

/// Random calls on two to four buckets, which also change their limits and kinds, and step back in time.
#[tokio::test]
async fn a_few_buckets_are_decided_as_by_the_general_function() {
    let database = on_a_clock_of_its_own().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let mut random = 0xfe3_u64;
    let mut next = move |below: usize| (xorshift(&mut random) % below as u64) as usize;
    let (mut allowed, mut denied, mut failed) = (0, 0, 0);
    let kinds = ["token_bucket", "token_bucket", "fixed_window", "sliding_window"];
    for _ in 0..cases(300) {
        sqlx::query("TRUNCATE rate_limit.rate_limits").execute(&mut conn).await.expect("truncate");
        let mut now = NOW;
        let mut limits: Vec<_> = (0..2 + next(3))
            .map(|_| (kinds[next(4)], NUMBERS[next(8)], [1, 999, HOUR, 24 * HOUR][next(4)], next(5) as i64 * HOUR / 2))
            .collect();
        for _ in 0..20 {
            now += [0, 1, 1_000, HOUR / 3, HOUR, -HOUR / 5][next(6)];
            let changed = next(limits.len());
            match next(25) {
                0 => limits[changed].0 = kinds[next(4)],
                1 => limits[changed].1 = NUMBERS[next(8)],
                2 => limits[changed].2 = [1, 999, HOUR, 24 * HOUR][next(4)],
                3 => limits[changed].3 = next(5) as i64 * HOUR / 2,
                _ => {}
            }
            let asks: Vec<Ask> = limits
                .iter()
                .map(|&(kind, rate, period, start)| {
                    let capacity = if kind == "sliding_window" { rate } else { [rate, rate * 2.0, 5.0][next(3)] };
                    let count = if next(10) == 0 { NUMBERS[next(8)] } else { capacity / [2.0, 4.0, 8.0][next(3)] };
                    Ask { kind, rate, period, capacity, start, count, times: 1 }
                })
                .collect();
            sqlx::query(AssertSqlSafe(format!("SET test.now = {now}"))).execute(&mut conn).await.expect("set");
            let found = numbers(&mut conn, several("few", &asks), asks.len()).await;
            let expected = numbers(&mut conn, several("all", &asks), asks.len()).await;
            let (Ok(found), Ok(expected)) = (&found, &expected) else {
                assert_eq!(found, expected, "{asks:?}");
                failed += 1;
                continue;
            };
            let context = || format!("{asks:?} at {now}: {found:?} {expected:?}");
            assert_eq!((found.len(), &found[..2]), (expected.len(), &expected[..2]), "{}", context());
            for (nth, (found, expected)) in found.iter().zip(expected).enumerate().skip(2) {
                // See above.
                let reports_less =
                    asks.get(nth - 2).is_some_and(|ask| ask.kind == "sliding_window") && found <= expected;
                assert!(reports_less || (found - expected).abs() < 1e-6, "{}", context());
            }
            if found[0] == 1.0 {
                allowed += 1
            } else {
                denied += 1
            }
            let rows = rows(&mut conn).await;
            let (of_all, of_few) = rows.split_at(rows.len() / 2);
            assert_eq!(of_all, of_few, "{}", context());
        }
    }
    assert!(allowed > 300 && denied > 100 && failed > 20, "{allowed} allowed, {denied} denied, {failed} failed");
}

/// Arguments that a client never sends are the typed errors of the general function.
#[tokio::test]
async fn arguments_out_of_range_are_errors() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let mut errors = Vec::new();
    for round in 0..2 {
        for limit in [
            "0, 1000, 10",
            "'NaN', 1000, 10",
            "1e14, 1000, 10",
            "10, 0, 10",
            "10, 4e15, 10",
            "10, 1000, -1",
            "10, 1000, 'NaN'",
            "NULL, 1000, 10",
        ] {
            errors.push(format!("rate_limit._take_token_bucket('a', 'k', {limit}, 1, 1, 1)"));
            errors.push(format!("rate_limit._take_fixed_window('a', 'k', {limit}, 0, 1, 1, 1)"));
        }
        for limit in ["0, 1000", "'NaN', 1000", "10, 0", "10, 4000000000000000", "NULL, 1000", "10, NULL"] {
            errors.push(format!("rate_limit._take_sliding_window('a', 'k', {limit}, 0, 1, 1, 1)"));
        }
        for count in ["-1", "0.5e-6", "2e13", "'NaN'", "'Infinity'", "NULL"] {
            errors.push(format!("rate_limit._take_token_bucket('a', 'k', 10, 1000, 10, {count}, {count}, 1)"));
        }
        for call in errors.drain(..) {
            let error = run(&mut conn, format!("SELECT {}", call.replace("4e15", "4000000000000000"))).await;
            let error = error.err().unwrap_or_else(|| panic!("{call} is allowed"));
            let is_zero_period = call.contains("10, 0, ") && error.contains("division by zero");
            assert!(error.contains("is not valid") || error.contains("invalid_") || is_zero_period, "{call}: {error}");
        }
        assert_eq!(rows(&mut conn).await.len(), round, "no row is written");
        run(&mut conn, "SELECT rate_limit._take_token_bucket('a', 'k', 10, 1000, 10, 1, 1, 1)".into())
            .await
            .expect("a row");
    }
}

/// An amount that is not the count times the repetitions is never taken.
#[tokio::test]
async fn the_amount_is_what_the_calls_take() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    for amount in ["0", "-5", "1", "2.5", "NULL", "'NaN'"] {
        let sql =
            format!("SELECT (rate_limit._take_token_bucket('a', 'k', 10, 3155760000000000, 10, {amount}, 1, 2))[3]");
        let _ = run(&mut conn, sql).await.expect("decided by the general function");
    }
    let value: f64 = run(&mut conn, "SELECT value FROM rate_limit.rate_limits".into()).await.expect("a row").get(0);
    assert_eq!(value.round(), 0.0, "five of six calls of two tokens are allowed");
}

/// The library computes the phases of windows as the database does.
#[tokio::test]
async fn a_window_of_the_library_is_one_of_the_database() {
    use std::time::Duration;

    use pg_limiter::{Limit, Limits};
    let database = Database::migrated().await;
    for nth in 0_u64..60 {
        let period =
            [Duration::from_micros(1), Duration::from_millis(7), Duration::from_secs(86_400 * 40)][nth as usize % 3];
        let start = Duration::from_secs(nth * 7_777);
        let fixed = || Limit::fixed_window(1, period);
        let limits = Limits::new()
            .define("fixed", if nth % 2 == 0 { fixed() } else { fixed().start(start) })
            .and_then(|limits| limits.define("sliding", Limit::sliding_window(1, period).start(start)))
            .expect("limits");
        let limiter = database.limiter(limits);
        let key = format!("k{nth} \u{fc} \u{1f600}");
        for name in ["fixed", "sliding"] {
            assert!(limiter.limit((name, &*key)).await.expect("a decision").is_allowed());
        }
        // A denial of the other door knows the same windows: otherwise the row would be of another grid.
        let sql = "SELECT rate_limit._fits('sliding_window', detail, $2, rate_limit._grid('sliding_window', $3, $2, name, key), 1)
            FROM rate_limit.rate_limits WHERE name = 'sliding' AND key = $1";
        let micros = |duration: Duration| duration.as_micros() as i64;
        let fits: bool = sqlx::query_scalar(sql)
            .bind(&key)
            .bind(micros(period))
            .bind(micros(start))
            .fetch_one(&database.pool)
            .await
            .expect("a row");
        assert!(fits, "{period:?} {start:?}");
        let sql = "SELECT idle_at = rate_limit._fixed_window_idle_at(value, ts, 1, $2, 1, rate_limit._grid('fixed_window', $3, $2, name, key))
            FROM rate_limit.rate_limits WHERE name = 'fixed' AND key = $1";
        let ends: bool = sqlx::query_scalar(sql)
            .bind(&key)
            .bind(micros(period))
            .bind((nth % 2 == 1).then(|| micros(start)))
            .fetch_one(&database.pool)
            .await
            .expect("a row");
        assert!(ends, "{period:?} {start:?}");
    }
}
