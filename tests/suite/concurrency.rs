//! Many tasks in several processes, one key and overlapping sets of keys, at every isolation level.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use pg_limiter::sqlx::{Connection, PgConnection, PgPool};
use pg_limiter::{Call, Connections, Error, Isolation, Item, Limit, Limiter, Limits};
use serde::{Deserialize, Serialize};

use crate::support::gate::until_waiting;
use crate::support::{Database, cases, citus, sqlx};

const LEVELS: [&str; 4] = ["own", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
/// Every way in which the limiter runs its own transactions.
const MODES: [&str; 8] = [
    "own: over a connection of its own, serializable, 1 lane",
    "own: over a connection of its own, serializable, 4 lanes",
    "own: over a connection of its own, read committed, 1 lane",
    "own: over a connection of its own, read committed, 4 lanes",
    "own: over the pool, serializable, 1 lane",
    "own: over the pool, serializable, 4 lanes",
    "own: over the pool, read committed, 1 lane",
    "own: over the pool, read committed, 4 lanes",
];
const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

/// The task of a worker process.
#[derive(Serialize, Deserialize)]
struct Work {
    url: String,
    /// `own` or one of [`MODES`]: the limiter's own transactions. Otherwise: the isolation level of callers' transactions.
    level: String,
    tasks: usize,
    /// Capacities by limit.
    capacities: BTreeMap<String, u32>,
    shards: u32,
    /// Sets of limits; each task begins with a different set and goes on until all sets are denied.
    sets: Vec<Vec<String>>,
}

/// The results of a worker process.
#[derive(Default, Serialize, Deserialize)]
struct Done {
    /// By set.
    admitted: BTreeMap<usize, u32>,
    conflicts: u32,
    /// SQLSTATEs other than serialization_failure.
    others: Vec<String>,
}

/// Nothing flows in while the test runs.
fn limits(capacities: &BTreeMap<String, u32>, shards: u32) -> Limits {
    capacities.iter().fold(Limits::new(), |limits, (name, capacity)| {
        let limit = Limit::token_bucket(1e-6, CENTURY).capacity(*capacity).shards(shards);
        limits.define(name, limit).expect("a limit")
    })
}

async fn ask(limiter: &Limiter, work: &Work, call: Call, done: &mut Done) -> bool {
    if work.level.starts_with("own") {
        return limiter.limit(call).await.expect("a decision").is_allowed();
    }
    loop {
        let level = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {}", work.level));
        let mut conn = limiter_pool(limiter).await;
        let mut tx = conn.begin_with(level).await.expect("begin");
        let result = match limiter.within(&mut tx).limit(call.clone()).await {
            Ok(decision) => tx.commit().await.map(|()| decision.is_allowed()),
            Err(Error::Conflict { source }) => Err(source),
            Err(error) => panic!("{error}"),
        };
        match result {
            Ok(allowed) => return allowed,
            Err(error) => match error.as_database_error().and_then(|error| error.code()).unwrap_or_default().as_ref() {
                "40001" => done.conflicts += 1,
                other => done.others.push(other.to_owned()),
            },
        }
    }
}

async fn limiter_pool(limiter: &Limiter) -> sqlx::pool::PoolConnection<sqlx::Postgres> {
    limiter.pool().acquire().await.expect("a connection")
}

async fn run(work: &Work) -> Done {
    let pool = Database::pool(&work.url, 12).await;
    let mut config = Database::config();
    config.retry.max_attempts = 10_000;
    config.retry.deadline = Duration::from_secs(60);
    if MODES.contains(&work.level.as_str()) {
        let is = |part: &str| work.level.contains(part);
        config.connections = if is("over the pool") { Connections::Pool } else { Connections::Own };
        config.isolation = if is("read committed") { Isolation::ReadCommitted } else { Isolation::Serializable };
        config.lanes = if is("4 lanes") { 4 } else { 1 };
    }
    let limiter = Limiter::with_config(pool, limits(&work.capacities, work.shards), config);
    let task = |nth: usize| {
        let limiter = limiter.clone();
        async move {
            let mut done = Done::default();
            let mut open: Vec<usize> = (0..work.sets.len()).collect();
            open.rotate_left(nth % work.sets.len());
            while let Some(set) = open.first().copied() {
                let items: Vec<Item> = work.sets[set].iter().map(|name| Item::new(name.as_str(), "k")).collect();
                if ask(&limiter, work, items.into(), &mut done).await {
                    *done.admitted.entry(set).or_default() += 1;
                    open.rotate_left(1);
                } else {
                    open.remove(0);
                }
            }
            done
        }
    };
    let tasks = futures_of((0..work.tasks).map(task).collect()).await;
    tasks.into_iter().fold(Done::default(), add)
}

/// All at once, in one thread.
async fn futures_of<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut pinned: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = pinned.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut ready = true;
        for (future, output) in pinned.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => ready = false,
                }
            }
        }
        if ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

