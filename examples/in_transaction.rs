//! A limit and the application's own row commit or roll back together.
//!
//!     cargo run --features embedded --example in_transaction
//!
//! On a database of its own: on the server of `DATABASE_URL`, or on a private PostgreSQL.

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
    // Last, because its rows stay locked until the commit.
    let items = [Item::new("per_user", author), Item::global("everybody")];
    let decision = limiter.within(&mut tx).limit(items).await?;
    if decision.is_allowed() {
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    Ok(decision)
}

/// What came of it, for the test.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    pub(crate) sent: i64,
    pub(crate) denied: usize,
    /// The balances of who sent messages, of who could not, and of everybody together.
    pub(crate) left: [f64; 3],
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    // Whether the author is there is looked at by COMMIT, after the limit was taken.
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
                println!("message {nth}: refused by {}, retry after {retry_after:?}", decision.denied_by().join(", "));
            }
            Outcome::Allowed => println!("message {nth}: sent, {} left", decision.remaining().round()),
            _ => return Err("nothing is reserved here".into()),
        }
    }

    // The limits allow this one, and then the transaction fails: no message, and no token gone.
    if let Err(error) = send(pool, &limiter, "nobody", "hello").await {
        println!("a message of nobody: {error}");
    }

    let sent: i64 = sqlx::query_scalar("SELECT count(*) FROM messages").fetch_one(pool).await?;
    let balances = limiter
        .peek([Item::new("per_user", "ann"), Item::new("per_user", "nobody"), Item::global("everybody")])
        .await?;
    let left = [balances[0].round(), balances[1].round(), balances[2].round()];
    println!(
        "{sent} messages in the table; ann has {} tokens left, nobody {}, everybody {}",
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
