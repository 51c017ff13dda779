//! A row that another transaction keeps locked delays the calls on it, and no others: neither the calls in the same lane, nor
//! the jobs of the same queue.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pg_limiter::queue::{Job, Queue};
use pg_limiter::{Connections, Error, Isolation, Item, Limit, Limiter, Limits};

use crate::lock_order::blocked_by;
use crate::support::gate::{CENTURY, hold, limiter};
use crate::support::proxy::{Fault, Point, Proxy, Way};
use crate::support::{Database, limiter_at, sqlx};

/// Far longer than any call takes that does not wait for a locked row.
const SOON: Duration = Duration::from_secs(30);

fn limits() -> Limits {
    Limits::new()
        .define("a", Limit::token_bucket(1e6, CENTURY))
        .and_then(|limits| limits.define("s", Limit::sliding_window(1e6, CENTURY)))
        .and_then(|limits| limits.define("shards", Limit::token_bucket(1e6, CENTURY).shards(4)))
        .expect("limits")
}

async fn allowed(limiter: &Limiter, items: impl IntoIterator<Item = Item>) {
    let call = limiter.limit(items.into_iter().collect::<Vec<_>>());
    let decision = tokio::time::timeout(SOON, call).await.expect("it waits for a row that it does not name");
    assert!(decision.expect("a decision").is_allowed());
}

async fn taken(limiter: &Limiter, item: Item) -> f64 {
    1e6 - limiter.peek(item).await.expect("a balance").remaining()
}

async fn others_go_on(isolation: Isolation, connections: Connections) {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(), |config| {
        (config.lanes, config.isolation, config.connections) = (1, isolation, connections);
    });
    allowed(&limiter, [Item::new("a", "held"), Item::new("s", "held"), Item::new("shards", "held")]).await;
    // A locked row of each kind, an uncommitted new row, and a group that names one of them.
    let mut holder = database.pool.begin().await.expect("begin");
    for item in [Item::new("a", "held"), Item::new("s", "held"), Item::new("a", "new")] {
        assert!(limiter.within(&mut holder).limit(item).await.expect("a decision").is_allowed());
    }
    let waits = [
        vec![Item::new("a", "held")],
        vec![Item::new("s", "held")],
        vec![Item::new("a", "new")],
        vec![Item::new("a", "free"), Item::new("s", "held")],
    ];
    let held: Vec<_> = (0..3).flat_map(|_| waits.clone()).collect();
    let held: Vec<_> = held.into_iter().map(|items| tokio::spawn(ask(limiter.clone(), items))).collect();
    for round in 0..30 {
        let items = (0..20).map(|nth| Item::new(["a", "s", "shards"][nth % 3], format!("{nth} {}", round % 3)));
        join_all(items.map(|item| allowed(&limiter, [item]))).await;
        allowed(&limiter, [Item::new("a", "group"), Item::new("s", "group")]).await;
    }
    assert!(held.iter().all(|task| !task.is_finished()), "the rows are locked");
    holder.commit().await.expect("commit");
    for task in held {
        let decision = tokio::time::timeout(SOON, task).await.expect("the rows are free").expect("a task");
        assert!(decision.expect("a decision").is_allowed());
    }
    let expected = [(Item::new("a", "held"), 5.0), (Item::new("s", "held"), 8.0), (Item::new("a", "new"), 4.0)];
    for (item, expected) in expected {
        assert_eq!(taken(&limiter, item.clone()).await.round(), expected, "{item:?}");
    }
    limiter.close().await;
}

/// Credits on a sliding window and on a bucket in debt are decided row by row, after the rest of their batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credit_on_a_locked_row_delays_no_other_call() {
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        for connections in [Connections::Own, Connections::Pool] {
            let database = Database::migrated().await;
            let limiter = limiter(&database.pool, limits(), |config| {
                (config.lanes, config.isolation, config.connections) = (1, isolation, connections);
            });
            limiter.charge(("a", "held", 2e6)).await.expect("a debt");
            allowed(&limiter, [Item::new("s", "held").count(10)]).await;
            let (debt, window) = (hold(&database, "a", &["held"]).await, hold(&database, "s", &["held"]).await);
            let credits: Vec<_> = ["a", "s"]
                .into_iter()
                .cycle()
                .take(6)
                .map(|name| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        match name {
                            "a" => limiter.credit((name, "held")).await,
                            _ => limiter.settle((name, "held", 2), 1).await,
                        }
                    })
                })
                .collect();
            for round in 0..20 {
                join_all(
                    (0..40).map(|nth| allowed(&limiter, [Item::new(["a", "s"][nth % 2], format!("{round} {nth}"))])),
                )
                .await;
            }
            assert!(credits.iter().all(|task| !task.is_finished()), "the rows are locked");
            debt.rollback().await.expect("rollback");
            window.rollback().await.expect("rollback");
            for credit in credits {
                tokio::time::timeout(SOON, credit)
                    .await
                    .expect("the rows are free")
                    .expect("a task")
                    .expect("a credit");
            }
            assert_eq!(
                taken(&limiter, Item::new("a", "held")).await.round(),
                2e6 - 3.0,
                "{isolation:?}, {connections:?}"
            );
            assert_eq!(taken(&limiter, Item::new("s", "held")).await.round(), 7.0, "{isolation:?}, {connections:?}");
            limiter.close().await;
        }
    }
}

