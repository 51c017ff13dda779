//! A statement of a function is planned a few times in a session, and then its plan is kept. PostgreSQL plans it again in each call,
//! which takes longer than to run it, if its plan for the values at hand seems much cheaper than the one for any values: with an
//! array of one element, a time in the past, the name of a rare queue. So statements hide such values from the planner in a
//! sub-select.

use std::time::Duration;

use pg_limiter::queue::{Finish, Job, JobState, Queue, QueueConfig, WorkerConfig, handler_fn};
use pg_limiter::sqlx::pool::PoolConnection;
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::sqlx::{self, PgPool, Postgres};
use pg_limiter::{Item, Limit, Limiter, Limits};

use crate::queue::until_in_state;
use crate::statistics::OwnServer;

const SECOND: Duration = Duration::from_secs(1);
/// As many calls as show whether a statement is planned in each.
const CALLS: u64 = 100;
/// Few: each plans a statement five times before it keeps a plan.
const SESSIONS: u32 = 5;

fn limits() -> Limits {
    Limits::new()
        .define("wide", Limit::token_bucket(1_000_000, SECOND))
        .and_then(|limits| limits.define("narrow", Limit::token_bucket(20, SECOND).capacity(1)))
        .and_then(|limits| limits.define("hour", Limit::token_bucket(1, SECOND * 3600)))
        .and_then(|limits| limits.define("window", Limit::sliding_window(1_000_000, SECOND)))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(1_000_000, SECOND).shards(4)))
        .and_then(|limits| limits.define("slots", Limit::concurrency(1)))
        .expect("limits")
}

fn job(limit: &'static str, group: &str) -> Job {
    Job::new(Item::new(limit, group), &1).expect("a job").group(group)
}

/// Most jobs of the table are of this queue, and wait for long.
async fn fill(limiter: &Limiter) {
    let large = Queue::new(limiter, "large").expect("a queue");
    for group in 0..100 {
        let group = format!("g{group}");
        let jobs = (0..20).map(|_| job("hour", &group));
        large.enqueue_all(jobs).await.expect("answers").into_iter().for_each(|enqueued| drop(enqueued.enforce()));
    }
    for statement in ["ANALYZE rate_limit.jobs", "ANALYZE rate_limit.groups", "ANALYZE rate_limit.rate_limits"] {
        sqlx::query(statement).execute(limiter.pool()).await.expect(statement);
    }
}

/// Enqueues the jobs one by one, some in a transaction, while a worker runs them.
async fn work(queue: &Queue, pool: &PgPool, job: impl Fn(u64) -> Job + Sync) {
    let mut config = WorkerConfig::default();
    config.concurrency = 2;
    let worker = queue.worker(config, handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))).expect("a worker");
    let all_done = async {
        for nth in 0..CALLS {
            let enqueued = if nth % 2 == 0 {
                queue.enqueue(job(nth)).await.expect("an answer")
            } else {
                let mut tx = pool.begin().await.expect("begin");
                let enqueued = queue.within(&mut tx).enqueue(job(nth)).await.expect("an answer");
                tx.commit().await.expect("commit");
                enqueued
            };
            enqueued.enforce().expect("a ticket");
            tokio::time::sleep(Duration::from_millis(5)).await; // Most claims find one job.
        }
        until_in_state(queue, JobState::Done, CALLS.cast_signed()).await;
    };
    tokio::time::timeout(SECOND * 120, worker.run(all_done)).await.expect("in time").expect("a report");
}

async fn call(limiter: &Limiter, pool: &PgPool) {
    for nth in 0..CALLS {
        let key = format!("u{}", nth % 7);
        let key = key.as_str();
        for name in ["wide", "window", "sharded"] {
            let _ = limiter.limit((name, key)).await.expect("a decision");
            let _ = limiter.check((name, key)).await.expect("a decision");
            let _ = limiter.credit((name, key)).await.expect("balances");
        }
        let mut tx = pool.begin().await.expect("begin");
        let group = [Item::new("wide", key), Item::new("window", key), Item::new("sharded", key)];
        let _ = limiter.within(&mut tx).limit(group).await.expect("a decision");
        tx.commit().await.expect("commit");
        let lease = limiter.acquire(("slots", key)).await.expect("an answer").enforce().expect("a lease");
        lease.release().await.expect("released");
    }
}

