//! A limit that grants more, or less, than when jobs were enqueued: the jobs of a group keep their order, and workers compute
//! their times anew.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pg_limiter::queue::{Finish, Job, Queue, handler_fn};
use pg_limiter::{Item, Limit, Limits};

use crate::lock_order::blocked_by;
use crate::queue::{queue_with, quick};
use crate::support::{Database, scheduled, sqlx};

const MINUTE: Duration = Duration::from_secs(60);

/// Token buckets `l`, and `other` with one token a minute.
fn limits(limit: Limit) -> Limits {
    let limits =
        Limits::new().define("l", limit).and_then(|l| l.define("other", Limit::token_bucket(1, MINUTE).capacity(1)));
    limits.expect("limits")
}

fn one_in(minutes: u32) -> Limit {
    Limit::token_bucket(1, MINUTE * minutes).capacity(1).build().expect("a limit")
}

fn job(key: &str) -> Job {
    Job::new(("l", key), &1).expect("a job")
}

async fn enqueue(queue: &Queue, job: Job) -> SystemTime {
    scheduled(&queue.enqueue(job).await.expect("an answer")).run_at
}

/// The minutes until each waiting job of the group, in the order in which they were enqueued. The test may take some of the first
/// one.
async fn minutes(database: &Database, group: &str) -> Vec<f64> {
    let sql = "SELECT (j.run_at - rate_limit._clock()) / 60e6::float8 FROM rate_limit.jobs AS j
               WHERE j.key = $1 AND j.state = 'scheduled' ORDER BY j.id";
    let minutes: Vec<f64> = sqlx::query_scalar(sql).bind(group).fetch_all(&database.pool).await.expect("the times");
    minutes.into_iter().map(|minutes| (minutes + 0.4).round()).collect()
}

/// Runs a worker until it has computed all times once.
async fn work(database: &Database, queue: &Queue) {
    let before = last_walk(database).await;
    let idle = handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }));
    let walked = async {
        while last_walk(database).await <= before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let worker = queue.worker(quick(), idle).expect("a worker");
    let report = tokio::time::timeout(MINUTE, worker.run(walked)).await.expect("a walk in time");
    let _ = report.expect("a report");
}

/// How many walks over the queue have ended: a trigger of the test counts them.
async fn last_walk(database: &Database) -> i64 {
    sqlx::query_scalar("SELECT last_value FROM walks").fetch_one(&database.pool).await.expect("the walks")
}

/// Counts the ends of walks, by a function around the limiter's own.
async fn count_walks(database: &Database) {
    database
        .execute(
            "CREATE SEQUENCE walks; GRANT ALL ON SEQUENCE walks TO PUBLIC; SELECT nextval('walks');
             ALTER FUNCTION rate_limit._retime_jobs RENAME TO step;
             CREATE FUNCTION rate_limit._retime_jobs(
               a text, b text, c text, d bigint, e text[], f text[], g float8[], h bigint[], i float8[], j bigint[], k integer[],
               OUT next_key text, OUT next_id bigint, OUT is_held boolean
             ) LANGUAGE plpgsql AS $$ BEGIN
               SELECT s.* INTO next_key, next_id, is_held FROM rate_limit.step(a, b, c, d, e, f, g, h, i, j, k) AS s;
               IF next_key IS NULL THEN PERFORM pg_catalog.nextval('public.walks'); END IF;
             END $$",
        )
        .await;
}

async fn database() -> Database {
    let database = Database::migrated().await;
    count_walks(&database).await;
    database
}

