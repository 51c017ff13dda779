//! The input that `limit_all_with` accepts and rejects: malformed calls, the rules for limits, lengths of time.

use std::time::Duration;

use pg_limiter::sqlx::postgres::PgDatabaseError;
use pg_limiter::sqlx::{self, AssertSqlSafe};
use pg_limiter::{Limit, Limits};
use serde_json::{Value, json};

use crate::rate_limit_all::{bucket, call, refused, with};
use crate::shards_contended::session;
use crate::support::Database;

/// The message begins with the error's code and the number of the element. It shows no key, and nothing is written.
#[tokio::test]
async fn every_malformed_call_has_its_own_error() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let good = bucket("a", "anna.secret", 10.0);
    let field = |name: &str, value: Value| json!([good, with(good.clone(), name, value)]);
    let without = |name: &str| {
        let mut limit = good.clone();
        limit.as_object_mut().expect("an object").remove(name);
        json!([good, good, limit])
    };
    let raw = |text: &str| -> Value { serde_json::from_str(text).expect("JSON") };
    let mut cases = vec![
        (json!({}), "invalid_call: the argument is of type object, not an array"),
        (good.clone(), "invalid_call: the argument is of type object, not an array"),
        (json!("[]"), "invalid_call: the argument is of type string, not an array"),
        (Value::Null, "invalid_call: the argument is of type null, not an array"),
        (json!([]), "invalid_call: the call names no limit"),
        (json!([good, 7]), "invalid_call: element 2 is of type number, not object"),
        (json!([[good]]), "invalid_call: element 1 is of type array, not object"),
        (json!([null]), "invalid_call: element 1 is of type null, not object"),
        (json!([good, {}]), "invalid_call: element 2: the field \"name\" is missing"),
        (field("capcity", 1.into()), "invalid_call: element 2 has the unknown field \"capcity\""),
        (field("reserve", true.into()), "invalid_call: element 2 has the unknown field \"reserve\""),
        (field("at", "2026-01-01".into()), "invalid_call: element 2 has the unknown field \"at\""),
        (field("Name", Value::Null), "invalid_call: element 2 has the unknown field \"Name\""),
        (field("rate", "10".into()), "invalid_call: element 2: the field \"rate\" is of type string, not number"),
        (field("rate", "NaN".into()), "invalid_call: element 2: the field \"rate\" is of type string, not number"),
        (field("count", true.into()), "invalid_call: element 2: the field \"count\" is of type boolean, not number"),
        (field("shards", json!([1])), "invalid_call: element 2: the field \"shards\" is of type array, not number"),
        (field("name", 1.into()), "invalid_call: element 2: the field \"name\" is of type number, not string"),
        (field("key", 42.into()), "invalid_call: element 2: the field \"key\" is of type number, not string"),
        (field("kind", json!({})), "invalid_call: element 2: the field \"kind\" is of type object, not string"),
        (field("period", 60.into()), "invalid_call: element 2: the field \"period\" is of type number, not string"),
        (field("start", 0.into()), "invalid_call: element 2: the field \"start\" is of type number, not string"),
        (field("period", "soon".into()), "invalid_limit: element 2: the period \"soon\" is not an interval"),
        (field("period", "".into()), "invalid_limit: element 2: the period \"\" is not an interval"),
        (field("period", "60".into()), "invalid_limit: element 2: the period \"60\" is not an interval"),
        (field("start", "7 o'clock".into()), "invalid_limit: element 2: the start \"7 o'clock\" is not an interval"),
        (
            field("resolution", 2.5.into()),
            "invalid_limit: element 2: the field \"resolution\" is 2.5, not a whole number ",
        ),
        (
            field("shards", 10_000_000_000_u64.into()),
            "invalid_limit: element 2: the field \"shards\" is 10000000000, not a whole number ",
        ),
        (field("name", "".into()), "invalid_name: element 2: the limit's name is empty"),
        (
            field("name", "n".repeat(256).into()),
            "invalid_name: element 2: the limit's name has 256 bytes, and at most 255 ",
        ),
        (
            field("key", "anna".repeat(300).into()),
            "invalid_key: element 2: the key has 1200 bytes, and at most 1024 are allowed",
        ),
        (field("count", json!(-1)), "invalid_count: element 2: the count -1 for the limit \"a\" is not 0 or a number "),
        (
            field("count", json!(1.1e100)),
            "invalid_count: element 2: the count 1.1e+100 for the limit \"a\" is not 0 or ",
        ),
    ];
    let missing: Vec<(Value, String)> = ["name", "key", "kind", "rate", "period"]
        .into_iter()
        .flat_map(|name| {
            let message = format!("invalid_call: element 3: the field \"{name}\" is missing");
            [(without(name), message.clone()), (json!([good, good, with(good.clone(), name, Value::Null)]), message)]
        })
        .collect();
    cases.extend(missing.iter().map(|(calls, message)| (calls.clone(), message.as_str())));
    for function in ["limit_all_with", "check_all_with"] {
        for (calls, expected) in &cases {
            let (code, message, hint) = refused(&mut conn, function, calls).await;
            assert!(code == "22023" && message.starts_with(expected), "{calls}: {code} {message}, not {expected}");
            assert!(!hint.is_empty() && !message.contains("anna") && !hint.contains("anna"), "{message}: {hint}");
        }
        // Numbers that neither double precision nor serde can represent.
        let (positive, zero, whole) =
            ("a number from 1e-6 to 1e13", "0, or a number from 1e-6 to 1e13", "a whole number from 1 to 1000");
        for (name, number, value, code, allowed) in [
            ("rate", "1e400", "1.00e+400", "invalid_limit", positive),
            ("rate", "1e-400", "1.00e-400", "invalid_limit", positive),
            ("capacity", "-1e400", "-1.00e+400", "invalid_limit", zero),
            ("max_reserved", "1e30000", "1.00e+30000", "invalid_limit", zero),
            ("resolution", "1e400", "1.00e+400", "invalid_limit", whole),
            ("shards", "1e-400", "1.00e-400", "invalid_limit", whole),
            ("count", "1e-400", "1.00e-400", "invalid_count", zero),
            ("count", "1e310", "1.00e+310", "invalid_count", zero),
        ] {
            let sql = format!(
                "SELECT rate_limit.{function}(jsonb_build_array($1::jsonb || '{{\"{name}\": {number}}}'::jsonb))"
            );
            let result = sqlx::query(AssertSqlSafe(sql)).bind(good.to_string()).execute(&mut conn).await;
            let error = result.expect_err(number).into_database_error().expect("of the database");
            let expected = format!("{code}: element 1: the field \"{name}\" is {value}, which is out of range");
            assert_eq!((error.code().as_deref(), error.message()), (Some("22023"), expected.as_str()));
            let hint = error.downcast_ref::<PgDatabaseError>().hint();
            assert_eq!(hint, Some(format!("Use {allowed}.").as_str()), "{name} {number}");
        }
        let null = sqlx::query(AssertSqlSafe(format!("SELECT rate_limit.{function}(NULL)"))).execute(&mut conn).await;
        let null = null.expect_err("NULL").into_database_error().expect("of the database");
        assert_eq!(null.code().as_deref(), Some("22023"));
        assert_eq!(null.message(), "invalid_call: the argument is NULL, not an array");
    }
    // A long field name is cut off, and format characters in a text are left as they are.
    let (_, message, _) = refused(&mut conn, "limit_all_with", &field(&"x".repeat(5000), Value::Null)).await;
    assert!(message.len() < 200, "{message}");
    let (_, message, _) = refused(&mut conn, "limit_all_with", &raw(r#"[{"%s %% \"": 1}]"#)).await;
    assert_eq!(message, "invalid_call: element 1 has the unknown field \"%s %% \"\"");
    assert_eq!(database.rows().await, 0);
}

/// The bounds are the same, and so are the messages, apart from the number of the element.
#[tokio::test]
async fn limits_are_validated_as_by_rate_limit() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let base = |kind: &str| json!({"name": "a", "key": "k", "kind": kind, "rate": 10, "period": "01:00:00"});
    let values = [
        ("kind", vec![json!("leaky"), json!("")]),
        ("name", vec![json!(""), json!("n".repeat(255)), json!("n".repeat(256)), json!("ü".repeat(128))]),
        ("key", vec![json!(""), json!("k".repeat(1024)), json!("k".repeat(1025))]),
        ("rate", vec![json!(0), json!(-1), json!(1e-100), json!(0.9e-100), json!(1e100), json!(1.1e100), json!(3.5)]),
        (
            "period",
            "00:00:00|-00:01:00|36525 days|36526 days|9999999 weeks|1 mon|1 year|00:00:00.000001"
                .split('|')
                .map(Value::from)
                .collect(),
        ),
        ("capacity", vec![json!(-1), json!(0), json!(5), json!(1e100), json!(1.1e100)]),
        ("max_reserved", vec![json!(-0.5), json!(0), json!(5), json!(1.1e100)]),
        ("start", ["07:00:00", "-01:00:00", "1 mon", "999999 years", "40000 days"].map(Value::from).to_vec()),
        ("resolution", vec![json!(0), json!(1), json!(1000), json!(1001), json!(-7)]),
        ("shards", vec![json!(0), json!(1), json!(10), json!(11), json!(1000), json!(1001), json!(-1)]),
        ("count", vec![json!(0), json!(10), json!(10.5), json!(11), json!(-0.5), json!(1.1e100), json!(1e-101)]),
    ];
    let (mut allowed, mut errors) = (0, 0);
    for kind in ["token_bucket", "fixed_window", "sliding_window"] {
        for (field, values) in &values {
            for value in values {
                let limit = with(base(kind), field, value.clone());
                let sql =
                    "SELECT rate_limit.check_with(l ->> 'name', l ->> 'key', l ->> 'kind', (l ->> 'rate')::float8,
                    (l ->> 'period')::interval, (l ->> 'capacity')::float8, coalesce((l ->> 'count')::float8, 1), false,
                    (l ->> 'max_reserved')::float8, (l ->> 'start')::interval, (l ->> 'resolution')::integer,
                    coalesce((l ->> 'shards')::integer, 1))
                    FROM CAST($1 AS jsonb) AS l";
                let single = sqlx::query(sql).bind(limit.to_string()).execute(&mut conn).await;
                let several = call(&mut conn, "check_all_with", &json!([limit]), false).await;
                match (single, several) {
                    (Ok(_), Ok(_)) => allowed += 1,
                    (Err(single), Err(several)) => {
                        let [single, several] =
                            [single, several].map(|error| error.into_database_error().expect("of the database"));
                        assert_eq!(single.message(), several.message().replacen("element 1: ", "", 1), "{limit}");
                        let hints = [&single, &several].map(|error| error.downcast_ref::<PgDatabaseError>().hint());
                        assert_eq!(hints[0], hints[1]);
                        assert_eq!((several.code().as_deref(), single.code()), (Some("22023"), several.code()));
                        errors += 1;
                    }
                    (single, several) => panic!("{limit}: {single:?}, {several:?}"),
                }
            }
        }
    }
    assert!(allowed > 40 && errors > 80, "{allowed} allowed, {errors} errors");
}

