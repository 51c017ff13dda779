//! A call with an idempotency key is charged once, however often and from wherever it is made.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{
    Call, DenialMemory, Error, InvalidCall, Isolation, Item, Limit, Limiter, LimiterConfig, Limits, Outcome,
};

use crate::support::Database;
use crate::support::gate::until_waiting;

const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

fn limits() -> Limits {
    Limits::new()
        .define("a", Limit::token_bucket(1e-6, CENTURY).capacity(10))
        .and_then(|limits| limits.define("b", Limit::sliding_window(5, CENTURY)))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(1e-6, CENTURY).capacity(100).shards(4)))
        .and_then(|limits| limits.define("paced", Limit::token_bucket(1, Duration::from_secs(3600)).capacity(1)))
        .expect("limits")
}

fn limiter(pool: &PgPool) -> Limiter {
    let mut config = LimiterConfig::default();
    config.retry.max_attempts = 10_000;
    config.retry.deadline = Duration::from_secs(60);
    Limiter::with_config(pool.clone(), limits(), config)
}

fn call(key: &str) -> Call {
    Call::from(("a", "k")).idempotency_key(key)
}

async fn left(limiter: &Limiter, limit: &str) -> f64 {
    limiter.peek((limit, "k")).await.expect("a balance").remaining().round()
}

async fn answers(database: &Database) -> i64 {
    let sql = "SELECT count(*) FROM rate_limit.answers";
    sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("a count")
}

#[tokio::test]
async fn a_repeated_call_gets_its_answer_and_takes_nothing() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool);
    let first = limiter.limit(call("1")).await.expect("a decision");
    for _ in 0..3 {
        assert_eq!(limiter.limit(call("1")).await.expect("a decision"), first);
    }
    assert_eq!(left(&limiter, "a").await, 9.0);
    assert!(limiter.limit(call("2")).await.expect("a decision").is_allowed());
    assert_eq!(left(&limiter, "a").await, 8.0);

    // Several limits, a sharded one, and a bucket named twice: all are charged once.
    let items = [Item::new("b", "k").count(2), Item::new("sharded", "k").count(7), Item::new("b", "k")];
    let group = || Call::from(items.clone()).idempotency_key("3");
    let first = limiter.limit(group()).await.expect("a decision");
    assert_eq!(first.limits().len(), 3);
    assert_eq!(limiter.limit(group()).await.expect("a decision"), first);
    assert_eq!((left(&limiter, "b").await, left(&limiter, "sharded").await), (2.0, 93.0));

    // `charge` and `credit`, which ignore the balance.
    let charge = || Call::from(("a", "k", 5)).idempotency_key("4");
    let balance = limiter.charge(charge()).await.expect("a balance");
    assert_eq!(limiter.charge(charge()).await.expect("a balance"), balance);
    assert_eq!(left(&limiter, "a").await, 3.0);
    let credit = || Call::from(("a", "k", 4)).idempotency_key("5");
    let balance = limiter.credit(credit()).await.expect("a balance");
    assert_eq!(limiter.credit(credit()).await.expect("a balance"), balance);
    assert_eq!(left(&limiter, "a").await, 7.0);
}

#[tokio::test]
async fn a_repeated_reservation_keeps_its_ready_time() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool);
    assert!(limiter.limit(("paced", "k")).await.expect("a decision").is_allowed());
    let reserve = || Call::from(("paced", "k")).reserve().idempotency_key("1");
    let waits = [limiter.limit(reserve()).await, limiter.limit(reserve()).await];
    let [first, second] = waits.map(|said| match said.expect("a decision").outcome() {
        Outcome::Reserved { wait } => wait,
        other => panic!("{other:?}"),
    });
    assert!(second < first && first - second < Duration::from_secs(60), "{first:?}, then {second:?}");
    assert_eq!(left(&limiter, "paced").await, -1.0);
    // Once its ready time has passed, the repeated call is allowed at once.
    database.execute("UPDATE rate_limit.answers SET ready_at = ready_at - 3700000000").await;
    let said = limiter.limit(reserve()).await.expect("a decision");
    assert_eq!(said.outcome(), Outcome::Reserved { wait: Duration::ZERO });
}

