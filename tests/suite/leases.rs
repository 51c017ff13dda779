//! Concurrency limits: slots that leases hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::{self, AssertSqlSafe, PgPool};
use pg_limiter::{Connections, Error, InvalidCall, Isolation, Item, LeaseId, Limit, Limiter, Limits};

use crate::support::gate::CENTURY;
use crate::support::proxy::{Fault, Point, Proxy, Way};
use crate::support::{Database, limiter_at};

const HOUR: Duration = Duration::from_secs(3600);

fn limits() -> Limits {
    Limits::new()
        .define("slots", Limit::concurrency(3).lease(HOUR))
        .and_then(|limits| limits.define("short", Limit::concurrency(3).lease(Duration::from_secs(6))))
        .and_then(|limits| limits.define("tokens", Limit::token_bucket(10, CENTURY)))
        .expect("limits")
}

async fn free(limiter: &Limiter, name: &str) -> f64 {
    limiter.peek((name, "k")).await.expect("a balance").remaining()
}

async fn until_free(limiter: &Limiter, name: &str, slots: f64) {
    for _ in 0..2_000 {
        if free(limiter, name).await >= slots {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} of {slots} slots are free", free(limiter, name).await);
}

#[tokio::test]
async fn slots_are_taken_released_and_renewed() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let two = limiter.acquire(("slots", "k", 2)).await.expect("an answer").enforce().expect("a lease");
    assert!(two.ends_in() > HOUR - Duration::from_secs(60) && two.ends_in() <= HOUR);
    let denied = limiter.acquire(("slots", "k", 2)).await.expect("an answer");
    assert!(!denied.is_allowed());
    let wait = denied.decision().retry_after().expect("a denial");
    assert!(wait > HOUR - Duration::from_secs(60) && wait <= HOUR, "{wait:?}");
    let Err(Error::Denied(denial)) = denied.enforce() else { panic!("a denial") };
    assert_eq!((denial.limits[0].as_ref(), denial.remaining), ("slots", 1.0));
    let one = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a lease");
    assert_eq!(free(&limiter, "slots").await, 0.0);
    assert!(limiter.acquire(("slots", "other")).await.expect("an answer").is_allowed(), "another key");
    assert!(!limiter.check(("slots", "k")).await.expect("a decision").is_allowed());
    assert!(one.renew().await.expect("an answer"));
    let id = two.id();
    assert!(two.release().await.expect("an answer"));
    assert_eq!(free(&limiter, "slots").await, 2.0);
    let call = || Item::new("slots", "k").lease(id);
    assert!(!limiter.release(call()).await.expect("an answer"), "it was released before");
    assert!(!limiter.renew(call()).await.expect("an answer"), "it was released before");
    drop(one);
    until_free(&limiter, "slots", 3.0).await;
    limiter.reset(("slots", "k")).await.expect("reset");
}

#[tokio::test]
async fn a_lease_ends_unless_it_is_renewed() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let lost = limiter.acquire(("short", "k")).await.expect("an answer").enforce().expect("a lease");
    let kept = limiter.acquire(("short", "k", 2)).await.expect("an answer").enforce().expect("a lease").keep_renewed();
    tokio::time::timeout(Duration::from_secs(60), lost.lost()).await.expect("it was not renewed");
    assert_eq!(lost.ends_in(), Duration::ZERO);
    until_free(&limiter, "short", 1.0).await;
    assert!(!lost.renew().await.expect("an answer"), "too late");
    assert_eq!(free(&limiter, "short").await, 1.0, "the kept slots are held");
    assert!(kept.release().await.expect("an answer"));

    // A reset ends leases. The next renewal says so.
    let kept = limiter.acquire(("short", "k")).await.expect("an answer").enforce().expect("a lease").keep_renewed();
    limiter.reset(("short", "k")).await.expect("reset");
    tokio::time::timeout(Duration::from_secs(60), kept.lost()).await.expect("the reset ended it");
    assert!(!kept.release().await.expect("an answer"));
}

