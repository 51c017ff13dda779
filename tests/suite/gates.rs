//! Gates: a blocked key is denied for the time of its block, and a call that takes nothing writes nothing.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{self, AssertSqlSafe, PgPool};
use pg_limiter::{
    Call, Connections, DenialMemory, Error, InvalidCall, InvalidJob, Isolation, Item, KeySecret, Limit, Limiter,
    LimiterConfig, Limits,
};
use serde_json::json;

use crate::statistics::OwnServer;
use crate::support::Database;
use crate::support::gate::{self, CENTURY};

pub const HOUR: Duration = Duration::from_secs(3600);
const SECRET: &str = "0123456789abcdef0123456789abcdef";

pub fn limits() -> Limits {
    Limits::new()
        .define("banned", Limit::gate())
        .and_then(|limits| limits.define("closed", Limit::gate()))
        .and_then(|limits| limits.define("user", Limit::token_bucket(100, CENTURY)))
        .and_then(|limits| limits.define("fixed", Limit::fixed_window(100, CENTURY).start(Duration::ZERO)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(100, CENTURY)))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(1000, CENTURY).shards(4)))
        .expect("limits")
}

pub fn limiter(database: &Database, change: impl FnOnce(&mut LimiterConfig)) -> Limiter {
    gate::limiter(&database.app, limits(), change)
}

/// Every way that the limiter's own calls can run.
fn limiters(pool: &PgPool) -> Vec<Limiter> {
    let ways = [
        (Connections::Own, Isolation::Serializable),
        (Connections::Own, Isolation::ReadCommitted),
        (Connections::Pool, Isolation::Serializable),
        (Connections::Pool, Isolation::ReadCommitted),
    ];
    let with = |(connections, isolation)| {
        gate::limiter(pool, limits(), |config| (config.connections, config.isolation) = (connections, isolation))
    };
    ways.into_iter().map(with).collect()
}

fn group(key: &str) -> [Item; 3] {
    [Item::new("user", key), Item::new("banned", key), Item::new("sliding", key)]
}

/// A blocked key is denied alone, in groups and in batches, and nothing is taken from the other limits.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_denies_while_its_key_is_blocked() {
    let database = Database::migrated().await;
    for (nth, limiter) in limiters(&database.app).into_iter().enumerate() {
        let (bad, good) = (format!("bad {nth}"), format!("good {nth}"));
        let left = async |key: &str| limiter.peek(("user", key)).await.expect("a balance").remaining().round();
        assert!(limiter.limit(("banned", &*bad)).await.expect("a decision").is_allowed());
        assert!(limiter.limit(group(&bad)).await.expect("a decision").is_allowed());
        assert_eq!(limiter.is_blocked(("banned", &*bad)).await.expect("an answer"), None);
        assert_eq!(limiter.block(("banned", &*bad), HOUR).await.expect("a block"), HOUR);
        let rest = limiter.is_blocked(("banned", &*bad)).await.expect("an answer").expect("blocked");
        assert!(rest <= HOUR && rest > HOUR / 2, "{rest:?}");

        let alone = limiter.limit(("banned", &*bad, 7)).await.expect("a decision");
        assert!(alone.retry_after().is_some_and(|wait| wait <= HOUR && wait > HOUR / 2), "{alone:?}");
        assert_eq!((alone.denied_by(), alone.remaining()), (vec!["banned"], 0.0));
        let decision = limiter.limit(group(&bad)).await.expect("a decision");
        assert_eq!(decision.denied_by(), ["banned"]);
        assert!(decision.retry_after().is_some_and(|wait| wait <= HOUR && wait > HOUR / 2), "{decision:?}");
        let [user, gate, _] = decision.limits() else { panic!("{decision:?}") };
        assert_eq!((user.remaining.round(), gate.remaining, gate.used_fraction()), (99.0, 0.0, 1.0));
        assert_eq!(decision.remaining().round(), 99.0, "a gate has no balance");
        // A gate reserves nothing, and is no way around a block.
        let reserved = Call::from([Item::new("user", &*bad).count(150), Item::new("banned", &*bad)]).reserve();
        assert!(limiter.limit(reserved).await.expect("a decision").is_denied());
        let reserved = Call::from([Item::new("user", &*good).count(101), Item::new("banned", &*good)]).reserve();
        assert!(limiter.limit(reserved).await.expect("a decision").is_reserved());
        limiter.reset([Item::new("user", &*good), Item::new("user", &*bad)]).await.expect("a reset");

        // In one batch, with calls on keys that are not blocked.
        let keys = (0..60).map(|n| if n % 3 == 0 { &bad } else { &good });
        let decisions = join_all(keys.map(|key| limiter.limit(group(key)))).await;
        for (n, decision) in decisions.into_iter().enumerate() {
            assert_eq!(decision.expect("a decision").is_denied(), n % 3 == 0);
        }
        assert_eq!((left(&bad).await, left(&good).await), (100.0, 60.0));

        // A shorter block never ends a longer one, and a longer one lasts.
        let rest = limiter.block(("banned", &*bad), HOUR / 60).await.expect("a block");
        assert!(rest > HOUR / 2 && rest <= HOUR, "{rest:?}");
        assert_eq!(limiter.block(("banned", &*bad), 2 * HOUR).await.expect("a block"), 2 * HOUR);
        limiter.unblock(("banned", &*bad)).await.expect("unblocked");
        assert_eq!(limiter.is_blocked(("banned", &*bad)).await.expect("an answer"), None);
        assert!(limiter.limit(group(&bad)).await.expect("a decision").is_allowed());
    }
}

