//! A row that a call only reads, such as a gate, is as fresh as one that it takes from: it is read again after the last wait for a lock.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::{self, AssertSqlSafe, Postgres, Row, Transaction};
use pg_limiter::{Call, Error, Isolation, Item, Limit, Limits};

use crate::shards_contended::{LEVELS, session};
use crate::support::Database;
use crate::support::gate::{self, CENTURY, until_waiting};

/// The names of what is only read come before and after that of the bucket in the order of locks.
fn limits() -> Limits {
    let bucket = || Limit::token_bucket(10, CENTURY);
    Limits::new()
        .define("m", bucket())
        .and_then(|limits| limits.define("a gate", Limit::gate()))
        .and_then(|limits| limits.define("z gate", Limit::gate()))
        .and_then(|limits| limits.define("a bucket", bucket()))
        .and_then(|limits| limits.define("z bucket", bucket()))
        .and_then(|limits| limits.define("z window", Limit::fixed_window(10, CENTURY).start(Duration::ZERO)))
        .expect("limits")
}

/// Takes a token of "m", and reads this item.
fn call(read: &Item) -> Call {
    [Item::new("m", "k"), read.clone()].into()
}

fn reads() -> Vec<Item> {
    vec![
        Item::new("a gate", "k"),
        Item::new("z gate", "k"),
        Item::new("a bucket", "k").count(0).leave(5),
        Item::new("z bucket", "k").count(0).leave(5),
        Item::new("z window", "k").count(0).leave(5),
    ]
}

/// Locks the row of "m": one that exists, or one that is inserted and never committed.
async fn hold(database: &Database, is_new: bool) -> Transaction<'static, Postgres> {
    let limiter = database.limiter(limits());
    if !is_new {
        limiter.limit(("m", "k")).await.expect("a decision").enforce().expect("a row");
        return gate::hold(database, "m", &["k"]).await;
    }
    let mut holder = database.pool.begin().await.expect("begin");
    limiter.within(&mut holder).limit(("m", "k")).await.expect("a decision").enforce().expect("a row");
    holder
}

/// Makes the read item deny, in a transaction that commits while the call waits, and lets the call wait on for a while.
async fn deny(database: &Database, read: &Item, name: &str) {
    let limiter = database.limiter(limits());
    if name.ends_with("gate") {
        limiter.block((name, "k"), Duration::from_secs(3600)).await.expect("a block");
    } else {
        assert!(limiter.limit(read.clone().count(3)).await.expect("a decision").is_allowed());
        assert!(limiter.limit(read.clone().count(3).leave(0)).await.expect("a decision").is_allowed());
    }
    tokio::time::sleep(Duration::from_millis(250)).await;
}

const NAMES: [&str; 5] = ["a gate", "z gate", "a bucket", "z bucket", "z window"];

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_is_denied_by_what_was_committed_meanwhile() {
    let mut cases = Vec::new();
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        for (read, name) in reads().into_iter().zip(NAMES) {
            for is_new in [false, true] {
                for has_row in [false, true] {
                    cases.push((isolation, read.clone(), name, is_new, has_row));
                }
            }
        }
    }
    for some in cases.chunks(6) {
        join_all(some.iter().map(|case| own_call_is_denied(case.clone()))).await;
    }
}

type Case = (Isolation, Item, &'static str, bool, bool);

/// In the limiter's own transaction, alone and in a batch with others.
async fn own_call_is_denied((isolation, read, name, is_new, has_row): Case) {
    let what = format!("{isolation:?}, {name}, new: {is_new}, has a row: {has_row}");
    let database = Database::migrated().await;
    let limiter = gate::limiter(&database.app, limits(), |config| config.isolation = isolation);
    if has_row && name.ends_with("gate") {
        limiter.block((name, "k"), Duration::from_micros(1)).await.expect("a block that has ended");
    } else if has_row {
        limiter.limit(read.clone().count(1).leave(0)).await.expect("a decision").enforce().expect("a row");
    }
    assert!(limiter.check(call(&read)).await.expect("a decision").is_allowed(), "{what}");
    let holder = hold(&database, is_new).await;
    let asking = (0..3).map(|_| {
        let (limiter, call) = (limiter.clone(), call(&read));
        tokio::spawn(async move { limiter.limit(call).await })
    });
    let asking: Vec<_> = asking.collect();
    until_waiting(&database, 1).await;
    deny(&database, &read, name).await;
    holder.rollback().await.expect("rollback");
    for decision in join_all(asking).await {
        let decision = decision.expect("a task").expect("a decision");
        assert_eq!(decision.denied_by(), [name], "{what}: {decision:?}");
    }
    let left = limiter.peek(("m", "k")).await.expect("a balance").remaining().round();
    assert_eq!(left, if is_new { 10.0 } else { 9.0 }, "{what}");
}

/// In the caller's transaction. At the levels that keep a snapshot, which cannot show the change, it is a conflict.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_a_transaction_never_passes_a_gate_that_was_closed_during_its_wait() {
    for level in LEVELS {
        let cases =
            reads().into_iter().zip(NAMES).flat_map(|(read, name)| [(read.clone(), name, false), (read, name, true)]);
        join_all(cases.map(|(read, name, is_new)| call_in_a_transaction_is_denied(level, read, name, is_new))).await;
    }
}

