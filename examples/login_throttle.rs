//! Log-ins: failures are counted whatever becomes of the request, and success is free.
//!
//!     cargo run --features embedded --example login_throttle
//!
//! On a database of its own: on the server of `DATABASE_URL`, or on a private PostgreSQL.
//!
//! Two ways to do it. `log_in` checks first, charges when the password was wrong, and resets when it was right: honest
//! users never meet the limit. But attempts at the same moment all pass the check before the first of them is charged.
//! `log_in_strictly` takes a token for every attempt and gives it back after success: no more guesses than tokens,
//! whatever comes at once.

#[cfg(not(test))]
mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use pg_limiter::{Item, Limit, Limiter, Limits, Outcome};
use sqlx::{PgConnection, PgPool};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LogIn {
    Welcome,
    WrongPassword,
    /// A 429 for whoever asks; the password was not looked at.
    ComeBackIn(Duration),
}

/// Everything that a log-in needs.
struct Site {
    pool: PgPool,
    limiter: Limiter,
    /// How many passwords were looked at.
    looks: AtomicUsize,
}

/// One account is guessed from many addresses, and one address guesses many accounts: both have a limit. A key of account
/// *and* address would not see the first, and the account's limit alone lets anybody lock its owner out: be generous there.
fn limits() -> Result<Limits, BoxError> {
    Ok(Limits::new()
        .define("log_in_per_account", Limit::token_bucket(5, Duration::from_secs(15 * 60)))?
        .define("log_in_per_address", Limit::token_bucket(50, Duration::from_secs(3600)))?)
}

fn items(email: &str, address: &str) -> [Item; 2] {
    [Item::new("log_in_per_account", email), Item::new("log_in_per_address", address)]
}

/// Check, then charge on failure, reset on success.
async fn log_in(site: &Site, email: &str, address: &str, password: &str) -> Result<LogIn, BoxError> {
    // First: whoever has no tries left does not even get to guess, and costs no hash.
    if let Outcome::Denied { retry_after } = site.limiter.check(items(email, address)).await?.outcome() {
        return Ok(LogIn::ComeBackIn(retry_after));
    }
    if !password_matches(site, email, password).await? {
        // In a transaction of the limiter's own: the failure counts, whatever becomes of the request. `charge` takes
        // the tokens even if others were faster and none is left: what is owed makes the wait longer.
        let _ = site.limiter.charge(items(email, address)).await?;
        return Ok(LogIn::WrongPassword);
    }
    let mut tx = site.pool.begin().await?;
    begin_session(&mut tx, site, email).await?;
    tx.commit().await?;
    Ok(LogIn::Welcome)
}

/// Every attempt takes its tokens before the password is looked at; success gives them back.
async fn log_in_strictly(site: &Site, email: &str, address: &str, password: &str) -> Result<LogIn, BoxError> {
    if let Outcome::Denied { retry_after } = site.limiter.limit(items(email, address)).await?.outcome() {
        return Ok(LogIn::ComeBackIn(retry_after));
    }
    if !password_matches(site, email, password).await? {
        return Ok(LogIn::WrongPassword);
    }
    let mut tx = site.pool.begin().await?;
    begin_session(&mut tx, site, email).await?;
    let _ = site.limiter.within(&mut tx).credit(("log_in_per_address", address)).await?;
    tx.commit().await?;
    Ok(LogIn::Welcome)
}

/// The account's failures are forgotten with the session's commit. Not those of the address: who has an account of
/// their own could wipe out their guesses at others with it.
async fn begin_session(tx: &mut PgConnection, site: &Site, email: &str) -> Result<(), BoxError> {
    sqlx::query("INSERT INTO sessions (email) VALUES ($1)").bind(email).execute(&mut *tx).await?;
    site.limiter.within(tx).reset(("log_in_per_account", email)).await?;
    Ok(())
}

/// A stand-in: a real one keeps a slow, salted hash (argon2), and takes as long for an account that is not there.
async fn password_matches(site: &Site, email: &str, password: &str) -> Result<bool, BoxError> {
    site.looks.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let kept: Option<String> = sqlx::query_scalar("SELECT stand_in_for_a_hash FROM accounts WHERE email = $1")
        .bind(email)
        .fetch_optional(&site.pool)
        .await?;
    Ok(kept.is_some_and(|kept| kept == password))
}

