//! Jobs that cannot start yet and share a bucket with others: none starves, and none starts on tokens that do not exist.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pg_limiter::queue::{Finish, Job, JobState, Queue, RunningJob, handler_fn};
use pg_limiter::sqlx::PgConnection;
use pg_limiter::{Item, Limit, Limits};

use crate::queue::{queue_with, quick, work_until_done};
use crate::queue_contended::{claim, enqueue, make_due};
use crate::support::starts::{assert_times, record, recorded};
use crate::support::{Database, is_conflict};

const SECOND: Duration = Duration::from_secs(1);

fn idle() -> impl pg_limiter::queue::Handler {
    pg_limiter::queue::handler_fn(|_, _| Box::pin(async { Ok(pg_limiter::queue::Finish::Done) }))
}

async fn queue_of(database: &Database, rate: f64, capacity: f64) -> Queue {
    let limits = Limits::new().define("l", Limit::token_bucket(rate, SECOND).capacity(capacity)).expect("limits");
    queue_with(database, limits).await
}

fn of(group: &str, count: u32) -> Job {
    Job::new(Item::global("l").count(count), &1).expect("a job").group(group)
}

/// Claims repeatedly until this number of jobs has started; returns their ids.
async fn claimed(database: &Database, jobs: usize, limit: (&str, f64, Duration, f64), bound: Duration) -> Vec<i64> {
    let began = Instant::now();
    let mut ids = Vec::new();
    while ids.len() < jobs && began.elapsed() < bound {
        ids.extend(claim(&database.pool, 100, 0, limit).await.into_iter().map(|(id, _)| id));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ids
}

async fn looks_again(database: &Database) {
    let sql = "UPDATE rate_limit.groups SET not_before = 0 WHERE key NOT IN (SELECT key FROM rate_limit.jobs WHERE paid_until > 0)";
    database.execute(sql).await;
}

#[tokio::test]
async fn oversized_jobs_start_at_the_rate_after_workers_were_away() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let (rate, capacity) = (100.0, 1.0);
    let queue = queue_of(&database, rate, capacity).await;
    for nth in 0..30 {
        enqueue(&queue, of(&format!("{nth}"), 10)).await;
    }
    make_due(&database).await;
    let limit = ("l", rate, SECOND, capacity);
    let mut started = claimed(&database, 3, limit, 10 * SECOND).await.len();
    tokio::time::sleep(Duration::from_millis(3_300)).await;
    started += claimed(&database, 30 - started, limit, 30 * SECOND).await.len();
    assert_eq!(started, 30);
    let mut starts = recorded(&database.pool).await;
    starts.iter_mut().for_each(|start| start.key.clear());
    assert_times(&starts, rate, SECOND, 10.0);
}

#[tokio::test]
async fn a_cancelled_and_requeued_job_starts_on_no_earlier_payment() {
    let database = Database::migrated().await;
    // The large job has paid after 4 s.
    let (rate, capacity) = (2.0, 1.0);
    let queue = queue_of(&database, rate, capacity).await;
    let limit = ("l", rate, SECOND, capacity);
    enqueue(&queue, of("a", 1)).await;
    let large = enqueue(&queue, of("large", 8)).await;
    make_due(&database).await;
    assert_eq!(claim(&database.pool, 9, 0, limit).await.len(), 1);
    looks_again(&database).await;
    assert_eq!(claim(&database.pool, 9, 0, limit).await, []);
    assert_eq!(queue.cancel(large).await.expect("an answer"), JobState::Available);
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    assert_eq!(claim(&database.pool, 9, 0, limit).await, []);
    assert!(queue.requeue(large).await.expect("an answer").is_some());
    let small = enqueue(&queue, of("b", 1)).await;
    make_due(&database).await;
    database.execute(&format!("UPDATE rate_limit.jobs SET run_at = 5000000 WHERE id = {large}")).await;
    looks_again(&database).await;
    let started: Vec<i64> = claim(&database.pool, 9, 0, limit).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(started, [small], "the small job took the available tokens");
}