#[tokio::test]
async fn a_block_ends_by_itself_at_the_promised_time() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, |_| {});
    let for_a_moment = Duration::from_millis(300);
    limiter.block(("banned", "k"), for_a_moment).await.expect("a block");
    let denied = limiter.limit(("banned", "k")).await.expect("a decision");
    // If this took longer than the block, it has ended: that is right, too.
    if let Some(wait) = denied.retry_after() {
        tokio::time::sleep(wait).await;
    }
    assert!(limiter.limit(("banned", "k")).await.expect("a decision").is_allowed());
    assert_eq!(limiter.is_blocked(("banned", "k")).await.expect("an answer"), None);
    assert_eq!(limiter.prune().await.expect("pruned"), 1);
    // A waiter is let through when the block ends.
    limiter.block(("banned", "k"), for_a_moment).await.expect("a block");
    let ready = limiter.until_ready(group("k"), Duration::from_secs(60)).await.expect("a decision");
    assert!(ready.is_allowed());
    // The longest block is exact, too.
    let longest = Duration::from_secs(36_525 * 86_400);
    assert_eq!(limiter.block(("banned", "k"), longest).await.expect("a block"), longest);
    let rest = limiter.is_blocked(("banned", "k")).await.expect("an answer").expect("blocked");
    assert!(rest < longest && longest - rest < HOUR, "{rest:?}");
}

#[tokio::test]
async fn in_the_callers_transaction_a_block_commits_or_rolls_back_with_it() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, |config| config.isolation = Isolation::ReadCommitted);
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let begin = || AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
        for commits in [false, true] {
            let mut tx = database.app.begin_with(begin()).await.expect("begin");
            assert_eq!(limiter.within(&mut tx).block(("banned", "k"), HOUR).await.expect("a block"), HOUR);
            assert!(limiter.within(&mut tx).is_blocked(("banned", "k")).await.expect("an answer").is_some());
            assert!(limiter.within(&mut tx).limit(group("k")).await.expect("a decision").is_denied());
            // Others do not see it yet, and do not wait.
            assert!(limiter.limit(group("k")).await.expect("a decision").is_allowed());
            if commits {
                tx.commit().await.expect("commit");
            } else {
                tx.rollback().await.expect("rollback");
            }
            assert_eq!(limiter.is_blocked(("banned", "k")).await.expect("an answer").is_some(), commits, "{level}");
        }
        let mut tx = database.app.begin_with(begin()).await.expect("begin");
        limiter.within(&mut tx).unblock(("banned", "k")).await.expect("unblocked");
        assert_eq!(limiter.within(&mut tx).is_blocked(("banned", "k")).await.expect("an answer"), None);
        tx.commit().await.expect("commit");
        assert_eq!(limiter.is_blocked(("banned", "k")).await.expect("an answer"), None, "{level}");
    }
}

