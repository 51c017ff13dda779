//! `_decide_sums` itself: what it takes, what it leaves undecided, and as of which time.

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};

use crate::support::{Database, is_conflict};

/// A token bucket, a fixed window and a sliding window of 10 tokens an hour each, with one bucket each: "a", "b" and "c".
const LIMITS: &str = "ARRAY['token_bucket', 'fixed_window', 'sliding_window'], ARRAY[10, 10, 10]::float8[],
    ARRAY[3600000000, 3600000000, 3600000000], NULL, ARRAY[NULL, 0, 0]::bigint[], NULL,
    ARRAY['a', 'b', 'c'], ARRAY['k', 'k', 'k'], ARRAY[1, 2, 3]";

async fn take(conn: &mut PgConnection, amounts: &str, calls: &str) -> Vec<Option<f64>> {
    let sql = format!("SELECT rate_limit._decide_sums({LIMITS}, {amounts}, NULL, {calls})");
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

/// NaN would make a row that is full for ever.
#[tokio::test]
async fn invalid_counts_of_items_are_errors() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    assert_eq!(take(&mut conn, "ARRAY[1, 1, 1]", NO_GROUPS).await, [Some(9.0), Some(9.0), Some(9.0)]);
    for count in ["'NaN'", "'Infinity'", "-1", "NULL", "1e300"] {
        let calls = format!("ARRAY[1, 2, 3], ARRAY[1, {count}, 1]::float8[], ARRAY[2, 1]");
        let sql = format!("SELECT rate_limit._decide_sums({LIMITS}, ARRAY[1, 100, 1], NULL, {calls})");
        let error = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.expect_err("refused").to_string();
        assert!(error.contains("invalid_count"), "{count}: {error}");
    }
    for credit in ["'NaN'", "'Infinity'", "-1", "1e300"] {
        let sql = format!(
            "SELECT rate_limit._decide_sums({LIMITS}, ARRAY[1, 1, 1], ARRAY[NULL, {credit}, NULL]::float8[], NULL, NULL, NULL)"
        );
        let error = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.expect_err("refused").to_string();
        assert!(error.contains("invalid_count"), "{credit}: {error}");
    }
    assert_eq!(take(&mut conn, "ARRAY[9, 9, 9]", NO_GROUPS).await, [Some(0.0), Some(0.0), Some(0.0)]);
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
        sqlx::query("UPDATE rate_limit.rate_limits SET value = value").execute(&mut *held).await.expect("held");
        let set = format!("SET default_transaction_isolation = '{level}'");
        sqlx::query(AssertSqlSafe(set)).execute(&mut conn).await.expect("a level");
        let waiting = tokio::spawn(async move { take(&mut conn, "ARRAY[9, 9, 9]", NO_GROUPS).await });
        let blocked =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while sqlx::query_scalar::<_, i64>(blocked).fetch_one(&database.pool).await.expect("the locks") == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let clock = "SELECT rate_limit._clock()";
        let let_go: i64 = sqlx::query_scalar(clock).fetch_one(&mut *held).await.expect("the time");
        held.rollback().await.expect("rollback");
        assert_eq!(waiting.await.expect("the balances"), [Some(0.0), Some(0.0), Some(0.0)], "{level}");
        let times = "SELECT ts FROM rate_limit.rate_limits WHERE name <> 'b' ORDER BY name";
        let times: Vec<i64> = sqlx::query_scalar(times).fetch_all(&database.pool).await.expect("the rows");
        assert!(times.iter().all(|ts| *ts >= let_go), "{level}: {times:?}, let go at {let_go}");
    }
}

/// Decides calls of one bucket each by sums: what each bucket's calls take and give back.
async fn by_sums(conn: &mut PgConnection, amounts: &[f64; 3], credits: &[Option<f64>; 3]) -> Vec<Option<f64>> {
    let sql = format!("SELECT rate_limit._decide_sums({LIMITS}, $1, $2, {NO_GROUPS})");
    loop {
        let query = sqlx::query_scalar::<_, Vec<Option<f64>>>(AssertSqlSafe(sql.clone())).bind(amounts).bind(credits);
        match query.fetch_one(&mut *conn).await {
            Ok(balances) => {
                return balances
                    .into_iter()
                    .map(|balance| balance.map(|tokens| (tokens * 10.0).round() / 10.0))
                    .collect();
            }
            Err(error) => assert!(is_conflict(&error), "{error}"),
        }
    }
}

