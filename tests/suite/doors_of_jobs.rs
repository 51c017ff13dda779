//! The ways to take the reservations of jobs: each is the general function, only faster.

use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, Row};
use pg_limiter::{Limit, Limits};

use crate::doors::{HOUR, NOW, NUMBERS, on_a_clock_of_its_own, rows, run};
use crate::support::gate::{CENTURY, hold, until_waiting};
use crate::support::proxy::xorshift;
use crate::support::{Database, cases, scheduled};

/// A token bucket, and a reservation in it.
#[derive(Debug)]
struct Ask {
    rate: f64,
    period: i64,
    capacity: f64,
    count: f64,
}

/// A job of its own group that reserves its tokens in the bucket "one". Its wait and balance, or the wait of its denial.
fn enqueued(ask: &Ask, most: &str, group: usize) -> String {
    let Ask { rate, period, capacity, count } = ask;
    format!(
        "SELECT job_outcomes[1] = 'scheduled', nullif(job_waits[1], 0), item_values[1] FROM rate_limit._enqueue('q', \
         ARRAY['token_bucket'], ARRAY[{rate}]::float8[], ARRAY[{period}]::bigint[], ARRAY[{capacity}]::float8[], \
         ARRAY[{most}]::float8[], NULL, NULL, NULL, ARRAY['one'], ARRAY['k'], ARRAY[1], ARRAY[1], ARRAY[{count}]::float8[], \
         ARRAY[1], ARRAY['{group}'], ARRAY['1'], ARRAY[0], ARRAY[NULL], ARRAY[0]::bigint[], ARRAY[NULL]::bigint[], ARRAY[1], false)"
    )
}

/// The same reservation by the general function, in the bucket "all".
fn reserved(ask: &Ask, most: &str) -> String {
    let Ask { rate, period, capacity, count } = ask;
    format!(
        "SELECT coalesce(call_admitted[1], 1) = 1, nullif(call_waits[1], 0), item_values[1] FROM rate_limit._decide( \
         ARRAY['token_bucket'], ARRAY[{rate}]::float8[], ARRAY[{period}]::bigint[], ARRAY[{capacity}]::float8[], \
         ARRAY[{most}]::float8[], NULL, NULL, NULL, ARRAY['all'], ARRAY['k'], NULL, NULL, ARRAY[{count}]::float8[], NULL, \
         ARRAY[true], NULL, NULL, NULL)"
    )
}

/// How often the function was called, in this transaction and perhaps in some earlier ones.
async fn calls(conn: &mut PgConnection, function: &str) -> i64 {
    let sql = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_xact_user_functions WHERE funcname = $1";
    sqlx::query_scalar(sql).bind(function).fetch_one(conn).await.expect("a count")
}

/// Random jobs, one after the other, on new, full, short and indebted buckets. The general function decides few of them.
#[tokio::test]
async fn a_job_reserves_as_the_general_function_does() {
    let database = on_a_clock_of_its_own().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    sqlx::query("SET track_functions = 'pl'").execute(&mut conn).await.expect("set");
    let mut random = 0x10b_u64;
    let mut next = move |below: usize| (xorshift(&mut random) % below as u64) as usize;
    let (mut waiting, mut denied, mut failed, mut in_general) = (0, 0, 0, 0);
    for round in 0..cases(300) {
        sqlx::query("TRUNCATE rate_limit.rate_limits, rate_limit.jobs").execute(&mut conn).await.expect("truncate");
        let mut now = NOW;
        let (mut rate, mut period) = (NUMBERS[next(8)], [1, 999, HOUR, 24 * HOUR][next(4)]);
        for group in 0..20 {
            now += [0, 1, 1_000, HOUR / 3, HOUR, -HOUR / 5][next(6)];
            match next(25) {
                0 => rate = NUMBERS[next(8)],
                1 => period = [1, 999, HOUR, 24 * HOUR][next(4)],
                _ => {}
            }
            let capacity = [rate, rate * 2.0, 5.0][next(3)];
            let count = if next(30) == 0 { -1.0 } else { NUMBERS[next(8)] };
            let most = if next(200) == 0 { "2e13" } else { ["NULL", "0", "5", "33.5", "1e13"][round as usize % 5] };
            let ask = Ask { rate, period, capacity, count };
            sqlx::query(AssertSqlSafe(format!("SET test.now = {now}"))).execute(&mut conn).await.expect("set");
            let mut tx = conn.begin().await.expect("begin");
            let before = calls(&mut tx, "_enqueue_jobs").await;
            let found = run(&mut tx, enqueued(&ask, most, group)).await;
            if found.is_ok() {
                in_general += calls(&mut tx, "_enqueue_jobs").await - before;
                tx.commit().await.expect("commit");
            } else {
                tx.rollback().await.expect("roll back");
            }
            let expected = run(&mut conn, reserved(&ask, most)).await;
            let answer = |row: sqlx::postgres::PgRow| {
                (row.get::<bool, _>(0), row.get::<Option<i64>, _>(1), row.get::<f64, _>(2))
            };
            let (found, expected) = (found.map(answer), expected.map(answer));
            let (Ok(found), Ok(expected)) = (&found, &expected) else {
                assert_eq!(found, expected, "{ask:?}, at most {most}");
                failed += 1;
                continue;
            };
            let context = || format!("{ask:?}, at most {most}, at {now}: {found:?} {expected:?}");
            assert_eq!((found.0, found.1), (expected.0, expected.1), "{}", context());
            assert!((found.2 - expected.2).abs() < 1e-6, "{}", context());
            if let [of_all, of_one] = rows(&mut conn).await.as_slice() {
                assert_eq!(of_all, of_one, "{}", context());
            }
            waiting += i32::from(found.0 && found.1.is_some());
            denied += i32::from(!found.0);
        }
    }
    assert!(waiting > 300 && denied > 100 && failed > 20, "{waiting} wait, {denied} denied, {failed} failed");
    let few = i64::from(denied) + 3 * i64::from(cases(300));
    assert!(in_general < few, "{in_general} by the general function, {denied} denied");
}