/// Texts that look like lengths, valid and invalid, the same in each run.
fn texts_like_lengths() -> Vec<String> {
    let units: Vec<&str> =
        "years y mons month weeks w days d hours hr h mins m secs s msecs ms usec us".split(' ').collect();
    let mut state = 7_u64;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let mut text = || {
        let is_iso = below(5) == 0;
        let mut text = String::from(if is_iso { "P" } else { "" });
        let mut unit = below(12);
        while unit < units.len() {
            let number = if below(3) == 0 { "9".repeat(1 + below(10)) } else { below(100).to_string() };
            let sign = ["", "", "", "", "-", "+"][below(6)];
            let fraction = ["", "", "", ".5", ".999999", "."][below(6)];
            let [before, after] = [0, 1].map(|_| [" ", ""][below(2)]);
            text.push_str(&match below(30) {
                0 => format!("{sign}{number}:{:02}:{:02}{fraction}", below(62), below(62)),
                1 => format!("{sign}{number}:{:02}{fraction}", below(60)),
                2 if is_iso => "T".to_owned(),
                _ if is_iso => format!("{number}{fraction}{}", ["Y", "M", "W", "D", "H", "S"][below(6)]),
                _ => format!("{sign}{number}{fraction}{before}{}{after}", units[unit]),
            });
            unit += below(12);
        }
        text
    };
    (0..20_000).map(|_| text()).collect()
}