#[tokio::test]
async fn cancelling_a_job_that_has_paid_ahead_lets_the_others_start_at_once() {
    let database = Database::migrated().await;
    let (rate, capacity) = (1.0, 1.0);
    let queue = queue_of(&database, rate, capacity).await;
    let limit = ("l", rate, SECOND, capacity);
    enqueue(&queue, of("a", 1)).await;
    let large = enqueue(&queue, of("large", 100)).await;
    make_due(&database).await;
    assert_eq!(claim(&database.pool, 9, 0, limit).await.len(), 1);
    looks_again(&database).await;
    assert_eq!(claim(&database.pool, 9, 0, limit).await, []);
    let waits = enqueue(&queue, of("b", 1)).await;
    make_due(&database).await;
    assert_eq!(claim(&database.pool, 9, 0, limit).await, []);
    // The cancelling transaction stays open for a while, and delays no other job.
    let mut tx = database.app.begin().await.expect("begin");
    assert_eq!(queue.within(&mut tx).cancel(large).await.expect("an answer"), JobState::Available);
    assert_eq!(claim(&database.pool, 9, 0, limit).await, []);
    tx.commit().await.expect("commit");
    assert_eq!(claimed(&database, 1, limit, 10 * SECOND).await, [waits]);
}

/// The small jobs also have to wait, and one of them is always ready before the large one.
#[tokio::test]
async fn a_job_that_fits_its_bucket_is_not_starved_by_small_ones_of_other_groups() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let (rate, capacity) = (50.0, 10.0);
    let queue = queue_of(&database, rate, capacity).await;
    for nth in 0..50 {
        enqueue(&queue, of(&format!("{}", nth % 5), 1)).await;
    }
    let large = enqueue(&queue, of("large", 10)).await;
    for nth in 0..250 {
        enqueue(&queue, of(&format!("{}", nth % 5), 1)).await;
    }
    make_due(&database).await;
    work_until_done(&queue, quick(), idle(), 301).await;
    let mut starts = recorded(&database.pool).await;
    let place = starts.iter().position(|start| start.job == large).expect("a start");
    assert!(place < 150, "{place} small jobs started before it");
    starts.iter_mut().for_each(|start| start.key.clear());
    assert_times(&starts, rate, SECOND, capacity);
}

/// A job of two limits that waits for the slower one keeps no tokens of the other. When many such jobs become ready at the
/// same moment, they start at the rate of the limit that they share.
#[tokio::test]
async fn jobs_that_become_ready_together_start_at_the_rate_of_their_shared_limit() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let queue = queue_with(&database, two_limits()).await;
    for round in 0..2 {
        for nth in 0..20 {
            let items = [Item::new("each", format!("{nth}")).count(5), Item::global("all").count(5)];
            enqueue(&queue, Job::new(items, &round).expect("a job").group(format!("{nth}"))).await;
        }
    }
    make_due(&database).await;
    work_until_done(&queue, quick(), idle(), 40).await;
    let mut starts = recorded(&database.pool).await;
    assert_times(&starts, 2.0, SECOND, 5.0);
    starts.iter_mut().for_each(|start| start.key.clear());
    assert_times(&starts, 100.0, SECOND, 5.0);
}

fn two_limits() -> Limits {
    Limits::new()
        .define("each", Limit::token_bucket(2, SECOND).capacity(1))
        .and_then(|limits| limits.define("all", Limit::token_bucket(100, SECOND).capacity(1)))
        .expect("limits")
}

/// Groups share a window with a capacity below its rate, and a small job does not fit beside a large one. No window starts
/// more than its rate.
#[tokio::test]
async fn a_shared_window_starts_no_more_than_its_rate_and_starves_no_large_job() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let period = Duration::from_millis(400);
    let limits =
        Limits::new().define("l", Limit::fixed_window(10, period).capacity(0).start(Duration::ZERO)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let mut large = Vec::new();
    for nth in 0..40 {
        enqueue(&queue, of(&format!("small {}", nth % 4), 4)).await;
        if nth < 4 {
            large.push(enqueue(&queue, of(&format!("large {nth}"), 7)).await);
        }
    }
    make_due(&database).await;
    work_until_done(&queue, quick(), idle(), 44).await;
    let starts = recorded(&database.pool).await;
    let last = starts.iter().rposition(|start| large.contains(&start.job)).expect("a start");
    assert!(last < 35, "a large job was the {last}th");
    let period = i64::try_from(period.as_micros()).expect("short");
    let mut windows = std::collections::BTreeMap::<i64, f64>::new();
    for start in &starts {
        *windows.entry(start.at / period).or_default() += start.count;
    }
    // A start is recorded a moment after its tokens are taken, so it may fall into the next window.
    assert!(windows.values().all(|taken| *taken <= 17.0), "{windows:?}");
    let taken: f64 = windows.values().sum();
    let (first, last) = (*windows.keys().next().expect("a window"), *windows.keys().last().expect("a window"));
    assert!(taken <= 10.0 * (last - first + 1) as f64 + 1e-6, "{windows:?}");
}

