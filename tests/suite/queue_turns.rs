//! Turns: groups that share a limit reserve one after the other.

use std::time::{Duration, SystemTime};

use pg_limiter::queue::{EnqueueOutcome, Finish, Handler, Job, JobState, Queue, QueueConfig, handler_fn};
use pg_limiter::sqlx::PgConnection;
use pg_limiter::{Error, Item, KeySecret, Limit, Limiter, Limits};

use crate::queue::{quick, until_in_state, work_until_done};
use crate::queue_log::Log;
use crate::support::gate::limiter;
use crate::support::{Database, estimated, scheduled, sqlx, watch};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn limits() -> Limits {
    Limits::new()
        .define("api", Limit::token_bucket(20, SECOND).capacity(1))
        .and_then(|limits| limits.define("slow", Limit::token_bucket(1, HOUR).capacity(1)))
        .and_then(|limits| limits.define("window", Limit::fixed_window(3, HOUR)))
        .and_then(|limits| limits.define("few", Limit::token_bucket(1, HOUR).capacity(1).max_reserved(1)))
        .and_then(|limits| limits.define("slots", Limit::concurrency(1).lease(HOUR)))
        .expect("limits")
}

fn with_turns(limiter: &Limiter) -> Queue {
    let mut config = QueueConfig::default();
    config.turns = true;
    Queue::with_config(limiter, "turns", config).expect("a queue")
}

async fn turns(database: &Database) -> Queue {
    with_turns(&limiter(&database.app, limits(), |_| {}))
}

fn job(limit: &'static str, tenant: &str) -> Job {
    Job::new(Item::new(limit, "shared"), &tenant).expect("a job").group(tenant)
}

async fn enqueue(queue: &Queue, job: Job) -> i64 {
    scheduled(&queue.enqueue(job).await.expect("an answer")).id
}

fn done() -> impl Handler {
    handler_fn(|_, _: &mut PgConnection| Box::pin(async { Ok(Finish::Done) }))
}

/// The groups in the order in which their jobs started.
async fn started(database: &Database) -> Vec<String> {
    let order = "SELECT key FROM rate_limit.jobs WHERE started_at IS NOT NULL ORDER BY started_at, id";
    sqlx::query_scalar(order).fetch_all(&database.pool).await.expect(order)
}

async fn count(database: &Database, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect(sql)
}

const WAITING: &str = "SELECT count(*) FROM rate_limit.jobs WHERE awaits_turn";
const ROWS: &str = "SELECT count(*) FROM rate_limit.turns";

#[tokio::test]
async fn groups_that_share_a_limit_take_turns() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    let jobs = (0..40).map(|_| job("api", "large"));
    for outcome in queue.enqueue_all(jobs).await.expect("answers") {
        assert_eq!(scheduled(&outcome).wait, Duration::ZERO, "the earliest time");
    }
    assert_eq!(count(&database, WAITING).await, 40);
    let until = async {
        until_in_state(&queue, JobState::Done, 5).await;
        for tenant in ["small", "other"] {
            enqueue(&queue, job("api", tenant)).await;
        }
        until_in_state(&queue, JobState::Done, 42).await;
    };
    let worker = queue.worker(quick(), done()).expect("a worker");
    tokio::time::timeout(SECOND * 120, worker.run(until)).await.expect("in time").expect("a report");
    // The jobs that have tokens between the enqueue and the job itself: for each of the two, a round of three jobs and those of 0.1 s.
    // Without turns, there are 35.
    let between = "SELECT count(*) FROM rate_limit.jobs AS l JOIN rate_limit.jobs AS j ON j.key <> 'large' \
                   AND l.run_at > j.enqueued_at AND l.run_at < j.run_at WHERE l.key = 'large'";
    assert!(count(&database, between).await <= 12, "both had their turns: {:?}", started(&database).await);
    // A claim that is slower than the limit starts jobs at one time; then they start in the order of their ids.
    let in_order = "SELECT count(*) FROM (SELECT id, lag(id) OVER (ORDER BY started_at, run_at, id) AS before \
                    FROM rate_limit.jobs WHERE key = 'large') AS j WHERE before > id";
    let all = "SELECT string_agg(concat_ws(' ', id, run_at % 100000000, started_at % 100000000, starts), E'\\n' ORDER BY started_at, run_at, id) \
               FROM rate_limit.jobs WHERE key = 'large'";
    let all: String = sqlx::query_scalar(all).fetch_one(&database.pool).await.expect(all);
    assert_eq!(count(&database, in_order).await, 0, "{all}");
}

