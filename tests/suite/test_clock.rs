//! The clock that users' tests advance: everything in its schema follows it, in all sessions, and nothing else does.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use pg_limiter::embedded::Server;
use pg_limiter::migrate::{Drift, Migrator, Use, migrate};
use pg_limiter::queue::{Finish, Job, JobState, Queue, handler_fn};
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, PgPool};
use pg_limiter::testing::{TestClock, TestClockError};
use pg_limiter::{Calendar, Call, DenialMemory, Item, Limit, Limiter, LimiterConfig, Limits, Schema};

use crate::queue::{quick, until_in_state};
use crate::support::other_role::OtherRole;
use crate::support::{Database, process, scheduled, server_config};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

fn limits() -> Limits {
    Limits::new()
        .define("bucket", Limit::token_bucket(1, HOUR))
        .and_then(|limits| limits.define("fixed", Limit::fixed_window(1, HOUR)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(1, HOUR)))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(100, HOUR).shards(4)))
        .and_then(|limits| limits.define("month", Limit::calendar(1, Calendar::months(1))))
        .and_then(|limits| limits.define("slots", Limit::concurrency(1).lease(HOUR)))
        .and_then(|limits| limits.define("gate", Limit::gate()))
        .expect("limits")
}

async fn is_allowed(limiter: &Limiter, name: &str) -> bool {
    limiter.limit((name, "k")).await.expect("a decision").is_allowed()
}

/// Takes the only token, and returns when there is one again.
async fn used_up(limiter: &Limiter, name: &str) -> Duration {
    assert!(is_allowed(limiter, name).await, "{name}");
    limiter.limit((name, "k")).await.expect("a decision").retry_after().unwrap_or_else(|| panic!("{name}: a denial"))
}

/// Sleeps in steps, so that a test that hangs fails.
async fn within_minutes<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(5 * MINUTE, future).await.expect("it is woken")
}

#[tokio::test]
async fn every_kind_of_limit_follows_the_clock() {
    let database = Database::migrated().await;
    // Its sessions have planned everything before the clock is replaced.
    let limiter = database.limiter(limits());
    for name in ["bucket", "fixed", "sliding", "sharded", "month"] {
        assert!(limiter.limit((name, "before")).await.expect("a decision").is_allowed());
    }
    let clock = database.test_clock().await;
    for name in ["bucket", "fixed", "sliding"] {
        let mut wait = used_up(&limiter, name).await;
        if wait <= MINUTE {
            clock.advance(2 * MINUTE).await.expect("advance"); // The window was about to end.
            wait = used_up(&limiter, name).await;
        }
        assert!(wait > MINUTE && wait <= 2 * HOUR, "{name}: {wait:?}");
        clock.advance(wait - MINUTE).await.expect("advance");
        assert!(!is_allowed(&limiter, name).await, "{name}: a minute too early");
        clock.advance(MINUTE).await.expect("advance");
        assert!(is_allowed(&limiter, name).await, "{name}");
        clock.advance(3 * HOUR).await.expect("advance");
    }
    let all = || limiter.limit(("sharded", "k", 100));
    for _ in 0..2 {
        assert!(all().await.expect("a decision").is_allowed());
        assert!(!all().await.expect("a decision").is_allowed());
        clock.advance(HOUR).await.expect("advance");
    }
    // In the caller's transaction, which has begun before.
    let mut tx = database.app.begin().await.expect("begin");
    assert!(limiter.within(&mut tx).limit(("bucket", "tx")).await.expect("a decision").is_allowed());
    assert!(!limiter.within(&mut tx).limit(("bucket", "tx")).await.expect("a decision").is_allowed());
    clock.advance(HOUR).await.expect("advance");
    assert!(limiter.within(&mut tx).limit(("bucket", "tx")).await.expect("a decision").is_allowed());
    tx.rollback().await.expect("roll back");
}