#[tokio::test]
async fn slots_and_tokens_are_taken_together() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let both = || [Item::new("slots", "k"), Item::new("tokens", "k").count(4)];
    let first = limiter.acquire(both()).await.expect("an answer").enforce().expect("a lease");
    let _second = limiter.acquire(both()).await.expect("an answer").enforce().expect("a lease");
    let denied = limiter.acquire(both()).await.expect("an answer");
    assert_eq!(denied.decision().denied_by(), ["tokens"]);
    assert_eq!((free(&limiter, "slots").await, free(&limiter, "tokens").await.round()), (1.0, 2.0));
    assert!(first.release().await.expect("an answer"));
    assert_eq!(
        (free(&limiter, "slots").await, free(&limiter, "tokens").await.round()),
        (2.0, 2.0),
        "tokens stay taken"
    );

    // The lease of a group ends in parts: a release gives back the rest.
    let group = || [Item::new("slots", "g"), Item::new("short", "g").count(3)];
    let group = limiter.acquire(group()).await.expect("an answer").enforce().expect("a lease");
    assert!(group.renew().await.expect("an answer"));
    limiter.reset(("short", "g")).await.expect("reset");
    assert!(!group.renew().await.expect("an answer"));
    assert!(!limiter.release(Item::new("short", "g").lease(group.id())).await.expect("an answer"));
    let both = [Item::new("slots", "g"), Item::new("short", "g")];
    let call = pg_limiter::Call::from(both).lease(group.id());
    assert!(!limiter.release(call).await.expect("an answer"), "one part had ended");
    assert_eq!(limiter.peek(("slots", "g")).await.expect("a balance").remaining(), 3.0);
}

#[tokio::test]
async fn slots_are_taken_and_released_in_the_callers_transaction() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let lease = LeaseId::random();
    let call = || Item::new("slots", "k").count(2).lease(lease);
    let mut tx = database.pool.begin().await.expect("begin");
    limiter.within(&mut tx).limit(call()).await.expect("a decision").enforce().expect("allowed");
    assert_eq!(free(&limiter, "slots").await, 3.0, "not committed yet");
    tx.rollback().await.expect("rollback");
    let mut tx = database.pool.begin().await.expect("begin");
    limiter.within(&mut tx).limit(call()).await.expect("a decision").enforce().expect("allowed");
    assert!(limiter.within(&mut tx).renew(call()).await.expect("an answer"));
    tx.commit().await.expect("commit");
    assert_eq!(free(&limiter, "slots").await, 1.0);
    let mut tx = database.pool.begin().await.expect("begin");
    assert!(limiter.within(&mut tx).release(call()).await.expect("an answer"));
    tx.rollback().await.expect("rollback");
    assert_eq!(free(&limiter, "slots").await, 1.0, "the release was rolled back");
    assert!(limiter.release(call()).await.expect("an answer"));
    assert_eq!(free(&limiter, "slots").await, 3.0);
}

#[tokio::test]
async fn invalid_calls_are_typed_errors() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let lease = LeaseId::random();
    let code = |result: Result<bool, Error>| match result {
        Err(Error::Invalid(invalid)) => invalid.code(),
        other => panic!("{other:?}"),
    };
    let acquire = async |item: Item| code(limiter.acquire(item).await.map(|_| true));
    assert_eq!(acquire(Item::new("slots", "k").count(4)).await, "count_exceeds_capacity");
    for count in [0.0, 0.5, 1.5] {
        assert_eq!(acquire(Item::new("slots", "k").count(count)).await, "invalid_count");
    }
    assert_eq!(acquire(Item::new("tokens", "k")).await, "invalid_call");
    assert_eq!(acquire(Item::new("unknown", "k")).await, "unknown_limit");
    assert_eq!(code(limiter.acquire(Item::new("slots", "k").reserve()).await.map(|_| true)), "reserve_unsupported");
    assert_eq!(code(limiter.limit(("slots", "k")).await.map(|_| true)), "invalid_lease");
    assert_eq!(code(limiter.credit(("slots", "k")).await.map(|_| true)), "reserve_unsupported");
    assert_eq!(code(limiter.charge(("slots", "k")).await.map(|_| true)), "reserve_unsupported");
    assert_eq!(code(limiter.release(("slots", "k")).await), "invalid_lease");
    assert_eq!(code(limiter.renew(Item::new("tokens", "k").lease(lease)).await), "invalid_call");
    let again = Item::new("slots", "k").lease(lease).idempotency_key("1");
    assert_eq!(code(limiter.limit(again).await.map(|_| true)), "invalid_idempotency_key");
    assert_eq!(code(limiter.check(("slots", "k", 1.5)).await.map(|_| true)), "invalid_count");
    assert!(LeaseId::new(1).is_none() && LeaseId::new(2).is_some() && LeaseId::new(1 << 53).is_none());
    assert_eq!(database.rows().await, 0);
    for slots in [0, 1001] {
        let error = Limit::concurrency(slots).build().expect_err("too few or too many").to_string();
        assert!(error.contains("is not a whole number of slots from 1 to 1000"), "{error}");
    }
    assert!(
        Limit::concurrency(1).lease(Duration::ZERO).build().expect_err("no time").to_string().contains("the lease 0")
    );
    assert!(matches!(
        pg_limiter::Call::from(("slots", "k")).validate(pg_limiter::Op::Limit, &limits()),
        Err(InvalidCall::NeedsLease { .. })
    ));
}