/// Claims are autocommitted statements only if the session's default is READ COMMITTED.
#[tokio::test]
async fn a_worker_claims_whatever_the_isolation_level_of_its_sessions() {
    let database = Database::migrated().await;
    for level in ["serializable", "repeatable read"] {
        let sql = format!("ALTER DATABASE {} SET default_transaction_isolation = '{level}'", database.name);
        database.execute(&sql).await;
        let limits = Limits::new().define("l", Limit::token_bucket(100, SECOND)).expect("limits");
        let pool = Database::pool(&database.url, 10).await;
        let queue = Queue::new(&pg_limiter::Limiter::new(pool.clone(), limits), level).expect("a queue");
        for nth in 0..3 {
            enqueue(&queue, of(&format!("{nth}"), 1)).await;
        }
        work_until_done(&queue, quick(), idle(), 3).await;
        pool.close().await;
    }
}

/// Urgent jobs that are due all the time leave a tenth of a worker's starts to the others, in their group and in others, whether
/// the limit or the worker allows no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_urgent_jobs_lets_others_start() {
    let cases = [
        (1_000.0, "urgent", [1, 1], Duration::ZERO),
        (40.0, "urgent", [1, 1], Duration::ZERO),
        (40.0, "urgent", [3, 1], Duration::ZERO),
        (40.0, "other", [1, 1], Duration::ZERO),
        (1_000.0, "other", [1, 1], SECOND / 40), // One job in each claim: the next one is claimed when it has ended.
        (1_000.0, "urgent", [1, 1], SECOND / 40),
    ];
    for (rate, group, counts, length) in cases {
        let database = Database::migrated().await;
        let queue = queue_of(&database, rate, 1.0).await;
        // Another worker has walked over the queue with these limits. A walk locks a group for a moment, and claims pass it over.
        let walk = "SELECT rate_limit._retime_jobs(
            'q', 'other', NULL, NULL, '{l}', '{token_bucket}', ARRAY[$1::float8], '{1000000}', '{1}', '{NULL}', NULL)";
        sqlx::query(walk).bind(rate).execute(&database.pool).await.expect("a walk");
        let mut ids = Vec::new();
        for job in counts.map(|count| of(group, count)) {
            ids.push(enqueue(&queue, job).await);
        }
        for _ in 0..60 {
            enqueue(&queue, of("urgent", 1).priority(1)).await;
        }
        make_due(&database).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&order);
        let handler = handler_fn(move |job: &RunningJob, _: &mut PgConnection| {
            seen.lock().expect("the order").push(job.id);
            Box::pin(async move {
                tokio::time::sleep(length).await;
                Ok(Finish::Done)
            })
        });
        let mut config = quick();
        config.concurrency = 1;
        work_until_done(&queue, config, handler, 62).await;
        let order = order.lock().expect("the order").clone();
        let places: Vec<usize> =
            ids.iter().map(|id| order.iter().position(|other| other == id).expect("it started")).collect();
        let context = format!("{rate} a second, {group}, {counts:?}, {length:?}: {places:?}");
        // Nine others come before each one. If the first one needs more tokens than there are, it has to wait for some.
        assert!((9..=12).contains(&places[0]) && (places[0] + 9..=30).contains(&places[1]), "{context}");
        // The urgent jobs keep their order.
        let urgent: Vec<i64> = order.into_iter().filter(|id| !ids.contains(id)).collect();
        assert!(urgent.is_sorted(), "{context}");
    }
}

