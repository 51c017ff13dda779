//! Calls that write nothing have no unknown outcome: if their connection is lost, they are made again.

use std::time::Duration;

use futures_util::future::join;
use pg_limiter::queue::{Job, JobFilter, Queue, Queues};
use pg_limiter::{Call, Connections, Decision, Engine, Error, Item, Limit, Limiter, Limits};

use crate::support::gate::CENTURY;
use crate::support::payloads::payload;
use crate::support::proxy::{Fault, Point, Proxy, Way};
use crate::support::{Database, limiter_at};

fn limits() -> Limits {
    Limits::new()
        .define("a", Limit::token_bucket(9, CENTURY))
        .and_then(|limits| limits.define("b", Limit::sliding_window(9, CENTURY)))
        .and_then(|limits| limits.define("gate", Limit::gate()))
        .and_then(|limits| limits.define("slots", Limit::concurrency(3)))
        .expect("limits")
}

fn limiter(proxy: &Proxy, connections: Connections, engine: Engine) -> Limiter {
    limiter_at(&proxy.url, limits(), |config| {
        (config.connections, config.engine, config.lanes) = (connections, Some(engine), 1);
    })
}

async fn behind_a_proxy() -> (Database, Proxy) {
    let database = Database::migrated().await;
    let proxy = Proxy::before(&database.url).await;
    (database, proxy)
}

/// Every call of a limiter that writes nothing.
#[derive(Clone, Copy, Debug)]
enum Read {
    Check,
    CheckReserved,
    CheckGroup,
    CheckSlots,
    Peek,
    PeekGroup,
    IsBlocked,
    /// A call that takes nothing writes nothing.
    LimitOfGate,
    LimitOfNothing,
}

use Read::{CheckGroup, CheckReserved, CheckSlots, IsBlocked, LimitOfGate, LimitOfNothing, Peek, PeekGroup};

const READS: [Read; 9] =
    [Read::Check, CheckReserved, CheckGroup, CheckSlots, Peek, PeekGroup, IsBlocked, LimitOfGate, LimitOfNothing];

impl Read {
    async fn run(self, limiter: &Limiter) -> Result<(), Error> {
        let group = || [Item::new("a", "k"), Item::new("b", "k"), Item::new("gate", "k")];
        let allowed = |decision: Decision| assert!(decision.is_allowed(), "{self:?}: {decision:?}");
        match self {
            Self::Check => limiter.check(("a", "k")).await.map(allowed),
            CheckReserved => limiter.check(Call::from(("a", "k")).reserve()).await.map(allowed),
            CheckGroup => limiter.check(group()).await.map(allowed),
            CheckSlots => limiter.check(("slots", "k")).await.map(allowed),
            Peek => limiter.peek(("a", "k")).await.map(|balances| assert_eq!(balances.remaining().round(), 9.0)),
            PeekGroup => limiter.peek(group()).await.map(|_| ()),
            IsBlocked => limiter.is_blocked(("gate", "k")).await.map(|rest| assert_eq!(rest, None)),
            LimitOfGate => limiter.limit(("gate", "k")).await.map(allowed),
            LimitOfNothing => limiter.limit(("a", "k", 0)).await.map(allowed),
        }
    }
}

/// A failure after which a call that writes has an unknown outcome.
const FAULTS: [(Point, Way); 3] = [(Point::Statement, Way::Cut), (Point::Commit, Way::Cut), (Point::Commit, Way::Drop)];

#[tokio::test]
async fn a_read_that_loses_its_connection_is_repeated() {
    let (database, proxy) = behind_a_proxy().await;
    for connections in [Connections::Own, Connections::Pool] {
        for engine in [Engine::PostgreSql, Engine::Yugabyte, Engine::Citus] {
            let limiter = limiter(&proxy, connections, engine);
            for read in READS {
                read.run(&limiter).await.expect("without a fault");
                for (point, way) in FAULTS {
                    let (faults, retries) = (proxy.count(|seen| &seen.faults), limiter.retries());
                    proxy.put(Fault::once(point, way));
                    let result = read.run(&limiter).await;
                    proxy.calm();
                    let context = format!("{connections:?}, {engine:?}, {read:?}, {point:?} {way:?}");
                    result.unwrap_or_else(|error| panic!("{context}: {error}"));
                    assert_eq!(proxy.count(|seen| &seen.faults) - faults, 1, "{context}");
                    assert_eq!(limiter.retries() - retries, 1, "{context}");
                }
            }
        }
    }
    assert_eq!(database.rows().await, 0);
}