/// The bytes of WAL, and the versions of all rows.
async fn written(server: &OwnServer) -> (i64, Vec<String>) {
    let wal = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let versions = "SELECT concat_ws(' ', name, key, shard, xmin, xmax, ctid) FROM rate_limit.rate_limits ORDER BY name, key, shard";
    (server.count(wal).await, sqlx::query_scalar(versions).fetch_all(&server.pool).await.expect("the rows"))
}

/// For each kind, with rows and without: alone, in groups, in batches, in the caller's transaction, and from SQL.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_nothing_writes_nothing() {
    let server = OwnServer::start(&[]).await.expect("a server");
    let names = ["banned", "closed", "user", "fixed", "sliding", "sharded"];
    let present = ["user", "fixed", "sliding", "sharded"].map(|name| Item::new(name, "present").count(90));
    for limiter in limiters(&server.pool) {
        assert!(limiter.limit(present.clone()).await.expect("a decision").is_allowed());
        limiter.block(("closed", "present"), HOUR).await.expect("a block");
        let nothing = |name: &'static str, key: &'static str| Item::new(name, key).count(0);
        let calls = || {
            let keys = ["present", "absent"].into_iter();
            let open = ["user", "fixed", "sliding", "sharded", "banned"];
            let lone = names.map(|name| Call::from(nothing(name, "absent")));
            let lone_rows = names.map(|name| Call::from(nothing(name, "present")));
            let all = keys.clone().map(move |key| Call::from(open.map(|name| nothing(name, key))));
            let few =
                keys.clone().map(move |key| Call::from(["user", "banned", "fixed"].map(|name| nothing(name, key))));
            let gates = keys.clone().map(move |key| Call::from(["banned", "closed"].map(|name| nothing(name, key))));
            let reserves = keys.map(move |key| Call::from(["user", "banned"].map(|name| nothing(name, key))).reserve());
            lone.into_iter().chain(lone_rows).chain(all).chain(few).chain(gates).chain(reserves).collect::<Vec<_>>()
        };
        let is_denied = |call: &Call| {
            call.items().iter().any(|item| (item.limit_name(), item.key().as_str()) == ("closed", "present"))
        };
        let make = async || {
            for call in calls() {
                let denied = is_denied(&call);
                assert_eq!(limiter.limit(call.clone()).await.expect("a decision").is_denied(), denied, "{call:?}");
            }
            let decisions = join_all((0..10).flat_map(|_| calls()).map(|call| limiter.limit(call))).await;
            for (call, decision) in (0..10).flat_map(|_| calls()).zip(decisions) {
                assert_eq!(decision.expect("a decision").is_denied(), is_denied(&call), "{call:?}");
            }
            let mut tx = server.pool.begin().await.expect("begin");
            for call in calls() {
                let denied = is_denied(&call);
                let decision = limiter.within(&mut tx).limit(call).await.expect("a decision");
                assert_eq!(decision.is_denied(), denied);
            }
            for key in ["present", "absent"] {
                let sql = format!(
                    "SELECT ok FROM rate_limit.limit_with('user', '{key}', 'token_bucket', 100, '36525 days', count => 0)"
                );
                assert!(
                    sqlx::query_scalar::<_, bool>(AssertSqlSafe(sql)).fetch_one(&mut *tx).await.expect("a decision")
                );
            }
            tx.commit().await.expect("commit");
        };
        make().await; // Fills the caches.
        // From time to time, the server itself logs the running transactions to the WAL, so the fewest of three times count.
        let mut bytes = i64::MAX;
        for _ in 0..3 {
            let (wal, versions) = written(&server).await;
            make().await;
            let after = written(&server).await;
            assert_eq!(after.1, versions);
            bytes = bytes.min(after.0 - wal);
        }
        assert!(bytes < 1_000, "{bytes} bytes");
        limiter.reset(present.clone()).await.expect("a reset");
    }
}

