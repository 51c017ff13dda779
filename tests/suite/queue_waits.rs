//! `Finish::Wait` is counted, shown and bounded, and times promised during a wait hold.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pg_limiter::queue::{Finish, Handler, Job, JobState, Queue, RunningJob, handler_fn};
use pg_limiter::sqlx::PgConnection;
use pg_limiter::{Item, KeySecret, Limit, Limiter, LimiterConfig, Limits};

use crate::queue::{queue, queue_with, quick, until_in_state, work_until_done};
use crate::support::starts::{record, recorded};
use crate::support::{Database, estimated, scheduled, sqlx};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

async fn number(database: &Database, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect(sql)
}

fn micros(time: SystemTime) -> i64 {
    i64::try_from(time.duration_since(UNIX_EPOCH).expect("after 1970").as_micros()).expect("soon")
}

async fn enqueue(queue: &Queue, job: Job) -> i64 {
    scheduled(&queue.enqueue(job).await.expect("an answer")).id
}

/// Returns `Wait` on its first `times` starts.
fn waits_at_first(wait: Duration, times: u32) -> impl Handler {
    handler_fn(move |job: &RunningJob, _: &mut PgConnection| {
        let waits = job.group == "held" && job.payload_json() == "\"waits\"" && job.waits < times;
        Box::pin(async move { Ok(if waits { Finish::Wait(wait) } else { Finish::Done }) })
    })
}

/// The first job of the group `held` has returned `Wait` for an hour, a second job is behind it, and the worker has stopped.
async fn held_for_an_hour(queue: &Queue) {
    for _ in 0..2 {
        enqueue(queue, Job::new(("tenth", "held"), &"waits").expect("a job")).await;
    }
    let mut config = quick();
    config.concurrency = 1;
    let worker = queue.worker(config, waits_at_first(HOUR, u32::MAX)).expect("a worker");
    let watched = queue.clone();
    worker.run(async move { until_in_state(&watched, JobState::Available, 1).await }).await.expect("a report");
}

/// A queue whose limit allows one job in 10 s.
async fn tenths(database: &Database) -> Queue {
    let limits = Limits::new().define("tenth", Limit::token_bucket(1, SECOND * 10).capacity(1)).expect("limits");
    queue_with(database, limits).await
}

#[tokio::test]
async fn estimates_count_from_the_end_of_a_wait() {
    let database = Database::migrated().await;
    let queue = tenths(&database).await;
    held_for_an_hour(&queue).await;
    // 28 s later, the reservations have been refilled.
    let passed =
        "UPDATE rate_limit.jobs SET run_at = run_at - 28000000; UPDATE rate_limit.rate_limits SET ts = ts - 28000000";
    database.execute(passed).await;
    let held_until = number(&database, "SELECT held_until FROM rate_limit.groups WHERE key = 'held'").await;
    let job = || Job::new(("tenth", "held"), &1).expect("a job");

    // The two jobs before it take the tokens of 10 s each, so 20 s in all.
    let estimate = queue.estimate(job()).await.expect("an estimate");
    assert_eq!(micros(estimated(&estimate).0) - held_until, 20_000_000);
    for nth in 2..4 {
        let ticket = scheduled(&queue.enqueue(job().unique_id(format!("{nth}"))).await.expect("an answer"));
        assert_eq!(micros(ticket.run_at) - held_until, nth * 10_000_000, "{nth}");
    }
    // A duplicate gets the same time.
    let again = queue.enqueue(job().unique_id("2")).await.expect("an answer").enforce().expect("a duplicate");
    assert_eq!(micros(again.run_at) - held_until, 20_000_000);
    // A job of a higher priority comes first, and a job with a later time of its own keeps that time.
    let first = queue.estimate(job().priority(1)).await.expect("an estimate");
    assert_eq!(micros(estimated(&first).0), held_until);
    let at = SystemTime::now() + HOUR * 2;
    let later = queue.estimate(job().run_at(at)).await.expect("an estimate");
    let later = estimated(&later).0;
    assert!(micros(later).abs_diff(micros(at)) <= 1, "{later:?} {at:?}");
    // Other groups do not wait.
    let other = queue.estimate(Job::new(("tenth", "other"), &1).expect("a job")).await.expect("an estimate");
    assert_eq!(estimated(&other).1, Duration::ZERO);
}

