//! The style in which the role or database writes intervals and dates changes no decision.

use std::time::Duration;

use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{self, AssertSqlSafe, PgPool};
use pg_limiter::{Calendar, Connections, Item, Limit, Limiter, LimiterConfig, Limits};

use crate::support::{Database, scheduled};

const HOUR: Duration = Duration::from_secs(3600);

/// Settings of a database that change how values are written and read as text.
const SETTINGS: [&str; 6] = [
    "intervalstyle = postgres",
    "intervalstyle = postgres_verbose",
    "intervalstyle = sql_standard",
    "intervalstyle = iso_8601",
    "datestyle = ''SQL, DMY''",
    "datestyle = ''German''",
];

/// A pool of sessions with this setting of the database.
async fn pool_with(database: &Database, setting: &str) -> PgPool {
    let set = format!("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET {setting}', current_database()); END $$");
    database.execute(&set).await;
    Database::pool(&database.url, 2).await
}

#[tokio::test]
async fn decisions_of_the_library_are_the_same_in_every_style() {
    for connections in [Connections::Own, Connections::Pool] {
        for setting in SETTINGS {
            let database = Database::migrated().await;
            let pool = pool_with(&database, setting).await;
            let limits = Limits::new()
                .define("bucket", Limit::token_bucket(1, 36 * HOUR))
                .and_then(|limits| {
                    limits.define("month", Limit::calendar(1, Calendar::years(100)).anchor("1999-12-31 09:30"))
                })
                .and_then(|limits| limits.define("slots", Limit::concurrency(1).lease(HOUR)))
                .and_then(|limits| limits.define("gate", Limit::gate()));
            let mut config = LimiterConfig::default();
            config.connections = connections;
            let limiter = Limiter::with_config(pool, limits.expect("limits"), config);
            let between = |wait: Duration, least: Duration, most: Duration| {
                assert!(wait > least && wait <= most, "{setting}: {wait:?}");
            };
            for (nth, [least, most]) in [("bucket", [35 * HOUR, 36 * HOUR]), ("month", [24 * HOUR, 24 * 36_526 * HOUR])]
            {
                assert!(limiter.limit((nth, "k")).await.expect("a decision").is_allowed());
                between(
                    limiter.limit((nth, "k")).await.expect("a decision").retry_after().expect("denied"),
                    least,
                    most,
                );
            }
            assert_eq!(limiter.block(("gate", "k"), 30 * HOUR).await.expect("blocked"), 30 * HOUR);
            between(
                limiter.is_blocked(("gate", "k")).await.expect("an answer").expect("blocked"),
                29 * HOUR,
                30 * HOUR,
            );
            let _lease = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a slot");
            let denied = limiter.limit([Item::new("gate", "k"), Item::new("bucket", "l")]).await.expect("a decision");
            between(denied.retry_after().expect("denied"), 29 * HOUR, 30 * HOUR);
            let queue = Queue::new(&limiter, "q").expect("a queue");
            for most in [Duration::ZERO, 36 * HOUR] {
                let enqueued = queue.enqueue(Job::new(("bucket", "job"), &1).expect("a job")).await.expect("an answer");
                let wait = scheduled(&enqueued).wait;
                assert!(wait <= most && wait + HOUR > most, "{setting}: {wait:?}");
            }
        }
    }
}

/// The seconds that SQL returns, and the texts that it raises.
#[tokio::test]
async fn calls_from_sql_are_the_same_in_every_style() {
    let database = Database::migrated().await;
    let mut seen: Vec<Vec<String>> = Vec::new();
    for setting in SETTINGS {
        let pool = pool_with(&database, setting).await;
        let mut answers = Vec::new();
        // A length of time in JSON is read alike.
        for length in [
            "90 minutes",
            "1h 30m",
            "1 day 02:00:00",
            "PT90S",
            "-1 day 02:00:00",
            "-1 day -2 hours",
            "-1h30m",
            " -1h 2s",
        ] {
            let sql = "SELECT extract(epoch FROM rate_limit._length($1))::text";
            answers.push(sqlx::query_scalar(sql).bind(length).fetch_one(&pool).await.expect(length));
        }
        let at = "at => timestamptz '2026-03-28 12:00:00Z'";
        for (name, call) in [
            ("bucket", format!("rate_limit.limit_with('bucket', $1, 'token_bucket', 1, '1 day 12 hours', {at})")),
            ("month", format!("rate_limit.limit_with('month', $1, 'calendar_window', 1, '1 month', {at})")),
            (
                "berlin",
                format!(
                    "rate_limit.limit_with('berlin', $1, 'calendar_window 1 day Europe/Berlin 2026-01-31T09:00:00', 1, '1 day', {at})"
                ),
            ),
        ] {
            let key = format!("{name} {}", seen.len());
            for _ in 0..2 {
                let sql = AssertSqlSafe(format!(
                    "SELECT ok || ' ' || coalesce(extract(epoch FROM retry_after)::text, '-') FROM {call}"
                ));
                answers.push(sqlx::query_scalar(sql).bind(&key).fetch_one(&pool).await.expect("a decision"));
            }
        }
        let enforce =
            format!("SELECT rate_limit.enforce_with('bucket', $1, 'token_bucket', 1, '1 day 12 hours', {at})::text");
        let key = format!("bucket {}", seen.len());
        let error = sqlx::query(AssertSqlSafe(enforce)).bind(key).execute(&pool).await.expect_err("denied");
        let error = error.into_database_error().expect("of the database");
        let error = error.downcast_ref::<sqlx::postgres::PgDatabaseError>();
        assert_eq!(error.detail(), Some("Retry after 129600.000000 seconds."));
        seen.push(answers);
    }
    assert!(seen.iter().all(|answers| *answers == seen[0]), "{seen:#?}");
}