async fn all_sessions(pool: &PgPool) -> Vec<PoolConnection<Postgres>> {
    let mut sessions = Vec::new();
    while sessions.len() < SESSIONS as usize {
        sessions.push(pool.acquire().await.expect("a session"));
    }
    sessions
}

/// Calls in SQL, without the library.
async fn sql_forms(pool: &PgPool) {
    let all = r#"'[{"name": "few", "key": "x", "kind": "token_bucket", "rate": 9, "period": "1 hour"},
                   {"name": "window", "key": "x", "kind": "sliding_window", "rate": 9, "period": "1 hour"}]'"#;
    let forms = [
        "limit_with('few', 'a', kind => 'token_bucket', rate => 9, period => '1 hour')".to_owned(),
        "check_with('few', 'b', kind => 'fixed_window', rate => 9, period => '1 hour')".to_owned(),
        "limit_with('shards', 'a', kind => 'token_bucket', rate => 9, period => '1 hour', shards => 4)".to_owned(),
        "acquire_with('slot', 'a', capacity => 1)".to_owned(),
        format!("limit_all_with({all})"),
        "limit('defined', 'a')".to_owned(),
        "reset('few', 'a')".to_owned(),
    ];
    let define = "SELECT rate_limit.define('defined', kind => 'token_bucket', rate => 9, period => '1 hour')";
    sqlx::query(define).execute(pool).await.expect(define);
    for mut session in all_sessions(pool).await {
        for form in &forms {
            let sql = format!("SELECT rate_limit.{form}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *session).await.expect(form);
        }
    }
}

/// PL/pgSQL compiles a function once for each collation of its arguments, and plans its statements each time. The functions of
/// frequent calls have one.
async fn compiled_once(pool: &PgPool) {
    let twice = "SELECT string_agg(f.ident, ', ') FROM (
          SELECT ident FROM pg_backend_memory_contexts WHERE name = 'PL/pgSQL function' GROUP BY ident HAVING count(*) > 1
        ) AS f";
    for mut session in all_sessions(pool).await {
        let twice: Option<String> = sqlx::query_scalar(twice).fetch_one(&mut *session).await.expect(twice);
        assert_eq!(twice, None);
    }
}

#[tokio::test]
async fn no_statement_is_planned_in_each_call() {
    let settings = [
        ("shared_preload_libraries", "pg_stat_statements"),
        ("pg_stat_statements.track", "all"),
        ("pg_stat_statements.track_planning", "on"), // Since PostgreSQL 13.
        ("track_functions", "all"),
        ("autovacuum", "off"), // An ANALYZE lets all plans be made again.
    ];
    let Some(server) = OwnServer::start(&settings).await else {
        return eprintln!("pg_stat_statements is not installed: nothing is tested");
    };
    let version: String =
        sqlx::query_scalar("SHOW server_version_num").fetch_one(&server.pool).await.expect("a version");
    if version.as_str() < "130000" {
        return eprintln!("PostgreSQL {version} does not count plans: nothing is tested");
    }
    let pool = PgPoolOptions::new().max_connections(SESSIONS).connect(&server.url).await.expect("connect");
    let limiter = Limiter::new(pool.clone(), limits());
    fill(&limiter).await;
    sqlx::raw_sql("CREATE EXTENSION pg_stat_statements").execute(&server.pool).await.expect("the extension");

    call(&limiter, &pool).await;
    let queue = Queue::new(&limiter, "one by one").expect("a queue");
    work(&queue, &pool, |nth| job("wide", &format!("w{nth}"))).await;
    let queue = Queue::new(&limiter, "in lines").expect("a queue");
    work(&queue, &pool, |nth| job("narrow", &format!("n{}", nth % 5))).await;
    let queue = Queue::new(&limiter, "with slots").expect("a queue");
    let with_slots = |nth: u64| {
        Job::new([Item::new("wide", "k"), Item::new("slots", "one")], &1).expect("a job").group(format!("s{}", nth % 5))
    };
    work(&queue, &pool, with_slots).await;
    let mut config = QueueConfig::default();
    config.turns = true;
    let queue = Queue::with_config(&limiter, "in turns", config).expect("a queue");
    work(&queue, &pool, |nth| Job::new(("narrow", "shared"), &1).expect("a job").group(format!("t{}", nth % 5))).await;

    sql_forms(&pool).await;
    if version.as_str() >= "140000" {
        compiled_once(&pool).await;
    }
    let seen = "SELECT count(*) FROM pg_stat_statements WHERE calls >= 60 AND query LIKE '%rate_limit.jobs%'";
    assert!(server.count(seen).await > 20);
    let planned =
        "SELECT string_agg(format('%s calls, %s plans, %s ms: %s', calls, plans, total_plan_time, query), E'\\n\\n')
                   FROM pg_stat_statements
                   WHERE calls >= 100 AND plans > calls / 2 AND query LIKE '%rate_limit.%'
                     AND query NOT LIKE 'SELECT count(*) FROM rate_limit.jobs %'"; // the test's own
    let planned: Option<String> = sqlx::query_scalar(planned).fetch_one(&server.pool).await.expect("the statements");
    assert_eq!(planned, None);
    // Inlined into each statement that calls it.
    assert_eq!(server.count("SELECT count(*) FROM pg_stat_user_functions WHERE funcname = '_last_time'").await, 0);
    assert!(server.count("SELECT count(*) FROM pg_stat_user_functions WHERE funcname LIKE '\\_enqueue%'").await > 0);
}