#[tokio::test]
async fn credits_come_first_and_fill_a_bucket_up_to_its_capacity() {
    for level in ["SERIALIZABLE", "READ COMMITTED"] {
        let database = Database::migrated().await;
        let mut conn = PgConnection::connect(&database.url).await.expect("connect");
        let set = format!("SET default_transaction_isolation = '{level}'");
        sqlx::query(AssertSqlSafe(set)).execute(&mut conn).await.expect("a level");
        // Buckets without rows are full, and a credit creates none.
        let answer = by_sums(&mut conn, &[0.0, 0.0, 0.0], &[Some(3.0), Some(0.0), Some(3.0)]).await;
        assert_eq!(answer, [None, Some(10.0), None, Some(10.0), None, Some(10.0)], "{level}");
        assert_eq!(database.rows().await, 0);
        assert_eq!(take(&mut conn, "ARRAY[8, 8, 8]", NO_GROUPS).await, [Some(2.0), Some(2.0), Some(2.0)]);
        // 2 + 5 covers 6. The counts of a sliding window are no balance: its credit is decided by _decide, and the calls
        // that take from it stay undecided.
        let answer = by_sums(&mut conn, &[6.0, 6.0, 6.0], &[Some(5.0), Some(5.0), Some(5.0)]).await;
        assert_eq!(answer, [Some(1.0), Some(1.0), None, None, None, Some(7.0)], "{level}");
        // 1 + 20 is 10, and covers 4; 1 + 2 does not, and the credit is kept.
        let answer = by_sums(&mut conn, &[4.0, 4.0, 0.0], &[Some(20.0), Some(2.0), None]).await;
        assert_eq!(answer, [Some(6.0), None, Some(7.0), None, Some(3.0), None], "{level}");
        // More than the capacity is never covered.
        let answer = by_sums(&mut conn, &[12.0, 0.0, 0.0], &[Some(5.0), Some(20.0), Some(0.0)]).await;
        assert_eq!(answer, [None, Some(10.0), Some(7.0), Some(10.0), None, None], "{level}");
    }
}

/// The calls {a: 2, b: 11} and {c: 3}, and credits of 1 to each. The first call is undone; no credit is.
#[tokio::test]
async fn credits_stay_when_calls_are_undone() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    assert_eq!(take(&mut conn, "ARRAY[5, 5, 5]", NO_GROUPS).await, [Some(5.0), Some(5.0), Some(5.0)]);
    let sql = format!(
        "SELECT rate_limit._decide_sums({LIMITS}, ARRAY[2, 10, 3], ARRAY[1, 1, NULL]::float8[], ARRAY[1, 2, 3],
           ARRAY[2, 10, 3]::float8[], ARRAY[2, 1])"
    );
    let balances: Vec<Option<f64>> =
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut conn).await.expect("the balances");
    let rounded: Vec<Option<f64>> = balances.into_iter().map(|balance| balance.map(f64::round)).collect();
    assert_eq!(rounded, [Some(6.0), None, Some(2.0), None, Some(6.0), None]);
    assert_eq!(take(&mut conn, "ARRAY[6, 6, 2]", NO_GROUPS).await, [Some(0.0), Some(0.0), Some(0.0)]);
}

/// Decides a call on the same bucket of another name. Returns whether it was allowed, and the balance.
async fn one_by_one(conn: &mut PgConnection, nth: usize, op: &str, count: f64) -> (bool, f64) {
    let kind = ["token_bucket", "fixed_window", "sliding_window"][nth];
    let sql = format!(
        "SELECT call_admitted IS NULL OR call_admitted[1] = 1, item_values[1] FROM rate_limit._decide(
           ARRAY['{kind}'], ARRAY[10]::float8[], ARRAY[3600000000], NULL, NULL, ARRAY[{}]::bigint[], NULL, NULL,
           ARRAY['one by one'], ARRAY['{nth}'], NULL, NULL, ARRAY[$1], ARRAY['{op}'], NULL, NULL, NULL, NULL)",
        if nth == 0 { "NULL" } else { "0" }
    );
    sqlx::query_as(AssertSqlSafe(sql)).bind(count).fetch_one(conn).await.expect("a decision")
}

