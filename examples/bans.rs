//! Bans clients that keep calling although they are denied, each time for longer.
//!
//!     cargo run --features embedded --example bans
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.
//!
//! `requests` is the limit, and `banned` is a gate: it denies an address while it is blocked. Each denial by `requests` costs a
//! strike. An address without strikes left is banned for a minute, then for 4 minutes, then for 16, and so on. The ban and its
//! record commit together. While an address is banned, its requests cost neither tokens nor strikes, and write nothing.

#[cfg(not(test))]
mod common;

use std::time::Duration;

use pg_limiter::{Item, Limit, Limiter, Limits};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const FIRST_BAN: Duration = Duration::from_secs(60);
const LONGEST_BAN: Duration = Duration::from_secs(7 * 86_400);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    Served,
    /// Too many requests: respond with 429 and this `retry_after`.
    TooMany(Duration),
    /// The address is banned for this time: respond with 403, or drop the connection.
    Banned(Duration),
}

fn limits() -> Result<Limits, BoxError> {
    let hour = Duration::from_secs(3600);
    Ok(Limits::new()
        .define("banned", Limit::gate())?
        .define("requests", Limit::token_bucket(5, hour))?
        .define("strikes", Limit::token_bucket(3, 24 * hour))?)
}

async fn serve(limiter: &Limiter, address: &str) -> Result<Answer, BoxError> {
    // One decision and one round trip: a ban costs nothing extra.
    let decision = limiter.limit([Item::new("banned", address), Item::new("requests", address)]).await?;
    let Some(retry_after) = decision.retry_after() else { return Ok(Answer::Served) };
    if decision.denied_by().contains(&"banned") {
        return Ok(Answer::Banned(retry_after));
    }
    if limiter.limit(("strikes", address)).await?.is_allowed() {
        return Ok(Answer::TooMany(retry_after));
    }
    Ok(Answer::Banned(ban(limiter, address).await?))
}

/// Bans the address for four times as long as the last time.
async fn ban(limiter: &Limiter, address: &str) -> Result<Duration, BoxError> {
    let mut tx = limiter.pool().begin().await?;
    let sql = "INSERT INTO bans (address) VALUES ($1)
               ON CONFLICT (address) DO UPDATE SET times = bans.times + 1, last_at = now() RETURNING times";
    let times: i32 = sqlx::query_scalar(sql).bind(address).fetch_one(&mut *tx).await?;
    let factor = 4_u32.saturating_pow(times.unsigned_abs().saturating_sub(1));
    let length = FIRST_BAN.saturating_mul(factor).min(LONGEST_BAN);
    let rest = limiter.within(&mut tx).block(("banned", address), length).await?;
    tx.commit().await?;
    Ok(rest)
}

/// The results of this example.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) served: usize,
    pub(crate) denied: usize,
    /// The bans of one address, in order.
    pub(crate) bans: Vec<Duration>,
    /// The answer to another address, while the first one is banned.
    pub(crate) neighbour: Answer,
    /// The answer after an operator has ended the ban and given the tokens back.
    pub(crate) pardoned: Answer,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    pg_limiter::migrate::migrate(pool).await?;
    let table = "CREATE TABLE bans (address text PRIMARY KEY, times integer NOT NULL DEFAULT 1, last_at timestamptz NOT NULL DEFAULT now())";
    sqlx::raw_sql(table).execute(pool).await?;
    let limiter = Limiter::new(pool.clone(), limits()?);
    let address = "203.0.113.7";
    let mut story =
        Story { served: 0, denied: 0, bans: Vec::new(), neighbour: Answer::Served, pardoned: Answer::Served };
    while story.bans.len() < 3 {
        match serve(&limiter, address).await? {
            Answer::Served => story.served += 1,
            Answer::TooMany(_) => story.denied += 1,
            Answer::Banned(rest) => {
                story.bans.push(rest);
                if story.bans.len() < 3 {
                    limiter.unblock(("banned", address)).await?; // In place of waiting for the end of the ban.
                }
            }
        }
    }
    story.neighbour = serve(&limiter, "198.51.100.4").await?;
    limiter.unblock(("banned", address)).await?;
    limiter.reset([Item::new("requests", address), Item::new("strikes", address)]).await?;
    story.pardoned = serve(&limiter, address).await?;
    Ok(story)
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let story = common::on_a_fresh_database(run).await?;
    println!("{} requests served, {} denied, then banned for {:?}", story.served, story.denied, story.bans);
    println!("another address meanwhile: {:?}; after a pardon: {:?}", story.neighbour, story.pardoned);
    Ok(())
}