#[tokio::test]
async fn a_denial_is_not_stored_and_its_repeat_is_decided_anew() {
    let database = Database::migrated().await;
    let mut config = LimiterConfig::default();
    config.remember_denials = Some(DenialMemory::default());
    let limiter = Limiter::with_config(database.pool.clone(), limits(), config);
    assert!(limiter.limit(("a", "k", 9)).await.expect("a decision").is_allowed());
    let two = || Call::from(("a", "k", 2)).idempotency_key("1");
    assert!(limiter.limit(two()).await.expect("a decision").is_denied());
    assert_eq!(answers(&database).await, 0);
    limiter.reset(("a", "k")).await.expect("a reset");
    let first = limiter.limit(two()).await.expect("a decision");
    assert!(first.is_allowed());
    // The limiter now remembers a denial of this bucket; the repeated call still gets its stored answer.
    limiter.charge(("a", "k", 20)).await.expect("a charge");
    assert!(limiter.limit(("a", "k", 2)).await.expect("a decision").is_denied());
    assert_eq!(limiter.limit(two()).await.expect("a decision"), first);
}

#[tokio::test]
async fn in_the_callers_transaction_the_answer_commits_or_rolls_back_with_it() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool);
    for (nth, level) in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"].into_iter().enumerate() {
        let key = format!("{nth}");
        for commits in [false, true, true] {
            let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
            let mut tx = database.pool.begin_with(begin).await.expect("begin");
            assert!(limiter.within(&mut tx).limit(call(&key)).await.expect("a decision").is_allowed());
            assert!(limiter.within(&mut tx).limit(call(&key)).await.expect("a decision").is_allowed());
            if commits {
                tx.commit().await.expect("commit");
            } else {
                tx.rollback().await.expect("rollback");
            }
        }
        assert_eq!(left(&limiter, "a").await, 9.0 - nth as f64, "{level}");
    }
    assert_eq!(answers(&database).await, 3);
}

/// In every way that a call can run, concurrently.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_repeats_take_the_tokens_once() {
    let database = Database::migrated().await;
    let pool = Database::pool(&database.url, 12).await;
    let mut config = LimiterConfig::default();
    config.retry.max_attempts = 10_000;
    config.retry.deadline = Duration::from_secs(60);
    config.isolation = Isolation::ReadCommitted;
    let patient = Limiter::with_config(pool.clone(), limits(), config);
    let serializable = limiter(&pool);
    for round in 0..8 {
        let key = format!("{round}");
        let tasks = (0..24).map(|nth| {
            let (patient, serializable, key) = (patient.clone(), serializable.clone(), key.clone());
            tokio::spawn(async move {
                match nth % 3 {
                    0 => patient.limit(call(&key)).await.expect("a decision"),
                    1 => serializable.limit(call(&key)).await.expect("a decision"),
                    _ => {
                        let limits = serializable.clone();
                        let work = serializable.transaction(async move |tx| limits.within(tx).limit(call(&key)).await);
                        work.await.expect("a decision")
                    }
                }
            })
        });
        let said: Vec<_> = join_all(tasks).await.into_iter().map(|said| said.expect("a task")).collect();
        assert!(said.iter().all(|decision| *decision == said[0]), "{said:?}");
        assert!(said[0].is_allowed());
        assert_eq!(left(&patient, "a").await, f64::from(9 - round));
    }
}