async fn ask(limiter: Limiter, items: Vec<Item>) -> Result<pg_limiter::Decision, Error> {
    limiter.limit(items).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_other_rows_proceed_while_one_is_locked() {
    for connections in [Connections::Own, Connections::Pool] {
        for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
            others_go_on(isolation, connections).await;
        }
    }
}

/// Hundreds of calls, more than the limiter lets wait at the same time, on keys that are locked for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_many_locked_rows_are_all_decided_once_they_are_free() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(), |config| config.lanes = 2);
    let keys: Vec<String> = (0..40).map(|nth| nth.to_string()).collect();
    join_all(keys.iter().map(|key| allowed(&limiter, [Item::new("a", key)]))).await;
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let holder = hold(&database, "a", &keys).await;
    let calls = (0..400).map(|nth| tokio::spawn(ask(limiter.clone(), vec![Item::new("a", (nth % 40).to_string())])));
    let calls: Vec<_> = calls.collect();
    for nth in 0..50 {
        allowed(&limiter, [Item::new("a", format!("free {nth}"))]).await;
    }
    assert!(calls.iter().all(|call| !call.is_finished()));
    holder.rollback().await.expect("rollback");
    for call in calls {
        let decision = tokio::time::timeout(SOON, call).await.expect("the rows are free").expect("a task");
        assert!(decision.expect("a decision").is_allowed());
    }
    for key in keys {
        assert_eq!(taken(&limiter, Item::new("a", key)).await.round(), 11.0);
    }
}

/// They return `Unavailable` by the deadline and are charged nothing, however many calls wait for however many keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_rows_that_stay_locked_are_answered_by_their_deadline() {
    let database = Database::migrated().await;
    let deadline = Duration::from_secs(3);
    let limiter = limiter(&database.pool, limits(), |config| config.retry.deadline = deadline);
    let keys: Vec<String> = (0..100).map(|nth| nth.to_string()).collect();
    join_all(keys.iter().map(|key| allowed(&limiter, [Item::new("a", key)]))).await;
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let holder = hold(&database, "a", &keys).await;
    let began = Instant::now();
    let calls = (0..1_000).map(|nth| {
        let (limiter, item) = (limiter.clone(), Item::new("a", (nth % 200).to_string()));
        tokio::spawn(async move { (nth % 200 < 100, limiter.limit(item).await) })
    });
    for call in calls.collect::<Vec<_>>() {
        let (is_held, answer) = call.await.expect("a task");
        match answer {
            Ok(decision) => assert!(decision.is_allowed() && !is_held),
            Err(Error::Unavailable { .. }) => assert!(is_held, "its row is not locked"),
            Err(error) => panic!("{error:?}"),
        }
    }
    // The deadline, and as much again for a busy machine.
    assert!(began.elapsed() < deadline * 2, "{:?}", began.elapsed());
    holder.rollback().await.expect("rollback");
    for key in keys {
        assert_eq!(taken(&limiter, Item::new("a", key)).await.round(), 1.0, "charged, but reported as not charged");
    }
}