#[tokio::test]
async fn a_calendar_window_ends_with_the_month() {
    let database = Database::migrated().await;
    let (clock, limiter) = (database.test_clock().await, database.limiter(limits()));
    for _ in 0..3 {
        let wait = used_up(&limiter, "month").await;
        let until = Timestamp::try_from(clock.now().await.expect("the time") + wait).expect("a time");
        let until = until.to_zoned(jiff::tz::TimeZone::UTC);
        assert_eq!((until.day(), until.hour(), until.minute()), (1, 0, 0), "{until}");
        clock.advance(wait.saturating_sub(MINUTE)).await.expect("advance");
        assert!(!is_allowed(&limiter, "month").await);
        clock.advance(MINUTE).await.expect("advance");
    }
    assert!(is_allowed(&limiter, "month").await);
}

#[tokio::test]
async fn leases_and_blocks_end() {
    let database = Database::migrated().await;
    let (clock, limiter) = (database.test_clock().await, database.limiter(limits()));
    let lease = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a lease");
    clock.advance(59 * MINUTE).await.expect("advance");
    assert!(lease.ends_in() <= MINUTE, "{:?}", lease.ends_in());
    assert!(!limiter.acquire(("slots", "k")).await.expect("an answer").is_allowed());
    assert!(lease.renew().await.expect("an answer"));
    assert!(lease.ends_in() > 59 * MINUTE);
    clock.advance(59 * MINUTE).await.expect("advance");
    assert!(!limiter.acquire(("slots", "k")).await.expect("an answer").is_allowed());
    let lost = tokio::spawn(async move {
        lease.lost().await;
        lease
    });
    clock.advance(MINUTE).await.expect("advance");
    let lease = within_minutes(lost).await.expect("it was lost");
    assert_eq!(lease.ends_in(), Duration::ZERO);
    assert!(!lease.renew().await.expect("an answer"), "it has ended");
    // A pause that is longer than a lease ends it, even if it is kept renewed; a shorter one lets it be renewed.
    let lease = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a lease").keep_renewed();
    clock.advance(59 * MINUTE).await.expect("advance");
    within_minutes(async {
        while lease.ends_in() <= 2 * MINUTE {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    clock.advance(2 * HOUR).await.expect("advance");
    within_minutes(lease.lost()).await;
    assert!(limiter.acquire(("slots", "k")).await.expect("an answer").is_allowed());

    limiter.block(("gate", "k"), DAY).await.expect("block");
    clock.advance(DAY - MINUTE).await.expect("advance");
    assert!(!is_allowed(&limiter, "gate").await);
    clock.advance(MINUTE).await.expect("advance");
    assert!(is_allowed(&limiter, "gate").await);
}

/// Waits until there is a row with this property.
async fn until_row(database: &Database, property: &str) {
    let sql = format!("SELECT EXISTS (SELECT FROM rate_limit.rate_limits WHERE {property})");
    let exists = || sqlx::query_scalar::<_, bool>(AssertSqlSafe(sql.clone())).fetch_one(&database.pool);
    within_minutes(async { while !exists().await.expect("an answer") {} }).await;
}

#[tokio::test]
async fn an_advance_wakes_a_call_that_has_reserved() {
    let database = Database::migrated().await;
    let (clock, limiter) = (database.test_clock().await, database.limiter(limits()));
    assert!(is_allowed(&limiter, "bucket").await);
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.until_ready(("bucket", "k"), 2 * HOUR).await.expect("a decision") }
    });
    until_row(&database, "name = 'bucket' AND key = 'k' AND value < -0.5").await;
    let reserved = limiter.limit(Call::from(("bucket", "k")).reserve()).await.expect("a decision");
    assert!(reserved.wait().expect("a wait").abs_diff(2 * HOUR) < MINUTE, "behind the other");
    clock.advance(30 * MINUTE).await.expect("advance");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "half an hour is left");
    clock.advance(30 * MINUTE).await.expect("advance");
    assert!(within_minutes(waiting).await.expect("no panic").is_allowed());
}

/// Otherwise a block would not stop the calls that wait when it begins.
#[tokio::test]
async fn a_call_that_has_reserved_checks_its_gates_when_it_wakes() {
    let database = Database::migrated().await;
    let (clock, limiter) = (database.test_clock().await, database.limiter(limits()));
    assert!(is_allowed(&limiter, "bucket").await);
    let group = [Item::new("gate", "k"), Item::new("bucket", "k")];
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.until_ready(group, 80 * MINUTE).await.expect("a decision") }
    });
    until_row(&database, "name = 'bucket' AND key = 'k' AND value < -0.5").await;
    limiter.block(("gate", "k"), 90 * MINUTE).await.expect("a block");
    clock.advance(HOUR).await.expect("advance");
    let denied = within_minutes(waiting).await.expect("no panic");
    assert!(denied.denied_by().contains(&"gate"), "{denied:?}");
    // Its token stays spent.
    assert!(limiter.peek(("bucket", "k")).await.expect("a balance").remaining() < 0.5);
}

