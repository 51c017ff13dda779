//! `limit_all_with` and `check_all_with`: several limits in one decision, for callers from SQL.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::migrate::Use;
use pg_limiter::sqlx::postgres::PgDatabaseError;
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, Row};
use pg_limiter::{Item, Limit, Limits};
use serde_json::{Value, json};

use crate::shards_contended::{LEVELS, all_rows_or_none, code, session};
use crate::support::gate::CENTURY;
use crate::support::{Database, guide};

/// A limit that hardly refills while the test runs.
pub fn bucket(name: &str, key: &str, capacity: f64) -> Value {
    json!({"name": name, "key": key, "kind": "token_bucket", "rate": capacity, "period": "36525 days"})
}

pub fn with(mut limit: Value, field: &str, value: impl Into<Value>) -> Value {
    limit[field] = value.into();
    limit
}

/// A row of `limit_all_with`, with `retry_after` in microseconds.
#[derive(Debug)]
pub struct Decided {
    pub ok: bool,
    pub wait: Option<i64>,
    pub denied_by: Vec<String>,
    pub limits: Vec<Value>,
}

impl Decided {
    /// One field of each element.
    fn all(&self, field: &str) -> Vec<Value> {
        self.limits.iter().map(|limit| limit[field].clone()).collect()
    }

    /// The balance of each element, rounded.
    pub fn values(&self) -> Vec<i64> {
        self.limits.iter().map(|limit| limit["value"].as_f64().expect("a number").round() as i64).collect()
    }
}

pub async fn call(
    conn: &mut PgConnection,
    function: &str,
    calls: &Value,
    reserve: bool,
) -> Result<Decided, sqlx::Error> {
    let sql = format!(
        "SELECT ok, (extract(epoch FROM retry_after) * 1000000)::bigint, denied_by, limits::text
         FROM rate_limit.{function}($1::jsonb, $2)"
    );
    let row = loop {
        let query = sqlx::query(AssertSqlSafe(sql.clone())).bind(calls.to_string()).bind(reserve);
        match query.fetch_one(&mut *conn).await {
            // If the machine stops for a moment, the call looks like one that has waited with an old snapshot.
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("40001") => {}
            row => break row?,
        }
    };
    let limits = serde_json::from_str(row.get(3)).expect("JSON");
    Ok(Decided { ok: row.get(0), wait: row.get(1), denied_by: row.get(2), limits })
}

async fn all(conn: &mut PgConnection, limits: &[Value]) -> Decided {
    call(conn, "limit_all_with", &limits.into(), false).await.expect("a decision")
}

async fn check(conn: &mut PgConnection, limits: &[Value]) -> Decided {
    call(conn, "check_all_with", &limits.into(), false).await.expect("a decision")
}

async fn reserve(conn: &mut PgConnection, limits: &[Value]) -> Decided {
    call(conn, "limit_all_with", &limits.into(), true).await.expect("a decision")
}

/// SQLSTATE, message and hint.
pub async fn refused(conn: &mut PgConnection, function: &str, calls: &Value) -> (String, String, String) {
    let error = call(conn, function, calls, false).await.expect_err(&calls.to_string());
    let error = error.as_database_error().expect("of the database").downcast_ref::<PgDatabaseError>();
    (error.code().into(), error.message().into(), error.hint().unwrap_or_default().into())
}

#[tokio::test]
async fn all_limits_are_charged_or_none_is() {
    for level in LEVELS {
        let database = Database::migrated().await;
        let mut conn = session(&database, level).await;
        let group = [bucket("wide", "k", 5.0), bucket("narrow", "k", 2.0)];
        for left in [[4, 1], [3, 0]] {
            let decided = all(&mut conn, &group).await;
            assert!(decided.ok && decided.wait.is_none() && decided.denied_by.is_empty(), "{level}: {decided:?}");
            assert_eq!(decided.values(), left);
            assert_eq!(decided.all("denied"), [false, false]);
        }
        for _ in 0..3 {
            let decided = all(&mut conn, &group).await;
            assert!(!decided.ok && decided.wait.is_some_and(|wait| wait > 0), "{level}: {decided:?}");
            assert_eq!((decided.denied_by.as_slice(), decided.values()), (&["narrow".to_owned()][..], vec![3, 0]));
            assert_eq!(decided.all("denied"), [false, true]);
        }
        // The denied call has taken nothing.
        assert_eq!(all(&mut conn, &[with(group[0].clone(), "count", 3)]).await.values(), [0]);
    }
}