/// The first call takes the last tokens and has not committed. Its repeat waits for the row and finds it empty; it must not be
/// denied.
#[tokio::test]
async fn a_repeat_that_waits_for_its_original_is_not_denied() {
    let database = Database::migrated().await;
    for isolation in [Isolation::ReadCommitted, Isolation::Serializable] {
        let mut config = LimiterConfig::default();
        config.retry.deadline = Duration::from_secs(60);
        config.isolation = isolation;
        let limiter = Limiter::with_config(database.pool.clone(), limits(), config);
        let key = format!("{isolation:?}");
        for items in
            [vec![Item::new("a", &*key).count(10)], vec![Item::new("a", "z").count(5), Item::new("b", &*key).count(5)]]
        {
            limiter.reset([Item::new("a", &*key), Item::new("a", "z"), Item::new("b", &*key)]).await.expect("a reset");
            let all = || Call::from(items.clone()).idempotency_key(format!("{key} {}", items.len()));
            let mut first = database.pool.begin().await.expect("begin");
            let taken = limiter.within(&mut first).limit(all()).await.expect("a decision");
            let commit = async {
                until_waiting(&database, 1).await;
                first.commit().await.expect("commit");
            };
            let (repeated, ()) = tokio::join!(limiter.limit(all()), commit);
            assert_eq!(repeated.expect("a decision"), taken, "{isolation:?}");
            assert!(taken.is_allowed());
        }
    }
}

#[tokio::test]
async fn an_idempotency_key_is_for_one_call() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool);
    assert!(limiter.limit(call("1")).await.expect("a decision").is_allowed());
    let others = [
        Call::from(("a", "k", 2)),
        Call::from(("a", "else")),
        Call::from(("b", "k")),
        Call::from(("a", "k")).reserve(),
        Call::from([Item::new("a", "k"), Item::new("b", "k")]),
    ];
    for other in others {
        let error = limiter.limit(other.clone().idempotency_key("1")).await.expect_err("another call");
        assert!(matches!(error, Error::Invalid(InvalidCall::IdempotencyKeyReused)), "{error}");
        let mut tx = database.pool.begin().await.expect("begin");
        let error = limiter.within(&mut tx).limit(other.idempotency_key("1")).await.expect_err("another call");
        assert!(matches!(error, Error::Invalid(InvalidCall::IdempotencyKeyReused)), "{error}");
        // It was not a database error: the caller's transaction goes on.
        assert!(limiter.within(&mut tx).check(("a", "k")).await.expect("a decision").is_allowed());
        tx.commit().await.expect("commit");
    }
    let error = limiter.charge(call("1")).await.expect_err("another operation");
    assert!(matches!(error, Error::Invalid(InvalidCall::IdempotencyKeyReused)), "{error}");
    assert_eq!((left(&limiter, "a").await, left(&limiter, "b").await), (9.0, 5.0));
    // Whatever number format the client has set.
    let third = || Call::from(("a", "k", 1.0 / 3.0)).idempotency_key("2");
    let mut conn = database.pool.acquire().await.expect("a connection");
    for digits in ["2", "-10", "1"] {
        let set = sqlx::AssertSqlSafe(format!("SET extra_float_digits = {digits}"));
        sqlx::query(set).execute(&mut *conn).await.expect("set");
        assert!(limiter.within(&mut conn).limit(third()).await.expect("the same call").is_allowed());
    }
    sqlx::query("RESET extra_float_digits").execute(&mut *conn).await.expect("reset");
    drop(conn);
    limiter.credit(("a", "k", 1.0 / 3.0)).await.expect("given back");
    // With changed limits, it is still the same call: limits may change while requests are on their way.
    let wider = Limits::new().define("a", Limit::token_bucket(1e-6, CENTURY).capacity(50)).expect("a limit");
    let changed = Limiter::new(database.pool.clone(), wider);
    assert!(changed.limit(call("1")).await.expect("a decision").is_allowed());
    assert_eq!(left(&changed, "a").await, 9.0);
}