/// No text makes the cast fail, whatever the settings of the session.
#[tokio::test]
async fn a_length_equals_its_interval_cast_or_is_null() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let texts = texts_like_lengths();
    let sql = "SELECT count(length), count(DISTINCT length) FROM unnest($1) AS t, rate_limit._length(t) AS length";
    for setting in ["DateStyle = 'SQL, DMY'", "IntervalStyle = iso_8601", "standard_conforming_strings = off"] {
        sqlx::raw_sql(AssertSqlSafe(format!("SET {setting}"))).execute(&mut conn).await.expect("a setting");
        let (taken, different): (i64, i64) =
            sqlx::query_as(sql).bind(&texts).fetch_one(&mut conn).await.expect("no error of the cast");
        assert!(taken > 1_000 && different > 1_000, "{setting}: {taken} taken, {different} different");
    }
    sqlx::raw_sql("RESET ALL").execute(&mut conn).await.expect("the defaults");
    let taken = "1 minute|1h 30m|1h30m|1h0m0.5s|1500ms|7d|1 day 02:00:00|-1 days +02:00:00|00:01:00.5|1.5 hours|PT90S|PT1.5H|P1DT2H|\
                 1 week 2 days|36525 days|7us| 1 minute |1 mon";
    for text in taken.split('|') {
        let sql = "SELECT rate_limit._length($1) = $1::interval";
        let same: Option<bool> = sqlx::query_scalar(sql).bind(text).fetch_one(&mut conn).await.expect(text);
        assert_eq!(same, Some(true), "{text}");
    }
    // "1M" means a month in a limits file, and a minute in the cast.
    for text in "1M|1|| |soon|P|PT|1 minute 1 minute|1.5h 30m|1 fortnight|99999999999 s|infinity".split('|') {
        let none = "SELECT rate_limit._length($1) IS NULL";
        let none: bool = sqlx::query_scalar(none).bind(text).fetch_one(&mut conn).await.expect(text);
        assert!(none, "{text}");
    }
    // Lengths mean the same as in a limits file.
    for text in "1h 30m|1500ms|7d|1 week 2days 3hrs 4min 5sec 6msec 7usec|1us|90 minutes".split('|') {
        let file = json!({"limits": {"a": {"kind": "token_bucket", "rate": 1, "period": text}}}).to_string();
        let limits = Limits::from_json(&file).expect(text);
        let micros = "SELECT (extract(epoch FROM rate_limit._length($1)) * 1000000)::bigint";
        let micros: Option<i64> = sqlx::query_scalar(micros).bind(text).fetch_one(&mut conn).await.expect(text);
        let micros = micros.expect(text).unsigned_abs();
        assert_eq!(Some(Duration::from_micros(micros)), limits.get("a").map(Limit::period), "{text}");
    }
}
