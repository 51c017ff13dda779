//! Concurrency limits: slots that leases hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::{self, AssertSqlSafe, PgPool};
use pg_limiter::{Connections, Error, InvalidCall, Isolation, Item, LeaseId, Limit, Limiter, Limits};
use serde_json::{Value, json};

use crate::rate_limit_all::{Decided, bucket, call, refused, with};
use crate::shards_contended::{LEVELS, session};
use crate::support::gate::{self, CENTURY};
use crate::support::proxy::{Fault, Point, Proxy, Way};
use crate::support::{Database, Events, limiter_at};

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

/// Decides calls of one item on one bucket in one batch: how often each was admitted, and the balance after it.
async fn batch(database: &Database, kind: &str, ops: &str, counts: &str, leases: &str) -> (Vec<i32>, Vec<f64>) {
    let sql = format!(
        "SELECT coalesce(call_admitted, array_fill(1, ARRAY[cardinality(item_values)])), item_values FROM rate_limit._decide(
           ARRAY['{kind}'], ARRAY[3], ARRAY[3155760000000000], NULL, NULL, ARRAY[0], NULL, NULL, ARRAY['reset'], ARRAY['{kind}'],
           ARRAY[1, 1, 1], ARRAY[1, 1, 1], '{{{counts}}}', '{{{ops}}}', NULL, ARRAY[1, 1, 1], NULL, NULL, '{{{leases}}}')"
    );
    sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&database.pool).await.expect(kind)
}

/// Calls of one batch are decided in their order, so a call after a reset finds no slots, tokens or blocks of before it.
#[tokio::test]
async fn after_a_reset_the_later_calls_of_its_batch_find_a_full_bucket() {
    let database = Database::migrated().await;
    for _ in 0..2 {
        let taken = batch(&database, "concurrency", "limit,reset,renew", "2,1,1", "7,NULL,7").await;
        assert_eq!(taken, (vec![1, 1, 0], vec![1.0, 3.0, 3.0]));
        let taken = batch(&database, "concurrency", "limit,reset,limit", "2,1,3", "7,NULL,8").await;
        assert_eq!(taken, (vec![1, 1, 1], vec![1.0, 3.0, 0.0]));
        let taken = batch(&database, "concurrency", "reset,renew,release", "1,1,1", "NULL,8,8").await;
        assert_eq!(taken.1, [3.0, 3.0, 3.0]);
        let none = "NULL,NULL,NULL";
        for kind in ["token_bucket", "fixed_window", "sliding_window"] {
            let taken = batch(&database, kind, "reset,limit,reset", "1,3,1", none).await;
            assert_eq!(taken, (vec![1, 1, 1], vec![3.0, 0.0, 3.0]), "{kind}");
        }
        let sharded = "SELECT item_values FROM rate_limit._decide('{token_bucket}', '{12}', '{3155760000000000}', NULL, NULL, NULL, NULL,
            '{4}', '{reset}', '{shards}', '{1,1,1}', '{1,1,1}', '{10,1,12}', '{limit,reset,limit}', NULL, '{1,1,1}', NULL, NULL)";
        let balances: Vec<f64> = sqlx::query_scalar(sharded).fetch_one(&database.pool).await.expect("the balances");
        assert_eq!(balances, [2.0, 12.0, 0.0], "shards");
        database.execute("DELETE FROM rate_limit.rate_limits WHERE key = 'shards'").await;
        database.execute("SELECT rate_limit.block('reset', 'gate', '1 hour')").await;
        let gate = batch(&database, "gate", "check,reset,check", "0,0,0", none).await;
        assert_eq!(gate.0, [0, 1, 1], "a gate");
    }
    assert_eq!(database.rows().await, 0);
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

