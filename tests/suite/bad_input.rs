//! Invalid input from Rust, from SQL and from limits files: each case returns its own error and writes nothing. `tool.rs`
//! tests the tool.

use std::time::Duration;

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use pg_limiter::{Call, Error, InvalidLimit, Item, Kind, Limit, Limiter, Limits, Schema};

use crate::support::Database;

const MINUTE: Duration = Duration::from_secs(60);

fn limits() -> Limits {
    let define = || -> Result<Limits, InvalidLimit> {
        Limits::new()
            .define("tokens", Limit::token_bucket(10, MINUTE).capacity(20).max_reserved(5))?
            .define("window", Limit::fixed_window(10, MINUTE).max_reserved(0))?
            .define("sliding", Limit::sliding_window(10, MINUTE))
    };
    define().expect("limits")
}

#[tokio::test]
async fn invalid_calls_from_rust_are_rejected() {
    let database = Database::migrated().await;
    // This pool cannot connect: the error comes before anything is sent.
    let nowhere = sqlx::PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/nowhere").expect("a URL");
    let limiter = Limiter::new(nowhere, limits());
    let mut conn = database.pool.acquire().await.expect("a connection");
    let long = "k".repeat(1025);
    let name = "n".repeat(256);
    let inline = Limit::token_bucket(1, MINUTE).build().expect("a limit");
    let other = Limit::token_bucket(2, MINUTE).build().expect("a limit");
    let cases: Vec<(&str, Call)> = vec![
        ("count_exceeds_capacity", ("tokens", "k", 20.5).into()),
        ("count_exceeds_capacity", Item::new("tokens", "k").count(25.5).reserve()),
        ("count_exceeds_capacity", Item::new("window", "k").count(10.5).reserve()),
        ("count_exceeds_capacity", ("sliding", "k", 11.0).into()),
        ("invalid_count", ("tokens", "k", -1.0).into()),
        ("invalid_count", ("tokens", "k", f64::NAN).into()),
        ("invalid_count", ("tokens", "k", f64::INFINITY).into()),
        ("invalid_count", ("tokens", "k", f64::NEG_INFINITY).into()),
        ("unknown_limit", ("no such limit", "k").into()),
        ("reserve_unsupported", Item::new("sliding", "k").reserve()),
        ("reserve_unsupported", Call::from([Item::new("tokens", "k"), Item::new("sliding", "k")]).reserve()),
        ("invalid_key", ("tokens", long.as_str()).into()),
        ("invalid_key", ("tokens", "a\0b").into()),
        ("invalid_name", Item::new((name.as_str(), inline), "k").into()),
        ("invalid_name", Item::new(("", inline), "k").into()),
        ("invalid_name", Item::new(("a\0b", inline), "k").into()),
        ("invalid_call", Vec::<Item>::new().into()),
        ("invalid_call", [Item::new(("a", inline), "k"), Item::new(("a", other), "k")].into()),
    ];
    for (code, call) in cases {
        let errors = [
            limiter.limit(call.clone()).await.expect_err("from the handle"),
            limiter.check(call.clone()).await.expect_err("from the handle"),
            limiter.within(&mut conn).limit(call.clone()).await.expect_err("in a transaction"),
        ];
        for error in errors {
            let Error::Invalid(invalid) = &error else { panic!("{call:?}: {error}") };
            assert_eq!(invalid.code(), code, "{call:?}: {error}");
            assert!(!error.to_string().contains("kkk"), "a key in a message: {error}");
        }
    }
    let twice = [Item::new("tokens", "k").count(1e100), Item::new("tokens", "k").count(1e100)];
    let error = limiter.charge(twice).await.expect_err("too much in all");
    assert!(matches!(&error, Error::Invalid(invalid) if invalid.code() == "invalid_count"), "{error}");
    for count in [-1.0, f64::NAN] {
        for error in [
            limiter.credit(("tokens", "k", count)).await.expect_err("a credit"),
            limiter.charge(("tokens", "k", count)).await.expect_err("a charge"),
        ] {
            assert!(matches!(&error, Error::Invalid(invalid) if invalid.code() == "invalid_count"), "{error}");
        }
    }
    assert_eq!(database.rows().await, 0);
}

