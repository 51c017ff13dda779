//! How the combining engine handles rows: at which time it decides them, in which order it locks them, how it finds them.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::{self, Connection, PgConnection};
use pg_limiter::{Error, Isolation, Item, Limit, Limiter, Limits};

use crate::support::Database;
use crate::support::gate::{CENTURY, Gate, hold, limiter, until_waiting, waiting};

const CAPACITY: usize = 10;
const HELD_FOR: Duration = Duration::from_secs(3);

/// While the row is locked, more than the capacity would flow in.
fn fast() -> Limits {
    let fast = |limits: Limits, name| limits.define(name, Limit::token_bucket(10, Duration::from_secs(2)));
    let limits = fast(Limits::new(), "a").and_then(|limits| fast(limits, "b")).expect("limits");
    limits.define("pages", Limit::fixed_window(1_000, CENTURY)).expect("limits")
}

/// The calls that wait for the row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CallMix {
    /// The waiting batch has as many calls as the bucket has tokens.
    Plain,
    /// The same, with another bucket in the batch.
    TwoKeys,
    /// The waiting batch has more calls than the bucket has tokens.
    PlainTogether,
    /// Each call names a second bucket.
    Groups,
    /// The batch includes calls on other kinds of limits.
    Mixed,
    /// The row does not exist yet: another transaction has inserted it and not committed.
    FirstCalls,
}

const EVERY: [CallMix; 6] =
    [CallMix::Plain, CallMix::TwoKeys, CallMix::PlainTogether, CallMix::Groups, CallMix::Mixed, CallMix::FirstCalls];

async fn hold_for(database: &Database, limiter: &Limiter, mix: CallMix) -> sqlx::Transaction<'static, sqlx::Postgres> {
    if mix != CallMix::FirstCalls {
        limiter.charge([Item::new("a", "k").count(0), Item::new("b", "k").count(0)]).await.expect("rows");
        return hold(database, "a", &["k"]).await;
    }
    let mut holder = database.pool.begin().await.expect("begin");
    let _ = limiter.within(&mut holder).limit(("a", "k")).await.expect("a decision");
    holder
}

async fn one_of(limiter: &Limiter, mix: CallMix, nth: usize) -> usize {
    let items = match mix {
        CallMix::Groups => vec![Item::new("a", "k"), Item::new("b", "k")],
        CallMix::TwoKeys if nth == CAPACITY => vec![Item::new("b", "k")],
        CallMix::Mixed if nth.is_multiple_of(5) => vec![Item::new("pages", "k")],
        _ => vec![Item::new("a", "k")],
    };
    let counts = items[0] == Item::new("a", "k");
    usize::from(limiter.limit(items).await.expect("a decision").is_allowed() && counts)
}

/// A transaction locks the row of a full bucket, and rolls back. The calls that waited are admitted up to the capacity and
/// no more, however many they are: a full bucket gains nothing during the wait.
async fn let_in_at_once(isolation: Isolation, mix: CallMix) -> Result<(), String> {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, fast(), |config| (config.isolation, config.lanes) = (isolation, 1));
    Gate::build(&database).await;
    let holder = hold_for(&database, &limiter, mix).await;
    let gate = match mix {
        CallMix::Plain => None,
        _ => Some(Gate::close(&database, &limiter, 1).await),
    };
    let first = tokio::spawn({
        let limiter = limiter.clone();
        let first = match mix {
            CallMix::Plain => CAPACITY,
            CallMix::TwoKeys => CAPACITY + 1,
            _ => 2 * CAPACITY,
        };
        async move { join_all((0..first).map(|nth| one_of(&limiter, mix, nth))).await }
    });
    tokio::task::yield_now().await;
    if let Some(gate) = gate {
        gate.open().await;
    }
    until_waiting(&database, 1).await;
    let others = join_all((0..2 * CAPACITY).map(|nth| one_of(&limiter, mix, nth)));
    let release = async {
        tokio::time::sleep(HELD_FOR).await;
        // Measured before the rollback, so that all refill after it is counted.
        let released = std::time::Instant::now();
        holder.rollback().await.expect("rollback");
        released
    };
    let (others, released) = tokio::join!(others, release);
    let admitted: usize = first.await.expect("a task").into_iter().chain(others).sum();
    // The refill while they were decided.
    let since = released.elapsed().as_secs_f64() * 5.0;
    match (CAPACITY as f64..=CAPACITY as f64 + since).contains(&(admitted as f64)) {
        true => Ok(()),
        false => Err(format!("{mix:?}: {admitted} were admitted, {since} flowed in")),
    }
}

async fn all_are_let_in_at_once(isolation: Isolation) {
    let mut wrong = Vec::new();
    for mix in EVERY {
        wrong.extend(let_in_at_once(isolation, mix).await.err());
    }
    assert_eq!(wrong, [""; 0]);
}

