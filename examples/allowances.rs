//! Events of an organisation that arrive faster than a database decides: 4 workers of each of 2 processes spend an allowance from
//! memory, and together they never exceed the limit of 20,000 events in 30 days.
//!
//!     cargo run --features embedded --example allowances
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set. The processes
//! are two limiters with a pool each, as two processes would have.

#[cfg(not(test))]
mod common;

use std::time::Duration;

use pg_limiter::{Allowance, Error, Limit, Limiter, Limits};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const EVENTS: u32 = 20_000;
const WORKERS: usize = 4;

/// A fixed window: at its end, the tokens in memory end, too.
fn limits() -> Result<Limits, BoxError> {
    Ok(Limits::new().define("events", Limit::fixed_window(EVENTS, Duration::from_secs(30 * 86_400)))?)
}

/// Accepts an event. It waits only when memory has no tokens, about once in 400 events.
async fn accept(allowance: &Allowance) -> Result<bool, Error> {
    Ok(allowance.try_take(1) || allowance.take(1).await?.is_allowed())
}

/// Offers events to a process, at most so many for each worker, until one is denied. Returns the number of accepted events.
async fn offer(allowance: &Allowance, most: usize) -> Result<usize, BoxError> {
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        let allowance = allowance.clone();
        workers.spawn(async move {
            let mut accepted = 0;
            while accepted < most && accept(&allowance).await? {
                accepted += 1;
            }
            Ok::<_, Error>(accepted)
        });
    }
    let mut accepted = 0;
    while let Some(worker) = workers.join_next().await {
        accepted += worker??;
    }
    Ok(accepted)
}

/// The results, which the tests check.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// The events that each process accepted.
    pub(crate) accepted: [usize; 2],
    /// The tokens left in the database after a process gave its unused tokens back.
    pub(crate) left: f64,
    /// The events that the first process accepts when it starts again, until the limit denies one.
    pub(crate) again: usize,
    /// The number of statements for all of them.
    pub(crate) statements: u64,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    let processes = [Limiter::new(pool.clone(), limits()?), Limiter::new(pool.clone(), limits()?)];
    let start = |limiter: &Limiter| limiter.allowance(("events", "org-7"), 400, Duration::from_secs(10));
    let [one, two] = [start(&processes[0])?, start(&processes[1])?];
    let (first, second) = tokio::try_join!(offer(&one, 1_500), offer(&two, 2_000))?;
    println!("2 processes accepted {first} and {second} events");

    // Each process gives back what it has not spent, at its end or when it was idle for the `ttl`.
    one.close().await?;
    two.close().await?;
    let left = processes[0].peek(("events", "org-7")).await?.remaining();
    println!("{left} tokens are left in the database");

    let restarted = start(&processes[0])?;
    let again = offer(&restarted, usize::MAX).await?;
    restarted.close().await?;
    let statements = processes.iter().map(Limiter::batches).sum();
    println!("{again} more, and then it is denied; {statements} statements for all {} events", first + second + again);
    for limiter in &processes {
        limiter.close().await;
    }
    Ok(Story { accepted: [first, second], left, again, statements })
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
