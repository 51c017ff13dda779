//! Queues and groups that are paused, drained and resumed; dead jobs that are requeued together; jobs that expire.

use std::time::Duration;

use pg_limiter::queue::{EnqueueOutcome, Finish, Handler, Job, JobState, Queue, Queues, handler_fn};
use pg_limiter::sqlx::PgConnection;
use pg_limiter::{Error, InvalidJob, Item, KeySecret, Limit, Limiter, Limits};

use crate::queue::{in_state, queue, queue_with, quick, until_in_state, work_until_done};
use crate::queue_contended::claim;
use crate::queue_woken::until_asleep;
use crate::support::{Database, scheduled, sqlx};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn job(group: &str) -> Job {
    Job::new(("calls", group), &1).expect("a job")
}

async fn calls(database: &Database) -> Queue {
    let limits = Limits::new()
        .define("calls", Limit::token_bucket(1000, SECOND))
        .and_then(|limits| limits.define("tenth", Limit::token_bucket(1, SECOND * 10).capacity(1)))
        .and_then(|limits| limits.define("slots", Limit::concurrency(1).lease(HOUR)))
        .expect("limits");
    queue_with(database, limits).await
}

async fn enqueue(queue: &Queue, job: Job) -> i64 {
    scheduled(&queue.enqueue(job).await.expect("an answer")).id
}

async fn state(queue: &Queue, id: i64) -> JobState {
    queue.job(id).await.expect("an answer").expect("a job").state
}

fn done() -> impl Handler {
    handler_fn(|_, _: &mut PgConnection| Box::pin(async { Ok(Finish::Done) }))
}

/// A worker that must be woken: it polls once an hour. It runs until `until` ends.
async fn woken(queue: &Queue, handler: impl Handler, until: impl Future<Output = ()> + Send) {
    let mut config = quick();
    config.poll = HOUR;
    let worker = queue.worker(config, handler).expect("a worker");
    tokio::time::timeout(SECOND * 120, worker.run(until)).await.expect("in time").expect("a report");
}

#[tokio::test]
async fn a_paused_queue_starts_no_job_until_it_is_resumed() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    assert!(queue.pause().await.expect("paused") && !queue.pause().await.expect("paused before"));
    let id = enqueue(&queue, job("a")).await;
    let groups = queue.group_counts().await.expect("counts");
    assert!(groups[0].is_paused && !groups[0].is_draining, "{groups:?}");
    let other = Queue::new(queue.limiter(), "other").expect("a queue");
    enqueue(&other, job("a")).await;
    work_until_done(&other, quick(), done(), 1).await;
    let until = async {
        until_asleep(&database).await;
        // An enqueue wakes the worker, which still starts nothing.
        enqueue(&queue, job("b")).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(state(&queue, id).await, JobState::Scheduled);
        assert!(queue.resume().await.expect("resumed") && !queue.resume().await.expect("not paused"));
        until_in_state(&queue, JobState::Done, 2).await;
    };
    woken(&queue, done(), until).await;
    assert!(!queue.group_counts().await.expect("counts")[0].is_paused);
}

#[tokio::test]
async fn a_paused_group_holds_up_no_other_and_keeps_its_order() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    assert!(queue.pause_group("a").await.expect("paused") && !queue.pause_group("a").await.expect("paused before"));
    for group in ["a", "b", "a", "c", "a"] {
        enqueue(&queue, job(group)).await;
    }
    let until = async {
        until_in_state(&queue, JobState::Done, 2).await;
        until_asleep(&database).await;
        let groups = queue.group_counts().await.expect("counts");
        let paused: Vec<_> = groups.iter().map(|group| (&*group.group, group.is_paused, group.done)).collect();
        assert_eq!(paused, [("a", true, 0), ("b", false, 1), ("c", false, 1)]);
        // Its tickets have the times without the pause.
        assert!(scheduled(&queue.enqueue(job("a")).await.expect("an answer")).wait < HOUR);
        assert!(queue.resume_group("a").await.expect("resumed"));
        until_in_state(&queue, JobState::Done, 6).await;
    };
    woken(&queue, done(), until).await;
    let order =
        "SELECT array_agg(id ORDER BY started_at, id) = array_agg(id ORDER BY id) FROM rate_limit.jobs WHERE key = 'a'";
    assert!(sqlx::query_scalar::<bool>(order).fetch_one(&database.pool).await.expect(order));
    assert!(!queue.resume_group("a").await.expect("it is not paused"));
}

