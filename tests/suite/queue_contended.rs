//! Callers' transactions that stay open, workers that share buckets, and jobs that end at the same moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::queue::{EnqueueOutcome, Finish, Job, JobState, Queue, RunningJob, handler_fn};
use pg_limiter::sqlx::{PgConnection, PgPool, Row};
use pg_limiter::{Item, Limit, Limits};

use crate::queue::{queue, queue_with, quick, until_in_state, work_until_done};
use crate::support::gate::{CENTURY, until_waiting};
use crate::support::proxy::{Fault, Point, Proxy, Way};
use crate::support::scheduled;
use crate::support::starts::{assert_times, record, recorded};
use crate::support::{Database, is_conflict, sqlx};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn idle() -> impl pg_limiter::queue::Handler {
    handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))
}

/// Claims as a worker that knows this limit: returns the ids, and in how many microseconds the jobs start.
pub async fn claim(pool: &PgPool, most: i32, ahead: i64, limit: (&str, f64, Duration, f64)) -> Vec<(i64, i64)> {
    let (name, rate, period, capacity) = limit;
    let sql = "SELECT job_id, job_start_in FROM rate_limit._claim('q', 'w', $1, $2, 30000000, 1000000, $3, \
               ARRAY['token_bucket'], $4, $5, $6, NULL)";
    let rows = loop {
        let claim = sqlx::query(sql)
            .bind(most)
            .bind(ahead)
            .bind(vec![name])
            .bind(vec![rate])
            .bind(vec![i64::try_from(period.as_micros()).expect("a period")])
            .bind(vec![capacity]);
        match claim.fetch_all(pool).await {
            Ok(rows) => break rows,
            Err(error) => assert!(is_conflict(&error), "{error}"),
        }
    };
    rows.iter().filter_map(|row| Some((row.get::<Option<i64>, _>(0)?, row.get(1)))).collect()
}

pub async fn enqueue(queue: &Queue, job: Job) -> i64 {
    scheduled(&queue.enqueue(job).await.expect("an answer")).id
}

fn job(limit: &str, key: &str) -> Job {
    Job::new((limit, key), &1).expect("a job")
}

pub async fn make_due(database: &Database) {
    database.execute("UPDATE rate_limit.jobs SET run_at = 1000000 + id WHERE state = 'scheduled'").await;
}

/// A worker does all jobs, although another transaction is open.
pub async fn works_off(queue: &Queue, done: i64) {
    tokio::time::timeout(MINUTE, work_until_done(queue, quick(), idle(), done)).await.expect("it need not wait");
}

#[tokio::test]
async fn an_uncommitted_cancellation_delays_no_other_job() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    // Two jobs can start, and the others have to wait.
    let mut ids = Vec::new();
    for _ in 0..12 {
        ids.push(enqueue(&queue, job("slow", "a")).await);
    }
    make_due(&database).await;
    let mut tx = database.app.begin().await.expect("begin");
    assert_eq!(queue.within(&mut tx).cancel(ids[3]).await.expect("an answer"), JobState::Scheduled);
    for _ in 0..3 {
        enqueue(&queue, job("fast", "z")).await;
    }
    works_off(&queue, 5).await;
    tx.rollback().await.expect("rollback");
}

/// The group with the uncommitted cancellation has more due jobs than a claim asks for, and they come first. The group may
/// start or has to wait, and its jobs have the same priority as the others or a higher one.
#[tokio::test]
async fn an_uncommitted_cancellation_hides_no_due_job_from_small_claims() {
    for (not_before, priority) in [(0, 0), (0, -1), (4_000_000_000_000_000_i64, 0), (4_000_000_000_000_000, -1)] {
        let database = Database::migrated().await;
        let queue = queue(&database).await;
        let mut held = Vec::new();
        for _ in 0..40 {
            held.push(enqueue(&queue, job("fast", "held")).await);
        }
        let mut free = Vec::new();
        for _ in 0..5 {
            free.push(enqueue(&queue, job("fast", "free").priority(priority)).await);
        }
        make_due(&database).await;
        let group =
            format!("INSERT INTO rate_limit.groups (queue, key, not_before) VALUES ('q', 'held', {not_before})");
        database.execute(&group).await;
        let mut tx = database.app.begin().await.expect("begin");
        assert_eq!(queue.within(&mut tx).cancel(held[0]).await.expect("an answer"), JobState::Scheduled);
        let limit = ("fast", 1e6, SECOND, 1e6);
        let mut started = Vec::new();
        for most in [1, 1, 3] {
            let claimed = claim(&database.pool, most, 0, limit).await;
            assert_eq!(claimed.len(), usize::try_from(most).expect("small"), "{not_before}, {priority}: {started:?}");
            started.extend(claimed.into_iter().map(|(id, _)| id));
        }
        assert_eq!(started, free, "{not_before}, {priority}");
        assert_eq!(claim(&database.pool, 3, 0, limit).await, []);
        tx.rollback().await.expect("rollback");
        database.execute("UPDATE rate_limit.groups SET not_before = 0").await;
        let mut started = Vec::new();
        for most in [1, 3, 100] {
            started.extend(claim(&database.pool, most, 0, limit).await.into_iter().map(|(id, _)| id));
        }
        assert_eq!(started, held, "{not_before}, {priority}");
    }
}

