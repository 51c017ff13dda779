//! `rate_limit_decide_sums` itself: what it takes, what it leaves undecided, and as of which time.

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};

use crate::support::Database;

/// A token bucket, a fixed window and a sliding window of 10 tokens an hour each, with one bucket each: "a", "b" and "c".
const LIMITS: &str = "ARRAY['token_bucket', 'fixed_window', 'sliding_window'], ARRAY[10, 10, 10]::float8[],
    ARRAY[3600000000, 3600000000, 3600000000], NULL, ARRAY[NULL, 0, 0]::bigint[], NULL,
    ARRAY['a', 'b', 'c'], ARRAY['k', 'k', 'k'], ARRAY[1, 2, 3]";

async fn take(conn: &mut PgConnection, amounts: &str, calls: &str) -> Vec<Option<f64>> {
    let sql = format!("SELECT rate_limit_decide_sums({LIMITS}, {amounts}, NULL, {calls})");
    let balances: Vec<Option<f64>> =
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await.expect("the balances");
    balances.into_iter().map(|balance| balance.map(|tokens| (tokens * 10.0).round() / 10.0)).collect()
}

const NO_GROUPS: &str = "NULL, NULL, NULL";

#[tokio::test]
async fn a_bucket_that_does_not_cover_the_amount_is_not_changed() {
    for level in ["SERIALIZABLE", "READ COMMITTED"] {
        let database = Database::migrated().await;
        let mut conn = PgConnection::connect(&database.url).await.expect("connect");
        let set = format!("SET default_transaction_isolation = '{level}'");
        sqlx::query(AssertSqlSafe(set)).execute(&mut conn).await.expect("a level");
        // New rows, then existing ones.
        assert_eq!(take(&mut conn, "ARRAY[1, 2, 3]", NO_GROUPS).await, [Some(9.0), Some(8.0), Some(7.0)]);
        assert_eq!(take(&mut conn, "ARRAY[9, 9, 7]", NO_GROUPS).await, [Some(0.0), None, Some(0.0)]);
        assert_eq!(take(&mut conn, "ARRAY[1, 8, 1]", NO_GROUPS).await, [None, Some(0.0), None]);
        assert_eq!(take(&mut conn, "ARRAY[1, 1, 1]", NO_GROUPS).await, [None, None, None]);
    }
}

#[tokio::test]
async fn impossible_amounts_take_nothing() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    for amounts in ["ARRAY['NaN', 'Infinity', -1]::float8[]", "ARRAY[11, 1e300, NULL]"] {
        assert_eq!(take(&mut conn, amounts, NO_GROUPS).await, [None, None, None]);
    }
    assert_eq!(database.rows().await, 0);
}

/// The calls {a: 2, b: 11}, {c: 3}, {a: 1, c: 1}, {a: 1}. The first asks for more than b has, so the later calls on a also stay
/// undecided.
#[tokio::test]
async fn calls_with_an_uncovered_bucket_and_those_after_them_are_undone() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    assert_eq!(take(&mut conn, "ARRAY[1, 1, 1]", NO_GROUPS).await, [Some(9.0), Some(9.0), Some(9.0)]);
    let calls = "ARRAY[1, 2, 3, 1, 3, 1], ARRAY[2, 10, 3, 1, 1, 1]::float8[], ARRAY[2, 1, 2, 1]";
    assert_eq!(take(&mut conn, "ARRAY[4, 10, 4]", calls).await, [Some(9.0), None, Some(6.0)]);
    assert_eq!(take(&mut conn, "ARRAY[9, 9, 6]", NO_GROUPS).await, [Some(0.0), Some(0.0), Some(0.0)]);
}

/// Another transaction keeps the rows locked and does not change them: tokens that flow in meanwhile count once.
#[tokio::test]
async fn after_a_wait_the_tokens_are_taken_as_of_now() {
    for level in ["SERIALIZABLE", "READ COMMITTED"] {
        let database = Database::migrated().await;
        let mut holder = PgConnection::connect(&database.url).await.expect("connect");
        let mut conn = PgConnection::connect(&database.url).await.expect("connect");
        take(&mut conn, "ARRAY[1, 1, 1]", NO_GROUPS).await;
        let mut held = holder.begin().await.expect("begin");
        sqlx::query("UPDATE rate_limits SET value = value").execute(&mut *held).await.expect("held");
        let set = format!("SET default_transaction_isolation = '{level}'");
        sqlx::query(AssertSqlSafe(set)).execute(&mut conn).await.expect("a level");
        let waiting = tokio::spawn(async move { take(&mut conn, "ARRAY[9, 9, 9]", NO_GROUPS).await });
        let blocked =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while sqlx::query_scalar::<_, i64>(blocked).fetch_one(&database.pool).await.expect("the locks") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let clock = "SELECT rate_limit_clock()";
        let let_go: i64 = sqlx::query_scalar(clock).fetch_one(&mut *held).await.expect("the time");
        held.rollback().await.expect("rollback");
        assert_eq!(waiting.await.expect("the balances"), [Some(0.0), Some(0.0), Some(0.0)], "{level}");
        let times = "SELECT ts FROM rate_limits WHERE name <> 'b' ORDER BY name";
        let times: Vec<i64> = sqlx::query_scalar(times).fetch_all(&database.pool).await.expect("the rows");
        assert!(times.iter().all(|ts| *ts >= let_go), "{level}: {times:?}, let go at {let_go}");
    }
}