#[tokio::test]
async fn promised_times_hold_after_repeated_waits() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let limits = Limits::new().define("l", Limit::token_bucket(5, SECOND).capacity(1)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let job = |payload: &str, group: &str| Job::new(Item::global("l"), &payload).expect("a job").group(group);
    enqueue(&queue, job("waits", "held")).await;
    let (asking, pool) = (queue.clone(), database.pool.clone());
    let promised = tokio::spawn(async move {
        let waited = "SELECT EXISTS (SELECT FROM rate_limit.jobs WHERE waits = 4 AND state = 'available')";
        while !sqlx::query_scalar::<bool>(waited).fetch_one(&pool).await.expect("whether it waits") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut tickets = Vec::new();
        for group in ["held", "held", "other", "other"] {
            let enqueued = asking.enqueue(job("goes", group)).await.expect("an answer");
            tickets.push(scheduled(&enqueued));
        }
        tickets
    });
    work_until_done(&queue, quick(), waits_at_first(Duration::from_millis(700), 4), 5).await;
    let starts = recorded(&database.pool).await;
    for ticket in promised.await.expect("a task") {
        let start = starts.iter().find(|start| start.job == ticket.id).expect("a start");
        // A busy machine may start it later than promised, but never earlier.
        assert!(start.at >= micros(ticket.run_at) - 1000, "{} us early: {start:?}", micros(ticket.run_at) - start.at);
    }
}

#[tokio::test]
async fn waits_are_counted_and_shown_but_are_not_failures() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = handler_fn(move |job: &RunningJob, _: &mut PgConnection| {
        noted.lock().expect("the list").push((job.attempt, job.waits));
        let wait = job.waits < 2;
        Box::pin(async move { Ok(if wait { Finish::Wait(Duration::from_millis(10)) } else { Finish::Done }) })
    });
    let id = enqueue(&queue, Job::new(("fast", "g"), &1).expect("a job")).await;
    let report = work_until_done(&queue, quick(), handler, 1).await;
    assert_eq!((report.waited, report.failed, report.done), (2, 0, 1));
    assert_eq!(*seen.lock().expect("the list"), [(1, 0), (1, 1), (1, 2)]);
    let job = queue.job(id).await.expect("an answer").expect("a job");
    assert_eq!((job.waits, job.failures, job.waiting_until), (2, 0, None));

    let queue = tenths(&database).await;
    held_for_an_hour(&queue).await;
    enqueue(&queue, Job::new(("tenth", "other"), &1).expect("a job")).await;
    let later = Job::new(("tenth", "held"), &1).expect("a job").run_at(SystemTime::now() + HOUR * 2);
    enqueue(&queue, later).await;
    let held_until = number(&database, "SELECT held_until FROM rate_limit.groups WHERE key = 'held'").await;
    let shown = async || {
        let jobs = queue.jobs(None, 10).await.expect("jobs");
        let mut shown: Vec<_> = jobs.iter().map(|job| (job.id, job.waits, job.waiting_until.map(micros))).collect();
        shown.sort_unstable();
        shown
    };
    let until = Some(held_until);
    assert_eq!(shown().await, [(1, 2, None), (2, 1, until), (3, 0, until), (4, 0, None), (5, 0, None)]);
    let groups = queue.group_counts().await.expect("counts");
    let groups: Vec<_> = groups.iter().map(|one| (&*one.group, one.waiting_until.map(micros))).collect();
    assert_eq!(groups, [("g", None), ("held", until), ("other", None)]);
    database.execute("UPDATE rate_limit.groups SET held_until = held_until - 3601000000").await;
    assert!(shown().await.iter().all(|(.., until)| until.is_none()));
    // A requeued job has all its attempts and waits again.
    database.execute("UPDATE rate_limit.jobs SET state = 'dead' WHERE id = 2").await;
    queue.requeue(2).await.expect("an answer").expect("a time");
    assert_eq!(shown().await[1], (2, 0, None));
}

