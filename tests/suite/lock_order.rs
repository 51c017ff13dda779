//! The lock order is the same at every isolation level: new rows first, then existing ones, each by name and key. So two calls
//! never deadlock, whatever the isolation levels of their transactions.

use std::time::{Duration, Instant};

use pg_limiter::sqlx::{self, AssertSqlSafe, Executor};
use pg_limiter::{Item, Limit, Limiter, Limits};

use crate::shards_contended::{Ask, LEVELS, code, run, session};
use crate::support::Database;
use crate::support::gate::{CENTURY, until_waiting};

async fn deadlocks(database: &Database) -> i64 {
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("the count")
}

/// Whether a session waits for a lock of this one.
pub(crate) async fn blocked_by(database: &Database, pid: i32) -> bool {
    let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))";
    sqlx::query_scalar(sql).bind(pid).fetch_one(&database.pool).await.expect("the waits")
}

/// A third transaction keeps the new row locked until both callers wait for it. Then one of them locks it, and the other must
/// not have locked the existing row.
#[tokio::test]
async fn callers_at_two_isolation_levels_lock_new_and_existing_rows_in_one_order() {
    let pairs = LEVELS.iter().flat_map(|one| LEVELS.iter().map(move |other| (*one, *other)));
    for (first, second) in pairs {
        let database = Database::migrated().await;
        for (existing, new) in [("a", "b"), ("d", "c")] {
            let mut setup = session(&database, "READ COMMITTED").await;
            assert!(run(&mut setup, &Ask::limit(&[existing], 1.0, 1, 1e6).group()).await.expect("a decision").ok);
            let mut holder = database.pool.begin().await.expect("begin");
            assert!(run(&mut holder, &Ask::limit(&[new], 1.0, 1, 1e6).group()).await.expect("a decision").ok);
            let mut callers = Vec::new();
            for (nth, level) in [first, second].into_iter().enumerate() {
                let mut conn = session(&database, level).await;
                let sql = Ask::limit(&[existing, new], 1.0, 1, 1e6).group();
                callers.push(tokio::spawn(async move { run(&mut conn, &sql).await }));
                until_waiting(&database, nth as i64 + 1).await;
            }
            holder.rollback().await.expect("rollback");
            for caller in callers {
                match caller.await.expect("a task") {
                    Ok(said) => assert!(said.ok),
                    Err(code) => assert_eq!(code, "40001", "{first} and {second}, new row {new}"),
                }
            }
        }
    }
}

/// One call on the buckets a and b.
const FEW: &str = "SELECT rate_limit._take_few(ARRAY['n', 'n'], ARRAY['a', 'b'], ARRAY['token_bucket', 'token_bucket'],
    ARRAY[1e6, 1e6], ARRAY[3155760000000000, 3155760000000000], ARRAY[1e6, 1e6], ARRAY[0, 0]::bigint[], ARRAY[1, 1])";

const TWO: &str = "SELECT rate_limit._take_two_token_buckets('n', 'a', 1e6, 3155760000000000, 1e6, 1, 'n', 'b', 1e6, 3155760000000000,
    1e6, 1)";

/// A batch on the buckets a and b.
const SUMS: &str =
    "SELECT rate_limit._decide_sums(ARRAY['token_bucket'], ARRAY[1e6], ARRAY[3155760000000000], NULL, NULL, NULL,
    ARRAY['n', 'n'], ARRAY['a', 'b'], NULL, ARRAY[1, 1], NULL, NULL, NULL, NULL)";

/// A batch of one lease on a and one on b.
const SLOTS: &str =
    "SELECT rate_limit._take_slots(ARRAY[2], ARRAY[60000000], ARRAY['n', 'n'], ARRAY['a', 'b'], ARRAY[1, 1],
    ARRAY['limit', 'limit'], ARRAY[1, 1], ARRAY[7, 8])";

