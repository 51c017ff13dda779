//! `_take_slots` itself: it answers as `_decide` does, or leaves the call undecided.

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, Executor, PgConnection};

use crate::support::Database;
use crate::support::gate::until_waiting;

/// A call on one bucket.
#[derive(Clone, Copy, Debug)]
struct Slots {
    bucket: char,
    op: &'static str,
    count: u8,
    lease: i64,
    capacity: u8,
    micros: i64,
}

const HOUR: i64 = 3_600_000_000;

fn list<T: std::fmt::Display>(calls: &[Slots], of: impl Fn(&Slots) -> T) -> String {
    calls.iter().map(|call| format!("'{}'", of(call))).collect::<Vec<_>>().join(", ")
}

/// Returns the free slots after each call; `None` for a call that it left undecided.
async fn take(conn: &mut PgConnection, calls: &[Slots]) -> Vec<Option<f64>> {
    let sql = format!(
        "SELECT rate_limit._take_slots(ARRAY[{}]::float8[], ARRAY[{}]::bigint[], array_fill('taken'::text, ARRAY[{n}]),
           ARRAY[{}], ARRAY(SELECT generate_series(1, {n})), ARRAY[{}], ARRAY[{}]::float8[], ARRAY[{}]::bigint[])",
        list(calls, |call| call.capacity),
        list(calls, |call| call.micros),
        list(calls, |call| call.bucket),
        list(calls, |call| call.op),
        list(calls, |call| call.count),
        list(calls, |call| call.lease),
        n = calls.len(),
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await.expect("the free slots")
}

/// Decides one call by `_decide`: whether it was allowed and, for a release, held; and the free slots.
async fn decide(conn: &mut PgConnection, name: &str, call: Slots) -> Result<(bool, f64), sqlx::Error> {
    let Slots { bucket, op, count, lease, capacity, micros } = call;
    let sql = format!(
        "SELECT call_admitted[1] = 1 AND NOT item_refused[1], item_values[1] FROM rate_limit._decide(
           ARRAY['concurrency'], ARRAY[{capacity}], ARRAY[{micros}], NULL, NULL, NULL, NULL, NULL, ARRAY['{name}'],
           ARRAY['{bucket}'], ARRAY[1], ARRAY[1], ARRAY[{count}], ARRAY['{op}'], NULL, ARRAY[1], NULL, NULL, ARRAY[{lease}])"
    );
    sqlx::query_as(AssertSqlSafe(sql)).fetch_one(conn).await
}

async fn set_level(conn: &mut PgConnection, level: &str) {
    let set = format!("SET default_transaction_isolation = '{level}'");
    sqlx::query(AssertSqlSafe(set)).execute(conn).await.expect("a level");
}

/// Random calls: the same buckets, decided in both ways, have the same counts in the same order.
#[tokio::test]
async fn it_answers_as_the_calls_one_by_one() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    let mut random = fastrand::Rng::with_seed(18);
    let mut decided = [0, 0];
    for round in 0..400 {
        set_level(&mut conn, if round % 2 == 0 { "SERIALIZABLE" } else { "READ COMMITTED" }).await;
        let capacity = random.u8(3..6);
        let calls: Vec<Slots> = ('a'..='d')
            .filter_map(|bucket| {
                let op = ["limit", "limit", "release", "renew"][random.usize(..4)];
                let micros = if random.u8(..20) == 0 { 1 } else { HOUR + i64::from(random.u8(..3)) };
                let call = Slots { bucket, op, count: random.u8(1..4), lease: random.i64(2..8), capacity, micros };
                random.bool().then_some(call)
            })
            .collect();
        if calls.is_empty() {
            continue;
        }
        let free = take(&mut conn, &calls).await;
        for (call, free) in calls.into_iter().zip(free) {
            let expected = decide(&mut conn, "expected", call).await;
            decided[usize::from(free.is_some())] += 1;
            let answer = match free {
                Some(free) => Ok((true, free)),
                None => decide(&mut conn, "taken", call).await,
            };
            match (answer, expected) {
                (Ok(answer), Ok(expected)) => assert_eq!(answer, expected, "{call:?}"),
                (Err(answer), Err(expected)) => {
                    assert_eq!(answer.to_string().replace("taken", "expected"), expected.to_string(), "{call:?}");
                }
                (answer, expected) => panic!("{call:?}: {answer:?} instead of {expected:?}"),
            }
        }
        let different: Vec<(String, Vec<f64>, Vec<f64>)> = sqlx::query_as(
            "SELECT t.key, t.detail, e.detail
             FROM rate_limit.rate_limits AS t FULL JOIN rate_limit.rate_limits AS e ON e.key = t.key AND e.name = 'expected'
             WHERE t.name = 'taken' AND (
               ARRAY(SELECT n FROM unnest(t.detail) AS n WHERE n < 2000)
                 IS DISTINCT FROM ARRAY(SELECT n FROM unnest(e.detail) AS n WHERE n < 2000)
               OR t.value <> e.value OR t.idle_at < t.detail[cardinality(t.detail) - 2])",
        )
        .fetch_all(&mut conn)
        .await
        .expect("the rows");
        assert_eq!(different, [], "round {round}");
    }
    assert!(decided.iter().all(|count| *count > 100), "both ways are taken: {decided:?}");
}

