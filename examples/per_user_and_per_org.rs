//! Two limits in one decision: each user may send ten messages an hour, and each organisation as many a day as its plan
//! allows. A message is charged to both limits or to neither.
//!
//!     cargo run --features embedded --example per_user_and_per_org
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.

#[cfg(not(test))]
mod common;

use std::time::Duration;

use pg_limiter::{Decision, InvalidLimit, Item, Limit, Limiter, Limits};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The number of messages that an organisation on this plan may send in a day.
const fn a_day(plan: &str) -> u32 {
    match plan.as_bytes() {
        b"free" => 12,
        _ => 100,
    }
}

/// The organisation's limit. The database stores the plan, and the code defines its numbers. The limit has the same name
/// for every plan, so an organisation keeps its balance when it changes plans.
fn per_org(plan: &str, org: &str) -> Result<Item, InvalidLimit> {
    let limit = Limit::token_bucket(a_day(plan), Duration::from_secs(86_400)).build()?;
    Ok(Item::new(("messages_per_org", limit), org))
}

/// Sends a message if both the user's and the organisation's limit allow it.
async fn send(pool: &PgPool, limiter: &Limiter, org: &str, user: &str) -> Result<Decision, BoxError> {
    let mut tx = pool.begin().await?;
    let plan: String =
        sqlx::query_scalar("SELECT plan FROM orgs WHERE name = $1").bind(org).fetch_one(&mut *tx).await?;
    sqlx::query("INSERT INTO messages (org, author) VALUES ($1, $2)").bind(org).bind(user).execute(&mut *tx).await?;
    let items = [Item::new("messages_per_user", format!("{org}/{user}")), per_org(&plan, org)?];
    let decision = limiter.within(&mut tx).limit(items).await?;
    if decision.is_denied() {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    Ok(decision)
}

/// Upgrades the plan. The next call uses the new plan's limit, but a larger capacity adds no tokens to a bucket. `credit`
/// adds the difference in the transaction that changes the plan. Without `credit`, the bucket would take up to a day to
/// refill; `reset` would also forget what was used.
async fn upgrade(pool: &PgPool, limiter: &Limiter, org: &str) -> Result<(), BoxError> {
    let mut tx = pool.begin().await?;
    sqlx::query("UPDATE orgs SET plan = 'team' WHERE name = $1").bind(org).execute(&mut *tx).await?;
    let more = per_org("team", org)?.count(a_day("team") - a_day("free"));
    let _ = limiter.within(&mut tx).credit(more).await?;
    tx.commit().await?;
    Ok(())
}

/// The results, which the tests check.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// How many of 15 messages ann could send, and which limits denied the last one.
    pub(crate) ann: (usize, Vec<String>),
    /// The same for bob, a user in the same organisation.
    pub(crate) bob: (usize, Vec<String>),
    /// Bob's remaining tokens: messages that the organisation's limit denied were not charged to bob's limit.
    pub(crate) bob_left: f64,
    /// The organisation's remaining tokens after the upgrade, and how many of 15 messages bob could send then.
    pub(crate) upgraded: (f64, usize),
    pub(crate) messages: i64,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    sqlx::raw_sql(
        "CREATE TABLE orgs (name text PRIMARY KEY, plan text NOT NULL);
         CREATE TABLE messages (org text NOT NULL REFERENCES orgs, author text NOT NULL);
         INSERT INTO orgs VALUES ('acme', 'free')",
    )
    .execute(pool)
    .await?;
    let limits = Limits::new().define("messages_per_user", Limit::token_bucket(10, Duration::from_secs(3600)))?;
    let limiter = Limiter::new(pool.clone(), limits);

    let ann = send_fifteen(pool, &limiter, "ann").await?;
    let bob = send_fifteen(pool, &limiter, "bob").await?;
    let bob_left = limiter.peek(("messages_per_user", "acme/bob")).await?.remaining().round();
    println!("bob has {bob_left} tokens left");

    upgrade(pool, &limiter, "acme").await?;
    let org_left = limiter.peek(per_org("team", "acme")?).await?.remaining().round();
    println!("acme upgrades to the larger plan: {org_left} tokens left");
    let more = send_fifteen(pool, &limiter, "bob").await?;

    let messages = sqlx::query_scalar("SELECT count(*) FROM messages").fetch_one(pool).await?;
    println!("{messages} messages in the table");
    limiter.close().await;
    Ok(Story { ann, bob, bob_left, upgraded: (org_left, more.0), messages })
}

/// Returns how many messages were sent, and which limits denied the last one.
async fn send_fifteen(pool: &PgPool, limiter: &Limiter, user: &str) -> Result<(usize, Vec<String>), BoxError> {
    let (mut sent, mut denied_by) = (0, Vec::new());
    for _ in 0..15 {
        let decision = send(pool, limiter, "acme", user).await?;
        if decision.is_denied() {
            denied_by = decision.denied_by().into_iter().map(str::to_owned).collect();
        } else {
            sent += 1;
        }
    }
    println!("{user}: {sent} of 15 messages sent, the last one denied by {denied_by:?}");
    Ok((sent, denied_by))
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