#[test]
fn invalid_limits_from_rust_are_rejected() {
    let tokens = |rate: f64| Limit::token_bucket(rate, MINUTE);
    let cases: Vec<(&str, Result<Limit, InvalidLimit>)> = vec![
        ("the rate 0 ", tokens(0.0).build()),
        ("the rate -1 ", tokens(-1.0).build()),
        ("the rate NaN ", tokens(f64::NAN).build()),
        ("the rate inf ", tokens(f64::INFINITY).build()),
        ("the rate 0.000", tokens(1e-101).build()),
        ("the period", Limit::token_bucket(1, Duration::ZERO).build()),
        ("the period", Limit::token_bucket(1, Duration::from_nanos(1_500)).build()),
        ("the period", Limit::token_bucket(1, Duration::MAX).build()),
        ("the period", Limit::sliding_window(1, Duration::from_secs(36_525 * 86_400 + 1)).build()),
        ("the capacity -1 ", tokens(1.0).capacity(-1).build()),
        ("the capacity NaN ", tokens(1.0).capacity(f64::NAN).build()),
        ("max_reserved -0.5 ", tokens(1.0).max_reserved(-0.5).build()),
        ("max_reserved inf ", Limit::fixed_window(1, MINUTE).max_reserved(f64::INFINITY).build()),
        ("the resolution 0 ", Limit::sliding_window(1, MINUTE).resolution(0).build()),
        ("the resolution 1001 ", Limit::sliding_window(1, MINUTE).resolution(1001).build()),
        ("start", Limit::fixed_window(1, MINUTE).start(Duration::from_nanos(1)).build()),
    ];
    for (reason, limit) in cases {
        let error = limit.expect_err(reason);
        assert!(error.to_string().contains(reason), "expected {reason}: {error}");
    }
    let error = Limits::new().define("bad", tokens(0.0)).expect_err("a rate of 0");
    assert!(error.to_string().contains("\"bad\""), "{error}");
    assert!(Limits::new().define("", tokens(1.0)).is_err());
    for name in ["", "a\0b", "a\nb", "a%s", "$ddl$", &"s".repeat(64)] {
        assert!(Schema::new(name).is_err(), "{name:?}");
    }
}

