//! Servers and clients that are killed, run out of a resource, or change their role: every call returns a decision or a typed
//! error by its deadline, every admitted call has taken its tokens, and the limiter recovers automatically.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::sqlx::{self, PgConnection, PgPool};
use pg_limiter::{Connections, Error, Isolation, Item, Limit, Limiter, LimiterConfig, Limits};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::{Database, Node};

const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);
const CAPACITY: f64 = 1e6;

fn limits() -> Limits {
    ["own", "pooled", "work", "group a", "group b"].into_iter().fold(Limits::new(), |limits, name| {
        limits.define(name, Limit::token_bucket(1e-6, CENTURY).capacity(CAPACITY)).expect("a limit")
    })
}

fn limiter(pool: &PgPool, change: impl FnOnce(&mut LimiterConfig)) -> Limiter {
    let mut config = LimiterConfig::default();
    config.retry.max_attempts = 1_000;
    config.retry.deadline = Duration::from_secs(20);
    change(&mut config);
    Limiter::with_config(pool.clone(), limits(), config)
}

async fn spent(limiter: &Limiter, name: &str) -> f64 {
    CAPACITY - limiter.peek((name, "k")).await.expect("a balance").remaining().round()
}

/// Makes calls of one form until it is stopped.
struct Load {
    stop: AtomicBool,
    admitted: AtomicU64,
    /// It may or may not have been taken.
    unknown: AtomicU64,
    failed: AtomicU64,
    late: AtomicU64,
}

#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Limiter(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

const NOTE: &str = "INSERT INTO notes DEFAULT VALUES";

async fn ask(limiter: &Limiter, way: &str) -> Result<bool, Error> {
    match way {
        "work" => {
            let limits = limiter.clone();
            let work = limiter.transaction(async move |tx: &mut PgConnection| {
                let decision = limits.within(tx).limit(("work", "k")).await?;
                sqlx::query(NOTE).execute(&mut *tx).await?;
                Ok::<_, WorkError>(decision.is_allowed())
            });
            work.await.map_err(|error| match error {
                WorkError::Limiter(error) => error,
                WorkError::Database(source) => Error::Database { source },
            })
        }
        "group" => {
            let call = [Item::new("group a", "k"), Item::new("group b", "k")];
            limiter.limit(call).await.map(|decision| decision.is_allowed())
        }
        name => limiter.limit((name, "k")).await.map(|decision| decision.is_allowed()),
    }
}

impl Load {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            stop: AtomicBool::new(false),
            admitted: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            late: AtomicU64::new(0),
        })
    }

    async fn run(self: Arc<Self>, limiter: Limiter, way: &'static str, deadline: Duration) {
        while !self.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            match ask(&limiter, way).await {
                Ok(allowed) => assert!(allowed, "the capacity covers all calls"),
                Err(Error::OutcomeUnknown { .. }) => {
                    self.unknown.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Err(error) => {
                    // A unit of work returns the error of its last attempt.
                    let is_typed = matches!(error, Error::Unavailable { .. } | Error::RetriesExhausted { .. });
                    assert!(is_typed || (way == "work" && error.is_retryable()), "{error:?}");
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    if began.elapsed() > deadline + Duration::from_secs(20) {
                        self.late.fetch_add(1, Ordering::Relaxed);
                    }
                    continue;
                }
            }
            self.admitted.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn books(&self, spent: f64, way: &str) {
        let (admitted, unknown) = (self.admitted.load(Ordering::Relaxed), self.unknown.load(Ordering::Relaxed));
        let (admitted, most) = (admitted as f64, (admitted + unknown) as f64);
        assert!(admitted <= spent && spent <= most, "{way}: {admitted} admitted, {unknown} unknown, {spent} spent");
        assert_eq!(self.late.load(Ordering::Relaxed), 0, "{way}: answers come by the deadline");
    }
}

const WAYS: [&str; 4] = ["own", "pooled", "work", "group"];

/// The postmaster is killed three times, with calls of all forms under way, and started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_and_restarted_server_keeps_all_admitted_tokens() {
    let mut node = Node::start(&[]).await;
    let pool = PgPoolOptions::new().max_connections(8).connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    sqlx::query("CREATE TABLE notes (id bigint GENERATED BY DEFAULT AS IDENTITY)")
        .execute(&pool)
        .await
        .expect("a table");
    let deadline = Duration::from_secs(2);
    let limiters = ["own", "pooled", "work", "group"].map(|way| {
        limiter(&pool, |config| {
            config.retry.deadline = deadline;
            config.connections = if way == "pooled" { Connections::Pool } else { Connections::Own };
            config.isolation = if way == "own" { Isolation::Serializable } else { Isolation::ReadCommitted };
        })
    });
    let loads = WAYS.map(|_| Load::new());
    let mut tasks = Vec::new();
    for ((way, limiter), load) in WAYS.into_iter().zip(&limiters).zip(&loads) {
        for _ in 0..4 {
            tasks.push(tokio::spawn(load.clone().run(limiter.clone(), way, deadline)));
        }
    }
    for _ in 0..3 {
        // Waits until all loads have made progress since the last restart.
        let before = loads.each_ref().map(|load| load.admitted.load(Ordering::Relaxed));
        while !loads.iter().zip(before).all(|(load, before)| load.admitted.load(Ordering::Relaxed) > before + 20) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        node.kill();
        tokio::time::sleep(Duration::from_millis(300)).await;
        node.restart().await;
    }
    let before = loads.each_ref().map(|load| load.admitted.load(Ordering::Relaxed));
    while !loads.iter().zip(before).all(|(load, before)| load.admitted.load(Ordering::Relaxed) > before + 20) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    loads.iter().for_each(|load| load.stop.store(true, Ordering::Relaxed));
    for task in tasks {
        task.await.expect("a task");
    }
    let after = limiter(&pool, |_| {});
    for ((way, load), name) in WAYS.into_iter().zip(&loads).zip(["own", "pooled", "work", "group a"]) {
        load.books(spent(&after, name).await, way);
    }
    assert_eq!(spent(&after, "group a").await, spent(&after, "group b").await, "all or none");
    let notes: i64 = sqlx::query_scalar("SELECT count(*) FROM notes").fetch_one(&pool).await.expect("the notes");
    assert_eq!(spent(&after, "work").await, notes as f64, "limits and the caller's own writes commit together");
}