#[tokio::test]
async fn a_raised_rate_reorders_no_group_and_moves_its_jobs_up() {
    let database = database().await;
    let before = queue_with(&database, limits(one_in(10))).await;
    for _ in 0..5 {
        enqueue(&before, job("k")).await;
    }
    assert_eq!(minutes(&database, "k").await, [0.0, 10.0, 20.0, 30.0, 40.0]);
    let after = queue_with(&database, limits(one_in(2))).await;
    let estimate = after.estimate(job("k")).await.expect("an estimate");
    let last = enqueue(&after, job("k")).await;
    let all = enqueue_all(&after, 2, "k").await;
    assert!(all.iter().all(|at| *at >= last), "{all:?}, {last:?}");
    assert_eq!(crate::support::estimated(&estimate).0, last);
    let waiting = minutes(&database, "k").await;
    assert!(waiting.is_sorted(), "{waiting:?}");
    work(&database, &after).await;
    assert_eq!(minutes(&database, "k").await, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
    // The next one follows, and so does a rate that was lowered again.
    enqueue(&after, job("k")).await;
    assert_eq!(minutes(&database, "k").await.last(), Some(&16.0));
    work(&database, &before).await;
    let slow: Vec<f64> = (1..=8).map(|nth| f64::from(nth) * 10.0).collect();
    assert_eq!(minutes(&database, "k").await, slow);
    enqueue(&before, job("k")).await;
    assert_eq!(minutes(&database, "k").await.last(), Some(&90.0));
}

/// The balances of a large limit have larger rounding errors, which are no reservations of others: its jobs move back, too, if the
/// rate is lowered.
#[tokio::test]
async fn jobs_of_a_large_limit_follow_a_lowered_rate() {
    for scale in [1.0, 1e7 / 3.0, 1e12 / 7.0, 7e11 + 0.3, 1.7e12] {
        let database = database().await;
        let of_rate =
            |minutes: u32| Limit::token_bucket(scale, MINUTE * minutes).capacity(scale).build().expect("a limit");
        let before = queue_with(&database, limits(of_rate(2))).await;
        for _ in 0..6 {
            enqueue(&before, Job::new(Item::new("l", "k").count(scale), &1).expect("a job")).await;
        }
        assert_eq!(minutes(&database, "k").await, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0], "{scale}");
        let after = queue_with(&database, limits(of_rate(10))).await;
        work(&database, &after).await;
        // Beyond 1e13 tokens, a balance would be rounded: such jobs keep their times, and the walk goes on.
        let last = if scale > 1e12 { [2.0, 4.0, 6.0, 8.0, 10.0] } else { [10.0, 20.0, 30.0, 40.0, 50.0] };
        assert_eq!(minutes(&database, "k").await, last, "{scale}");
    }
}

async fn enqueue_all(queue: &Queue, jobs: usize, key: &str) -> Vec<SystemTime> {
    let jobs = (0..jobs).map(|_| job(key));
    let answers = queue.enqueue_all(jobs).await.expect("answers");
    answers.iter().map(|answer| scheduled(answer).run_at).collect()
}

#[tokio::test]
async fn tokens_that_come_back_reorder_no_group() {
    let database = database().await;
    let queue = queue_with(&database, limits(one_in(10))).await;
    let give_back: [(&str, &str); 2] = [
        ("reset", "SELECT rate_limit.reset('l', $1)::text"),
        (
            "credit",
            "SELECT rate_limit.credit_all_with(jsonb_build_array(jsonb_build_object('name', 'l', 'key', $1::text,
                      'kind', 'token_bucket', 'rate', 1, 'period', '10 minutes', 'capacity', 1, 'count', 3)))::text",
        ),
    ];
    for (what, sql) in give_back {
        for _ in 0..4 {
            enqueue(&queue, job(what)).await;
        }
        sqlx::query(sql).bind(what).execute(&database.pool).await.expect(what);
        enqueue(&queue, job(what)).await;
        enqueue(&queue, job(what).unique_id(what)).await;
        let times = minutes(&database, what).await;
        assert!(times.is_sorted(), "{what}: {times:?}");
        // Nor does one of the same group that needs other tokens.
        enqueue(&queue, Job::new(("other", what), &1).expect("a job").group(what)).await;
        assert_eq!(minutes(&database, what).await.last(), Some(&0.0), "{what}");
        // A job of a higher priority, or with a time of its own, does not wait for them.
        enqueue(&queue, job(what).priority(1)).await;
        let first = *minutes(&database, what).await.last().expect("a job");
        assert!(first < 40.0, "{what}: {first}");
    }
}

