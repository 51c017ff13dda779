//! Every operation in every form, concurrently, from three processes, at mixed isolation levels, while backends are
//! terminated: the books balance, no limit admits more than it allows, no call waits for seconds, and nothing deadlocks.
//!
//! `PG_LIMITER_TEST_LOAD_SECONDS` sets the duration (default 10 s). `PG_LIMITER_TEST_SEED` repeats the callers' choices.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use pg_limiter::embedded::Server;
use pg_limiter::sqlx::postgres::{PgDatabaseError, PgSeverity};
use pg_limiter::sqlx::{self, AssertSqlSafe, PgConnection, PgPool};
use pg_limiter::{Call, Connections, Error, Isolation, Item, Limit, Limiter, Limits};
use serde::{Deserialize, Serialize};

use crate::support::gate::CENTURY;
use crate::support::proxy::xorshift;
use crate::support::{Database, limiter_at, server_config};

const PROCESSES: u64 = 3;
const CALLERS: u64 = 6;
const SECOND: Duration = Duration::from_secs(1);

/// Callers lock rows for a few milliseconds only, so no call waits for longer than this. A longer wait is a violation only if
/// at least [`CALLS_MEANWHILE`] calls of the same process ended meanwhile; otherwise the machine is slow.
const LONGEST: Duration = Duration::from_secs(4);
const CALLS_MEANWHILE: u64 = 500;

/// The least number of calls that each caller makes in a second of the test, however slow the machine is.
const LEAST_CALLS: u64 = 4;

/// The capacity of each bucket in the books. They are never empty and never full, and do not refill.
const STOCK: f64 = 1e6;
const FIRST_CHARGE: f64 = 1e5;
const BOOKS: [&str; 4] = ["a", "b", "c", "sharded"];
const KEYS: u64 = 3;
/// Keys from this number on have no row at the start.
const NEW_KEYS: u64 = 1_000_000;

/// The total that each tight limit admits. During the test, one changes its number of shards, and the other its kind.
const TIGHT: f64 = 400.0;

/// A limit that refills.
const RATE: f64 = 200.0;
const CAPACITY: f64 = 50.0;

#[derive(Clone, Serialize, Deserialize)]
struct Work {
    url: String,
    seed: u64,
    seconds: u64,
}

/// Bounds for the tokens taken from a bucket.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Spent {
    least: f64,
    most: f64,
}

/// The report of a process.
#[derive(Default, Serialize, Deserialize)]
struct Report {
    /// The buckets in the books, by limit and key.
    books: BTreeMap<String, Spent>,
    /// Tokens that the tight limits have admitted.
    tight: BTreeMap<String, f64>,
    /// Admissions of the limit that refills: when the call began and ended, in microseconds, and the count.
    paced: Vec<(u64, u64, f64)>,
    calls: u64,
    /// Errors, by the form of the call.
    failed: BTreeMap<String, u64>,
    /// Violations.
    found: Vec<String>,
}

fn limits(variant: u64) -> Limits {
    let stock = || Limit::token_bucket(1e-6, CENTURY).capacity(STOCK);
    let by_kind = |limits: Limits| match variant % 3 {
        0 => limits.define("tight kinds", Limit::token_bucket(TIGHT, CENTURY)),
        1 => limits.define("tight kinds", Limit::fixed_window(TIGHT, CENTURY)),
        _ => limits.define("tight kinds", Limit::sliding_window(TIGHT, CENTURY)),
    };
    let shards = [1, 2, 4][(variant % 3) as usize];
    let limits = BOOKS[..3].iter().try_fold(Limits::new(), |limits, name| limits.define(name, stock()));
    let limits = limits
        .and_then(|limits| limits.define("sharded", stock().shards(4)))
        .and_then(by_kind)
        .and_then(|limits| limits.define("tight shards", Limit::token_bucket(TIGHT, CENTURY).shards(shards)))
        .and_then(|limits| limits.define("paced", Limit::token_bucket(RATE, SECOND).capacity(CAPACITY)))
        .and_then(|limits| limits.define("reset", Limit::token_bucket(100, CENTURY)))
        .and_then(|limits| limits.define("reset sharded", Limit::token_bucket(100, CENTURY).shards(4)));
    limits.expect("limits")
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    u64::try_from(now.as_micros()).expect("a time")
}