/// The call waits for its row for longer than its lease lasts.
#[tokio::test]
async fn a_lease_begins_after_the_wait_for_its_row() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let call = |op, lease, micros| [Slots { bucket: 'a', op, count: 2, lease, capacity: 3, micros }];
    take(&mut conn, &call("limit", 7, HOUR)).await;
    take(&mut conn, &call("release", 7, HOUR)).await;
    let mut holder = database.pool.begin().await.expect("begin");
    holder.execute("SELECT FROM rate_limit.rate_limits FOR UPDATE").await.expect("a lock");
    let waiting = tokio::spawn(async move { take(&mut conn, &call("limit", 8, 20_000)).await });
    until_waiting(&database, 1).await;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let clock = "SELECT rate_limit._clock()";
    let before: i64 = sqlx::query_scalar(clock).fetch_one(&database.pool).await.expect(clock);
    holder.commit().await.expect("commit");
    assert_eq!(waiting.await.expect("a task"), [Some(1.0)]);
    let row = "SELECT value, idle_at, detail FROM rate_limit.rate_limits";
    let (value, idle_at, detail): (f64, i64, Vec<f64>) =
        sqlx::query_as(row).fetch_one(&database.pool).await.expect("the row");
    assert!(idle_at >= before + 20_000, "{} us too early", before + 20_000 - idle_at);
    assert_eq!((value, detail), (2.0, vec![-1.0, idle_at as f64, -8.0, 2.0]));
}

#[tokio::test]
async fn impossible_calls_are_left_undecided() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    let good = Slots { bucket: 'a', op: "limit", count: 1, lease: 2, capacity: 3, micros: HOUR };
    let bad = [
        Slots { lease: 1, ..good },
        Slots { lease: -2, ..good },
        Slots { lease: 9_007_199_254_740_992, ..good },
        Slots { count: 0, ..good },
        Slots { count: 4, ..good },
        Slots { capacity: 0, ..good },
        Slots { micros: 0, ..good },
        Slots { micros: -HOUR, ..good },
        Slots { op: "reset", ..good },
        Slots { op: "release", ..good },
        Slots { op: "renew", ..good },
    ];
    for call in bad {
        assert_eq!(take(&mut conn, &[call]).await, [None], "{call:?}");
    }
    assert_eq!(database.rows().await, 0);
    assert_eq!(take(&mut conn, &[good]).await, [Some(2.0)]);
    assert_eq!(take(&mut conn, &[good]).await, [None], "the lease is held already");
    // A row of another kind holds no slots.
    sqlx::query("SELECT rate_limit.limit_with('taken', 'b', 'token_bucket', 10, '1 hour')")
        .execute(&mut conn)
        .await
        .expect("a token");
    assert_eq!(take(&mut conn, &[Slots { bucket: 'b', ..good }]).await, [None]);
}

/// Another transaction keeps the row locked and does not change it: the lease is as long as it should be.
#[tokio::test]
async fn after_a_wait_a_lease_is_not_shorter() {
    for (level, op) in [("SERIALIZABLE", "limit"), ("READ COMMITTED", "limit"), ("READ COMMITTED", "renew")] {
        let database = Database::migrated().await;
        let mut holder = PgConnection::connect(&database.url).await.expect("connect");
        let mut conn = PgConnection::connect(&database.url).await.expect("connect");
        let call = Slots { bucket: 'a', op: "limit", count: 1, lease: 2, capacity: 3, micros: HOUR };
        assert_eq!(take(&mut conn, &[call]).await, [Some(2.0)]);
        let mut held = holder.begin().await.expect("begin");
        sqlx::query("UPDATE rate_limit.rate_limits SET value = value").execute(&mut *held).await.expect("held");
        set_level(&mut conn, level).await;
        let lease = if op == "limit" { 3 } else { 2 };
        let waiting = tokio::spawn(async move { take(&mut conn, &[Slots { op, lease, ..call }]).await });
        let blocked =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while sqlx::query_scalar::<_, i64>(blocked).fetch_one(&database.pool).await.expect("the locks") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let let_go: i64 =
            sqlx::query_scalar("SELECT rate_limit._clock()").fetch_one(&mut *held).await.expect("the time");
        held.rollback().await.expect("rollback");
        assert_eq!(waiting.await.expect("the free slots"), [Some(if op == "limit" { 1.0 } else { 2.0 })], "{level}");
        let ends: f64 = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT detail[array_position(detail, -{lease}::float8) - 1] FROM rate_limit.rate_limits"
        )))
        .fetch_one(&database.pool)
        .await
        .expect("the end");
        assert!(ends >= (let_go + HOUR) as f64, "{level}, {op}: {} us too early", (let_go + HOUR) as f64 - ends);
    }
}