/// The same from SQL: the message begins with the error's code, and SQLSTATE is 22023.
#[tokio::test]
async fn invalid_calls_and_limits_from_sql_are_rejected() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let bucket = "kind => 'token_bucket', rate => 10, period => '1 minute'";
    let sliding = "kind => 'sliding_window', rate => 10, period => '1 minute'";
    let cases = [
        ("count_exceeds_capacity", format!("'a', 'k', {bucket}, count => 11")),
        ("count_exceeds_capacity", format!("'a', 'k', {bucket}, count => 16, reserve => true, max_reserved => 5")),
        ("count_exceeds_capacity", format!("'a', 'k', {sliding}, count => 11")),
        ("invalid_count", format!("'a', 'k', {bucket}, count => -1")),
        ("invalid_count", format!("'a', 'k', {bucket}, count => 'NaN'")),
        ("invalid_count", format!("'a', 'k', {bucket}, count => 'Infinity', reserve => true")),
        ("invalid_count", format!("'a', 'k', {bucket}, count => NULL")),
        ("reserve_unsupported", format!("'a', 'k', {sliding}, reserve => true")),
        ("invalid_key", format!("'a', NULL, {bucket}")),
        ("invalid_key", format!("'a', repeat('k', 1025), {bucket}")),
        ("invalid_name", format!("NULL, 'k', {bucket}")),
        ("invalid_name", format!("'', 'k', {bucket}")),
        ("invalid_name", format!("repeat('n', 256), 'k', {bucket}")),
        ("invalid_limit", format!("'a', 'k', {sliding}, capacity => 5")),
        ("invalid_limit", format!("'a', 'k', {sliding}, max_reserved => 5")),
        ("invalid_limit", format!("'a', 'k', {bucket}, start => '1 hour'")),
        ("invalid_limit", format!("'a', 'k', {bucket}, resolution => 2")),
        (
            "invalid_limit",
            "'a', 'k', kind => 'fixed_window', rate => 1, period => '1 minute', resolution => 2".to_owned(),
        ),
        ("invalid_limit", format!("'a', 'k', {sliding}, resolution => 0")),
        ("invalid_limit", format!("'a', 'k', {sliding}, resolution => 1001")),
        ("invalid_limit", format!("'a', 'k', {bucket}, capacity => -1")),
        ("invalid_limit", format!("'a', 'k', {bucket}, capacity => 'NaN'")),
        ("invalid_limit", format!("'a', 'k', {bucket}, max_reserved => 'Infinity'")),
        ("invalid_limit", format!("'a', 'k', {bucket}, shards => 0")),
        ("invalid_limit", format!("'a', 'k', {bucket}, shards => NULL")),
        ("invalid_limit", format!("'a', 'k', {bucket}, at => 'infinity'")),
        ("invalid_limit", "'a', 'k', kind => 'leaky', rate => 1, period => '1 minute'".to_owned()),
        ("invalid_limit", "'a', 'k', kind => NULL, rate => 1, period => '1 minute'".to_owned()),
        ("invalid_limit", "'a', 'k', kind => 'token_bucket', rate => 0, period => '1 minute'".to_owned()),
        ("invalid_limit", "'a', 'k', kind => 'token_bucket', rate => 'NaN', period => '1 minute'".to_owned()),
        ("invalid_limit", "'a', 'k', kind => 'token_bucket', rate => 1e-7, period => '1 minute'".to_owned()),
        ("invalid_limit", "'a', 'k', kind => 'token_bucket', rate => 'Infinity', period => '1 minute'".to_owned()),
        ("invalid_limit", "'a', 'k', kind => 'token_bucket', rate => NULL, period => '1 minute'".to_owned()),
        ("invalid_limit", "'a', 'k', kind => 'token_bucket', rate => 1, period => '0'".to_owned()),
        ("invalid_limit", "'a', 'k', kind => 'token_bucket', rate => 1, period => '-1 minute'".to_owned()),
        ("invalid_limit", "'a', 'k', kind => 'token_bucket', rate => 1, period => '36526 days'".to_owned()),
        ("invalid_limit", "'a', 'k', kind => 'token_bucket', rate => 1, period => NULL".to_owned()),
    ];
    for function in ["limit_with", "check_with", "enforce_with"] {
        for (code, arguments) in &cases {
            let sql = format!("SELECT rate_limit.{function}({arguments})");
            let error = sqlx::query(AssertSqlSafe(sql.clone())).execute(&mut conn).await.expect_err(&sql);
            let error = error.into_database_error().expect("a database error");
            assert_eq!(error.code().as_deref(), Some("22023"), "{sql}: {error}");
            assert!(error.message().starts_with(&format!("{code}: ")), "{sql}: expected {code}: {error}");
        }
    }
    for sql in ["SELECT rate_limit.reset('a', NULL)", "SELECT rate_limit.reset(NULL::text)"] {
        assert!(sqlx::query(sql).execute(&mut conn).await.is_err(), "{sql}");
    }
    assert_eq!(database.rows().await, 0);
}