/// A third party's wait goes on after a pause. It can be ended by a second `resume_group`.
#[tokio::test]
async fn a_handlers_wait_outlasts_a_pause() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    for pauses_first in [false, true] {
        let group = if pauses_first { "first" } else { "second" };
        let id = enqueue(&queue, job(group)).await;
        let pausing = queue.clone();
        let wait = handler_fn(move |_, _: &mut PgConnection| {
            let pausing = pausing.clone();
            Box::pin(async move {
                if pauses_first {
                    assert!(pausing.pause_group("first").await?);
                }
                Ok(Finish::Wait(HOUR))
            })
        });
        let worker = queue.worker(quick(), wait).expect("a worker");
        let watched = queue.clone();
        worker.run(async move { until_in_state(&watched, JobState::Available, 1).await }).await.expect("a report");
        let until = queue.job(id).await.expect("an answer").expect("a job").waiting_until.expect("a time");
        assert!(until < std::time::SystemTime::now() + 2 * HOUR, "the wait, and not the pause");
        assert_eq!(queue.pause_group(group).await.expect("an answer"), !pauses_first);
        let held = "SELECT held_until - rate_limit._clock() < 4000000000 FROM rate_limit.groups WHERE key = $1";
        let held = || sqlx::query_scalar::<bool>(held).bind(group).fetch_one(&database.pool);
        assert!(!held().await.expect("a group"), "paused");
        assert!(queue.resume_group(group).await.expect("the pause ends"));
        assert!(held().await.expect("a group"), "it waits");
        assert!(queue.resume_group(group).await.expect("the wait ends"));
        assert!(!queue.resume_group(group).await.expect("an answer"), "there is nothing to end");
        work_until_done(&queue, quick(), done(), if pauses_first { 2 } else { 1 }).await;
    }
}

/// A paused group gives up its place in front of slots.
#[tokio::test]
async fn a_paused_group_lets_others_take_the_slots() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    let lease = queue.limiter().acquire(("slots", "s")).await.expect("an answer").enforce().expect("a slot");
    let slots = |group: &str| Job::new(("slots", "s"), &1).expect("a job").group(group);
    for group in ["a", "b"] {
        enqueue(&queue, slots(group)).await;
    }
    let until = async {
        until_in_state(&queue, JobState::Available, 2).await;
        until_asleep(&database).await;
        assert!(queue.pause_group("a").await.expect("paused"));
        lease.release().await.expect("released");
        until_in_state(&queue, JobState::Done, 1).await;
        assert!(queue.resume_group("a").await.expect("resumed"));
        until_in_state(&queue, JobState::Done, 2).await;
    };
    woken(&queue, done(), until).await;
}

#[tokio::test]
async fn a_hashed_group_is_paused_by_its_name_and_by_its_hash() {
    let database = Database::migrated().await;
    let mut config = Database::config();
    config.key_secret = Some(KeySecret::new("a secret of more than sixteen bytes").expect("a secret"));
    let limiter = Limiter::with_config(database.app.clone(), calls(&database).await.limiter().limits(), config);
    let queue = Queue::new(&limiter, "hashed").expect("a queue");
    enqueue(&queue, job("a")).await;
    let group = queue.group_counts().await.expect("counts")[0].group.clone();
    for name in [group.as_str(), "a"] {
        assert!(queue.pause_group(name).await.expect("paused"), "{name}");
        assert!(queue.group_counts().await.expect("counts")[0].is_paused, "{name}");
        assert!(queue.resume_group(name).await.expect("resumed"), "{name}");
        assert!(!queue.group_counts().await.expect("counts")[0].is_paused, "{name}");
    }
    // The key itself is not stored, nor the hash of a hash.
    let stored: Vec<String> =
        sqlx::query_scalar("SELECT key FROM rate_limit.groups").fetch_all(&database.pool).await.expect("the groups");
    assert_eq!(stored, [group]);
}