/// How a call ended: what it has done for certain, or may have done.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Done,
    Denied,
    Undone,
    Unknown,
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Limiter(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error("commit: {0}")]
    Commit(sqlx::Error),
}

fn end_of(result: &Result<bool, AppError>) -> End {
    let is_undone = |error: &sqlx::Error| {
        let error = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
        error.is_some_and(|error| error.severity() == PgSeverity::Error)
    };
    match result {
        Ok(true) => End::Done,
        Ok(false) => End::Denied,
        Err(AppError::Limiter(Error::OutcomeUnknown { .. })) => End::Unknown,
        Err(AppError::Commit(error)) if !is_undone(error) => End::Unknown,
        Err(_) => End::Undone,
    }
}

/// The operation of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Limit,
    Credit,
    Charge,
    Check,
    Peek,
}

async fn on_handle(limiter: &Limiter, op: Op, call: Call) -> Result<bool, AppError> {
    Ok(match op {
        Op::Limit => limiter.limit(call).await?.is_allowed(),
        Op::Credit => limiter.credit(call).await.map(|_| true)?,
        Op::Charge => limiter.charge(call).await.map(|_| true)?,
        Op::Check => limiter.check(call).await.map(|_| false)?,
        Op::Peek => limiter.peek(call).await.map(|_| false)?,
    })
}

async fn on_connection(limiter: &Limiter, conn: &mut PgConnection, op: Op, call: Call) -> Result<bool, Error> {
    let within = limiter.within(conn);
    Ok(match op {
        Op::Limit => within.limit(call).await?.is_allowed(),
        Op::Credit => within.credit(call).await.map(|_| true)?,
        Op::Charge => within.charge(call).await.map(|_| true)?,
        Op::Check => within.check(call).await.map(|_| false)?,
        Op::Peek => within.peek(call).await.map(|_| false)?,
    })
}

/// In the caller's transaction, which may first make the call in a savepoint and roll that back.
async fn within(limiter: &Limiter, level: &str, op: Op, call: Call, random: &mut u64) -> Result<bool, AppError> {
    let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
    let mut tx = limiter.pool().begin_with(begin).await?;
    if xorshift(random).is_multiple_of(3) {
        sqlx::query("SAVEPOINT before").execute(&mut *tx).await?;
        let _ = on_connection(limiter, &mut tx, Op::Charge, call.clone()).await;
        sqlx::query("ROLLBACK TO SAVEPOINT before").execute(&mut *tx).await?;
    }
    let done = match on_connection(limiter, &mut tx, op, call).await {
        Ok(done) => done,
        // Before the COMMIT, nothing can have been committed.
        Err(Error::OutcomeUnknown { last }) => return Err(last.into()),
        Err(error) => return Err(error.into()),
    };
    tokio::time::sleep(Duration::from_millis(xorshift(random) % 10)).await;
    if xorshift(random).is_multiple_of(5) {
        tx.rollback().await?;
        return Ok(false);
    }
    tx.commit().await.map_err(AppError::Commit)?;
    Ok(done)
}

async fn unit(limiter: &Limiter, op: Op, call: Call) -> Result<bool, AppError> {
    limiter
        .transaction(async |tx| match on_connection(limiter, tx, op, call.clone()).await {
            Err(Error::OutcomeUnknown { last }) => Err(AppError::Database(last)),
            result => Ok(result?),
        })
        .await
}

const FORMS: [&str; 9] = [
    "own",
    "dropped",
    "pool",
    "once",
    "unit",
    "within READ COMMITTED",
    "within REPEATABLE READ",
    "within SERIALIZABLE",
    "own",
];

/// A handle for each isolation level, over its own connections and over the pool.
struct Handles(Vec<(Limiter, Limiter)>);

impl Handles {
    fn new(work: &Work, variant: u64) -> Self {
        let limiter = |connections, isolation| {
            limiter_at(&format!("{}?application_name=load", work.url), limits(variant), |config| {
                config.connections = connections;
                config.isolation = isolation;
                (config.retry.deadline, config.retry.max_attempts) = (Duration::from_secs(10), 1_000);
            })
        };
        let levels = [Isolation::Serializable, Isolation::ReadCommitted];
        Self(levels.map(|level| (limiter(Connections::Own, level), limiter(Connections::Pool, level))).into())
    }
}