#[test]
fn limits_file_errors_name_the_limit_and_the_field() {
    let good = "kind = \"token_bucket\"\nrate = 10\nperiod = \"1m\"\n";
    let cases = [
        ("color", format!("[limits.a]\n{good}color = 1")),
        ("capcity", format!("[limits.a]\n{good}capcity = 1")),
        ("kind", "[limits.a]\nrate = 10\nperiod = \"1m\"".to_owned()),
        ("leaky", "[limits.a]\nkind = \"leaky\"\nrate = 10\nperiod = \"1m\"".to_owned()),
        ("rate", "[limits.a]\nkind = \"token_bucket\"\nperiod = \"1m\"".to_owned()),
        ("rate", "[limits.a]\nkind = \"token_bucket\"\nrate = nan\nperiod = \"1m\"".to_owned()),
        ("period", "[limits.a]\nkind = \"token_bucket\"\nrate = 10\nperiod = \"soon\"".to_owned()),
        ("period", "[limits.a]\nkind = \"token_bucket\"\nrate = 10\nperiod = \"0s\"".to_owned()),
        ("period", "[limits.a]\nkind = \"token_bucket\"\nrate = 10\nperiod = \"1ns\"".to_owned()),
        ("start", "[limits.a]\nkind = \"fixed_window\"\nrate = 10\nperiod = \"1m\"\nstart = \"x\"".to_owned()),
        ("start", format!("[limits.a]\n{good}start = \"7h\"")),
        ("capacity", "[limits.a]\nkind = \"sliding_window\"\nrate = 10\nperiod = \"1m\"\ncapacity = 5".to_owned()),
        ("max_reserved", format!("[limits.a]\n{good}max_reserved = -1")),
        ("resolution", format!("[limits.a]\n{good}resolution = 0")),
        ("shards", format!("[limits.a]\n{good}shards = 11")),
        ("shards", format!("[limits.a]\n{good}shards = 0")),
        ("shards", format!("[limits.a]\n{good}shards = 1001")),
    ];
    for (field, text) in cases {
        let error = Limits::from_toml(&text).expect_err(&text).to_string();
        assert!(error.contains("\"a\"") && error.contains(field), "{text}\n{error}");
        let json: toml::Value = toml::from_str(&text).expect("TOML");
        // JSON has no NaN.
        if let Ok(json) = serde_json::to_string(&json)
            && !json.contains("null")
        {
            let error = Limits::from_json(&json).expect_err(&json).to_string();
            assert!(error.contains("\"a\"") && error.contains(field), "{json}\n{error}");
        }
    }
    for text in ["[limit.a]", "limits = 3", "[limits.a", "[limits.a]\n[limits.a]"] {
        assert!(Limits::from_toml(text).is_err(), "{text}");
    }
    assert_eq!(Limits::from_toml("").expect("no limits").iter().count(), 0);
}