#[tokio::test]
async fn a_draining_queue_takes_no_new_job_and_works_off_the_others() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    for group in ["a", "b"] {
        enqueue(&queue, job(group)).await;
    }
    assert_eq!(queue.drain().await.expect("a count"), 2);
    assert!(queue.group_counts().await.expect("counts")[0].is_draining);
    let draining = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::InvalidJob(InvalidJob::Draining))), "{result:?}");
    };
    draining(queue.enqueue(job("a")).await.map(drop));
    draining(queue.enqueue(job("a").unique_id("1")).await.map(drop));
    draining(queue.enqueue_all([job("a"), job("b")]).await.map(drop));
    draining(queue.estimate(job("a")).await.map(drop));
    let mut tx = database.app.begin().await.expect("begin");
    draining(queue.within(&mut tx).enqueue(job("a")).await.map(drop));
    tx.rollback().await.expect("roll back");
    // No token was taken: the capacity is 1,000.
    let left = queue.limiter().peek(("calls", "a")).await.expect("a balance").remaining();
    assert!(left >= 999.0, "{left}");
    work_until_done(&queue, quick(), done(), 2).await;
    assert_eq!(queue.drain().await.expect("a count"), 0);
    assert!(queue.resume().await.expect("resumed"));
    enqueue(&queue, job("a")).await;
}

#[tokio::test]
async fn the_dead_jobs_of_a_group_or_of_all_groups_are_requeued() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let dead = "INSERT INTO rate_limit.jobs (queue, key, state, run_at, payload, unique_id, limit_names, limit_keys, counts, \
                  max_attempts, failures, enqueued_at, finished_at) \
                SELECT queue, key, 'dead', n, '1', CASE key WHEN 'b' THEN 'once' || n END, '{}', '{}', '{}', 1, 1, 0, n \
                FROM generate_series(1, 230) AS n, \
                  (VALUES ($1, 'a'), ($1, 'b'), ('other', 'a')) AS g (queue, key)";
    sqlx::query(dead).bind(queue.name()).execute(&database.pool).await.expect("dead jobs");
    // A newer job has the unique id of one of them, and three have the same.
    database.execute("UPDATE rate_limit.jobs SET unique_id = 'taken' WHERE key = 'b' AND run_at = 7").await;
    database.execute("UPDATE rate_limit.jobs SET unique_id = 'once50' WHERE key = 'b' AND run_at IN (51, 201)").await;
    enqueue(&queue, Job::new(("fast", "x"), &1).expect("a job").unique_id("taken")).await;
    assert_eq!(queue.requeue_dead_group("a").await.expect("a count"), 230);
    assert_eq!(queue.requeue_dead_group("a").await.expect("a count"), 0);
    assert_eq!(in_state(&queue, JobState::Dead).await, 230);
    // From SQL, with the stored limits.
    let sql = "SELECT rate_limit.requeue_dead($1, most => 100)";
    let requeued: i64 = sqlx::query_scalar(sql).bind(queue.name()).fetch_one(&database.app).await.expect(sql);
    assert_eq!(requeued, 99);
    assert_eq!(queue.requeue_dead().await.expect("a count"), 128);
    assert_eq!(in_state(&queue, JobState::Dead).await, 3);
    let others = Queues::new(queue.limiter()).group_counts(Some("other")).await.expect("counts");
    assert_eq!(others[0].dead, 230);
}

