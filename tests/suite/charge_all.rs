//! `charge_all_with` and `credit_all_with`: tokens for usage that is only known afterwards, for callers from SQL.

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use serde_json::{Value, json};

use crate::rate_limit_all::{bucket, call, with};
use crate::shards_contended::session;
use crate::support::Database;

/// Returns the balance of each element.
async fn correct(conn: &mut PgConnection, op: &str, calls: &Value) -> Result<Vec<i64>, sqlx::Error> {
    let sql = format!("SELECT limits::text FROM rate_limit.{op}_all_with($1::jsonb) AS limits");
    let limits: String = sqlx::query_scalar(AssertSqlSafe(sql)).bind(calls.to_string()).fetch_one(conn).await?;
    let limits: Vec<Value> = serde_json::from_str(&limits).expect("an array");
    Ok(limits.iter().map(|limit| limit["value"].as_f64().expect("a number").round() as i64).collect())
}

fn counts(user: f64, org: f64) -> Value {
    json!([with(bucket("user", "u1", 10.0), "count", user), with(bucket("org", "o1", 100.0), "count", org),])
}

#[tokio::test]
async fn charges_and_credits_correct_an_estimate_in_the_callers_transaction() {
    let database = Database::migrated().await;
    for isolation in ["READ COMMITTED", "SERIALIZABLE"] {
        let mut conn = session(&database, isolation).await;
        assert!(call(&mut conn, "limit_all_with", &counts(4.0, 4.0), false).await.expect("a decision").ok);
        assert_eq!(correct(&mut conn, "charge", &counts(8.0, 8.0)).await.expect("charged"), [-2, 88]);
        let denied = call(&mut conn, "limit_all_with", &counts(1.0, 1.0), false).await.expect("a decision");
        assert_eq!((denied.ok, denied.denied_by), (false, vec!["user".to_owned()]));

        let mut tx = conn.begin().await.expect("a transaction");
        assert_eq!(correct(&mut tx, "credit", &counts(5.0, 5.0)).await.expect("credited"), [3, 93]);
        tx.rollback().await.expect("rolled back");
        assert_eq!(correct(&mut conn, "credit", &counts(0.0, 0.0)).await.expect("balances"), [-2, 88]);

        // Up to the capacity. The counts of a bucket add up.
        let user = with(bucket("user", "u1", 10.0), "count", 3);
        assert_eq!(correct(&mut conn, "credit", &json!([user, user])).await.expect("credited"), [4, 4]);
        assert_eq!(correct(&mut conn, "credit", &counts(50.0, 50.0)).await.expect("credited"), [10, 100]);
        database.execute("SELECT rate_limit.reset('user'), rate_limit.reset('org')").await;
        assert_eq!(correct(&mut conn, "credit", &counts(1.0, 1.0)).await.expect("credited"), [10, 100]);
        assert_eq!(database.rows().await, 0, "a credit creates no row");
    }
}

#[tokio::test]
async fn what_has_no_tokens_cannot_be_charged_or_credited() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let good = bucket("user", "u1", 10.0);
    let slots = json!({"name": "running", "key": "u1", "kind": "concurrency", "capacity": 3});
    for op in ["charge", "credit"] {
        for (wrong, message) in [
            (
                json!({"name": "banned", "key": "u1", "kind": "gate"}),
                format!("no_tokens: the gate \"banned\" has no tokens to {op}"),
            ),
            (slots.clone(), format!("reserve_unsupported: the concurrency limit \"running\" cannot {op}")),
            (
                with(bucket("org", "o1", 10.0), "leave", 5),
                format!("leave_unsupported: the operation \"{op}\" of the limit \"org\""),
            ),
            (with(bucket("org", "o1", 10.0), "count", -1), "invalid_count: element 2: the count -1".to_owned()),
            (json!(7), "invalid_call: element 2 is of type number".to_owned()),
        ] {
            let error = correct(&mut conn, op, &json!([good, wrong])).await.expect_err(&message);
            let error = error.into_database_error().expect("of the database");
            assert_eq!(error.code().as_deref(), Some("22023"), "{error}");
            assert!(error.message().starts_with(&message), "{error}");
        }
    }
    assert_eq!(database.rows().await, 0);
}