async fn in_form(handles: &Handles, form: &str, op: Op, call: Call, random: &mut u64) -> Result<bool, AppError> {
    let (own, pooled) = &handles.0[(xorshift(random) % 2) as usize];
    match form {
        "own" => on_handle(own, op, call).await,
        "pool" => on_handle(pooled, op, call).await,
        "dropped" => {
            let patience = Duration::from_millis(1 + xorshift(random) % 10);
            match tokio::time::timeout(patience, on_handle(own, op, call)).await {
                Ok(result) => result,
                Err(_) => Err(AppError::Commit(sqlx::Error::WorkerCrashed)),
            }
        }
        "once" => on_handle(own, op, call.idempotency_key(xorshift(random).to_string())).await,
        "unit" => unit(own, op, call).await,
        form => within(pooled, form.trim_start_matches("within "), op, call, random).await,
    }
}

impl Report {
    fn add_books(&mut self, items: &[(&str, u64)], op: Op, count: f64, end: End) {
        let (least, most) = match (op, end) {
            (Op::Check | Op::Peek, _) | (_, End::Denied | End::Undone) => return,
            (Op::Credit, End::Done) => (-count, -count),
            (Op::Credit, End::Unknown) => (-count, 0.0),
            (_, End::Done) => (count, count),
            (_, End::Unknown) => (0.0, count),
        };
        for (name, key) in items {
            let spent = self.books.entry(format!("{name} k{key}")).or_default();
            spent.least += least;
            spent.most += most;
        }
    }

    fn add(&mut self, other: Self) {
        for (bucket, spent) in other.books {
            let sum = self.books.entry(bucket).or_default();
            sum.least += spent.least;
            sum.most += spent.most;
        }
        for (name, admitted) in other.tight {
            *self.tight.entry(name).or_default() += admitted;
        }
        for (form, failed) in other.failed {
            *self.failed.entry(form).or_default() += failed;
        }
        self.paced.extend(other.paced);
        self.calls += other.calls;
        self.found.extend(other.found);
    }
}

async fn one_call(handles: &Handles, ended: &AtomicU64, random: &mut u64, report: &mut Report) {
    let ended_before = ended.load(Relaxed);
    let form = FORMS[(xorshift(random) % FORMS.len() as u64) as usize];
    let count = (1 + xorshift(random) % 3) as f64;
    let (began, clock) = (now(), Instant::now());
    let what;
    let result = match xorshift(random) % 16 {
        0 => {
            what = "tight";
            let name = ["tight kinds", "tight shards"][(xorshift(random) % 2) as usize];
            let result = in_form(handles, form, Op::Limit, (name, "k", count).into(), random).await;
            if end_of(&result) == End::Done {
                *report.tight.entry(name.to_owned()).or_default() += count;
            }
            result
        }
        1..4 => {
            what = "paced";
            let result = in_form(handles, form, Op::Limit, ("paced", "k", count).into(), random).await;
            if end_of(&result) == End::Done {
                report.paced.push((began, now(), count));
            }
            result
        }
        4 => {
            what = "reset";
            let call = || [Item::new("reset", "k"), Item::new("reset sharded", "k")];
            let (own, pooled) = &handles.0[(xorshift(random) % 2) as usize];
            match xorshift(random) % 8 {
                0 => own.reset(call()).await.map(|()| false).map_err(AppError::from),
                1 => pooled.reset(call()).await.map(|()| false).map_err(AppError::from),
                2 => own.reset_all_keys("reset sharded").await.map(|_| false).map_err(AppError::from),
                3 => own.prune().await.map(|_| false).map_err(AppError::from),
                _ => in_form(handles, form, Op::Limit, call().into(), random).await,
            }
        }
        _ => {
            what = "books";
            let op = [Op::Limit, Op::Limit, Op::Limit, Op::Credit, Op::Charge, Op::Check, Op::Peek]
                [(xorshift(random) % 7) as usize];
            let sets: [&[&str]; 5] = [&["a"], &["a", "b"], &["c", "b"], &["sharded", "a"], &["sharded"]];
            let set = sets[(xorshift(random) % 5) as usize];
            // Groups of one key and of several, in any order.
            let mut items: Vec<(&str, u64)> = set.iter().map(|name| (*name, xorshift(random) % KEYS)).collect();
            // Besides existing rows, one that several processes insert at the same time.
            if matches!(op, Op::Limit | Op::Charge) && xorshift(random).is_multiple_of(2) {
                let name = BOOKS[(xorshift(random) % 4) as usize];
                items.push((name, NEW_KEYS + now() / 100_000 % 1_000_000));
            }
            let call: Vec<Item> =
                items.iter().map(|(name, key)| Item::new(*name, format!("k{key}")).count(count)).collect();
            // Only `limit` runs with an idempotency key here.
            let form = if op == Op::Limit || form != "once" { form } else { "own" };
            let result = in_form(handles, form, op, call.into(), random).await;
            report.add_books(&items, op, count, end_of(&result));
            result
        }
    };
    report.calls += 1;
    let (took, meanwhile) = (clock.elapsed(), ended.fetch_add(1, Relaxed) - ended_before);
    if took > LONGEST && meanwhile >= CALLS_MEANWHILE {
        report.found.push(format!("{what}, {form}: {took:?} and {meanwhile} other calls, then {result:?}"));
    }
    if let Err(error) = result {
        let text = error.to_string();
        let code = text.split_once("SQLSTATE ").map_or("", |(_, code)| &code[..5.min(code.len())]);
        *report.failed.entry(format!("{form} {code}")).or_default() += 1;
        let is_wrong = matches!(
            error,
            AppError::Limiter(Error::RetriesExhausted { .. } | Error::Overloaded { .. } | Error::Invalid(_))
        );
        if is_wrong {
            report.found.push(format!("{what}, {form}: {text}"));
        }
    }
}