#[tokio::test]
async fn a_denial_names_each_denying_limit_once_and_sorted() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let group = [
        bucket("z", "1", 1.0),
        bucket("Zeta", "1", 1.0),
        bucket("free", "1", 9.0),
        bucket("a", "2", 1.0),
        bucket("a", "1", 1.0),
        bucket("free", "", 9.0),
    ];
    assert!(all(&mut conn, &group).await.ok);
    let denied = all(&mut conn, &group).await;
    assert_eq!(denied.denied_by, ["Zeta", "a", "z"]);
    // One object for each element, in the given order.
    for field in ["name", "key"] {
        assert_eq!(denied.all(field), group.iter().map(|limit| limit[field].clone()).collect::<Vec<_>>());
    }
    assert_eq!(denied.all("denied"), [true, true, false, true, true, false]);
    assert_eq!(denied.values(), [0, 0, 8, 0, 0, 8]);
    let mut fields: Vec<&String> = denied.limits[0].as_object().expect("an object").keys().collect();
    fields.sort_unstable();
    assert_eq!(fields, ["denied", "key", "name", "value"]);
    // Without a denial, `denied_by` is an empty array in SQL.
    let free = "SELECT denied_by = '{}' AND 'a' <> ALL (denied_by) FROM rate_limit.limit_all_with($1::jsonb)";
    let empty: bool =
        sqlx::query_scalar(free).bind(json!(&group[2..3]).to_string()).fetch_one(&mut conn).await.expect("a decision");
    assert!(empty);
}

/// Limits of every kind: at the promised time each would allow the call, and a second earlier at least one would not.
#[tokio::test]
async fn the_largest_retry_after_is_promised_and_kept() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let kinds = [
        json!({"name": "bucket", "key": "k", "kind": "token_bucket", "rate": 1, "period": "10 hours", "capacity": 3}),
        json!({"name": "window", "key": "k", "kind": "fixed_window", "rate": 3, "period": "30 days", "start": "7h"}),
        json!({"name": "sliding", "key": "k", "kind": "sliding_window", "rate": 3, "period": "2 days", "resolution": 4}),
        json!({"name": "shards", "key": "k", "kind": "token_bucket", "rate": 4, "period": "20 hours", "shards": 4}),
    ];
    for group in [&kinds[..], &kinds[..1], &kinds[2..], &[kinds[3].clone(), kinds[0].clone()]] {
        database.execute("DELETE FROM rate_limit.rate_limits").await;
        let three: Vec<Value> = group.iter().map(|limit| with(limit.clone(), "count", 3)).collect();
        assert!(all(&mut conn, &three).await.ok);
        let clock = "SELECT rate_limit._clock()";
        let before: i64 = sqlx::query_scalar(clock).fetch_one(&mut conn).await.expect("the clock");
        let denied = all(&mut conn, &three).await;
        let after: i64 = sqlx::query_scalar(clock).fetch_one(&mut conn).await.expect("the clock");
        let wait = denied.wait.expect("a wait");
        assert_eq!(denied.denied_by.len(), group.len());
        // The decision was made between the two times.
        for (at, expected) in [(after + wait, true), (before + wait - 1_000_000, false)] {
            let mut allowed = true;
            for limit in group {
                let sql =
                    "SELECT d.ok FROM CAST($1 AS jsonb) AS l, rate_limit.check_with(l ->> 'name', l ->> 'key', l ->> 'kind',
                    (l ->> 'rate')::float8, (l ->> 'period')::interval, (l ->> 'capacity')::float8, 3,
                    start => (l ->> 'start')::interval, resolution => (l ->> 'resolution')::integer,
                    shards => coalesce((l ->> 'shards')::integer, 1), at => to_timestamp($2::numeric / 1000000)) AS d";
                let ok: bool = sqlx::query_scalar(sql)
                    .bind(limit.to_string())
                    .bind(at)
                    .fetch_one(&mut conn)
                    .await
                    .expect("a decision");
                allowed &= ok;
            }
            assert_eq!(allowed, expected, "{group:?}");
        }
        // It equals the largest of the single waits: time passes, so it lies between measurements before and after.
        let largest: Vec<i64> = [check(&mut conn, &three).await, denied].iter().filter_map(|one| one.wait).collect();
        let mut of_each = 0;
        for limit in &three {
            of_each = of_each.max(check(&mut conn, std::slice::from_ref(limit)).await.wait.expect("a wait"));
        }
        assert!(largest[0] <= largest[1] && of_each <= largest[0], "{largest:?} {of_each}");
        // Once the time has passed, the call itself is allowed. The test moves the rows back by this time.
        if group.iter().all(|limit| limit["kind"] == "token_bucket") {
            database.execute(&format!("UPDATE rate_limit.rate_limits SET ts = ts - {wait} + 3600000000")).await;
            assert!(!all(&mut conn, &three).await.ok);
            database.execute("UPDATE rate_limit.rate_limits SET ts = ts - 3600000000").await;
            assert!(all(&mut conn, &three).await.ok);
        }
    }
}