/// The call waits beside its lane for the row of the tokens. The release of a dropped call must not overtake it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_dropped_while_it_waits_for_a_row_leaves_no_slot_taken() {
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        for connections in [Connections::Own, Connections::Pool] {
            let database = Database::migrated().await;
            let limiter = gate::limiter(&database.app, limits(), |config| {
                (config.isolation, config.connections, config.lanes) = (isolation, connections, 1);
            });
            limiter.limit(("tokens", "k")).await.expect("a decision").enforce().expect("a row");
            let lease = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a row");
            let holder = gate::hold(&database, "tokens", &["k"]).await;
            for pause in [0, 300, 1200] {
                let calling = limiter.clone();
                let call = [Item::new("slots", "k"), Item::new("tokens", "k")];
                let call = tokio::spawn(async move { calling.acquire(call).await });
                gate::until_waiting(&database, 1).await;
                tokio::time::sleep(Duration::from_millis(pause)).await; // In the lane at first, and beside it later.
                call.abort();
                assert!(call.await.is_err(), "it waits");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            holder.rollback().await.expect("rollback");
            // The calls may be decided now. Then their slots are released.
            tokio::time::sleep(Duration::from_millis(50)).await;
            until_free(&limiter, "slots", 2.0).await;
            assert!(lease.release().await.expect("released"));
            // On a busy machine, a call is decided only now. A slot that its release has overtaken would stay taken.
            until_free(&limiter, "slots", 3.0).await;
        }
    }
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
    let sql =
        "SELECT lease_id FROM rate_limit.acquire_with('slots', 'k', capacity => 3, lease => '1 hour', count => 2)";
    let lease: i64 = one(pool, sql).await;
    let denied = "SELECT NOT ok AND lease_id IS NULL AND retry_after BETWEEN interval '59 minutes' AND interval '1 hour' AND value = 1
                  FROM rate_limit.acquire_with('slots', 'k', 3, '1 hour', 2)";
    assert!(one::<bool>(pool, denied).await);
    assert!(one::<bool>(pool, &format!("SELECT rate_limit.renew('slots', 'k', {lease}, '2 hours')")).await);
    assert!(one::<bool>(pool, &format!("SELECT rate_limit.release('slots', 'k', {lease})")).await);
    assert!(!one::<bool>(pool, &format!("SELECT rate_limit.release('slots', 'k', {lease})")).await);
    assert!(!one::<bool>(pool, &format!("SELECT rate_limit.renew('slots', 'k', {lease})")).await);
    for (sql, message) in [
        ("SELECT rate_limit.acquire_with('slots', 'k', 0)", "invalid_limit: the capacity 0 is not a whole number"),
        (
            "SELECT rate_limit.acquire_with('slots', 'k', 1001)",
            "invalid_limit: the capacity 1001 is not a whole number",
        ),
        ("SELECT rate_limit.acquire_with('slots', 'k', 3, '0 s')", "invalid_limit: the lease 0"),
        ("SELECT rate_limit.acquire_with('slots', 'k', 3, count => 4)", "count_exceeds_capacity: the count 4"),
        ("SELECT rate_limit.acquire_with('slots', 'k', 3, count => 0)", "invalid_count: the count 0"),
        ("SELECT rate_limit.acquire_with('slots', NULL, 3)", "invalid_key: the key is NULL"),
        ("SELECT rate_limit.release('slots', 'k', 0)", "invalid_lease: the lease 0"),
        ("SELECT rate_limit.release('slots', 'k', NULL)", "invalid_lease: the lease NULL"),
        ("SELECT rate_limit.release(NULL, 'k', 4711)", "invalid_name: the limit's name is NULL"),
        ("SELECT rate_limit.renew('slots', NULL, 4711)", "invalid_key: the key is NULL"),
        ("SELECT rate_limit.renew('slots', 'k', 4711, '0 s')", "invalid_limit: the lease 0"),
        ("SELECT rate_limit.renew('slots', 'k', 4711, '1 month')", "invalid_limit: the lease 1 mon has months"),
        ("SELECT rate_limit.limit_with('slots', 'k', 'concurrency', 3, '1 hour')", "invalid_lease: the lease NULL"),
    ] {
        let error = sqlx::query(sql).execute(pool).await.expect_err(sql).to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// The lease of each element that takes slots.
fn leases(decided: &Decided) -> Vec<Option<i64>> {
    let slots = decided.limits.iter().filter(|limit| limit.get("lease_id").is_some());
    slots.map(|limit| limit["lease_id"].as_i64()).collect()
}

#[tokio::test]
async fn rate_limit_all_takes_slots_and_tokens_together() {
    let database = Database::migrated().await;
    let pool = &database.pool;
    for level in LEVELS {
        let mut conn = session(&database, level).await;
        let slots =
            |name: &str| json!({"name": name, "key": level, "kind": "concurrency", "capacity": 3, "lease": "1 hour"});
        let gate = json!({"name": "gate", "key": level, "kind": "gate"});
        let month =
            json!({"name": "month", "key": level, "kind": "calendar_window", "rate": 100, "every": "100 years"});
        let tokens = with(bucket("tokens", level, 10.0), "leave", 4);
        let group = json!([with(slots("slots"), "count", 2), gate, tokens, month, slots("others"), slots("others")]);

        let checked = call(&mut conn, "check_all_with", &group, false).await.expect("a decision");
        assert!(checked.ok && leases(&checked) == [None; 3], "{checked:?}");
        let taken = call(&mut conn, "limit_all_with", &group, false).await.expect("a decision");
        assert_eq!((taken.ok, taken.values()), (true, vec![1, 0, 9, 99, 1, 1]), "{taken:?}");
        let [Some(lease), Some(_), Some(_)] = leases(&taken)[..] else { panic!("{taken:?}") };
        assert_eq!(leases(&taken), [Some(lease); 3]);

        // Nothing is taken if a limit denies, slots or not. The slots are free after an hour at the latest.
        let denied = call(&mut conn, "limit_all_with", &group, false).await.expect("a decision");
        assert_eq!((denied.ok, denied.denied_by.join(" ")), (false, "others slots".to_owned()));
        assert_eq!((denied.values(), leases(&denied)), (vec![1, 0, 9, 99, 1, 1], vec![None; 3]));
        let minute = 60_000_000;
        assert!(denied.wait.is_some_and(|wait| (59 * minute..=60 * minute).contains(&wait)), "{denied:?}");
        for other in [with(tokens.clone(), "count", 6), with(tokens.clone(), "leave_fraction", 0.85)] {
            let denied =
                call(&mut conn, "limit_all_with", &json!([slots("slots"), other]), false).await.expect("a decision");
            assert_eq!((denied.ok, denied.denied_by.join(" ")), (false, "tokens".to_owned()));
            assert_eq!((denied.values(), leases(&denied)), (vec![1, 9], vec![None]));
        }

        // The lease that the caller names, and the lease that was drawn, are renewed and released for each bucket.
        let named = with(slots("slots"), "lease_id", 4711);
        let own = call(&mut conn, "limit_all_with", &json!([named]), false).await.expect("a decision");
        assert_eq!((own.ok, own.values(), leases(&own)), (true, vec![0], vec![Some(4711)]));
        for (name, lease) in [("slots", lease), ("others", lease), ("slots", 4711)] {
            let renew = format!("SELECT rate_limit.renew('{name}', '{level}', {lease}, '2 hours')");
            let release = format!("SELECT rate_limit.release('{name}', '{level}', {lease})");
            assert!(one::<bool>(pool, &renew).await && one::<bool>(pool, &release).await);
            assert!(!one::<bool>(pool, &renew).await && !one::<bool>(pool, &release).await);
        }
        // The tokens stay taken.
        let checked = call(&mut conn, "check_all_with", &group, false).await.expect("a decision");
        assert_eq!((checked.ok, checked.values()), (true, vec![1, 0, 8, 98, 1, 1]), "{checked:?}");

        // A blocked gate keeps the slots free.
        one::<String>(pool, &format!("SELECT rate_limit.block('gate', '{level}', '1 hour')::text")).await;
        let denied = call(&mut conn, "limit_all_with", &group, false).await.expect("a decision");
        assert_eq!((denied.ok, denied.denied_by.join(" ")), (false, "gate".to_owned()));
        assert_eq!(denied.values(), [3, 0, 9, 99, 3, 3]);
    }
}

#[tokio::test]
async fn malformed_slots_in_rate_limit_all_have_named_errors() {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let slots = json!({"name": "a", "key": "anna", "kind": "concurrency", "capacity": 3});
    let tokens = bucket("b", "k", 10.0);
    let field = |name: &str, value: Value| json!([tokens, with(slots.clone(), name, value)]);
    let cases = [
        (field("capacity", Value::Null), "invalid_call: element 2: the field \"capacity\" is missing"),
        (
            field("capacity", json!(0)),
            "invalid_limit: element 2: the capacity 0 is not a whole number of slots from 1 to 1000",
        ),
        (field("capacity", json!(2.5)), "invalid_limit: element 2: the capacity 2.5 is not a whole number of slots"),
        (field("capacity", json!(1001)), "invalid_limit: element 2: the capacity 1001 is not a whole number of slots"),
        (
            field("capacity", json!("3")),
            "invalid_call: element 2: the field \"capacity\" is of type string, not number",
        ),
        (field("lease", json!(30)), "invalid_call: element 2: the field \"lease\" is of type number, not string"),
        (field("lease", json!("soon")), "invalid_limit: element 2: the lease \"soon\" is not an interval"),
        (field("lease", json!("0 s")), "invalid_limit: element 2: the lease 0 microseconds is not between"),
        (field("lease", json!("1 mon")), "invalid_limit: element 2: the lease 1 mon has months or years"),
        (field("count", json!(0)), "invalid_count: the count 0 for the concurrency limit \"a\" is not a whole number"),
        (field("count", json!(1.5)), "invalid_count: element 2: the count 1.5 for the concurrency limit \"a\" is not"),
        (field("count", json!(4)), "count_exceeds_capacity: the count 4 can never be served by the limit \"a\""),
        (field("lease_id", json!(1)), "invalid_lease: element 2: the lease_id 1 is not a whole number from 2 to"),
        (field("lease_id", json!(2.5)), "invalid_lease: element 2: the lease_id 2.5 is not a whole number from 2"),
        (
            field("lease_id", json!(9_007_199_254_740_992_u64)),
            "invalid_lease: element 2: the lease_id 9007199254740992 is",
        ),
        (
            field("lease_id", json!("7")),
            "invalid_call: element 2: the field \"lease_id\" is of type string, not number",
        ),
        (field("rate", json!(3)), "invalid_limit: element 2: rate does not apply to a concurrency limit"),
        (field("period", json!("1 s")), "invalid_limit: element 2: period does not apply to a concurrency limit"),
        (field("leave", json!(1)), "invalid_limit: element 2: leave does not apply to a concurrency limit"),
        (field("shards", json!(2)), "invalid_limit: element 2: shards does not apply to a concurrency limit"),
        (
            json!([with(tokens.clone(), "lease", "1 s")]),
            "invalid_limit: element 1: lease does not apply to a token_bucket",
        ),
        (
            json!([with(tokens.clone(), "leave_fraction", 1.5)]),
            "invalid_leave: element 1: the headroom of the limit \"b\" is",
        ),
        (
            json!([slots, with(slots.clone(), "lease", "1 minute")]),
            "invalid_call: the call gives the limit \"a\" in two different forms",
        ),
        (
            json!([with(slots.clone(), "lease_id", 7), with(slots.clone(), "lease_id", 8)]),
            "invalid_call: the call names two leases, 7 and 8",
        ),
    ];
    for function in ["limit_all_with", "check_all_with"] {
        for (calls, expected) in &cases {
            if function == "check_all_with" && expected.starts_with("invalid_count: the count 0") {
                continue; // It returns the free slots.
            }
            let (code, message, hint) = refused(&mut conn, function, calls).await;
            assert!(code == "22023" && message.starts_with(expected), "{calls}: {code} {message}, not {expected}");
            assert!(!hint.is_empty() && !message.contains("anna") && !hint.contains("anna"), "{message}: {hint}");
        }
        let error = call(&mut conn, function, &json!([slots]), true).await.expect_err("a reservation");
        assert!(
            error.to_string().contains("reserve_unsupported: the concurrency limit \"a\" cannot reserve"),
            "{error}"
        );
    }
    let named = json!([with(slots, "lease_id", 7)]);
    assert!(call(&mut conn, "limit_all_with", &named, false).await.expect("a decision").ok);
    let (_, message, _) = refused(&mut conn, "limit_all_with", &named).await;
    assert_eq!(message, "invalid_lease: the lease 7 of the concurrency limit \"a\" is already held");
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

/// The slots were held until the release, which may have given them back before its caller was gone.
#[tokio::test]
async fn a_release_whose_caller_is_gone_loses_no_lease() {
    let database = Database::migrated().await;
    let limiter = database.limiter(Limits::new().define("slots", Limit::concurrency(1)).expect("a limit"));
    let events = Events::default();
    let _watching = crate::support::watch(events.clone());
    for nth in 0..60_u64 {
        let lease = loop {
            if let Ok(lease) = limiter.acquire(("slots", "k")).await.expect("an answer").enforce() {
                break lease;
            }
        };
        let _ = tokio::time::timeout(Duration::from_micros(nth * 60), lease.release()).await;
    }
    tokio::time::sleep(Duration::from_millis(250)).await; // The releases in the background end.
    let told = events.told();
    assert!(!told.contains("a lease was lost"), "{told}");
}