#[tokio::test]
async fn an_uncommitted_settlement_delays_no_worker() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let first = enqueue(&queue, job("fast", "g")).await;
    works_off(&queue, 1).await;
    let mut tx = database.app.begin().await.expect("begin");
    assert!(queue.within(&mut tx).settle(first, ("fast", "g", 5)).await.expect("an answer"));
    // The transaction has locked the row of the bucket of `g`, so the next job of that group is inserted directly.
    enqueue(&queue, job("fast", "h")).await;
    let sql = "INSERT INTO rate_limit.jobs (queue, key, run_at, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at) \
               SELECT queue, key, run_at, payload, limit_names, limit_keys, counts, 1, 1 FROM rate_limit.jobs WHERE id = $1";
    sqlx::query(sql).bind(first).execute(&database.pool).await.expect("another job of the group");
    works_off(&queue, 3).await;
    tx.rollback().await.expect("rollback");
}

#[tokio::test]
async fn a_job_that_locks_its_row_past_its_lease_is_not_lost() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    for key in ["settles", "b", "c"] {
        enqueue(&queue, job("fast", key)).await;
    }
    let settling = queue.clone();
    let handler = handler_fn(move |job: &RunningJob, tx: &mut PgConnection| {
        let (settling, id, settles) = (settling.clone(), job.id, job.group == "settles");
        Box::pin(async move {
            if settles {
                settling.within(&mut *tx).settle(id, ("fast", "settles", 3)).await?;
            }
            sqlx::query("SELECT pg_sleep(5)").execute(&mut *tx).await?;
            Ok(Finish::Done)
        })
    });
    let mut config = quick();
    config.lease = 2 * SECOND;
    let report = work_until_done(&queue, config, handler, 3).await;
    assert_eq!((report.done, report.lost, report.failed), (3, 0, 0));
    let starts: i64 = sqlx::query_scalar("SELECT sum(starts)::bigint FROM rate_limit.jobs")
        .fetch_one(&database.pool)
        .await
        .expect("a sum");
    assert_eq!(starts, 3);
}

/// A worker that slept past the leases of claimed jobs must not go on extending the leases of those that it no longer starts.
#[tokio::test]
async fn a_worker_that_slept_past_its_leases_keeps_no_job_that_it_does_not_start() {
    let database = Database::migrated().await;
    // Slow claims: a lease counts from before the claim, and the time of a job from after it.
    database
        .execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NEW; END $$;
             CREATE TRIGGER slow BEFORE UPDATE ON rate_limit.jobs FOR EACH ROW
               WHEN (NEW.state = 'running' AND OLD.state <> 'running') EXECUTE FUNCTION slow()",
        )
        .await;
    // A claim takes a job that starts now, and one that starts 40 ms later.
    let limits = Limits::new().define("paced", Limit::token_bucket(25, SECOND).capacity(1)).expect("limits");
    let queue = queue_with(&database, limits).await;
    for enqueued in queue.enqueue_all((0..40).map(|_| job("paced", "g"))).await.expect("answers") {
        let _ = scheduled(&enqueued);
    }
    let began = Arc::new(AtomicU64::new(0));
    let handler = handler_fn(move |_: &RunningJob, _: &mut PgConnection| {
        if began.fetch_add(1, Ordering::SeqCst) % 6 == 3 {
            std::thread::sleep(Duration::from_millis(900)); // The whole process sleeps.
        }
        Box::pin(async { Ok(Finish::Done) })
    });
    let mut config = quick();
    config.lease = SECOND;
    work_until_done(&queue, config, handler, 40).await;
}