/// A requeued job reserves tokens of the stored limit again.
#[tokio::test]
async fn requeued_from_sql_a_job_reserves_under_the_stored_limit() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    database
        .execute(
            "SELECT rate_limit.define('tenth', kind => 'token_bucket', rate => 1, period => '10 s', capacity => 1)",
        )
        .await;
    for _ in 0..2 {
        enqueue(&queue, Job::new(("tenth", "a"), &1).expect("a job").max_attempts(1)).await;
    }
    let fails = handler_fn(|_, _: &mut PgConnection| Box::pin(async { Ok(Finish::GiveUp("no".into())) }));
    database.execute("UPDATE rate_limit.jobs SET run_at = 0").await;
    let mut config = quick();
    config.concurrency = 1;
    let worker = queue.worker(config, fails).expect("a worker");
    worker.run(async { until_in_state(&queue, JobState::Dead, 1).await }).await.expect("a report");
    let sql = "SELECT rate_limit.requeue_dead('q', 'a')";
    let requeued: i64 = sqlx::query_scalar(sql).fetch_one(&database.app).await.expect(sql);
    assert_eq!(requeued, 1);
    let wait = "SELECT max(run_at) - rate_limit._clock() FROM rate_limit.jobs";
    let wait: i64 = sqlx::query_scalar(wait).fetch_one(&database.pool).await.expect(wait);
    assert!(wait > 10_000_000, "two tokens are reserved before it: {wait}");
}

#[tokio::test]
async fn a_job_whose_tokens_come_too_late_is_denied_and_gives_them_back() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    let fresh = |age: Duration| Job::new(("tenth", "a"), &1).expect("a job").max_age(age);
    let jobs = (0..4).map(|_| fresh(SECOND * 15));
    let outcomes: Vec<_> = queue.enqueue_all(jobs).await.expect("answers").iter().map(|job| job.outcome()).collect();
    assert!(matches!(outcomes[..2], [EnqueueOutcome::Scheduled(_), EnqueueOutcome::Scheduled(_)]), "{outcomes:?}");
    for outcome in &outcomes[2..] {
        let EnqueueOutcome::Denied { retry_after } = outcome else { panic!("{outcomes:?}") };
        assert!(*retry_after > Duration::ZERO && *retry_after <= SECOND * 5, "{outcomes:?}");
    }
    // Both have given their tokens back: the next job is third.
    let wait = scheduled(&queue.enqueue(Job::new(("tenth", "a"), &1).expect("a job")).await.expect("an answer")).wait;
    assert!(wait > SECOND * 15 && wait <= SECOND * 20, "{wait:?}");
    let denied = queue.enqueue(fresh(SECOND * 15)).await.expect("an answer");
    assert!(denied.is_denied());
    let estimate = queue.estimate(fresh(SECOND * 15)).await.expect("an estimate").outcome;
    assert!(matches!(estimate, pg_limiter::queue::EstimateOutcome::Denied { .. }), "{estimate:?}");
    // The age counts from run_at, if that is set.
    let later = std::time::SystemTime::now() + HOUR;
    assert!(!queue.enqueue(fresh(SECOND * 15).run_at(later)).await.expect("an answer").is_denied());
}

#[tokio::test]
async fn a_job_that_waits_for_too_long_is_dropped_and_holds_up_no_other() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    let old: Vec<i64> = {
        let mut ids = Vec::new();
        for group in ["a", "b"] {
            ids.push(enqueue(&queue, job(group).max_age(Duration::from_millis(1)).unique_id(group)).await);
        }
        ids
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    let young = enqueue(&queue, job("a").max_age(HOUR)).await;
    work_until_done(&queue, quick(), done(), 1).await;
    assert_eq!(state(&queue, young).await, JobState::Done);
    for id in old {
        let job = queue.job(id).await.expect("an answer").expect("a job");
        assert_eq!((job.state, job.started_at), (JobState::Cancelled, None));
        assert!(job.last_error.expect("a reason").starts_with("expired"));
        // An operator may run it nevertheless.
        assert!(queue.requeue(id).await.expect("an answer").is_some());
    }
    work_until_done(&queue, quick(), done(), 3).await;
}