/// Runs a worker until this query returns no more than `left`.
async fn work_until(database: &Database, queue: &Queue, sql: &'static str, left: i64) {
    let worker = queue.worker(quick(), done()).expect("a worker");
    let until = async {
        let due = "SELECT count(*) FROM rate_limit.jobs WHERE state IN ('scheduled', 'available', 'running') \
                   AND NOT awaits_turn AND run_at < rate_limit._clock() + 200000";
        while count(database, sql).await > left || count(database, due).await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SECOND * 60, worker.run(until)).await.expect("in time").expect("a report");
}

/// The groups of the jobs that have a reservation and have not started, by time, with the hours between them and the first one.
async fn reserved(database: &Database) -> Vec<(String, i64)> {
    let rows = "SELECT key, round((run_at - min(run_at) OVER ()) / 3600e6)::bigint FROM rate_limit.jobs \
                WHERE state = 'scheduled' AND NOT awaits_turn ORDER BY run_at, id";
    sqlx::query_as(rows).fetch_all(&database.pool).await.expect(rows)
}

fn hours(expected: &[(&str, i64)]) -> Vec<(String, i64)> {
    expected.iter().map(|(key, hours)| ((*key).to_owned(), *hours)).collect()
}

/// Each group has the reservations of one turn, as many as its weight says.
#[tokio::test]
async fn a_group_reserves_for_one_turn_at_a_time() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    let of = |tenant: &str, weight: u32, jobs: u32| {
        (0..jobs).map(move |_| job("slow", tenant).weight(weight)).collect::<Vec<_>>()
    };
    let _ = queue.limiter().limit(("slow", "shared")).await.expect("an answer"); // No job starts at once.
    let jobs = [of("a", 1, 4), of("b", 3, 7), of("c", 0, 2)].concat();
    let _ = queue.enqueue_all(jobs).await.expect("answers");
    work_until(&database, &queue, WAITING, 13 - 5).await;
    let expected = [("a", 0), ("b", 1), ("b", 2), ("b", 3), ("c", 4)];
    assert_eq!(reserved(&database).await, hours(&expected));

    // A new group waits for the others' turns, and not for their other jobs.
    enqueue(&queue, job("slow", "d")).await;
    work_until(&database, &queue, WAITING, 8).await;
    assert_eq!(reserved(&database).await, hours(&[expected.as_slice(), &[("d", 5)]].concat()));

    // The bucket owes what the jobs have reserved, and nothing for those that wait.
    let left = queue.limiter().peek(("slow", "shared")).await.expect("a balance").remaining();
    assert!((-6.0..-5.9).contains(&left), "{left}");
}

#[tokio::test]
async fn a_cancelled_job_has_reserved_nothing_before_its_turn() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(enqueue(&queue, job("slow", "a")).await);
    }
    work_until(&database, &queue, WAITING, 3).await;
    let left = || async { queue.limiter().peek(("slow", "shared")).await.expect("a balance").remaining().round() };
    assert_eq!(left().await, -1.0);
    assert_eq!(queue.cancel(ids[4]).await.expect("a state"), JobState::Scheduled);
    assert_eq!((left().await, count(&database, WAITING).await), (-1.0, 2));
    // The job with the reservation gives it back. The next one of its group has its turn at once.
    assert_eq!(queue.cancel(ids[1]).await.expect("a state"), JobState::Scheduled);
    assert_eq!(left().await, 0.0);
    work_until(&database, &queue, WAITING, 1).await;
    assert_eq!(left().await, -1.0);
    let next = queue.job(ids[2]).await.expect("an answer").expect("a job");
    assert!(next.run_at < SystemTime::now() + HOUR, "it has the time of the cancelled job");
}

/// A transaction adds a job while a worker has emptied the group: the job has its turn when the transaction commits.
#[tokio::test]
async fn jobs_of_open_transactions_have_their_turn() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    enqueue(&queue, job("api", "a")).await;
    let mut tx = database.app.begin().await.expect("begin");
    let _ = scheduled(&queue.within(&mut tx).enqueue(job("api", "a")).await.expect("an answer"));
    let mut other = database.app.begin().await.expect("begin");
    // It does not wait for the other transaction.
    let _ = scheduled(&queue.within(&mut other).enqueue(job("api", "a")).await.expect("an answer"));
    other.rollback().await.expect("rollback");
    let until = async {
        until_in_state(&queue, JobState::Done, 1).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(count(&database, ROWS).await, 1, "it is kept");
        tx.commit().await.expect("commit");
        until_in_state(&queue, JobState::Done, 2).await;
        while count(&database, ROWS).await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let worker = queue.worker(quick(), done()).expect("a worker");
    tokio::time::timeout(SECOND * 60, worker.run(until)).await.expect("in time").expect("a report");
    assert_eq!(count(&database, "SELECT count(*) FROM rate_limit.jobs").await, 2);
}

