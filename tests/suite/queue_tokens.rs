//! Reserved tokens are given back, corrected and estimated, and invalid jobs are rejected before they take any.

use std::time::{Duration, SystemTime};

use pg_limiter::migrate::Use;
use pg_limiter::queue::{
    EnqueueOutcome, EstimateOutcome, Finish, Job, JobState, Queue, QueueConfig, Ticket, WorkerConfig, handler_fn,
};
use pg_limiter::sqlx::AssertSqlSafe;
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::{Error, InvalidCall, InvalidJob, Item, Limit, Limiter, Limits};

use crate::queue::{in_state, queue, queue_with, quick, until_in_state, work_until_done};
use crate::support::gate::CENTURY;
use crate::support::{Database, estimated, guide, scheduled, sqlx};

const MINUTE: Duration = Duration::from_secs(60);

fn near(wait: Duration, centuries: u32) -> bool {
    wait.abs_diff(CENTURY * centuries) < MINUTE
}

async fn balance(queue: &Queue, limit: &str, key: &str) -> f64 {
    queue.limiter().peek((limit, key)).await.expect("a balance").remaining()
}

async fn one_a_century(database: &Database) -> Queue {
    let limits = Limits::new().define("l", Limit::token_bucket(1, CENTURY)).expect("limits");
    queue_with(database, limits).await
}

async fn enqueue(queue: &Queue, job: Job) -> Ticket {
    scheduled(&queue.enqueue(job).await.expect("an answer"))
}

fn job(key: &str) -> Job {
    Job::new(("l", key), &1).expect("a job")
}

#[tokio::test]
async fn a_cancelled_job_gives_its_tokens_back_and_jobs_behind_it_move_up() {
    let database = Database::migrated().await;
    let queue = one_a_century(&database).await;
    let mut tickets = Vec::new();
    for nth in 0..5 {
        let ticket = enqueue(&queue, job("g")).await;
        assert!(near(ticket.wait, nth), "{ticket:?}");
        tickets.push(ticket);
    }
    let other = enqueue(&queue, Job::new(("l", "g", 2), &1).expect("a job")).await;
    let asked_for = SystemTime::now() + CENTURY / 2;
    let late = enqueue(&queue, job("g").run_at(asked_for)).await;
    assert!(near(late.wait, 7), "{late:?}");

    assert_eq!(queue.cancel(tickets[1].id).await.expect("an answer"), JobState::Scheduled);
    let run_at = |id| {
        let queue = queue.clone();
        async move { queue.job(id).await.expect("an answer").expect("a job").run_at }
    };
    // Each job gets the time of the one before it, up to the one with a larger count. The time of the last one stays free, and no
    // token is returned.
    for (nth, expected) in [(0, 0), (2, 1), (3, 2), (4, 3)] {
        assert_eq!(run_at(tickets[nth].id).await, tickets[expected].run_at, "job {nth}");
    }
    assert_eq!(run_at(other.id).await, other.run_at);
    assert_eq!(run_at(late.id).await, late.run_at);
    let left = balance(&queue, "l", "g").await;
    assert!((left + 7.0).abs() < 1e-6, "{left}");
    assert_eq!(queue.cancel(tickets[1].id).await.expect("an answer"), JobState::Cancelled);
    let left = balance(&queue, "l", "g").await;
    assert!((left + 7.0).abs() < 1e-6, "given back twice: {left}");

    // In a transaction that rolls back, the cancellation is undone.
    let mut tx = database.app.begin().await.expect("begin");
    assert_eq!(queue.within(&mut tx).cancel(tickets[2].id).await.expect("an answer"), JobState::Scheduled);
    tx.rollback().await.expect("rollback");
    assert_eq!(run_at(tickets[3].id).await, tickets[2].run_at);
    let left = balance(&queue, "l", "g").await;
    assert!((left + 7.0).abs() < 1e-6, "{left}");
    assert!(matches!(
        queue.cancel(1_000_000).await,
        Err(Error::InvalidJob(InvalidJob::UnknownJob { id: 1_000_000, .. }))
    ));
    assert!(queue.requeue(tickets[1].id).await.expect("an answer").is_some());
    assert!(near(estimated(&queue.estimate(job("g")).await.expect("an estimate")).1, 9));
}

