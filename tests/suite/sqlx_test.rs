//! When a test ends, `#[sqlx::test]` closes its pool and then drops its database without FORCE, even if a limiter is still
//! alive, for example in a server that the test has started. These tests repeat the steps of sqlx 0.9
//! (`sqlx-core/src/testing`, `sqlx-postgres/src/testing`), because the macro takes its server from the environment of the
//! process, which they cannot set.

use std::time::Duration;

use pg_limiter::queue::{Finish, Queue, WorkerConfig, handler_fn};
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, PgPool};
use pg_limiter::{Connections, Error, Limit, Limiter, LimiterConfig, Limits};

use crate::support::Database;

struct Test {
    /// The database from which the test's database is created and dropped.
    database: Database,
    name: String,
    pool: PgPool,
}

impl Test {
    async fn begin(nth: u32) -> Self {
        let database = Database::empty().await;
        let name = format!("{}_sqlx_test_{nth}", database.name);
        database.execute(&format!("CREATE DATABASE {name}")).await;
        let url = database.url.replace(&database.name, &name);
        let options = PgPoolOptions::new().max_connections(5).idle_timeout(Some(Duration::from_secs(1)));
        let pool = options.connect(&url).await.expect("connect");
        pg_limiter::migrate::migrate(&pool).await.expect("migrate");
        Self { database, name, pool }
    }

    async fn end(self) -> Result<(), sqlx::Error> {
        tokio::time::timeout(Duration::from_secs(10), self.pool.close()).await.expect("the pool is closed");
        let mut master = PgConnection::connect(&self.database.url).await?;
        sqlx::query(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {}", self.name))).execute(&mut master).await?;
        master.close().await
    }
}

fn limits() -> Limits {
    let minute = Duration::from_secs(60);
    Limits::new().define("a", Limit::token_bucket(1000, minute)).expect("a limit")
}

#[tokio::test]
async fn the_connections_of_a_live_limiter_are_closed_with_its_pool() {
    let mut configs = vec![LimiterConfig::default(); 2];
    configs[1].connections = Connections::Pool;
    for (nth, config) in (0..).zip(configs) {
        let test = Test::begin(nth).await;
        let limiter = Limiter::with_config(test.pool.clone(), limits(), config);
        for key in 0..10 {
            assert!(limiter.limit(("a", format!("k{key}"))).await.expect("a decision").is_allowed());
        }
        test.end().await.expect("its database is dropped");
        assert!(matches!(limiter.limit(("a", "k")).await, Err(Error::Closed)));
    }
}

/// A call that waits for a row has a connection beside the lanes. It gets its answer, and then this connection is also closed.
#[tokio::test]
async fn connections_beside_the_lanes_are_closed_with_the_pool() {
    let test = Test::begin(2).await;
    let limiter = Limiter::new(test.pool.clone(), limits());
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    let mut holder = test.pool.begin().await.expect("a transaction");
    assert!(limiter.within(&mut holder).limit(("a", "k")).await.expect("a decision").is_allowed());
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.limit(("a", "k")).await }
    });
    let backends = || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'";
        sqlx::query_scalar::<_, i64>(sql).bind(&test.name).fetch_one(&test.database.pool).await.expect("the activity")
    };
    // Longer than a lane waits for a lock; then the call goes on beside the lane.
    tokio::time::sleep(Duration::from_millis(200)).await;
    while backends().await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    holder.commit().await.expect("commit");
    assert!(waiting.await.expect("the task").expect("a decision").is_allowed());
    test.end().await.expect("its database is dropped");
    drop(limiter);
}

/// A dropped handle leaves no connection open, even if its pool lives on.
#[tokio::test]
async fn a_dropped_limiter_closes_its_connections() {
    let test = Test::begin(3).await;
    for _ in 0..3 {
        let limiter = Limiter::new(test.pool.clone(), limits());
        assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    }
    test.end().await.expect("its database is dropped");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_listens_ends_with_the_pool() {
    let test = Test::begin(7).await;
    let limiter = Limiter::new(test.pool.clone(), limits());
    let watch = limiter.follow_stored_limits().expect("no stored limits");
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let mut config = WorkerConfig::default();
    (config.concurrency, config.poll) = (2, Duration::from_secs(600));
    let worker = queue.worker(config, handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))).expect("a worker");
    let working = tokio::spawn(worker.run(std::future::pending()));
    let listening = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND query LIKE 'LISTEN%'";
    for _ in 0..600 {
        let found = sqlx::query_scalar::<_, i64>(listening).bind(&test.name).fetch_one(&test.database.pool).await;
        if found.expect("a count") == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    test.end().await.expect("its database is dropped");
    let ended = tokio::time::timeout(Duration::from_secs(60), working).await.expect("in time").expect("a task");
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    drop(watch);
}