/// The attempts are bounded as those of other calls. Nothing was decided, and no outcome is unknown.
#[tokio::test]
async fn a_read_without_a_connection_is_unavailable() {
    let (_database, proxy) = behind_a_proxy().await;
    for connections in [Connections::Own, Connections::Pool] {
        for read in READS {
            for way in [Way::Cut, Way::Before(payload("ambiguous"))] {
                let limiter = limiter_at(&proxy.url, limits(), |config| {
                    (config.connections, config.retry.max_attempts) = (connections, 3);
                });
                proxy.put(Fault::always(Point::Statement, way));
                let error = read.run(&limiter).await.expect_err("no connection");
                proxy.calm();
                assert!(matches!(error, Error::Unavailable { .. }), "{connections:?}, {read:?}: {error}");
                assert_eq!(limiter.retries(), 2, "{connections:?}, {read:?}");
            }
        }
    }
}

/// The deadline ends the wait for an answer.
#[tokio::test]
async fn a_read_that_takes_too_long_is_unavailable() {
    let (_database, proxy) = behind_a_proxy().await;
    let deadline = Duration::from_millis(700);
    for connections in [Connections::Own, Connections::Pool] {
        let limiter = limiter_at(&proxy.url, limits(), |config| {
            (config.connections, config.retry.deadline) = (connections, deadline);
        });
        proxy.put(Fault::once(Point::Statement, Way::Late(deadline * 2)));
        let error = limiter.check(("a", "k")).await.expect_err("it takes too long");
        assert!(matches!(error, Error::Unavailable { .. }), "{connections:?}: {error}");
        proxy.calm();
    }
}

/// In a batch, only the calls that write have an unknown outcome.
#[tokio::test]
async fn a_read_in_a_batch_is_repeated_without_the_calls_that_write() {
    let (database, proxy) = behind_a_proxy().await;
    let limiter = limiter(&proxy, Connections::Own, Engine::PostgreSql);
    let _ = limiter.check(("a", "k")).await.expect("a decision");
    let statements = proxy.count(|seen| &seen.statements);
    proxy.put(Fault::once(Point::Commit, Way::Cut));
    let (reserved, checked) = join(limiter.limit(Call::from(("a", "k")).reserve()), limiter.check(("a", "l"))).await;
    assert!(matches!(reserved, Err(Error::OutcomeUnknown { .. })), "{reserved:?}");
    assert!(checked.expect("a decision").is_allowed());
    assert_eq!(proxy.count(|seen| &seen.statements) - statements, 2, "the two were not one batch");
    assert_eq!(database.rows().await, 1, "the call that writes was repeated, or never made");
}

/// The connection is the caller's, so the caller decides.
#[tokio::test]
async fn a_read_in_the_callers_transaction_is_not_repeated() {
    let (_database, proxy) = behind_a_proxy().await;
    let limiter = limiter(&proxy, Connections::Own, Engine::PostgreSql);
    let mut connection = limiter.pool().acquire().await.expect("a connection");
    proxy.put(Fault::once(Point::Statement, Way::Cut));
    let error = limiter.within(&mut connection).check(("a", "k")).await.expect_err("the connection is lost");
    assert!(matches!(error, Error::Unavailable { .. }) && error.is_retryable(), "{error}");
    assert_eq!((limiter.retries(), proxy.count(|seen| &seen.statements)), (0, 1));
}

#[tokio::test]
async fn a_look_at_a_queue_that_loses_its_connection_is_repeated() {
    let (database, proxy) = behind_a_proxy().await;
    let limiter = limiter(&proxy, Connections::Own, Engine::PostgreSql);
    let (queue, queues) = (Queue::new(&limiter, "q").expect("a queue"), Queues::new(&limiter));
    let job = || Job::new(("a", "k"), &1).expect("a job");
    let enqueued = queue.enqueue(job()).await.expect("an answer").enforce().expect("scheduled");
    let looks = 6;
    for look in 0..looks {
        for way in [Way::Cut, Way::Drop] {
            let retries = limiter.retries();
            proxy.put(Fault::once(Point::Commit, way));
            let found = match look {
                0 => queue.job(enqueued.id).await.map(|job| usize::from(job.is_some())),
                1 => queue.jobs(None, 9).await.map(|jobs| jobs.len()),
                2 => queue.group_counts().await.map(|groups| groups.len()),
                3 => queue.estimate(job()).await.map(|_| 1),
                4 => queues.jobs(&JobFilter::default(), 9).await.map(|jobs| jobs.len()),
                _ => queues.group_counts(None).await.map(|groups| groups.len()),
            };
            assert_eq!(found.unwrap_or_else(|error| panic!("{look}: {error}")), 1, "{look}");
            assert_eq!(limiter.retries() - retries, 1, "{look}");
        }
    }
    assert_eq!(database.rows().await, 1);
}
