//! Keys stored as hashes under a secret: the database never holds the keys themselves, and every call finds the same bucket.

use std::time::Duration;

use pg_limiter::queue::{Finish, Job, JobState, Queue, handler_fn};
use pg_limiter::sqlx;
use pg_limiter::{
    Call, DenialMemory, Error, InvalidJob, InvalidKeySecret, Item, KeySecret, Limit, Limiter, Limits,
    TransactionLimiter,
};

use crate::queue::{quick, work_until_done};
use crate::support::Database;
use crate::support::gate::{self, CENTURY};
use crate::support::scheduled;

pub const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub const ANNA: &str = "anna@example.com";
pub const BERT: &str = "bert@example.com";

pub fn limits() -> Limits {
    Limits::new()
        .define("mails", Limit::token_bucket(10, CENTURY))
        .and_then(|limits| limits.define("calls", Limit::fixed_window(10, CENTURY)))
        .and_then(|limits| limits.define("spread", Limit::token_bucket(100, CENTURY).shards(4)))
        .and_then(|limits| limits.define("window", Limit::sliding_window(10, CENTURY)))
        .expect("limits")
}

fn limiter(database: &Database, secret: Option<&str>) -> Limiter {
    gate::limiter(&database.pool, limits(), |config| {
        config.key_secret = secret.map(|secret| KeySecret::new(secret).expect("a secret"));
    })
}

async fn keys(database: &Database, name: &str) -> Vec<String> {
    sqlx::query_scalar("SELECT key FROM rate_limit.rate_limits WHERE name = $1 ORDER BY key")
        .bind(name)
        .fetch_all(&database.pool)
        .await
        .expect("the keys")
}

async fn use_all(database: &Database, secret: Option<&str>) {
    let limiter = limiter(database, secret);
    let items = ["mails", "calls", "spread", "window"].map(|name| Item::new(name, ANNA));
    let _ = limiter.limit(items).await.expect("a decision");
    let _ = limiter.limit(Item::global("mails")).await.expect("a decision");
    limiter.charge(("mails", BERT)).await.expect("balances");
    let once = || Call::from(("mails", BERT)).idempotency_key(format!("{ANNA}:1"));
    assert_eq!(limiter.limit(once()).await.expect("a decision"), limiter.limit(once()).await.expect("a decision"));
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let waiting = Job::new(("calls", ANNA, 10), &1).expect("a job");
    scheduled(&queue.enqueue(waiting).await.expect("an answer"));
    let job = Job::new([Item::new("mails", BERT), Item::global("calls")], &1).expect("a job").group(ANNA);
    scheduled(&queue.enqueue(job).await.expect("an answer"));
    work_until_done(&queue, quick(), handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) })), 1).await;
}

#[tokio::test]
async fn nothing_of_a_key_is_in_the_database() {
    let database = Database::migrated().await;
    use_all(&database, Some(SECRET)).await;
    for text in ["anna", "bert", "example.com", "0123456789"] {
        assert_eq!(database.rows_with(text).await, 0, "{text}");
    }
    let groups: i64 =
        sqlx::query_scalar("SELECT count(*) FROM rate_limit.groups").fetch_one(&database.pool).await.expect("a count");
    assert!(database.rows().await >= 8 && groups >= 1);
    // The shared bucket stays shared, and the hashes of a key differ between limits.
    let [shared, mails @ ..] = &keys(&database, "mails").await[..] else { panic!("no rows") };
    assert!(shared.is_empty() && mails.len() == 2 && mails.iter().all(|key| key.len() == 43), "{mails:?}");
    assert!(keys(&database, "calls").await.iter().all(|key| key.is_empty() || !mails.contains(key)));

    // Without a secret, the same search finds them.
    let database = Database::migrated().await;
    use_all(&database, None).await;
    assert!(database.rows_with("anna").await >= 6 && database.rows_with("bert").await >= 2);
}

#[tokio::test]
async fn the_same_secret_shares_balances_and_a_different_one_does_not() {
    let database = Database::migrated().await;
    let (one, two) = (limiter(&database, Some(SECRET)), limiter(&database, Some(SECRET)));
    let _ = one.limit(("mails", ANNA, 7)).await.expect("a decision");
    assert!((two.peek(("mails", ANNA)).await.expect("a balance").remaining() - 3.0).abs() < 1e-6);
    assert!(two.limit(("mails", ANNA, 4)).await.expect("a decision").is_denied());
    for other in [limiter(&database, Some("fedcba9876543210")), limiter(&database, None)] {
        assert_eq!(other.peek(("mails", ANNA)).await.expect("a balance").remaining(), 10.0);
    }
    assert_eq!(KeySecret::new("0123456789abcde").expect_err("too short").bytes, 15);
    assert!(InvalidKeySecret::to_string(&KeySecret::new("").expect_err("none")).contains("at least 16"));
}