#[tokio::test]
async fn jobs_with_times_of_their_own_hold_up_no_other_and_keep_them() {
    let database = database().await;
    let queue = queue_with(&database, limits(one_in(10))).await;
    enqueue(&queue, job("k").run_at(SystemTime::now() + MINUTE * 1000)).await;
    enqueue(&queue, job("k").jitter(MINUTE * 3)).await;
    let own = async || {
        let sql = "SELECT array_agg(run_at) FROM rate_limit.jobs WHERE not_before IS NOT NULL OR jitter IS NOT NULL";
        let times: Vec<i64> = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("the times");
        times
    };
    let before = own().await;
    enqueue(&queue, job("k")).await;
    assert_eq!(minutes(&database, "k").await[2], 20.0);
    let faster = queue_with(&database, limits(one_in(1))).await;
    work(&database, &faster).await;
    assert_eq!(own().await, before);
    let moved = minutes(&database, "k").await[2];
    assert!((2.0..=3.0).contains(&moved), "{moved}");
}

/// However many jobs with later times of their own wait, a new job does not overtake those that have none.
#[tokio::test]
async fn many_jobs_with_times_of_their_own_hide_no_other() {
    let database = database().await;
    let queue = queue_with(&database, limits(one_in(10))).await;
    for _ in 0..3 {
        enqueue(&queue, job("k")).await;
    }
    database
        .execute(
            "INSERT INTO rate_limit.jobs (
               queue, key, run_at, not_before, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at)
             SELECT queue, key, run_at + 60000000000, run_at + 60000000000, payload, limit_names, limit_keys, counts, max_attempts,
               enqueued_at
             FROM (SELECT * FROM rate_limit.jobs ORDER BY id LIMIT 1) AS j, generate_series(1, 500);
             SELECT rate_limit.reset('l', 'k')",
        )
        .await;
    enqueue(&queue, job("k")).await;
    enqueue(&queue, job("k").unique_id("k")).await;
    let times = minutes(&database, "k").await;
    assert_eq!(times[times.len() - 2..], [20.0, 20.0]);
}

/// Two groups reserve from one bucket in turn. Neither takes the reservations of the other one.
#[tokio::test]
async fn groups_that_share_a_limit_keep_their_order_and_their_tokens() {
    let database = database().await;
    let before = queue_with(&database, limits(one_in(10))).await;
    let of = |group: &str| job("shared").group(group);
    for _ in 0..3 {
        enqueue(&before, of("a")).await;
        enqueue(&before, of("b")).await;
    }
    let balance = balance(&database).await;
    let faster = queue_with(&database, limits(one_in(2))).await;
    work(&database, &faster).await;
    assert_eq!(self::balance(&database).await, balance);
    let (a, b) = (minutes(&database, "a").await, minutes(&database, "b").await);
    assert!(a.is_sorted() && b.is_sorted(), "{a:?}, {b:?}");
    let mut all = [a, b].concat();
    all.sort_by(f64::total_cmp);
    // At no time have more jobs started than the rate allows, and the last is not later than the limit needs.
    assert!((2_u32..).step_by(2).zip(&all).all(|(minutes, at)| *at >= f64::from(minutes) - 0.1), "{all:?}");
    assert!(all[all.len() - 1] <= 50.0, "{all:?}");
    // A lower rate moves none of them earlier.
    work(&database, &before).await;
    let (a, b) = (minutes(&database, "a").await, minutes(&database, "b").await);
    assert!(a.is_sorted() && b.is_sorted(), "{a:?}, {b:?}");
}

async fn balance(database: &Database) -> f64 {
    let sql = "SELECT (r.value + (rate_limit._clock() - r.ts) / 600e6)::float8 FROM rate_limit.rate_limits AS r WHERE r.name = 'l' AND r.key = 'shared'";
    let value: f64 = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("a balance");
    (value * 10.0).round() / 10.0
}

#[tokio::test]
async fn jobs_of_several_limits_and_of_windows_move_up_too() {
    let database = database().await;
    // No window ends during the test.
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let start = Duration::from_secs(since_1970.as_secs()) - MINUTE;
    let window = |rate: u32| Limit::fixed_window(rate, MINUTE * 10).start(start).build().expect("a limit");
    let before = queue_with(&database, limits(window(1))).await;
    let both = || Job::new([Item::new("l", "k"), Item::new("other", "k")], &1).expect("a job");
    for _ in 0..6 {
        enqueue(&before, both()).await;
    }
    let slow = minutes(&database, "k").await;
    assert!(slow[5] > 40.0, "{slow:?}");
    let after = queue_with(&database, limits(window(3))).await;
    work(&database, &after).await;
    let times = minutes(&database, "k").await;
    assert!(times.is_sorted() && times.len() >= 5, "{times:?}");
    // Three start in each window.
    assert!(times[times.len() - 1] <= 20.0, "{times:?}");
}