/// A newer job never gets an earlier time than an older one of its group, whatever their counts are. The time that becomes free
/// is not the last one then, so no token is returned: it would be promised twice.
#[tokio::test]
async fn jobs_behind_one_with_another_count_keep_their_times() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("l", Limit::token_bucket(1, CENTURY).capacity(2)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let mut tickets = Vec::new();
    for (count, expected) in [(2, 0), (1, 1), (1, 2), (2, 4), (1, 5)] {
        let ticket = enqueue(&queue, Job::new(("l", "g", count), &1).expect("a job")).await;
        assert!(near(ticket.wait, expected), "{ticket:?}");
        tickets.push(ticket);
    }
    let urgent = enqueue(&queue, Job::new(("l", "g"), &1).expect("a job").priority(1)).await;
    assert_eq!(queue.cancel(tickets[1].id).await.expect("an answer"), JobState::Scheduled);
    for (ticket, expected) in [(0, 0), (2, 1), (3, 3), (4, 4)].map(|(nth, at)| (&tickets[nth], &tickets[at])) {
        let now = queue.job(ticket.id).await.expect("an answer").expect("a job").run_at;
        assert_eq!(now, expected.run_at, "{ticket:?}");
    }
    assert_eq!(queue.job(urgent.id).await.expect("an answer").expect("a job").run_at, urgent.run_at);
    assert!(near(enqueue(&queue, job("g")).await.wait, 7));
}

/// A job with a late `run_at` has reserved a token of an earlier time, which the jobs after it do not have.
#[tokio::test]
async fn a_cancelled_job_with_a_late_time_of_its_own_returns_no_token_before_others() {
    let database = Database::migrated().await;
    let hour = MINUTE * 60;
    let limits = Limits::new().define("l", Limit::token_bucket(1, hour)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let first = enqueue(&queue, job("g").run_at(SystemTime::now() + hour * 3 / 2)).await;
    let mut tickets = Vec::new();
    for hours in 1..4 {
        let ticket = enqueue(&queue, job("g")).await;
        assert!(ticket.wait.abs_diff(hour * hours) < MINUTE, "{ticket:?}");
        tickets.push(ticket);
    }
    let last = enqueue(&queue, job("h").run_at(SystemTime::now() + hour)).await;
    assert_eq!(queue.cancel(first.id).await.expect("an answer"), JobState::Scheduled);
    for ticket in &tickets {
        assert_eq!(queue.job(ticket.id).await.expect("an answer").expect("a job").run_at, ticket.run_at);
    }
    let next = enqueue(&queue, job("g")).await.wait;
    assert!(next.abs_diff(hour * 4) < MINUTE, "{next:?}");
    // Nothing is reserved after this one.
    assert_eq!(queue.cancel(last.id).await.expect("an answer"), JobState::Scheduled);
    let left = balance(&queue, "l", "h").await;
    assert!((left - 1.0).abs() < 1e-3, "{left}");
}

#[tokio::test]
async fn actual_use_is_settled_once_up_or_down() {
    let database = Database::migrated().await;
    let limits = Limits::new()
        .define("tokens", Limit::token_bucket(1000, CENTURY))
        .and_then(|limits| limits.define("requests", Limit::token_bucket(10, CENTURY)))
        .expect("limits");
    let queue = queue_with(&database, limits).await;
    let job =
        |key: &str| Job::new([Item::new("tokens", key).count(100), Item::new("requests", key)], &key).expect("a job");
    let less = enqueue(&queue, job("less")).await.id;
    assert!(matches!(
        queue.settle(less, ("tokens", "less", 40)).await,
        Err(Error::InvalidJob(InvalidJob::NotStarted { .. }))
    ));
    let more = enqueue(&queue, job("more")).await.id;
    let within = enqueue(&queue, job("within")).await.id;
    let settling = queue.clone();
    let handler = handler_fn(move |job, tx| {
        let settling = settling.clone();
        Box::pin(async move {
            if job.group == "within" {
                let item = &job.items[0];
                settling.within(tx).settle(job.id, (item.limit.as_str(), item.key.as_str(), 60)).await?;
                if job.attempt == 1 {
                    return Err("after settling".into());
                }
            }
            Ok(Finish::Done)
        })
    });
    work_until_done(&queue, quick(), handler, 3).await;
    assert!(queue.settle(less, ("tokens", "less", 40)).await.expect("an answer"));
    assert!(!queue.settle(less, ("tokens", "less", 10)).await.expect("an answer"));
    assert!(queue.settle(more, ("tokens", "more", 150.5)).await.expect("an answer"));
    assert!(!queue.settle(within, ("tokens", "within", 10)).await.expect("an answer"));
    // The second attempt has reserved tokens again.
    for (key, reserved, started) in [("less", 960.0, 900.0), ("more", 849.5, 900.0), ("within", 840.0, 840.0)] {
        let left = balance(&queue, "tokens", key).await;
        assert!((left - reserved).abs() < 0.01, "{key}: {left}");
        let limit = Limit::token_bucket(1000, CENTURY).build().expect("a limit");
        let left = queue.limiter().peek((("tokens/started", limit), key)).await.expect("a balance").remaining();
        assert!((left - started).abs() < 0.01, "{key}, started: {left}");
    }
    let used = queue.job(more).await.expect("an answer").expect("a job").items[0].used;
    assert_eq!(used, Some(150.5));
    for (limit, key) in [("tokens", "other"), ("requests", "other")] {
        let settled = queue.settle(less, (limit, key, 1)).await;
        assert!(matches!(settled, Err(Error::InvalidJob(InvalidJob::NotReserved { .. }))), "{settled:?}");
    }
    assert!(queue.settle(less, ("requests", "less", 1)).await.expect("an answer"));
    assert!(matches!(
        queue.settle(less, ("nothing", "less", 1)).await,
        Err(Error::Invalid(InvalidCall::UnknownLimit { .. }))
    ));
    assert!(matches!(queue.settle(less, ("tokens", "less", -1)).await, Err(Error::Invalid(InvalidCall::Count { .. }))));
}

/// A window grants its whole rate, even if its capacity, which limits what is carried over, is lower. Tokens of started jobs
/// are corrected under the limit that the jobs were started under.
#[tokio::test]
async fn settling_in_a_handler_leaves_the_rest_of_the_window() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("w", Limit::fixed_window(20, CENTURY).capacity(1)).expect("limits");
    let queue = queue_with(&database, limits).await;
    for _ in 0..5 {
        enqueue(&queue, Job::new(("w", "g"), &1).expect("a job")).await;
    }
    database.execute("UPDATE rate_limit.jobs SET run_at = 1000000 + id").await;
    let settling = queue.clone();
    let handler = handler_fn(move |job, tx| {
        let settling = settling.clone();
        Box::pin(async move {
            settling.within(tx).settle(job.id, ("w", "g", 0.5)).await?;
            Ok(Finish::Done)
        })
    });
    work_until_done(&queue, quick(), handler, 5).await;
    let sql = "SELECT value FROM rate_limit.rate_limits WHERE name = 'w/started'";
    let left: f64 = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("a balance");
    assert!((left - 17.5).abs() < 1e-6, "{left}");
}