#[tokio::test]
async fn a_wait_beyond_the_maximum_is_a_failure_and_still_delays_the_group() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let id = enqueue(&queue, Job::new(("fast", "held"), &"waits").expect("a job").max_attempts(2)).await;
    let mut config = quick();
    config.max_waits = Some(2);
    let worker = queue.worker(config, waits_at_first(Duration::from_millis(20), u32::MAX)).expect("a worker");
    let watched = queue.clone();
    let running = worker.run(async move { until_in_state(&watched, JobState::Dead, 1).await });
    let report = tokio::time::timeout(SECOND * 120, running).await.expect("in time").expect("a report");
    assert_eq!((report.waited, report.failed, report.dead, report.done), (2, 1, 1, 0));
    let job = queue.job(id).await.expect("an answer").expect("a job");
    assert_eq!((job.state, job.waits, job.failures), (JobState::Dead, 4, 2));
    let error = job.last_error.expect("an error");
    assert!(error.contains("waited 3 times") && error.contains("max_waits"), "{error}");
    let held = "SELECT count(*) FROM rate_limit.groups AS g JOIN rate_limit.jobs AS j USING (queue, key) \
                WHERE j.finished_at <= g.held_until";
    assert_eq!(number(&database, held).await, 1);
    // A claim removes the group's entry, which has no job, and new jobs of the group start again.
    enqueue(&queue, Job::new(("fast", "held"), &"goes").expect("a job")).await;
    work_until_done(&queue, quick(), waits_at_first(HOUR, 0), 1).await;
}

#[tokio::test]
async fn only_dead_jobs_are_discarded() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let mut ids = Vec::new();
    for (nth, state) in JobState::ALL.iter().chain([&JobState::Dead; 3]).enumerate() {
        let id = enqueue(&queue, Job::new(("fast", "g"), &1).expect("a job")).await;
        let sql = format!(
            "UPDATE rate_limit.jobs SET state = '{state}', finished_at = rate_limit._clock() - {nth} * 3600000000 WHERE id = {id}"
        );
        database.execute(&sql).await;
        ids.push(id);
    }
    let left = async || {
        let mut left: Vec<i64> = queue.jobs(None, 10).await.expect("jobs").iter().map(|job| job.id).collect();
        left.sort_unstable();
        left
    };
    let elsewhere = Queue::new(queue.limiter(), "other").expect("a queue");
    assert_eq!(elsewhere.discard(&ids).await.expect("an answer"), 0);
    assert_eq!(queue.discard(&[]).await.expect("an answer"), 0);
    assert_eq!(queue.discard(&ids[..6]).await.expect("an answer"), 1);
    assert_eq!(left().await, [1, 2, 3, 4, 6, 7, 8, 9]);
    // The remaining jobs have been dead for 6, 7 and 8 hours.
    assert_eq!(elsewhere.prune_dead(Duration::ZERO).await.expect("an answer"), 0);
    assert_eq!(queue.prune_dead(HOUR * 9).await.expect("an answer"), 0);
    assert_eq!(queue.prune_dead(HOUR * 7).await.expect("an answer"), 2);
    assert_eq!(left().await, [1, 2, 3, 4, 6, 7]);
    assert_eq!(queue.prune_dead(Duration::ZERO).await.expect("an answer"), 1);
    assert_eq!(left().await, [1, 2, 3, 4, 6]);
}