fn add(mut sum: Done, done: Done) -> Done {
    for (set, admitted) in done.admitted {
        *sum.admitted.entry(set).or_default() += admitted;
    }
    sum.conflicts += done.conflicts;
    sum.others.extend(done.others);
    sum
}

/// The entry point of a worker process: [`in_processes`] starts this binary again.
#[test]
fn worker_process() {
    let Ok(work) = std::env::var("PG_LIMITER_TEST_WORK") else { return };
    let work: Work = serde_json::from_str(&work).expect("work");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let done = runtime.block_on(run(&work));
    println!("\nDONE {}", serde_json::to_string(&done).expect("a report"));
}

async fn in_processes(processes: usize, work: &Work) -> Done {
    let children: Vec<_> = (0..processes)
        .map(|_| {
            tokio::process::Command::new(std::env::current_exe().expect("this binary"))
                .args(["concurrency::worker_process", "--exact", "--nocapture"])
                .env("PG_LIMITER_TEST_WORK", serde_json::to_string(work).expect("work"))
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process")
        })
        .collect();
    let mut sum = Done::default();
    for child in children {
        let output = child.wait_with_output().await.expect("a report");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "a worker failed: {text}");
        let line = text.lines().find_map(|line| line.strip_prefix("DONE ")).expect("a report");
        sum = add(sum, serde_json::from_str(line).expect("a report"));
    }
    sum
}