/// A worker that misses the end of a job would sleep for hours here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_never_misses_the_end_of_a_job() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let jobs = (0..400).map(|nth| Job::new(("fast", format!("{}", nth % 7)), &nth).expect("a job"));
    for enqueued in queue.enqueue_all(jobs).await.expect("answers") {
        let _ = scheduled(&enqueued);
    }
    let counted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&counted);
    let handler = handler_fn(move |_: &RunningJob, _: &mut PgConnection| {
        count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(Finish::Done) })
    });
    let mut config = quick();
    config.concurrency = 1;
    config.poll = Duration::from_secs(36_000);
    work_until_done(&queue, config, handler, 400).await;
    assert_eq!(counted.load(Ordering::SeqCst), 400);
}

#[tokio::test]
async fn tokens_of_an_unstarted_claim_are_not_given_back() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let pool = &database.pool;
    let limit = ("slow", 1.0, CENTURY, 2.0);
    for _ in 0..3 {
        enqueue(&queue, job("slow", "g")).await;
    }
    make_due(&database).await;
    let claimed = claim(pool, 2, 0, limit).await;
    assert_eq!(claimed.len(), 2);
    for (id, _) in claimed {
        let sql = "SELECT rate_limit._job_again(ARRAY[$1], ARRAY[1], 'unstarted', 0, '', ARRAY['slow'], ARRAY['token_bucket'], \
                   ARRAY[1::float8], ARRAY[1000000::bigint], ARRAY[2::float8], NULL, NULL)";
        let states: Vec<String> = sqlx::query_scalar(sql).bind(id).fetch_one(pool).await.expect("states");
        assert_eq!(states, ["available"]);
    }
    assert_eq!(claim(pool, 5, 0, limit).await, []);
}

#[tokio::test]
async fn jobs_claimed_ahead_start_before_later_claims_of_other_workers() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("l", Limit::token_bucket(100, SECOND).capacity(5)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let limit = ("l", 100.0, SECOND, 5.0);
    let of_all = |group: &str| Job::new(Item::global("l"), &1).expect("a job").group(group);
    let ahead = enqueue(&queue, of_all("a")).await;
    let soon = "UPDATE rate_limit.jobs SET run_at = rate_limit._clock() + 800000";
    database.execute(soon).await;
    let claimed = claim(&database.pool, 1, 900_000, limit).await;
    assert_eq!(claimed[0].0, ahead);
    for _ in 0..4 {
        enqueue(&queue, of_all("b")).await;
    }
    make_due(&database).await;
    let others = claim(&database.pool, 4, 0, limit).await;
    assert_eq!(others.len(), 4);
    let sql = "SELECT min(started_at) FILTER (WHERE key = 'b') >= max(started_at) FILTER (WHERE key = 'a') FROM rate_limit.jobs";
    assert!(sqlx::query_scalar::<bool>(sql).fetch_one(&database.pool).await.expect("times"), "{claimed:?}, {others:?}");
}

#[tokio::test]
async fn groups_of_unknown_limits_delay_no_other_group() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    for (limit, key) in [("slow", "a"), ("slow", "b"), ("fast", "c")] {
        enqueue(&queue, job(limit, key)).await;
    }
    database
        .execute(
            "UPDATE rate_limit.jobs SET state = 'available';
             INSERT INTO rate_limit.groups (queue, key, has_line) VALUES ('q', 'a', true), ('q', 'b', true), ('q', 'c', true)",
        )
        .await;
    assert_eq!(claim(&database.pool, 1, 0, ("fast", 1e6, SECOND, 1e6)).await.len(), 1);
}

