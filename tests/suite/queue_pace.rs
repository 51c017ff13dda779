//! When jobs start: not before their time, in order, and never more in a group than its limits allow.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pg_limiter::queue::{Finish, Job, JobState, Queue, RunningJob, handler_fn};
use pg_limiter::sqlx::PgConnection;
use pg_limiter::{Item, Limit, Limits};

use crate::queue::{in_state, queue, queue_with, quick, until_in_state, work_until_done};
use crate::queue_contended;
use crate::support::proxy::{Fault, Point, Proxy, Way};
use crate::support::starts::{assert_in_order, assert_within, record, recorded};
use crate::support::{Database, estimated, scheduled, sqlx};

const SECOND: Duration = Duration::from_secs(1);

/// A handler that does nothing.
fn idle() -> impl pg_limiter::queue::Handler {
    handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))
}

/// Makes all waiting jobs due, as if no worker had run for a while.
async fn let_pass(database: &Database, length: Duration) {
    sqlx::query("UPDATE rate_limit.jobs SET run_at = run_at - $1")
        .bind(i64::try_from(length.as_micros()).expect("short"))
        .execute(&database.pool)
        .await
        .expect("an update");
}

#[tokio::test]
async fn late_jobs_start_at_the_rate_of_their_limit() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let limits = Limits::new().define("l", Limit::token_bucket(40, SECOND).capacity(3)).expect("limits");
    let queue = queue_with(&database, limits).await;
    for key in ["a", "b"] {
        for nth in 0..30 {
            let _ = scheduled(&queue.enqueue(Job::new(("l", key), &nth).expect("a job")).await.expect("an answer"));
        }
    }
    let_pass(&database, Duration::from_secs(60)).await;
    work_until_done(&queue, quick(), idle(), 60).await;
    let starts = recorded(&database.pool).await;
    assert_eq!(starts.len(), 60);
    assert_within(&database.pool, &starts, 40.0, SECOND, 3.0, 0.0).await;
    ["a", "b"].iter().for_each(|key| assert_in_order(&starts, key));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_workers_start_the_jobs_of_a_group_in_order_and_each_once() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let queue = queue(&database).await;
    let jobs = (0..600).map(|nth| Job::new(("fast", format!("{}", nth % 3)), &nth).expect("a job"));
    for enqueued in queue.enqueue_all(jobs).await.expect("answers") {
        let _ = scheduled(&enqueued);
    }
    let mut workers = Vec::new();
    for _ in 0..4 {
        let mut config = quick();
        config.concurrency = 2;
        let (worker, queue) = (queue.worker(config, idle()).expect("a worker"), queue.clone());
        workers.push(tokio::spawn(worker.run(async move { until_in_state(&queue, JobState::Done, 600).await })));
    }
    let mut done = 0;
    for worker in workers {
        done += worker.await.expect("a task").expect("a report").done;
    }
    assert_eq!(done, 600);
    let starts = recorded(&database.pool).await;
    assert_eq!(starts.len(), 600);
    ["0", "1", "2"].iter().for_each(|key| assert_in_order(&starts, key));
}

#[tokio::test]
async fn jobs_of_windows_and_large_counts_start_at_their_times() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let limits = Limits::new()
        .define("windows", Limit::fixed_window(3, Duration::from_millis(300)).capacity(0))
        .and_then(|limits| limits.define("paces", Limit::token_bucket(40, SECOND).capacity(0)))
        .expect("limits");
    let queue = queue_with(&database, limits).await;
    let jobs = (0..9).map(|nth| Job::new(("windows", "w"), &nth).expect("a job"));
    let windows = queue.enqueue_all(jobs).await.expect("answers");
    // The count is more than the bucket holds.
    let jobs = (0..4).map(|nth| Job::new(("paces", "p", 8), &nth).expect("a job"));
    let paces = queue.enqueue_all(jobs).await.expect("answers");
    work_until_done(&queue, quick(), idle(), 13).await;
    let starts = recorded(&database.pool).await;
    for enqueued in windows.iter().chain(&paces) {
        let ticket = scheduled(enqueued);
        let start = starts.iter().find(|start| start.job == ticket.id).expect("a start");
        assert!(start.at >= start.run_at, "{start:?} is early");
        assert_eq!(start.nth, 1);
    }
    let of = |key: &str| starts.iter().filter(|start| start.key == key).cloned().collect::<Vec<_>>();
    assert_within(&database.pool, &of("p"), 40.0, SECOND, 8.0, 8.0).await;
    // As promised: a worker that computes the times anew just after a window began gives its jobs that moment.
    let mut slots: Vec<std::time::SystemTime> = windows.iter().map(|enqueued| scheduled(enqueued).run_at).collect();
    slots.dedup_by(|a, b| a.duration_since(*b).unwrap_or_default() < Duration::from_millis(5));
    assert_eq!(slots.len(), 3, "three windows: {slots:?}");
}