#[tokio::test]
async fn a_reservation_is_for_all_limits_and_its_wait_is_the_longest() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "SERIALIZABLE").await;
    let slow =
        json!({"name": "slow", "key": "k", "kind": "token_bucket", "rate": 1, "period": "2 days", "capacity": 0});
    let bounded = with(
        with(
            json!({"name": "bounded", "key": "k", "kind": "fixed_window", "rate": 1, "period": "1 day"}),
            "start",
            "06:00:00",
        ),
        "max_reserved",
        1,
    );
    let day = 86_400_000_000;
    let first = reserve(&mut conn, &[slow.clone(), bounded.clone()]).await;
    assert!(first.ok && first.denied_by.is_empty() && first.wait == Some(2 * day), "{first:?}");
    assert_eq!(first.values(), [-1, 0]);
    let second = reserve(&mut conn, &[slow.clone(), bounded.clone()]).await;
    assert!(second.ok && second.wait.is_some_and(|wait| wait > 3 * day && wait <= 4 * day), "{second:?}");
    let third = reserve(&mut conn, &[slow.clone(), bounded.clone()]).await;
    assert!(!third.ok && third.denied_by == ["bounded"], "{third:?}");
    assert!(third.wait.is_some_and(|wait| wait <= day), "only of the limit that denied: {third:?}");
    assert_eq!(third.values(), [-2, -1]);
    // Without `reserve`, a bucket in debt denies, and a count beyond the capacity is an error.
    let plain = call(&mut conn, "limit_all_with", &json!([bounded]), false).await.expect("a decision");
    assert!(!plain.ok, "{plain:?}");
    let (code, message, _) = refused(&mut conn, "limit_all_with", &json!([slow])).await;
    assert!(code == "22023" && message.starts_with("count_exceeds_capacity: "), "{code} {message}");
    // NULL for `reserve` means false, as in limit_with.
    let null = "SELECT ok FROM rate_limit.limit_all_with($1::jsonb, NULL)";
    let ok: bool =
        sqlx::query_scalar(null).bind(json!([bounded]).to_string()).fetch_one(&mut conn).await.expect("decided");
    assert!(!ok);
    let sliding = json!([{"name": "s", "key": "k", "kind": "sliding_window", "rate": 1, "period": "1 day"}]);
    let error = call(&mut conn, "limit_all_with", &sliding, true).await.expect_err("a sliding window");
    assert!(error.to_string().contains("reserve_unsupported: "), "{error}");
}