#[tokio::test]
async fn lower_priorities_do_not_pass_while_the_window_is_full() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let low = enqueue(&queue, job("fast", "g")).await;
    let high = enqueue(&queue, job("fast", "g").priority(5)).await;
    enqueue(&queue, job("fast", "held").priority(10)).await;
    database
        .execute(&format!(
            "UPDATE rate_limit.jobs SET state = 'available' WHERE id = {low};
             INSERT INTO rate_limit.groups (queue, key, has_line, not_before)
             VALUES ('q', 'g', true, 0), ('q', 'held', false, 4000000000000000)"
        ))
        .await;
    let limit = ("fast", 1e6, SECOND, 1e6);
    let mut started = Vec::new();
    for _ in 0..4 {
        started.extend(claim(&database.pool, 1, 0, limit).await.into_iter().map(|(id, _)| id));
    }
    assert_eq!(started, [high, low]);
}

#[tokio::test]
async fn a_cancellation_does_not_move_up_failed_jobs() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let first = enqueue(&queue, job("slow", "g")).await;
    let failed = enqueue(&queue, job("slow", "g")).await;
    database
        .execute(&format!("UPDATE rate_limit.jobs SET failures = 1, run_at = run_at + 3600000000 WHERE id = {failed}"))
        .await;
    let run_at = queue.job(failed).await.expect("an answer").expect("a job").run_at;
    assert_eq!(queue.cancel(first).await.expect("an answer"), JobState::Scheduled);
    assert_eq!(queue.job(failed).await.expect("an answer").expect("a job").run_at, run_at);
}

/// All three jobs are enqueued by the same statement.
#[tokio::test]
async fn a_denied_job_does_not_block_another_of_its_unique_id() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    for _ in 0..2 {
        enqueue(&queue, job("bounded", "full")).await;
    }
    let twins =
        [job("bounded", "full").unique_id("u"), job("fast", "free").unique_id("u"), job("fast", "free").unique_id("u")];
    let answers = join_all(twins.map(|job| queue.enqueue(job))).await;
    let outcomes: Vec<_> = answers.into_iter().map(|answer| answer.expect("an answer").outcome()).collect();
    assert!(matches!(outcomes[0], EnqueueOutcome::Denied { .. }), "{outcomes:?}");
    let EnqueueOutcome::Scheduled(ticket) = outcomes[1] else { panic!("{outcomes:?}") };
    assert!(matches!(outcomes[2], EnqueueOutcome::Duplicate(first) if first.id == ticket.id), "{outcomes:?}");
    until_in_state(&queue, JobState::Scheduled, 3).await;
}

/// The large job needs more than the bucket ever holds while other jobs take from it.
#[tokio::test]
async fn a_large_job_is_not_starved_by_small_ones_of_another_group() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let limits = Limits::new().define("l", Limit::token_bucket(50, SECOND).capacity(1)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let of = |group: &str, count: u32| Job::new(Item::global("l").count(count), &1).expect("a job").group(group);
    for _ in 0..50 {
        enqueue(&queue, of("small", 1)).await;
    }
    let large = enqueue(&queue, of("large", 5)).await;
    for _ in 0..100 {
        enqueue(&queue, of("small", 1)).await;
    }
    make_due(&database).await;
    works_off(&queue, 151).await;
    let mut starts = recorded(&database.pool).await;
    let place = starts.iter().position(|start| start.job == large).expect("a start");
    // However slowly jobs are claimed, the jobs enqueued before it start first. A starved job would be the last.
    assert!(place < 100, "{place} small jobs started before it");
    starts.iter_mut().for_each(|start| start.key.clear());
    assert_times(&starts, 50.0, SECOND, 5.0);
}

/// A claim that never commits must not delay claims of the same groups.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_cut_off_in_its_claim_delays_no_other() {
    let database = Database::migrated().await;
    let proxy = Arc::new(Proxy::before(&database.url).await);
    let limits = || Limits::new().define("l", Limit::token_bucket(50, SECOND)).expect("limits");
    let mut config = Database::config();
    config.engine = Some(pg_limiter::Engine::PostgreSql);
    config.retry.deadline = MINUTE;
    let limiter = pg_limiter::Limiter::with_config(Database::pool(&proxy.url, 8).await, limits(), config);
    let behind = Queue::new(&limiter, "q").expect("a queue");
    let queue = queue_with(&database, limits()).await;
    enqueue(&queue, job("l", "a")).await;
    proxy.put(Fault::always(Point::Commit, Way::Delay(Duration::from_secs(600))));
    let mut config = quick();
    config.concurrency = 1; // It claims one job, and no COMMIT of its connection is answered.
    let worker = behind.worker(config, idle()).expect("a worker");
    let cut_off = tokio::spawn(worker.run(std::future::pending()));
    // Wait until it has claimed the job, committed or not. (The first COMMIT may be another one.)
    let claimed = "SELECT (SELECT count(*) FROM rate_limit.jobs WHERE state = 'running') + (SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND state = 'idle in transaction' AND query LIKE '%_claim(%')";
    while sqlx::query_scalar::<i64>(claimed).fetch_one(&database.pool).await.expect("a count") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for key in ["b", "c", "d"] {
        enqueue(&queue, job("l", key)).await;
    }
    let done = work_until_done(&queue, quick(), idle(), 3);
    tokio::time::timeout(MINUTE / 2, done).await.expect("no worker waits for the claim");
    cut_off.abort();
}