#[tokio::test]
async fn an_advance_wakes_a_line_of_calls() {
    let database = Database::migrated().await;
    let (clock, limiter) = (database.test_clock().await, database.limiter(limits()));
    assert!(is_allowed(&limiter, "sliding").await);
    let waits = |longest| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.until_ready(("sliding", "k"), longest).await.expect("a decision") })
    };
    let waiting = [waits(30 * HOUR), waits(30 * HOUR)];
    assert!(!within_minutes(waits(MINUTE)).await.expect("no panic").is_allowed(), "it is denied at once");
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    // A call that has not begun to wait yet waits for a later advance.
    within_minutes(async {
        while !waiting.iter().all(tokio::task::JoinHandle::is_finished) {
            clock.advance(10 * MINUTE).await.expect("advance");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    for waiting in waiting {
        assert!(waiting.await.expect("no panic").is_allowed());
    }
}

#[tokio::test]
async fn remembered_denials_expire_by_the_clock() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    let mut config = Database::config();
    let mut memory = DenialMemory::default();
    memory.max_age = DAY;
    config.remember_denials = Some(memory);
    let limiter = Limiter::with_config(database.app.clone(), limits(), config);
    used_up(&limiter, "bucket").await;
    clock.advance(30 * MINUTE).await.expect("advance");
    let wait = limiter.limit(("bucket", "k")).await.expect("a decision").retry_after().expect("a denial");
    assert!(wait <= 30 * MINUTE, "{wait:?}");
    clock.advance(30 * MINUTE).await.expect("advance");
    assert!(is_allowed(&limiter, "bucket").await);
}

#[tokio::test]
async fn a_worker_runs_a_job_of_tomorrow_after_an_advance() {
    let database = Database::migrated().await;
    let (clock, limiter) = (database.test_clock().await, database.limiter(limits()));
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let tomorrow = clock.now().await.expect("the time") + DAY;
    let job = Job::new(("bucket", "g"), &1).expect("a job").run_at(tomorrow);
    let ticket = scheduled(&queue.enqueue(job).await.expect("an answer"));
    assert_eq!(
        ticket.run_at.duration_since(tomorrow).map_err(|error| error.duration()).expect("later"),
        Duration::ZERO
    );
    let mut config = quick();
    config.poll = DAY; // Only an advance wakes it.
    let worker = queue.worker(config, handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))).expect("a worker");
    let stop = {
        let queue = queue.clone();
        async move { until_in_state(&queue, JobState::Done, 1).await }
    };
    let running = tokio::spawn(worker.run(stop));
    clock.advance(DAY - MINUTE).await.expect("advance");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!running.is_finished(), "a minute too early");
    clock.advance(MINUTE).await.expect("advance");
    assert_eq!(within_minutes(running).await.expect("a worker").expect("a report").done, 1);
}

/// An advance moves the database's clock first and that of the process a moment later. A claim in between gets a lease by the new
/// time, and the worker counts it from the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_advance_during_a_claim_loses_no_job() {
    let database = Database::migrated().await;
    let (clock, limiter) = (database.test_clock().await, database.limiter(limits()));
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let _ = queue.enqueue(Job::new(("bucket", "g"), &1).expect("a job")).await.expect("an answer");
    database
        .execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               -- Only a claim: other tasks of the worker write jobs, too.
               IF strpos(current_query(), '_claim(') > 0 THEN SET LOCAL lock_timeout = 0; PERFORM pg_advisory_xact_lock(1); END IF;
               RETURN NULL; END $$;
             CREATE TRIGGER wait AFTER UPDATE ON rate_limit.jobs EXECUTE PROCEDURE wait()",
        )
        .await;
    let mut holder = database.pool.begin().await.expect("begin");
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *holder).await.expect("a lock");
    let worker = queue.worker(quick(), handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))).expect("a worker");
    let running = tokio::spawn(worker.run({
        let queue = queue.clone();
        async move { until_in_state(&queue, JobState::Done, 1).await }
    }));
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = \
                   (SELECT oid FROM pg_database WHERE datname = current_database())";
    // Not any wait: the walk over changed limits and the claim may wait for each other for a moment.
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&database.pool).await.expect("a count") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    clock.advance(HOUR - MINUTE).await.expect("advance");
    database.execute("SELECT setval('rate_limit._test_clock', 1)").await; // As if only this process had advanced.
    holder.rollback().await.expect("rollback");
    let report = within_minutes(running).await.expect("a worker").expect("a report");
    assert_eq!((report.done, report.lost), (1, 0));
}