#[tokio::test]
async fn paused_groups_and_locked_buckets_hold_up_no_other() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    assert!(queue.pause_group("paused").await.expect("an answer"));
    let locked = Job::new(Item::new("api", "locked"), &1).expect("a job").group("locked");
    // The bucket exists.
    enqueue(&queue, locked.clone()).await;
    work_until_done(&queue, quick(), done(), 1).await;
    let mut tx = database.pool.begin().await.expect("begin");
    // By hand, because a denial would lock nothing.
    let lock = "UPDATE rate_limit.rate_limits SET value = value WHERE name = 'api' AND key = 'locked'";
    assert_eq!(sqlx::query(lock).execute(&mut *tx).await.expect(lock).rows_affected(), 1);
    for _ in 0..3 {
        enqueue(&queue, job("api", "paused")).await;
        enqueue(&queue, locked.clone()).await;
        enqueue(&queue, job("api", "free")).await;
    }
    let until = async {
        until_in_state(&queue, JobState::Done, 4).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(count(&database, WAITING).await, 6, "neither reserves");
        tx.rollback().await.expect("rollback");
        until_in_state(&queue, JobState::Done, 7).await;
        assert!(queue.resume_group("paused").await.expect("an answer"));
        until_in_state(&queue, JobState::Done, 10).await;
    };
    let worker = queue.worker(quick(), done()).expect("a worker");
    tokio::time::timeout(SECOND * 60, worker.run(until)).await.expect("in time").expect("a report");
}