/// An array of SQL.
fn array<T: std::fmt::Display>(values: impl Iterator<Item = T>) -> String {
    format!("ARRAY[{}]", values.map(|value| value.to_string()).collect::<Vec<_>>().join(", "))
}

/// The reservations of several jobs, each in one of these buckets.
fn batch(function: &str, name: &str, buckets: &[(f64, i64, f64, &str)], items: &[(usize, f64)]) -> String {
    let limits = format!(
        "{}, {}::float8[], {}::bigint[], {}::float8[], {}::float8[], NULL, NULL, NULL",
        array(buckets.iter().map(|_| "'token_bucket'")),
        array(buckets.iter().map(|bucket| bucket.0)),
        array(buckets.iter().map(|bucket| bucket.1)),
        array(buckets.iter().map(|bucket| bucket.2)),
        array(buckets.iter().map(|bucket| bucket.3)),
    );
    let names = array(buckets.iter().map(|_| format!("'{name}'")));
    let keys = array((0..buckets.len()).map(|nth| format!("'k{nth}'")));
    let places = array(items.iter().map(|item| item.0 + 1));
    let counts = array(items.iter().map(|item| item.1));
    let rest = if function == "_decide" {
        format!("NULL, array_fill(true, ARRAY[{}]), NULL, NULL, NULL", items.len())
    } else {
        format!("NULL, array_fill(1, ARRAY[{}])", items.len())
    };
    format!(
        "SELECT array_to_string(call_admitted, ' ', '-'), call_waits, array_to_string(item_refused, ' '), \
         item_values FROM rate_limit.{function}({limits}, {names}, {keys}, {places}, {places}, {counts}::float8[], {rest})"
    )
}