#[tokio::test]
async fn more_jobs_than_one_step_computes_move_up() {
    let database = database().await;
    let before = queue_with(&database, limits(one_in(10))).await;
    for _ in 0..5 {
        enqueue_all(&before, 500, "k").await;
    }
    let after = queue_with(&database, limits(one_in(1))).await;
    work(&database, &after).await;
    let times = minutes(&database, "k").await;
    assert!(times.is_sorted());
    assert!((2_490.0..=2_501.0).contains(times.last().expect("a job")), "{:?}", times.last());
}

/// Their steps commit one after the other, so they only move up: else jobs of the first steps would be behind those of the others.
#[tokio::test]
async fn more_jobs_than_one_step_computes_do_not_move_back() {
    let database = database().await;
    let before = queue_with(&database, limits(one_in(1))).await;
    for _ in 0..3 {
        enqueue_all(&before, 500, "k").await;
    }
    let after = queue_with(&database, limits(one_in(10))).await;
    work(&database, &after).await;
    let times = minutes(&database, "k").await;
    assert!(times.is_sorted());
    assert!((1_497.0..=1_499.0).contains(times.last().expect("a job")), "{:?}", times.last());
}

/// A caller's transaction has locked the bucket of one group for long. The others move up, and that group does later.
#[tokio::test]
async fn a_locked_bucket_holds_up_its_own_group_only() {
    let database = database().await;
    let before = queue_with(&database, limits(one_in(10))).await;
    for key in ["a", "b", "c"] {
        enqueue_all(&before, 3, key).await;
    }
    let mut tx = database.app.begin().await.expect("begin");
    let _ = before.within(&mut tx).enqueue(job("a")).await.expect("an answer");
    let after = queue_with(&database, limits(one_in(1))).await;
    let idle = handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }));
    let until = async {
        for key in ["b", "c"] {
            until_minutes(&database, key, &[1.0, 2.0]).await;
        }
        assert_eq!(minutes(&database, "a").await, [10.0, 20.0]);
        tx.commit().await.expect("commit");
        until_minutes(&database, "a", &[1.0, 2.0, 3.0]).await;
    };
    let worker = after.worker(quick(), idle).expect("a worker");
    let _ = tokio::time::timeout(MINUTE, worker.run(until)).await.expect("in time").expect("a report");
}