#[tokio::test]
async fn a_job_that_returns_wait_delays_its_group() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let queue = queue(&database).await;
    for key in ["held", "free"] {
        for nth in 0..6 {
            let job = Job::new(("fast", key), &nth).expect("a job");
            let _ = scheduled(&queue.enqueue(job).await.expect("an answer"));
        }
    }
    let (first, seen) = (AtomicBool::new(true), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&seen);
    let handler = handler_fn(move |job: &RunningJob, _: &mut PgConnection| {
        let nth: u32 = job.payload().expect("a number");
        noted.lock().expect("the list").push((job.group.clone(), nth, Instant::now()));
        let wait = job.group == "held" && nth == 2 && first.swap(false, Ordering::SeqCst);
        Box::pin(async move { Ok(if wait { Finish::Wait(Duration::from_secs(3)) } else { Finish::Done }) })
    });
    let mut config = quick();
    config.concurrency = 1;
    let report = work_until_done(&queue, config, handler, 12).await;
    assert_eq!((report.done, report.waited, report.failed), (12, 1, 0));
    let seen = seen.lock().expect("the list").clone();
    let of =
        |group: &str| seen.iter().filter(|(of, ..)| of == group).map(|(_, nth, at)| (*nth, *at)).collect::<Vec<_>>();
    let (held, free) = (of("held"), of("free"));
    assert_eq!(held.iter().map(|(nth, _)| *nth).collect::<Vec<_>>(), [0, 1, 2, 2, 3, 4, 5]);
    assert!(held[3].1 - held[2].1 >= Duration::from_secs(3), "{held:?}");
    // The other group did not wait.
    assert_eq!(free.iter().map(|(nth, _)| *nth).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!(free[5].1 < held[3].1, "{seen:?}");
    let failures: i64 = sqlx::query_scalar("SELECT sum(failures)::bigint FROM rate_limit.jobs")
        .fetch_one(&database.pool)
        .await
        .expect("a sum");
    assert_eq!(failures, 0);
}

#[tokio::test]
async fn an_estimate_includes_the_wait_of_its_group() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let job = || Job::new(("fast", "g"), &1).expect("a job");
    let _ = scheduled(&queue.enqueue(job()).await.expect("an answer"));
    let _ = scheduled(&queue.enqueue(job()).await.expect("an answer"));
    let mut config = quick();
    config.concurrency = 1;
    let hour = Duration::from_secs(3600);
    let worker = queue
        .worker(config, handler_fn(move |_, _| Box::pin(async move { Ok(Finish::Wait(hour)) })))
        .expect("a worker");
    let watched = queue.clone();
    let report =
        worker.run(async move { until_in_state(&watched, JobState::Available, 2).await }).await.expect("a report");
    assert_eq!((report.waited, report.done), (1, 0));
    let estimate = queue.estimate(job()).await.expect("an estimate");
    assert_eq!(estimate.ahead, 2);
    assert!(estimated(&estimate).1 > Duration::from_secs(3500), "{estimate:?}");
    let ticket = scheduled(&queue.enqueue(job()).await.expect("an answer"));
    assert!(ticket.wait > Duration::from_secs(3500), "{ticket:?}");
    let other = queue.estimate(Job::new(("fast", "other"), &1).expect("a job")).await.expect("an estimate");
    assert_eq!(estimated(&other).1, Duration::ZERO);
}