/// However many jobs of the lower priority are late: they do not pay ahead of the others, but for their turns.
#[tokio::test]
async fn late_jobs_of_a_lower_priority_get_a_tenth_of_a_shared_limit() {
    let database = Database::migrated().await;
    let queue = queue_of(&database, 40.0, 1.0).await;
    let mut others = Vec::new();
    for _ in 0..20 {
        others.push(enqueue(&queue, of("other", 1)).await);
    }
    for _ in 0..40 {
        enqueue(&queue, of("urgent", 1).priority(1)).await;
    }
    make_due(&database).await;
    let claim = "SELECT job_id, passed FROM rate_limit._claim('q', 'w', 8, 5000, 30000000, 1000000, '{l}', \
                 '{token_bucket}', '{40}', '{1000000}', '{1}', '{NULL}', passed_over => $1)";
    let (mut started, mut passed) = (Vec::new(), 0);
    while started.len() < 60 {
        match sqlx::query_as::<_, (Option<i64>, Option<i32>)>(claim).bind(passed).fetch_all(&database.pool).await {
            Ok(rows) => {
                passed = rows.iter().find_map(|(_, passed)| *passed).unwrap_or(passed);
                started.extend(rows.into_iter().filter_map(|(id, _)| id));
            }
            Err(error) => assert!(is_conflict(&error), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let places: Vec<usize> = (0..60).filter(|nth| others.contains(&started[*nth])).collect();
    assert!((9..=12).contains(&places[0]) && places[2] <= 36 && places[4] >= 40, "{places:?}");
}

/// A group that shares a limit has to wait as well, although the token arrives while the claim is at work: the claim looks ahead by
/// more than it takes.
#[tokio::test]
async fn a_token_that_arrives_during_a_claim_is_for_the_highest_priority() {
    // Each reading of the clock takes a millisecond, whatever the machine. The token comes after so many of them.
    let even = (12..36).flat_map(|readings| [(readings, 50_000, 0), (readings, 0, 0)]);
    // A machine that stops for 20 ms once, at one of the readings.
    for (readings, ahead, stop) in even.chain((1..60).map(|stop| (30, 1_000, stop))) {
        let database = Database::migrated().await;
        let (rate, capacity) = (1_000.0 / f64::from(readings), 1.0);
        let queue = queue_of(&database, rate, capacity).await;
        let other = enqueue(&queue, of("other", 1)).await;
        for _ in 0..20 {
            enqueue(&queue, of("urgent", 1).priority(1)).await;
        }
        make_due(&database).await;
        let slow = format!(
            "CREATE SEQUENCE public.readings; GRANT ALL ON SEQUENCE public.readings TO PUBLIC;
             CREATE OR REPLACE FUNCTION rate_limit._clock() RETURNS bigint LANGUAGE sql VOLATILE AS
             $$ SELECT 1000000000000000 + 1000 * n + CASE WHEN {stop} BETWEEN 1 AND n THEN 20000 ELSE 0 END
                FROM pg_catalog.nextval('public.readings') AS n $$"
        );
        database.execute(&slow).await;
        let mut started = Vec::new();
        for _ in 0..100 {
            if started.len() < 2 {
                let claimed = claim(&database.pool, 1, ahead, ("l", rate, SECOND, capacity)).await;
                started.extend(claimed.into_iter().map(|(id, _)| id));
            }
        }
        assert!(started.len() == 2 && !started.contains(&other), "{readings}, {ahead}, {stop}: {started:?}");
    }
}

/// A start may take a rounding error more than its bucket holds. That debt is no payment of another job. So if the token of a job
/// that was denied before goes to another job of its group, the job pays nothing ahead.
#[tokio::test]
async fn a_rounding_error_is_no_payment_ahead() {
    let database = Database::migrated().await;
    let (period, capacity) = (SECOND * 3_000_000_000, 2.0); // Nothing is added meanwhile.
    let limits = Limits::new().define("l", Limit::token_bucket(1, period).capacity(capacity)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let first = enqueue(&queue, of("g", 1)).await;
    let denied = enqueue(&queue, of("g", 1)).await;
    make_due(&database).await;
    database
        .execute(&format!("INSERT INTO rate_limit.groups (queue, key, refused_job) VALUES ('q', 'g', {denied})"))
        .await;
    let bucket = "INSERT INTO rate_limit.rate_limits (name, key, shard, shards, value, ts, idle_at) \
                  SELECT 'l/started', '', 0, 1, 1 - 5e-10, c, c + 3000000000000000 FROM rate_limit._clock() AS c";
    database.execute(bucket).await;
    let started = claim(&database.pool, 10, 0, ("l", 1.0, period, capacity)).await;
    assert_eq!(started.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [first]);
    let state = "SELECT (SELECT count(paid_until) FROM rate_limit.jobs), value FROM rate_limit.rate_limits WHERE name = 'l/started'";
    let (paid, value): (i64, f64) = sqlx::query_as(state).fetch_one(&database.pool).await.expect(state);
    assert!(paid == 0 && (-1e-9..0.0).contains(&value), "{paid} paid ahead, {value} tokens are left");
}