/// Random batches of jobs on one to four buckets.
#[tokio::test]
async fn a_batch_of_jobs_reserves_as_the_general_function_does() {
    let database = on_a_clock_of_its_own().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    sqlx::query("SET track_functions = 'pl'").execute(&mut conn).await.expect("set");
    let mut random = 0xba7c_u64;
    let mut next = move |below: usize| (xorshift(&mut random) % below as u64) as usize;
    let (mut at_once, mut denied, mut failed) = (0, 0, 0);
    for _ in 0..cases(300) {
        sqlx::query("TRUNCATE rate_limit.rate_limits").execute(&mut conn).await.expect("truncate");
        let mut now = NOW;
        let mut buckets: Vec<_> = (0..1 + next(4))
            .map(|_| {
                let rate = NUMBERS[next(8)];
                let most = ["NULL", "NULL", "200", "50.5"][next(4)];
                (rate, [1, 999, HOUR, 24 * HOUR][next(4)], rate * 2.0, most)
            })
            .collect();
        for _ in 0..20 {
            now += [0, 1, 1_000, HOUR / 3, HOUR, -HOUR / 5][next(6)];
            let changed = next(buckets.len());
            if next(20) == 0 {
                buckets[changed].0 = NUMBERS[next(8)];
            }
            // Each bucket has a job, and some have several.
            let mut items: Vec<_> = (0..buckets.len()).map(|bucket| (bucket, NUMBERS[next(8)])).collect();
            items.extend((0..next(4)).map(|_| (next(buckets.len()), NUMBERS[next(8)])).collect::<Vec<_>>());
            if next(40) == 0 {
                items[0].1 = -1.0;
            }
            sqlx::query(AssertSqlSafe(format!("SET test.now = {now}"))).execute(&mut conn).await.expect("set");
            let mut tx = conn.begin().await.expect("begin");
            let before = calls(&mut tx, "_decide").await;
            let found = run(&mut tx, batch("_reserve_jobs", "one", &buckets, &items)).await;
            if found.is_ok() {
                at_once += i32::from(calls(&mut tx, "_decide").await == before);
                tx.commit().await.expect("commit");
            } else {
                tx.rollback().await.expect("roll back");
            }
            let expected = run(&mut conn, batch("_decide", "all", &buckets, &items)).await;
            let answer = |row: sqlx::postgres::PgRow| {
                // NULL: all calls are admitted, none waits, no item is refused.
                let texts =
                    [0, 2].map(|nth| row.get::<Option<String>, _>(nth).filter(|text| text.contains(['0', 't'])));
                let waits = row.get::<Option<Vec<Option<i64>>>, _>(1).unwrap_or(vec![None; items.len()]);
                (texts, waits, row.get::<Vec<f64>, _>(3))
            };
            let (found, expected) = (found.map(answer), expected.map(answer));
            let (Ok(found), Ok(expected)) = (&found, &expected) else {
                assert_eq!(found, expected, "{buckets:?} {items:?}");
                failed += 1;
                continue;
            };
            let context = || format!("{buckets:?} {items:?} at {now}: {found:?} {expected:?}");
            assert_eq!(found.0, expected.0, "{}", context());
            for (found, expected) in found.1.iter().zip(&expected.1) {
                // Both round: a microsecond of a wait of months.
                assert!(found.unwrap_or(0).abs_diff(expected.unwrap_or(0)) <= 1, "{}", context());
            }
            for (found, expected) in found.2.iter().zip(&expected.2) {
                assert!((found - expected).abs() < 1e-6, "{}", context());
            }
            let rows = rows(&mut conn).await;
            let (of_all, of_one) = rows.split_at(rows.len() / 2);
            assert_eq!(of_all, of_one, "{}", context());
            denied += i32::from(found.0[0].is_some());
        }
    }
    let least = i32::try_from(cases(300)).expect("a number") * 8;
    assert!(at_once > least && denied > 100 && failed > 20, "{at_once} at once, {denied} denied, {failed} failed");
}

/// The starts of jobs of several groups, each a few times, with a bucket of its own.
fn starts(ops: &str, name: &str, buckets: &[(f64, i64, f64, &str)], calls: &[(f64, usize)]) -> String {
    let each = |value: &str| array(calls.iter().map(|_| value.to_owned()));
    let limits = format!(
        "{}, {}::float8[], {}::bigint[], {}::float8[], {}::bigint[]",
        each("'token_bucket'"),
        array(buckets.iter().map(|bucket| bucket.0)),
        array(buckets.iter().map(|bucket| bucket.1)),
        array(buckets.iter().map(|bucket| bucket.2)),
        each("NULL"),
    );
    let keys = array((0..calls.len()).map(|nth| format!("'k{nth}'")));
    let (counts, times) = (array(calls.iter().map(|call| call.0)), array(calls.iter().map(|call| call.1)));
    let places = array(1..=calls.len());
    format!(
        "SELECT array_to_string(call_admitted, ' '), array_to_string(item_refused, ' '), decided_at FROM \
         rate_limit._decide_started({}, {keys}, {counts}::float8[], {places}, NULL, NULL, {ops}, NULL, {}, {times}, NULL, {limits})",
        each(&format!("'{name}'")),
        each("1"),
    )
}

/// Random claims. With the operation given, the general function decides.
#[tokio::test]
async fn starts_of_jobs_take_the_tokens_that_the_general_function_takes() {
    let database = on_a_clock_of_its_own().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    sqlx::query("SET track_functions = 'pl'").execute(&mut conn).await.expect("set");
    let mut random = 0x57a_u64;
    let mut next = move |below: usize| (xorshift(&mut random) % below as u64) as usize;
    let (mut at_once, mut denied) = (0, 0);
    for _ in 0..cases(300) {
        sqlx::query("TRUNCATE rate_limit.rate_limits").execute(&mut conn).await.expect("truncate");
        let mut now = NOW;
        let buckets: Vec<_> = (0..1 + next(4))
            .map(|_| (NUMBERS[next(8)], [1, 999, HOUR, 24 * HOUR][next(4)], [1.0, 50.0, 1e9][next(3)], "NULL"))
            .collect();
        for _ in 0..20 {
            now += [0, 1, 1_000, HOUR / 3, HOUR, -HOUR / 5][next(6)];
            let calls: Vec<_> = buckets.iter().map(|_| (NUMBERS[next(8)], [1, 1, 1, 2, 7][next(5)])).collect();
            sqlx::query(AssertSqlSafe(format!("SET test.now = {now}"))).execute(&mut conn).await.expect("set");
            let mut tx = conn.begin().await.expect("begin");
            let before = self::calls(&mut tx, "_decide_each").await;
            let found = run(&mut tx, starts("NULL", "one", &buckets, &calls)).await.expect("an answer");
            at_once += i32::from(self::calls(&mut tx, "_decide_each").await == before);
            tx.commit().await.expect("commit");
            let ops = array(calls.iter().map(|_| "'limit'"));
            let expected = run(&mut conn, starts(&ops, "all", &buckets, &calls)).await.expect("an answer");
            // NULL: all are admitted, and none is refused.
            let all = calls.iter().map(|call| call.1.to_string()).collect::<Vec<_>>().join(" ");
            let answer = |row: sqlx::postgres::PgRow| {
                let refused = row.get::<Option<String>, _>(1).filter(|refused| refused.contains('t'));
                (row.get::<Option<String>, _>(0).unwrap_or_else(|| all.clone()), refused, row.get::<i64, _>(2))
            };
            let (found, expected) = (answer(found), answer(expected));
            assert_eq!(found, expected, "{buckets:?} {calls:?} at {now}");
            let rows = rows(&mut conn).await;
            let (of_all, of_one) = rows.split_at(rows.len() / 2);
            assert_eq!(of_all, of_one, "{buckets:?} {calls:?} at {now}");
            denied += i32::from(found.1.is_some());
        }
    }
    let least = i32::try_from(cases(300)).expect("a number") * 5;
    assert!(at_once > least && denied > 100, "{at_once} at once, {denied} denied");
}

