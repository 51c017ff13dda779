//! A limit and the application's own row commit or roll back together.
//!
//!     cargo run --features embedded --example in_transaction
//!
//! On the database of `DATABASE_URL`, or on a private PostgreSQL.

use std::time::Duration;

use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::{Decision, Item, Limit, Limiter, Limits, Outcome};
use sqlx::PgPool;

/// Sends a message if the limits allow it.
async fn send(
    pool: &PgPool,
    limiter: &Limiter,
    author: &str,
    text: &str,
) -> Result<Decision, Box<dyn std::error::Error>> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO messages (author, body) VALUES ($1, $2)")
        .bind(author)
        .bind(text)
        .execute(&mut *tx)
        .await?;
    // Last, because its rows stay locked until the commit.
    let items = [Item::new("per_user", author), Item::global("everybody")];
    let decision = limiter.within(&mut tx).limit(items).await?;
    if decision.is_denied() {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    Ok(decision)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let private = match std::env::var("DATABASE_URL") {
        Ok(_) => None,
        Err(_) => Some(Server::start(&ServerConfig::default())?),
    };
    let url = match &private {
        Some(server) => server.url("postgres"),
        None => std::env::var("DATABASE_URL")?,
    };
    let pool = PgPool::connect(&url).await?;
    pg_limiter::migrate::migrate(&pool).await?;
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS messages (author text, body text)").execute(&pool).await?;

    let minute = Duration::from_secs(60);
    let limits = Limits::new()
        .define("per_user", Limit::token_bucket(3, minute))?
        .define("everybody", Limit::fixed_window(100, minute))?;
    let limiter = Limiter::new(pool.clone(), limits);
    for nth in 1..=5 {
        let decision = send(&pool, &limiter, "u1", "hello").await?;
        match decision.outcome() {
            Outcome::Denied { retry_after } => {
                println!("message {nth}: refused by {}, retry after {retry_after:?}", decision.denied_by().join(", "));
            }
            _ => println!("message {nth}: sent, {} left", decision.remaining().floor()),
        }
    }
    let sent: i64 = sqlx::query_scalar("SELECT count(*) FROM messages").fetch_one(&pool).await?;
    println!("{sent} messages in the table, {:?} tokens left", limiter.peek(("per_user", "u1")).await?.least());
    pool.close().await;
    Ok(())
}