/// The entry point of a client that is killed: the test starts this binary again. It prints a line for each admission.
#[test]
fn client_process() {
    let Ok(url) = std::env::var("PG_LIMITER_TEST_CLIENT") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let pool = Database::pool(&url, 4).await;
        let own = limiter(&pool, |_| {});
        let pooled = limiter(&pool, |config| config.connections = Connections::Pool);
        println!();
        let tell = |way: &'static str| {
            let limiter = if way == "pooled" { pooled.clone() } else { own.clone() };
            async move {
                while ask(&limiter, way).await.expect("a decision") {
                    println!("ADMITTED {way}");
                }
            }
        };
        tokio::join!(tell("own"), tell("own"), tell("pooled"), tell("work"), tell("group"));
    });
}

/// Clients are killed at random moments: a call under way takes all of its tokens or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_clients_leave_balanced_books() {
    let database = Database::migrated().await;
    database.execute("CREATE TABLE notes (id bigint GENERATED BY DEFAULT AS IDENTITY)").await;
    const KILLS: usize = 12;
    let mut counted: std::collections::BTreeMap<String, f64> = WAYS.map(|way| (way.to_owned(), 0.0)).into();
    let start = || {
        let mut command = tokio::process::Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["outages::client_process", "--exact", "--nocapture"])
            .env("PG_LIMITER_TEST_CLIENT", &database.url);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn().expect("a process")
    };
    let mut clients: Vec<_> = (0..2).map(|_| start()).collect();
    for nth in 0..KILLS {
        let place = nth % clients.len();
        let mut client = std::mem::replace(&mut clients[place], start());
        let mut lines = BufReader::new(client.stdout.take().expect("its output")).lines();
        // The client is killed after a number of admissions, with other calls under way.
        let mut seen = 0;
        while let Some(line) = lines.next_line().await.expect("a line") {
            if let Some(way) = line.strip_prefix("ADMITTED ") {
                *counted.get_mut(way).expect("a way") += 1.0;
                seen += 1;
                if seen == 20 + 7 * nth {
                    client.start_kill().expect("kill");
                }
            }
        }
    }
    for mut client in clients {
        client.start_kill().expect("kill");
        let mut lines = BufReader::new(client.stdout.take().expect("its output")).lines();
        while let Some(line) = lines.next_line().await.expect("a line") {
            if let Some(way) = line.strip_prefix("ADMITTED ") {
                *counted.get_mut(way).expect("a way") += 1.0;
            }
        }
    }
    // Backends end when they notice that their client was killed. They may still carry out what it has sent.
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' \
                  AND pid <> pg_backend_pid()";
    while sqlx::query_scalar::<_, i64>(others).fetch_one(&database.pool).await.expect("backends") > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let after = limiter(&database.pool, |_| {});
    for (way, name, at_once) in
        [("own", "own", 2.0), ("pooled", "pooled", 1.0), ("work", "work", 1.0), ("group", "group a", 1.0)]
    {
        let (admitted, spent) = (counted[way], spent(&after, name).await);
        let lost = at_once * (KILLS + 2) as f64;
        assert!(
            admitted > 0.0 && admitted <= spent && spent <= admitted + lost,
            "{way}: {admitted} admitted, {spent} spent"
        );
    }
    assert_eq!(spent(&after, "group a").await, spent(&after, "group b").await, "all or none");
    let notes: i64 =
        sqlx::query_scalar("SELECT count(*) FROM notes").fetch_one(&database.pool).await.expect("the notes");
    assert_eq!(spent(&after, "work").await, notes as f64, "limits and the caller's own writes commit together");
}