fn limits() -> Limits {
    Limits::new().define("l", Limit::token_bucket(1, CENTURY).capacity(10).max_reserved(0)).expect("limits")
}

fn job(key: &str) -> Job {
    Job::new(("l", key), &1).expect("a job")
}

/// The balances of the buckets, and the number of jobs.
async fn left(database: &Database) -> (Vec<f64>, i64) {
    let sql = "SELECT array_agg(round(value::numeric, 3)::float8 ORDER BY key), (SELECT count(*) FROM rate_limit.jobs) \
               FROM rate_limit.rate_limits";
    sqlx::query_as(sql).fetch_one(&database.pool).await.expect("the balances")
}

/// Another transaction has locked the row, and changes nothing: the job is decided as of the time at which it got the lock.
#[tokio::test]
async fn a_job_that_waited_for_a_row_is_decided_anew() {
    let database = Database::migrated().await;
    let queue = Queue::new(&database.limiter(limits()), "q").expect("a queue");
    let _ = scheduled(&queue.enqueue(job("k")).await.expect("an answer"));
    let holder = hold(&database, "l", &["k"]).await;
    let mut tx = database.app.begin().await.expect("begin");
    let enqueueing = async {
        let _ = scheduled(&queue.within(&mut tx).enqueue(job("k")).await.expect("an answer"));
        tx.commit().await.expect("commit");
    };
    let releasing = async {
        until_waiting(&database, 1).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await; // Longer than a call may take that has not waited.
        let clock = "SELECT rate_limit._clock()";
        let released_at: i64 = sqlx::query_scalar(clock).fetch_one(&database.pool).await.expect("the clock");
        holder.rollback().await.expect("rollback");
        released_at
    };
    let (released_at, ()) = futures_util::join!(releasing, enqueueing);
    assert_eq!(left(&database).await, (vec![8.0], 2));
    let decided_at: i64 =
        sqlx::query_scalar("SELECT ts FROM rate_limit.rate_limits").fetch_one(&database.pool).await.expect("a row");
    assert!(decided_at >= released_at, "{decided_at}, {released_at}");
}

/// All buckets of a batch cover it when it looks. While it waits for one of them, another transaction takes what is left there.
#[tokio::test]
async fn a_batch_takes_no_more_than_a_bucket_has_after_a_wait() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let queue = Queue::new(&limiter, "q").expect("a queue");
    for key in ["a", "b", "c"] {
        let _ = scheduled(&queue.enqueue(job(key)).await.expect("an answer"));
    }
    let mut holder = database.app.begin().await.expect("begin");
    assert!(limiter.within(&mut holder).limit(("l", "b", 9)).await.expect("a decision").is_allowed());
    let mut tx = database.app.begin().await.expect("begin");
    let enqueueing = async {
        let jobs = ["a", "b", "c", "c"].map(job);
        let outcomes = queue.within(&mut tx).enqueue_all(jobs).await.expect("answers");
        tx.commit().await.expect("commit");
        outcomes.into_iter().map(|outcome| outcome.enforce().is_ok()).collect::<Vec<_>>()
    };
    let taking = async {
        until_waiting(&database, 1).await;
        holder.commit().await.expect("commit");
    };
    let ((), are_scheduled) = futures_util::join!(taking, enqueueing);
    assert_eq!(are_scheduled, [true, false, true, true]);
    assert_eq!(left(&database).await, (vec![8.0, 0.0, 7.0], 6));
}