#[tokio::test]
async fn the_same_bucket_twice_counts_twice() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let (a, b) = (bucket("a", "k", 10.0), bucket("b", "k", 10.0));
    let group =
        [with(a.clone(), "count", 2.5), b.clone(), a.clone(), with(a.clone(), "count", 3), with(a.clone(), "count", 0)];
    let decided = all(&mut conn, &group).await;
    assert!(decided.ok, "{decided:?}");
    let values: Vec<f64> = decided.limits.iter().map(|limit| limit["value"].as_f64().expect("a number")).collect();
    let left = [3.5, 9.0, 3.5, 3.5, 3.5];
    assert!(values.iter().zip(left).all(|(value, left)| (value - left).abs() < 1e-6), "{values:?}");
    // Each item alone would be allowed.
    let denied = all(&mut conn, &[with(a.clone(), "count", 2), with(a.clone(), "count", 2)]).await;
    assert!(!denied.ok && denied.denied_by == ["a"] && denied.all("denied") == [true, true], "{denied:?}");
    assert_eq!(database.rows().await, 2);
    // In total, more than the bucket can ever hold.
    let (code, message, _) =
        refused(&mut conn, "limit_all_with", &json!([with(a.clone(), "count", 6), with(a.clone(), "count", 5)])).await;
    assert!(code == "22023" && message.starts_with("count_exceeds_capacity: the count 11 "), "{code} {message}");
    let most = with(bucket("m", "k", 1e13), "count", 1e13);
    let (code, message, _) = refused(&mut conn, "limit_all_with", &json!([most, most])).await;
    assert!(code == "22023" && message.starts_with("invalid_count: the count 20000000000000 "), "{code} {message}");

    // The same limit, written differently.
    let same = [
        a.clone(),
        with(a.clone(), "period", "876600 hours"),
        with(a.clone(), "shards", 1),
        with(with(a.clone(), "rate", 10.0), "count", 0.5),
        with(with(a.clone(), "capacity", Value::Null), "start", Value::Null),
    ];
    let checked = check(&mut conn, &same).await;
    assert!(!checked.ok && checked.denied_by == ["a"], "{checked:?}");
    // A different limit.
    for (field, value) in [
        ("rate", json!(11)),
        ("period", json!("36524 days")),
        ("capacity", json!(9)),
        ("max_reserved", json!(1)),
        ("shards", json!(2)),
        ("kind", json!("sliding_window")),
    ] {
        let calls = json!([b, a, with(b.clone(), "key", "other"), with(a.clone(), field, value)]);
        for function in ["limit_all_with", "check_all_with"] {
            let (code, message, hint) = refused(&mut conn, function, &calls).await;
            let expected = "invalid_call: the call gives the limit \"a\" in two different forms for one key";
            assert_eq!((code.as_str(), message.as_str()), ("22023", expected), "{field}");
            assert!(!hint.is_empty());
        }
    }
    // Two keys may have different limits of the same name.
    assert!(all(&mut conn, &[a.clone(), with(with(a, "key", "other"), "rate", 11)]).await.ok);
}