/// The same for a job that is larger than its bucket.
#[tokio::test]
async fn settling_an_oversized_job_gives_back_all_unused_tokens() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("l", Limit::token_bucket(1, CENTURY).capacity(1)).expect("limits");
    let queue = queue_with(&database, limits).await;
    enqueue(&queue, Job::new(("l", "g", 1), &1).expect("a job")).await;
    database.execute("UPDATE rate_limit.jobs SET run_at = 1000000, counts = '{10}'").await;
    let settling = queue.clone();
    let handler = handler_fn(move |job, tx| {
        let settling = settling.clone();
        Box::pin(async move {
            settling.within(tx).settle(job.id, ("l", "g", 4)).await?;
            Ok(Finish::Done)
        })
    });
    work_until_done(&queue, quick(), handler, 1).await;
    let sql = "SELECT value FROM rate_limit.rate_limits WHERE name = 'l/started'";
    let left: f64 = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("a balance");
    assert!((left - 6.0).abs() < 1e-6, "{left}");
}

#[tokio::test]
async fn an_estimate_matches_the_ticket() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("l", Limit::token_bucket(1, CENTURY).max_reserved(2)).expect("limits");
    let queue = queue_with(&database, limits).await;
    for ahead in 0..3 {
        let estimate = queue.estimate(job("g")).await.expect("an estimate");
        assert_eq!(estimate.ahead, ahead);
        let ticket = enqueue(&queue, job("g")).await;
        assert!(ticket.wait.abs_diff(estimated(&estimate).1) < MINUTE, "{estimate:?}, {ticket:?}");
    }
    let estimate = queue.estimate(job("g")).await.expect("an estimate");
    assert_eq!(estimate.ahead, 3);
    let EstimateOutcome::Denied { retry_after } = estimate.outcome else { panic!("{estimate:?}") };
    assert!(near(retry_after, 1), "{estimate:?}");
    let denied = queue.enqueue(job("g")).await.expect("an answer");
    assert!(denied.is_denied() && denied.retry_after().is_some_and(|wait| near(wait, 1)), "{denied:?}");
    assert_eq!(in_state(&queue, JobState::Scheduled).await, 3);
}

