//! Requests and tokens a minute for a language model: what a call may use is taken before it, and settled after it with
//! what it did use.
//!
//!     cargo run --features embedded --example llm_tokens
//!
//! On a database of its own: on the server of `DATABASE_URL`, or on a private PostgreSQL.
//!
//! The call itself is outside of any transaction: it takes seconds, and rows stay locked until a commit. So there are
//! two short ones, each with the row of usage: `start` takes the estimate, `settle` gives back what was too much or
//! charges what was too little. A process that dies in between leaves the row `started` and its tokens taken: nobody
//! gets more than the limit.

#[cfg(not(test))]
mod common;

use std::time::Duration;

use pg_limiter::{Call, Error, InvalidCall, Item, Limit, Limiter, Limits, Outcome};
use sqlx::{PgConnection, PgPool};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Those who can wait may take 10 requests and 500 tokens in advance.
fn limits(period: Duration) -> Result<Limits, BoxError> {
    Ok(Limits::new()
        .define("requests", Limit::token_bucket(60, period).max_reserved(10))?
        .define("tokens", Limit::token_bucket(10_000, period).max_reserved(500))?)
}

/// A call of the model that may be made, after a wait if there is one.
#[derive(Debug)]
struct Started {
    id: i64,
    wait: Option<Duration>,
}

#[derive(Debug)]
enum Start {
    Go(Started),
    /// A 429 for whoever asks. Nothing was taken.
    ComeBackIn(Duration),
}

/// Both limits in one call: a call that is refused its tokens costs no request.
fn estimated(user: &str, tokens: u32) -> [Item; 2] {
    [Item::new("requests", user), Item::new("tokens", user).count(tokens)]
}

/// Takes the estimate: what the prompt has, and the most that the answer may have (`max_tokens`).
async fn start(pool: &PgPool, limiter: &Limiter, user: &str, estimate: u32) -> Result<Start, BoxError> {
    take(pool, limiter, user, estimate, estimated(user, estimate).into()).await
}

/// The same for work that can wait: the tokens are reserved before they are there, with the time at which they will be.
/// For longer waits, and processes that come and go, there is `pg_limiter::queue`, whose jobs have a `settle` as well.
async fn start_later(pool: &PgPool, limiter: &Limiter, user: &str, estimate: u32) -> Result<Start, BoxError> {
    take(pool, limiter, user, estimate, Call::from(estimated(user, estimate)).reserve()).await
}

async fn take(pool: &PgPool, limiter: &Limiter, user: &str, estimate: u32, call: Call) -> Result<Start, BoxError> {
    let mut tx = pool.begin().await?;
    let id = sqlx::query_scalar("INSERT INTO usage (user_id, estimate) VALUES ($1, $2) RETURNING id")
        .bind(user)
        .bind(i64::from(estimate))
        .fetch_one(&mut *tx)
        .await?;
    let decision = limiter.within(&mut tx).limit(call).await?;
    if let Outcome::Denied { retry_after } = decision.outcome() {
        tx.rollback().await?;
        return Ok(Start::ComeBackIn(retry_after));
    }
    tx.commit().await?;
    Ok(Start::Go(Started { id, wait: decision.retry_after() }))
}

/// Corrects the estimate to what was used. Once: whoever comes again finds that there is nothing to settle, and gets
/// `false`.
async fn settle(pool: &PgPool, limiter: &Limiter, id: i64, used: u32) -> Result<bool, BoxError> {
    let mut tx = pool.begin().await?;
    let Some((user, estimate)) = end(&mut tx, id, "done", used).await? else { return Ok(false) };
    // More than the estimate is used already: it is charged whatever is left, and the next call waits for longer.
    let _ = limiter.within(&mut tx).settle(("tokens", user, estimate), used).await?;
    tx.commit().await?;
    Ok(true)
}

/// A call that failed used nothing: everything is given back. (If the provider counts failed requests, give back the
/// tokens only.)
async fn give_back(pool: &PgPool, limiter: &Limiter, id: i64) -> Result<bool, BoxError> {
    let mut tx = pool.begin().await?;
    let Some((user, estimate)) = end(&mut tx, id, "failed", 0).await? else { return Ok(false) };
    let items = [Item::new("requests", &user), Item::new("tokens", &user).count(estimate)];
    let _ = limiter.within(&mut tx).credit(items).await?;
    tx.commit().await?;
    Ok(true)
}

/// The user and the estimate, if the call had not ended before.
async fn end(tx: &mut PgConnection, id: i64, state: &str, used: u32) -> Result<Option<(String, i64)>, sqlx::Error> {
    sqlx::query_as(
        "UPDATE usage SET state = $2, used = $3 WHERE id = $1 AND state = 'started' RETURNING user_id, estimate",
    )
    .bind(id)
    .bind(state)
    .bind(i64::from(used))
    .fetch_optional(tx)
    .await
}