/// The same sequences of groups, from SQL and from Rust, each on its own keys.
#[tokio::test]
async fn sql_and_rust_decide_groups_the_same() {
    let database = Database::migrated().await;
    let limits = Limits::new()
        .define("bucket", Limit::token_bucket(12, CENTURY))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(16, CENTURY).shards(4)))
        .and_then(|limits| limits.define("window", Limit::fixed_window(9, CENTURY).start(Duration::ZERO)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(11, CENTURY).resolution(3)))
        .expect("limits");
    let options = |name: &str| {
        let limit = serde_json::to_value(limits.get(name).expect("a limit")).expect("JSON");
        with(limit, "name", name)
    };
    let limiter = database.limiter(limits.clone());
    let names = ["bucket", "sharded", "window", "sliding"];
    for (seed, level) in LEVELS.iter().enumerate() {
        let mut conn = session(&database, level).await;
        let (mut allowed, mut denied) = (0, 0);
        for round in 0..60_usize {
            let picks: Vec<(&str, usize, u32)> = (0..1 + (round + seed) % 5)
                .map(|nth| (names[(round / 2 + nth * nth) % 4], (round + nth) % 2, (round % 3 + nth % 2) as u32))
                .collect();
            let from_sql: Vec<Value> = picks
                .iter()
                .map(|(name, key, count)| {
                    with(with(options(name), "key", format!("sql {seed} {key}")), "count", *count)
                })
                .collect();
            let from_rust: Vec<Item> = picks
                .iter()
                .map(|(name, key, count)| Item::new(*name, format!("rust {seed} {key}")).count(*count))
                .collect();
            let in_rust = limiter.within(&mut conn).limit(from_rust).await.expect("a decision");
            let in_sql = all(&mut conn, &from_sql).await;
            assert_eq!(in_sql.ok, in_rust.is_allowed(), "{picks:?}: {in_sql:?}, {in_rust:?}");
            let mut denied_by = in_rust.denied_by();
            denied_by.sort_unstable();
            denied_by.dedup();
            assert_eq!(in_sql.denied_by, denied_by, "{picks:?}");
            assert_eq!(in_sql.wait.is_some(), in_rust.retry_after().is_some(), "{picks:?}");
            if !in_sql.ok {
                for (nth, limit) in in_rust.limits().iter().enumerate() {
                    assert_eq!(in_sql.limits[nth]["denied"], limit.denied, "{picks:?}");
                    // For a sharded bucket that did not deny, the balance is an estimate.
                    if limit.denied || &*limit.limit != "sharded" {
                        assert_eq!(in_sql.values()[nth], limit.remaining.round() as i64, "{picks:?}: {in_sql:?}");
                    }
                }
            }
            if in_sql.ok { allowed += 1 } else { denied += 1 }
        }
        assert!(allowed > 5 && denied > 5, "{allowed} {denied}");
    }
    all_rows_or_none(&database).await;
}

#[tokio::test]
async fn a_check_decides_the_same_and_writes_nothing() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let group = [bucket("a", "k", 2.0), with(bucket("b", "k", 9.0), "count", 3), bucket("a", "k", 2.0)];
    for read_only in [false, true] {
        let set = if read_only { "BEGIN READ ONLY" } else { "BEGIN" };
        sqlx::raw_sql(set).execute(&mut conn).await.expect("begin");
        let checked = check(&mut conn, &group).await;
        assert!(checked.ok && checked.wait.is_none(), "{checked:?}");
        assert_eq!(checked.values(), [0, 6, 0]);
        sqlx::raw_sql("COMMIT").execute(&mut conn).await.expect("commit");
    }
    assert_eq!(database.rows().await, 0);
    assert!(all(&mut conn, &group).await.ok);
    let rows = "SELECT string_agg(r::text, ' ' ORDER BY name) FROM rate_limit.rate_limits AS r";
    let before: String = sqlx::query_scalar(rows).fetch_one(&mut conn).await.expect("rows");
    let checked = check(&mut conn, &group).await;
    assert!(!checked.ok && checked.denied_by == ["a"] && checked.wait.is_some(), "{checked:?}");
    let reserved = call(&mut conn, "check_all_with", &json!(group), true).await.expect("a decision");
    assert!(reserved.ok && reserved.wait.is_some() && reserved.values() == [-2, 3, -2], "{reserved:?}");
    let after: String = sqlx::query_scalar(rows).fetch_one(&mut conn).await.expect("rows");
    assert_eq!(before, after);
    // Tokens cannot be taken in a read-only transaction: it is an error, not a permit.
    sqlx::raw_sql("BEGIN READ ONLY").execute(&mut conn).await.expect("begin");
    let error = call(&mut conn, "limit_all_with", &json!([bucket("c", "k", 2.0)]), false).await.expect_err("read only");
    assert_eq!(code(&error), "25006");
}