#[tokio::test]
async fn jitter_and_a_requested_time_delay_a_job() {
    let database = Database::migrated().await;
    let queue = one_a_century(&database).await;
    let hour = Duration::from_secs(3600);
    let mut waits = Vec::new();
    for nth in 0..20 {
        let ticket = enqueue(&queue, job(&format!("{nth}")).jitter(hour)).await;
        assert!(ticket.wait <= hour + MINUTE, "{ticket:?}");
        waits.push(ticket.wait);
    }
    waits.sort_unstable();
    assert!(waits[19] - waits[0] > hour / 4, "hardly spread: {waits:?}");
    let at = SystemTime::now() + hour;
    let ticket = enqueue(&queue, job("at").run_at(at)).await;
    let off = ticket.run_at.duration_since(at).expect("not before");
    assert!(off < Duration::from_micros(2), "{off:?}");
}

#[tokio::test]
async fn invalid_jobs_are_rejected_before_they_take_anything() {
    let database = Database::migrated().await;
    let limits = Limits::new()
        .define("l", Limit::token_bucket(1, CENTURY).max_reserved(3))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(5, MINUTE)))
        .and_then(|limits| limits.define(&"n".repeat(250), Limit::token_bucket(1, MINUTE)))
        .expect("limits");
    let limiter = database.limiter(limits);
    let mut config = QueueConfig::default();
    config.max_payload = 100;
    let queue = Queue::with_config(&limiter, "q", config).expect("a queue");
    for name in ["", "a\0b", &"n".repeat(256)] {
        assert!(matches!(Queue::new(&limiter, name), Err(InvalidJob::Queue { .. })), "{name:?}");
    }
    let inline = Limit::token_bucket(1, MINUTE).build().expect("a limit");
    let text = "x".repeat(99);
    let new = |limit: &str| Job::new((limit, "k"), &1).expect("a job");
    let jobs: [(Job, &str); 14] = [
        (Job::new(("l", "k"), &text).expect("a job"), "the payload has 101 bytes, and at most 100 are allowed"),
        (new("nothing"), "there is no limit \"nothing\""),
        (new("sliding"), "cannot reserve"),
        (new(&"n".repeat(250)), "at most 247"),
        (Job::new(("l", "k", 5), &1).expect("a job"), "can never be served"),
        (Job::new(("l", "k", f64::NAN), &1).expect("a job"), "the count NaN"),
        (Job::new(Vec::new(), &1).expect("a job"), "names no limit"),
        (Job::new(Item::new(("l", inline), "k"), &1).expect("a job"), "define it by name"),
        (new("l").group("g".repeat(1025)), "the job's group has 1025 bytes, and at most 1024 are allowed"),
        (new("l").group("a\0b"), "the job's group contains a NUL"),
        (new("l").unique_id(""), "the unique id is empty"),
        (new("l").run_at(SystemTime::now() - Duration::from_secs(5)), "run_at is in the past"),
        (new("l").run_at(SystemTime::UNIX_EPOCH), "run_at is in the past"),
        (new("l").jitter(Duration::MAX), "the jitter is out of range"),
    ];
    for (job, words) in jobs {
        for answer in [queue.enqueue(job.clone()).await.map(|_| ()), queue.estimate(job.clone()).await.map(|_| ())] {
            let error = answer.expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        }
        // The caller's transaction goes on after the error.
        let mut tx = database.app.begin().await.expect("begin");
        queue.within(&mut tx).enqueue(job).await.expect_err(words);
        let _ = scheduled(&queue.within(&mut tx).enqueue(new("l")).await.expect("an answer"));
        tx.rollback().await.expect("rollback");
    }
    assert!(Job::new(("l", "k"), &f64::NAN).is_ok()); // Serialized as null in JSON.
    assert!(matches!(Job::new(("l", "k"), &"a\0b"), Err(InvalidJob::Payload { .. })));
    let nobody = std::collections::BTreeMap::from([((1, 2), 3)]);
    assert!(matches!(Job::new(("l", "k"), &nobody), Err(InvalidJob::Payload { .. })));
    assert!(queue.jobs(None, 10).await.expect("jobs").is_empty());
    assert_eq!(balance(&queue, "l", "k").await, 1.0);
}

/// The tickets of the other jobs are not lost.
#[tokio::test]
async fn a_job_in_the_past_fails_no_other_job_of_its_enqueue() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("l", Limit::token_bucket(10, MINUTE)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let new = |key: &str| Job::new(("l", key), &1).expect("a job");
    let jobs = || [new("a"), new("b").run_at(SystemTime::UNIX_EPOCH), new("c")];
    let mut tx = database.app.begin().await.expect("begin");
    let within = queue.within(&mut tx).enqueue_all(jobs()).await.expect("answers");
    tx.commit().await.expect("commit");
    for answers in [queue.enqueue_all(jobs()).await.expect("answers"), within] {
        let (first, last) = (scheduled(&answers[0]), scheduled(&answers[2]));
        assert_eq!(answers[1].outcome(), EnqueueOutcome::RunAtPast);
        assert!(matches!(answers[1].clone().enforce(), Err(Error::InvalidJob(InvalidJob::RunAtPast))));
        for id in [first.id, last.id] {
            assert!(queue.job(id).await.expect("a lookup").is_some(), "{id}");
        }
    }
    assert_eq!(balance(&queue, "l", "b").await, 10.0);
}

