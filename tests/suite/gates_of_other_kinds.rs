//! Blocks under a name that is no gate, or is one no more: they end no other limit's bucket, and no other call ends them.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::{self, AssertSqlSafe};
use pg_limiter::{Error, InvalidCall, Item, Limit, Limits};

use crate::gates::{HOUR, limiter, limits};
use crate::support::Database;
use crate::support::gate::{self, CENTURY};

/// A row shows that a limit is no gate. Without a row this is not known: then the key is denied until the block ends, and full after that.
#[tokio::test]
async fn a_block_of_a_limit_that_is_no_gate_is_refused_or_ends() {
    let database = Database::migrated().await;
    let defined = limiter(&database, |_| {});
    // Its limits are not known to this one, as to the tool.
    let limiter = gate::limiter(&database.app, Limits::new().define("banned", Limit::gate()).expect("a gate"), |_| {});
    let for_a_second = |name| Item::new((name, Limit::gate()), "k");
    let error = defined.block(for_a_second("user"), HOUR).await.expect_err("the limits are at hand");
    assert!(matches!(error, Error::Invalid(InvalidCall::NotAGate { .. })), "{error}");
    let inline = |name: &str, key: String| Item::new((name, limits().get(name).copied().expect("a limit")), key);
    let names = ["user", "fixed", "sliding", "sharded"];
    let slots = Limits::new().define("slots", Limit::concurrency(2)).expect("a limit");
    for name in names {
        limiter.limit(inline(name, "k".into())).await.expect("a decision").enforce().expect("a row");
    }
    let lease = database.limiter(slots).acquire(("slots", "k")).await.expect("an answer");
    for name in names.into_iter().chain(["slots"]) {
        let error = limiter.block(for_a_second(name), Duration::from_secs(1)).await.expect_err("it is no gate");
        assert!(error.to_string().contains("not_a_gate") || error.to_string().contains("no gate"), "{name}: {error:?}");
        let sql = format!("SELECT rate_limit.block('{name}', 'k', '1 s')");
        let error = sqlx::query(AssertSqlSafe(sql)).execute(&database.pool).await.expect_err("it is no gate");
        assert!(error.to_string().contains("not_a_gate"), "{name}: {error}");
        assert_eq!(limiter.is_blocked(for_a_second(name)).await.expect("an answer"), None, "{name}");
    }
    drop(lease);
    let rest = limiter.limit(inline("user", "k".into()).count(99)).await.expect("a decision");
    assert!(rest.is_allowed(), "the tokens are untouched");

    for name in names {
        let key = |nth: usize| inline(name, format!("new {nth}"));
        let gate = Item::new((name, Limit::gate()), "new 0");
        limiter.block(gate.clone(), HOUR).await.expect("nobody can know");
        for _ in 0..2 {
            let alone = limiter.limit(key(0)).await.expect("a decision");
            assert!(alone.retry_after().is_some_and(|wait| wait <= HOUR && wait > HOUR / 2), "{name}: {alone:?}");
            let group = limiter.limit([key(0), Item::new("banned", "free")]).await.expect("a decision");
            assert!(group.is_denied(), "{name}: {group:?}");
            let all = join_all((0..9).map(|nth| limiter.limit(key(nth)))).await;
            assert!(all[0].as_ref().is_ok_and(pg_limiter::Decision::is_denied), "{name}: {:?}", all[0]);
        }
        let mut tx = database.app.begin().await.expect("begin");
        assert!(limiter.within(&mut tx).check(key(0)).await.expect("a decision").is_denied(), "{name}");
        tx.commit().await.expect("commit");
        // Its end.
        sqlx::query(
            "UPDATE rate_limit.rate_limits SET ts = ts - 3600000000, idle_at = idle_at - 3600000000 WHERE detail[1] = -2",
        )
        .execute(&database.pool)
        .await
        .expect("an hour later");
        assert_eq!(limiter.is_blocked(gate).await.expect("an answer"), None, "{name}");
        let limit = limits().get(name).copied().expect("a limit");
        assert_eq!(limiter.peek(key(0)).await.expect("a balance").remaining().round(), limit.capacity(), "{name}");
        assert!(limiter.limit(key(0).count(limit.capacity())).await.expect("a decision").is_allowed(), "{name}");
        assert!(limiter.limit(key(0)).await.expect("a decision").is_denied(), "{name}");
    }
}

/// A mistyped name must give no client its tokens back, and free no slot that another client holds.
#[tokio::test]
async fn to_unblock_deletes_only_a_block() {
    let database = Database::migrated().await;
    let known = Limits::new().define("slots", Limit::concurrency(1)).and_then(|limits| {
        let limits = limits.define("user", Limit::token_bucket(10, CENTURY))?;
        limits.define("sharded", Limit::token_bucket(10, CENTURY).shards(2))
    });
    let defined = database.limiter(known.expect("limits"));
    let lease = defined.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a slot");
    for name in ["user", "sharded"] {
        assert!(defined.limit(Item::new(name, "k").count(10)).await.expect("a decision").is_allowed(), "{name}");
    }
    // Its limits are not known to this one, as to the tool.
    let other = gate::limiter(&database.app, Limits::new(), |_| {});
    for name in ["user", "sharded", "slots"] {
        let unblock = format!("SELECT rate_limit.unblock('{name}', 'k')");
        let was_blocked: bool =
            sqlx::query_scalar(AssertSqlSafe(unblock)).fetch_one(&database.pool).await.expect("an answer");
        assert!(!was_blocked, "{name}");
        other.unblock(Item::new((name, Limit::gate()), "k")).await.expect("an answer");
        let mut tx = database.app.begin().await.expect("begin");
        other.within(&mut tx).unblock(Item::new((name, Limit::gate()), "k")).await.expect("an answer");
        tx.commit().await.expect("commit");
    }
    for name in ["user", "sharded"] {
        assert!(defined.limit((name, "k")).await.expect("a decision").is_denied(), "{name}");
    }
    assert!(defined.acquire(("slots", "k")).await.expect("an answer").enforce().is_err());
    lease.release().await.expect("an answer");
}