#[tokio::test]
async fn turns_keep_the_promises_of_a_job() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    // No bound denies a job.
    for _ in 0..4 {
        enqueue(&queue, job("few", "few")).await;
    }
    // A unique id.
    let once = || job("api", "once").unique_id("once");
    let id = enqueue(&queue, once()).await;
    let EnqueueOutcome::Duplicate(ticket) = queue.enqueue(once()).await.expect("an answer").outcome() else {
        panic!("a duplicate")
    };
    assert_eq!((ticket.id, ticket.state), (id, JobState::Scheduled));
    // A time of its own, before which its group reserves for others.
    let at = SystemTime::now() + SECOND * 2;
    let timed = enqueue(&queue, job("api", "timed").run_at(at)).await;
    assert!(matches!(
        queue.enqueue(job("api", "timed").run_at(SystemTime::now() - HOUR)).await,
        Err(Error::InvalidJob(pg_limiter::InvalidJob::RunAtPast))
    ));
    enqueue(&queue, job("api", "timed")).await;
    // A maximum age, within which the first job starts, and the second one would start an hour later.
    let aged = enqueue(&queue, job("slow", "aged").max_age(SECOND * 60)).await;
    let late = enqueue(&queue, job("slow", "aged").max_age(SECOND * 60)).await;
    // Slots, and no tokens.
    let slots = enqueue(&queue, Job::new(Item::new("slots", "s"), &1).expect("a job").group("slots")).await;
    // An urgent job reserves before others of its group.
    let _ = enqueue(&queue, job("window", "urgent")).await;
    let urgent = enqueue(&queue, job("window", "urgent").priority(1)).await;
    let estimate = queue.estimate(job("slow", "estimate")).await.expect("an estimate");
    assert_eq!((estimated(&estimate).1, estimate.ahead), (Duration::ZERO, 0));
    let until = async {
        for id in [id, timed, aged, slots, urgent] {
            while queue.job(id).await.expect("an answer").expect("a job").state != JobState::Done {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        while queue.job(late).await.expect("an answer").expect("a job").state != JobState::Cancelled {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let worker = queue.worker(quick(), done()).expect("a worker");
    tokio::time::timeout(SECOND * 60, worker.run(until)).await.expect("in time").expect("a report");
    let early = "SELECT count(*) FROM rate_limit.jobs WHERE started_at < run_at OR started_at < not_before";
    assert_eq!(count(&database, early).await, 0);
    let first = "SELECT count(*) FROM rate_limit.jobs WHERE key = 'urgent' AND priority = 0 \
                 AND started_at < (SELECT started_at FROM rate_limit.jobs WHERE key = 'urgent' AND priority = 1)";
    assert_eq!(count(&database, first).await, 0);
}

#[tokio::test]
async fn requeued_jobs_wait_for_a_turn_and_forgotten_groups_for_none() {
    let database = Database::migrated().await;
    let queue = with_turns(&limiter(&database.app, limits(), |config| {
        config.key_secret = Some(KeySecret::new("a long enough secret of some bytes").expect("a secret"))
    }));
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(enqueue(&queue, job("slow", "a").max_attempts(1)).await);
    }
    sqlx::query("UPDATE rate_limit.jobs SET state = 'dead', finished_at = 1, awaits_turn = false")
        .execute(&database.pool)
        .await
        .expect("dead");
    sqlx::query("DELETE FROM rate_limit.turns").execute(&database.pool).await.expect("as after their turn");
    assert_eq!(queue.requeue_dead().await.expect("a number"), 3);
    assert_eq!((count(&database, WAITING).await, count(&database, ROWS).await), (3, 1));
    work_until(&database, &queue, WAITING, 1).await;
    assert_eq!((started(&database).await.len(), reserved(&database).await.len()), (1, 1));
    let owner = limiter(&database.pool, limits(), |config| {
        config.key_secret = Some(KeySecret::new("a long enough secret of some bytes").expect("a secret"))
    });
    let _ = owner.forget("a").await.expect("forgotten");
    assert_eq!((count(&database, WAITING).await, count(&database, ROWS).await), (0, 0));
}

/// The times of a turn follow a changed limit, and the next turns with them.
#[tokio::test]
async fn turns_follow_a_changed_limit() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    for tenant in ["a", "b", "a", "b", "a", "b"] {
        enqueue(&queue, job("slow", tenant)).await;
    }
    work_until(&database, &queue, WAITING, 3).await;
    let faster = Limits::new().define("slow", Limit::token_bucket(20, SECOND).capacity(1)).expect("limits");
    let queue = with_turns(&limiter(&database.app, faster, |_| {}));
    work_until_done(&queue, quick(), done(), 6).await;
    let in_order = "SELECT count(*) FROM (SELECT id, lag(id) OVER (PARTITION BY key ORDER BY started_at, run_at, id) AS before \
                    FROM rate_limit.jobs) AS j WHERE before > id";
    assert_eq!(count(&database, in_order).await, 0);
}

/// Each case left a job without a turn in an earlier form of the mechanism.
#[tokio::test]
async fn every_job_has_its_turn_whatever_others_do_meanwhile() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    let owner = limiter(&database.pool, limits(), |_| {});
    let until = async {
        // A group is resumed while a worker looks at it.
        assert!(queue.pause_group("a").await.expect("an answer"));
        let mut tx = database.pool.begin().await.expect("begin");
        sqlx::query("SELECT rate_limit.resume('turns', 'a')").execute(&mut *tx).await.expect("resumed");
        enqueue(&queue, job("api", "a")).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        tx.commit().await.expect("commit");
        until_in_state(&queue, JobState::Done, 1).await;

        // The pause of a group ends because it is forgotten, while a transaction adds a job.
        assert!(queue.pause_group("b").await.expect("an answer"));
        enqueue(&queue, job("api", "b")).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut tx = database.app.begin().await.expect("begin");
        let _ = scheduled(&queue.within(&mut tx).enqueue(job("api", "b")).await.expect("an answer"));
        let _ = owner.forget("b").await.expect("forgotten");
        tx.commit().await.expect("commit");
        until_in_state(&queue, JobState::Done, 2).await;

        // A transaction adds a job to a group that has another one only for tomorrow.
        enqueue(&queue, job("api", "c").run_at(SystemTime::now() + HOUR)).await;
        enqueue(&queue, job("api", "c")).await;
        let mut tx = database.app.begin().await.expect("begin");
        let _ = scheduled(&queue.within(&mut tx).enqueue(job("api", "c")).await.expect("an answer"));
        until_in_state(&queue, JobState::Done, 3).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        tx.commit().await.expect("commit");
        until_in_state(&queue, JobState::Done, 4).await;

        // More groups than one claim serves are locked.
        let mut ids = Vec::new();
        for nth in 0..25 {
            ids.push(enqueue(&queue, job("slow", &format!("locked {nth}"))).await);
        }
        while count(&database, WAITING).await > 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut tx = database.app.begin().await.expect("begin");
        for id in &ids[1..] {
            queue.within(&mut tx).cancel(*id).await.expect("a state");
        }
        for _ in 0..5 {
            enqueue(&queue, job("api", "free")).await;
        }
        until_in_state(&queue, JobState::Done, 4 + 1 + 5).await;
        tx.rollback().await.expect("rollback");
    };
    let worker = queue.worker(quick(), done()).expect("a worker");
    tokio::time::timeout(SECOND * 60, worker.run(until)).await.expect("in time").expect("a report");
}