/// What came of it, for the test.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// Of ann, who mistypes twice; of one who guesses; and of the owner after that.
    pub(crate) ann: Vec<LogIn>,
    pub(crate) guesser: Vec<LogIn>,
    /// What is left for ann's account: after two failures, and after success.
    pub(crate) ann_left: [f64; 2],
    /// Of 20 attempts at once: how many passwords were looked at, and what is left of the account's five tokens.
    pub(crate) at_once: (usize, f64),
    pub(crate) at_once_strictly: (usize, f64),
    /// What is left for the address of a strict log-in that succeeds, and for its account.
    pub(crate) after_success: [f64; 2],
    pub(crate) sessions: i64,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    sqlx::raw_sql(
        "CREATE TABLE accounts (email text PRIMARY KEY, stand_in_for_a_hash text NOT NULL);
         CREATE TABLE sessions (email text NOT NULL, began timestamptz NOT NULL DEFAULT now());
         INSERT INTO accounts VALUES ('ann@example.com', 'xyzzy'), ('bob@example.com', 'plugh'), ('cyd@example.com', '42')",
    )
    .execute(pool)
    .await?;
    let limiter = Limiter::new(pool.clone(), limits()?);
    let site = Site { pool: pool.clone(), limiter, looks: AtomicUsize::new(0) };

    let mut ann = Vec::new();
    let mut ann_left = [0.0; 2];
    for password in ["xyzy", "xzyzy", "xyzzy"] {
        let answer = log_in(&site, "ann@example.com", "192.0.2.1", password).await?;
        let left = left(&site, "log_in_per_account", "ann@example.com").await?;
        println!("ann, {password:?}: {answer:?}; {left} tries left");
        ann.push(answer);
        ann_left = [ann_left[1], left];
    }

    let mut guesser = Vec::new();
    for password in ["123456", "password", "qwerty", "letmein", "dragon", "plugh"] {
        let answer = log_in(&site, "bob@example.com", "198.51.100.7", password).await?;
        println!("a guess at bob, {password:?}: {answer:?}");
        guesser.push(answer);
    }

    // 20 guesses at the same moment, at an account with all of its five tries.
    let before = site.looks.load(Ordering::Relaxed);
    try_join_all((0..20).map(|_| log_in(&site, "cyd@example.com", "203.0.113.1", "guess"))).await?;
    let at_once =
        (site.looks.load(Ordering::Relaxed) - before, left(&site, "log_in_per_account", "cyd@example.com").await?);
    println!("20 guesses at once, checked and then charged: {} were looked at, {} tries left", at_once.0, at_once.1);

    site.limiter.reset(("log_in_per_account", "cyd@example.com")).await?;
    let before = site.looks.load(Ordering::Relaxed);
    try_join_all((0..20).map(|_| log_in_strictly(&site, "cyd@example.com", "203.0.113.2", "guess"))).await?;
    let at_once_strictly =
        (site.looks.load(Ordering::Relaxed) - before, left(&site, "log_in_per_account", "cyd@example.com").await?);
    println!(
        "the same, each taking its token first: {} were looked at, {} tries left",
        at_once_strictly.0, at_once_strictly.1
    );

    let last = log_in_strictly(&site, "ann@example.com", "192.0.2.9", "xyzzy").await?;
    let after_success = [
        left(&site, "log_in_per_address", "192.0.2.9").await?,
        left(&site, "log_in_per_account", "ann@example.com").await?,
    ];
    println!("ann, strictly: {last:?}; {after_success:?} left for her address and account");

    let sessions = sqlx::query_scalar("SELECT count(*) FROM sessions").fetch_one(pool).await?;
    site.limiter.close().await;
    Ok(Story { ann, guesser, ann_left, at_once, at_once_strictly, after_success, sessions })
}

async fn left(site: &Site, limit: &str, key: &str) -> Result<f64, BoxError> {
    Ok(site.limiter.peek((limit, key)).await?.remaining().round())
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
