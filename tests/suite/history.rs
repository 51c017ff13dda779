//! Histories: many callers run in one process and in several, under random failures; then the books are checked.

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use pg_limiter::sqlx::postgres::{PgDatabaseError, PgSeverity};
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Call, Connections, Engine, Error, Isolation, Item, Limit, Limiter, Limits};
use serde::{Deserialize, Serialize};

use crate::support::gate::CENTURY;
use crate::support::history::{Group, Outcome, Record, violations};
use crate::support::payloads::payload;
use crate::support::proxy::{Chaos, Point, Proxy, Way, xorshift};
use crate::support::{Database, limiter_at};

const DEADLINE: Duration = Duration::from_secs(2);
/// The deadline, that for the end of a unit of work, and a margin for a busy machine.
const LONGEST: Duration = Duration::from_secs(30);
/// The number of keys for each set of limits. The buckets of a set and key are always charged together, and an unknown
/// outcome for one key hides nothing about the others.
const KEYS: usize = 6;
/// Sets of limits, and the capacity of each limit in the set: some are exhausted, and some are not.
const SETS: [(&[&str], u32); 8] = [
    (&["a"], SMALL),
    (&["sharded"], SMALL),
    (&["a", "b"], SMALL),
    (&["c", "b", "a"], SMALL),
    (&["b", "sharded"], SMALL),
    (&["large"], LARGE),
    (&["large", "large, too"], LARGE),
    (&["large, too"], LARGE),
];
const SMALL: u32 = 16;
const LARGE: u32 = 10_000;

/// The task of a worker process.
#[derive(Clone, Serialize, Deserialize)]
struct Work {
    url: String,
    seed: u64,
    callers: u64,
    calls: u64,
    yugabyte: bool,
    read_committed: bool,
}

fn limits() -> Limits {
    let all = [
        ("a", SMALL, 1),
        ("b", SMALL, 1),
        ("c", SMALL, 1),
        ("sharded", SMALL, 3),
        ("large", LARGE, 1),
        ("large, too", LARGE, 1),
    ];
    all.iter().fold(Limits::new(), |limits, (name, capacity, shards)| {
        let limit = Limit::token_bucket(1e-6, CENTURY).capacity(*capacity).shards(*shards);
        limits.define(name, limit).expect("a limit")
    })
}

fn limiter(work: &Work, connections: Connections) -> Limiter {
    limiter_at(&format!("{}?application_name=proxied", work.url), limits(), |config| {
        config.connections = connections;
        config.engine = Some(if work.yugabyte { Engine::Yugabyte } else { Engine::PostgreSql });
        config.isolation = if work.read_committed { Isolation::ReadCommitted } else { Isolation::Serializable };
        (config.retry.deadline, config.retry.max_attempts) = (DEADLINE, 1_000);
    })
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Limiter(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    /// A COMMIT failed.
    #[error("commit: {0}")]
    Commit(sqlx::Error),
}

/// Whether PostgreSQL itself reported that it has not committed.
fn is_told_undone(error: &sqlx::Error, work: &Work) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    let is_error =
        error.try_downcast_ref::<PgDatabaseError>().is_some_and(|error| error.severity() == PgSeverity::Error);
    is_error && !work.yugabyte && !matches!(error.code().as_deref(), Some("40003" | "08007"))
}