/// A stand-in for the provider's API: how many tokens were used in all, or why not.
async fn call_the_model(uses: Result<u32, &'static str>) -> Result<u32, &'static str> {
    uses
}

/// The whole of it, for a handler: `None` if the user has to come back later.
async fn ask(
    pool: &PgPool,
    limiter: &Limiter,
    user: &str,
    estimate: u32,
    uses: Result<u32, &'static str>,
) -> Result<Option<Result<u32, &'static str>>, BoxError> {
    let started = match start(pool, limiter, user, estimate).await? {
        Start::Go(started) => started,
        Start::ComeBackIn(wait) => {
            println!("{estimate} tokens for {user}: come back in {wait:?}");
            return Ok(None);
        }
    };
    let answer = call_the_model(uses).await;
    match answer {
        Ok(used) => {
            settle(pool, limiter, started.id, used).await?;
            println!("{estimate} tokens for {user}, estimated; {used} used");
        }
        Err(why) => {
            give_back(pool, limiter, started.id).await?;
            println!("{estimate} tokens for {user}, estimated; given back: {why}");
        }
    }
    Ok(Some(answer))
}

/// What came of it, for the test.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// Requests and tokens left after a call that used less than was estimated, one that used more, and one that
    /// failed.
    pub(crate) left: [[f64; 2]; 3],
    /// Whether a call could be settled, and whether it could once more.
    pub(crate) settled: [bool; 2],
    /// Whether a call was allowed that found too few tokens, and what was left after it.
    pub(crate) too_few: (bool, [f64; 2]),
    /// How long work that can wait had to wait for its reserved tokens.
    pub(crate) wait: Duration,
    /// What is told of a call that is larger than the limit.
    pub(crate) never: String,
    /// The sum of the tokens used, and how many rows of usage there are.
    pub(crate) used: (i64, i64),
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    sqlx::raw_sql(
        "CREATE TABLE usage (
           id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
           user_id text NOT NULL,
           state text NOT NULL DEFAULT 'started',
           estimate bigint NOT NULL,
           used bigint,
           at timestamptz NOT NULL DEFAULT now()
         )",
    )
    .execute(pool)
    .await?;

    // For ann it is so many a day, so that nothing flows in while one looks.
    let limiter = Limiter::new(pool.clone(), limits(Duration::from_secs(86_400))?);
    let mut balances = [[0.0; 2]; 3];
    // 3,000 are taken and 2,000 given back; 3,000 are taken and 1,000 charged on top; 3,000 are taken and given back.
    for (nth, uses) in [Ok(1_000), Ok(4_000), Err("503 from the provider")].into_iter().enumerate() {
        ask(pool, &limiter, "ann", 3_000, uses).await?;
        balances[nth] = left(&limiter, "ann").await?;
        println!("  requests and tokens left: {:?}", balances[nth]);
    }

    let Start::Go(started) = start(pool, &limiter, "ann", 3_000).await? else { return Err("5,000 are left".into()) };
    let settled = [settle(pool, &limiter, started.id, 3_000).await?, settle(pool, &limiter, started.id, 3_000).await?];
    println!("3000 tokens for ann, settled: {}, and again: {}", settled[0], settled[1]);

    // Refused its tokens, it costs no request either.
    let allowed = ask(pool, &limiter, "ann", 9_000, Ok(9_000)).await?.is_some();
    let too_few = (allowed, left(&limiter, "ann").await?);
    println!("  requests and tokens left: {:?}", too_few.1);

    // More than the bucket ever holds: there is no time to come back at, but an error, before the limit is asked.
    let never = match start(pool, &limiter, "ann", 50_000).await {
        Err(error) => match error.downcast_ref() {
            Some(Error::Invalid(InvalidCall::CountExceedsCapacity { .. })) => error.to_string(),
            _ => return Err(error),
        },
        Ok(start) => return Err(format!("{start:?}").into()),
    };
    println!("50000 tokens for ann: {never}");
    limiter.close().await;

    // For bob it is so many a minute. He takes all of them and 100 of what will be there in 0.6 s.
    let limiter = Limiter::new(pool.clone(), limits(Duration::from_secs(60))?);
    let Start::Go(later) = start_later(pool, &limiter, "bob", 10_100).await? else {
        return Err("500 more may be".into());
    };
    let wait = later.wait.unwrap_or_default();
    println!("10100 tokens for bob, who can wait: in {wait:?}");
    tokio::time::sleep(wait).await;
    settle(pool, &limiter, later.id, 10_100).await?;
    limiter.close().await;

    let used: (i64, i64) = sqlx::query_as("SELECT sum(used)::bigint, count(*) FROM usage").fetch_one(pool).await?;
    println!("{} tokens used in {} calls", used.0, used.1);
    Ok(Story { left: balances, settled, too_few, wait, never, used })
}

async fn left(limiter: &Limiter, user: &str) -> Result<[f64; 2], BoxError> {
    let balances = limiter.peek([Item::new("requests", user), Item::new("tokens", user)]).await?;
    Ok([balances[0].round(), balances[1].round()])
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