async fn run(work: &Work) -> Report {
    let variants = [Handles::new(work, work.seed), Handles::new(work, work.seed + 1)];
    let until = Instant::now() + Duration::from_secs(work.seconds);
    let ended = &AtomicU64::new(0);
    let callers = (0..CALLERS).map(|nth| {
        let mut random = work.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(nth + 1);
        let variants = &variants;
        async move {
            let mut report = Report::default();
            while Instant::now() < until || report.calls < LEAST_CALLS * work.seconds {
                let variant = usize::from(xorshift(&mut random).is_multiple_of(2));
                one_call(&variants[variant], ended, &mut random, &mut report).await;
            }
            report
        }
    });
    let mut sum = Report::default();
    join_all(callers).await.into_iter().for_each(|report| sum.add(report));
    for (own, pooled) in variants.iter().flat_map(|handles| &handles.0) {
        for limiter in [own, pooled] {
            limiter.close().await;
            limiter.pool().close().await;
        }
    }
    sum
}

const WORK: &str = "PG_LIMITER_TEST_LOAD";

/// The entry point of a load process: [`in_processes`] starts this binary again.
#[test]
fn load_process() {
    let Ok(work) = std::env::var(WORK) else { return };
    let work: Work = serde_json::from_str(&work).expect("work");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let report = runtime.block_on(run(&work));
    println!("\nDONE {}", serde_json::to_string(&report).expect("a report"));
}

async fn in_processes(work: &Work) -> Report {
    let children = (0..PROCESSES).map(|nth| {
        let work = Work { seed: work.seed + 1_000 * nth, ..work.clone() };
        tokio::process::Command::new(std::env::current_exe().expect("this binary"))
            .args(["mixed_load::load_process", "--exact", "--nocapture"])
            .env(WORK, serde_json::to_string(&work).expect("work"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process")
            .wait_with_output()
    });
    let mut sum = Report::default();
    for output in join_all(children).await {
        let output = output.expect("a report");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "seed {}: a process failed: {text}", work.seed);
        let line = text.lines().find_map(|line| line.strip_prefix("DONE ")).expect("a report");
        sum.add(serde_json::from_str(line).expect("a report"));
    }
    sum
}

/// Over any interval, the limit admits at most its capacity and the refill.
fn too_much(paced: &mut [(u64, u64, f64)]) -> Option<String> {
    paced.sort_by_key(|(_, ended, _)| *ended);
    for (from, ..) in paced.iter() {
        let mut sum = 0.0;
        for (_, ended, count) in paced.iter().filter(|(began, ..)| began >= from) {
            sum += count;
            let most = CAPACITY + RATE * (ended - from) as f64 / 1e6;
            if sum > most + 1e-6 {
                return Some(format!("{sum} were admitted within {} us, and {most} are allowed", ended - from));
            }
        }
    }
    None
}

async fn end_backends(pool: &PgPool, seed: u64, until: Instant) -> u64 {
    let mut random = seed;
    let mut ended = 0;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50 + xorshift(&mut random) % 150)).await;
        let function = ["pg_cancel_backend", "pg_terminate_backend"][(xorshift(&mut random) % 2) as usize];
        let sql = format!(
            "SELECT count(*) FROM (SELECT {function}(pid) FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name = 'load' AND state <> 'idle' ORDER BY random() LIMIT 1) AS one"
        );
        ended += sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql)).fetch_one(pool).await.expect("it").cast_unsigned();
    }
    ended
}