fn outcome_of(result: Result<bool, AppError>, work: &Work) -> Outcome {
    match result {
        Ok(true) => Outcome::Admitted,
        Ok(false) => Outcome::Denied,
        Err(AppError::Limiter(error @ Error::OutcomeUnknown { .. })) => Outcome::Unknown(error.to_string()),
        Err(AppError::Commit(error)) if !is_told_undone(&error, work) => Outcome::Unknown(error.to_string()),
        Err(AppError::Limiter(
            error @ (Error::Invalid(_) | Error::Closed | Error::Overloaded { .. } | Error::Aborted),
        )) => {
            panic!("{error}")
        }
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

async fn within(limiter: &Limiter, items: Vec<Item>) -> Result<bool, AppError> {
    let mut tx = limiter.pool().begin().await?;
    let allowed = match limiter.within(&mut tx).limit(items).await {
        Ok(decision) => decision.is_allowed(),
        // Before the COMMIT, nothing can have been committed.
        Err(Error::OutcomeUnknown { last }) => return Err(last.into()),
        Err(error) => return Err(error.into()),
    };
    tx.commit().await.map_err(AppError::Commit)?;
    Ok(allowed)
}

/// After an unknown outcome, repeats the call with the same key.
async fn once(limiter: &Limiter, items: Vec<Item>, id: u64) -> Result<bool, AppError> {
    let call = Call::from(items).idempotency_key(id.to_string());
    let mut result = limiter.limit(call.clone()).await;
    for _ in 0..3 {
        if matches!(result, Err(Error::OutcomeUnknown { .. })) {
            result = limiter.limit(call.clone()).await.map_err(|error| match error {
                // The later error says nothing about the first attempt.
                Error::Invalid(_) | Error::Closed => error,
                error => Error::OutcomeUnknown { last: sqlx::Error::Protocol(error.to_string()) },
            });
        }
    }
    Ok(result?.is_allowed())
}

async fn unit(limiter: &Limiter, items: Vec<Item>) -> Result<bool, AppError> {
    let result = limiter
        .transaction(async |tx| {
            let allowed = limiter.within(&mut *tx).limit(items.clone()).await;
            allowed.map_err(|error| match error {
                Error::OutcomeUnknown { last } => AppError::Database(last),
                error => error.into(),
            })
        })
        .await;
    result.map(|decision| decision.is_allowed())
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    u64::try_from(now.as_micros()).expect("a time")
}

async fn one_call(own: &Limiter, pooled: &Limiter, work: &Work, random: &mut u64) -> Record {
    let group = usize::try_from(xorshift(random) % (SETS.len() * KEYS) as u64).expect("small");
    let count = u32::try_from(1 + xorshift(random) % 3).expect("small");
    let key = format!("k{group}");
    let items: Vec<Item> =
        SETS[group / KEYS].0.iter().map(|name| Item::new(*name, key.as_str()).count(count)).collect();
    let ran =
        ["own", "own", "own, dropped", "over the pool", "once", "unit", "within"][(xorshift(random) % 7) as usize];
    let patience = Duration::from_millis(1 + xorshift(random) % 20);
    let (began, clock) = (now(), Instant::now());
    let result = match ran {
        "own" => own.limit(items).await.map(|decision| decision.is_allowed()).map_err(AppError::from),
        "own, dropped" => match tokio::time::timeout(patience, own.limit(items)).await {
            Ok(result) => result.map(|decision| decision.is_allowed()).map_err(AppError::from),
            Err(_) => Err(AppError::Commit(sqlx::Error::WorkerCrashed)),
        },
        "over the pool" => pooled.limit(items).await.map(|decision| decision.is_allowed()).map_err(AppError::from),
        "once" => once(own, items, xorshift(random)).await,
        "unit" => unit(own, items).await,
        _ => within(pooled, items).await,
    };
    let ended = began + u64::try_from(clock.elapsed().as_micros()).expect("a time");
    Record { group, count, began, ended, ran: ran.to_owned(), outcome: outcome_of(result, work) }
}

async fn run(work: &Work) -> Vec<Record> {
    let (own, pooled) = (limiter(work, Connections::Own), limiter(work, Connections::Pool));
    let callers = (0..work.callers).map(|nth| {
        let (own, pooled) = (&own, &pooled);
        let mut random = work.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(nth + 1);
        async move {
            let mut records = Vec::new();
            for _ in 0..work.calls {
                records.push(one_call(own, pooled, work, &mut random).await);
            }
            records
        }
    });
    let history = join_all(callers).await.concat();
    for limiter in [own, pooled] {
        limiter.close().await;
        limiter.pool().close().await;
    }
    history
}

/// The entry point of a worker process: [`in_processes`] starts this binary again.
#[test]
fn worker_process() {
    let Ok(work) = std::env::var("PG_LIMITER_TEST_HISTORY") else { return };
    let work: Work = serde_json::from_str(&work).expect("work");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let history = runtime.block_on(run(&work));
    println!("\nDONE {}", serde_json::to_string(&history).expect("a report"));
}

async fn in_processes(processes: u64, work: &Work) -> Vec<Record> {
    let children = (0..processes).map(|nth| {
        let work = Work { seed: work.seed + 1_000 * nth, ..work.clone() };
        tokio::process::Command::new(std::env::current_exe().expect("this binary"))
            .args(["history::worker_process", "--exact", "--nocapture"])
            .env("PG_LIMITER_TEST_HISTORY", serde_json::to_string(&work).expect("work"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process")
            .wait_with_output()
    });
    let mut history = Vec::new();
    for output in join_all(children).await {
        let output = output.expect("a report");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "seed {}: a worker failed: {text}", work.seed);
        let line = text.lines().find_map(|line| line.strip_prefix("DONE ")).expect("a report");
        history.extend(serde_json::from_str::<Vec<Record>>(line).expect("a report"));
    }
    history
}

/// The faults, at every point where they make sense.
fn menu(yugabyte: bool) -> Vec<(Point, Way)> {
    let before = |name| Way::Before(payload(name));
    let mut menu = vec![
        (Point::Connect, before("full")),
        (Point::Connect, Way::Drop),
        (Point::Begin, before("killed")),
        (Point::Begin, Way::Cut),
        (Point::Prepare, before("killed")),
        (Point::Prepare, before("not prepared")),
        (Point::Statement, before("conflict")),
        (Point::Statement, before("deadlock")),
        (Point::Statement, before("crashed")),
        (Point::Statement, before("read only")),
        (Point::Statement, before("duplicate")),
        (Point::Statement, before("ambiguous")),
        (Point::Statement, Way::Drop),
        (Point::Statement, Way::Cut),
        (Point::Statement, Way::Delay(Duration::from_millis(30))),
        (Point::Statement, Way::Delay(DEADLINE + Duration::from_millis(300))),
        (Point::Probe, before("pivot")),
        (Point::Probe, Way::Drop),
        (Point::Flush, before("killed")),
        (Point::Flush, before("internal")),
        (Point::Flush, Way::Cut),
        (Point::Commit, before("pivot")),
        (Point::Commit, before("killed")),
        (Point::Commit, before("ambiguous")),
        (Point::Commit, Way::After(payload("killed"))),
        (Point::Commit, Way::After(payload("connection failure"))),
        (Point::Commit, Way::After(payload("resolution unknown"))),
        (Point::Commit, Way::Drop),
        (Point::Commit, Way::Cut),
        (Point::Commit, Way::Delay(Duration::from_millis(30))),
        (Point::Commit, Way::Delay(DEADLINE + Duration::from_millis(300))),
    ];
    if yugabyte {
        let gone = ["expired", "expired heartbeat", "aborted", "expired commit", "timed out", "leaked conflict"];
        for name in gone {
            menu.extend([(Point::Commit, before(name)), (Point::Commit, Way::After(payload(name)))]);
            menu.push((Point::Statement, before(name)));
        }
        menu.extend([(Point::Begin, before("timed out")), (Point::Prepare, before("catalog version"))]);
    }
    menu
}

async fn balances(direct: &PgPool) -> Vec<Group> {
    let limiter = Limiter::new(direct.clone(), limits());
    let mut groups = Vec::new();
    for nth in 0..SETS.len() * KEYS {
        let (names, capacity) = SETS[nth / KEYS];
        let mut left = Vec::new();
        for name in names {
            left.push(limiter.peek((*name, format!("k{nth}"))).await.expect("a balance").remaining());
        }
        groups.push(Group { capacity: f64::from(capacity), left });
    }
    groups
}

/// Runs the work behind a proxy that injects faults, in this process or in several, and checks the books.
async fn assert_balanced(processes: u64, mut work: Work) {
    let database = Database::migrated().await;
    let proxy = Proxy::before(&database.url).await;
    work.url.clone_from(&proxy.url);
    proxy.unleash(Chaos { seed: work.seed, per_thousand: 60, menu: menu(work.yugabyte) });
    let history = if processes == 0 { run(&work).await } else { in_processes(processes, &work).await };
    proxy.calm();
    // Abandoned calls may still be on their way.
    proxy.until_idle().await;
    let under_way =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'proxied'";
    while sqlx::query_scalar::<_, i64>(under_way).fetch_one(&database.pool).await.expect("the backends") > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let groups = balances(&database.pool).await;
    let longest = u64::try_from(LONGEST.as_micros()).expect("a time");
    let found = violations(&groups, &history, longest);
    let count = |is: fn(&Outcome) -> bool| history.iter().filter(|record| is(&record.outcome)).count();
    let [admitted, denied, failed, unknown] = [
        count(|outcome| *outcome == Outcome::Admitted),
        count(|outcome| *outcome == Outcome::Denied),
        count(|outcome| matches!(outcome, Outcome::Failed(_))),
        count(|outcome| matches!(outcome, Outcome::Unknown(_))),
    ];
    let seen = format!(
        "seed {}, {processes} processes, yugabyte: {}, read committed: {}: {admitted} admitted, {denied} denied, {failed} \
         failed, {unknown} unknown; {:?}",
        work.seed,
        work.yugabyte,
        work.read_committed,
        proxy.seen()
    );
    eprintln!("{seen}");
    assert!(found.is_empty(), "{seen}: {found:#?}");
    assert!(admitted > 0 && denied > 0 && unknown > 0, "nothing happened: {seen}");
    assert!(proxy.count(|seen| &seen.faults) > 20, "too few faults: {seen}");
}

/// `PG_LIMITER_TEST_SEED` repeats the callers' choices of a run.
fn seed() -> u64 {
    std::env::var("PG_LIMITER_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| now() % 1_000_000_007)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_one_process_the_books_balance_whatever_goes_wrong() {
    for (nth, (yugabyte, read_committed)) in [(false, false), (false, true), (true, false)].into_iter().enumerate() {
        let seed = seed() + nth as u64;
        let work = Work { url: String::new(), seed, callers: 24, calls: 25, yugabyte, read_committed };
        assert_balanced(0, work).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn in_several_processes_the_books_balance_whatever_goes_wrong() {
    for (nth, (yugabyte, read_committed)) in [(false, false), (false, true), (true, false)].into_iter().enumerate() {
        let seed = seed() + nth as u64;
        let work = Work { url: String::new(), seed, callers: 8, calls: 25, yugabyte, read_committed };
        assert_balanced(3, work).await;
    }
}

/// The findings for one group of two buckets of 10 tokens each.
fn made_up(left: [f64; 2], outcomes: &[(Outcome, u64, u64)]) -> Vec<String> {
    let record = |(outcome, began, ended): &(Outcome, u64, u64)| Record {
        group: 0,
        count: 4,
        began: *began,
        ended: *ended,
        ran: String::new(),
        outcome: outcome.clone(),
    };
    let history: Vec<Record> = outcomes.iter().map(record).collect();
    violations(&[Group { capacity: 10.0, left: left.to_vec() }], &history, 100)
}

#[test]
fn unbalanced_books_are_reported() {
    let (admitted, denied) = (|| Outcome::Admitted, || Outcome::Denied);
    let (unknown, failed) = (|| Outcome::Unknown(String::new()), || Outcome::Failed(String::new()));
    for left in [[2.0; 2], [6.0; 2]] {
        let fine = made_up(left, &[(admitted(), 0, 9), (unknown(), 1, 8), (failed(), 1, 8), (denied(), 2, 9)]);
        assert_eq!(fine, [""; 0]);
    }
    let cases = [
        ("only 4 spent", made_up([6.0; 2], &[(admitted(), 0, 9), (admitted(), 0, 9)])),
        ("at most 4 taken", made_up([2.0; 2], &[(admitted(), 0, 9), (failed(), 0, 9)])),
        ("at most 0 taken", made_up([6.0; 2], &[(denied(), 0, 9)])),
        ("12 were spent of 10", made_up([-2.0; 2], &[(admitted(), 0, 9), (admitted(), 0, 9), (unknown(), 0, 9)])),
        ("not charged as a whole", made_up([6.0, 10.0], &[(unknown(), 0, 9)])),
        ("denied with 6 left", made_up([6.0; 2], &[(admitted(), 0, 9), (denied(), 10, 20)])),
        // The second admission came later.
        ("denied with 6 left", made_up([2.0; 2], &[(admitted(), 0, 9), (denied(), 10, 20), (admitted(), 21, 30)])),
        ("late", made_up([6.0; 2], &[(admitted(), 0, 101)])),
    ];
    for (expected, found) in cases {
        assert!(found.iter().any(|found| found.contains(expected)), "{expected}: {found:?}");
    }
}
