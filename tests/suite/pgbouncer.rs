//! Behind pgbouncer 1.18 in transaction mode, one setting is sufficient, and without it nothing is over-admitted.
//!
//! `PG_LIMITER_TEST_POOLER=pgbouncer` runs more of the suite behind it: see docs/testing.md.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::queue::{Finish, Job, JobState, Queue, handler_fn};
use pg_limiter::sqlx::{self, PgPool, Row};
use pg_limiter::{
    Connections, Error, Isolation, Item, Limit, Limiter, LimiterConfig, Limits, TransactionLimiter, migrate,
};

use crate::queue::quick;
use crate::support::gate::CENTURY;
use crate::support::pooler::{Pooler, Settings};
use crate::support::scheduled;
use crate::support::{Database, Events, watch};

fn limits() -> Limits {
    // Nothing flows in while a test runs.
    Limits::new()
        .define("a", Limit::token_bucket(1e-6, CENTURY).capacity(100))
        .and_then(|limits| limits.define("b", Limit::token_bucket(1e-6, CENTURY).capacity(150).max_reserved(5)))
        .and_then(|limits| limits.define("w", Limit::sliding_window(120, CENTURY)))
        .expect("limits")
}

fn unnamed() -> LimiterConfig {
    let mut config = LimiterConfig::default();
    config.named_statements = false;
    config
}

/// A database and its own pooler, apart from the one that the suite may run behind: `pool` and `url` lead to the server.
struct PoolerFixture {
    database: Database,
    pooler: Pooler,
}

impl PoolerFixture {
    async fn new(size: u32, settings: Settings) -> Self {
        let database = Database::migrated().await;
        let pooler = Pooler::start(&database.url, size, settings);
        Self { database, pooler }
    }

    async fn pool(&self, connections: u32) -> PgPool {
        Database::pool(&self.pooler.url(&self.database.url), connections).await
    }

    async fn limiter(&self, config: LimiterConfig) -> Limiter {
        Limiter::with_config(self.pool(8).await, limits(), config)
    }

    /// The state that the session behind the pooler keeps for the next client. Requires a pooler with one connection.
    async fn left_behind(&self) -> Vec<(String, String)> {
        let sql = "SELECT 'statement', name || ': ' || statement FROM pg_prepared_statements \
                   UNION ALL SELECT 'channel', pg_listening_channels() \
                   UNION ALL SELECT 'lock', objid::text FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
                   WHERE locktype = 'advisory' AND datname = current_database() \
                   UNION ALL SELECT 'temporary table', relname::text FROM pg_class WHERE relpersistence = 't' \
                   UNION ALL SELECT 'setting', name || '=' || setting FROM pg_settings \
                   WHERE source = 'session' AND name NOT IN ('client_encoding', 'TimeZone', 'DateStyle', 'application_name')";
        let rows = sqlx::raw_sql(sql).fetch_all(&self.pool(1).await).await.expect("what is there");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }
}