#[tokio::test]
async fn serializable_waiters_get_at_most_the_capacity_of_a_full_bucket() {
    all_are_let_in_at_once(Isolation::Serializable).await;
}

#[tokio::test]
async fn read_committed_waiters_get_at_most_the_capacity_of_a_full_bucket() {
    all_are_let_in_at_once(Isolation::ReadCommitted).await;
}

/// The same in callers' transactions, each of which waits alone.
#[tokio::test]
async fn waiting_transactions_get_at_most_the_capacity_of_a_full_bucket() {
    let mut wrong = Vec::new();
    for (level, mix) in [
        ("READ COMMITTED", CallMix::Plain),
        ("READ COMMITTED", CallMix::Groups),
        ("READ COMMITTED", CallMix::FirstCalls),
        ("SERIALIZABLE", CallMix::Plain),
        ("SERIALIZABLE", CallMix::FirstCalls),
        ("REPEATABLE READ", CallMix::Groups),
        ("SERIALIZABLE", CallMix::Groups),
    ] {
        let database = Database::migrated().await;
        let limiter = limiter(&database.pool, fast(), |_| ());
        let holder = hold_for(&database, &limiter, mix).await;
        let items = || match mix {
            CallMix::Groups => vec![Item::new("a", "k").count(10), Item::new("b", "k").count(10)],
            _ => vec![Item::new("a", "k").count(10)],
        };
        let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
        let wait = async {
            loop {
                let begin = sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
                let mut tx = conn.begin_with(begin).await.expect("begin");
                match limiter.within(&mut tx).limit(items()).await {
                    Ok(decision) => break tx.commit().await.map(|()| decision).expect("commit"),
                    Err(Error::Conflict { .. }) if level != "READ COMMITTED" => tx.rollback().await.expect("rollback"),
                    Err(error) => panic!("{level}: {error:?}"),
                }
            }
        };
        let release = async {
            until_waiting(&database, 1).await;
            tokio::time::sleep(HELD_FOR).await;
            // Measured before the rollback, so that all refill after it is counted.
            let released = std::time::Instant::now();
            holder.rollback().await.expect("rollback");
            released
        };
        let (decision, released) = tokio::join!(wait, release);
        assert!(decision.is_allowed());
        let left = limiter.peek(("a", "k")).await.expect("a balance").remaining();
        let since = released.elapsed().as_secs_f64() * 5.0;
        if left > since + 0.1 {
            wrong.push(format!("{level} {mix:?}: all 10 were taken, and {left} are left"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

fn slow() -> Limits {
    Limits::new().define("a", Limit::token_bucket(100, CENTURY)).expect("a limit")
}

/// A batch and a group of the same two keys, one of which has no row yet, lock their rows in the same order.
#[tokio::test]
async fn a_batch_and_a_group_do_not_deadlock() {
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        let database = Database::migrated().await;
        let limiter = limiter(&database.pool, slow(), |config| (config.isolation, config.lanes) = (isolation, 1));
        for key in ["2 is there", "3 is held"] {
            limiter.charge(("a", key)).await.expect("a row");
        }
        let holder = hold(&database, "a", &["3 is held"]).await;
        let gate = Gate::close(&database, &limiter, 1).await;
        let keys = ["1 is new", "2 is there", "3 is held"];
        let batch = gate.gathered(keys.map(|key| limiter.limit(("a", key))));
        let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
        let group = async {
            until_waiting(&database, 1).await;
            // The batch waits for its third row. Another transaction now asks for the first two.
            let mut tx = conn.begin().await.expect("begin");
            let done = std::cell::Cell::new(false);
            let group = async {
                let said =
                    limiter.within(&mut tx).limit(["1 is new", "2 is there"].map(|key| Item::new("a", key))).await;
                if said.is_ok() {
                    tx.commit().await.expect("commit");
                }
                done.set(true);
                said
            };
            let release = async {
                // The group does not wait if it locked its rows before the batch.
                while waiting(&database).await < 2 && !done.get() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                holder.rollback().await.expect("rollback");
            };
            tokio::join!(group, release).0
        };
        let (batch, group) = tokio::join!(batch, group);
        assert!(group.expect("a decision").is_allowed(), "{isolation:?}");
        assert!(batch.into_iter().all(|said| said.expect("a decision").is_allowed()), "{isolation:?}");
        database.execute("SELECT pg_sleep(1.2)").await; // Statistics are reported by then.
        let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        let deadlocks: i64 = sqlx::query_scalar(deadlocks).fetch_one(&database.pool).await.expect("statistics");
        assert_eq!(deadlocks, 0, "{isolation:?}");
    }
}

/// Several handles send batches with the same keys in different orders, some of them new. Conflicts are retried, and no call
/// fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn competing_batches_on_the_same_keys_all_succeed() {
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        let database = Database::migrated().await;
        let rivals: Vec<Limiter> = (0..4)
            .map(|nth| {
                limiter(&database.pool, slow(), |config| {
                    (config.isolation, config.lanes) = (isolation, 1 + nth % 2);
                })
            })
            .collect();
        let tasks = rivals.into_iter().enumerate().map(|(nth, limiter)| {
            tokio::spawn(async move {
                for round in 0..12 {
                    let key = |place: usize| format!("{}", (place * 7 + nth * 3 + round) % 24 + round);
                    let calls = (0..24).map(|place| match place % 6 {
                        0 => vec![Item::new("a", key(place)), Item::new("a", key(place + 1))],
                        _ => vec![Item::new("a", key(place))],
                    });
                    for said in join_all(calls.map(|items| limiter.limit(items))).await {
                        assert!(said.expect("a decision").is_allowed());
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("a task");
        }
        let sql = "SELECT sum(100 - round(value))::bigint FROM rate_limit.rate_limits";
        let taken: i64 = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("the rows");
        assert_eq!(taken, 4 * 12 * 28, "{isolation:?}");
    }
}

/// A trigger counts in the engine's own session, at the end of each transaction.
const COUNT_SCANS: &str = "
    CREATE TABLE scans (seq_scan bigint, seq_tup_read bigint, idx_tup_fetch bigint);
    CREATE FUNCTION count_scans() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO public.scans SELECT seq_scan, seq_tup_read, idx_tup_fetch
      FROM pg_stat_xact_user_tables WHERE relname = 'rate_limits';
      RETURN NULL;
    END $$;
    CREATE TRIGGER count_scans AFTER INSERT OR UPDATE OR DELETE ON rate_limit.rate_limits
    FOR EACH STATEMENT EXECUTE FUNCTION count_scans()";

/// Plans are made for an empty table and kept while it grows. A batch still reads only the rows that it asks for.
#[tokio::test]
async fn a_batch_reads_the_rows_of_its_keys_and_no_others() {
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        for (groups, size) in [(false, 2), (false, 64), (true, 64)] {
            let database = Database::migrated().await;
            database
                .execute(
                    "ALTER TABLE rate_limit.rate_limits SET (autovacuum_enabled = off); ANALYZE rate_limit.rate_limits",
                )
                .await;
            let limiter = limiter(&database.pool, slow(), |config| (config.isolation, config.lanes) = (isolation, 1));
            let keys: Vec<String> = (0..size).map(|nth| format!("k{nth}")).collect();
            let batch = async || {
                let items = |key: &String| match groups {
                    true => vec![Item::new("a", key.as_str()), Item::new("a", "k").count(0.01)],
                    false => vec![Item::new("a", key.as_str())],
                };
                let before = limiter.batches();
                for said in join_all(keys.iter().map(|key| limiter.limit(items(key)))).await {
                    let _ = said.expect("a decision");
                }
                assert_eq!(limiter.batches(), before + 1, "all in one");
            };
            for _ in 0..10 {
                batch().await;
            }
            database
                .execute("INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT 'a', i::text, 0, 0, 0 FROM generate_series(1, 20000) AS i")
                .await;
            database.execute(COUNT_SCANS).await;
            for _ in 0..10 {
                batch().await;
            }
            let sql = "SELECT max(seq_scan), max(seq_tup_read), max(idx_tup_fetch), count(*) FROM scans";
            let seen: (i64, i64, i64, i64) = sqlx::query_as(sql).fetch_one(&database.pool).await.expect("statistics");
            let context = format!("{isolation:?}, groups: {groups}: {seen:?}");
            assert!(seen.3 >= 10, "{context}");
            assert_eq!((seen.0, seen.1), (0, 0), "{context}");
            // The counters cover ten batches; one scan of the whole table would add 20,000.
            assert!(seen.2 <= 10 * 12 * 65, "{context}");
        }
    }
}

/// A call that reaches its deadline behind a locked row is not charged.
#[tokio::test]
async fn a_call_reported_as_undecided_is_not_charged() {
    let database = Database::migrated().await;
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        let patient = limiter(&database.pool, slow(), |_| {});
        let hurried = limiter(&database.pool, slow(), |config| {
            (config.isolation, config.lanes, config.retry.deadline) = (isolation, 2, Duration::from_secs(1));
        });
        patient.reset(("a", "k")).await.expect("reset");
        patient.charge(("a", "k", 0)).await.expect("a row");
        let holder = hold(&database, "a", &["k"]).await;
        for said in join_all((0..40).map(|_| hurried.limit(("a", "k")))).await {
            let error = said.expect_err("the row is held");
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        }
        until_waiting(&database, 0).await;
        holder.rollback().await.expect("rollback");
        assert_eq!(patient.peek(("a", "k")).await.expect("a balance").remaining().round(), 100.0, "{isolation:?}");
    }
}
