//! Sharded buckets that several sessions charge, reset, prune and reshard concurrently.

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, Executor, PgConnection};

use crate::shards_contended::{Ask, LEVELS, all_rows_or_none, code, peek, run, session};
use crate::support::Database;

/// Pseudorandom numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % sides).expect("small")
    }
}

/// The tokens that a session has taken, by key, and the SQLSTATEs of its errors.
#[derive(Default)]
struct Done {
    taken: [f64; 3],
    met: Vec<String>,
}

const KEYS: [&str; 3] = ["a", "b", "c"];

/// One session's work: every operation, committed, rolled back, or ended with its backend.
async fn work(url: String, level: &'static str, kind: &'static str, shards: i32, seed: u64, calls: usize) -> Done {
    let settings = format!("SET default_transaction_isolation = '{level}'; SET deadlock_timeout = '100ms'");
    let connect = async || {
        let mut conn = PgConnection::connect(&url).await.expect("a connection");
        sqlx::raw_sql(AssertSqlSafe(settings.clone())).execute(&mut conn).await.expect("settings");
        conn
    };
    let mut conn = connect().await;
    let (mut dice, mut done) = (Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1), Done::default());
    for _ in 0..20 {
        dice.roll(2);
    }
    for _ in 0..calls {
        let count = [1.0, 1.0, 1.0, 2.0, 5.0, 30.0, 120.0][dice.roll(7)];
        let (first, size) = (dice.roll(3), dice.roll(3) + 1);
        let mut keys: Vec<&str> = (0..size).map(|nth| KEYS[(first + nth) % 3]).collect();
        let reserves = kind != "sliding_window" && dice.roll(8) == 0;
        let op = ["limit", "limit", "limit", "limit", "limit", "limit", "charge", "credit", "check"][dice.roll(9)];
        if op == "credit" {
            keys.truncate(1);
        }
        let max_reserved = (reserves && op == "limit").then_some(200.0);
        let ask = Ask { kind, op, max_reserved, ..Ask::limit(&keys, count, shards, 1000.0) };
        let result: Result<bool, String> = async {
            let mut tx = conn.begin().await.map_err(|error| code(&error))?;
            let said = run(&mut tx, &ask.group()).await?;
            match dice.roll(12) {
                0 => tx.rollback().await.map_err(|error| code(&error)).map(|()| false),
                1 => {
                    let died = tx.execute("SELECT pg_terminate_backend(pg_backend_pid())").await;
                    Err(died.map_or_else(|error| code(&error), |_| "alive".to_owned()))
                }
                _ => tx.commit().await.map_err(|error| code(&error)).map(|()| said.ok && op != "check"),
            }
        }
        .await;
        match result {
            Ok(false) => {}
            Ok(true) => {
                for key in keys {
                    let place = KEYS.iter().position(|other| *other == key).expect("a key");
                    done.taken[place] += if op == "credit" { -count } else { count };
                }
            }
            Err(code) if code == "57P01" => conn = connect().await,
            Err(code) => done.met.push(code),
        }
    }
    done
}

/// Runs the sessions concurrently. Asserts that the tokens taken and left add up to all tokens. Returns the SQLSTATEs of errors.
async fn conserved(level: &'static str, kind: &'static str, shards: [i32; 3], calls: usize) -> Vec<String> {
    let database = Database::migrated().await;
    let mut conn = session(&database, "READ COMMITTED").await;
    let some = Ask { kind, op: "charge", ..Ask::limit(&KEYS, 700.0, shards[0], 1000.0) };
    run(&mut conn, &some.group()).await.expect("a charge");
    let tasks: Vec<_> = (0..9)
        .map(|nth| tokio::spawn(work(database.url.clone(), level, kind, shards[nth % 3], nth as u64 + 1, calls)))
        .collect();
    let (mut taken, mut met) = ([700.0; 3], Vec::new());
    for task in tasks {
        let done = task.await.expect("a task");
        taken.iter_mut().zip(done.taken).for_each(|(sum, more)| *sum += more);
        met.extend(done.met);
    }
    for (key, taken) in KEYS.iter().zip(taken) {
        let left = peek(&database, kind, key, shards[1], 1000.0).await;
        assert!((1000.0 - taken - left).abs() < 1e-2, "{level}, {kind}, {shards:?}: {key}: {taken} taken, {left} left");
        // Every token that is left can be taken.
        if left >= 1.0 {
            let keys = [*key];
            let rest = Ask { kind, ..Ask::limit(&keys, left.floor(), shards[2], 1000.0) };
            assert!(run(&mut conn, &rest.group()).await.expect("a decision").ok, "{left} were left");
        }
    }
    all_rows_or_none(&database).await;
    met
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: run tests/long"]
async fn tokens_are_conserved_whatever_is_rolled_back() {
    for (level, kind, shards) in [
        ("READ COMMITTED", "token_bucket", [8, 8, 8]),
        ("READ COMMITTED", "fixed_window", [8, 1, 4]),
        ("REPEATABLE READ", "token_bucket", [8, 4, 1]),
        ("SERIALIZABLE", "fixed_window", [7, 7, 7]),
        ("SERIALIZABLE", "sliding_window", [8, 4, 1]),
    ] {
        for code in conserved(level, kind, shards, 30).await {
            assert_eq!(code, "40001", "{level}, {kind}");
        }
    }
}

/// If a bucket's number of shards changes between the passes, the row that was drawn may no longer exist.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: run tests/long"]
async fn under_read_committed_groups_whose_shards_change_never_deadlock() {
    for code in conserved("READ COMMITTED", "sliding_window", [8, 4, 1], 150).await {
        assert_ne!(code, "40P01");
    }
}

/// Buckets that are full again at once are constantly deleted by prunes and resets: all of their rows exist, or none.
#[tokio::test(flavor = "multi_thread")]
async fn prunes_and_resets_leave_all_rows_or_none() {
    for level in LEVELS {
        let database = Database::migrated().await;
        let tasks: Vec<_> = (0..6_u64)
            .map(|nth| {
                let url = database.url.clone();
                tokio::spawn(async move {
                    let mut conn = PgConnection::connect(&url).await.expect("a connection");
                    let level = if nth < 4 { level } else { "READ COMMITTED" };
                    let sql = format!("SET default_transaction_isolation = '{level}'; SET deadlock_timeout = '100ms'");
                    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.expect("settings");
                    let (mut dice, mut met) = (Dice(nth * 7919 + 13), Vec::new());
                    for _ in 0..120 {
                        let count = [1, 1, 7, 40][dice.roll(4)];
                        let shards = if nth == 3 { 2 } else { 4 };
                        let sql = match nth {
                            4 => "SELECT pruned FROM rate_limit.prune()".to_owned(),
                            5 => format!("SELECT rate_limit.reset('n', '{}')", KEYS[dice.roll(3)]),
                            _ => format!(
                                "SELECT ok FROM rate_limit.limit_with('n', '{}', kind => 'token_bucket', rate => 40, period => '1 ms',
                                   count => {count}, shards => {shards})",
                                KEYS[dice.roll(3)]
                            ),
                        };
                        if let Err(error) = conn.execute(AssertSqlSafe(sql)).await {
                            met.push(code(&error));
                        }
                    }
                    met
                })
            })
            .collect();
        for task in tasks {
            for code in task.await.expect("a task") {
                assert_eq!(code, "40001", "{level}");
            }
        }
        all_rows_or_none(&database).await;
    }
}