async fn is_allowed(limiter: &Limiter, nth: usize) -> (bool, bool) {
    // With another limit, alone, and in the caller's transaction.
    let both = [Item::new("a", "k"), Item::new("b", "k")];
    let allowed = match nth % 3 {
        0 => limiter.limit(both).await.expect("a decision").is_allowed(),
        1 => limiter.limit(("a", "k")).await.expect("a decision").is_allowed(),
        _ => loop {
            let mut tx = limiter.pool().begin().await.expect("begin");
            match limiter.within(&mut tx).limit(("a", "k")).await {
                Ok(decision) => {
                    tx.commit().await.expect("commit");
                    break decision.is_allowed();
                }
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        },
    };
    (allowed, nth.is_multiple_of(3))
}

/// Handles with pools of their own ask for more than the capacity.
async fn assert_exact(limiters: &[Limiter]) {
    let tasks = (0..400).map(|nth| {
        let limiter = limiters[nth % limiters.len()].clone();
        tokio::spawn(async move { is_allowed(&limiter, nth).await })
    });
    let answers: Vec<(bool, bool)> = join_all(tasks).await.into_iter().map(|task| task.expect("a task")).collect();
    assert_eq!(answers.iter().filter(|(allowed, _)| *allowed).count(), 100);
    let of_b = answers.iter().filter(|answer| **answer == (true, true)).count();
    let left = limiters[0].peek([Item::new("a", "k"), Item::new("b", "k")]).await.expect("balances");
    assert!(left[0].abs() < 1e-6, "{}", left[0]);
    assert!((left[1] - (150.0 - of_b as f64)).abs() < 1e-6, "{} with {of_b} taken", left[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs pgbouncer: run tests/pooler"]
async fn unnamed_statements_are_exact_over_shared_connections() {
    let fixture = PoolerFixture::new(3, Settings::Refused).await;
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        let config = || {
            let mut config = unnamed();
            config.isolation = isolation;
            config
        };
        let limiters =
            [fixture.limiter(config()).await, fixture.limiter(config()).await, fixture.limiter(config()).await];
        assert_exact(&limiters).await;
        limiters[0].reset_all_keys("a").await.expect("reset");
        limiters[0].reset(("b", "k")).await.expect("reset");
    }
}

/// The control test: this pooler does need the setting. It has one connection, so that two clients share it.
#[tokio::test]
#[ignore = "needs pgbouncer: run tests/pooler"]
async fn named_statements_of_two_clients_collide_with_an_error() {
    let fixture = PoolerFixture::new(1, Settings::Refused).await;
    let config = || {
        let mut config = LimiterConfig::default();
        config.connections = Connections::Pool;
        config
    };
    let (first, second) = (fixture.limiter(config()).await, fixture.limiter(config()).await);
    assert!(first.limit(("a", "k")).await.expect("a decision").is_allowed());
    let error = second.limit(("a", "k")).await.expect_err("its statement has the name of another");
    assert!(matches!(error, Error::Pooler { .. }), "{error}");
    assert!(error.to_string().contains("already exists") && error.to_string().contains("named_statements"), "{error}");
    // The failed call has taken nothing.
    let directly = Limiter::new(fixture.database.pool.clone(), limits());
    let left = directly.peek(("a", "k")).await.expect("a balance").remaining();
    assert!((left - 99.0).abs() < 1e-6, "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs pgbouncer: run tests/pooler"]
async fn every_operation_works_and_leaves_nothing_in_a_session() {
    let fixture = PoolerFixture::new(1, Settings::Refused).await;
    let limiter = fixture.limiter(unnamed()).await;
    let pool = limiter.pool();
    // `migrate` also works over the pooler, and finds that there is nothing to do.
    assert_eq!(migrate::migrate(pool).await.expect("migrate").applied, [""; 0]);
    assert_eq!(
        migrate::migrate_on(&mut pool.acquire().await.expect("a connection")).await.expect("migrate").applied,
        [""; 0]
    );

    assert!(limiter.check(("a", "k", 100)).await.expect("a decision").is_allowed());
    assert!(
        limiter
            .limit([Item::new("a", "k").count(60), Item::new("w", "k").count(60)])
            .await
            .expect("a decision")
            .is_allowed()
    );
    assert!(limiter.limit([Item::new("a", "k").count(60), Item::new("w", "k")]).await.expect("a decision").is_denied());
    let balances = limiter.peek([Item::new("a", "k"), Item::new("w", "k")]).await.expect("balances");
    assert!((balances[0] - 40.0).abs() < 1e-6 && (balances[1] - 60.0).abs() < 1e-6, "{balances:?}");
    let _ = limiter.charge(("a", "k", 50)).await.expect("a balance");
    let _ = limiter.credit(("a", "k", 20)).await.expect("a balance");
    assert!((limiter.peek(("a", "k")).await.expect("a balance").remaining() - 10.0).abs() < 1e-6);
    let reserved = limiter.limit(Item::new("b", "k").count(152).reserve()).await.expect("a decision");
    assert!(reserved.wait().is_some() || !reserved.is_denied(), "{reserved:?}");

    let rate_limits = TransactionLimiter::new(limits()).with_unnamed_statements();
    let mut tx = pool.begin().await.expect("begin");
    assert!(rate_limits.within(&mut tx).limit(("a", "rolled back")).await.expect("a decision").is_allowed());
    tx.rollback().await.expect("rollback");
    let work = limiter.clone();
    let taken = limiter.transaction(async move |tx| {
        let decision = work.within(tx).limit(("a", "unit", 7)).await?;
        sqlx::query("INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) VALUES ('idle', 'k', 0, 0, 0)")
            .persistent(false)
            .execute(&mut *tx)
            .await
            .map_err(|source| Error::Database { source })?;
        Ok::<_, Error>(decision.is_allowed())
    });
    assert!(taken.await.expect("a unit of work"));
    assert!((limiter.peek(("a", "unit")).await.expect("a balance").remaining() - 93.0).abs() < 1e-6);
    assert_eq!(limiter.prune().await.expect("pruned"), 1);

    limiter.reset(("w", "k")).await.expect("reset");
    assert_eq!(limiter.reset_all_keys("a").await.expect("reset"), 2);
    assert_eq!(limiter.peek(("a", "k")).await.expect("a balance").remaining(), 100.0);

    assert_eq!(fixture.left_behind().await, [] as [(String, String); 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs pgbouncer: run tests/pooler"]
async fn a_queue_and_its_worker_need_no_session() {
    let fixture = PoolerFixture::new(1, Settings::Refused).await;
    // Handlers get as many connections as the pooler has: one.
    let limiter = fixture.limiter(unnamed()).await;
    let queue = Queue::new(&limiter, "q").expect("a queue");
    fixture.database.execute("CREATE TABLE effects (job bigint PRIMARY KEY)").await;
    let mut tx = limiter.pool().begin().await.expect("begin");
    let _ =
        scheduled(&queue.within(&mut tx).enqueue(Job::new(("a", "g"), &0).expect("a job")).await.expect("an answer"));
    tx.commit().await.expect("commit");
    let jobs = (1..20).map(|nth| Job::new(("a", "g"), &nth).expect("a job"));
    for enqueued in queue.enqueue_all(jobs).await.expect("answers") {
        let _ = scheduled(&enqueued);
    }
    let gone = scheduled(&queue.enqueue(Job::new(("b", "g", 50), &20).expect("a job")).await.expect("an answer"));
    assert_eq!(queue.cancel(gone.id).await.expect("a state"), JobState::Scheduled);

    let handler = handler_fn(|job, tx| {
        Box::pin(async move {
            let sql = "INSERT INTO effects (job) VALUES ($1)";
            sqlx::query(sql).persistent(false).bind(job.id).execute(&mut *tx).await?;
            // Some fail once, after they have written.
            if job.attempt == 1 && job.id % 5 == 0 { Err("once more".into()) } else { Ok(Finish::Done) }
        })
    });
    let mut config = quick();
    config.concurrency = 2;
    assert!(config.listen, "the default; the limiter does not listen behind a pooler");
    let worker = queue.worker(config, handler).expect("a worker");
    let counting = fixture.database.pool.clone();
    let stop = async move {
        let sql = "SELECT count(*) FROM rate_limit.jobs WHERE state = 'done'";
        while sqlx::query_scalar::<_, i64>(sql).fetch_one(&counting).await.expect("a count") < 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let report = tokio::time::timeout(Duration::from_secs(60), worker.run(stop)).await.expect("in time");
    assert_eq!(report.expect("a report").done, 20);
    let sql = "SELECT count(*) FROM effects";
    let effects: i64 = sqlx::query_scalar(sql).fetch_one(&fixture.database.pool).await.expect("a count");
    assert_eq!(effects, 20);
    assert_eq!(queue.group_counts().await.expect("counts").len(), 1);
    assert_eq!(queue.prune(Duration::ZERO).await.expect("pruned"), 21);
    assert_eq!(fixture.left_behind().await, [] as [(String, String); 0]);
}

/// By default, the limiter asks for its own sessions. It notices both poolers that refuse them and poolers that ignore the
/// request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs pgbouncer: run tests/pooler"]
async fn a_pooler_that_rejects_or_ignores_settings_is_noticed() {
    for (settings, isolation) in [
        (Settings::Refused, Isolation::Serializable),
        (Settings::Ignored, Isolation::Serializable),
        // The server's default.
        (Settings::Ignored, Isolation::ReadCommitted),
    ] {
        let fixture = PoolerFixture::new(3, settings).await;
        let config = || {
            let mut config = LimiterConfig::default();
            config.isolation = isolation;
            config
        };
        let limiters =
            [fixture.limiter(config()).await, fixture.limiter(config()).await, fixture.limiter(config()).await];
        // The first call of each limiter notices it.
        for limiter in &limiters {
            assert_eq!(limiter.peek(("a", "k")).await.expect("a balance").remaining(), 100.0);
        }
        assert_exact(&limiters).await;
        // Statements in the caller's transactions have no names either.
        let kept = "SELECT count(*) FROM pg_prepared_statements";
        let kept = sqlx::raw_sql(kept).fetch_one(&fixture.pool(1).await).await.expect("a count").get::<i64, _>(0);
        assert_eq!(kept, 0, "{settings:?}, {isolation:?}");
    }
}

/// A pooler in transaction mode accepts LISTEN, but no notification arrives, and it stays behind in a session that others
/// share. So a worker first makes sure that the session is its own. (The pooler of this test is in session mode, where
/// everything else works without a pooler setting.)
#[tokio::test]
#[ignore = "needs pgbouncer: run tests/pooler"]
async fn a_worker_listens_only_in_its_own_session() {
    let database = Database::migrated().await;
    let pooler = Pooler::start_in("session", &database.url, 8, Settings::Ignored);
    let events = Events::default();
    let _traced = watch(events.clone());
    for (url, listens) in [(pooler.url(&database.url), false), (database.url.clone(), true)] {
        let queue = Queue::new(&Limiter::new(Database::pool(&url, 4).await, limits()), "q").expect("a queue");
        let mut config = quick();
        config.concurrency = 1;
        let worker = queue.worker(config, handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))).expect("a worker");
        let (events, pool) = (events.clone(), database.pool.clone());
        let stop = async move {
            let listening =
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()";
            loop {
                let refused = events.told().contains("cannot listen");
                let sessions: i64 = sqlx::query_scalar(listening).fetch_one(&pool).await.expect("a count");
                assert!(listens || sessions == 0, "{url}");
                if if listens { sessions == 1 } else { refused } {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), worker.run(stop)).await.expect("in time").expect("a report");
    }
}