const URL: &str = "PG_LIMITER_TEST_CLOCK_URL";

/// Another process: a worker that sleeps until it is notified.
#[tokio::test]
async fn worker_of_another_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let limiter = Limiter::new(Database::pool(&url, 8).await, limits());
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let mut config = quick();
    config.poll = DAY;
    let worker = queue.worker(config, handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))).expect("a worker");
    worker.run(std::future::pending()).await.expect("it runs until it is killed");
}

#[tokio::test]
async fn all_processes_and_pools_see_one_clock() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    let others = Database::pool(&database.url, 2).await;
    let same = TestClock::install(&others, &Schema::default()).await.expect("a second handle");
    let other = Limiter::new(others, limits());
    used_up(&other, "bucket").await;
    clock.advance(HOUR).await.expect("advance");
    assert!(is_allowed(&other, "bucket").await);
    let apart = same.now().await.expect("the time").duration_since(std::time::SystemTime::now()).expect("ahead");
    assert!(apart.abs_diff(HOUR) < MINUTE, "{apart:?}");

    let queue = Queue::new(&database.limiter(limits()), "q").expect("a queue");
    let tomorrow = clock.now().await.expect("the time") + DAY;
    let job = Job::new(("bucket", "g"), &1).expect("a job").run_at(tomorrow);
    scheduled(&queue.enqueue(job).await.expect("an answer"));
    let mut child = process("test_clock::worker_of_another_process", URL, &database.url);
    // It listens, and sleeps.
    let sleeps = "SELECT count(*) FROM rate_limit.workers AS w, pg_stat_activity AS a
                  WHERE a.datname = current_database() AND a.query LIKE 'LISTEN%'";
    let listening = || async { sqlx::query_scalar::<_, i64>(sleeps).fetch_one(&database.pool).await.expect("a count") };
    within_minutes(async { while listening().await == 0 {} }).await;
    clock.advance(DAY).await.expect("advance");
    within_minutes(until_in_state(&queue, JobState::Done, 1)).await;
    child.kill().await.expect("kill the process");
}

#[tokio::test]
async fn sql_and_triggers_follow_the_clock() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    database
        .execute(
            "CREATE TABLE posts (author text);
             CREATE FUNCTION limit_posts() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM rate_limit.enforce_with('posts', NEW.author, kind => 'token_bucket', rate => 2, period => '1 hour');
               RETURN NEW;
             END $$;
             CREATE TRIGGER limited BEFORE INSERT ON posts FOR EACH ROW EXECUTE FUNCTION limit_posts()",
        )
        .await;
    // One session, which keeps its plans.
    let mut session = PgConnection::connect(&database.url).await.expect("a session");
    let mut allowed = 0;
    for hour in 0..3 {
        while sqlx::query("INSERT INTO posts VALUES ('u1')").execute(&mut session).await.is_ok() {
            allowed += 1;
        }
        assert_eq!(allowed, 2 * (hour + 1));
        clock.advance(HOUR).await.expect("advance");
    }
    let call =
        "SELECT ok FROM rate_limit.limit_with('send', 'u1', kind => 'fixed_window', rate => 1, period => '1 day')";
    for _ in 0..2 {
        for expected in [true, false] {
            let ok: bool = sqlx::query_scalar(call).fetch_one(&mut session).await.expect("an answer");
            assert_eq!(ok, expected);
        }
        clock.advance(DAY).await.expect("advance");
    }
}