#[tokio::test]
async fn a_rolled_back_call_is_not_charged() {
    let database = Database::migrated().await;
    for level in LEVELS {
        database.execute("DELETE FROM rate_limit.rate_limits").await;
        let mut conn = session(&database, level).await;
        let group = [bucket("a", "k", 2.0), bucket("b", "k", 2.0)];
        let mut tx = conn.begin().await.expect("begin");
        assert!(all(&mut tx, &group).await.ok && all(&mut tx, &group).await.ok);
        assert!(!all(&mut tx, &group).await.ok);
        tx.rollback().await.expect("rollback");
        assert_eq!(database.rows().await, 0);
        let mut tx = conn.begin().await.expect("begin");
        assert!(all(&mut tx, &group).await.ok);
        sqlx::raw_sql("SAVEPOINT s").execute(&mut *tx).await.expect("a savepoint");
        assert_eq!(all(&mut tx, &group).await.values(), [0, 0]);
        sqlx::raw_sql("ROLLBACK TO s").execute(&mut *tx).await.expect("rollback");
        assert_eq!(all(&mut tx, &group).await.values(), [0, 0]);
        tx.commit().await.expect("commit");
        assert!(!all(&mut conn, &group).await.ok);
    }
}

/// Sessions at every isolation level name the limits in different orders. They get as many permits as there are tokens, and
/// none deadlocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_sessions_never_take_more_than_the_capacity() {
    let database = Database::migrated().await;
    let limits = [
        bucket("a", "k", 40.0),
        bucket("b", "k", 35.0),
        json!({"name": "c", "key": "k", "kind": "sliding_window", "rate": 30, "period": "36525 days"}),
        with(bucket("d", "k", 32.0), "shards", 4),
    ];
    let capacities = [40, 35, 30, 32];
    let groups: [&[usize]; 9] =
        [&[0, 1, 2], &[2, 1], &[3, 0], &[0, 3, 0], &[1, 3], &[2, 0, 3], &[3, 2, 1, 0], &[1], &[0, 3, 1]];
    let sessions = groups.iter().chain(&groups[..7]).enumerate().map(|(nth, places)| {
        let calls = Value::from_iter(places.iter().map(|place| limits[*place].clone()));
        let database = &database;
        async move {
            let mut conn = session(database, LEVELS[nth % 3]).await;
            let mut taken = [0_u32; 4];
            loop {
                match call(&mut conn, "limit_all_with", &calls, false).await {
                    Ok(decided) if decided.ok => places.iter().for_each(|place| taken[*place] += 1),
                    Ok(_) => return taken,
                    Err(error) => assert_eq!(code(&error), "40001", "{error}"),
                }
            }
        }
    });
    let taken =
        join_all(sessions).await.into_iter().fold([0; 4], |sum, one| std::array::from_fn(|nth| sum[nth] + one[nth]));
    assert!(taken.iter().zip(capacities).all(|(taken, capacity)| *taken <= capacity), "{taken:?}");
    // One session asked for this limit alone, until it was exhausted.
    assert_eq!(taken[1], 35, "{taken:?}");
    let mut conn = session(&database, "READ COMMITTED").await;
    let none: Vec<Value> = limits.iter().map(|limit| with(limit.clone(), "count", 0)).collect();
    let left: Vec<i64> = taken.iter().zip(capacities).map(|(taken, capacity)| i64::from(capacity - taken)).collect();
    for (limit, left) in none.into_iter().zip(left) {
        let single = check(&mut conn, &[limit]).await;
        assert_eq!(single.values(), [left], "{single:?}");
    }
    all_rows_or_none(&database).await;
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 = sqlx::query_scalar(deadlocks).fetch_one(&mut conn).await.expect("the count");
    assert_eq!(deadlocks, 0);
}

