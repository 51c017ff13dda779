//! A cooldown: at least 30 seconds between two password mails to the same address, and at most 5 a day. A cooldown is a
//! token bucket of capacity 1.
//!
//!     cargo run --features embedded --example cooldown
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.

#[cfg(not(test))]
mod common;

use std::time::Duration;

use pg_limiter::{Decision, Item, Limit, Limiter, Limits};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// With a capacity of 1, the bucket is empty after one mail, and the next mail has to wait for the whole pause.
fn limits(pause: Duration) -> Result<Limits, BoxError> {
    let day = Duration::from_secs(86_400);
    Ok(Limits::new()
        .define("password_mail_pause", Limit::token_bucket(1, pause).capacity(1))?
        .define("password_mails_a_day", Limit::sliding_window(5, day).resolution(24))?)
}

/// Writes the mail to the outbox, from which another process sends it. The row and both limits commit together.
async fn send_password_mail(pool: &PgPool, limiter: &Limiter, address: &str) -> Result<Decision, BoxError> {
    // Every spelling of the same mailbox has the same key. Otherwise a capital letter would bypass the limit.
    let key = address.trim().to_lowercase();
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO outbox (address, body) VALUES ($1, 'A link for a new password: ..')")
        .bind(address)
        .execute(&mut *tx)
        .await?;
    // Both limits are in one call: if one denies the mail, the other is not charged.
    let items = [Item::new("password_mail_pause", &key), Item::new("password_mails_a_day", &key)];
    let decision = limiter.within(&mut tx).limit(items).await?;
    if decision.is_denied() {
        // This removes the row, too. Give the user the same answer in every case: "If the account exists, we have sent a mail."
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    Ok(decision)
}

/// The results, which the tests check.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// The decision on a second mail right after the first.
    pub(crate) at_once: Decision,
    /// How many mails were sent with a wait before each, and the denial by the daily limit.
    pub(crate) patient: (usize, Decision),
    pub(crate) outbox: i64,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    sqlx::raw_sql("CREATE TABLE outbox (id bigserial PRIMARY KEY, address text NOT NULL, body text NOT NULL)")
        .execute(pool)
        .await?;

    let limiter = Limiter::new(pool.clone(), limits(Duration::from_secs(30))?);
    let first = send_password_mail(pool, &limiter, "ann@example.com").await?;
    println!("mail 1 to ann: sent, {} allowed without a pause", first.remaining());
    let at_once = send_password_mail(pool, &limiter, " Ann@Example.com").await?;
    println!("mail 2 to ann: denied by {:?}, retry after {:?}", at_once.denied_by(), at_once.retry_after());
    limiter.close().await;

    // With a pause of 100 ms, the example does not take minutes. Limits are defined in the code, so a change to one needs no
    // migration.
    let limiter = Limiter::new(pool.clone(), limits(Duration::from_millis(100))?);
    let mut sent = 0;
    let patient = loop {
        let decision = send_password_mail(pool, &limiter, "bob@example.com").await?;
        match decision.retry_after() {
            None => {
                sent += 1;
                println!("mail {sent} to bob: sent");
            }
            // The `retry_after` of a denial is the longest wait of its limits.
            Some(wait) if wait > Duration::from_secs(1) => break (sent, decision),
            Some(wait) => tokio::time::sleep(wait).await,
        }
    };
    println!("one more: denied by {:?}, retry after {:?}", patient.1.denied_by(), patient.1.retry_after());
    limiter.close().await;

    let outbox = sqlx::query_scalar("SELECT count(*) FROM outbox").fetch_one(pool).await?;
    println!("{outbox} mails in the outbox");
    Ok(Story { at_once, patient, outbox })
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