#[tokio::test]
async fn a_group_that_waits_can_be_resumed() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("tenth", Limit::token_bucket(1000, SECOND)).expect("limits");
    let queue = queue_with(&database, limits).await;
    assert!(!queue.resume_group("held").await.expect("an answer"), "no such group");
    held_for_an_hour(&queue).await;
    let other = Queue::new(queue.limiter(), "other").expect("a queue");
    assert!(!other.resume_group("held").await.expect("an answer"), "another queue");
    let watched = queue.clone();
    let resume = async move {
        assert!(watched.resume_group("held").await.expect("an answer"));
        assert!(!watched.resume_group("held").await.expect("an answer"), "it no longer waits");
        let groups = watched.group_counts().await.expect("counts");
        assert_eq!(groups.iter().filter_map(|group| group.waiting_until).count(), 0);
        until_in_state(&watched, JobState::Done, 2).await;
    };
    let mut config = quick();
    config.poll = HOUR; // The worker must be woken.
    let worker = queue.worker(config, waits_at_first(HOUR, 0)).expect("a worker");
    tokio::time::timeout(SECOND * 120, worker.run(resume)).await.expect("in time").expect("a report");

    // Hashed groups are found by their own name and by their hash.
    let mut config = LimiterConfig::default();
    config.key_secret = Some(KeySecret::new("a secret of more than sixteen bytes").expect("a secret"));
    let hashed = Queue::new(&Limiter::with_config(database.app.clone(), queue.limiter().limits(), config), "hashed");
    let hashed = hashed.expect("a queue");
    let id = enqueue(&hashed, Job::new(("tenth", "held"), &1).expect("a job")).await;
    let group = hashed.job(id).await.expect("an answer").expect("a job").group;
    for name in [group.as_str(), "held"] {
        let wait = "INSERT INTO rate_limit.groups (queue, key, has_line, held_until) SELECT queue, key, true, \
                    rate_limit._clock() + 3600000000 FROM rate_limit.jobs WHERE queue = 'hashed' \
                    ON CONFLICT ON CONSTRAINT groups_pkey DO UPDATE SET held_until = excluded.held_until";
        database.execute(wait).await;
        assert!(hashed.resume_group(name).await.expect("an answer"), "{name}");
    }
}

/// The event is tested in `queue_log`.
#[tokio::test]
async fn a_wait_that_is_too_long_is_cut() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    for (longest, wait, seconds) in [(None, Duration::MAX, 86_400), (Some(SECOND * 600), HOUR, 600)] {
        let mut config = quick();
        config.longest_wait = longest.unwrap_or(config.longest_wait);
        enqueue(&queue, Job::new(("fast", "held"), &"waits").expect("a job")).await;
        let worker = queue.worker(config, waits_at_first(wait, 1)).expect("a worker");
        let watched = queue.clone();
        worker.run(async move { until_in_state(&watched, JobState::Available, 1).await }).await.expect("a report");
        let left = "SELECT (held_until - rate_limit._clock()) / 1000000 FROM rate_limit.groups";
        let left = number(&database, left).await;
        assert!((seconds - 60..=seconds).contains(&left), "{left} s");
        assert!(queue.resume_group("held").await.expect("an answer"));
        database.execute("DELETE FROM rate_limit.jobs").await;
    }
}

#[tokio::test]
async fn a_run_at_is_within_36525_days() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let days = |days: u64| SystemTime::now() + Duration::from_secs(days * 86_400);
    let job = |at| Job::new(("fast", "g"), &1).expect("a job").run_at(at);
    let ticket = scheduled(&queue.enqueue(job(days(36_524))).await.expect("an answer"));
    assert!(ticket.wait > HOUR);
    for far in [days(36_526), days(1_000_000)] {
        for error in [
            queue.enqueue(job(far)).await.map(drop),
            queue.enqueue_all([job(days(1)), job(far)]).await.map(drop),
            queue.estimate(job(far)).await.map(drop),
        ] {
            let error = error.expect_err("too far away").to_string();
            assert!(error.contains("run_at is out of range") && error.contains("36,525 days"), "{error}");
        }
    }
    assert_eq!(queue.jobs(None, 10).await.expect("jobs").len(), 1);
}