/// A claim has locked the job in the middle: the job behind it must not move up past it.
#[tokio::test]
async fn a_cancellation_moves_no_job_past_one_locked_by_a_claim() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(enqueue(&queue, job("slow", "g")).await);
    }
    let times = || async {
        let sql = "SELECT run_at FROM rate_limit.jobs ORDER BY id";
        let times: Vec<i64> = sqlx::query_scalar(sql).fetch_all(&database.pool).await.expect("times");
        times
    };
    let before = times().await;
    let mut claim = database.pool.begin().await.expect("begin");
    let sql = "SELECT FROM rate_limit.jobs WHERE id = $1 FOR NO KEY UPDATE";
    sqlx::query(sql).bind(ids[2]).execute(&mut *claim).await.expect("a lock");
    let cancelling = tokio::spawn({
        let (queue, id) = (queue.clone(), ids[1]);
        async move { queue.cancel(id).await }
    });
    let waits = tokio::time::timeout(SECOND, until_waiting(&database, 1)).await.is_ok();
    claim.rollback().await.expect("rollback");
    assert_eq!(cancelling.await.expect("a task").expect("an answer"), JobState::Scheduled);
    assert!(waits, "the cancellation did not wait for the claim");
    let after = times().await;
    assert_eq!(after[2..], before[1..4]);
}

/// A cancellation moves up a bounded number of jobs. If more follow, one slot stays free, and the promised times still hold.
#[tokio::test]
async fn a_cancellation_moves_up_a_bounded_number_of_jobs() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("l", Limit::token_bucket(1, SECOND)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let jobs: Vec<Job> = (0..2_500).map(|_| job("l", "g")).collect();
    let mut ids = Vec::new();
    for enqueued in queue.enqueue_all(jobs).await.expect("answers") {
        ids.push(scheduled(&enqueued).id);
    }
    let times = || async {
        let sql = "SELECT run_at FROM rate_limit.jobs ORDER BY id";
        let times: Vec<i64> = sqlx::query_scalar(sql).fetch_all(&database.pool).await.expect("times");
        times
    };
    let owed = || async {
        let sql = "SELECT value - ts / 1e6 FROM rate_limit.rate_limits WHERE name = 'l'";
        let owed: f64 = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("a balance");
        owed
    };
    let (before, owed_before) = (times().await, owed().await);
    assert_eq!(queue.cancel(ids[10]).await.expect("an answer"), JobState::Scheduled);
    let after = times().await;
    assert_eq!(after[11..=1_010], before[10..1_010]);
    assert_eq!(after[1_011..], before[1_011..]);
    assert!((owed().await - owed_before).abs() < 1e-3, "the slot of the last job that moved stays free");
    // All jobs behind it move up, so the last slot is given back.
    assert_eq!(queue.cancel(ids[2_000]).await.expect("an answer"), JobState::Scheduled);
    assert_eq!(times().await[2_001..], before[2_000..2_499]);
    assert!((owed().await - owed_before - 1.0).abs() < 1e-3, "a token is given back");
}