/// One worker is slower than the limit: it starts jobs, and reserves for no turns while jobs are late.
#[tokio::test]
async fn turns_wait_for_the_workers() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("fast", Limit::token_bucket(100_000, SECOND)).expect("limits");
    let queue = with_turns(&limiter(&database.app, limits, |_| {}));
    let jobs = (0..5000).map(|_| job("fast", "large"));
    let _ = queue.enqueue_all(jobs).await.expect("answers");
    let slow = handler_fn(|_, _: &mut PgConnection| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(Finish::Done)
        })
    });
    let until = async {
        until_in_state(&queue, JobState::Done, 40).await;
        enqueue(&queue, job("fast", "small")).await;
        while !started(&database).await.contains(&"small".to_owned()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let worker = queue.worker(quick(), slow).expect("a worker");
    tokio::time::timeout(SECOND * 60, worker.run(until)).await.expect("in time").expect("a report");
    assert!(count(&database, WAITING).await > 2500, "the backlog waits for turns");
}

/// If the tokens of a job would come too late, it is dropped in its turn, and others do not wait for these tokens.
#[tokio::test]
async fn a_job_that_would_be_too_old_gives_its_tokens_back() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    let _ = queue.limiter().limit(("slow", "shared")).await.expect("an answer");
    for nth in 0..30 {
        enqueue(&queue, job("slow", &format!("aged {nth}")).max_age(SECOND * 60)).await;
    }
    enqueue(&queue, job("slow", "young")).await;
    work_until(&database, &queue, WAITING, 0).await;
    assert_eq!(reserved(&database).await, hours(&[("young", 0)]));
    let left = queue.limiter().peek(("slow", "shared")).await.expect("a balance").remaining();
    assert!((-1.0..-0.9).contains(&left), "{left}");
}

/// If no worker defines the limit of a job, the job is marked as blocked, and holds up no other group.
#[tokio::test]
async fn jobs_with_an_unknown_limit_wait_for_a_worker_that_knows_it() {
    let database = Database::migrated().await;
    let log = Log::default();
    let _watched = watch(log.clone());
    let queue = turns(&database).await;
    enqueue(&queue, job("window", "unknown")).await;
    sqlx::query("UPDATE rate_limit.jobs SET run_at = run_at - 11000000").execute(&database.pool).await.expect("late");
    enqueue(&queue, job("api", "known")).await;
    let fewer = Limits::new().define("api", Limit::token_bucket(20, SECOND).capacity(1)).expect("limits");
    work_until_done(&with_turns(&limiter(&database.app, fewer, |_| {})), quick(), done(), 1).await;
    assert_eq!(started(&database).await, ["known"]);
    let blocked = "SELECT count(*) FROM rate_limit.jobs WHERE awaits_turn AND blocked_by = 'window'";
    assert_eq!(count(&database, blocked).await, 1);
    assert_eq!(log.warnings_with("limit"), ["window"]);
    work_until_done(&queue, quick(), done(), 2).await;
}

/// A worker that knows the limit takes the turn in its next claim: others would block the jobs again.
#[tokio::test]
async fn a_group_has_its_turn_once_a_worker_knows_the_limit() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    enqueue(&queue, job("window", "k")).await;
    database.execute("UPDATE rate_limit.jobs SET run_at = run_at - 11000000").await;
    database.execute("UPDATE rate_limit.turns SET wanted_at = wanted_at - 11000000").await;
    let claim = async |limit: &str, kind: &str| {
        let sql = "SELECT count(job_id) FROM rate_limit._claim('turns', 'w', 9, 0, 30000000, 1000000, ARRAY[$1], ARRAY[$2], \
                   ARRAY[3.0::double precision], ARRAY[3600000000], ARRAY[3.0::double precision], ARRAY[0::bigint])";
        let claim = sqlx::query_scalar(sql).bind(limit).bind(kind);
        claim.fetch_one(&database.pool).await.map(|jobs: i64| jobs).expect("a claim")
    };
    let blocked = "SELECT count(*) FROM rate_limit.jobs WHERE blocked_by = 'window'";
    claim("api", "token_bucket").await;
    assert_eq!(count(&database, blocked).await, 1);
    // The first claim finds the job again, the second one takes the turn.
    for _ in 0..2 {
        assert_eq!(claim("window", "fixed_window").await, 0);
    }
    assert_eq!((count(&database, blocked).await, count(&database, WAITING).await), (0, 0));
    claim("api", "token_bucket").await;
    assert_eq!(claim("window", "fixed_window").await, 1);
}