/// A standby replaces the server, and is promoted later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_calls_work_once_the_standby_is_promoted() {
    fails_over(Node::start(&[]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a German locale and PostgreSQL with translations: run tests/machine"]
async fn a_failover_is_recognized_from_german_messages() {
    let node = Node::start_in("de_DE").await;
    let mut conn = <PgConnection as sqlx::Connection>::connect(&node.url()).await.expect("connect");
    let error = sqlx::query("SELECT 1/0").execute(&mut conn).await.expect_err("no number").to_string();
    assert!(error.contains("Division durch Null"), "not in German: apt-get install postgresql: {error}");
    fails_over(node).await;
}

fn is_of_a_standby(why: &str) -> bool {
    (why.contains("SQLSTATE 0A000") || why.contains("SQLSTATE 25006")) && why.contains("connect to the primary")
}

async fn fails_over(mut node: Node) {
    let pool = PgPoolOptions::new().max_connections(4).connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let own = limiter(&pool, |config| config.retry.deadline = Duration::from_secs(1));
    let pooled = limiter(&pool, |config| {
        config.retry.deadline = Duration::from_secs(1);
        config.connections = Connections::Pool;
    });
    let locking = limiter(&pool, |config| {
        config.retry.deadline = Duration::from_secs(1);
        config.isolation = Isolation::ReadCommitted;
    });
    for limiter in [&own, &pooled] {
        assert!(limiter.limit(("own", "k")).await.expect("a decision").is_allowed());
    }
    node.fail_over().await;
    for limiter in [&own, &pooled, &locking] {
        let error = limiter.limit(("own", "k")).await.expect_err("it only reads");
        // A call over an old connection may report that the connection was lost.
        assert!(matches!(error, Error::Unavailable { .. } | Error::OutcomeUnknown { .. }), "{error:?}");
        let mut why = String::new();
        for _ in 0..30 {
            let error = limiter.limit(("own", "k")).await.expect_err("it only reads");
            assert!(matches!(error, Error::Unavailable { .. }) && error.is_retryable(), "{error:?}");
            why = error.to_string();
            if is_of_a_standby(&why) {
                break; // Not the deadline, which may end a call that is still connecting.
            }
        }
        assert!(is_of_a_standby(&why), "{why}");
    }
    let patient = limiter(&pool, |_| {});
    let promote = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let promoted = "SELECT pg_promote()";
        assert!(sqlx::query_scalar::<_, bool>(promoted).fetch_one(&pool).await.expect("promoted"));
    };
    let (decision, ()) = tokio::join!(patient.limit(("own", "k")), promote);
    assert!(decision.expect("retried until the server was promoted").is_allowed());
    for limiter in [&own, &pooled] {
        assert!(limiter.limit(("own", "k")).await.expect("a decision").is_allowed());
    }
    assert_eq!(spent(&own, "own").await, 5.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_unavailable_until_the_server_has_a_free_connection() {
    let node = Node::start(&["max_connections=9", "superuser_reserved_connections=0", "max_wal_senders=0"]).await;
    let pool = PgPoolOptions::new().max_connections(4).connect_lazy(&node.url()).expect("a URL");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    pool.close().await;
    let pool = PgPoolOptions::new().max_connections(4).connect_lazy(&node.url()).expect("a URL");
    let mut others = Vec::new();
    while let Ok(connection) = <PgConnection as sqlx::Connection>::connect(&node.url()).await {
        others.push(connection);
    }
    assert!(others.len() > 3, "{}", others.len());
    for connections in [Connections::Own, Connections::Pool] {
        let hasty = limiter(&pool, |config| {
            config.connections = connections;
            config.retry.deadline = Duration::from_millis(300);
        });
        let began = Instant::now();
        let error = hasty.limit(("own", "k")).await.expect_err("the server is full");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    let patient = limiter(&pool, |_| {});
    let leave = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(others);
    };
    let (decision, ()) = tokio::join!(patient.limit(("own", "k")), leave);
    assert!(decision.expect("retried until a connection was free").is_allowed());
    assert_eq!(spent(&patient, "own").await, 1.0);
}

/// The application's database sets its own timeouts. A call that waits for a locked row runs into them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_and_statement_timeouts_are_typed_and_retried() {
    let database = Database::migrated().await;
    for setting in ["lock_timeout = '100ms'", "statement_timeout = '100ms'"] {
        for name in ["lock_timeout", "statement_timeout"] {
            database.execute(&format!("ALTER DATABASE {} RESET {name}", database.name)).await;
        }
        database.execute(&format!("ALTER DATABASE {} SET {setting}", database.name)).await;
        let pool = Database::pool(&database.url, 6).await;
        let own = limiter(&pool, |_| {});
        let pooled = limiter(&pool, |config| config.connections = Connections::Pool);
        for limiter in [&own, &pooled] {
            assert!(limiter.limit(("own", "k")).await.expect("a decision").is_allowed());
        }
        let mut holder = database.pool.begin().await.expect("begin");
        assert!(own.within(&mut holder).limit(("own", "k")).await.expect("a decision").is_allowed());
        // In the caller's transaction, the error says whether the whole transaction may be retried.
        let mut tx = pool.begin().await.expect("begin");
        let error = own.within(&mut tx).limit(("own", "k")).await.expect_err("the row is held");
        match setting {
            "lock_timeout = '100ms'" => assert!(error.is_retryable(), "{error:?}"),
            _ => assert!(matches!(error, Error::Unavailable { .. }) && !error.is_retryable(), "{error:?}"),
        }
        tx.rollback().await.expect("rollback");
        let let_go = async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            holder.rollback().await.expect("rollback");
        };
        let (first, second, ()) = tokio::join!(own.limit(("own", "k")), pooled.limit(("own", "k")), let_go);
        for decision in [first, second] {
            assert!(decision.expect("retried until the row was free").is_allowed());
        }
    }
    let after = limiter(&database.pool, |_| {});
    assert_eq!(spent(&after, "own").await, 8.0);
}

/// The table and its index are on a file system of 6 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the right to mount a file system: run tests/machine"]
async fn a_full_disk_is_an_error_and_not_a_permit() {
    let node = Node::start(&["autovacuum=off"]).await;
    let disk = tempfile::Builder::new().prefix("pg-limiter-disk-").tempdir_in("/tmp").expect("a folder");
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=6m,mode=777", "tmpfs"]).arg(disk.path()).status();
    assert!(mounted.expect("mount").success(), "this user may not mount a file system: run this test as root");
    let mounted = Mounted(disk);
    let pool = PgPoolOptions::new().max_connections(4).connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let path = mounted.0.path().join("space");
    std::fs::create_dir(&path).expect("a folder");
    node.give(&path);
    let run = |sql: String| {
        let pool = pool.clone();
        async move { sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&pool).await.expect("done") }
    };
    run(format!("CREATE TABLESPACE small LOCATION '{}'", path.display())).await;
    run("ALTER TABLE rate_limit.rate_limits SET TABLESPACE small".to_owned()).await;
    run("ALTER INDEX rate_limit.rate_limits_pkey SET TABLESPACE small".to_owned()).await;
    let own = limiter(&pool, |config| config.retry.deadline = Duration::from_secs(5));
    assert!(own.limit(("own", "k")).await.expect("a decision").is_allowed());
    let mut admitted = 0;
    let error = loop {
        let calls = (0..500).map(|nth| own.limit(("pooled", format!("{admitted} {nth} {}", "x".repeat(400)))));
        let said = futures_util::future::join_all(calls).await;
        admitted += said.iter().filter(|said| said.is_ok()).count();
        if let Some(error) = said.into_iter().find_map(Result::err) {
            break error;
        }
        assert!(admitted < 100_000, "the disk does not fill up");
    };
    assert!(matches!(error, Error::Database { .. }), "{error:?}");
    // The message varies: half a block may still have fitted.
    assert!(error.to_string().contains("SQLSTATE 53100"), "{error}");
    let rows = "SELECT count(*) FROM rate_limit.rate_limits WHERE name = 'pooled'";
    let rows: i64 = sqlx::query_scalar(rows).fetch_one(&pool).await.expect("the rows");
    assert_eq!(rows, admitted as i64, "only admitted calls have taken tokens");
    // With more space it works again, without a restart.
    let more = Command::new("mount").args(["-o", "remount,size=64m"]).arg(mounted.0.path()).status();
    assert!(more.expect("remounted").success());
    assert!(own.limit(("pooled", "another")).await.expect("a decision").is_allowed());
    assert_eq!(spent(&own, "own").await, 1.0);
    drop(node);
}

struct Mounted(tempfile::TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: a server that is being killed may still have files open.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
