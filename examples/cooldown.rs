//! A cooldown: 30 seconds at least between two password mails to one address, and 5 a day at most.
//!
//!     cargo run --features embedded --example cooldown
//!
//! On a database of its own: on the server of `DATABASE_URL`, or on a private PostgreSQL.

#[cfg(not(test))]
mod common;

use std::time::Duration;

use pg_limiter::{Decision, Item, Limit, Limiter, Limits};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A least distance is a token bucket of capacity 1: after one, the next has to wait for the whole pause.
fn limits(pause: Duration) -> Result<Limits, BoxError> {
    let day = Duration::from_secs(86_400);
    Ok(Limits::new()
        .define("password_mail_pause", Limit::token_bucket(1, pause).capacity(1))?
        .define("password_mails_a_day", Limit::sliding_window(5, day).resolution(24))?)
}

/// Puts the mail into the outbox, from which another process sends it: the row and both limits commit together.
async fn send_password_mail(pool: &PgPool, limiter: &Limiter, address: &str) -> Result<Decision, BoxError> {
    // One key for all that reaches the same box, or a capital letter would be a way around.
    let key = address.trim().to_lowercase();
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO outbox (address, body) VALUES ($1, 'A link for a new password: ..')")
        .bind(address)
        .execute(&mut *tx)
        .await?;
    // In one call: refused by one, it is not counted by the other.
    let items = [Item::new("password_mail_pause", &key), Item::new("password_mails_a_day", &key)];
    let decision = limiter.within(&mut tx).limit(items).await?;
    if decision.is_denied() {
        tx.rollback().await?; // The row as well. Tell them all the same that a mail was sent, if there is such an account.
    } else {
        tx.commit().await?;
    }
    Ok(decision)
}

/// What came of it, for the test.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// The second mail, right after the first.
    pub(crate) at_once: Decision,
    /// Who had the patience to wait for each: how many mails there were, and the one too many.
    pub(crate) patient: (usize, Decision),
    pub(crate) outbox: i64,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    sqlx::raw_sql("CREATE TABLE outbox (id bigserial PRIMARY KEY, address text NOT NULL, body text NOT NULL)")
        .execute(pool)
        .await?;

    let limiter = Limiter::new(pool.clone(), limits(Duration::from_secs(30))?);
    let first = send_password_mail(pool, &limiter, "ann@example.com").await?;
    println!("a mail to ann: sent, {} left at once", first.remaining());
    let at_once = send_password_mail(pool, &limiter, " Ann@Example.com").await?;
    println!("and another: refused by {:?}, retry after {:?}", at_once.denied_by(), at_once.retry_after());
    limiter.close().await;

    // With a pause of 100 ms, so that nobody has to wait for minutes here. Limits live in the code: no migration for
    // that.
    let limiter = Limiter::new(pool.clone(), limits(Duration::from_millis(100))?);
    let mut sent = 0;
    let patient = loop {
        let decision = send_password_mail(pool, &limiter, "bob@example.com").await?;
        match decision.retry_after() {
            None => {
                sent += 1;
                println!("mail {sent} to bob: sent");
            }
            // A denial carries the longest of the waits.
            Some(wait) if wait > Duration::from_secs(1) => break (sent, decision),
            Some(wait) => tokio::time::sleep(wait).await,
        }
    };
    println!("one more: refused by {:?}, retry after {:?}", patient.1.denied_by(), patient.1.retry_after());
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
