//! The meaning of each failure, by error, by the point at which it occurs, and by engine, for every way in which a call runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Call, Connections, Engine, Error, Item, Limit, Limiter, Limits};

use crate::support::gate::CENTURY;
use crate::support::payloads::payload;
use crate::support::proxy::{Fault, Point, Proxy, Way};
use crate::support::{Database, limiter_at};

const CAPACITY: u32 = 5;

/// The fault.
#[derive(Clone, Copy, Debug)]
enum What {
    Says(&'static str),
    /// The connection is closed before the server receives the request.
    Drop,
    /// The connection is closed after the server has carried out the request.
    Cut,
}

/// The meaning of a fault for the call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Means {
    /// Rolled back because of a concurrent transaction.
    Conflict,
    /// The connection is of no use, and nothing was committed.
    Lost,
    /// It may have been committed.
    Unknown,
    /// It fails on every attempt.
    Refused,
    /// The limiter's objects do not exist.
    Missing,
    /// A pooler does not support prepared statements.
    Pooler,
    /// It does not occur on this engine.
    Never,
}

use Means::{Conflict, Lost, Missing, Never, Pooler, Refused, Unknown};
use Point::{Begin, Commit, Connect, Prepare, Probe, Statement};
use What::{Cut, Drop as Dropped, Says};

/// A fault, the point at which it occurs, and its meaning on PostgreSQL and on YugabyteDB.
const TABLE: &[(What, Point, Means, Means)] = &[
    (Says("full"), Connect, Lost, Lost),
    (Says("starting up"), Connect, Lost, Lost),
    (Says("killed"), Connect, Lost, Lost),
    (Says("crashed"), Connect, Lost, Lost),
    (Says("unknown session"), Connect, Lost, Lost),
    (Says("connection failure"), Connect, Lost, Lost),
    (Says("timed out"), Connect, Refused, Lost),
    (Says("internal"), Connect, Refused, Lost),
    (Dropped, Connect, Lost, Lost),
    (Says("full"), Begin, Lost, Lost),
    (Says("starting up"), Begin, Lost, Lost),
    (Says("killed"), Begin, Lost, Lost),
    (Says("crashed"), Begin, Lost, Lost),
    (Says("unknown session"), Begin, Lost, Lost),
    (Says("connection failure"), Begin, Lost, Lost),
    (Says("serializable on a standby"), Connect, Lost, Lost),
    (Says("serializable on a standby"), Begin, Lost, Lost),
    (Says("serializable snapshot on a standby"), Begin, Lost, Lost),
    (Says("serializable snapshot on a standby"), Statement, Lost, Lost),
    (Says("timed out"), Begin, Refused, Lost),
    (Says("no leader"), Begin, Refused, Lost),
    (Dropped, Begin, Lost, Lost),
    (Cut, Begin, Lost, Lost),
    (Says("prepared twice"), Prepare, Pooler, Pooler),
    (Says("catalog version"), Prepare, Refused, Conflict),
    (Says("killed"), Prepare, Lost, Lost),
    (Says("no table"), Prepare, Missing, Missing),
    (Dropped, Prepare, Lost, Lost),
    (Says("conflict"), Statement, Conflict, Conflict),
    (Says("old conflict"), Statement, Conflict, Conflict),
    (Says("expired"), Statement, Conflict, Conflict),
    (Says("expired heartbeat"), Statement, Conflict, Conflict),
    (Says("aborted"), Statement, Conflict, Conflict),
    (Says("read restart"), Statement, Conflict, Conflict),
    (Says("old read restart"), Statement, Conflict, Conflict),
    (Says("leaked conflict"), Statement, Never, Conflict),
    (Says("deadlock"), Statement, Conflict, Conflict),
    (Says("old deadlock"), Statement, Refused, Conflict),
    (Says("schema version"), Statement, Conflict, Conflict),
    (Says("old schema version"), Statement, Refused, Conflict),
    (Says("catalog version"), Statement, Refused, Conflict),
    (Says("timed out"), Statement, Refused, Conflict),
    (Says("network error"), Statement, Refused, Conflict),
    (Says("no leader"), Statement, Refused, Conflict),
    (Says("internal"), Statement, Refused, Refused),
    (Says("snapshot too old"), Statement, Never, Conflict),
    (Says("killed"), Statement, Lost, Lost),
    (Says("crashed"), Statement, Lost, Lost),
    (Says("unknown session"), Statement, Lost, Lost),
    (Says("connection failure"), Statement, Lost, Lost),
    (Says("read only"), Statement, Lost, Lost),
    (Says("duplicate"), Statement, Refused, Refused),
    (Says("no advisory locks"), Statement, Refused, Refused),
    (Says("ambiguous"), Statement, Unknown, Unknown),
    (Says("cockroach"), Statement, Conflict, Never),
    (Says("prepared twice"), Statement, Pooler, Pooler),
    (Says("not prepared"), Statement, Pooler, Pooler),
    (Says("no portal"), Statement, Pooler, Pooler),
    (Says("pivot"), Statement, Conflict, Conflict),
    (Says("division"), Statement, Refused, Refused),
    (Says("no table"), Statement, Missing, Missing),
    (Says("no privilege"), Statement, Refused, Refused),
    (Dropped, Statement, Lost, Lost),
    (Cut, Statement, Lost, Lost),
    (Says("pivot"), Probe, Conflict, Conflict),
    (Says("expired"), Probe, Conflict, Conflict),
    (Says("killed"), Probe, Lost, Lost),
    (Says("timed out"), Probe, Refused, Conflict),
    (Dropped, Probe, Lost, Lost),
    (Says("conflict"), Commit, Conflict, Conflict),
    (Says("pivot"), Commit, Conflict, Conflict),
    (Says("expired"), Commit, Conflict, Unknown),
    (Says("expired heartbeat"), Commit, Conflict, Unknown),
    (Says("aborted"), Commit, Conflict, Unknown),
    (Says("expired commit"), Commit, Conflict, Unknown),
    (Says("leaked conflict"), Commit, Never, Unknown),
    (Says("deadlock"), Commit, Conflict, Never),
    (Says("old deadlock"), Commit, Refused, Unknown),
    (Says("timed out"), Commit, Refused, Unknown),
    (Says("network error"), Commit, Refused, Unknown),
    (Says("internal"), Commit, Refused, Unknown),
    (Says("killed"), Commit, Unknown, Unknown),
    (Says("crashed"), Commit, Unknown, Unknown),
    (Says("unknown session"), Commit, Unknown, Unknown),
    (Says("connection failure"), Commit, Unknown, Unknown),
    (Says("resolution unknown"), Commit, Unknown, Unknown),
    (Says("ambiguous"), Commit, Unknown, Unknown),
    (Says("duplicate"), Commit, Refused, Refused),
    (Says("division"), Commit, Refused, Refused),
    (Says("no privilege"), Commit, Refused, Refused),
    (Says("cockroach"), Commit, Conflict, Never),
    (Dropped, Commit, Unknown, Unknown),
    (Cut, Commit, Unknown, Unknown),
];