/// A role that has only the grants of the guide reads the advanced clock, in every statement.
#[tokio::test]
async fn a_role_with_the_grants_of_the_guide_sees_the_clock() {
    let database = Database::migrated().await;
    let role = OtherRole::new(&database).await;
    database.execute(&Use::ALL.map(crate::support::guide::grants).concat().replace("app_role", &role.name)).await;
    database.execute(&format!("REVOKE CREATE ON SCHEMA rate_limit FROM {}", role.name)).await;
    let clock = database.test_clock().await;
    let mut connection = role.connection().await;
    let limiter = pg_limiter::TransactionLimiter::new(limits());
    for _ in 0..2 {
        let mut tx = connection.begin().await.expect("begin");
        assert!(limiter.within(&mut tx).limit(("bucket", "k")).await.expect("a decision").is_allowed());
        assert!(!limiter.within(&mut tx).limit(("bucket", "k")).await.expect("a decision").is_allowed());
        tx.commit().await.expect("commit");
        clock.advance(HOUR).await.expect("advance");
    }
    connection.close().await.expect("close");
    role.drop().await;
}

#[tokio::test]
async fn another_schema_keeps_its_own_clock() {
    let database = Database::migrated().await;
    let quoted = Schema::new("a \"b\" 'c'").expect("a schema");
    Migrator::new(quoted.clone()).run(&database.pool).await.expect("migrate");
    let of = |schema: &Schema| {
        let mut config = LimiterConfig::default();
        config.schema = schema.clone();
        Limiter::with_config(database.pool.clone(), limits(), config)
    };
    let (usual, other) = (of(&Schema::default()), of(&quoted));
    used_up(&usual, "bucket").await;
    used_up(&other, "bucket").await;
    let waiting = tokio::spawn({
        let usual = usual.clone();
        async move { usual.until_ready(("bucket", "w", 2), 2 * HOUR).await }
    });
    let clock = TestClock::install(&database.pool, &quoted).await.expect("a test clock");
    clock.advance(DAY).await.expect("advance");
    assert!(is_allowed(&other, "bucket").await);
    assert!(!is_allowed(&usual, "bucket").await);
    waiting.abort();
    let migrator = Migrator::new(quoted.clone());
    assert_eq!(migrator.check(&database.pool).await.expect("the drift"), [Drift::TestClock]);
    assert_eq!(Migrator::default().check(&database.pool).await.expect("the drift"), []);
    clock.uninstall().await.expect("uninstall");
    assert_eq!(migrator.check(&database.pool).await.expect("the drift"), []);
}

async fn sequences(pool: &PgPool) -> i64 {
    let sql = "SELECT count(*) FROM pg_class WHERE relname = '_test_clock'";
    sqlx::query_scalar(sql).fetch_one(pool).await.expect("a count")
}

#[tokio::test]
async fn migrate_and_uninstall_remove_it() {
    let database = Database::migrated().await;
    let (clock, limiter) = (database.test_clock().await, database.limiter(limits()));
    clock.advance(HOUR).await.expect("advance");
    assert!(is_allowed(&limiter, "bucket").await);
    let drift = Migrator::default().check(&database.pool).await.expect("the drift");
    assert_eq!(drift, [Drift::TestClock]);
    assert!(drift[0].to_string().contains("a test clock is installed") && drift[0].is_repaired_by_migrate());
    let report = migrate(&database.pool).await.expect("migrate");
    assert_eq!((report.functions, report.changed_by_hand), (vec!["_clock()"], vec![]));
    assert_eq!(Migrator::default().check(&database.pool).await.expect("the drift"), []);
    assert_eq!(sequences(&database.pool).await, 0);
    assert!(matches!(clock.advance(HOUR).await, Err(TestClockError::NotInstalled { .. })));
    assert!(matches!(clock.now().await, Err(TestClockError::NotInstalled { .. })));
    assert!(!is_allowed(&limiter, "bucket").await);

    let clock = database.test_clock().await;
    let apart = clock.now().await.expect("the time").duration_since(std::time::SystemTime::now()).unwrap_or_default();
    assert!(apart < MINUTE, "a new clock is not ahead: {apart:?}");
    clock.advance(HOUR).await.expect("advance");
    clock.clone().uninstall().await.expect("uninstall");
    clock.uninstall().await.expect("again");
    assert_eq!(Migrator::default().check(&database.pool).await.expect("the drift"), []);
    assert_eq!(sequences(&database.pool).await, 0);
}

