//! Jobs that no worker can start: they are reported, do not slow down claims, and start once a worker defines their limit.

use std::time::Duration;

use pg_limiter::queue::{Finish, Handler, Job, JobState, Queue, RunningJob, handler_fn};
use pg_limiter::sqlx::{PgConnection, PgPool};
use pg_limiter::{Item, Limit, Limits};
use tracing::Level;

use crate::queue::{in_state, queue_with, quick, until_in_state};
use crate::queue_contended::{claim, make_due};
use crate::queue_log::Log;
use crate::support::{Database, scheduled, sqlx, watch};

const SECOND: Duration = Duration::from_secs(1);

/// For tens of thousands of jobs on a busy machine.
const BOUND: Duration = Duration::from_secs(600);

fn limits() -> Limits {
    Limits::new()
        .define("fast", Limit::token_bucket(1_000_000, SECOND))
        .and_then(|limits| limits.define("gone", Limit::token_bucket(1_000_000, SECOND)))
        .and_then(|limits| limits.define("other", Limit::token_bucket(1_000_000, SECOND)))
        .and_then(|limits| limits.define("slots", Limit::concurrency(100).lease(Duration::from_secs(3600))))
        .expect("limits")
}

/// Lacks two limits, and has two of another kind.
fn fewer() -> Limits {
    Limits::new()
        .define("fast", Limit::token_bucket(1_000_000, SECOND))
        .and_then(|limits| limits.define("other", Limit::sliding_window(1_000_000, SECOND)))
        .and_then(|limits| limits.define("slots", Limit::token_bucket(100, SECOND)))
        .expect("limits")
}

fn done() -> impl Handler {
    handler_fn(|_: &RunningJob, _: &mut PgConnection| Box::pin(async { Ok(Finish::Done) }))
}

async fn enqueue(queue: &Queue, call: impl Into<pg_limiter::Call>, group: &str) -> i64 {
    let job = Job::new(call, &1).expect("a job").group(group);
    scheduled(&queue.enqueue(job).await.expect("an answer")).id
}

async fn number(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.expect(sql)
}

/// Runs a worker until the query returns this number.
async fn work_until(queue: &Queue, database: &Database, sql: &'static str, wanted: i64) {
    let mut config = quick();
    config.poll = Duration::from_millis(50);
    let worker = queue.worker(config, done()).expect("a worker");
    let pool = database.pool.clone();
    let reached = async move {
        while number(&pool, sql).await != wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(BOUND, worker.run(reached)).await.expect("in time").expect("a report");
}

/// Workers of two releases run for a while, and the older one does not know a limit. It hides no job of a group that a claim has
/// locked. If it has hidden older jobs of a group since a claim began, the claim starts no newer ones.
#[tokio::test]
async fn hidden_jobs_are_overtaken_by_no_job_that_the_same_worker_can_start() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(enqueue(&queue, ("fast", "k"), "g").await);
    }
    make_due(&database).await;
    let (old, new) = (("other", 1e6, SECOND, 1e6), ("fast", 1e6, SECOND, 1e6));
    database.execute("INSERT INTO rate_limit.groups (queue, key) VALUES ('q', 'g')").await;
    let mut claiming = database.pool.begin().await.expect("begin");
    let lock = "SELECT FROM rate_limit.groups WHERE key = 'g' FOR NO KEY UPDATE";
    sqlx::query(lock).execute(&mut *claiming).await.expect(lock);
    assert_eq!(claim(&database.pool, 9, 0, old).await, []);
    assert_eq!(number(&database.pool, BLOCKED).await, 0);
    claiming.rollback().await.expect("rollback");
    database.execute("DELETE FROM rate_limit.groups").await;
    assert_eq!(claim(&database.pool, 9, 0, old).await, []);
    assert_eq!(number(&database.pool, BLOCKED).await, 3);

    database.execute(&format!("UPDATE rate_limit.jobs SET blocked_by = NULL WHERE id <> {}", ids[0])).await;
    let due = "SELECT coalesce(cardinality(due_ids), 0)::bigint \
               FROM rate_limit._lock_due('q', 9, rate_limit._clock(), '{fast}', '{}')";
    assert_eq!(number(&database.pool, due).await, 0);
    // A claim looks for them first, and does nothing else.
    assert_eq!(claim(&database.pool, 9, 0, new).await, []);
    let started = claim(&database.pool, 9, 0, new).await;
    assert_eq!(started.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), ids);
}

const BLOCKED: &str = "SELECT count(*) FROM rate_limit.jobs WHERE blocked_by IS NOT NULL";
const DONE: &str = "SELECT count(*) FROM rate_limit.jobs WHERE state = 'done'";