async fn balance(pool: &PgPool, work: &Work, name: &str) -> f64 {
    Limiter::new(pool.clone(), limits(&work.capacities, work.shards))
        .peek((name, "k"))
        .await
        .expect("a balance")
        .remaining()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_admits_exactly_its_capacity() {
    one_key(1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: run tests/long"]
async fn one_key_of_a_sharded_limit_admits_exactly_its_capacity() {
    one_key(7).await;
}

async fn one_key(shards: u32) {
    // On Citus, a conflict of a SERIALIZABLE transaction at a node can end it with another SQLSTATE.
    let levels = LEVELS.into_iter().filter(|level| !citus::is_asked_for() || ["own", "READ COMMITTED"].contains(level));
    for level in levels.chain(MODES) {
        let database = Database::migrated().await;
        let capacities = BTreeMap::from([("a".to_owned(), 150)]);
        let work = Work {
            url: database.app_url.clone(),
            level: level.to_owned(),
            tasks: 8,
            capacities,
            shards,
            sets: vec![vec!["a".to_owned()]],
        };
        let done = in_processes(3, &work).await;
        assert_eq!(done.admitted[&0], 150, "{level}, {shards} shards");
        assert!(balance(&database.pool, &work, "a").await.abs() < 1e-6, "{level}, {shards} shards");
        assert_eq!(done.others, [""; 0], "{level}: only serialization failures may occur");
        if level == "READ COMMITTED" {
            assert_eq!(done.conflicts, 0, "rows are locked before they are read: nothing fails, {shards} shards");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: run tests/long"]
async fn overlapping_sets_are_all_or_nothing_and_never_deadlock() {
    let names = ["a", "b", "c", "d"];
    let sets: Vec<Vec<String>> = [&[0, 1][..], &[1, 0], &[3, 2, 1], &[2, 0], &[0, 1, 2, 3], &[3, 0], &[1, 2], &[3]]
        .iter()
        .map(|set| set.iter().map(|nth| names[*nth].to_owned()).collect())
        .collect();
    for (level, shards) in LEVELS.into_iter().chain(MODES).flat_map(|level| [(level, 1), (level, 5)]) {
        let database = Database::migrated().await;
        let capacities: BTreeMap<_, _> =
            names.iter().zip([60, 90, 75, 120]).map(|(n, c)| ((*n).to_owned(), c)).collect();
        let work = Work {
            url: database.app_url.clone(),
            level: level.to_owned(),
            tasks: 6,
            capacities: capacities.clone(),
            shards,
            sets: sets.clone(),
        };
        let done = in_processes(3, &work).await;
        assert_eq!(done.others, [""; 0], "{level}: only serialization failures may occur");
        let mut exhausted = Vec::new();
        for (name, capacity) in &capacities {
            let taken: u32 = done.admitted.iter().filter(|(set, _)| sets[**set].contains(name)).map(|(_, n)| n).sum();
            let left = balance(&database.pool, &work, name).await;
            assert!(
                (f64::from(*capacity) - f64::from(taken) - left).abs() < 1e-6,
                "{level}: {name}: {taken} taken, {left} left"
            );
            if left < 1.0 {
                exhausted.push(name.clone());
            }
        }
        for set in &sets {
            assert!(set.iter().any(|name| exhausted.contains(name)), "{level}: {set:?} denied, but not exhausted");
        }
    }
}

/// A group inserts a row and then waits for another. Meanwhile a third row is inserted, and a second group asks for it and
/// for the first group's new row. The second group waits for that new row first, so the first group finds the third row free.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_inserts_rows_finds_its_other_rows_unlocked() {
    for (level, shards) in LEVELS[1..].iter().flat_map(|level| [(level, 1), (level, 5)]) {
        let database = Database::migrated().await;
        let names = ["a", "b", "c"];
        let capacities = names.iter().map(|name| ((*name).to_owned(), 10)).collect();
        let limiter = database.limiter(limits(&capacities, shards));
        let items = |names: &[&str]| names.iter().map(|name| Item::new(*name, "k")).collect::<Vec<_>>();
        let ask = async |names: &[&str]| {
            let mut conn = database.app.acquire().await.expect("a connection");
            let level = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
            let mut tx = conn.begin_with(level).await.expect("begin");
            let decision = limiter.within(&mut tx).limit(items(names)).await?;
            tx.commit().await.map(|()| decision.is_allowed()).map_err(|source| Error::Conflict { source })
        };
        let mut holder = database.app.begin().await.expect("begin");
        assert!(limiter.within(&mut holder).limit(("b", "k")).await.expect("a decision").is_allowed());
        let steps = async {
            until_waiting(&database, 1).await; // The first group has inserted "a", and waits for "b".
            assert!(limiter.limit(("c", "k")).await.expect("a decision").is_allowed());
            let release = async {
                until_waiting(&database, 2).await; // The second group waits for "a".
                holder.rollback().await.expect("rollback");
            };
            tokio::join!(ask(&["a", "c"]), release).0
        };
        let (first, second) = tokio::join!(ask(&names), steps);
        assert!(second.as_ref().is_ok_and(|allowed| *allowed), "{level}, {shards} shards: {second:?}");
        if *level == "READ COMMITTED" {
            assert!(first.as_ref().is_ok_and(|allowed| *allowed), "{level}, {shards} shards: {first:?}");
            continue;
        }
        let Err(Error::Conflict { source }) = first else { panic!("{level}, {shards} shards: {first:?}") };
        let code = source.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        assert_eq!(code, "40001", "{level}, {shards} shards: {source}");
    }
}

/// The first calls on a key share one bucket, and none fails with a unique violation.
#[tokio::test(flavor = "multi_thread")]
async fn first_calls_share_one_bucket() {
    let database = Database::migrated().await;
    let pool = Database::pool(&database.app_url, 12).await;
    let one = Limit::token_bucket(1e-6, CENTURY).capacity(1).build().expect("a limit");
    for level in LEVELS {
        for round in 0..cases(25) {
            let key = format!("{level} {round}");
            let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(10));
            let tasks: Vec<_> = (0..10)
                .map(|nth| {
                    let (pool, key, barrier) = (pool.clone(), key.clone(), barrier.clone());
                    tokio::spawn(async move {
                        let limiter = Limiter::with_config(pool, Limits::new(), Database::config());
                        // Half of them also name a second, uncontended bucket.
                        let mut items = vec![Item::new(("first", one), key.as_str())];
                        if nth % 2 == 0 {
                            items.push(Item::new(("second", one), format!("{key} {nth}")));
                        }
                        barrier.wait().await;
                        let mut done = Done::default();
                        let work = Work {
                            url: String::new(),
                            level: level.to_owned(),
                            tasks: 1,
                            capacities: BTreeMap::new(),
                            shards: 1,
                            sets: Vec::new(),
                        };
                        let allowed = ask(&limiter, &work, items.into(), &mut done).await;
                        assert_eq!(done.others, [""; 0]);
                        u32::from(allowed)
                    })
                })
                .collect();
            let mut admitted = 0;
            for task in tasks {
                admitted += task.await.expect("a task");
            }
            assert_eq!(admitted, 1, "{key}");
        }
    }
}

/// The clock is read after the row is locked: a call that waits for a row is decided at the time at which it locks it.
#[tokio::test]
async fn a_waiter_is_decided_at_the_time_it_locks_the_row() {
    let database = Database::migrated().await;
    let limit = Limit::token_bucket(10, Duration::from_secs(1)).build().expect("a limit");
    let limiter = database.limiter(Limits::new());
    let all = || Item::new(("a", limit), "k").count(10);
    let mut holder = database.app.begin().await.expect("begin");
    assert!(limiter.within(&mut holder).limit(all()).await.expect("a decision").is_allowed());
    // Ends the wait some time after it has begun.
    let release = async {
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        while sqlx::query_scalar::<i64>(waiting).fetch_one(&database.pool).await.expect("locks") == 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(600)).await;
        holder.commit().await.expect("commit");
        Instant::now()
    };
    let wait = async {
        let mut tx = database.app.begin().await.expect("begin");
        // No row is visible yet, so the call decides to take the tokens; then it has to wait.
        let decision = limiter.within(&mut tx).limit(Item::new(("a", limit), "k").count(5)).await.expect("a decision");
        tx.commit().await.expect("commit");
        decision
    };
    let (_, decision) = tokio::join!(release, wait);
    assert!(decision.is_allowed(), "after 600 ms the bucket has 6 tokens, not 0: {decision:?}");
}

/// Rows are found by their key even if the plan was made for an empty table that has grown since.
#[tokio::test]
async fn no_table_is_ever_scanned() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let limits = Limits::new().define("a", Limit::token_bucket(10, Duration::from_secs(1))).expect("a limit");
    let limiter = Limiter::new(database.pool.clone(), limits);
    database
        .execute("ALTER TABLE rate_limit.rate_limits SET (autovacuum_enabled = off); ANALYZE rate_limit.rate_limits")
        .await;
    // Enough calls for generic plans, on the empty table and with statistics of an empty table.
    for nth in 0..12 {
        let items = [Item::new("a", format!("k{nth}")), Item::new("a", format!("l{nth}"))];
        let _ = limiter.within(&mut conn).limit(items).await.expect("a decision");
    }
    database
        .execute("INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT 'b', i::text, 0, 0, 0 FROM generate_series(1, 20000) AS i")
        .await;
    let scans = "SELECT seq_scan, seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'rate_limits'";
    for level in ["READ COMMITTED", "SERIALIZABLE"] {
        let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
        let mut tx = conn.begin_with(begin).await.expect("begin");
        for nth in 0..12 {
            let items = [Item::new("a", format!("k{nth}")), Item::new("a", format!("m{level}{nth}"))];
            let _ = limiter.within(&mut tx).limit(items.clone()).await.expect("a decision");
            let _ = limiter.within(&mut tx).peek(items.clone()).await.expect("balances");
            limiter.within(&mut tx).reset(items).await.expect("reset");
        }
        let (scans, read): (i64, i64) = sqlx::query_as(scans).fetch_one(&mut *tx).await.expect("statistics");
        assert_eq!((scans, read), (0, 0), "{level}");
        tx.rollback().await.expect("rollback");
    }
}