/// Jobs also expire in the lines of groups that wait for tokens, slots or a handler's wait, and in paused queues.
#[tokio::test]
async fn jobs_that_wait_in_line_expire() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    let lease = queue.limiter().acquire(("slots", "s")).await.expect("an answer").enforce().expect("a slot");
    let mut waiting = Vec::new();
    waiting.push(enqueue(&queue, Job::new(("slots", "s"), &1).expect("a job").max_age(HOUR)).await);
    assert!(queue.pause_group("held").await.expect("paused"));
    waiting.push(enqueue(&queue, job("held").max_age(HOUR)).await);
    enqueue(&queue, Job::new(("slots", "s"), &2).expect("a job")).await;
    let worker = queue.worker(quick(), done()).expect("a worker");
    let until = async {
        until_in_state(&queue, JobState::Available, 3).await;
        database.execute("UPDATE rate_limit.jobs SET expires_at = 1 WHERE expires_at IS NOT NULL").await;
        until_in_state(&queue, JobState::Cancelled, 2).await;
        lease.release().await.expect("released");
        until_in_state(&queue, JobState::Done, 1).await;
    };
    tokio::time::timeout(SECOND * 120, worker.run(until)).await.expect("in time").expect("a report");
    assert!(queue.pause().await.expect("paused"));
    let id = enqueue(&queue, job("a").max_age(Duration::from_millis(1))).await;
    let worker = queue.worker(quick(), done()).expect("a worker");
    worker.run(async { until_in_state(&queue, JobState::Cancelled, 3).await }).await.expect("a report");
    assert_eq!(state(&queue, id).await, JobState::Cancelled);
    for id in waiting {
        assert_eq!(state(&queue, id).await, JobState::Cancelled);
    }
}

#[tokio::test]
async fn sql_pauses_resumes_and_drains() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    for group in ["a", "b"] {
        enqueue(&queue, job(group)).await;
    }
    let answer = async |sql: &'static str| sqlx::query_scalar::<String>(sql).fetch_one(&database.app).await;
    for (sql, expected) in [
        ("SELECT rate_limit.pause('q')::text", "true"),
        ("SELECT rate_limit.pause('q')::text", "false"),
        ("SELECT rate_limit.pause('q', 'a')::text", "true"),
        ("SELECT count(*)::text FROM rate_limit.queue_groups WHERE next_start IS NULL", "2"),
        ("SELECT rate_limit.resume('q')::text", "true"),
        ("SELECT string_agg(key, ',') FROM rate_limit.queue_groups WHERE next_start IS NULL", "a"),
        ("SELECT rate_limit.resume('q', 'a')::text", "true"),
        ("SELECT rate_limit.resume('q', 'a')::text", "false"),
        ("SELECT rate_limit.drain('q')::text", "2"),
        ("SELECT (draining_at > 0)::text FROM rate_limit.queues", "true"),
        ("SELECT rate_limit.resume('q')::text", "true"),
        ("SELECT rate_limit.requeue_dead('q')::text", "0"),
    ] {
        assert_eq!(answer(sql).await.expect(sql), expected, "{sql}");
    }
    for sql in [
        "SELECT rate_limit.pause('')::text",
        "SELECT rate_limit.pause(NULL)::text",
        "SELECT rate_limit.drain('')::text",
    ] {
        let error = answer(sql).await.expect_err(sql);
        assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("22023"), "{sql}");
    }
}