/// The trigger in the guide.
#[tokio::test]
async fn the_guides_trigger_rejects_rows_by_both_limits() {
    let database = Database::migrated().await;
    let blocks = guide::sql_of(guide::chapter("sql"));
    let trigger = blocks.iter().find(|block| block.contains("CREATE TABLE messages")).expect("the trigger");
    database.execute(trigger).await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let mut insert = async |rows: &str| {
        let sql = format!("INSERT INTO messages VALUES {rows}");
        sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await.map_err(|error| {
            let error = error.into_database_error().expect("of the database");
            let error = error.downcast_ref::<PgDatabaseError>();
            assert_eq!(error.code(), "RL429");
            let detail = error.detail().unwrap_or_default();
            assert!(detail.starts_with("Retry after ") && detail.ends_with(" seconds."), "{detail}");
            error.message().to_owned()
        })
    };
    insert("('ann', 'red'), ('bob', 'red')").await.expect("allowed");
    // If one row of a statement is rejected, all are, and the tokens of the first are given back.
    let error = insert("('ann', 'red'), ('ann', 'red')").await.expect_err("too many");
    assert_eq!(error, "rate limit exceeded: author, org");
    insert("('ann', 'red')").await.expect("allowed");
    assert_eq!(insert("('bob', 'red')").await.expect_err("too many"), "rate limit exceeded: org");
    assert_eq!(insert("('ann', 'blue')").await.expect_err("too many"), "rate limit exceeded: author");
    insert("('bob', 'blue')").await.expect("bob was not charged");
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM messages").fetch_one(&mut conn).await.expect("a count");
    assert_eq!(rows, 4);
}