#[tokio::test]
async fn a_mixed_batch_takes_only_what_was_asked() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, |_| {});
    let counts = (0..90).map(|nth| nth % 3);
    let decisions =
        join_all(counts.map(|count| limiter.limit([("user", "k", count), ("fixed", "k", count / 2)].map(Item::from))))
            .await;
    assert!(decisions.into_iter().all(|decision| decision.expect("a decision").is_allowed()));
    let balances = limiter.peek([Item::new("user", "k"), Item::new("fixed", "k")]).await.expect("balances");
    assert_eq!((balances[0].round(), balances[1].round()), (10.0, 70.0));
    // While tokens are owed, a call for nothing is denied as before.
    limiter.charge(("user", "k", 20)).await.expect("a charge");
    assert!(limiter.limit(("user", "k", 0)).await.expect("a decision").is_denied());
}

#[tokio::test]
async fn invalid_blocks_and_uses_of_a_gate_have_typed_errors() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, |_| {});
    let day = Duration::from_secs(86_400);
    for duration in
        [Duration::ZERO, Duration::from_nanos(1_500), 36_525 * day + Duration::from_micros(1), Duration::MAX]
    {
        let error = limiter.block(("banned", "k"), duration).await.expect_err("invalid");
        assert!(matches!(error, Error::Invalid(InvalidCall::Block { duration: given }) if given == duration));
        let expected = "is not valid; use a whole number of microseconds, from 1 microsecond to 36525 days";
        assert_eq!(error.to_string(), format!("the block of {duration:?} {expected}"));
    }
    let not_a_gate = [
        limiter.block(("user", "k"), HOUR).await.map(|_| ()),
        limiter.unblock(("user", "k")).await,
        limiter.is_blocked(("user", "k")).await.map(|_| ()),
    ];
    for error in not_a_gate {
        assert!(matches!(error, Err(Error::Invalid(InvalidCall::NotAGate { limit, .. })) if limit == "user"));
    }
    let unknown = limiter.block(("nothing", "k"), HOUR).await.expect_err("unknown");
    assert!(matches!(unknown, Error::Invalid(InvalidCall::UnknownLimit { .. })));
    for error in [limiter.credit(("banned", "k")).await, limiter.charge(("banned", "k")).await] {
        assert!(matches!(error, Err(Error::Invalid(InvalidCall::NoTokens { limit })) if limit == "banned"));
    }
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let job = Job::new([Item::new("user", "k"), Item::new("banned", "k")], &1).expect("a job");
    let error = queue.enqueue(job).await.expect_err("refused");
    assert!(matches!(&error, Error::InvalidJob(InvalidJob::Gate { limit }) if limit == "banned"), "{error}");
    assert_eq!(database.rows().await, 0);

    for (call, code, message) in [
        ("rate_limit.block('a', 'k', NULL)", "22023", "invalid_block: the block NULL is not between"),
        ("rate_limit.block('a', 'k', '0')", "22023", "invalid_block: the block 00:00:00 is not between"),
        ("rate_limit.block('a', 'k', '-1 s')", "22023", "invalid_block: the block -00:00:01 is not between"),
        ("rate_limit.block('a', 'k', '1 month')", "22023", "invalid_block: the block 1 mon is not between"),
        ("rate_limit.block('a', NULL, '1 day')", "22023", "invalid_key: the key is NULL"),
        ("rate_limit.block('', 'k', '1 day')", "22023", "invalid_name: the limit's name is empty"),
        ("rate_limit.unblock('a', NULL)", "22023", "invalid_key: the key is NULL"),
        ("rate_limit.is_blocked('a', NULL)", "22023", "invalid_key: the key is NULL"),
        ("rate_limit.is_blocked(NULL, 'k')", "22023", "invalid_name: the limit's name is NULL"),
        (
            "rate_limit.limit_with('a', 'k', 'gate', 1, '1 day')",
            "22023",
            "invalid_limit: a gate has no tokens: name it in",
        ),
        (
            r#"rate_limit.limit_all_with('[{"name": "a", "key": "k", "kind": "gate", "rate": 1}]')"#,
            "22023",
            "invalid_limit: element 1: rate does not apply to a gate",
        ),
        (
            r#"rate_limit.limit_all_with('[{"name": "a", "kind": "gate"}]')"#,
            "22023",
            "invalid_call: element 1: the field \"key\" is missing",
        ),
    ] {
        let sql = AssertSqlSafe(format!("SELECT * FROM {call}"));
        let error = sqlx::query(sql).execute(&database.pool).await.expect_err(call);
        let error = error.as_database_error().expect("of the database");
        assert!(error.code().as_deref() == Some(code) && error.message().starts_with(message), "{call}: {error}");
    }
}