/// A pool gives its sessions by turns, so many calls are among the first of their session.
#[tokio::test]
async fn a_new_session_plans_enqueues_and_claims_once() {
    let settings = [
        ("shared_preload_libraries", "pg_stat_statements"),
        ("pg_stat_statements.track", "all"),
        ("pg_stat_statements.track_planning", "on"),
        ("autovacuum", "off"),
    ];
    let Some(server) = OwnServer::start(&settings).await else {
        return eprintln!("pg_stat_statements is not installed: nothing is tested");
    };
    let version: String =
        sqlx::query_scalar("SHOW server_version_num").fetch_one(&server.pool).await.expect("a version");
    if version.as_str() < "130000" {
        return eprintln!("PostgreSQL {version} does not count plans: nothing is tested");
    }
    fill(&Limiter::new(server.pool.clone(), limits())).await;
    sqlx::raw_sql("CREATE EXTENSION pg_stat_statements; SELECT pg_stat_statements_reset()")
        .execute(&server.pool)
        .await
        .expect("the extension");
    let pool = PgPoolOptions::new().max_connections(1).connect(&server.url).await.expect("connect");
    let queue = Queue::new(&Limiter::new(pool.clone(), limits()), "q").expect("a queue");
    for nth in 0..5 {
        queue.enqueue(job("wide", &format!("w{nth}"))).await.expect("an answer").enforce().expect("a ticket");
    }
    let claim = "SELECT count(*) FROM rate_limit._claim('q', 'w', 1, 0, 60000000, 1000000, '{wide}', '{token_bucket}', '{1000000}',
        '{1000000}', '{1000000}', '{NULL}', limit_shards => '{1}') WHERE job_id IS NOT NULL";
    let mut claimed = 0;
    for _ in 0..7 {
        claimed += sqlx::query_scalar::<_, i64>(claim).fetch_one(&pool).await.expect("a claim");
    }
    assert_eq!(claimed, 5);
    let seen = "SELECT count(*) FROM pg_stat_statements WHERE calls >= 4 AND query LIKE '%FROM rate_limit.jobs%'";
    assert!(server.count(seen).await > 5);
    let planned =
        "SELECT string_agg(format('%s calls, %s plans: %s', calls, plans, query), E'\\n\\n') FROM pg_stat_statements
        WHERE calls >= 4 AND plans > 1 AND (query LIKE '%rate_limit.jobs%' OR query LIKE '%rate_limit.groups%')";
    let planned: Option<String> = sqlx::query_scalar(planned).fetch_one(&server.pool).await.expect("the statements");
    assert_eq!(planned, None);
}
