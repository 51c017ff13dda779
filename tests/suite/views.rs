//! The views for psql: their columns, that they read by the primary key, and the roles that may read them.

use std::time::Duration;

use pg_limiter::queue::{Job, JobState, Queue};
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use pg_limiter::{Calendar, Limit, Limits};

use crate::support::gate::CENTURY;
use crate::support::other_role::OtherRole;
use crate::support::{Database, guide};

const HOUR: Duration = Duration::from_secs(3600);

fn limits() -> Limits {
    Limits::new()
        .define("bucket", Limit::token_bucket(10, CENTURY))
        .and_then(|limits| limits.define("fixed", Limit::fixed_window(10, CENTURY)))
        .and_then(|limits| limits.define("calendar", Limit::calendar(10, Calendar::years(1))))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(10, CENTURY)))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(100, CENTURY).shards(5)))
        .and_then(|limits| limits.define("reports", Limit::concurrency(10).lease(HOUR)))
        .and_then(|limits| limits.define("slow", Limit::token_bucket(1, CENTURY).capacity(2)))
        .expect("limits")
}

#[tokio::test]
async fn the_buckets_of_every_kind_are_readable() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    for name in ["bucket", "fixed", "calendar", "sliding", "sharded"] {
        assert!(limiter.limit((name, "k", 3)).await.expect(name).is_allowed(), "{name}");
    }
    let lease = limiter.acquire(("reports", "k", 3)).await.expect("an answer").into_lease().expect("slots");
    let sql = "SELECT name, shards, round(value)::integer, meaning,
            since <= clock_timestamp(), full_at > now()
        FROM rate_limit.buckets WHERE key = 'k' ORDER BY name";
    let found: Vec<(String, i32, i32, String, bool, bool)> =
        sqlx::query_as(sql).fetch_all(&database.pool).await.expect("the buckets");
    let expected = [
        ("bucket", 1, 7, "tokens left"),
        ("calendar", 1, 7, "tokens left"),
        ("fixed", 1, 7, "tokens left"),
        ("reports", 1, 3, "slots in use"),
        ("sharded", 5, 97, "tokens left"),
        ("sliding", 1, 3, "tokens taken"),
    ];
    let expected =
        expected.map(|(name, shards, value, meaning)| (name.to_owned(), shards, value, meaning.to_owned(), true, true));
    assert_eq!(found, expected);
    lease.release().await.expect("released");
}

/// The largest and smallest times that a row can have are shown, too.
#[tokio::test]
async fn extreme_times_are_readable() {
    let database = Database::migrated().await;
    database
        .execute(
            "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at)
             VALUES ('a', 'k', 1e100, -5364662400000000, 9223372036854775807), ('b', 'k', -1e100, 7258118400000000, 0)",
        )
        .await;
    let rows: Vec<(String, String)> =
        sqlx::query_as("SELECT since::text, full_at::text FROM rate_limit.buckets ORDER BY name")
            .fetch_all(&database.pool)
            .await
            .expect("the buckets");
    assert!(
        rows[0].0.starts_with("1800") && rows[0].1.starts_with("294247") && rows[1].0.starts_with("2200"),
        "{rows:?}"
    );
}

#[tokio::test]
async fn one_bucket_is_read_by_the_primary_key() {
    let database = Database::migrated().await;
    database
        .execute(
            "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT 'a', i::text, 1, 0, 0 FROM generate_series(1, 50000) AS i;
             ANALYZE rate_limit.rate_limits",
        )
        .await;
    let sql = "EXPLAIN SELECT * FROM rate_limit.buckets WHERE name = 'a' AND key = '77'";
    let plan: Vec<String> = sqlx::query_scalar(sql).fetch_all(&database.pool).await.expect("a plan");
    let plan = plan.join("\n");
    assert!(plan.contains("rate_limits_pkey") && !plan.contains("Seq Scan"), "{plan}");
}

#[tokio::test]
async fn the_groups_and_jobs_of_a_queue_are_readable() {
    let database = Database::migrated().await;
    let queue = Queue::new(&database.limiter(limits()), "mails").expect("a queue");
    for payload in ["secret1", "secret2", "secret3"] {
        let job = Job::new(("slow", "g"), &payload).expect("a job");
        let _ = queue.enqueue(job).await.expect("an answer");
    }
    let groups: Vec<(String, String, i64, i64, bool, Option<String>)> = sqlx::query_as(
        "SELECT queue, key, scheduled, available, next_start <= clock_timestamp(), waits_for_limit FROM rate_limit.queue_groups",
    )
    .fetch_all(&database.pool)
    .await
    .expect("the groups");
    assert_eq!(groups, [("mails".to_owned(), "g".to_owned(), 3, 0, true, None)]);
    let jobs = queue.jobs(None, 10).await.expect("jobs");
    let found: Vec<(i64, String, bool)> = sqlx::query_as(
        "SELECT id, state, run_at > clock_timestamp() + interval '90 years' FROM rate_limit.queue_jobs ORDER BY id",
    )
    .fetch_all(&database.pool)
    .await
    .expect("the jobs");
    assert_eq!(found.len(), jobs.len());
    assert!(found.iter().all(|(_, state, _)| state == JobState::Scheduled.as_str()), "{found:?}");
    assert_eq!(found.iter().filter(|(.., is_far)| *is_far).count(), 1, "{found:?}");
    let text: String = sqlx::query_scalar("SELECT string_agg(j::text, '') FROM rate_limit.queue_jobs AS j")
        .fetch_one(&database.pool)
        .await
        .expect("the jobs");
    assert!(text.contains("mails") && !text.contains("secret"), "{text}");
}

/// The guide's two grants let a role read the views, but not the tables, even if the host grants SELECT on new objects.
#[tokio::test]
async fn a_role_with_the_grants_of_the_guide_reads_the_views_only() {
    const VIEWS: [&str; 3] = ["buckets", "queue_groups", "queue_jobs"];
    let database = Database::empty().await;
    let role = OtherRole::new(&database).await;
    let name = &role.name;
    database
        .execute(&format!(
            "REVOKE ALL ON SCHEMA rate_limit, public FROM {name}; ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {name}"
        ))
        .await;
    pg_limiter::migrate::migrate(&database.pool).await.expect("migrate");
    let mut conn: PgConnection = role.connection().await;
    for relation in VIEWS.into_iter().chain(["rate_limits", "jobs"]) {
        let sql = format!("SELECT count(*) FROM rate_limit.{relation}");
        let error = sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await.expect_err(relation);
        assert!(error.to_string().contains("permission denied"), "{error}");
    }
    let grants = guide::sql_of(guide::chapter("sql"))
        .into_iter()
        .find(|block| block.contains("rate_limit.buckets, "))
        .expect("grants");
    assert_eq!(grants.matches("GRANT").count(), 2);
    database.execute(&grants.replace("app_role", name)).await;
    for view in VIEWS {
        sqlx::query(AssertSqlSafe(format!("SELECT * FROM rate_limit.{view}"))).execute(&mut conn).await.expect(view);
        let write = AssertSqlSafe(format!("DELETE FROM rate_limit.{view}"));
        sqlx::query(write).execute(&mut conn).await.expect_err(view);
    }
    let error = sqlx::query("SELECT * FROM rate_limit.rate_limits").execute(&mut conn).await.expect_err("a table");
    assert!(error.to_string().contains("permission denied"), "{error}");
    conn.close().await.expect("close");
    role.drop().await;
}