/// The rules exist in Rust, so that nothing invalid is sent, and in SQL, for callers from SQL. Both accept the same limits.
#[tokio::test]
async fn rust_and_sql_accept_the_same_limits() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let tokens = [None, Some(-1.0), Some(0.0), Some(5.0), Some(1e13), Some(1.1e13)];
    // 3.5 tokens cover a count of 3, 5 tokens one of 5.
    let bounds = [0, 1, 3, 4, 5, 6, 1000, 1001].map(Some);
    let mut shards = bounds.into_iter().flat_map(|bound| [None, bound, None]).chain([None]).cycle();
    let (mut taken, mut refused) = (0, 0);
    for kind in Kind::ALL {
        for rate in [-1.0, 0.0, 0.9e-6, 1e-6, 3.5, 10_000.5, 1e13, 1.1e13] {
            for period in [0_i64, 1, 60_000_000, 3_155_760_000_000_000, 3_155_760_000_000_001] {
                for (nth, resolution) in [None, Some(0), Some(1), Some(1000), Some(1001)].into_iter().enumerate() {
                    let (capacity, max_reserved) = (tokens[nth % 2 * 3], tokens[nth / 2 % 2 * 3]);
                    for (capacity, max_reserved) in tokens.iter().flat_map(|of| [(*of, max_reserved), (capacity, *of)])
                    {
                        let start = (nth == 2).then_some(7_i64);
                        let shards = shards.next().expect("endless");
                        let mut fields = serde_json::json!({
                            "kind": kind, "rate": rate, "period": format!("{period}us"), "capacity": capacity,
                            "max_reserved": max_reserved, "resolution": resolution, "shards": shards,
                        });
                        if let Some(start) = start {
                            fields["start"] = format!("{start}us").into();
                        }
                        let in_rust = serde_json::from_value::<Limit>(fields.clone());
                        let in_sql = sqlx::query("SELECT rate_limit._validate($1, $2, $3, $4, $5, $6, $7, $8)")
                            .bind(kind.as_str())
                            .bind(rate)
                            .bind(period)
                            .bind(capacity)
                            .bind(max_reserved)
                            .bind(start)
                            .bind(resolution)
                            .bind(shards.unwrap_or(1))
                            .execute(&mut conn)
                            .await;
                        assert_eq!(in_rust.is_ok(), in_sql.is_ok(), "{fields}: {in_rust:?} {in_sql:?}");
                        if in_rust.is_ok() { taken += 1 } else { refused += 1 }
                    }
                }
            }
        }
    }
    assert!(taken > 100 && refused > 3000, "{taken} accepted, {refused} rejected");

    // Names, keys and counts, at both sides of their bounds.
    let bucket = Limit::token_bucket(1e13, MINUTE).build().expect("a limit");
    for (name, key, count) in [
        (1, 0, 1.0),
        (0, 0, 1.0),
        (255, 0, 1.0),
        (256, 0, 1.0),
        (1, 1024, 1.0),
        (1, 1025, 1.0),
        (1, 1, 0.0),
        (1, 1, -1e-9),
        (1, 1, 1e-6),
        (1, 1, 0.5),
        (1, 1, 9_999.5),
        (1, 1, 10_000.5),
        (1, 1, 1e13),
        (1, 1, 1.1e13),
    ] {
        let (name, key) = ("n".repeat(name), "k".repeat(key));
        let limiter = Limiter::new(database.pool.clone(), Limits::new());
        let in_rust = limiter.check(Item::new((name.as_str(), bucket), key.as_str()).count(count)).await;
        let sql = "SELECT rate_limit.check_with($1, $2, kind => 'token_bucket', rate => 1e13, period => '1 minute', count => $3)";
        let in_sql = sqlx::query(sql).bind(&name).bind(&key).bind(count).execute(&mut conn).await;
        assert_eq!(in_rust.is_ok(), in_sql.is_ok(), "{} {} {count}: {in_rust:?} {in_sql:?}", name.len(), key.len());
        assert!(in_rust.is_ok() || matches!(in_rust, Err(Error::Invalid(_))), "{in_rust:?}");
    }
}

