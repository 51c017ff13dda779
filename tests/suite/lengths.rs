//! Months and years have no fixed length, so they are rejected wherever a limit is given.

use std::time::Duration;

use pg_limiter::sqlx::AssertSqlSafe;
use pg_limiter::{Limit, Limits};

use crate::support::{Database, sqlx};

const MONTHS: [&str; 9] = ["1 month", "1month", "2months", "1M", "1y", "1yr", "1 year", "30d 1M", "1years 1s"];

fn file(period: &str, start: &str) -> [String; 2] {
    [
        format!("[limits.a]\nkind = \"fixed_window\"\nrate = 1\nperiod = \"{period}\"\nstart = \"{start}\"\n"),
        format!(
            r#"{{"limits": {{"a": {{"kind": "fixed_window", "rate": 1, "period": "{period}", "start": "{start}"}}}}}}"#
        ),
    ]
}

#[test]
fn months_and_years_are_rejected_in_limits_files() {
    for length in MONTHS {
        for (field, period, start) in [("period", length, "1h"), ("start", "1h", length)] {
            let [toml, json] = file(period, start);
            for result in [Limits::from_toml(&toml), Limits::from_json(&json)] {
                let message = result.expect_err(length).to_string();
                for words in ["limit \"a\"", field, &format!("\"{length}\""), "months and years", "\"30d\""] {
                    assert!(message.contains(words), "no {words} in: {message}");
                }
            }
        }
    }
    for length in ["30d", "4w", "5 weeks 2days", "1m", "1 minute", "36525d"] {
        let [toml, json] = file(length, length);
        assert_eq!(Limits::from_toml(&toml).expect(length), Limits::from_json(&json).expect(length));
    }
}

/// A period of more than 30 days is serialized so that it can be read again.
#[test]
fn a_limit_is_read_back_as_it_was_written() {
    for seconds in [86_400 * 31, 86_400 * 30 + 1, 86_400 * 365, 86_400 * 36_525, 61, 3_600] {
        let limit = Limit::fixed_window(1, Duration::from_secs(seconds)).build().expect("a limit");
        let written = serde_json::to_string(&limit).expect("JSON");
        assert_eq!(serde_json::from_str::<Limit>(&written).map_err(|error| error.to_string()), Ok(limit), "{written}");
    }
}

#[tokio::test]
async fn months_and_years_are_rejected_in_sql() {
    let database = Database::migrated().await;
    let mut conn = database.pool.acquire().await.expect("a connection");
    for function in ["limit_with", "check_with", "enforce_with"] {
        for (option, text) in
            [("period", "1 mon"), ("period", "1 year"), ("period", "1 mon -1 days"), ("start", "1 mon")]
        {
            let length = if text == "1 year" { "12 months" } else { text };
            let (period, start) = if option == "period" { (length, "1 h") } else { ("1 h", length) };
            let sql = format!(
                "SELECT rate_limit.{function}('a', 'k', kind => 'fixed_window', rate => 1, period => '{period}', start => '{start}')"
            );
            let error = sqlx::query(AssertSqlSafe(sql)).execute(&mut *conn).await.expect_err(length);
            let error = error.as_database_error().expect("of the database");
            let message = error.message();
            assert_eq!(error.code().as_deref(), Some("22023"), "{message}");
            for words in ["invalid_limit", option, text, "months"] {
                assert!(message.contains(words), "no {words} in: {message}");
            }
            let hint = error.downcast_ref::<sqlx::postgres::PgDatabaseError>().hint().unwrap_or_default();
            assert!(hint.contains("30 days"), "{hint}");
        }
        for period in ["30 days", "720 h", "4 weeks", "1 mon 3 days - 1 mon"] {
            let sql = format!(
                "SELECT rate_limit.{function}('a', $1, kind => 'fixed_window', rate => 1, period => interval '{period}')"
            );
            let period = period
                .strip_suffix(" - 1 mon")
                .map_or(sql.clone(), |sum| sql.replace(&format!("'{period}'"), &format!("'{sum}' - interval '1 mon'")));
            sqlx::query(AssertSqlSafe(period.clone()))
                .bind(function.to_owned() + &period)
                .execute(&mut *conn)
                .await
                .expect(&period);
        }
    }
    assert_eq!(database.rows().await, 8);
}