#[test]
fn a_gate_in_a_limits_file_has_no_options() {
    let file = "[limits.banned]\nkind = \"gate\"\n";
    let limits = Limits::from_toml(file).expect("limits");
    assert_eq!(limits.get("banned"), Some(&Limit::gate()));
    assert_eq!(Limits::from_json(r#"{"limits": {"banned": {"kind": "gate"}}}"#), Ok(limits));
    assert_eq!(serde_json::to_value(Limit::gate()).expect("JSON"), json!({"kind": "gate"}));
    assert_eq!(Limit::gate().to_string(), "gate");
    let options = [
        ("rate", "1"),
        ("period", "\"1s\""),
        ("capacity", "1"),
        ("max_reserved", "1"),
        ("start", "\"1s\""),
        ("resolution", "1"),
        ("shards", "2"),
    ];
    for (option, value) in options {
        let error = Limits::from_toml(&format!("{file}{option} = {value}")).expect_err(option).to_string();
        assert_eq!(error, format!("limits file: limit \"banned\": {option} does not apply to a gate"));
    }
    for missing in ["rate", "period"] {
        let other = if missing == "rate" { "period = \"1s\"" } else { "rate = 1" };
        let error = Limits::from_toml(&format!("[limits.a]\nkind = \"token_bucket\"\n{other}")).expect_err(missing);
        assert_eq!(error.to_string(), format!("limits file: limit \"a\": missing field `{missing}`"));
    }
}

#[tokio::test]
async fn sql_and_the_library_share_blocks() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, |_| {});
    let sql = async |sql: &'static str| -> Option<String> {
        sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("an answer")
    };
    assert_eq!(sql("SELECT rate_limit.is_blocked('banned', 'k')::text").await, None);
    assert_eq!(sql("SELECT rate_limit.block('banned', 'k', '1 hour')::text").await.as_deref(), Some("01:00:00"));
    assert!(
        sql("SELECT rate_limit.is_blocked('banned', 'k')::text").await.is_some_and(|rest| rest.starts_with("00:59:"))
    );
    assert!(limiter.limit(group("k")).await.expect("a decision").is_denied());
    let all = "SELECT concat_ws(' ', ok, denied_by, limits -> 1 ->> 'value', retry_after > '30 min') FROM rate_limit.limit_all_with(
                 '[{\"name\": \"user\", \"key\": \"k\", \"kind\": \"token_bucket\", \"rate\": 100, \"period\": \"36525 days\"},
                   {\"name\": \"banned\", \"key\": \"k\", \"kind\": \"gate\"}]')";
    assert_eq!(sql(all).await.as_deref(), Some("f {banned} 0 t"));
    assert_eq!(sql("SELECT rate_limit.unblock('banned', 'k')::text").await.as_deref(), Some("true"));
    assert_eq!(sql("SELECT rate_limit.unblock('banned', 'k')::text").await.as_deref(), Some("false"));
    assert_eq!(sql(all).await.as_deref(), Some("t {} 0"));
    assert_eq!(database.rows().await, 1);
}