/// The message names the argument and its value, and the hint says what to do about it.
#[tokio::test]
async fn every_sql_error_shows_the_value_and_a_remedy() {
    let database = Database::migrated().await;
    let mut conn = database.pool.acquire().await.expect("a connection");
    let bucket = |name: &str, key: &str, options: &str| {
        format!("SELECT rate_limit.limit_with({name}, {key}, kind => 'fixed_window', rate => 10, {options})")
    };
    let limit = |kind: &str, options: &str| {
        format!("SELECT rate_limit.limit_with('a', 'k', kind => '{kind}', rate => 10, period => '1 minute', {options})")
    };
    let minute = "period => '1 minute'";
    let once = |key: &str, keep: &str| {
        format!(
            "SELECT rate_limit._decide_once({key}, {keep}, '{{token_bucket}}', '{{1}}', '{{1000000}}', NULL, NULL, NULL, NULL, \
             NULL, '{{a}}', '{{k}}', NULL, NULL, NULL, NULL, 'limit', false)"
        )
    };
    let claim = |most: &str, ahead: &str, lease: &str, sleep: &str| {
        format!(
            "SELECT rate_limit._claim('q', 'w', {most}, {ahead}, {lease}, {sleep}, '{{a}}', '{{token_bucket}}', '{{1}}', \
             '{{1000000}}', '{{1}}', NULL)"
        )
    };
    let validate = |rate: &str, period: &str| {
        format!("SELECT rate_limit._validate('token_bucket', {rate}, {period}, NULL, NULL, NULL, NULL, 1)")
    };
    let count = "count_exceeds_capacity: the count 11 can never be served by the limit \"a\", which grants at most";
    let cases = [
        (bucket("NULL", "'k'", minute), "invalid_name: the limit's name is NULL", "a name of 1 to 255"),
        (bucket("''", "'k'", minute), "invalid_name: the limit's name is empty", "a name of 1 to 255"),
        (
            bucket("repeat('n', 256)", "'k'", minute),
            "invalid_name: the limit's name has 256 bytes",
            "Shorten the name.",
        ),
        (bucket("'a'", "NULL", minute), "invalid_key: the key is NULL", "Pass '' for the global bucket."),
        (bucket("'a'", "repeat('k', 1025)", minute), "invalid_key: the key has 1025 bytes", "Shorten or hash the key."),
        (bucket("'a'", "'k'", "period => NULL"), "invalid_limit: the period NULL is not", "like '1 minute'"),
        (
            bucket("'a'", "'k'", "period => '99999999 weeks'"),
            "invalid_limit: the period 699999993 days is",
            "'1 minute'",
        ),
        (
            bucket("'a'", "'k'", "period => '1 day', start => '999999999 days'"),
            "invalid_limit: the start 999999999 days is more than",
            "the remainder modulo the period",
        ),
        (validate("1", "0"), "invalid_limit: the period 0 microseconds is not between 1 ", "Use a value that"),
        (validate("1", "NULL"), "invalid_limit: the period NULL is not between 1 ", "Use a value that"),
        (validate("'NaN'", "1"), "invalid_limit: the rate NaN is not a number from 1e-6", "Use a value that"),
        (
            limit("token_bucket", "count => 'Infinity'"),
            "invalid_count: the count Infinity ",
            "Use 0, or a number from 1e-6 ",
        ),
        (limit("token_bucket", "count => 'NaN'"), "invalid_count: the count NaN ", "Use 0, or a number from 1e-6 "),
        (limit("sliding_window", "count => 11"), format!("{count} 10").leak(), "Lower the count, or raise the rate."),
        (limit("token_bucket", "count => 11"), format!("{count} 10").leak(), "Lower the count, or raise the capacity."),
        (
            limit("fixed_window", "count => 11, capacity => 0"),
            format!("{count} 0").leak(),
            "Reserve the tokens (reserve => true), or raise the capacity.",
        ),
        (
            limit("token_bucket", "count => 11, reserve => true, max_reserved => 0"),
            format!("{count} 10").leak(),
            "Lower the count, or raise max_reserved.",
        ),
        (once("NULL", "1"), "invalid_idempotency_key: the idempotency key is NULL", "a key of its own"),
        (once("''", "1"), "invalid_idempotency_key: the idempotency key has 0 bytes", "a key of its own"),
        (once("'1'", "0"), "invalid_idempotency_key: keep is 0, not 1 or more", "in microseconds"),
        (claim("0", "0", "1", "1"), "invalid_claim: most is 0, not 1 or more", "Use a value from this range"),
        (claim("1", "-1", "1", "1"), "invalid_claim: ahead is -1, not 0 to 1000000", "Use a value from this range"),
        (
            claim("1", "1000001", "1", "1"),
            "invalid_claim: ahead is 1000001, not 0 to 1000000",
            "Use a value from this range",
        ),
        (claim("1", "0", "NULL", "1"), "invalid_claim: lease is NULL, not 1 or more", "Use a value from this range"),
        (claim("1", "0", "1", "0"), "invalid_claim: sleep is 0, not 1 or more", "Use a value from this range"),
    ];
    for (sql, message, remedy) in cases {
        let error = sqlx::query(AssertSqlSafe(sql.clone())).execute(&mut *conn).await.expect_err(&sql);
        let error = error.into_database_error().expect("of the database");
        let hint = error.downcast_ref::<sqlx::postgres::PgDatabaseError>().hint().unwrap_or_default();
        assert!(error.message().starts_with(message), "{sql}: {}", error.message());
        assert!(hint.contains(remedy) && error.code().as_deref() == Some("22023"), "{sql}: {hint}");
    }
}

