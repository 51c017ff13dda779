//! Sign-ups: 100 a day for everybody together, and 5 for each address, taken in the transaction that writes the
//! account.
//!
//!     cargo run --features embedded --example signup_global
//!
//! On a database of its own: on the server of `DATABASE_URL`, or on a private PostgreSQL.

#[cfg(not(test))]
mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::{Error, InvalidLimit, Item, Limit, Limiter, LimiterConfig, Limits, RetryPolicy};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How many sign-ups a second there are when it is busiest.
const PEAK: f64 = 20.0;

/// The bucket that everybody shares. Each sign-up holds a row of it until its commit, so the bucket is spread over
/// some: as many as is recommended for that peak. The bound stays exact, and so does `retry_after`.
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

/// In a unit of work: where many transactions meet on a few rows, one may have to be rolled back and run again, and
/// that does it. (In a transaction of your own, `error.is_retryable()` asks you to.)
async fn sign_up(limiter: &Limiter, email: String, address: String) -> Result<(), SignUpError> {
    let limits = limiter.clone();
    limiter
        .transaction(async move |tx| {
            // What can fail for other reasons comes before: who has an account already takes no token.
            sqlx::query("INSERT INTO accounts (email) VALUES ($1)").bind(&email).execute(&mut *tx).await?;
            // In one call: a bot uses its own five up, and nobody else's. Denied, the account is rolled back.
            let items = [Item::global("sign_ups"), Item::new("sign_ups_per_address", &address)];
            limits.within(tx).limit(items).await?.enforce()?;
            Ok(())
        })
        .await
}

/// What came of it, for the test.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    pub(crate) shards: u32,
    /// How often what refused the 30 sign-ups of a bot, and the 150 of people, all at once.
    pub(crate) bot: BTreeMap<String, usize>,
    pub(crate) people: BTreeMap<String, usize>,
    /// Whether somebody who has an account already could sign up again.
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
    // Here everybody comes at the same moment, to a limit that is nearly used up: each has to look at all of its rows,
    // and they get into each other's way. Nobody is to be turned away for that.
    let mut config = LimiterConfig::default();
    config.retry = RetryPolicy { max_attempts: 10_000, deadline: Duration::from_secs(60), ..RetryPolicy::default() };
    let limiter = Limiter::with_config(pool.clone(), limits, config);

    let of_the_bot = (0..30).map(|nth| (format!("bot-{nth}@example.com"), "198.51.100.7".to_owned())).collect();
    let bot = sign_up_all(&limiter, of_the_bot).await?;
    println!("30 sign-ups of one address: {bot:?}");

    let somebody: String = sqlx::query_scalar("SELECT email FROM accounts LIMIT 1").fetch_one(pool).await?;
    let twice = sign_up(&limiter, somebody, "192.0.2.200".into()).await;
    if let Err(error) = &twice {
        println!("an account that is there already: {error}");
    }

    let of_people = (0..150).map(|nth| (format!("person-{nth}@example.com"), format!("192.0.2.{nth}"))).collect();
    let people = sign_up_all(&limiter, of_people).await?;
    println!("150 people at once: {people:?}");

    let accounts = sqlx::query_scalar("SELECT count(*) FROM accounts").fetch_one(pool).await?;
    let left = limiter.peek(Item::global("sign_ups")).await?.remaining().round();
    println!(
        "{accounts} accounts in the table, {left} sign-ups left; {} transactions were run again",
        limiter.retries()
    );
    limiter.close().await;
    Ok(Story { shards: everybody.shards(), bot, people, twice: twice.is_ok(), accounts, left })
}

async fn sign_up_all(limiter: &Limiter, who: Vec<(String, String)>) -> Result<BTreeMap<String, usize>, BoxError> {
    let all = who.into_iter().map(|(email, address)| sign_up(limiter, email, address));
    let mut counts = BTreeMap::new();
    for one in join_all(all).await {
        let what = match one {
            Ok(()) => "welcome".to_owned(),
            Err(SignUpError::Limit(Error::Denied(denied))) => format!("refused by {}", denied.limits.join(", ")),
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