#[test]
fn limits_files_have_slots_and_leases() {
    let file = "[limits.a]\nkind = \"concurrency\"\ncapacity = 3\nlease = \"90s\"\n";
    let limits = Limits::from_toml(file).expect("limits");
    let limit = *limits.get("a").expect("a limit");
    assert_eq!(limit, Limit::concurrency(3).lease(Duration::from_secs(90)).build().expect("a limit"));
    assert_eq!(limit.to_string(), "concurrency, 3 at a time, lease 1m 30s");
    let json = format!("{{\"limits\": {{\"a\": {}}}}}", serde_json::to_string(&limit).expect("JSON"));
    assert_eq!(Limits::from_json(&json).expect("limits"), limits, "{json}");
    let short = Limits::from_toml("[limits.a]\nkind = \"concurrency\"\ncapacity = 3").expect("limits");
    assert_eq!(short.get("a").expect("a limit").period(), Duration::from_secs(30));
    for (options, message) in [
        ("lease = \"30s\"", "missing field `capacity`"),
        ("capacity = 1\nrate = 3", "rate does not apply to a concurrency"),
        ("capacity = 1\nperiod = \"1s\"", "period does not apply to a concurrency"),
        ("capacity = 1\nmax_reserved = 1", "max_reserved does not apply to a concurrency"),
        ("capacity = 4\nshards = 2", "shards does not apply to a concurrency"),
        ("capacity = 1.5", "the capacity 1.5 is not a whole number of slots"),
        ("capacity = 1\nlease = \"1 month\"", "lease: "),
    ] {
        let error = Limits::from_toml(&format!("[limits.a]\nkind = \"concurrency\"\n{options}")).expect_err(options);
        assert!(error.to_string().contains(message), "{error}");
    }
    let bucket = "[limits.a]\nkind = \"token_bucket\"\nrate = 1\nperiod = \"1s\"\nlease = \"1s\"";
    let error = Limits::from_toml(bucket).expect_err("a lease").to_string();
    assert!(error.contains("lease does not apply to a token_bucket"), "{error}");
}

/// Holders in many tasks, at both isolation levels, over own connections and over the pool: never more than the slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_never_hold_more_than_the_slots() {
    let database = Database::migrated().await;
    for (isolation, connections) in [
        (Isolation::Serializable, Connections::Own),
        (Isolation::ReadCommitted, Connections::Own),
        (Isolation::ReadCommitted, Connections::Pool),
    ] {
        let limiters = [0, 1].map(|_| {
            limiter_at(&database.url, limits(), |config| {
                (config.isolation, config.connections, config.lanes) = (isolation, connections, 2);
                (config.retry.deadline, config.retry.max_attempts) = (Duration::from_secs(120), 10_000);
            })
        });
        let (held, most, acquired) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let holder = async |nth: usize| {
            for _ in 0..40 {
                let taken = limiters[nth % 2].acquire(("slots", "k", 1 + nth % 2)).await.expect("an answer");
                let Ok(lease) = taken.into_lease() else { continue };
                let slots = u32::try_from(1 + nth % 2).expect("small");
                most.fetch_max(held.fetch_add(slots, Ordering::SeqCst) + slots, Ordering::SeqCst);
                acquired.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                held.fetch_sub(slots, Ordering::SeqCst);
                assert!(lease.release().await.expect("an answer"), "it was held");
            }
        };
        join_all((0..12).map(holder)).await;
        assert!(most.load(Ordering::SeqCst) <= 3, "{} slots were held", most.load(Ordering::SeqCst));
        assert!(acquired.load(Ordering::Relaxed) > 12, "{isolation:?}");
        assert_eq!(free(&limiters[0], "slots").await, 3.0, "{isolation:?}");
    }
}

/// Whatever a commit of an unknown outcome did, no slot stays taken: it is released in the background.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquisition_of_unknown_outcome_is_released() {
    let database = Database::migrated().await;
    let proxy = Proxy::before(&database.url).await;
    let limiter = Arc::new(limiter_at(&proxy.url, limits(), |config| config.lanes = 1));
    for way in [Way::Cut, Way::Drop] {
        assert!(limiter.acquire(("slots", "k")).await.expect("an answer").is_allowed());
        until_free(&limiter, "slots", 3.0).await;
        proxy.put(Fault::once(Point::Commit, way));
        match limiter.acquire(("slots", "k", 2)).await {
            Err(Error::OutcomeUnknown { .. }) => {}
            other => panic!("{other:?}"),
        }
        until_free(&limiter, "slots", 3.0).await;
    }

    // Releases and renewals of unknown outcome are repeated without harm.
    let lease = limiter.acquire(("slots", "k", 2)).await.expect("an answer").enforce().expect("a lease");
    proxy.put(Fault::once(Point::Commit, Way::Cut));
    assert!(matches!(lease.renew().await, Err(Error::OutcomeUnknown { .. })));
    assert!(lease.renew().await.expect("an answer"));
    proxy.put(Fault::once(Point::Commit, Way::Cut));
    assert!(matches!(lease.release().await, Err(Error::OutcomeUnknown { .. })));
    until_free(&limiter, "slots", 3.0).await;
}