#[tokio::test]
async fn answers_expire_and_are_pruned() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool);
    for key in ["1", "2", "3"] {
        assert!(limiter.limit(call(key)).await.expect("a decision").is_allowed());
    }
    let kept: i64 = sqlx::query_scalar("SELECT min(expires_at) - rate_limit._clock() FROM rate_limit.answers")
        .fetch_one(&database.pool)
        .await
        .expect("a time");
    assert!((86_000_000_000..=86_400_000_000).contains(&kept), "a day: {kept}");
    database.execute("UPDATE rate_limit.answers SET expires_at = 1 WHERE idempotency_key <> '3'").await;
    assert!(limiter.limit(call("1")).await.expect("a decision").is_allowed());
    assert_eq!(left(&limiter, "a").await, 6.0, "decided anew");
    limiter.prune().await.expect("pruned");
    let mut keys: Vec<String> = sqlx::query_scalar("SELECT idempotency_key FROM rate_limit.answers")
        .fetch_all(&database.pool)
        .await
        .expect("keys");
    keys.sort();
    assert_eq!(keys, ["1", "3"]);
    // More than one step.
    database
        .execute(
            "INSERT INTO rate_limit.answers SELECT 'old ' || n, 0, NULL, '{1}', n FROM generate_series(1, 2500) AS n",
        )
        .await;
    limiter.prune().await.expect("pruned");
    assert_eq!(answers(&database).await, 2);
}

#[tokio::test]
async fn invalid_idempotency_keys_are_rejected() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool);
    for key in ["", "\0", &"x".repeat(256)] {
        let error = limiter.limit(call(key)).await.expect_err("no key");
        assert!(matches!(error, Error::Invalid(InvalidCall::IdempotencyKey { .. })), "{error}");
    }
    for error in [
        limiter.check(call("1")).await.expect_err("changes nothing"),
        limiter.peek(call("1")).await.map(|_| ()).expect_err("changes nothing"),
        limiter.reset(call("1")).await.expect_err("is the same however often"),
    ] {
        assert!(matches!(error, Error::Invalid(InvalidCall::IdempotencyKeyUnsupported)), "{error}");
    }
    for sql in [
        "SELECT rate_limit._decide_once(NULL, 1, '{token_bucket}', '{1}', '{1000000}', NULL, NULL, NULL, NULL, NULL, '{a}', '{k}', NULL, NULL, NULL, NULL, 'limit', false)",
        "SELECT rate_limit._decide_once('1', 0, '{token_bucket}', '{1}', '{1000000}', NULL, NULL, NULL, NULL, NULL, '{a}', '{k}', NULL, NULL, NULL, NULL, 'limit', false)",
    ] {
        let error = sqlx::query(sql).execute(&database.pool).await.expect_err("refused");
        assert!(error.to_string().contains("invalid_idempotency_key"), "{error}");
    }
}

/// The answer is lost, but the tokens are taken. The limiter repeats the call automatically and gets the stored decision.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_commit_is_lost_is_repeated() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool);
    // The commit hangs until its backend is killed, once before and once after it has taken effect.
    database
        .execute(
            "CREATE TABLE released (at timestamptz);
             GRANT SELECT ON released TO PUBLIC;
             CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF NOT EXISTS (SELECT FROM public.released) THEN PERFORM pg_sleep(600); END IF;
               RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER hold AFTER INSERT OR UPDATE ON rate_limit.rate_limits
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()",
        )
        .await;
    let kill = async {
        let sleeping =
            "FROM pg_stat_activity WHERE datname = current_database() AND query = 'COMMIT' AND wait_event = 'PgSleep'";
        let found = || sqlx::AssertSqlSafe(format!("SELECT pid {sleeping}"));
        while sqlx::query(found()).fetch_optional(&database.pool).await.expect("a look").is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Before the kill: the limiter repeats the call at once.
        database.execute("INSERT INTO released VALUES (now())").await;
        database.execute(&format!("SELECT pg_terminate_backend(pid) {sleeping}")).await;
    };
    let (said, ()) = tokio::join!(limiter.limit(call("1")), kill);
    assert!(said.expect("a decision").is_allowed());
    assert!(limiter.retries() >= 1);
    assert_eq!(left(&limiter, "a").await, 9.0);
}
