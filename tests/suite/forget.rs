//! `forget` deletes all that is stored about a key, and nothing else.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::queue::{Finish, Job, JobState, Queue, handler_fn};
use pg_limiter::sqlx::{self, Row};
use pg_limiter::{
    Call, DenialMemory, Error, InvalidCall, Item, KeySecret, Limit, Limiter, LimiterConfig, TransactionLimiter,
};
use tokio::sync::Notify;

use crate::key_secret::{ANNA, BERT, SECRET, limits};
use crate::queue::{in_state, quick, until_in_state};
use crate::support::gate::{self, CENTURY};
use crate::support::{Database, scheduled};

fn limiter(database: &Database, secret: Option<&str>, change: impl FnOnce(&mut LimiterConfig)) -> Limiter {
    gate::limiter(&database.app, limits(), |config| {
        config.key_secret = secret.map(|secret| KeySecret::new(secret).expect("a secret"));
        change(config);
    })
}

async fn left(limiter: &Limiter, item: impl Into<Item>) -> f64 {
    limiter.peek(item.into()).await.expect("a balance").remaining().round()
}

fn finished() -> impl pg_limiter::queue::Handler {
    handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))
}

/// Seven rows of buckets (four of them shards), an answer, and four jobs: done, waiting in its group, waiting in the group of
/// another key, and running.
async fn use_all(limiter: &Limiter, key: &'static str) {
    let items = ["mails", "calls", "window"].map(|name| Item::new(name, key)).to_vec();
    let inline = Item::new(("inline", Limit::token_bucket(10, CENTURY).build().expect("a limit")), key);
    let spread = Item::new("spread", key).count(90); // More than one row has.
    assert!(limiter.limit([items, vec![spread, inline]].concat()).await.expect("a decision").is_allowed());
    for name in [key.to_owned(), format!("{key}:1")] {
        let once = Call::from(Item::global("mails")).idempotency_key(name);
        assert!(limiter.limit(once).await.expect("a decision").is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_forgotten_key_is_left() {
    for secret in [None, Some(SECRET)] {
        let database = Database::migrated().await;
        let limiter = limiter(&database, secret, |_| {});
        for key in [ANNA, BERT] {
            use_all(&limiter, key).await;
        }
        let queue = Queue::new(&limiter, "q").expect("a queue");
        let job = |items: Vec<Item>| Job::new(items, &1).expect("a job");
        // One job is done, and has counted its start; one is dead. They have other groups.
        let of_anna = || job(vec![Item::new("mails", ANNA), Item::global("calls")]);
        scheduled(&queue.enqueue(of_anna().group("others")).await.expect("an answer"));
        crate::queue::work_until_done(&queue, quick(), finished(), 1).await;
        // Two wait: in the group of the key, and in another group. Both have reserved from a shared bucket.
        scheduled(&queue.enqueue(of_anna()).await.expect("an answer"));
        let not_yet = std::time::SystemTime::now() + Duration::from_secs(3600);
        scheduled(&queue.enqueue(of_anna().group(BERT).run_at(not_yet)).await.expect("an answer"));
        let of_bert = job(vec![Item::new("mails", BERT), Item::global("calls")]).run_at(not_yet);
        scheduled(&queue.enqueue(of_bert).await.expect("an answer"));
        assert_eq!(left(&limiter, Item::global("calls")).await, 6.0);
        let stored = |key| secret.map_or(key, |_| "@");
        if secret.is_none() {
            assert!(database.rows_with(ANNA).await >= 14);
        }

        let forgotten = limiter.forget(ANNA).await.expect("forgotten");
        // mails, mails/started, calls, window, inline, and the rows of `spread`.
        assert!((6..=9).contains(&forgotten.buckets), "{forgotten:?}");
        assert_eq!((forgotten.jobs, forgotten.running), (3, 0), "{secret:?}");
        assert_eq!(forgotten.answers, if secret.is_some() { 1 } else { 2 });
        assert_eq!(database.rows_with(stored(ANNA)).await, 0);
        let hashes: Vec<String> = ["mails", "calls", "window", "spread", "inline"]
            .iter()
            .filter_map(|name| secret.map(|secret| KeySecret::new(secret).expect("a secret").stored_key(name, ANNA)))
            .collect();
        for hash in &hashes {
            assert_eq!(database.rows_with(hash).await, 0);
        }
        // The cancelled jobs have returned what they reserved from the shared bucket. Nothing of others is gone.
        assert_eq!(left(&limiter, Item::global("calls")).await, 8.0);
        assert_eq!(left(&limiter, ("mails", ANNA)).await, 10.0);
        assert_eq!(left(&limiter, ("mails", BERT)).await, 8.0);
        assert_eq!(left(&limiter, ("spread", BERT)).await, 10.0);
        assert_eq!(in_state(&queue, JobState::Scheduled).await, 1);
        let again = limiter.forget(ANNA).await.expect("forgotten");
        assert_eq!((again.buckets, again.jobs, again.running, again.answers), (0, 0, 0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_stays_until_it_has_ended() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, None, |_| {});
    let queue = Queue::new(&limiter, "q").expect("a queue");
    scheduled(&queue.enqueue(Job::new(("mails", ANNA), &1).expect("a job")).await.expect("an answer"));
    let (started, may_end) = (std::sync::Arc::new(Notify::new()), std::sync::Arc::new(Notify::new()));
    let handler = {
        let (started, may_end) = (started.clone(), may_end.clone());
        handler_fn(move |_, _| {
            let (started, may_end) = (started.clone(), may_end.clone());
            Box::pin(async move {
                started.notify_one();
                may_end.notified().await;
                Ok(Finish::Done)
            })
        })
    };
    let worker = queue.worker(quick(), handler).expect("a worker");
    let stop = {
        let queue = queue.clone();
        async move { until_in_state(&queue, JobState::Done, 1).await }
    };
    let running = tokio::spawn(async move { worker.run(stop).await });
    started.notified().await;
    let forgotten = limiter.forget(ANNA).await.expect("forgotten");
    assert_eq!((forgotten.jobs, forgotten.running), (0, 1));
    may_end.notify_one();
    let _ = running.await.expect("no panic").expect("a report");
    let forgotten = limiter.forget(ANNA).await.expect("forgotten");
    assert_eq!((forgotten.jobs, forgotten.running), (1, 0));
    assert_eq!(database.rows_with(ANNA).await, 0);
}

#[tokio::test]
async fn in_the_callers_transaction_a_rollback_undoes_it() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, None, |_| {});
    let alone = TransactionLimiter::new(limits());
    for (level, is_alone) in [("READ COMMITTED", false), ("REPEATABLE READ", true), ("SERIALIZABLE", false)] {
        use_all(&limiter, ANNA).await;
        let rows = database.rows_with(ANNA).await;
        for commits in [false, true] {
            let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
            let mut tx = database.app.begin_with(begin).await.expect("begin");
            let within = if is_alone { alone.within(&mut tx) } else { limiter.within(&mut tx) };
            let forgotten = within.forget(ANNA).await.expect("forgotten");
            assert!(forgotten.buckets >= 5 && forgotten.answers == 2, "{level}: {forgotten:?}");
            if commits {
                tx.commit().await.expect("commit");
            } else {
                tx.rollback().await.expect("rollback");
            }
            assert_eq!(database.rows_with(ANNA).await, if commits { 0 } else { rows }, "{level}");
        }
    }
}

#[tokio::test]
async fn remembered_denials_are_forgotten_too() {
    let database = Database::migrated().await;
    let mut memory = DenialMemory::default();
    memory.max_age = Duration::from_secs(3600);
    let limiter = limiter(&database, Some(SECRET), |config| config.remember_denials = Some(memory));
    assert!(limiter.limit(("mails", ANNA, 10)).await.expect("a decision").is_allowed());
    assert!(limiter.limit(("mails", ANNA)).await.expect("a decision").is_denied());
    limiter.forget(ANNA).await.expect("forgotten");
    assert!(limiter.limit(("mails", ANNA)).await.expect("a decision").is_allowed());
}

#[tokio::test]
async fn a_key_that_cannot_be_stored_is_rejected() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, None, |_| {});
    for (key, message) in [
        (String::new(), "the key to forget is empty; give it at least one character"),
        (
            "k".repeat(1025),
            "the key to forget has 1025 bytes, and at most 1024 are allowed; give a key as the calls do",
        ),
        ("a\0b".to_owned(), "the key to forget contains a NUL character; remove it"),
    ] {
        let error = limiter.forget(key).await.expect_err("invalid");
        assert!(matches!(&error, Error::Invalid(InvalidCall::ForgottenKey { .. })), "{error:?}");
        assert_eq!(error.to_string(), message);
    }
    for (call, reason) in [
        ("rate_limit.forget(NULL)", "the key to forget is NULL"),
        ("rate_limit.forget('')", "the key to forget is empty"),
        ("rate_limit.forget('a', ARRAY['n'])", "there are 1 names and 0 keys"),
        ("rate_limit.forget('a', ARRAY['n'], ARRAY[''])", "a key among bucket_keys is empty or NULL"),
    ] {
        let sql = sqlx::AssertSqlSafe(format!("SELECT * FROM {call}"));
        let error = sqlx::query(sql).execute(&database.pool).await.expect_err("invalid");
        let error = error.as_database_error().expect("of the database");
        assert!(error.code().as_deref() == Some("22023") && error.message().contains(reason), "{error}");
    }
}

/// From psql, without limits: the rows of every limit are found, by the primary key alone.
#[tokio::test]
async fn sql_finds_the_buckets_of_every_limit_without_a_scan() {
    let database = Database::migrated().await;
    use_all(&limiter(&database, None, |_| {}), ANNA).await;
    database
        .execute(
            "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at)
             SELECT 'n' || n % 20, 'k' || n, 0, 1, 1 FROM generate_series(1, 20000) AS n;
             ANALYZE rate_limit.rate_limits",
        )
        .await;
    // The statistics of a session include those of its last transactions.
    let read = "SELECT seq_scan, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
                FROM pg_stat_xact_user_tables WHERE relname = 'rate_limits'";
    let mut tx = database.pool.begin().await.expect("begin");
    let before: (i64, i64) = sqlx::query_as(read).fetch_one(&mut *tx).await.expect("the statistics");
    let sql = "SELECT buckets, jobs, running, answers FROM rate_limit.forget('anna@example.com')";
    let row = sqlx::query(sql).fetch_one(&mut *tx).await.expect("forgotten");
    let counts: Vec<i64> = (0..4).map(|column| row.get(column)).collect();
    assert!(counts[0] >= 5 && counts[1..] == [0, 0, 2], "{counts:?}");
    let after: (i64, i64) = sqlx::query_as(read).fetch_one(&mut *tx).await.expect("the statistics");
    let (scans, rows) = (after.0 - before.0, after.1 - before.1);
    assert!(scans == 0 && (1..500).contains(&rows), "{scans} scans, {rows} rows");
    tx.commit().await.expect("commit");
    assert_eq!(database.rows_with(ANNA).await, 0);
    assert_eq!(database.rows().await, 20_001);
}

/// Calls, jobs and workers use the key while it is forgotten again and again. Nothing deadlocks for good.
#[tokio::test(flavor = "multi_thread")]
async fn forgetting_runs_beside_calls_and_jobs() {
    let database = Database::migrated().await;
    let limits = limits().define("fast", Limit::token_bucket(1e6, Duration::from_secs(1))).expect("a limit");
    let limiter = gate::limiter(&database.app, limits, |_| {});
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let worker = queue.worker(quick(), finished()).expect("a worker");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let working = tokio::spawn(async move { worker.run(async { drop(stopped.await) }).await });
    let users = (0..6).map(|nth| {
        let (limiter, queue) = (limiter.clone(), queue.clone());
        tokio::spawn(async move {
            for turn in 0..40 {
                match (nth + turn) % 3 {
                    0 => drop(limiter.forget(ANNA).await.expect("forgotten")),
                    1 => {
                        let items = ["fast", "spread", "mails"].map(|name| Item::new(name, ANNA).count(0.01));
                        let _ = limiter.limit(items).await.expect("a decision");
                    }
                    _ => {
                        let items = [Item::new("fast", ANNA), Item::global("fast")];
                        let job = Job::new(items, &1).expect("a job");
                        let _ = queue.enqueue(job).await.expect("an answer");
                    }
                }
            }
        })
    });
    for user in join_all(users).await {
        user.expect("no panic");
    }
    for state in [JobState::Scheduled, JobState::Available, JobState::Running] {
        while in_state(&queue, state).await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    stop.send(()).expect("a worker");
    let _ = working.await.expect("no panic").expect("a report");
    let forgotten = limiter.forget(ANNA).await.expect("forgotten");
    assert_eq!(forgotten.running, 0);
    assert_eq!(database.rows_with(ANNA).await, 0);
}