#[tokio::test]
async fn the_guides_grant_is_necessary_and_gives_nothing_else() {
    let database = Database::migrated().await;
    let role = format!("caller_of_{}", database.name);
    database.execute(&format!("CREATE ROLE {role}")).await;
    let mut conn = session(&database, "READ COMMITTED").await;
    sqlx::raw_sql(AssertSqlSafe(format!("SET ROLE {role}"))).execute(&mut conn).await.expect("set role");
    let group = json!([bucket("a", "k", 2.0)]);
    for function in ["limit_all_with", "check_all_with"] {
        assert_eq!(code(&call(&mut conn, function, &group, false).await.expect_err("no grant")), "42501");
    }
    // The guide's block for callers from SQL.
    database.execute(&guide::grants(Use::Sql).replace("app_role", &role)).await;
    for function in ["check_all_with", "limit_all_with"] {
        assert!(call(&mut conn, function, &group, false).await.expect("granted").ok);
    }
    for inside in [
        "SELECT * FROM rate_limit._several('reset', '[]', false)",
        "SELECT rate_limit._validate_element('{}', 1)",
        "SELECT rate_limit._rule('a', 'k', 'token_bucket', 1, '1 day', NULL, NULL, NULL, NULL, 1)",
        "SELECT rate_limit._validate('token_bucket', 1, 1, NULL, NULL, NULL, NULL, 1)",
        "SELECT rate_limit._length('1 day')",
        "SELECT FROM rate_limit.rate_limits",
    ] {
        let error = sqlx::query(inside).execute(&mut conn).await.expect_err(inside);
        assert_eq!(code(&error), "42501", "{inside}");
    }
    conn.close().await.expect("close");
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// Functions, operators and types that the caller has created are not used.
#[tokio::test]
async fn a_hostile_search_path_changes_nothing() {
    let database = Database::migrated().await;
    let role = format!("mallory_of_{}", database.name);
    let calls = "'[{\"name\": \"a\", \"key\": \"k\", \"kind\": \"token_bucket\", \"rate\": 1, \"period\": \"1 day\"}]'";
    database
        .execute(&format!(
            "CREATE ROLE {role}; {} CREATE SCHEMA evil AUTHORIZATION {role}; SET ROLE {role};
             CREATE FUNCTION evil.trap() RETURNS boolean LANGUAGE plpgsql AS $$
               BEGIN RAISE EXCEPTION 'called as %', current_user; END $$;
             CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS $$ SELECT evil.trap()::text $$;
             CREATE FUNCTION evil.jsonb_array_length(jsonb) RETURNS integer LANGUAGE sql AS $$ SELECT evil.trap()::integer $$;
             CREATE FUNCTION evil.jsonb_object_keys(jsonb) RETURNS SETOF text LANGUAGE sql AS $$ SELECT evil.trap()::text $$;
             CREATE FUNCTION evil.regexp_replace(text, text, text) RETURNS text LANGUAGE sql AS $$ SELECT evil.trap()::text $$;
             CREATE FUNCTION evil.octet_length(text) RETURNS integer LANGUAGE sql AS $$ SELECT evil.trap()::integer $$;
             CREATE FUNCTION evil._length(text) RETURNS interval LANGUAGE sql AS $$ SELECT evil.trap()::text::interval $$;
             CREATE FUNCTION evil._several(text, jsonb, boolean) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trap() $$;
             CREATE FUNCTION evil.of_texts(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trap() $$;
             CREATE OPERATOR evil.~ (FUNCTION = evil.of_texts, LEFTARG = text, RIGHTARG = text);
             CREATE OPERATOR evil.!~ (FUNCTION = evil.of_texts, LEFTARG = text, RIGHTARG = text);
             CREATE OPERATOR evil.= (FUNCTION = evil.of_texts, LEFTARG = text, RIGHTARG = text);
             CREATE FUNCTION evil.of_json(jsonb, text) RETURNS text LANGUAGE sql AS $$ SELECT evil.trap()::text $$;
             CREATE OPERATOR evil.->> (FUNCTION = evil.of_json, LEFTARG = jsonb, RIGHTARG = text);
             CREATE FUNCTION evil.of_numbers(double precision, double precision) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.trap() $$;
             CREATE OPERATOR evil.<= (FUNCTION = evil.of_numbers, LEFTARG = double precision, RIGHTARG = double precision);
             CREATE OPERATOR evil.>= (FUNCTION = evil.of_numbers, LEFTARG = double precision, RIGHTARG = double precision);
             CREATE DOMAIN evil.interval AS text CHECK (evil.trap());
             RESET ROLE",
            guide::grants(Use::Sql).replace("app_role", &role)
        ))
        .await;
    let mut conn = session(&database, "READ COMMITTED").await;
    // As the owner of the functions, and as the other role.
    for set_role in ["", &format!("SET ROLE {role}")] {
        database.execute("DELETE FROM rate_limit.rate_limits").await;
        let path = format!("{set_role}; SET search_path = evil, pg_temp, pg_catalog, public");
        sqlx::raw_sql(AssertSqlSafe(path)).execute(&mut conn).await.expect("a path");
        sqlx::raw_sql("CREATE TEMP TABLE rate_limits (name text, key text, shard integer)")
            .execute(&mut conn)
            .await
            .expect("a table");
        let mut ok = Vec::new();
        for _ in 0..2 {
            let sql = format!("SELECT ok FROM rate_limit.limit_all_with({calls})");
            ok.push(sqlx::query_scalar::<_, bool>(AssertSqlSafe(sql)).fetch_one(&mut conn).await.expect("decided"));
        }
        assert_eq!(ok, [true, false], "{set_role}");
        let sql = format!("SELECT ok FROM rate_limit.check_all_with({calls})");
        assert!(!sqlx::query_scalar::<_, bool>(AssertSqlSafe(sql)).fetch_one(&mut conn).await.expect("decided"));
        sqlx::raw_sql("DROP TABLE pg_temp.rate_limits").execute(&mut conn).await.expect("dropped");
    }
    assert_eq!(database.rows().await, 1);
    conn.close().await.expect("close");
    database.execute(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await;
}