/// Before the first row, no function knows that the name is no gate.
#[tokio::test]
async fn a_block_outlasts_charges_credits_and_acquisitions() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("slots", Limit::concurrency(2)).and_then(|limits| {
        let limits = limits.define("user", Limit::token_bucket(10, CENTURY))?;
        let limits = limits.define("fixed", Limit::fixed_window(10, CENTURY).start(Duration::ZERO))?;
        limits
            .define("sliding", Limit::sliding_window(10, CENTURY))?
            .define("sharded", Limit::token_bucket(10, CENTURY).shards(2))
    });
    let limiter = database.limiter(limits.expect("limits"));
    let gates = gate::limiter(&database.app, Limits::new(), |_| {});
    for name in ["user", "fixed", "sliding", "sharded", "slots"] {
        let gate = Item::new((name, Limit::gate()), "k");
        gates.block(gate.clone(), HOUR).await.expect("a block");
        if name == "slots" {
            let denied = limiter.acquire((name, "k")).await.expect("an answer");
            assert!(denied.enforce().is_err());
            let slots = r#"[{"name": "slots", "key": "k", "kind": "concurrency", "capacity": 2}]"#;
            for sql in [
                "SELECT ok, retry_after > '59 min' FROM rate_limit.acquire_with('slots', 'k', 2)".to_owned(),
                format!("SELECT ok, retry_after > '59 min' FROM rate_limit.limit_all_with('{slots}')"),
            ] {
                let row: (bool, bool) =
                    sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&database.pool).await.expect("an answer");
                assert_eq!(row, (false, true));
            }
        } else {
            for _ in 0..2 {
                limiter.charge((name, "k")).await.expect("an answer");
                limiter.credit((name, "k")).await.expect("an answer");
                join_all((0..5).map(|_| limiter.charge((name, "k")))).await;
            }
            let mut tx = database.app.begin().await.expect("begin");
            limiter.within(&mut tx).charge((name, "k")).await.expect("an answer");
            limiter.within(&mut tx).credit((name, "k")).await.expect("an answer");
            tx.commit().await.expect("commit");
            assert!(limiter.limit((name, "k")).await.expect("a decision").is_denied(), "{name}");
        }
        let rest = gates.is_blocked(gate.clone()).await.expect("an answer").expect(name);
        assert!(rest > HOUR / 2, "{name}: {rest:?}");
        gates.unblock(gate).await.expect("an answer");
        if name == "slots" {
            let _ = limiter.acquire((name, "k")).await.expect("an answer").enforce().expect("a slot");
        } else {
            assert!(limiter.limit((name, "k")).await.expect("a decision").is_allowed(), "{name}");
        }
    }
}

/// A limit that was a gate: its blocks can be seen and ended.
#[tokio::test]
async fn a_block_outlasts_a_change_of_the_stored_limit() {
    let database = Database::migrated().await;
    let run = async |sql: &str| {
        sqlx::query_scalar::<_, Option<bool>>(AssertSqlSafe(sql.to_owned())).fetch_one(&database.pool).await
    };
    for definition in ["'token_bucket', 10, '1 day'", "'concurrency', capacity => 2"] {
        run("SELECT rate_limit.define('changed', 'gate')").await.expect("a gate");
        run("SELECT rate_limit.block('changed', 'k', '1 hour') > '59 min'").await.expect("a block");
        run(&format!("SELECT rate_limit.define('changed', {definition})")).await.expect("another kind");
        let call = if definition.contains("concurrency") { "acquire" } else { "limit" };
        let call = format!("SELECT ok FROM rate_limit.{call}('changed', 'k')");
        assert_eq!(run(&call).await.expect("an answer"), Some(false));
        assert_eq!(run("SELECT rate_limit.is_blocked('changed', 'k') > '59 min'").await.expect("a block"), Some(true));
        assert_eq!(run("SELECT rate_limit.unblock('changed', 'k')").await.expect("its end"), Some(true));
        assert_eq!(run(&call).await.expect("an answer"), Some(true));
        let error = run("SELECT rate_limit.unblock('changed', 'k')").await.expect_err("it is no gate any more");
        assert!(error.to_string().contains("not_a_gate"), "{error}");
        run("SELECT rate_limit.define('changed', 'gate')").await.expect("a gate again");
        let error = run("SELECT rate_limit.block('changed', 'k', '1 hour') > '0'").await.expect_err("it has a row");
        let hint = error
            .as_database_error()
            .and_then(|error| error.downcast_ref::<sqlx::postgres::PgDatabaseError>().hint().map(ToOwned::to_owned));
        assert!(hint.is_some_and(|hint| hint.contains("reset the key")), "{error}");
        run("SELECT rate_limit.reset('changed', 'k') > 0").await.expect("a reset");
    }
}