/// Random sums: each bucket has the balance that it has if the credit and then the call are decided one by one.
#[tokio::test]
async fn random_sums_are_decided_as_one_by_one() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    let mut random = fastrand::Rng::with_seed(19);
    let mut covered = [0, 0];
    for round in 0..300 {
        let amounts = [0; 3].map(|_| f64::from(random.u8(..8)));
        let credits = [0; 3].map(|_| random.bool().then(|| f64::from(random.u8(..8))));
        let balances = by_sums(&mut conn, &amounts, &credits).await;
        for nth in 0..3 {
            let credited = match credits[nth] {
                Some(count) => Some(one_by_one(&mut conn, nth, "credit", count).await.1),
                None => None,
            };
            covered[usize::from(balances[nth].is_some())] += 1;
            let Some(balance) = balances[nth] else {
                // Its call is left to _decide.
                if let Some(credited) = credited {
                    let balance = balances[3 + nth].expect("the balance after the credit");
                    assert!((balance - credited).abs() <= 0.1, "round {round}, {nth}: {balances:?}, not {credited}");
                }
                continue;
            };
            let (allowed, expected) = one_by_one(&mut conn, nth, "limit", amounts[nth]).await;
            assert!(allowed, "round {round}, {nth}: {amounts:?} {credits:?} {balances:?}");
            assert!((balance - expected).abs() <= 0.1, "round {round}, {nth}: {balances:?}, not {expected}");
        }
    }
    assert!(covered.iter().all(|count| *count > 100), "both happen: {covered:?}");
}

/// Returns the SQLSTATE of sums that fail.
async fn failure(conn: &mut PgConnection, amounts: &[f64; 3], credits: &[Option<f64>; 3]) -> String {
    let sql = format!("SELECT rate_limit._decide_sums({LIMITS}, $1, $2, {NO_GROUPS})");
    let failed: Result<Vec<Option<f64>>, sqlx::Error> =
        sqlx::query_scalar(AssertSqlSafe(sql)).bind(amounts).bind(credits).fetch_one(conn).await;
    let error = failed.expect_err("no balances");
    error.as_database_error().and_then(|error| error.code()).unwrap_or_else(|| panic!("{error}")).into_owned()
}

#[tokio::test]
async fn impossible_credits_are_errors() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    take(&mut conn, "ARRAY[5, 5, 5]", NO_GROUPS).await;
    for credit in [f64::NAN, f64::INFINITY, -1.0, 1e101] {
        for nth in 0..3 {
            let mut credits = [None; 3];
            credits[nth] = Some(credit);
            assert_eq!(failure(&mut conn, &[1.0, 1.0, 1.0], &credits).await, "22023", "{credits:?}");
        }
    }
    assert_eq!(take(&mut conn, "ARRAY[5, 5, 5]", NO_GROUPS).await, [Some(0.0), Some(0.0), Some(0.0)]);
}

/// The row of a short bucket comes after rows that are locked already, so waiting for it could deadlock.
#[tokio::test]
async fn a_credit_of_a_short_bucket_waits_for_no_lock() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    let mut holder = PgConnection::connect(&database.url).await.expect("connect");
    take(&mut conn, "ARRAY[9, 9, 9]", NO_GROUPS).await;
    let mut held = holder.begin().await.expect("begin");
    let lock = "SELECT FROM rate_limit.rate_limits WHERE name = 'a' FOR UPDATE";
    sqlx::query(lock).execute(&mut *held).await.expect("a lock");
    // 1 + 1 does not cover 5, so the UPDATE does not wait for the row.
    let (amounts, credits) = ([5.0, 1.0, 0.0], [Some(1.0), None, None]);
    assert_eq!(failure(&mut conn, &amounts, &credits).await, "55P03");
    held.rollback().await.expect("rollback");
    let answer = by_sums(&mut conn, &amounts, &credits).await;
    assert_eq!(answer, [None, Some(0.0), Some(1.0), Some(2.0), None, None]);
}
