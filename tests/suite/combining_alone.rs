//! The task of its caller sends a call that is alone. No other call waits for that task, which may stop polling.

use std::pin::Pin;
use std::time::Duration;

use futures_util::poll;
use pg_limiter::{Decision, Error, Item, Limit, Limiter, Limits};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::support::Database;
use crate::support::gate::{CENTURY, hold, limiter};

const LONG: Duration = Duration::from_secs(60);

type Call<'a> = Pin<Box<dyn Future<Output = Result<Decision, Error>> + 'a>>;

async fn with_a_held_row(database: &Database) -> Limiter {
    let limits = Limits::new().define("a", Limit::token_bucket(300, CENTURY)).expect("a limit");
    let limiter = limiter(&database.pool, limits, |config| config.lanes = 2);
    for key in ["held", "k", "l", "m", "n"] {
        limiter.charge(("a", key, 0)).await.expect("a row");
    }
    limiter
}

/// Polls a call so often, and then no more.
async fn polled<'a>(limiter: &'a Limiter, times: u32) -> Call<'a> {
    let mut call: Call<'a> = Box::pin(limiter.limit(("a", "held")));
    for _ in 0..times {
        assert!(poll!(&mut call).is_pending());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    call
}

#[tokio::test]
async fn a_call_that_is_polled_no_more_delays_no_other() {
    let database = Database::migrated().await;
    let limiter = with_a_held_row(&database).await;
    for times in 1..=4 {
        let holder = hold(&database, "a", &["held"]).await;
        let first = polled(&limiter, times).await;
        for items in [vec!["k"], vec!["l"], vec!["m"], vec!["n"], vec!["k", "l", "m"]] {
            let items: Vec<Item> = items.into_iter().map(|key| Item::new("a", key)).collect();
            let said = timeout(LONG, limiter.limit(items)).await.expect("the call waits for another one");
            assert!(said.expect("a decision").is_allowed());
        }
        holder.rollback().await.expect("rollback");
        assert!(first.await.expect("a decision").is_allowed());
    }
    assert_eq!(limiter.peek(("a", "held")).await.expect("a balance").remaining().round(), 296.0);
}

#[tokio::test]
async fn a_limiter_closes_although_a_call_is_polled_no_more() {
    for times in 1..=4 {
        let database = Database::migrated().await;
        let limiter = with_a_held_row(&database).await;
        let holder = hold(&database, "a", &["held"]).await;
        let first = polled(&limiter, times).await;
        let (closed, ()) = tokio::join!(timeout(LONG, limiter.close()), async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            holder.rollback().await.expect("rollback");
        });
        closed.expect("the limiter waits for the call");
        assert!(first.await.expect("it was accepted before").is_allowed());
    }
}

/// The statement goes on, although the caller is gone.
#[tokio::test]
async fn a_call_that_is_dropped_while_it_is_sent_is_finished() {
    let database = Database::migrated().await;
    let limiter = with_a_held_row(&database).await;
    let holder = hold(&database, "a", &["held"]).await;
    let first = polled(&limiter, 4).await;
    drop(first);
    holder.rollback().await.expect("rollback");
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    assert_eq!(limiter.peek(("a", "held")).await.expect("a balance").remaining().round(), 299.0);
}

#[tokio::test]
async fn a_call_that_is_alone_starts_no_task() {
    let database = Database::migrated().await;
    let limiter = with_a_held_row(&database).await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let holder = hold(&database, "a", &["held"]).await;
    let first = polled(&limiter, 1).await;
    assert_eq!(tasks(), before);
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    assert!(tasks() > before, "the driver of the first call is a task now");
    holder.rollback().await.expect("rollback");
    assert!(first.await.expect("a decision").is_allowed());
}