#[tokio::test]
async fn an_invalid_worker_config_is_an_error() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let idle = || handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }));
    let refused = |change: fn(&mut WorkerConfig)| {
        let mut config = WorkerConfig::default();
        change(&mut config);
        queue.worker(config, idle()).map(|_| ()).expect_err("refused").to_string()
    };
    assert!(refused(|config| config.concurrency = 0).contains("the concurrency is 0"));
    assert!(refused(|config| config.concurrency = 10_000).contains("give the pool two more"));
    assert!(refused(|config| config.lease = Duration::from_millis(10)).contains("the lease in ms is 10"));
    assert!(refused(|config| config.poll = Duration::ZERO).contains("poll in ms is 0"));

    let empty = Database::empty().await;
    let nowhere = queue_with(&empty, Limits::new()).await;
    let worker = nowhere.worker(WorkerConfig::default(), idle()).expect("a worker");
    let ran = tokio::time::timeout(MINUTE, worker.run(std::future::pending())).await.expect("an end");
    assert!(matches!(ran, Err(Error::SchemaMissing { .. })), "{ran:?}");
    let answer = nowhere.enqueue(job("k")).await;
    assert!(matches!(answer, Err(Error::Invalid(_))), "{answer:?}");
}

/// A role that may only call the functions can enqueue, work and cancel, and cannot write rows directly.
#[tokio::test]
async fn a_role_needs_only_execute_for_the_queue() {
    let database = Database::migrated().await;
    let role = format!("worker_{}", database.name);
    let grants = guide::grants(Use::Worker).replace("app_role", &role);
    let schema = format!("CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA rate_limit TO {role}; {grants}");
    sqlx::raw_sql(AssertSqlSafe(schema)).execute(&database.pool).await.expect("a role");
    let options = (*database.pool.connect_options()).clone().options([("role", role.as_str())]);
    let pool = PgPoolOptions::new().max_connections(10).connect_with(options).await.expect("connect");
    let limits = Limits::new()
        .define("l", Limit::token_bucket(1_000_000, MINUTE))
        .and_then(|limits| limits.define("even", Limit::token_bucket(200, MINUTE / 60).capacity(1)))
        .expect("limits");
    let queue = Queue::new(&Limiter::new(pool.clone(), limits), "q").expect("a queue");
    let cancelled = enqueue(&queue, job("a")).await.id;
    for _ in 0..20 {
        // The worker takes their tokens some milliseconds before their times.
        let _ = enqueue(&queue, Job::new(Item::global("even"), &1).expect("a job").group("even")).await;
    }
    assert_eq!(queue.cancel(cancelled).await.expect("an answer"), JobState::Scheduled);
    let done = enqueue(&queue, job("a").max_attempts(1)).await.id;
    let _ = enqueue(&queue, job("b")).await;
    let handler = handler_fn(move |job, _| {
        let done = job.id != done || job.attempt > 1;
        Box::pin(async move { if done { Ok(Finish::Done) } else { Err("no".into()) } })
    });
    let worker = queue.worker(quick(), handler).expect("a worker");
    let watched = queue_with(&database, Limits::new()).await;
    let stop = async {
        until_in_state(&watched, JobState::Done, 21).await;
        until_in_state(&watched, JobState::Dead, 1).await;
    };
    worker.run(stop).await.expect("a report");
    assert!(queue.requeue(done).await.expect("an answer").is_some());
    assert_eq!(queue.prune(Duration::ZERO).await.expect("an answer"), 22);
    assert!(queue.estimate(job("a")).await.is_ok());
    for sql in [
        "UPDATE rate_limit.jobs SET state = 'done'",
        "DELETE FROM rate_limit.groups",
        "INSERT INTO rate_limit.workers VALUES ('q', 'w')",
    ] {
        let error = sqlx::raw_sql(sql).execute(&pool).await.expect_err("no privilege");
        assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("42501"), "{sql}");
    }
    pool.close().await;
    let gone = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(AssertSqlSafe(gone)).execute(&database.pool).await.expect("gone");
}
