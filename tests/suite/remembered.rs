//! Remembered denials: a hammered key is denied without a query, and only while the denial is still correct.

use std::time::Duration;

use pg_limiter::{DenialMemory, Item, Limit, Limiter, LimiterConfig, Limits};

use crate::support::Database;

async fn limiter(max_age: Duration) -> (Database, Limiter) {
    let database = Database::migrated().await;
    let hour = Duration::from_secs(3600);
    let limits = Limits::new()
        .define("a", Limit::token_bucket(1, hour).capacity(2))
        .and_then(|limits| limits.define("soon", Limit::token_bucket(10, Duration::from_secs(1)).capacity(1)))
        .expect("limits");
    let mut memory = DenialMemory::default();
    memory.max_age = max_age;
    let mut config = LimiterConfig::default();
    config.remember_denials = Some(memory);
    let limiter = Limiter::with_config(database.pool.clone(), limits, config);
    (database, limiter)
}

const HOUR: Duration = Duration::from_secs(3600);

/// Takes both tokens, and makes a call that is denied and remembered.
async fn exhaust(limiter: &Limiter) {
    assert!(limiter.limit(("a", "k", 2)).await.expect("a decision").is_allowed());
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_denied());
}

#[tokio::test]
async fn a_hammered_key_does_not_reach_the_database() {
    let (_database, limiter) = limiter(HOUR).await;
    exhaust(&limiter).await;
    let asked = limiter.batches();
    let mut last = HOUR;
    for _ in 0..1_000 {
        let decision = limiter.limit(("a", "k")).await.expect("a decision");
        let wait = decision.retry_after().expect("a wait");
        assert!(decision.is_denied() && wait <= last && wait > HOUR - Duration::from_secs(300), "{wait:?}");
        assert_eq!(decision.denied_by(), ["a"]);
        last = wait;
    }
    assert_eq!(limiter.batches(), asked);
    // Another count, another key, a group and a check do query the database.
    assert!(limiter.limit(("a", "k", 0.5)).await.expect("a decision").is_denied());
    assert!(limiter.limit(("a", "l")).await.expect("a decision").is_allowed());
    assert!(limiter.limit([Item::new("a", "k"), Item::new("a", "l")]).await.expect("a decision").is_denied());
    assert!(limiter.check(("a", "k")).await.expect("a decision").is_denied());
    assert_eq!(limiter.batches(), asked + 4);
}

#[tokio::test]
async fn giving_tokens_back_ends_a_remembered_denial() {
    let (_database, limiter) = limiter(HOUR).await;
    exhaust(&limiter).await;
    limiter.credit(("a", "k")).await.expect("a balance");
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_denied());
    limiter.reset(("a", "k")).await.expect("reset");
    exhaust(&limiter).await;
    assert_eq!(limiter.reset_all_keys("a").await.expect("reset"), 1);
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
}

/// Any process can release a slot at any time, so no denial of slots is remembered.
#[tokio::test]
async fn a_denial_of_slots_is_not_remembered() {
    let (database, _) = limiter(HOUR).await;
    let limits = || Limits::new().define("slots", Limit::concurrency(1).lease(HOUR)).expect("limits");
    let mut config = Database::config();
    config.remember_denials = Some(DenialMemory::default());
    let here = Limiter::with_config(database.app.clone(), limits(), config);
    let elsewhere = database.limiter(limits());
    for limiter in [&here, &elsewhere] {
        let lease = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a lease");
        assert!(!here.acquire(("slots", "k")).await.expect("an answer").is_allowed());
        assert!(lease.release().await.expect("released"));
        let lease = here.acquire(("slots", "k")).await.expect("an answer").enforce().expect("the slot is free");
        assert!(lease.release().await.expect("released"));
    }
}

/// Another process gives the tokens back: the denial is remembered until it reaches its maximum age.
#[tokio::test]
async fn a_denial_is_not_remembered_beyond_its_maximum_age() {
    let (database, limiter) = limiter(Duration::from_millis(300)).await;
    exhaust(&limiter).await;
    database.execute("SELECT rate_limit.reset('a', 'k')").await;
    let mut conn = database.pool.acquire().await.expect("a connection");
    let within = limiter.within(&mut conn).check(("a", "k")).await.expect("a decision");
    assert!(within.is_allowed(), "never from memory in the caller's transaction");
    tokio::time::sleep(Duration::from_millis(310)).await;
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
}

/// At the promised moment the limiter queries the database, and the call is allowed.
#[tokio::test]
async fn a_remembered_denial_ends_at_its_retry_after() {
    let (_database, limiter) = limiter(HOUR).await;
    for _ in 0..10 {
        while limiter.limit(("soon", "k")).await.expect("a decision").is_allowed() {}
        let denied = limiter.limit(("soon", "k")).await.expect("a decision");
        if let Some(wait) = denied.retry_after() {
            tokio::time::sleep(wait + Duration::from_millis(1)).await;
            assert!(limiter.limit(("soon", "k")).await.expect("a decision").is_allowed());
        }
    }
}