#[tokio::test]
async fn a_dropped_call_leaves_no_slot_taken() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    limiter
        .limit(Item::new("slots", "k").lease(LeaseId::random()))
        .await
        .expect("a decision")
        .enforce()
        .expect("a row");
    for millis in 0..20 {
        let call = limiter.acquire(("slots", "k"));
        let _ = tokio::time::timeout(Duration::from_micros(millis * 200), call).await;
    }
    until_free(&limiter, "slots", 2.0).await;
}

async fn one<T>(pool: &PgPool, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(pool).await.expect(sql)
}

#[tokio::test]
async fn psql_acquires_releases_and_renews() {
    let database = Database::migrated().await;
    let pool = &database.pool;
    let sql = "SELECT lease_id FROM rate_limit_acquire('slots', 'k', capacity => 3, lease => '1 hour', count => 2)";
    let lease: i64 = one(pool, sql).await;
    let denied = "SELECT NOT ok AND lease_id IS NULL AND retry_after BETWEEN interval '59 minutes' AND interval '1 hour' AND value = 1
                  FROM rate_limit_acquire('slots', 'k', 3, '1 hour', 2)";
    assert!(one::<bool>(pool, denied).await);
    assert!(one::<bool>(pool, &format!("SELECT rate_limit_renew('slots', 'k', {lease}, '2 hours')")).await);
    assert!(one::<bool>(pool, &format!("SELECT rate_limit_release('slots', 'k', {lease})")).await);
    assert!(!one::<bool>(pool, &format!("SELECT rate_limit_release('slots', 'k', {lease})")).await);
    assert!(!one::<bool>(pool, &format!("SELECT rate_limit_renew('slots', 'k', {lease})")).await);
    for (sql, message) in [
        ("SELECT rate_limit_acquire('slots', 'k', 0)", "invalid_limit: the rate 0 is not"),
        ("SELECT rate_limit_acquire('slots', 'k', 1001)", "invalid_limit: the capacity 1001 is not a whole number"),
        ("SELECT rate_limit_acquire('slots', 'k', 3, '0 s')", "invalid_limit: the period 0"),
        ("SELECT rate_limit_acquire('slots', 'k', 3, count => 4)", "count_exceeds_capacity: the count 4"),
        ("SELECT rate_limit_acquire('slots', 'k', 3, count => 0)", "invalid_count: the count 0"),
        ("SELECT rate_limit_acquire('slots', NULL, 3)", "invalid_key: the key is NULL"),
        ("SELECT rate_limit_release('slots', 'k', 0)", "invalid_lease: the lease 0"),
        ("SELECT rate_limit_release('slots', 'k', NULL)", "invalid_lease: the lease NULL"),
        ("SELECT rate_limit('slots', 'k', 'concurrency', 3, '1 hour')", "invalid_lease: the lease NULL"),
    ] {
        let error = sqlx::query(sql).execute(pool).await.expect_err(sql).to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// A limit that changes its kind forgets tokens and slots: they do not convert.
#[tokio::test]
async fn a_bucket_changes_between_slots_and_tokens() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let slots = ("l", Limit::concurrency(3).build().expect("a limit"));
    let others = [
        Limit::token_bucket(5, CENTURY).build().expect("a limit"),
        Limit::token_bucket(8, CENTURY).shards(4).build().expect("a limit"),
        Limit::fixed_window(5, CENTURY).build().expect("a limit"),
        Limit::sliding_window(5, CENTURY).resolution(2).build().expect("a limit"),
    ];
    for other in others {
        for _ in 0..2 {
            let lease =
                limiter.acquire(Item::new(slots, "k").count(2)).await.expect("an answer").enforce().expect("slots");
            assert_eq!(limiter.peek(Item::new(slots, "k")).await.expect("a balance").remaining(), 1.0, "{other}");
            let left = limiter.limit(Item::new(("l", other), "k")).await.expect("a decision");
            assert!(left.is_allowed(), "{other}");
            let left = limiter.peek(Item::new(("l", other), "k")).await.expect("a balance").remaining();
            assert_eq!(left.round(), other.capacity() - 1.0, "{other}");
            assert!(!lease.release().await.expect("an answer"), "{other}");
        }
    }
}