#[tokio::test]
async fn jobs_that_no_worker_can_start_are_reported_and_start_once_one_can() {
    let database = Database::migrated().await;
    let log = Log::default();
    let _watched = watch(log.clone());
    let queue = queue_with(&database, limits()).await;
    let gone = enqueue(&queue, ("gone", "k"), "a").await;
    let both = enqueue(&queue, [Item::new("fast", "k"), Item::new("other", "k")], "b").await;
    let slots = enqueue(&queue, ("slots", "k"), "c").await;
    let again = enqueue(&queue, ("gone", "k"), "a").await;
    let available = enqueue(&queue, ("gone", "k"), "line").await;
    database
        .execute(&format!(
            "UPDATE rate_limit.jobs SET state = 'available' WHERE id = {available};
             INSERT INTO rate_limit.groups (queue, key, has_line, not_before) VALUES ('q', 'line', true, rate_limit._clock())"
        ))
        .await;
    enqueue(&queue, ("fast", "k"), "a").await;
    queue.limiter().replace_limits(fewer());
    // Shortly after their time, another worker may still start them.
    work_until(&queue, &database, DONE, 1).await;
    assert_eq!(number(&database.pool, BLOCKED).await, 0);
    database.execute("UPDATE rate_limit.jobs SET run_at = run_at - 11000000").await;
    database.execute("UPDATE rate_limit.groups SET not_before = 0").await;
    work_until(&queue, &database, BLOCKED, 5).await;
    for (id, limit) in [(gone, "gone"), (both, "other"), (slots, "slots"), (again, "gone"), (available, "gone")] {
        let job = queue.job(id).await.expect("an answer").expect("a job");
        assert_eq!((job.state, job.blocked_by.as_deref()), (JobState::Scheduled, Some(limit)));
    }
    let groups = queue.group_counts().await.expect("counts");
    let groups: Vec<_> = groups.iter().map(|group| (&*group.group, group.blocked)).collect();
    assert_eq!(groups, [("a", 2), ("b", 1), ("c", 1), ("line", 1)]);
    let mut reported: Vec<String> = log.warnings_with("limit");
    reported.sort_unstable();
    assert_eq!(reported, ["gone", "other", "slots"], "once each: {:?}", Level::WARN);

    // A job that is cancelled and requeued is no longer blocked. A worker with the limits starts all of them in order.
    queue.limiter().replace_limits(limits());
    queue.cancel(again).await.expect("an answer");
    queue.requeue(again).await.expect("an answer").expect("a time");
    assert_eq!(queue.job(again).await.expect("an answer").expect("a job").blocked_by, None);
    work_until(&queue, &database, DONE, 6).await;
    let order = "SELECT count(*) FROM rate_limit.jobs AS a JOIN rate_limit.jobs AS b USING (key) \
                 WHERE a.id < b.id AND a.started_at > b.started_at AND b.limit_names = a.limit_names";
    assert_eq!((number(&database.pool, order).await, number(&database.pool, BLOCKED).await), (0, 0));
}

/// The claim reads none of these jobs again once they are blocked.
#[tokio::test]
async fn claims_do_not_read_many_jobs_that_cannot_start() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let far = "INSERT INTO rate_limit.jobs (queue, key, priority, run_at, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at)
               SELECT 'q', 'g' || n % 100, n % 2, rate_limit._clock() - 60000000 + n, '1', ARRAY['gone'], ARRAY['k'], ARRAY[1], 10, 0
               FROM generate_series(1, 30000) AS n";
    database.execute(far).await;
    queue.limiter().replace_limits(fewer());
    work_until(&queue, &database, BLOCKED, 30_000).await;
    enqueue(&queue, ("fast", "k"), "g1").await;
    work_until(&queue, &database, DONE, 1).await;
    let claim = "SELECT count(*) FROM rate_limit._claim('q', 'w', 8, 5000, 30000000, 1000000, ARRAY['fast'], \
                 ARRAY['token_bucket'], ARRAY[1000]::double precision[], ARRAY[1000000], NULL, NULL)";
    let read = "SELECT r.c::regclass::text, (pg_stat_get_xact_tuples_fetched(r.c) + pg_stat_get_xact_tuples_returned(r.c))::bigint \
                FROM (SELECT 'rate_limit.jobs'::regclass::oid AS c UNION ALL SELECT indexrelid FROM pg_index \
                      WHERE indrelid = 'rate_limit.jobs'::regclass) AS r";
    let mut reads = i64::MAX;
    for _ in 0..200 {
        // As autovacuum does after so many updates. While a session still sees the old rows, it leaves them.
        database.execute("VACUUM rate_limit.jobs").await;
        let mut tx = database.pool.begin().await.expect("begin");
        sqlx::query("SET LOCAL transaction_isolation = 'read committed'").execute(&mut *tx).await.expect("a level");
        let before: Vec<(String, i64)> = sqlx::query_as(read).fetch_all(&mut *tx).await.expect("numbers");
        let _: i64 = sqlx::query_scalar(claim).fetch_one(&mut *tx).await.expect("a claim");
        let after: Vec<(String, i64)> = sqlx::query_as(read).fetch_all(&mut *tx).await.expect("numbers");
        tx.rollback().await.expect("rollback");
        let sum = |read: &[(String, i64)]| read.iter().map(|(_, rows)| rows).sum::<i64>();
        reads = sum(&after) - sum(&before);
        if reads < 1000 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(reads < 1000, "a claim reads {reads} rows");

    queue.limiter().replace_limits(limits());
    let worker = queue.worker(quick(), done()).expect("a worker");
    let watched = queue.clone();
    let stop = async move { until_in_state(&watched, JobState::Done, 100).await };
    tokio::time::timeout(BOUND, worker.run(stop)).await.expect("in time").expect("a report");
    assert!(in_state(&queue, JobState::Done).await >= 100);
    assert_eq!(number(&database.pool, BLOCKED).await, 0, "all are found again before any starts");
}