#[tokio::test]
async fn it_advances_by_whole_microseconds_and_never_too_far() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    let ahead = || async {
        let sql = "SELECT coalesce(pg_sequence_last_value('rate_limit._test_clock'), 0)";
        sqlx::query_scalar::<_, i64>(sql).fetch_one(&database.pool).await.expect("a number")
    };
    for (by, sum) in [(0, 0), (1, 1), (999, 2), (1_000, 3), (1_001, 5)] {
        clock.advance(Duration::from_nanos(by)).await.expect("advance");
        assert_eq!(ahead().await, sum, "{by} ns");
    }
    for by in [Duration::MAX, Duration::from_secs(101 * 365 * 86_400)] {
        let error = clock.advance(by).await.expect_err("too far");
        assert!(matches!(error, TestClockError::TooFar { .. }), "{error}");
    }
    assert_eq!(ahead().await, 5);
    // Advances at once add up.
    let advances = (0..8).map(|_| clock.advance(MINUTE));
    for advance in futures_util::future::join_all(advances).await {
        advance.expect("advance");
    }
    assert_eq!(ahead().await, 5 + 8 * 60_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_refused_outside_of_a_schema_for_tests() {
    let server = tokio::task::spawn_blocking(|| {
        let mut config = server_config();
        config.durable = false;
        config.settings.push(("cluster_name".into(), "production".into()));
        Server::start(&config).expect("a server")
    });
    let server = server.await.expect("a server");
    let postgres = Database::pool(&server.url("postgres"), 2).await;
    for name in ["latest", "\"app-Test\""] {
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&postgres).await.expect("a database");
    }
    let (usual, testing) = (Schema::default(), Schema::new("testing").expect("a schema"));
    let mut installed = BTreeSet::new();
    for name in ["postgres", "latest", "app-Test"] {
        let pool = Database::pool(&server.url(name), 2).await;
        sqlx::query("REVOKE CREATE ON SCHEMA public FROM PUBLIC").execute(&pool).await.expect("revoke");
        for schema in [&usual, &testing] {
            Migrator::new(schema.clone()).run(&pool).await.expect("migrate");
            match TestClock::install(&pool, schema).await {
                Ok(_) => _ = installed.insert((name, schema.name())),
                Err(error) => {
                    assert!(matches!(error, TestClockError::NotATestSchema { .. }), "{error}");
                    assert!(
                        error.to_string().contains(&format!("\"rate_limit\" of the database \"{name}\"")),
                        "{error}"
                    );
                    assert_eq!(Migrator::new(schema.clone()).check(&pool).await.expect("the drift"), []);
                }
            }
        }
    }
    let expected =
        [("postgres", "testing"), ("latest", "testing"), ("app-Test", "rate_limit"), ("app-Test", "testing")];
    assert_eq!(installed, expected.into());
}

#[tokio::test]
async fn it_is_refused_to_roles_that_do_not_own_the_functions() {
    let database = Database::empty().await;
    let error = TestClock::install(&database.pool, &Schema::default()).await.expect_err("nothing is migrated");
    assert!(matches!(error, TestClockError::SchemaMissing { .. }), "{error}");
    migrate(&database.pool).await.expect("migrate");
    let role = OtherRole::new(&database).await;
    database.execute(&format!("REVOKE CREATE ON SCHEMA rate_limit FROM {}", role.name)).await;
    let set = format!("SET ROLE {}", role.name);
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(1).after_connect(move |connection, _| {
        let set = AssertSqlSafe(set.clone());
        Box::pin(async move { sqlx::raw_sql(set).execute(connection).await.map(|_| ()) })
    });
    let pool = options.connect(&database.url).await.expect("a pool");
    let error = TestClock::install(&pool, &Schema::default()).await.expect_err("it is not the owner");
    assert!(matches!(&error, TestClockError::NotOwner { role: of, .. } if *of == role.name), "{error}");
    pool.close().await;
    role.drop().await;
}