/// Leases are extended while the answer to a job's COMMIT is on its way. The job then has no lease any more, but is not lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_commit_is_answered_late_is_done() {
    let database = Database::migrated().await;
    let proxy = Arc::new(Proxy::before(&database.url).await);
    let limits = || Limits::new().define("l", Limit::token_bucket(50, SECOND)).expect("limits");
    let mut config = Database::config();
    config.engine = Some(pg_limiter::Engine::PostgreSql);
    let limiter = pg_limiter::Limiter::with_config(Database::pool(&proxy.url, 8).await, limits(), config);
    let behind = Queue::new(&limiter, "q").expect("a queue");
    enqueue(&behind, job("l", "a")).await;
    let mut config = quick();
    config.lease = Duration::from_secs(3); // Extended each second.
    let late = Arc::clone(&proxy);
    let handler = handler_fn(move |_: &RunningJob, _: &mut PgConnection| {
        late.put(Fault::once(Point::Commit, Way::Late(Duration::from_millis(1_500))));
        Box::pin(async { Ok(Finish::Done) })
    });
    let worker = behind.worker(config, handler).expect("a worker");
    let watched = queue_with(&database, limits()).await;
    let report = worker.run(async move { until_in_state(&watched, JobState::Done, 1).await }).await.expect("a report");
    assert_eq!((report.done, report.lost), (1, 0));
}

/// A worker gives back a job that it has not started, so that job is the first of its group again and takes the next token. The job
/// behind it is denied for the second time, but by its own group, so it pays nothing ahead.
#[tokio::test]
async fn a_job_that_returns_to_the_line_makes_no_other_pay_ahead() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("l", Limit::token_bucket(2, SECOND).capacity(1)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let (first, second) = (enqueue(&queue, job("l", "g")).await, enqueue(&queue, job("l", "g")).await);
    make_due(&database).await;
    let ids = async || {
        let claimed = claim(&database.pool, 10, 0, ("l", 2.0, SECOND, 1.0)).await;
        claimed.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(ids().await, [first]);
    let again = "SELECT rate_limit._job_again(ARRAY[$1], ARRAY[1], 'unstarted', 0, '', '{}', '{}', '{}', '{}', '{}', '{}', '{}')";
    sqlx::query(again).bind(first).execute(&database.pool).await.expect("given back");
    let until = async |wanted: i64| {
        while ids().await != [wanted] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    until(first).await;
    let paid = "SELECT count(*) FROM rate_limit.jobs WHERE paid_until IS NOT NULL";
    let paid: i64 = sqlx::query_scalar(paid).fetch_one(&database.pool).await.expect(paid);
    assert_eq!(paid, 0);
    until(second).await;
}

/// A walk over changed limits, and the end of a pause, let a group ask before its tokens have arrived. Then its first job is denied
/// for the second time, although no other has taken them, so it pays nothing ahead.
#[tokio::test]
async fn a_group_that_is_asked_too_early_does_not_pay_ahead() {
    let walk = "SELECT rate_limit._retime_jobs('q', 'w', NULL, NULL, ARRAY['l'], ARRAY['token_bucket'], \
                ARRAY[1], ARRAY[10000000], ARRAY[1], ARRAY[NULL]::bigint[], ARRAY[NULL]::integer[])";
    let pause = "DO $$ BEGIN PERFORM rate_limit.pause('q', 'g'), rate_limit.resume('q', 'g'); END $$";
    for early in [walk, pause] {
        let database = Database::migrated().await;
        let limits = Limits::new().define("l", Limit::token_bucket(1, SECOND * 10).capacity(1)).expect("limits");
        let queue = queue_with(&database, limits).await;
        let (first, second) = (enqueue(&queue, job("l", "g")).await, enqueue(&queue, job("l", "g")).await);
        make_due(&database).await;
        let ids = async || {
            let claimed = claim(&database.pool, 10, 0, ("l", 1.0, SECOND * 10, 1.0)).await;
            claimed.iter().map(|job| job.0).collect::<Vec<_>>()
        };
        assert_eq!(ids().await, [first]);
        let waits =
            "SELECT count(*) FROM rate_limit.groups WHERE refused_job = $1 AND not_before > rate_limit._clock()";
        let waits =
            async || sqlx::query_scalar::<i64>(waits).bind(second).fetch_one(&database.pool).await.expect(waits);
        assert_eq!(waits().await, 1, "it was denied");
        sqlx::query(early).execute(&database.pool).await.expect(early);
        assert_eq!(waits().await, 0, "it may ask again");
        assert_eq!(ids().await, [0i64; 0]);
        let paid = "SELECT count(*) FROM rate_limit.jobs WHERE paid_until IS NOT NULL";
        assert_eq!(sqlx::query_scalar::<i64>(paid).fetch_one(&database.pool).await.expect(paid), 0, "{early}");
    }
}