#[tokio::test]
async fn every_call_finds_the_same_bucket() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, Some(SECRET));
    let alone = TransactionLimiter::new(limits()).with_key_secret(KeySecret::new(SECRET).expect("a secret"));
    let left = async || limiter.peek(("mails", ANNA)).await.expect("a balance").remaining().round();
    let twice = [Item::new("mails", ANNA), Item::new("mails", ANNA)];
    assert!(limiter.limit(twice).await.expect("a decision").is_allowed());
    assert_eq!(left().await, 8.0);
    let mut tx = database.pool.begin().await.expect("begin");
    assert!(limiter.within(&mut tx).limit(("mails", ANNA)).await.expect("a decision").is_allowed());
    assert!(alone.within(&mut tx).limit(("mails", ANNA)).await.expect("a decision").is_allowed());
    tx.commit().await.expect("commit");
    assert_eq!(left().await, 6.0);
    let work = limiter.transaction(async |tx| limiter.within(tx).limit(("mails", ANNA)).await.map(|_| ()));
    work.await.expect("a decision");
    limiter.charge(("mails", ANNA, 3)).await.expect("balances");
    assert_eq!(left().await, 2.0);
    assert!(limiter.check(("mails", ANNA, 3)).await.expect("a decision").is_denied());
    limiter.credit(("mails", ANNA, 2)).await.expect("balances");
    assert_eq!(left().await, 4.0);
    limiter.reset(("mails", ANNA)).await.expect("a reset");
    assert_eq!((left().await, database.rows().await), (10.0, 0));
    let _ = limiter.limit([("mails", ANNA), ("mails", BERT)].map(Item::from)).await.expect("a decision");
    assert_eq!(limiter.reset_all_keys("mails").await.expect("a reset"), 2);
    // Limits are looked up by the given name, and the length limit applies to the given key.
    assert!(matches!(limiter.limit(("mails", "k".repeat(1025))).await, Err(Error::Invalid(_))));
    assert!(limiter.limit(("mails", "k".repeat(1024))).await.expect("a decision").is_allowed());
}

#[tokio::test]
async fn remembered_denials_are_forgotten_with_a_reset() {
    let database = Database::migrated().await;
    let limiter = gate::limiter(&database.pool, limits(), |config| {
        config.key_secret = Some(KeySecret::new(SECRET).expect("a secret"));
        let mut memory = DenialMemory::default();
        memory.max_age = Duration::from_secs(3600);
        config.remember_denials = Some(memory);
    });
    assert!(limiter.limit(("mails", ANNA, 10)).await.expect("a decision").is_allowed());
    let asked = limiter.batches();
    for _ in 0..3 {
        assert!(limiter.limit(("mails", ANNA)).await.expect("a decision").is_denied());
    }
    assert_eq!(limiter.batches(), asked + 1, "not remembered");
    assert!(limiter.limit(("mails", BERT)).await.expect("a decision").is_allowed());
    limiter.reset(("mails", ANNA)).await.expect("a reset");
    assert!(limiter.limit(("mails", ANNA)).await.expect("a decision").is_allowed());
}

#[tokio::test]
async fn a_queue_reserves_from_settles_and_gives_back_to_the_same_bucket() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, Some(SECRET));
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let left = async |key| limiter.peek(("mails", key)).await.expect("a balance").remaining().round();
    let job = |limit, key, count| Job::new((limit, key, count), &1).expect("a job");
    let id = scheduled(&queue.enqueue(job("mails", ANNA, 8)).await.expect("an answer")).id;
    assert_eq!(left(ANNA).await, 2.0);
    queue.cancel(id).await.expect("a state");
    assert_eq!(left(ANNA).await, 10.0);

    // Equal keys are one group, whatever their limits.
    scheduled(&queue.enqueue(job("mails", ANNA, 4)).await.expect("an answer"));
    scheduled(&queue.enqueue(job("calls", ANNA, 4)).await.expect("an answer"));
    assert_eq!(queue.estimate(job("mails", BERT, 1).group(ANNA)).await.expect("an estimate").ahead, 2);
    assert_eq!(queue.group_counts().await.expect("counts").len(), 1);

    // Settled under the key, and under the hash that a handler gets for it.
    let settling = queue.clone();
    let handler = handler_fn(move |job, tx| {
        let settling = settling.clone();
        Box::pin(async move {
            let item = &job.items[0];
            assert!(item.key.len() == 43 && !job.group.contains("anna"));
            let wrong = settling.within(tx).settle(job.id, (item.limit.as_str(), BERT, 1)).await;
            assert!(matches!(wrong, Err(Error::InvalidJob(InvalidJob::NotReserved { .. }))), "{wrong:?}");
            if item.limit == "mails" {
                assert!(settling.within(tx).settle(job.id, ("mails", ANNA, 1)).await?);
            } else {
                assert!(settling.within(tx).settle(job.id, ("calls", item.key.as_str(), 2)).await?);
            }
            Ok(Finish::Done)
        })
    });
    work_until_done(&queue, quick(), handler, 2).await;
    assert_eq!(left(ANNA).await, 9.0);
    assert_eq!(limiter.peek(("calls", ANNA)).await.expect("a balance").remaining().round(), 8.0);
    let done = queue.jobs(Some(JobState::Done), 9).await.expect("jobs");
    assert_eq!(done.len(), 2);
    assert!(queue.settle(done[0].id, ("mails", BERT, 1)).await.is_err());
    assert!(!queue.settle(done[0].id, (done[0].items[0].limit.as_str(), ANNA, 1)).await.expect("an answer"));
}