/// The first call waits for the row of a. Meanwhile a second one inserts the row of b, and then waits for a, too. So the first
/// one must not insert b, whether it has taken tokens from a, or has found that it cannot, and has the lock all the same.
#[tokio::test]
async fn a_call_that_waited_for_a_row_inserts_none() {
    let of_another_kind = Ask { kind: "fixed_window", ..Ask::limit(&["a"], 1.0, 1, 1e6) }.group();
    let emptied = "UPDATE rate_limit.rate_limits SET value = 0 WHERE key = 'a'";
    let locked = "SELECT FROM rate_limit.rate_limits WHERE key = 'a' FOR UPDATE";
    let full = "UPDATE rate_limit.rate_limits SET value = 2 WHERE key = 'a'";
    let cases = [
        (TWO, locked, true),
        (TWO, &of_another_kind, true),
        (FEW, locked, true),
        (FEW, &of_another_kind, true),
        (SUMS, locked, true),
        (SUMS, emptied, false),
        (SLOTS, full, false),
    ];
    for (level, (call, change, b_existed)) in LEVELS.iter().flat_map(|level| cases.map(|case| (*level, case))) {
        let database = Database::migrated().await;
        let mut setup = session(&database, "READ COMMITTED").await;
        let existing: &[&str] = if b_existed { &["a", "b"] } else { &["a"] };
        if call == SLOTS {
            let of_a = SLOTS.replace("ARRAY[7, 8]", "ARRAY[5, NULL]");
            setup.execute(AssertSqlSafe(of_a)).await.expect("a lease");
        } else {
            assert!(run(&mut setup, &Ask::limit(existing, 1.0, 1, 1e6).group()).await.expect("a decision").ok);
        }
        // A session's first calls are slow, and so are not decided in the UPDATEs.
        let mut conn = session(&database, level).await;
        for _ in 0..if b_existed { 5 } else { 0 } {
            conn.execute(call).await.expect("a decision");
        }
        let mut holder = database.pool.begin().await.expect("begin");
        holder.execute(AssertSqlSafe(change)).await.expect("a lock");
        let first = tokio::spawn(async move { conn.execute(call).await.map_err(|error| code(&error)) });
        until_waiting(&database, 1).await;
        database.execute("DELETE FROM rate_limit.rate_limits WHERE key = 'b'").await;
        let mut conn = session(&database, "READ COMMITTED").await;
        let second = tokio::spawn(async move { run(&mut conn, &Ask::limit(&["a", "b"], 1.0, 1, 1e6).group()).await });
        until_waiting(&database, 2).await;
        holder.commit().await.expect("commit");
        if let Err(code) = first.await.expect("a task") {
            assert_eq!(code, "40001", "{level}, {change}, {call}");
        }
        second.await.expect("a task").unwrap_or_else(|code| panic!("{code}: {level}, {change}, {call}"));
        assert_eq!(deadlocks(&database).await, 0, "{level}, {change}, {call}");
    }
}

/// While a caller waits for the row of b, the row of a, which it has found missing, is created, and a transaction that holds it
/// waits for b. So the caller must not wait for a.
#[tokio::test]
async fn a_call_that_found_no_row_does_not_wait_for_it_later() {
    let resets = |op: &'static str| Ask { op, ..Ask::limit(&["a", "b"], 1.0, 1, 1e6) }.group();
    for (call, level) in [resets("reset"), resets("credit")].iter().flat_map(|call| LEVELS.map(|level| (call, level))) {
        let database = Database::migrated().await;
        let mut conn = session(&database, "READ COMMITTED").await;
        assert!(run(&mut conn, &Ask::limit(&["b"], 1.0, 1, 1e6).group()).await.expect("a decision").ok);
        let mut holder = database.pool.begin().await.expect("begin");
        assert!(run(&mut holder, &Ask::limit(&["b"], 1.0, 1, 1e6).group()).await.expect("a decision").ok);
        let mut caller = session(&database, level).await;
        let sql = call.clone();
        let caller = tokio::spawn(async move { run(&mut caller, &sql).await });
        until_waiting(&database, 1).await;
        assert!(run(&mut conn, &Ask::limit(&["a"], 1.0, 1, 1e6).group()).await.expect("a decision").ok);
        let other = tokio::spawn(async move { run(&mut conn, &Ask::limit(&["a", "b"], 1.0, 1, 1e6).group()).await });
        until_waiting(&database, 2).await;
        holder.commit().await.expect("commit");
        if let Err(code) = caller.await.expect("a task") {
            assert_eq!(code, "40001", "{level}, {call}");
        }
        other.await.expect("a task").unwrap_or_else(|code| panic!("{code}: {level}, {call}"));
        assert_eq!(deadlocks(&database).await, 0, "{level}, {call}");
    }
}