/// One job's limit is locked, and another job's unique id is being enqueued by another transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_other_limits_are_enqueued_while_one_is_locked() {
    for connections in [Connections::Own, Connections::Pool] {
        let database = Database::migrated().await;
        let limiter = limiter(&database.pool, limits(), |config| config.connections = connections);
        let queue = Queue::new(&limiter, "q").expect("a queue");
        let job = |key: &str| Job::new(("a", key), &()).expect("a job");
        allowed(&limiter, [Item::new("a", "held")]).await;
        let mut holder = database.pool.begin().await.expect("begin");
        assert!(limiter.within(&mut holder).limit(("a", "held")).await.expect("a decision").is_allowed());
        let taken = queue.within(&mut holder).enqueue(job("unique").unique_id("id")).await;
        assert!(taken.expect("an answer").enforce().is_ok());
        let waits = [job("held"), job("held"), job("other").unique_id("id")];
        let held: Vec<_> = waits.map(|job| tokio::spawn(enqueue(queue.clone(), job))).into_iter().collect();
        for round in 0..20 {
            let jobs = (0..10).map(|nth| enqueue(queue.clone(), job(&format!("{nth} {round}"))));
            for enqueued in tokio::time::timeout(SOON, join_all(jobs)).await.expect("they need no locked row") {
                assert!(enqueued.expect("an answer").enforce().is_ok());
            }
        }
        assert!(held.iter().all(|task| !task.is_finished()), "the rows are locked");
        holder.rollback().await.expect("rollback");
        for task in held {
            let enqueued = tokio::time::timeout(SOON, task).await.expect("the rows are free").expect("a task");
            assert!(enqueued.expect("an answer").enforce().is_ok());
        }
    }
}

/// Where a statement takes long, calls on a bucket that was locked once keep waiting beside their lane. They share a connection:
/// to open one takes longer than a call, and the next call would come too soon again.
#[tokio::test]
async fn calls_that_wait_in_turn_share_a_connection() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, limits(), |_| {});
    allowed(&limiter, [Item::new("a", "held")]).await;
    database
        .execute(
            "CREATE TABLE sessions (pid integer);
             CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
               INSERT INTO public.sessions SELECT pg_backend_pid();
               PERFORM pg_sleep(0.06);
               RETURN NULL;
             END $$;
             CREATE TRIGGER slowly AFTER UPDATE ON rate_limit.rate_limits FOR EACH ROW EXECUTE PROCEDURE slowly()",
        )
        .await;
    let mut holder = database.pool.begin().await.expect("begin");
    assert!(limiter.within(&mut holder).limit(("a", "held")).await.expect("a decision").is_allowed());
    let waits = tokio::spawn(ask(limiter.clone(), vec![Item::new("a", "held")]));
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *holder).await.expect("a session");
    while !blocked_by(&database, pid).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await; // It moves beside its lane.
    holder.commit().await.expect("commit");
    assert!(waits.await.expect("a task").expect("a decision").is_allowed());
    for _ in 0..20 {
        allowed(&limiter, [Item::new("a", "held")]).await;
    }
    let sessions: i64 = sqlx::query_scalar("SELECT count(DISTINCT pid) FROM sessions")
        .fetch_one(&database.pool)
        .await
        .expect("a count");
    assert!(sessions < 10, "{sessions} sessions decided 22 calls");
    limiter.close().await;
}

/// The flushes that some calls take on a row that is locked for long each time.
async fn flushes(delayed: &[Point]) -> u32 {
    let database = Database::migrated().await;
    database
        .execute(
            "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.002); RETURN NEW; END $$;
             CREATE TRIGGER slowly BEFORE UPDATE ON rate_limit.rate_limits FOR EACH ROW EXECUTE PROCEDURE slowly()",
        )
        .await;
    let proxy = Proxy::before(&database.url).await;
    for point in delayed {
        proxy.put(Fault::always(*point, Way::Delay(Duration::from_millis(20))));
    }
    let limiter = limiter_at(&proxy.url, limits(), |config| config.lanes = 1);
    for _ in 0..50 {
        allowed(&limiter, [Item::new("a", "k")]).await;
    }
    limiter.close().await;
    proxy.count(|seen| &seen.flushes)
}

/// Where others wait for a row, a commit unlocks it before it is on disk. That takes another statement, which saves no time if the
/// server is farther away than its disk.
#[tokio::test]
async fn a_call_to_a_server_far_away_is_one_round_trip() {
    // On a busy machine, a call may take so long that its bucket moves beside its lane for a while. There is no flush.
    let mut slow_disk = 0;
    for _ in 0..5 {
        slow_disk = slow_disk.max(flushes(&[Point::Flush]).await);
        if slow_disk > 30 {
            break;
        }
    }
    assert!(slow_disk > 30, "{slow_disk} flushes");
    let far_away = flushes(&[Point::Statement, Point::Flush]).await;
    assert!(far_away < 10, "{far_away} flushes");
}

async fn enqueue(queue: Queue, job: Job) -> Result<pg_limiter::queue::Enqueued, Error> {
    queue.enqueue(job).await
}