async fn call_in_a_transaction_is_denied(level: &str, read: Item, name: &str, is_new: bool) {
    let what = format!("{level}, {name}, new: {is_new}");
    let database = Database::migrated().await;
    let limiter = gate::limiter(&database.app, limits(), |_| {});
    let holder = hold(&database, is_new).await;
    let mut session = session(&database, level).await;
    let asked = call(&read);
    let calling = limiter.clone();
    let asking = tokio::spawn(async move {
        let mut tx = sqlx::Connection::begin(&mut session).await.expect("begin");
        let decision = calling.within(&mut tx).limit(asked).await;
        if decision.is_ok() {
            tx.commit().await.expect("commit");
        }
        decision
    });
    until_waiting(&database, 1).await;
    deny(&database, &read, name).await;
    holder.rollback().await.expect("rollback");
    match asking.await.expect("a task") {
        Ok(decision) => assert_eq!(decision.denied_by(), [name], "{what}: {decision:?}"),
        Err(Error::Conflict { .. }) => assert_ne!(level, "READ COMMITTED", "{what}"),
        Err(error) => panic!("{what}: {error}"),
    }
    let left = limiter.peek(("m", "k")).await.expect("a balance").remaining().round();
    assert_eq!(left, if is_new { 10.0 } else { 9.0 }, "{what}");
}

/// The same from SQL, and with slots in the call.
#[tokio::test]
async fn so_is_a_call_from_sql_and_one_that_takes_slots() {
    let user = r#"{"name": "m", "key": "k", "kind": "token_bucket", "rate": 10, "period": "36525 days"}"#;
    let slots = r#"{"name": "s", "key": "k", "kind": "concurrency", "capacity": 5}"#;
    for taken in [user.to_owned(), format!("{user}, {slots}")] {
        let database = Database::migrated().await;
        let holder = hold(&database, false).await;
        let mut session = session(&database, "READ COMMITTED").await;
        let sql = format!(
            r#"SELECT ok, denied_by FROM rate_limit.limit_all_with('[{taken}, {{"name": "a gate", "key": "k", "kind": "gate"}}]')"#
        );
        let asking = tokio::spawn(async move { sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut session).await });
        until_waiting(&database, 1).await;
        deny(&database, &Item::new("a gate", "k"), "a gate").await;
        holder.rollback().await.expect("rollback");
        let row = asking.await.expect("a task").expect("a decision");
        assert_eq!((row.get::<bool, _>(0), row.get::<Vec<String>, _>(1)), (false, vec!["a gate".to_owned()]));
    }
}

/// Another transaction writes the first rows of a bucket, and rolls back. The call that waited then writes them as of a time after its
/// wait, and reads the gate again.
#[tokio::test(flavor = "multi_thread")]
async fn so_is_the_first_call_on_a_bucket_with_shards() {
    let hour = Duration::from_secs(3600);
    let limits = |shards| {
        let bucket = || Limit::token_bucket(100, hour).shards(shards);
        let limits = Limits::new().define("m", bucket()).and_then(|limits| limits.define("other", bucket()));
        limits.and_then(|limits| limits.define("a gate", Limit::gate())).expect("limits")
    };
    for (shards, isolation) in
        [1, 2, 8].into_iter().zip([Isolation::Serializable, Isolation::ReadCommitted].iter().cycle())
    {
        for is_group in [false, true] {
            let what = format!("{shards} shards, {isolation:?}, group: {is_group}");
            let database = Database::migrated().await;
            let clock = database.test_clock().await;
            let limiter = gate::limiter(&database.app, limits(shards), |config| config.isolation = *isolation);
            let mut holder = database.pool.begin().await.expect("begin");
            let held = limiter.within(&mut holder).limit(("m", "k")).await.expect("a decision");
            held.enforce().expect("its first rows");
            let calling = limiter.clone();
            let asking = tokio::spawn(async move {
                let all = Item::new("m", "k").count(100);
                let call: Call = if is_group { [all, Item::new("other", "k")].into() } else { all.into() };
                calling.limit(call).await
            });
            until_waiting(&database, 1).await;
            clock.advance(hour / 2).await.expect("advance");
            holder.rollback().await.expect("rollback");
            let decision = asking.await.expect("a task").expect("a decision");
            assert!(decision.is_allowed(), "{what}: {decision:?}");
            let left = limiter.peek(("m", "k")).await.expect("a balance").remaining();
            assert!(left < 25.0, "{what}: {left} of what was refilled before the call took all");
        }
        for name in ["m", "other"] {
            // As above, with a gate that is closed meanwhile.
            let what = format!("{shards} shards, {isolation:?}, {name} first");
            let database = Database::migrated().await;
            let limiter = gate::limiter(&database.app, limits(shards), |config| config.isolation = *isolation);
            let mut holder = database.pool.begin().await.expect("begin");
            limiter
                .within(&mut holder)
                .limit((name, "k"))
                .await
                .expect("a decision")
                .enforce()
                .expect("its first rows");
            let (calling, call) = (limiter.clone(), [Item::new(name, "k"), Item::new("a gate", "k")]);
            let asking = tokio::spawn(async move { calling.limit(call).await });
            until_waiting(&database, 1).await;
            limiter.block(("a gate", "k"), hour).await.expect("a block");
            tokio::time::sleep(Duration::from_millis(250)).await;
            holder.rollback().await.expect("rollback");
            let decision = asking.await.expect("a task").expect("a decision");
            assert_eq!(decision.denied_by(), ["a gate"], "{what}: {decision:?}");
            assert_eq!(limiter.peek((name, "k")).await.expect("a balance").remaining().round(), 100.0, "{what}");
        }
    }
}