/// How a call runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Runs {
    /// `limit` over the limiter's own connections: on PostgreSQL, one statement that is a whole transaction.
    Own,
    /// `limit` over the pool: BEGIN, the statement, COMMIT.
    Pool,
    /// `limit` with an idempotency key.
    Once,
    /// Within a unit of work.
    Unit,
    /// Within the caller's transaction.
    Within,
}

impl Runs {
    const ALL: [Self; 5] = [Self::Own, Self::Pool, Self::Once, Self::Unit, Self::Within];

    /// Whether the limiter handles a fault at this point.
    fn passes(self, point: Point, engine: Engine) -> bool {
        match point {
            Connect => self != Self::Within,
            Begin => self != Self::Within && (self, engine) != (Self::Own, Engine::PostgreSql),
            Prepare | Statement => true,
            Commit => self != Self::Within,
            Probe => self == Self::Unit,
            Point::Flush | Point::Claim | Point::AdvisoryLock | Point::Version => false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Limiter(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

fn limiter(url: &str, runs: Runs, engine: Engine) -> Limiter {
    let limit = || Limit::token_bucket(CAPACITY, CENTURY);
    let limits = Limits::new().define("a", limit()).and_then(|limits| limits.define("b", limit())).expect("limits");
    limiter_at(url, limits, |config| {
        config.engine = Some(engine);
        config.connections = if runs == Runs::Pool { Connections::Pool } else { Connections::Own };
    })
}

const ORDER: &str = "INSERT INTO orders (key) VALUES ($1)";

async fn in_unit(limiter: &Limiter, items: &[Item], key: &str) -> Result<bool, AppError> {
    limiter
        .transaction(async |tx| {
            let allowed = limiter.within(&mut *tx).limit(items.to_vec()).await?.is_allowed();
            sqlx::query(ORDER).bind(key).execute(&mut *tx).await?;
            Ok::<_, AppError>(allowed)
        })
        .await
}

async fn within(limiter: &Limiter, items: &[Item], key: &str) -> Result<bool, AppError> {
    let mut tx = limiter.pool().begin().await?;
    let allowed = limiter.within(&mut tx).limit(items.to_vec()).await?.is_allowed();
    sqlx::query(ORDER).bind(key).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(allowed)
}

async fn call(limiter: &Limiter, runs: Runs, items: &[Item], key: &str) -> Result<bool, Error> {
    let result = match runs {
        Runs::Once => {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let id = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
            let call = Call::from(items.to_vec()).idempotency_key(id);
            return limiter.limit(call).await.map(|decision| decision.is_allowed());
        }
        Runs::Own | Runs::Pool => return limiter.limit(items.to_vec()).await.map(|decision| decision.is_allowed()),
        Runs::Unit => in_unit(limiter, items, key).await,
        Runs::Within => within(limiter, items, key).await,
    };
    result.map_err(|error| match error {
        AppError::Limiter(error) => error,
        AppError::Database(error) => panic!("of the caller's own: {error}"),
    })
}

/// The books of a key, read without the proxy: the tokens taken of each limit, and the number of orders.
async fn books(direct: &PgPool, key: &str) -> ([f64; 2], i64) {
    let left = "SELECT coalesce((SELECT value FROM rate_limit.rate_limits WHERE name = $1 AND key = $2), $3)";
    let mut spent = [0.0; 2];
    for (spent, name) in spent.iter_mut().zip(["a", "b"]) {
        let left: f64 = sqlx::query_scalar(left)
            .bind(name)
            .bind(key)
            .bind(f64::from(CAPACITY))
            .fetch_one(direct)
            .await
            .expect("it");
        *spent = (f64::from(CAPACITY) - left).round();
    }
    let orders = sqlx::query_scalar("SELECT count(*) FROM orders WHERE key = $1").bind(key).fetch_one(direct).await;
    (spent, orders.expect("orders"))
}

/// Waits until the connections of this name are idle.
async fn settled(direct: &PgPool, name: &str) {
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1
        AND state <> 'idle'";
    while sqlx::query_scalar::<_, i64>(busy).bind(name).fetch_one(direct).await.expect("the backends") > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn in_time<T>(future: impl Future<Output = T>, told: &str) -> T {
    let most = Duration::from_secs(60); // Twice the deadline.
    tokio::time::timeout(most, future).await.unwrap_or_else(|_| panic!("no end in {most:?}: {told}"))
}

/// One fault in one call.
struct Case {
    way: Way,
    point: Point,
    means: Means,
    runs: Runs,
    engine: Engine,
    grouped: bool,
}

impl Case {
    fn assert_result(&self, result: &Result<bool, Error>, retries: u64, told: &str) {
        // A call with an idempotency key is charged once, however often it is made.
        let again = matches!(self.means, Conflict | Lost) || (self.runs == Runs::Once && self.means == Unknown);
        if self.runs != Runs::Within && again {
            assert!(matches!(result, Ok(true)), "not retried: {told}");
            // A pool also retries to connect.
            let expected = if self.point == Connect { 0..=1 } else { 1..=1 };
            assert!(expected.contains(&retries), "retried {retries} times: {told}");
            return;
        }
        let error = result.as_ref().expect_err(told);
        let is_right = match self.means {
            Conflict => matches!(error, Error::Conflict { .. }),
            Lost => matches!(error, Error::Unavailable { .. }),
            Unknown => matches!(error, Error::OutcomeUnknown { .. }),
            Refused => matches!(error, Error::Database { .. }),
            Missing => matches!(error, Error::SchemaMissing { .. }),
            Pooler => matches!(error, Error::Pooler { .. }),
            Never => false,
        };
        assert!(is_right, "{told}");
        assert_eq!(error.is_retryable(), matches!(self.means, Conflict | Lost), "is_retryable: {told}");
        assert_eq!(retries, 0, "retried: {told}");
    }

    async fn run(&self, database: &Database, nth: usize) {
        let key = format!("{:?} {nth} {}", self.engine, self.grouped);
        let mut items = vec![Item::new("a", key.as_str())];
        if self.grouped {
            items.push(Item::new("b", key.as_str()));
        }
        let proxy = Proxy::before(&database.url).await;
        let name = format!("case{nth}");
        let limiter = limiter(&format!("{}?application_name={name}", proxy.url), self.runs, self.engine);
        proxy.put(Fault::once(self.point, self.way));
        let case = format!("{:?}: {:?} at {:?} in {:?}", self.engine, self.way, self.point, self.runs);
        let result = in_time(call(&limiter, self.runs, &items, &key), &case).await;
        let retries = limiter.retries();
        in_time(settled(&database.pool, &name), &case).await;
        let (spent, orders) = books(&database.pool, &key).await;
        let told = format!(
            "{case}: expected {:?}, got {result:?}; {spent:?} spent, {orders} orders; {:?}",
            self.means,
            proxy.seen()
        );
        assert_eq!(proxy.count(|seen| &seen.faults), 1, "the fault did not occur: {told}");
        self.assert_result(&result, retries, &told);
        let admitted = f64::from(u8::from(matches!(result, Ok(true))));
        let is_unknown = matches!(result, Err(Error::OutcomeUnknown { .. }));
        let is_done = matches!(self.way, Way::After(_) | Way::Cut) && is_unknown;
        assert_eq!(spent[0], if is_done { 1.0 } else { admitted }, "{told}");
        assert_eq!(spent[1], if self.grouped { spent[0] } else { 0.0 }, "charged in part: {told}");
        if matches!(self.runs, Runs::Unit | Runs::Within) {
            assert_eq!(orders as f64, spent[0], "the token and the order were not committed together: {told}");
        }
        // A COMMIT is sent once, unless the first one is known to have failed.
        let commits = proxy.count(|seen| &seen.commits);
        let undone = self.point == Commit && (self.means == Conflict || self.runs == Runs::Once);
        assert!(commits <= 1 + u32::from(undone), "{told}");
        // The next call works.
        assert!(call(&limiter, self.runs, &items, &key).await.expect(&told), "{told}");
        let (after, _) = books(&database.pool, &key).await;
        assert_eq!(after[0], spent[0] + 1.0, "{told}");
    }
}

/// The meaning of a row of the table for a call that runs in this way.
fn means((what, point, on_postgres, on_yugabyte): (What, Point, Means, Means), engine: Engine, runs: Runs) -> Means {
    let means = if engine == Engine::PostgreSql { on_postgres } else { on_yugabyte };
    let in_middle = matches!(point, Statement | Prepare);
    let silent = matches!(what, Dropped | Cut);
    match runs {
        _ if means == Never => Never,
        // The call sends a whole transaction in one message, so it does not know how far the server got.
        Runs::Own if engine == Engine::PostgreSql && in_middle && silent => Unknown,
        // The caller's connection may be of either engine, so the worse meaning applies. Nothing is committed in the middle
        // of a transaction, so this does no harm.
        Runs::Within if in_middle && on_yugabyte != Never => on_yugabyte,
        Runs::Unit if in_middle && engine == Engine::PostgreSql && on_yugabyte != on_postgres => Never,
        _ => means,
    }
}

async fn run_table(engine: Engine) {
    let mut cases = Vec::new();
    for row @ (what, point, ..) in TABLE.iter().copied() {
        for runs in Runs::ALL.into_iter().filter(|runs| runs.passes(point, engine)) {
            let means = means(row, engine, runs);
            let ways = match what {
                Says(_) if means == Never => vec![],
                // In the middle of a transaction, it makes no difference.
                Says(name) if means == Unknown && point == Commit => {
                    vec![Way::Before(payload(name)), Way::After(payload(name))]
                }
                Says(name) => vec![Way::Before(payload(name))],
                Dropped => vec![Way::Drop],
                Cut => vec![Way::Cut],
            };
            let grouped = cases.len() % 2 == 0;
            cases.extend(ways.into_iter().map(|way| Case { way, point, means, runs, engine, grouped }));
        }
    }
    assert!(cases.len() > 150, "only {} cases", cases.len());
    // Each lane has its own database, to avoid real conflicts.
    let lanes = (0..4).map(async |lane| {
        let database = Database::migrated().await;
        database.execute("CREATE TABLE orders (key text)").await;
        for (nth, case) in cases.iter().enumerate().filter(|(nth, _)| nth % 4 == lane) {
            case.run(&database, nth).await;
        }
    });
    join_all(lanes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn every_failure_on_postgresql_returns_the_right_result() {
    run_table(Engine::PostgreSql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn every_failure_on_yugabytedb_returns_the_right_result() {
    run_table(Engine::Yugabyte).await;
}