/// A job that is denied for its age delays no other of its batch, and none after it.
#[tokio::test]
async fn a_late_job_of_a_batch_delays_no_other() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    let of = |age: Option<Duration>| {
        let job = Job::new(("tenth", "a"), &1).expect("a job");
        age.map_or(job.clone(), |age| job.max_age(age))
    };
    let ages = std::iter::repeat_n(Some(SECOND * 15), 40).chain([None, Some(SECOND * 5), Some(SECOND * 35)]);
    let answers = queue.enqueue_all(ages.map(of)).await.expect("answers");
    let times: Vec<_> = answers
        .iter()
        .filter_map(|answer| match answer.outcome() {
            EnqueueOutcome::Scheduled(ticket) => Some(ticket.run_at),
            _ => None,
        })
        .collect();
    let after = |time: std::time::SystemTime| time.duration_since(times[0]).expect("later").as_secs_f64().round();
    assert_eq!(times.iter().map(|time| after(*time)).collect::<Vec<_>>(), [0.0, 10.0, 20.0, 30.0]);
    assert_eq!(answers[39].denied_by(), ["tenth"]);
    let next = scheduled(&queue.enqueue(of(None)).await.expect("an answer")).run_at;
    assert_eq!(after(next), 40.0);
    // Several limits, slots and jobs without a limit in one batch.
    let jobs = [
        Job::new([Item::new("tenth", "b"), Item::new("calls", "b"), Item::new("slots", "b")], &1)
            .expect("a job")
            .max_age(SECOND * 5),
        Job::new(("slots", "c"), &1).expect("a job"),
        Job::new([Item::new("calls", "b"), Item::new("tenth", "b")], &1).expect("a job").max_age(SECOND * 5),
        Job::new(("calls", "c"), &1).expect("a job").unique_id("once").max_age(HOUR),
        Job::new(("calls", "c"), &1).expect("a job").unique_id("once"),
    ];
    let answers = queue.enqueue_all(jobs).await.expect("answers");
    let outcomes: Vec<_> = answers
        .iter()
        .map(|answer| match answer.outcome() {
            EnqueueOutcome::Scheduled(_) => "scheduled",
            EnqueueOutcome::Duplicate(_) => "duplicate",
            _ => "denied",
        })
        .collect();
    assert_eq!(outcomes, ["scheduled", "scheduled", "denied", "scheduled", "duplicate"]);
    assert_eq!(answers[2].denied_by(), ["calls", "tenth"]);
    let stored = "SELECT string_agg(array_to_string(limit_names || slot_names, '+'), ',' ORDER BY id) \
                  FROM rate_limit.jobs WHERE key IN ('b', 'c')";
    let stored: String = sqlx::query_scalar(stored).fetch_one(&database.pool).await.expect(stored);
    assert_eq!(stored, "tenth+calls+slots,slots,calls");
}

/// The third party is still down: each requeued job dies at once.
#[tokio::test]
async fn jobs_that_die_again_are_requeued_once() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    let dead = "INSERT INTO rate_limit.jobs (queue, key, state, run_at, payload, limit_names, limit_keys, counts, max_attempts, \
                  failures, enqueued_at, finished_at) \
                SELECT 'q', 'g' || n % 10, 'dead', n, '1', '{calls}', ARRAY['g' || n % 10], '{1}', 1, 1, 0, n FROM generate_series(1, 450) AS n";
    database.execute(dead).await;
    let fails = handler_fn(|_, _: &mut PgConnection| Box::pin(async { Ok(Finish::GiveUp("down".into())) }));
    let worker = queue.worker(quick(), fails).expect("a worker");
    let watched = queue.clone();
    let until = async move {
        assert_eq!(watched.requeue_dead().await.expect("a count"), 450);
        until_in_state(&watched, JobState::Dead, 450).await;
    };
    tokio::time::timeout(SECOND * 120, worker.run(until)).await.expect("in time").expect("a report");
    let starts: i64 = sqlx::query_scalar("SELECT sum(starts)::bigint FROM rate_limit.jobs")
        .fetch_one(&database.pool)
        .await
        .expect("a sum");
    assert_eq!(starts, 450);
}