/// A job that waits for a turn is not overdue while workers take the turns, and is if none does.
#[tokio::test]
async fn jobs_that_wait_for_a_turn_are_overdue_if_it_is() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    enqueue(&queue, job("api", "k")).await;
    work_until_done(&queue, quick(), done(), 1).await;
    let later = SystemTime::now() + HOUR;
    enqueue(&queue, job("api", "k").run_at(later)).await;
    let overdue = "SELECT lag FROM rate_limit._queue_gauges('turns')";
    let starts = "SELECT round(EXTRACT(epoch FROM next_start - now()) / 60)::bigint FROM rate_limit.queue_groups";
    assert_eq!((count(&database, overdue).await, count(&database, starts).await), (0, 60));
    database.execute("UPDATE rate_limit.turns SET wanted_at = wanted_at - 7200000000, reserved_until = 0").await;
    assert_eq!(count(&database, overdue).await, 0);
    database.execute("UPDATE rate_limit.jobs SET run_at = run_at - 7200000000 WHERE awaits_turn").await;
    assert_eq!(count(&database, overdue).await / 3_600_000_000, 1);
    database.execute("UPDATE rate_limit.groups SET held_before = held_until, held_until = 9000000000000000").await;
    assert_eq!(count(&database, overdue).await, 0);
}

/// The pages that a look at the turns reads, while a group has jobs of two priorities that are due.
async fn pages_of_a_look(database: &Database) -> i64 {
    let sql = "EXPLAIN (ANALYZE, BUFFERS, COSTS false) SELECT rate_limit._take_turns('turns', '{api}', '{token_bucket}', '{20}',
        '{1000000}', '{1}', '{NULL}', '{1}', '{}')";
    let mut conn = database.pool.acquire().await.expect("a connection");
    let mut pages = 0;
    for _ in 0..2 {
        // The first call of a session reads the catalog.
        let as_in_a_claim = "BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
                             SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";
        sqlx::raw_sql(as_in_a_claim).execute(&mut *conn).await.expect("begin");
        let plan: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut *conn).await.expect("a plan");
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await.expect("rollback");
        let buffers = plan.iter().find(|line| line.contains("Buffers: shared")).expect("the buffers");
        let numbers = buffers.split(['=', ' ']).filter_map(|word| word.parse::<i64>().ok());
        pages = numbers.take(2).sum(); // "hit" and perhaps "read"
    }
    pages
}

/// They are due, but their group has had its turn, or no worker can start them; or they are not due.
#[tokio::test]
async fn a_turn_reads_few_of_the_jobs_that_wait() {
    let database = Database::migrated().await;
    let queue = turns(&database).await;
    enqueue(&queue, job("api", "a")).await;
    let copy = async |times: u32, blocked_by: &str, later: i64| {
        let copy = format!(
            "INSERT INTO rate_limit.jobs (queue, key, priority, run_at, payload, max_attempts, limit_names, limit_keys, counts,
               enqueued_at, weight, awaits_turn, blocked_by)
             SELECT j.queue, j.key, nth % 2, j.run_at + {later}, j.payload, j.max_attempts, j.limit_names, j.limit_keys, j.counts,
               j.enqueued_at, j.weight, true, {blocked_by}
             FROM (SELECT * FROM rate_limit.jobs LIMIT 1) AS j, generate_series(1, {times}) AS nth"
        );
        database.execute(&copy).await;
        database.execute("VACUUM ANALYZE rate_limit.jobs").await;
    };
    copy(300, "NULL", 0).await; // A look reads at most 100 jobs.
    let before = pages_of_a_look(&database).await;
    copy(40_000, "'unknown'", 0).await;
    copy(40_000, "NULL", 0).await;
    copy(40_000, "NULL", 86_400_000_000).await;
    let after = pages_of_a_look(&database).await;
    assert!(after <= 2 * before + 100, "{after} pages, {before} before"); // The indexes have one more level.
}
