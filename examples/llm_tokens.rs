//! Limits requests and tokens a minute for calls to a language model. Each call takes an estimate of its tokens first, and
//! settles the estimate when the tokens that it used are known.
//!
//!     cargo run --features embedded --example llm_tokens
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.
//!
//! The model is called outside a transaction: the call takes seconds, and rows stay locked until the commit. There are two
//! short transactions instead, which also write the row in `usage`. `start` takes the estimate. `settle` gives the unused
//! tokens back, or charges the ones that were used in addition. If a process dies between the two, its row stays in the
//! state `started` and its tokens stay taken, so the limit still holds.

#[cfg(not(test))]
mod common;

use std::time::Duration;

use pg_limiter::{Call, Error, InvalidCall, Item, Limit, Limiter, Limits, Outcome};
use sqlx::{PgConnection, PgPool};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Work that can wait may reserve up to 10 requests and 500 tokens in advance.
fn limits(period: Duration) -> Result<Limits, BoxError> {
    Ok(Limits::new()
        .define("requests", Limit::token_bucket(60, period).max_reserved(10))?
        .define("tokens", Limit::token_bucket(10_000, period).max_reserved(500))?)
}

/// A call to the model that was allowed. If `wait` is set, make the call after that time.
#[derive(Debug)]
struct Started {
    id: i64,
    wait: Option<Duration>,
}

#[derive(Debug)]
enum Start {
    Go(Started),
    /// The call was denied, and nothing was taken. Respond with 429 and this `retry_after`.
    ComeBackIn(Duration),
}

/// Both limits are taken in one call: if the limit on tokens denies it, no request is charged either.
fn estimated(user: &str, tokens: u32) -> [Item; 2] {
    [Item::new("requests", user), Item::new("tokens", user).count(tokens)]
}

/// Takes the estimate: the tokens of the prompt, plus the most that the answer may have (`max_tokens`).
async fn start(pool: &PgPool, limiter: &Limiter, user: &str, estimate: u32) -> Result<Start, BoxError> {
    take(pool, limiter, user, estimate, estimated(user, estimate).into()).await
}

/// Like `start`, for work that can wait: it reserves tokens that are not available yet, and returns the time until they are.
/// If waits are long or processes restart, use `pg_limiter::queue` instead. Its jobs have a `settle`, too.
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
    Ok(Start::Go(Started { id, wait: decision.wait() }))
}

/// Corrects the estimate to the tokens that were used. A call is settled once: if it has ended already, this returns
/// `false` and changes nothing.
async fn settle(pool: &PgPool, limiter: &Limiter, id: i64, used: u32) -> Result<bool, BoxError> {
    let mut tx = pool.begin().await?;
    let Some((user, estimate)) = end(&mut tx, id, "done", used).await? else { return Ok(false) };
    // If more tokens were used than estimated, they are charged even if too few are left, and the next call waits longer.
    let _ = limiter.within(&mut tx).settle(("tokens", user, estimate), used).await?;
    tx.commit().await?;
    Ok(true)
}

/// Gives everything back for a call that failed and used nothing. (If the provider counts failed requests, give back only
/// the tokens.)
async fn give_back(pool: &PgPool, limiter: &Limiter, id: i64) -> Result<bool, BoxError> {
    let mut tx = pool.begin().await?;
    let Some((user, estimate)) = end(&mut tx, id, "failed", 0).await? else { return Ok(false) };
    let items = [Item::new("requests", &user), Item::new("tokens", &user).count(estimate)];
    let _ = limiter.within(&mut tx).credit(items).await?;
    tx.commit().await?;
    Ok(true)
}

/// Marks the call as ended. Returns its user and estimate, or `None` if it had ended before.
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

/// A stand-in for the provider's API: returns how many tokens were used in all, or why the call failed.
async fn call_the_model(uses: Result<u32, &'static str>) -> Result<u32, &'static str> {
    uses
}

/// All three steps, as a handler would run them. Returns `None` if the limits deny the call.
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
            println!("{estimate} tokens for {user}: denied, retry after {wait:?}");
            return Ok(None);
        }
    };
    let answer = call_the_model(uses).await;
    match answer {
        Ok(used) => {
            settle(pool, limiter, started.id, used).await?;
            println!("{estimate} tokens for {user} estimated, {used} used");
        }
        Err(why) => {
            give_back(pool, limiter, started.id).await?;
            println!("{estimate} tokens for {user} estimated, all given back: {why}");
        }
    }
    Ok(Some(answer))
}

/// The results, which the tests check.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// The requests and tokens left after a call that used less than the estimate, one that used more, and one that
    /// failed.
    pub(crate) left: [[f64; 2]; 3],
    /// Whether a call could be settled, and whether it could be settled a second time.
    pub(crate) settled: [bool; 2],
    /// Whether a call was allowed when too few tokens were left, and the requests and tokens left after it.
    pub(crate) too_few: (bool, [f64; 2]),
    /// How long the work that can wait waited for its reserved tokens.
    pub(crate) wait: Duration,
    /// The error message for a call that exceeds the limit's capacity.
    pub(crate) never: String,
    /// The sum of the tokens used, and the number of rows in `usage`.
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

    // Ann's limits have a period of a day, so that almost nothing is refilled while the example runs.
    let limiter = Limiter::new(pool.clone(), limits(Duration::from_secs(86_400))?);
    let mut balances = [[0.0; 2]; 3];
    // 3,000 are taken and 2,000 given back; 3,000 are taken and 1,000 charged on top; 3,000 are taken and given back.
    for (nth, uses) in [Ok(1_000), Ok(4_000), Err("503 from the provider")].into_iter().enumerate() {
        ask(pool, &limiter, "ann", 3_000, uses).await?;
        balances[nth] = left(&limiter, "ann").await?;
        println!("  requests and tokens left: {:?}", balances[nth]);
    }

    let Start::Go(started) = start(pool, &limiter, "ann", 3_000).await? else { return Err("it was denied".into()) };
    let settled = [settle(pool, &limiter, started.id, 3_000).await?, settle(pool, &limiter, started.id, 3_000).await?];
    println!("3000 tokens for ann, settled: {}, and again: {}", settled[0], settled[1]);

    // The limit on tokens denies this call, so no request is charged either.
    let allowed = ask(pool, &limiter, "ann", 9_000, Ok(9_000)).await?.is_some();
    let too_few = (allowed, left(&limiter, "ann").await?);
    println!("  requests and tokens left: {:?}", too_few.1);

    // A call for more tokens than the bucket's capacity can never be allowed. It fails before anything is decided, so that
    // the error is not a denial and has no `retry_after`.
    let never = match start(pool, &limiter, "ann", 50_000).await {
        Err(error) => match error.downcast_ref() {
            Some(Error::Invalid(InvalidCall::CountExceedsCapacity { .. })) => error.to_string(),
            _ => return Err(error),
        },
        Ok(start) => return Err(format!("{start:?}").into()),
    };
    println!("50000 tokens for ann: {never}");
    limiter.close().await;

    // Bob's limits have a period of a minute. This call takes all tokens, and reserves the 100 that are refilled in 0.6 s.
    let limiter = Limiter::new(pool.clone(), limits(Duration::from_secs(60))?);
    let Start::Go(later) = start_later(pool, &limiter, "bob", 10_100).await? else {
        return Err("denied, although 500 tokens may be reserved".into());
    };
    let wait = later.wait.unwrap_or_default();
    println!("10100 tokens reserved for bob: available in {wait:?}");
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
