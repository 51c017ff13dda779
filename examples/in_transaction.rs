//! Takes a limit in the application's own transaction, so that the tokens and the application's row commit or roll back
//! together. If the transaction fails after the limit allowed it, no tokens are spent.
//!
//!     cargo run --features embedded --example in_transaction
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.

#[cfg(not(test))]
mod common;

use std::time::Duration;

use pg_limiter::{Decision, Item, Limit, Limiter, Limits, Outcome};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Sends a message if the limits allow it.
async fn send(pool: &PgPool, limiter: &Limiter, author: &str, text: &str) -> Result<Decision, BoxError> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO messages (author, body) VALUES ($1, $2)")
        .bind(author)
        .bind(text)
        .execute(&mut *tx)
        .await?;
    // Take the limits last: their rows stay locked until the commit.
    let items = [Item::new("per_user", author), Item::global("everybody")];
    let decision = limiter.within(&mut tx).limit(items).await?;
    if decision.is_allowed() {
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    Ok(decision)
}

/// The results, which the tests check.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    pub(crate) sent: i64,
    pub(crate) denied: usize,
    /// The tokens left: for the user with messages, for the user without, and in the global limit.
    pub(crate) left: [f64; 3],
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    // COMMIT checks the foreign key of the author, which is after the limit was taken.
    sqlx::raw_sql(
        "CREATE TABLE users (name text PRIMARY KEY);
         CREATE TABLE messages (author text NOT NULL REFERENCES users DEFERRABLE INITIALLY DEFERRED, body text NOT NULL);
         INSERT INTO users VALUES ('ann')",
    )
    .execute(pool)
    .await?;

    let hour = Duration::from_secs(3600);
    let limits = Limits::new()
        .define("per_user", Limit::token_bucket(3, hour))?
        .define("everybody", Limit::token_bucket(100, hour * 24))?;
    let limiter = Limiter::new(pool.clone(), limits);

    let mut denied = 0;
    for nth in 1..=5 {
        let decision = send(pool, &limiter, "ann", "hello").await?;
        match decision.outcome() {
            Outcome::Denied { retry_after } => {
                denied += 1;
                println!("message {nth}: denied by {}, retry after {retry_after:?}", decision.denied_by().join(", "));
            }
            Outcome::Allowed => println!("message {nth}: sent, {} left", decision.remaining().round()),
            _ => return Err("unexpected reservation".into()),
        }
    }

    // The limits allow this message, and then the transaction fails: no message is stored and no token is spent.
    if let Err(error) = send(pool, &limiter, "nobody", "hello").await {
        println!("a message by an unknown author: {error}");
    }

    let sent: i64 = sqlx::query_scalar("SELECT count(*) FROM messages").fetch_one(pool).await?;
    let balances = limiter
        .peek([Item::new("per_user", "ann"), Item::new("per_user", "nobody"), Item::global("everybody")])
        .await?;
    let left = [balances[0].round(), balances[1].round(), balances[2].round()];
    println!(
        "{sent} messages in the table; tokens left: {} for ann, {} for the unknown author, {} in the global limit",
        left[0], left[1], left[2]
    );
    limiter.close().await;
    Ok(Story { sent, denied, left })
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
