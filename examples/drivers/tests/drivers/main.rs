//! The same tests for every driver, at READ COMMITTED and SERIALIZABLE. One server, and a database for each test.

#[path = "../../../common/mod.rs"]
#[allow(dead_code)]
mod common;
mod conflicts;
mod driver;

use std::collections::BTreeSet;

use conflicts::{a_deadlock_is_retried, a_serialization_failure_is_retried};
use driver::{DieselAsync, Driver, SeaOrm, TokioPostgres, app, app_with};
use pg_limiter::Item;
use pg_limiter_drivers::sea_orm;
use pg_limiter_drivers::shared::{Message, item};
use serde_json::json;
use sqlx::PgPool;

/// Each test with each driver.
macro_rules! with_every_driver {
    ($($test:ident),+ $(,)?) => {
        mod tokio_postgres { $(#[tokio::test] async fn $test() { super::$test::<super::TokioPostgres>().await })+ }
        mod diesel_async { $(#[tokio::test] async fn $test() { super::$test::<super::DieselAsync>().await })+ }
        mod sea_orm_2 { $(#[tokio::test] async fn $test() { super::$test::<super::SeaOrm>().await })+ }
    };
}

with_every_driver! {
    a_message_and_its_tokens_commit_or_roll_back_together,
    many_callers_never_exceed_the_limit,
    a_malformed_call_reports_what_is_wrong,
    slots_are_held_until_they_are_released,
    a_denial_has_its_seconds_in_every_interval_style,
    a_serialization_failure_is_retried,
    a_deadlock_is_retried,
}

const ISOLATION_LEVELS: [&str; 2] = ["read committed", "serializable"];

async fn messages(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM messages").fetch_one(pool).await.expect("a count")
}

async fn a_message_and_its_tokens_commit_or_roll_back_together<D: Driver>() {
    for isolation in ISOLATION_LEVELS {
        app(isolation, async |pool, driver: &D| {
            let post = async |author: &str, body: &str| driver.post(&Message { author, org: "o1", body }).await;
            for body in ["one", "two", "three"] {
                let posted = post("u1", body).await?;
                assert!(posted.ok && posted.retry_after.is_none() && posted.denied_by.is_empty(), "{posted:?}");
            }

            let denied = post("u1", "four").await?;
            assert!(!denied.ok && denied.denied_by == ["per_user"], "{denied:?}");
            assert!(denied.retry_after.is_some_and(|seconds| 600.0 < seconds && seconds <= 1200.0), "{denied:?}");
            let states: Vec<_> = denied.limits.iter().map(|limit| (&*limit.name, &*limit.key, limit.denied)).collect();
            assert_eq!(states, [("per_user", "u1", true), ("per_org", "o1", false)]);
            assert!(denied.limits[0].value < 1.0 && denied.limits[1].value >= 2.0, "{denied:?}");
            assert_eq!(messages(pool).await, 3);

            // The body exists already: the error rolls the transaction back, and the tokens.
            assert!(post("u2", "one").await.is_err());
            let calls = json!([item("per_user", "u2"), item("per_org", "o1")]);
            let rolled_back = driver.limit_and_roll_back(&calls).await?;
            assert!(rolled_back.ok && rolled_back.limits[0].value == 2.0, "{rolled_back:?}");

            // In a transaction of its own, the call commits.
            let alone = driver.limit_alone(&calls).await?;
            assert!(alone.ok && alone.limits[0].value == 2.0, "{alone:?}");
            assert!(post("u2", "five").await?.ok);
            let denied = post("u1", "six").await?;
            assert_eq!(denied.denied_by, ["per_org", "per_user"]);
            assert_eq!(messages(pool).await, 4);
            Ok(())
        })
        .await;
    }
}

async fn many_callers_never_exceed_the_limit<D: Driver>() {
    for isolation in ISOLATION_LEVELS {
        app(isolation, async |pool, driver: &D| {
            let mut callers = tokio::task::JoinSet::new();
            for caller in 0..8 {
                let driver = driver.clone();
                callers.spawn(async move {
                    let mut posted = 0;
                    for nth in 0..3 {
                        let (author, body) = (format!("u{caller}"), format!("message {nth} of {caller}"));
                        let message = Message { author: &author, org: "o1", body: &body };
                        posted += i64::from(driver.post(&message).await.expect("a decision").ok);
                    }
                    posted
                });
            }
            let posted: i64 = callers.join_all().await.iter().sum();
            assert_eq!((posted, messages(pool).await), (5, 5));
            Ok(())
        })
        .await;
    }
}

async fn a_malformed_call_reports_what_is_wrong<D: Driver>() {
    app("read committed", async |_, driver: &D| {
        let mut wrong = item("per_org", "o1");
        wrong["period"] = "soon".into();
        for (calls, message) in [
            (
                json!([item("per_user", "u1"), wrong]),
                "invalid_limit: element 2: the period \"soon\" is not an interval",
            ),
            (json!([item("unknown", "u1")]), "invalid_call: element 1: the field \"kind\" is missing"),
            (item("per_user", "u1"), "invalid_call: the argument is of type object, not an array"),
            (json!("[]"), "invalid_call: the argument is of type string, not an array"),
        ] {
            let error = driver.limit_alone(&calls).await.expect_err("malformed");
            assert_eq!(D::message(&error), message);
            // The transaction that it fails can be rolled back, and the connection used again.
            assert!(driver.limit_and_roll_back(&calls).await.is_err());
        }
        let decision = driver.limit_alone(&json!([item("per_user", "u1")])).await?;
        assert_eq!(decision.limits[0].value, 2.0);
        Ok(())
    })
    .await;
}

async fn slots_are_held_until_they_are_released<D: Driver>() {
    app("read committed", async |pool, driver: &D| {
        let call = json!([item("reports", "u1"), item("per_user", "u1")]);
        let mut leases = BTreeSet::new();
        for _ in 0..2 {
            let decision = driver.limit_alone(&call).await?;
            leases.insert(decision.limits[0].lease_id.ok_or("no lease")?);
        }
        assert_eq!(leases.len(), 2);
        let denied = driver.limit_alone(&call).await?;
        assert!(denied.denied_by == ["reports"] && denied.limits[0].lease_id.is_none(), "{denied:?}");
        for expected in [true, false] {
            let release = sqlx::query_scalar("SELECT rate_limit.release('reports', 'u1', $1)").bind(leases.first());
            let is_released: bool = release.fetch_one(pool).await?;
            assert_eq!(is_released, expected);
        }
        assert!(driver.limit_alone(&call).await?.ok);
        Ok(())
    })
    .await;
}

/// The style in which the database writes intervals.
async fn a_denial_has_its_seconds_in_every_interval_style<D: Driver>() {
    for style in ["postgres", "postgres_verbose", "sql_standard", "iso_8601"] {
        app_with("intervalstyle", style, async |_, driver: &D| {
            for body in ["one", "two", "three"] {
                assert!(driver.post(&Message { author: "u1", org: "o1", body }).await?.ok);
            }
            let denied = driver.post(&Message { author: "u1", org: "o1", body: "four" }).await?;
            assert!(
                denied.retry_after.is_some_and(|seconds| 600.0 < seconds && seconds <= 1200.0),
                "{style}: {denied:?}"
            );
            Ok(())
        })
        .await;
    }
}

/// The library's calls on the pool of SeaORM, and the SQL in its transactions, take from the same buckets.
#[tokio::test]
async fn the_limiter_shares_the_pool_and_the_buckets_with_sea_orm() {
    app("serializable", async |_, SeaOrm(db): &SeaOrm| {
        let limiter = sea_orm::limiter(db)?;
        let call = || [Item::new("per_user", "u1"), Item::new("per_org", "o1")];
        assert!(limiter.limit(call()).await?.is_allowed());
        for body in ["one", "two"] {
            assert!(sea_orm::post(db, &Message { author: "u1", org: "o1", body }).await?.ok);
        }
        let denied = limiter.limit(call()).await?;
        assert_eq!(denied.denied_by(), ["per_user"]);
        limiter.close().await;
        Ok(())
    })
    .await;
}