#[tokio::test]
async fn higher_priorities_start_first_among_due_jobs() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let limits = Limits::new().define("l", Limit::token_bucket(50, SECOND).capacity(1)).expect("limits");
    let queue = queue_with(&database, limits).await;
    for (nth, priority) in [0, 0, 0, 5, -1, 5].into_iter().enumerate() {
        let job = Job::new(("l", "g"), &nth).expect("a job").priority(priority);
        let _ = scheduled(&queue.enqueue(job).await.expect("an answer"));
    }
    let_pass(&database, Duration::from_secs(60)).await;
    work_until_done(&queue, quick(), idle(), 6).await;
    let mut ids: Vec<i64> =
        sqlx::query_scalar("SELECT id FROM rate_limit.jobs ORDER BY id").fetch_all(&database.pool).await.expect("ids");
    ids = [3, 5, 0, 1, 2, 4].map(|nth| ids[nth]).into();
    let started: Vec<i64> = recorded(&database.pool).await.iter().map(|start| start.job).collect();
    assert_eq!(started, ids);
}

/// The first job of the lowest priority may start earlier than its turn, and never later: its group keeps its order.
#[tokio::test]
async fn the_turn_of_the_lowest_priority_moves_no_job_back() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("l", Limit::token_bucket(100, SECOND)).expect("limits");
    let queue = queue_with(&database, limits).await;
    let mut ids = Vec::new();
    for (group, priority) in [("a", 0), ("a", 0), ("a", 0), ("a", 0), ("b", 5)] {
        let job = Job::new(("l", group), &1).expect("a job").priority(priority);
        ids.push(queue_contended::enqueue(&queue, job).await);
    }
    let_pass(&database, Duration::from_secs(60)).await;
    let started = queue_contended::claim(&database.pool, 20, 0, ("l", 100.0, SECOND, 100.0)).await;
    ids.rotate_right(1);
    assert_eq!(started.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), ids);
}

#[tokio::test]
async fn groups_that_share_a_limit_share_its_rate() {
    let database = Database::migrated().await;
    record(&database.pool).await;
    let limits = Limits::new()
        .define("each", Limit::token_bucket(1000, SECOND))
        .and_then(|limits| limits.define("all", Limit::token_bucket(40, SECOND).capacity(2)))
        .expect("limits");
    let queue = queue_with(&database, limits).await;
    for nth in 0..30 {
        let items = [Item::new("each", format!("{}", nth % 5)), Item::global("all")];
        let _ = scheduled(&queue.enqueue(Job::new(items, &nth).expect("a job")).await.expect("an answer"));
    }
    let_pass(&database, Duration::from_secs(60)).await;
    work_until_done(&queue, quick(), idle(), 30).await;
    let mut starts = recorded(&database.pool).await;
    starts.iter_mut().for_each(|start| start.key.clear());
    // One job at a time may pay in advance.
    assert_within(&database.pool, &starts, 40.0, SECOND, 2.0, 1.0).await;
}

#[tokio::test]
async fn a_sleeping_worker_is_woken_for_an_earlier_job() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let mut config = quick();
    config.poll = Duration::from_secs(36_000);
    let worker = queue.worker(config, idle()).expect("a worker");
    let watched = queue.clone();
    let running = tokio::spawn(worker.run(async move { until_in_state(&watched, JobState::Done, 3).await }));
    let asleep = "SELECT count(*) FROM rate_limit.workers WHERE asleep_until > rate_limit._clock()";
    let listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()";
    for sql in [asleep, listening] {
        while sqlx::query_scalar::<i64>(sql).fetch_one(&database.pool).await.expect("a count") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    for done in 1..=3 {
        let _ = scheduled(&queue.enqueue(Job::new(("fast", "g"), &1).expect("a job")).await.expect("an answer"));
        tokio::time::timeout(Duration::from_secs(60), until_in_state(&queue, JobState::Done, done))
            .await
            .expect("woken");
    }
    running.await.expect("a task").expect("a report");
}

#[tokio::test]
async fn a_worker_that_does_not_listen_polls() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let mut config = quick();
    config.listen = false;
    config.poll = Duration::from_millis(50);
    let worker = queue.worker(config, idle()).expect("a worker");
    let watched = queue.clone();
    let running = tokio::spawn(worker.run(async move { until_in_state(&watched, JobState::Done, 2).await }));
    for done in 1..=2 {
        let _ = scheduled(&queue.enqueue(Job::new(("fast", "g"), &1).expect("a job")).await.expect("an answer"));
        until_in_state(&queue, JobState::Done, done).await;
    }
    running.await.expect("a task").expect("a report");
}