/// The row of a is deleted while the UPDATE of the caller waits for it, and is created again while it waits for the row of b. A
/// transaction that holds the new row waits for b. So the caller, which has locked b, must not wait for a.
#[tokio::test]
async fn a_call_that_locked_a_later_row_does_not_wait_for_an_earlier_one() {
    for (call, level) in [FEW, SUMS].iter().flat_map(|call| LEVELS.map(|level| (*call, level))) {
        let database = Database::migrated().await;
        let mut conn = session(&database, "READ COMMITTED").await;
        assert!(run(&mut conn, &Ask::limit(&["a", "b"], 1.0, 1, 1e6).group()).await.expect("a decision").ok);
        let mut caller = session(&database, level).await;
        for _ in 0..5 {
            caller.execute(call).await.expect("a decision");
        }
        let mut deleter = database.pool.begin().await.expect("begin");
        deleter.execute("DELETE FROM rate_limit.rate_limits WHERE key = 'a'").await.expect("a deletion");
        let mut holder = database.pool.begin().await.expect("begin");
        holder.execute("SELECT FROM rate_limit.rate_limits WHERE key = 'b' FOR UPDATE").await.expect("a lock");
        let holder_pid: i32 =
            sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *holder).await.expect("a pid");
        let caller = tokio::spawn(async move { caller.execute(call).await.map_err(|error| code(&error)) });
        until_waiting(&database, 1).await;
        deleter.commit().await.expect("commit");
        // It now waits for b, has failed, or has been decided without b.
        for _ in 0..200 {
            if caller.is_finished() || blocked_by(&database, holder_pid).await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(run(&mut conn, &Ask::limit(&["a"], 1.0, 1, 1e6).group()).await.expect("a decision").ok);
        let waiters = if caller.is_finished() { 1 } else { 2 };
        let other = tokio::spawn(async move { run(&mut conn, &Ask::limit(&["a", "b"], 1.0, 1, 1e6).group()).await });
        until_waiting(&database, waiters).await;
        holder.commit().await.expect("commit");
        if let Err(code) = caller.await.expect("a task") {
            assert_eq!(code, "40001", "{level}, {call}");
        }
        other.await.expect("a task").unwrap_or_else(|code| panic!("{code}: {level}, {call}"));
        assert_eq!(deadlocks(&database).await, 0, "{level}, {call}");
    }
}

/// The limiter's own transactions and callers' transactions at all levels, over few keys, some of which are always new. The
/// defaults lead to this mix: `within` after `pool.begin()`, beside `limiter.limit`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_at_mixed_isolation_levels_never_deadlock() {
    let database = Database::migrated().await;
    let limits = Limits::new()
        .define("bucket", Limit::token_bucket(1e9, CENTURY))
        .and_then(|limits| limits.define("short", Limit::token_bucket(1000, Duration::from_secs(1)).capacity(5)))
        .and_then(|limits| limits.define("window", Limit::sliding_window(1e9, CENTURY)))
        .and_then(|limits| limits.define("fixed", Limit::fixed_window(1e9, CENTURY)))
        .expect("limits");
    let limiter = database.limiter(limits);
    let ends = Instant::now() + Duration::from_secs(4);
    let tasks: Vec<_> = (0..24).map(|nth| tokio::spawn(one_caller(limiter.clone(), nth, ends))).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("a task");
    }
    assert_eq!(deadlocks(&database).await, 0, "after {done} decisions");
    assert!(done > 0);
}

/// Returns how many calls were decided.
async fn one_caller(limiter: Limiter, nth: usize, ends: Instant) -> u32 {
    let (mut done, mut round) = (0, nth);
    let names = ["bucket", "short", "window", "fixed"];
    while Instant::now() < ends {
        round = round.wrapping_mul(1_103_515_245).wrapping_add(12_345) % (1 << 31);
        let size = 1 + round % 4;
        let items: Vec<Item> =
            (0..size).map(|n| Item::new(names[(round / 7 + n) % 4], ((round / 11 + n * n) % 5).to_string())).collect();
        if nth % 4 == 3 {
            done += u32::from(limiter.limit(items).await.is_ok());
            let gone: Vec<Item> = (0..4).map(|n| Item::new(names[n], (round / 13 % 5).to_string())).collect();
            let _ = limiter.reset(gone).await;
            continue;
        }
        let mut tx = limiter.pool().begin().await.expect("begin");
        let level = AssertSqlSafe(format!("SET TRANSACTION ISOLATION LEVEL {}", LEVELS[nth % 4]));
        sqlx::raw_sql(level).execute(&mut *tx).await.expect("a level");
        if limiter.within(&mut tx).limit(items).await.is_ok() {
            done += u32::from(tx.commit().await.is_ok());
        }
    }
    done
}