#[test]
fn a_length_that_is_not_in_microseconds_is_shown() {
    let build = |period, start| Limit::fixed_window(1, period).start(start).build().expect_err("refused").to_string();
    let bound = "; use a whole number of microseconds, from 1 microsecond to 36525 days";
    let nanosecond = Duration::from_nanos(1);
    assert_eq!(build(nanosecond, MINUTE), format!("invalid limit: the period 1ns is not valid{bound}"));
    let days = Duration::from_secs(36_526 * 86_400);
    assert_eq!(build(days, MINUTE), format!("invalid limit: the period 36526d is not valid{bound}"));
    let start = "invalid limit: the start 1ns is not valid; use a whole number of microseconds, less than the period";
    assert_eq!(build(MINUTE, nanosecond), start);
    for (period, remedy) in [("1ns", "round it"), ("300000000days", "at most 36525 days")] {
        let file = format!("[limits.a]\nkind = \"fixed_window\"\nrate = 1\nperiod = \"{period}\"");
        let error = Limits::from_toml(&file).expect_err(period).to_string();
        assert!(error.contains(period) && error.contains(remedy), "{error}");
    }
}

/// The list in SQL equals that of `Kind`.
#[tokio::test]
async fn an_unknown_kind_error_lists_the_kinds() {
    let database = Database::migrated().await;
    let mut conn = database.pool.acquire().await.expect("a connection");
    let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    let expected = format!("unknown kind \"tokenbucket\"; the kinds are {}", names.join(", "));
    for function in ["limit_with", "check_with", "enforce_with"] {
        let sql =
            format!("SELECT rate_limit.{function}('a', 'k', kind => 'tokenbucket', rate => 1, period => '1 minute')");
        let error = sqlx::query(AssertSqlSafe(sql)).execute(&mut *conn).await.expect_err("refused");
        let error = error.as_database_error().expect("of the database");
        assert_eq!((error.message(), error.code().as_deref()), (&*format!("invalid_limit: {expected}"), Some("22023")));
    }
    assert_eq!("tokenbucket".parse::<Kind>().expect_err("refused").to_string(), format!("invalid limit: {expected}"));
}

#[test]
fn kinds_have_one_name() {
    for kind in Kind::ALL {
        assert_eq!(kind.as_str().parse::<Kind>(), Ok(*kind));
        assert_eq!(serde_json::to_string(kind).expect("JSON"), format!("\"{kind}\""));
    }
    let error = "leaky".parse::<Kind>().expect_err("no such kind");
    assert!(error.to_string().contains("token_bucket, fixed_window, sliding_window"), "{error}");
}

#[test]
fn limits_files_and_code_define_the_same_limits() {
    let text = r#"
        [limits.send_message]
        kind = "token_bucket"
        rate = 10
        period = "1m"
        capacity = 20
        max_reserved = 2.5
        shards = 4

        [limits."log in"]
        kind = "fixed_window"
        rate = 0.5
        period = "1h 30m"
        start = "7h"

        [limits.search]
        kind = "sliding_window"
        rate = 100
        period = "7d"
        resolution = 7
        start = "1500ms"
    "#;
    let in_code = || -> Result<Limits, InvalidLimit> {
        Limits::new()
            .define("send_message", Limit::token_bucket(10, MINUTE).capacity(20).max_reserved(2.5).shards(4))?
            .define("log in", Limit::fixed_window(0.5, 90 * MINUTE).start(420 * MINUTE))?
            .define(
                "search",
                Limit::sliding_window(100, 10_080 * MINUTE).resolution(7).start(Duration::from_millis(1500)),
            )
    };
    let in_code = in_code().expect("limits");
    assert_eq!(Limits::from_toml(text).expect("a file"), in_code);
    for (_, limit) in in_code.iter() {
        let json = serde_json::to_string(limit).expect("JSON");
        assert_eq!(serde_json::from_str::<Limit>(&json).expect("a limit"), *limit, "{json}");
    }
}
