//! The combining engine when connections, runtimes or poolers fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Connections, Durability, Error, Item, Limit, Limiter, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::support::Database;
use crate::support::gate::{CENTURY, backends, lazy_pool, limiter};

const CAPACITY: u32 = 3_000;

fn limits() -> Limits {
    Limits::new().define("a", Limit::token_bucket(CAPACITY, CENTURY)).expect("a limit")
}

async fn left(limiter: &Limiter, key: &str) -> f64 {
    limiter.peek(("a", key)).await.expect("a balance").remaining().round()
}

/// Ends backends of this name, one at random or all, and waits until they are gone.
async fn kill(database: &Database, name: &str, most: i64) -> u64 {
    let chosen = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1
        ORDER BY random() LIMIT $2";
    let pids: Vec<i32> =
        sqlx::query_scalar(chosen).bind(name).bind(most).fetch_all(&database.pool).await.expect("the backends");
    let end = "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM unnest($1) AS pid) AS ended";
    sqlx::query(end).bind(&pids).execute(&database.pool).await.expect("kill");
    let left = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1)";
    while sqlx::query_scalar::<_, i64>(left).bind(&pids).fetch_one(&database.pool).await.expect("the backends") > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    pids.len() as u64
}

/// Calls until `stop` is set, and returns how often it was admitted.
async fn hammer(limiter: Limiter, nth: u32, stop: Arc<AtomicBool>) -> u32 {
    let mut admitted = 0;
    while !stop.load(Ordering::Relaxed) {
        let items = if nth.is_multiple_of(4) {
            vec![Item::new("a", "k"), Item::new("a", "l")]
        } else {
            vec![Item::new("a", "k")]
        };
        match limiter.limit(items).await {
            Ok(decision) => admitted += u32::from(decision.is_allowed()),
            Err(Error::OutcomeUnknown { .. } | Error::Unavailable { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(u64::from(nth % 7))).await;
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_lost_connections_are_replaced_and_nothing_is_over_admitted() {
    let database = Database::migrated().await;
    let pool = lazy_pool(&database, "limited");
    let limiter = limiter(&pool, limits(), |_| ());
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..32).map(|nth| tokio::spawn(hammer(limiter.clone(), nth, stop.clone()))).collect();
    let mut killed = 0;
    while killed < 50 {
        killed += kill(&database, "limited", 1).await;
        tokio::time::sleep(Duration::from_millis(killed % 13)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("a task");
    }
    let after = limiter.limit(("a", "m")).await.expect("it recovers automatically");
    assert!(after.is_allowed() && admitted > 0);
    let taken = f64::from(CAPACITY) - left(&limiter, "k").await;
    assert!(admitted <= CAPACITY && taken >= f64::from(admitted), "{admitted} were admitted, {taken} taken");
}

/// At once, and after the connection was idle for a while.
#[tokio::test]
async fn a_lost_idle_connection_is_noticed() {
    let database = Database::migrated().await;
    let pool = lazy_pool(&database, "limited");
    let limiter = limiter(&pool, limits(), |config| config.lanes = 1);
    for pause in [0, 1_300, 0, 30, 0] {
        assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
        assert_eq!(kill(&database, "limited", 9).await, 1);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    assert_eq!(left(&limiter, "k").await, f64::from(CAPACITY - 6));
}

/// A trigger records the setting that each of the limiter's writes runs with.
#[tokio::test]
async fn relaxed_durability_applies_to_the_limiters_own_transactions_only() {
    let database = Database::migrated().await;
    database
        .execute(
            "CREATE TABLE seen (setting text, key text);
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               INSERT INTO public.seen VALUES (current_setting('synchronous_commit'), NEW.key);
               RETURN NEW;
             END $$;
             CREATE TRIGGER see BEFORE INSERT OR UPDATE ON rate_limit.rate_limits FOR EACH ROW EXECUTE FUNCTION see();
             DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = on', current_database()); END $$",
        )
        .await;
    for connections in [Connections::Own, Connections::Pool] {
        for (durability, expected) in [(Durability::Full, "on"), (Durability::Relaxed, "off")] {
            let pool = Database::pool(&database.url, 1).await;
            let limiter = limiter(&pool, limits(), |config| {
                (config.connections, config.durability) = (connections, durability);
            });
            limiter.charge(("a", "own")).await.expect("a row");
            let _ = limiter.limit([Item::new("a", "own"), Item::new("a", "own 2")]).await.expect("a decision");
            let mut tx = pool.begin().await.expect("begin");
            let _ = limiter.within(&mut tx).limit(("a", "within")).await.expect("a decision");
            tx.commit().await.expect("commit");
            let seen: Vec<(String, String)> = sqlx::query_as("DELETE FROM seen RETURNING setting, key")
                .fetch_all(&database.pool)
                .await
                .expect("seen");
            let context = format!("{connections:?} {durability:?}: {seen:?}");
            let written = |key: &str| seen.iter().any(|(_, seen)| seen == key);
            assert!(["own", "own 2", "within"].into_iter().all(written), "{context}");
            for (setting, key) in &seen {
                assert_eq!(setting, if key == "within" { "on" } else { expected }, "{context}");
            }
            let now: String =
                sqlx::query_scalar("SELECT current_setting('synchronous_commit')").fetch_one(&pool).await.expect("it");
            assert_eq!(now, "on", "{context}");
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// In its own runtime, so that the test's pool outlives the runtimes that the limiter is used from.
fn shared_limiter(home: &Runtime) -> (Database, Limiter) {
    let database = home.block_on(Database::migrated());
    let limiter = home.block_on(async {
        limiter(&lazy_pool(&database, "limited"), limits(), |config| {
            (config.lanes, config.retry.deadline) = (1, Duration::from_secs(4));
        })
    });
    (database, limiter)
}

/// Makes one call. The limiter's deadline is 4 s, so no answer in 20 s means a dead lane.
fn ask(runtime: &Runtime, limiter: &Limiter) -> Result<bool, Error> {
    let call = async { tokio::time::timeout(Duration::from_secs(20), limiter.limit(("a", "k"))).await };
    let said = runtime.block_on(call).expect("no answer in 20 s: the lane is dead");
    said.map(|decision| decision.is_allowed())
}

/// The first two calls may return an error that reports the failure; all later ones return decisions.
fn works_again(runtime: &Runtime, limiter: &Limiter) {
    // One error for the driver and one for its connection: they may end one after the other.
    for _ in 0..2 {
        match ask(runtime, limiter) {
            Ok(allowed) => assert!(allowed),
            Err(Error::OutcomeUnknown { .. } | Error::Unavailable { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    for _ in 0..3 {
        assert!(ask(runtime, limiter).expect("a decision"));
    }
}

#[test]
fn the_limiter_outlives_the_runtime_that_it_was_used_from() {
    let home = runtime();
    let (_database, limiter) = shared_limiter(&home);
    for _ in 0..3 {
        let passing = runtime();
        works_again(&passing, &limiter);
        drop(passing);
    }
    let passing = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    works_again(&passing, &limiter);
    passing.shutdown_background();
    works_again(&runtime(), &limiter);
}

/// The runtime ends before the driver has begun.
#[test]
fn a_driver_that_never_ran_leaves_no_dead_lane() {
    let home = runtime();
    let (_database, limiter) = shared_limiter(&home);
    runtime().block_on(async {
        assert!(limiter.limit(("a", "k")).now_or_never().is_none());
    });
    works_again(&runtime(), &limiter);
}

/// The driver's runtime still exists, but no thread runs it.
#[test]
fn a_runtime_that_is_not_run_does_not_block_calls_from_others() {
    let home = runtime();
    let (_database, limiter) = shared_limiter(&home);
    let still = runtime();
    assert!(ask(&still, &limiter).expect("a decision"));
    let _ = ask(&home, &limiter);
    drop(still);
    works_again(&home, &limiter);
}

/// Calls on a runtime that goes on return what happened to them, not that the limiter is closed.
#[test]
fn calls_waiting_in_other_runtimes_are_answered_when_a_runtime_ends() {
    let home = runtime();
    let (_database, limiter) = shared_limiter(&home);
    let ends = runtime();
    // This call drives the lane; it is begun, and then not polled any more.
    ends.block_on(async {
        let call = limiter.limit(("a", "k"));
        tokio::pin!(call);
        assert!(futures_util::poll!(call.as_mut()).is_pending());
        tokio::task::yield_now().await;
    });
    home.block_on(async {
        let waiting: Vec<_> = (0..10).map(|_| Box::pin(limiter.limit(("a", "k")))).collect();
        let mut waiting = futures_util::future::join_all(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        tokio::task::spawn_blocking(move || drop(ends)).await.expect("the end of the other runtime");
        let said = tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("answers");
        for said in said {
            assert!(!matches!(said, Err(Error::Closed)), "nothing was closed");
        }
    });
    works_again(&home, &limiter);
}

/// A pooler in front of the test's server that rejects start-up settings. It counts the rejected connections, and when
/// notified, it drops all connections without a message.
async fn pooler(database: &Database, code: &'static str) -> (String, Arc<AtomicU32>, Arc<Notify>) {
    let address = database.url.split_once('@').and_then(|(_, rest)| rest.split_once('/')).expect("a URL").0.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let refused = Arc::new(AtomicU32::new(0));
    let (count, cut) = (refused.clone(), Arc::new(Notify::new()));
    let cutter = cut.clone();
    let url = database.url.replacen(&address, &format!("127.0.0.1:{port}"), 1);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let forward = forward(client, address.clone(), count.clone(), code);
            let cut = cutter.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = forward => {}
                    () = cut.notified() => {}
                }
            });
        }
    });
    (url, refused, cut)
}

/// The first message of a TLS client, after its length.
const SSL_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();

async fn forward(mut client: TcpStream, address: String, refused: Arc<AtomicU32>, code: &'static str) {
    let mut length = [0; 4];
    client.read_exact(&mut length).await.expect("a start-up message");
    let mut startup = vec![0; u32::from_be_bytes(length) as usize - 4];
    client.read_exact(&mut startup).await.expect("a start-up message");
    if startup == SSL_REQUEST {
        client.write_all(b"N").await.expect("an answer");
        client.read_exact(&mut length).await.expect("a start-up message");
        startup = vec![0; u32::from_be_bytes(length) as usize - 4];
        client.read_exact(&mut startup).await.expect("a start-up message");
    }
    if !code.is_empty() && String::from_utf8_lossy(&startup).contains("default_transaction_isolation") {
        refused.fetch_add(1, Ordering::Relaxed);
        let fields = format!("SFATAL\0VFATAL\0C{code}\0Munsupported startup parameter: options\0\0");
        let mut message = vec![b'E'];
        message.extend((fields.len() as u32 + 4).to_be_bytes());
        message.extend(fields.into_bytes());
        let _ = client.write_all(&message).await;
        return;
    }
    let mut server = TcpStream::connect(address).await.expect("the server");
    server.write_all(&length).await.expect("written");
    server.write_all(&startup).await.expect("written");
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

#[tokio::test]
async fn calls_use_the_pool_behind_a_pooler_that_rejects_settings() {
    let database = Database::migrated().await;
    let (url, refused, _) = pooler(&database, "08P01").await;
    let pool = Database::pool(&url, 3).await;
    let limiter = limiter(&pool, limits(), |config| config.lanes = 2);
    for _ in 0..4 {
        let calls = (0..20).map(|nth| limiter.limit([Item::new("a", "k"), Item::new("a", format!("{nth}"))]));
        for said in futures_util::future::join_all(calls).await {
            assert!(said.expect("a decision").is_allowed());
        }
    }
    assert_eq!(left(&limiter, "k").await, f64::from(CAPACITY - 80));
    assert!((1..=2).contains(&refused.load(Ordering::Relaxed)), "{refused:?}: at most once for each lane");
}

/// A connection that is rejected for another reason is an error. The limiter does not give up its own connections for good.
#[tokio::test]
async fn a_full_server_is_not_mistaken_for_a_pooler() {
    let database = Database::migrated().await;
    let (url, refused, _) = pooler(&database, "53300").await;
    let pool: PgPool = Database::pool(&url, 3).await;
    let limiter = limiter(&pool, limits(), |config| {
        config.retry.max_attempts = 3;
    });
    let error = limiter.limit(("a", "k")).await.expect_err("no connection");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(refused.load(Ordering::Relaxed), 3);
    assert_eq!(backends(&database, "limited").await, 0);
}

/// A connection that was lost without a message is noticed before a call is sent over it. The call's outcome would be unknown.
#[tokio::test]
async fn a_silently_cut_idle_connection_is_noticed() {
    let database = Database::migrated().await;
    let (url, _, cut) = pooler(&database, "").await;
    let pool = Database::pool(&url, 3).await;
    let limiter = limiter(&pool, limits(), |config| config.lanes = 1);
    for _ in 0..2 {
        assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
        cut.notify_waiters();
        tokio::time::sleep(Duration::from_millis(1_300)).await;
    }
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    assert_eq!(left(&limiter, "k").await, f64::from(CAPACITY - 3));
}