async fn until_minutes(database: &Database, group: &str, expected: &[f64]) {
    while minutes(database, group).await != expected {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A job reserves more than the capacity, and half of its tokens have arrived.
#[tokio::test]
async fn a_large_job_loses_no_token_that_has_arrived() {
    let database = database().await;
    let queue = queue_with(&database, limits(one_in(1))).await;
    let large = || Job::new(Item::new("l", "k").count(10), &1).expect("a job");
    enqueue(&queue, large()).await;
    enqueue(&queue, large()).await;
    let passed =
        "UPDATE rate_limit.jobs SET run_at = run_at - 300000000; UPDATE rate_limit.rate_limits SET ts = ts - 300000000";
    database.execute(passed).await;
    assert_eq!(minutes(&database, "k").await, [4.0, 14.0]);
    work(&database, &queue).await;
    assert_eq!(minutes(&database, "k").await, [4.0, 14.0]);
    let faster =
        queue_with(&database, limits(Limit::token_bucket(4, MINUTE).capacity(1).build().expect("a limit"))).await;
    work(&database, &faster).await;
    // 4 and 14 tokens are missing, so it takes 1 and 3.5 minutes.
    assert_eq!(minutes(&database, "k").await, [1.0, 4.0]);
}

/// A step of the walk reads all jobs of a group that are left, so groups of more than 20,000 jobs keep their times. The others do
/// not wait for them.
#[tokio::test]
async fn a_group_of_very_many_jobs_keeps_its_times() {
    let database = database().await;
    let queue = queue_with(&database, limits(one_in(10))).await;
    for group in ["a large one", "small"] {
        for _ in 0..3 {
            enqueue(&queue, job(group)).await;
        }
    }
    database
        .execute(
            "INSERT INTO rate_limit.jobs (queue, key, run_at, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at)
             SELECT queue, key, run_at + 1, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at
             FROM (SELECT * FROM rate_limit.jobs WHERE key = 'a large one' ORDER BY id DESC LIMIT 1) AS j, generate_series(1, 20000)",
        )
        .await;
    let changed = queue_with(&database, limits(one_in(2))).await;
    work(&database, &changed).await;
    assert_eq!(minutes(&database, "small").await, [2.0, 4.0]);
    assert_eq!(minutes(&database, "a large one").await[..2], [10.0, 20.0]);
}

/// A worker with work all the time never sleeps. If pruning forgot it, others would compute the times anew for nothing.
#[tokio::test]
async fn a_worker_that_has_never_slept_is_not_forgotten() {
    let database = database().await;
    let walk = "SELECT rate_limit._retime_jobs(
        'q', 'w', NULL, NULL, '{l}', '{token_bucket}', '{1}', '{1000000}', '{1}', '{NULL}', NULL)";
    let plan =
        "SELECT rate_limit._plan_claim('q', 'v', rate_limit._clock(), 0, false, true, false, '{}', '{s}', '{1}', true)";
    let prune = "SELECT rate_limit._jobs_prune('q', 0, 100)";
    for sql in [walk, plan, prune] {
        database.execute(sql).await;
    }
    let known = "SELECT worker FROM rate_limit.workers ORDER BY worker";
    let known: Vec<String> = sqlx::query_scalar(known).fetch_all(&database.pool).await.expect("workers");
    assert_eq!(known, ["v", "w"]);
    database.execute("UPDATE rate_limit.workers SET asleep_until = asleep_until - 86400000000").await;
    database.execute(prune).await;
    let gone = "SELECT count(*) FROM rate_limit.workers";
    assert_eq!(sqlx::query_scalar::<i64>(gone).fetch_one(&database.pool).await.expect("a count"), 0);
}

/// A walk that waits for a group has not locked the buckets of jobs that are enqueued meanwhile: other transactions may reserve
/// from them while it computes.
#[tokio::test]
async fn a_job_that_came_during_a_wait_keeps_its_time() {
    let database = database().await;
    let queue = queue_with(&database, limits(one_in(1))).await;
    enqueue(&queue, job("first").group("g")).await;
    let mut holder = database.pool.begin().await.expect("begin");
    let hold = "INSERT INTO rate_limit.groups AS g (queue, key) VALUES ('q', 'g') \
                ON CONFLICT (queue, key) DO UPDATE SET lag = g.lag RETURNING pg_backend_pid()";
    let pid: i32 = sqlx::query_scalar(hold).fetch_one(&mut *holder).await.expect(hold);
    database.execute("ALTER FUNCTION rate_limit._retime_jobs SET lock_timeout = '60s'").await;
    let pool = database.pool.clone();
    let walk = tokio::spawn(async move {
        let walk = "SELECT coalesce(is_held, false) FROM rate_limit._retime_jobs('q', 'w', NULL, NULL, ARRAY['l'], \
                    ARRAY['token_bucket'], ARRAY[1], ARRAY[120000000], ARRAY[1], ARRAY[NULL]::bigint[], ARRAY[NULL]::integer[])";
        sqlx::query_scalar::<bool>(walk).fetch_one(&pool).await.expect(walk)
    });
    while !blocked_by(&database, pid).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut times = Vec::new();
    for _ in 0..3 {
        times.push(enqueue(&queue, job("second").group("g")).await);
    }
    holder.commit().await.expect("commit");
    assert!(walk.await.expect("a task"), "another try");
    let now = "SELECT run_at FROM rate_limit.jobs WHERE limit_keys = ARRAY['second'] ORDER BY id";
    let now: Vec<i64> = sqlx::query_scalar(now).fetch_all(&database.pool).await.expect(now);
    let micros = |at: SystemTime| at.duration_since(UNIX_EPOCH).expect("a time").as_micros();
    assert!(times.into_iter().map(micros).eq(now.into_iter().map(|at| u128::from(at.cast_unsigned()))));
}