/// A private server, if server programs are installed. Under SERIALIZABLE, the server summarizes old transactions once there
/// are many, and then a transaction that another test leaves open causes conflicts in all databases of the server.
async fn server_of_its_own() -> (Result<Server, Database>, String) {
    let started = tokio::task::spawn_blocking(|| Server::start(&server_config())).await.expect("a task");
    match started {
        Ok(server) => {
            let url = server.url("postgres");
            (Ok(server), url)
        }
        Err(_) => {
            let database = Database::empty().await;
            let url = database.url.clone();
            (Err(database), url)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn every_operation_at_mixed_isolation_levels_keeps_the_books_and_makes_progress() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seconds = number("PG_LIMITER_TEST_LOAD_SECONDS").unwrap_or(10);
    let seed = number("PG_LIMITER_TEST_SEED").unwrap_or_else(|| now() % 1_000_000_007);
    let (_server, url) = server_of_its_own().await;
    let pool = Database::pool(&url, 4).await;
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let limiter = limiter_at(&url, limits(0), |_| {});
    for (name, key) in BOOKS.iter().flat_map(|name| (0..KEYS).map(move |key| (*name, key))) {
        let _ = limiter.charge((name, format!("k{key}"), FIRST_CHARGE)).await.expect("a charge");
    }
    let work = Work { url: url.clone(), seed, seconds };
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut report, ended) = tokio::join!(in_processes(&work), end_backends(&pool, seed, until));
    let under_way =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'load'";
    while sqlx::query_scalar::<_, i64>(under_way).fetch_one(&pool).await.expect("the backends") > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let mut found = std::mem::take(&mut report.found);
    for (bucket, expected) in &report.books {
        let (name, key) = bucket.split_once(' ').expect("a name and a key");
        let is_new = key[1..].parse::<u64>().expect("a number") >= NEW_KEYS;
        let left = limiter.peek((name, key)).await.expect("a balance").remaining();
        let spent = STOCK - if is_new { 0.0 } else { FIRST_CHARGE } - left;
        if spent < expected.least - 1e-3 || spent > expected.most + 1e-3 {
            found.push(format!("{bucket}: {spent} are spent, expected {expected:?}"));
        }
    }
    for (name, admitted) in &report.tight {
        if *admitted > TIGHT + 1e-3 {
            found.push(format!("{name}: {admitted} were admitted of {TIGHT}"));
        }
    }
    found.extend(too_much(&mut report.paced));
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    tokio::time::sleep(Duration::from_millis(600)).await; // Terminated backends have reported their statistics by then.
    let deadlocks: i64 = sqlx::query_scalar(deadlocks).fetch_one(&pool).await.expect("the deadlocks");
    if deadlocks > 0 {
        found.push(format!("{deadlocks} deadlocks"));
    }
    let seen = format!(
        "seed {seed}, {seconds} s: {} calls, {ended} backends ended or cancelled, {} admitted of the paced limit, tight: {:?}, \
         failed: {:?}",
        report.calls,
        report.paced.len(),
        report.tight,
        report.failed
    );
    eprintln!("{seen}");
    assert!(found.is_empty(), "{seen}: {} findings: {:#?}", found.len(), &found[..found.len().min(20)]);
    assert!(report.calls > 50 * seconds && report.paced.len() > 20, "too little happened: {seen}");
}
