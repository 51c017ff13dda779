//! Limits sign-ups to 100 a day in all, and to 5 a day for each address. Both limits are taken in the transaction that
//! creates the account.
//!
//!     cargo run --features embedded --example signup_global
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.

#[cfg(not(test))]
mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::{Error, InvalidLimit, Item, Limit, Limiter, LimiterConfig, Limits};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The number of sign-ups a second at the busiest time.
const PEAK: f64 = 20.0;

/// The global limit. Each sign-up locks a row of the bucket until its commit, so the bucket is split into shards, one row
/// each: as many as `recommended_shards` returns for that peak. The limit and its `retry_after` stay exact.
fn everybody() -> Result<Limit, InvalidLimit> {
    let bucket = Limit::token_bucket(100, Duration::from_secs(86_400));
    let shards = bucket.build()?.recommended_shards(PEAK);
    bucket.shards(shards).build()
}

#[derive(Debug, thiserror::Error)]
enum SignUpError {
    #[error(transparent)]
    Limit(#[from] pg_limiter::Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Signs up in a unit of work. If many transactions contend for a few rows, one may have to be rolled back and retried, and
/// `Limiter::transaction` does that. (In your own transaction, `error.is_retryable()` reports whether to retry it.)
async fn sign_up(limiter: &Limiter, email: String, address: String) -> Result<(), SignUpError> {
    let limits = limiter.clone();
    limiter
        .transaction(async move |tx| {
            // Statements that can fail for other reasons come first: if the account exists already, no token is taken.
            sqlx::query("INSERT INTO accounts (email) VALUES ($1)").bind(&email).execute(&mut *tx).await?;
            // Both limits are in one call: a bot that has used up its five takes no tokens from the global limit. A denial
            // rolls the account back.
            let items = [Item::global("sign_ups"), Item::new("sign_ups_per_address", &address)];
            limits.within(tx).limit(items).await?.enforce()?;
            Ok(())
        })
        .await
}

/// The results, which the tests check.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    pub(crate) shards: u32,
    /// How many of a bot's 30 concurrent sign-ups had each result: accepted, or denied by a limit.
    pub(crate) bot: BTreeMap<String, usize>,
    /// The same for 150 concurrent sign-ups from different addresses.
    pub(crate) people: BTreeMap<String, usize>,
    /// Whether a person with an account could sign up again.
    pub(crate) twice: bool,
    pub(crate) accounts: i64,
    pub(crate) left: f64,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    sqlx::raw_sql("CREATE TABLE accounts (email text PRIMARY KEY)").execute(pool).await?;
    let everybody = everybody()?;
    println!("{} shards for {PEAK} sign-ups a second", everybody.shards());
    let limits = Limits::new()
        .define("sign_ups", everybody)?
        .define("sign_ups_per_address", Limit::token_bucket(5, Duration::from_secs(86_400)))?;
    // Here all sign-ups are concurrent, and the limit is nearly used up: each call has to read all of its shards, and the
    // calls conflict. The retry policy allows enough attempts that no sign-up fails for this reason.
    let mut config = LimiterConfig::default();
    config.retry.max_attempts = 10_000;
    config.retry.deadline = Duration::from_secs(60);
    let limiter = Limiter::with_config(pool.clone(), limits, config);

    let of_the_bot = (0..30).map(|nth| (format!("bot-{nth}@example.com"), "198.51.100.7".to_owned())).collect();
    let bot = sign_up_all(&limiter, of_the_bot).await?;
    println!("30 sign-ups from one address: {bot:?}");

    let somebody: String = sqlx::query_scalar("SELECT email FROM accounts LIMIT 1").fetch_one(pool).await?;
    let twice = sign_up(&limiter, somebody, "192.0.2.200".into()).await;
    if let Err(error) = &twice {
        println!("a sign-up for an existing account: {error}");
    }

    let of_people = (0..150).map(|nth| (format!("person-{nth}@example.com"), format!("192.0.2.{nth}"))).collect();
    let people = sign_up_all(&limiter, of_people).await?;
    println!("150 concurrent sign-ups from 150 addresses: {people:?}");

    let accounts = sqlx::query_scalar("SELECT count(*) FROM accounts").fetch_one(pool).await?;
    let left = limiter.peek(Item::global("sign_ups")).await?.remaining().round();
    println!("{accounts} accounts in the table, {left} sign-ups left; {} retries", limiter.retries());
    limiter.close().await;
    Ok(Story { shards: everybody.shards(), bot, people, twice: twice.is_ok(), accounts, left })
}

async fn sign_up_all(limiter: &Limiter, who: Vec<(String, String)>) -> Result<BTreeMap<String, usize>, BoxError> {
    let all = who.into_iter().map(|(email, address)| sign_up(limiter, email, address));
    let mut counts = BTreeMap::new();
    for one in join_all(all).await {
        let what = match one {
            Ok(()) => "accepted".to_owned(),
            Err(SignUpError::Limit(Error::Denied(denied))) => format!("denied by {}", denied.limits.join(", ")),
            Err(error) => return Err(error.into()),
        };
        *counts.entry(what).or_insert(0) += 1;
    }
    Ok(counts)
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