/// While a job is requeued, another transaction writes a job with its unique id.
#[tokio::test]
async fn a_unique_id_that_is_taken_meanwhile_stops_no_other_job() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    let dead = "INSERT INTO rate_limit.jobs (queue, key, state, run_at, payload, unique_id, limit_names, limit_keys, counts, \
                  max_attempts, failures, enqueued_at, finished_at) \
                SELECT 'q', 'g', 'dead', n, '1', 'u' || n, '{}', '{}', '{}', 1, 1, 0, n FROM generate_series(1, 3) AS n";
    database.execute(dead).await;
    let mut tx = database.app.begin().await.expect("begin");
    scheduled(&queue.within(&mut tx).enqueue(job("g").unique_id("u2")).await.expect("an answer"));
    let requeue = tokio::spawn({
        let queue = queue.clone();
        async move { queue.requeue_dead().await }
    });
    crate::support::gate::until_waiting(&database, 1).await;
    tx.commit().await.expect("commit");
    assert_eq!(requeue.await.expect("no panic").expect("a count"), 2);
    assert_eq!(in_state(&queue, JobState::Dead).await, 1);
}

/// Jobs of a paused group that are due are out of the way of others after a few claims, whatever their number.
#[tokio::test]
async fn the_backlog_of_a_paused_group_holds_up_no_other() {
    let database = Database::migrated().await;
    let queue = calls(&database).await;
    let due = "INSERT INTO rate_limit.jobs (queue, key, run_at, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at) \
               SELECT 'q', 'p', n, '1', '{}', '{}', '{}', 1, 0 FROM generate_series(1, 3000) AS n";
    database.execute(due).await;
    assert!(queue.pause_group("p").await.expect("paused"));
    let id = enqueue(&queue, job("o")).await;
    let mut claims = 0;
    loop {
        claims += 1;
        let claimed = claim(&database.pool, 1, 0, ("calls", 1000.0, SECOND, 1000.0)).await;
        if !claimed.is_empty() {
            assert_eq!(claimed[0].0, id);
            break;
        }
    }
    assert!(claims <= 5, "{claims}");
}

/// A job that has paid ahead keeps all others of its bucket waiting. A pause takes the payment back.
#[tokio::test]
async fn a_paused_group_that_has_paid_ahead_holds_up_no_other() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("calls", Limit::token_bucket(1, SECOND).capacity(100)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let of =
        |group: &str, count: u32| Job::new(Item::new("calls", "shared").count(count), &1).expect("a job").group(group);
    let calls = async || claim(&database.pool, 10, 0, ("calls", 1.0, SECOND, 100.0)).await.len();
    let due = || database.execute("UPDATE rate_limit.jobs SET run_at = 1 WHERE state = 'scheduled'");
    let look =
        || database.execute("UPDATE rate_limit.groups SET not_before = held_until WHERE not_before > held_until");
    enqueue(&queue, of("first", 100)).await;
    due().await;
    assert_eq!(calls().await, 1);
    enqueue(&queue, of("a", 100)).await;
    due().await;
    for _ in 0..3 {
        assert_eq!(calls().await, 0);
        look().await;
    }
    let paid = "SELECT count(*) FROM rate_limit.jobs WHERE paid_until IS NOT NULL";
    assert_eq!(sqlx::query_scalar::<i64>(paid).fetch_one(&database.pool).await.expect(paid), 1);
    assert!(queue.pause_group("a").await.expect("paused"));
    enqueue(&queue, of("b", 1)).await;
    due().await;
    let mut seconds = 0;
    while calls().await == 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        seconds += 1;
        assert!(seconds < 100, "the payment is still there");
    }
    assert_eq!(sqlx::query_scalar::<i64>(paid).fetch_one(&database.pool).await.expect(paid), 0);
}