#[tokio::test]
async fn an_idle_worker_polls_rarely() {
    let database = Database::migrated().await;
    let track = format!("ALTER DATABASE {} SET track_functions = 'all'", database.name);
    sqlx::raw_sql(sqlx::AssertSqlSafe(track)).execute(&database.pool).await.expect("a setting");
    let queue = queue(&database).await;
    // One job is due, but the worker does not know its limit; the others are due much later.
    let unknown = Limits::new().define("other", Limit::token_bucket(1, SECOND)).expect("limits");
    let others = queue_with(&database, unknown).await;
    let _ = scheduled(&others.enqueue(Job::new(("other", "g"), &1).expect("a job")).await.expect("an answer"));
    for _ in 0..3 {
        let _ = scheduled(&queue.enqueue(Job::new(("slow", "g"), &1).expect("a job")).await.expect("an answer"));
    }
    let mut config = quick();
    config.poll = Duration::from_secs(36_000);
    let options = pg_limiter::sqlx::postgres::PgPoolOptions::new().max_connections(10);
    let pool = options.connect(&database.url).await.expect("connect");
    let asking = pg_limiter::Limiter::new(pool.clone(), queue.limiter().limits());
    let asking = pg_limiter::queue::Queue::new(&asking, "q").expect("a queue");
    let worker = asking.worker(config, idle()).expect("a worker");
    let stop = async {
        until_in_state(&queue, JobState::Done, 2).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
    };
    worker.run(stop).await.expect("a report");
    pool.close().await; // The statistics are reported at the end of a session at the latest.
    let sql = "SELECT calls FROM pg_stat_user_functions WHERE funcname = '_claim'";
    let mut calls: Option<i64> = None;
    while calls.is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        calls = sqlx::query_scalar(sql).fetch_optional(&database.pool).await.expect("the calls");
    }
    assert!(calls.is_some_and(|calls| calls <= 20), "{calls:?} claims");
    assert_eq!(in_state(&others, JobState::Scheduled).await, 2);
}

#[tokio::test]
async fn jobs_running_at_shutdown_finish_or_are_given_back() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let job = |name: &str| Job::new(("fast", name), &name).expect("a job");
    let _ = scheduled(&queue.enqueue(job("short")).await.expect("an answer"));
    let _ = scheduled(&queue.enqueue(job("for ever")).await.expect("an answer"));
    let begun = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&begun);
    let handler = handler_fn(move |job: &RunningJob, tx: &mut PgConnection| {
        counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let seconds = if job.group == "short" { 0.3 } else { 3600.0 };
            sqlx::query("SELECT pg_sleep($1)").bind(seconds).execute(&mut *tx).await?;
            Ok(Finish::Done)
        })
    });
    let mut config = quick();
    config.patience = Duration::from_secs(3);
    let worker = queue.worker(config, handler).expect("a worker");
    let stop = async move {
        while begun.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let report = worker.run(stop).await.expect("a report");
    assert_eq!((report.done, report.lost), (1, 1));
    let left = queue.jobs(Some(JobState::Scheduled), 10).await.expect("jobs");
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].group.as_str(), left[0].failures), ("for ever", 0));
}

/// A worker computes the times of its claimed jobs from when the answer arrives. It must not take an earlier answer that was late
/// for later times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_group_start_in_order_although_answers_are_late() {
    let database = Database::migrated().await;
    let proxy = Proxy::before(&database.url).await;
    let limits = Limits::new().define("l", Limit::token_bucket(40, SECOND).capacity(1)).expect("limits");
    let mut config = Database::config();
    config.engine = Some(pg_limiter::Engine::PostgreSql);
    let limiter = pg_limiter::Limiter::with_config(Database::pool(&proxy.url, 8).await, limits, config);
    let queue = Queue::new(&limiter, "q").expect("a queue");
    for _ in 0..80 {
        scheduled(&queue.enqueue(Job::new(Item::global("l"), &1).expect("a job").group("g")).await.expect("an answer"));
    }
    let_pass(&database, 10 * SECOND).await;
    for _ in 0..200 {
        proxy.put(Fault { point: Point::Claim, way: Way::Late(SECOND / 8), skip: 1, times: 1 });
    }
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    let handler = handler_fn(move |job: &RunningJob, _: &mut PgConnection| {
        seen.lock().expect("the order").push(job.id);
        Box::pin(async { Ok(Finish::Done) })
    });
    let mut config = quick();
    config.concurrency = 1;
    work_until_done(&queue, config, handler, 80).await;
    let order = order.lock().expect("the order").clone();
    assert!(order.is_sorted(), "{order:?}");
}