#[tokio::test]
async fn secrets_inline_gates_and_remembered_denials_work_with_blocks() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, |config| {
        config.key_secret = Some(KeySecret::new(SECRET).expect("a secret"));
        let mut memory = DenialMemory::default();
        memory.max_age = HOUR;
        config.remember_denials = Some(memory);
    });
    let inline = || Item::new(("inline", Limit::gate()), "anna");
    limiter.block(inline(), HOUR).await.expect("a block");
    assert_eq!(database.rows_with("anna").await, 0);
    let batches = limiter.batches();
    for _ in 0..3 {
        assert!(limiter.limit(inline()).await.expect("a decision").is_denied());
    }
    assert_eq!(limiter.batches(), batches + 1, "remembered");
    limiter.unblock(inline()).await.expect("unblocked");
    assert!(limiter.limit(inline()).await.expect("a decision").is_allowed());
}

/// A block does not wait for open transactions that were decided by the gate. The longest of many blocks of one key counts.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_blocks_end_with_the_longest() {
    let database = Database::migrated().await;
    let limiter = limiter(&database, |_| {});
    let mut tx = database.app.begin().await.expect("begin");
    assert!(limiter.within(&mut tx).limit(group("k")).await.expect("a decision").is_allowed());
    for round in 0..5 {
        let blocks = (1..=20).map(|minutes| {
            let limiter = limiter.clone();
            let key = format!("k{round}");
            tokio::spawn(async move { limiter.block(("banned", key), minutes * HOUR / 60).await.expect("a block") })
        });
        let rests: Vec<Duration> = join_all(blocks).await.into_iter().map(|rest| rest.expect("no panic")).collect();
        let rest = limiter.is_blocked(("banned", format!("k{round}"))).await.expect("an answer").expect("blocked");
        assert!(rest <= HOUR / 3 && rest > HOUR / 4, "{rest:?}");
        assert_eq!(rests.iter().max(), Some(&(HOUR / 3)));
    }
    limiter.block(("banned", "k"), HOUR).await.expect("a block"); // The call in `tx` has locked no row of the gate.
    tx.commit().await.expect("commit");
}

/// The definition shows that a stored limit is no gate, although no key has a row.
#[tokio::test]
async fn a_stored_limit_of_another_kind_is_not_blocked() {
    let database = Database::migrated().await;
    let month = "'calendar_window', 1000, every => '1 month', zone => 'Europe/Berlin'";
    let kinds = [
        ("token_bucket", "'token_bucket', 10, '1 day'"),
        ("fixed_window", "'fixed_window', 10, '1 day'"),
        ("sliding_window", "'sliding_window', 10, '1 day'"),
        ("calendar_window", month),
        ("concurrency", "'concurrency', capacity => 2"),
    ];
    let run = async |sql: &str| sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&database.pool).await.map(|_| ());
    let limiter = gate::limiter(&database.app, Limits::new(), |_| {});
    for (kind, options) in kinds {
        run(&format!("SELECT rate_limit.define('{kind}', {options})")).await.expect("a definition");
        for call in ["block('{}', 'k', '1 hour')", "is_blocked('{}', 'k')", "unblock('{}', 'k')"] {
            let call = call.replace("{}", kind);
            let error = run(&format!("SELECT rate_limit.{call}")).await.expect_err("it is no gate");
            let error = error.as_database_error().expect("of the database");
            let expected = format!("not_a_gate: the limit \"{kind}\" is a {kind}, not a gate, so it cannot be blocked");
            assert_eq!((error.code().as_deref(), error.message()), (Some("22023"), &*expected), "{call}");
        }
        let error = limiter.block(Item::new((kind, Limit::gate()), "k"), HOUR).await.expect_err("it is no gate");
        assert!(error.to_string().contains("not_a_gate"), "{kind}: {error:?}");
    }
    assert_eq!(database.rows().await, 0);
    // A gate, and a name that is not defined any more.
    for definition in ["define('fixed_window', 'gate')", "undefine('sliding_window')"] {
        run(&format!("SELECT rate_limit.{definition}")).await.expect("a definition");
    }
    for name in ["fixed_window", "sliding_window", "never defined"] {
        for call in ["block('{}', 'k', '1 hour')", "is_blocked('{}', 'k')", "unblock('{}', 'k')"] {
            run(&format!("SELECT rate_limit.{}", call.replace("{}", name))).await.expect(name);
        }
    }
}