#[tokio::test]
async fn a_claim_of_an_empty_queue_says_that_nothing_is_due() {
    let database = Database::migrated().await;
    let claim = "SELECT next_in, look_again FROM rate_limit._claim('q', 'w', 1, 0, 60000000, 1000000, '{l}', '{token_bucket}', '{1}',
        '{1000000}', '{1}', '{NULL}')";
    for look_again in [true, false] {
        let answer: (Option<i64>, bool) = sqlx::query_as(claim).fetch_one(&database.pool).await.expect("a claim");
        assert_eq!(answer, (None, look_again));
    }
}

/// PostgreSQL keeps plans for a session. Claims in the sessions of a pool by turns would be planned in each of them.
#[tokio::test]
async fn a_busy_worker_claims_in_one_session_and_an_idle_one_keeps_none() {
    let database = Database::migrated().await;
    let noted = "CREATE TABLE claims (session integer, xid bigint UNIQUE);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
            INSERT INTO public.claims VALUES (pg_backend_pid(), txid_current()) ON CONFLICT DO NOTHING;
            RETURN NEW;
        END $$;
        CREATE TRIGGER note BEFORE UPDATE ON rate_limit.jobs FOR EACH ROW WHEN (NEW.state = 'running') EXECUTE FUNCTION note()";
    database.execute(noted).await;
    let pool = Database::pool(&database.url, 8).await;
    let limits = Limits::new().define("fast", Limit::token_bucket(1_000_000, SECOND)).expect("limits");
    let queue = Queue::new(&pg_limiter::Limiter::new(pool.clone(), limits), "q").expect("a queue");
    let jobs = (0..200).map(|nth| Job::new(("fast", nth.to_string()), &1).expect("a job"));
    for enqueued in queue.enqueue_all(jobs).await.expect("answers") {
        let _ = scheduled(&enqueued);
    }
    let mut config = quick();
    config.concurrency = 2;
    config.listen = false; // A listener keeps its connection.
    let watched = queue.clone();
    let stop = async {
        until_in_state(&watched, JobState::Done, 200).await;
        let began = Instant::now();
        while pool.num_idle() < pool.size() as usize {
            assert!(began.elapsed() < 60 * SECOND, "{} of {} connections", pool.num_idle(), pool.size());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = queue.worker(config, idle()).expect("a worker").run(stop).await.expect("a report");
    let counts = "SELECT count(DISTINCT session), count(*) FROM claims";
    let (sessions, claims): (i64, i64) = sqlx::query_as(counts).fetch_one(&database.pool).await.expect("counts");
    assert!(claims >= 8 && sessions <= 3, "{claims} claims in {sessions} sessions");
}

/// The claim was decided before the job failed, and says that nothing is due before the lease of the running job ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_fails_during_a_claim_runs_again_at_its_time() {
    let database = Database::migrated().await;
    let proxy = Proxy::before(&database.url).await;
    let mut config = Database::config();
    config.engine = Some(pg_limiter::Engine::PostgreSql);
    let limits = Limits::new().define("l", Limit::token_bucket(1_000_000, SECOND)).expect("limits");
    let limiter = pg_limiter::Limiter::with_config(Database::pool(&proxy.url, 8).await, limits, config);
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let _ = scheduled(&queue.enqueue(Job::new(("l", "fails"), &1).expect("a job")).await.expect("an answer"));
    // A second claim takes this job while the first one runs.
    let later = Job::new(("l", "later"), &1).expect("a job").run_at(std::time::SystemTime::now() + SECOND);
    let _ = scheduled(&queue.enqueue(later).await.expect("an answer"));
    proxy.put(Fault { point: Point::Claim, way: Way::Late(2 * SECOND), skip: 1, times: 1 });
    let handler = handler_fn(move |job: &RunningJob, _: &mut PgConnection| {
        let fails = job.attempt == 1 && job.group == "fails";
        Box::pin(async move {
            if !fails {
                return Ok(Finish::Done);
            }
            tokio::time::sleep(2 * SECOND).await;
            Err("no".into())
        })
    });
    let mut config = quick();
    config.poll = 36_000 * SECOND;
    config.lease = 3_600 * SECOND;
    config.listen = false;
    let report = work_until_done(&queue, config, handler, 2).await;
    assert_eq!((report.failed, report.done), (1, 2));
}
