//! Limits failed log-ins per account and per address. Failures are counted even if the request fails afterwards, and
//! successful log-ins are free.
//!
//!     cargo run --features embedded --example login_throttle
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.
//!
//! There are two ways to do it. `log_in` checks the limits first, charges them if the password is wrong, and resets the
//! account's limit if it is right. But concurrent attempts can all pass the check before the first of them is charged.
//! `log_in_strictly` takes a token for every attempt and gives it back after success: there are never more guesses than
//! tokens, however many attempts are concurrent.

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
    /// The attempt was denied before the password was checked. Respond with 429 and this `retry_after`.
    ComeBackIn(Duration),
}

/// The state that a log-in needs.
struct LoginSite {
    pool: PgPool,
    limiter: Limiter,
    /// The number of passwords checked.
    looks: AtomicUsize,
}

/// An attacker can guess at one account from many addresses, or at many accounts from one address, so both have a limit. A
/// single limit with a key of account *and* address would not stop the first. The account's limit lets an attacker lock its
/// owner out, so be generous there.
fn limits() -> Result<Limits, BoxError> {
    Ok(Limits::new()
        .define("log_in_per_account", Limit::token_bucket(5, Duration::from_secs(15 * 60)))?
        .define("log_in_per_address", Limit::token_bucket(50, Duration::from_secs(3600)))?)
}

fn items(email: &str, address: &str) -> [Item; 2] {
    [Item::new("log_in_per_account", email), Item::new("log_in_per_address", address)]
}

/// Checks the limits first, then charges them on failure or resets the account's limit on success.
async fn log_in(site: &LoginSite, email: &str, address: &str, password: &str) -> Result<LogIn, BoxError> {
    // Check first: without tokens left, no password is checked and no hash is computed.
    if let Outcome::Denied { retry_after } = site.limiter.check(items(email, address)).await?.outcome() {
        return Ok(LogIn::ComeBackIn(retry_after));
    }
    if !password_matches(site, email, password).await? {
        // The limiter uses its own transaction, so the failure counts even if the request fails afterwards. `charge` takes
        // the tokens even if concurrent attempts left none: the balance becomes negative, which makes the wait longer.
        let _ = site.limiter.charge(items(email, address)).await?;
        return Ok(LogIn::WrongPassword);
    }
    let mut tx = site.pool.begin().await?;
    begin_session(&mut tx, site, email).await?;
    tx.commit().await?;
    Ok(LogIn::Welcome)
}

/// Takes tokens for every attempt before the password is checked, and gives them back on success.
async fn log_in_strictly(site: &LoginSite, email: &str, address: &str, password: &str) -> Result<LogIn, BoxError> {
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

/// Creates the session and resets the account's limit: both commit together. The address's limit is not reset. Otherwise
/// attackers could log in to an account of their own to clear their failed guesses at other accounts.
async fn begin_session(tx: &mut PgConnection, site: &LoginSite, email: &str) -> Result<(), BoxError> {
    sqlx::query("INSERT INTO sessions (email) VALUES ($1)").bind(email).execute(&mut *tx).await?;
    site.limiter.within(tx).reset(("log_in_per_account", email)).await?;
    Ok(())
}

/// A stand-in. A real implementation stores a slow, salted hash (argon2), and takes as long for an account that does not
/// exist.
async fn password_matches(site: &LoginSite, email: &str, password: &str) -> Result<bool, BoxError> {
    site.looks.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let kept: Option<String> = sqlx::query_scalar("SELECT stand_in_for_a_hash FROM accounts WHERE email = $1")
        .bind(email)
        .fetch_optional(&site.pool)
        .await?;
    Ok(kept.is_some_and(|kept| kept == password))
}

/// The results, which the tests check.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// The results of ann's log-ins: two with a mistyped password, then one with the right password.
    pub(crate) ann: Vec<LogIn>,
    /// The results of an attacker's guesses at bob's password.
    pub(crate) guesser: Vec<LogIn>,
    /// The tokens left for ann's account: after two failures, and after success.
    pub(crate) ann_left: [f64; 2],
    /// With 20 concurrent calls to `log_in`: how many passwords were checked, and what is left of the account's five tokens.
    pub(crate) at_once: (usize, f64),
    /// The same with `log_in_strictly`.
    pub(crate) at_once_strictly: (usize, f64),
    /// The tokens left for the address and for the account after a successful call to `log_in_strictly`.
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
    let site = LoginSite { pool: pool.clone(), limiter, looks: AtomicUsize::new(0) };

    let mut ann = Vec::new();
    let mut ann_left = [0.0; 2];
    for password in ["xyzy", "xzyzy", "xyzzy"] {
        let answer = log_in(&site, "ann@example.com", "192.0.2.1", password).await?;
        let left = left(&site, "log_in_per_account", "ann@example.com").await?;
        println!("ann, password {password:?}: {answer:?}, {left} attempts left");
        ann.push(answer);
        ann_left = [ann_left[1], left];
    }

    let mut guesser = Vec::new();
    for password in ["123456", "password", "qwerty", "letmein", "dragon", "plugh"] {
        let answer = log_in(&site, "bob@example.com", "198.51.100.7", password).await?;
        println!("an attacker guesses bob's password, {password:?}: {answer:?}");
        guesser.push(answer);
    }

    // 20 concurrent guesses at an account with all of its five tokens.
    let before = site.looks.load(Ordering::Relaxed);
    try_join_all((0..20).map(|_| log_in(&site, "cyd@example.com", "203.0.113.1", "guess"))).await?;
    let at_once =
        (site.looks.load(Ordering::Relaxed) - before, left(&site, "log_in_per_account", "cyd@example.com").await?);
    println!("20 concurrent guesses, charged after the check: {} compared, {} attempts left", at_once.0, at_once.1);

    site.limiter.reset(("log_in_per_account", "cyd@example.com")).await?;
    let before = site.looks.load(Ordering::Relaxed);
    try_join_all((0..20).map(|_| log_in_strictly(&site, "cyd@example.com", "203.0.113.2", "guess"))).await?;
    let at_once_strictly =
        (site.looks.load(Ordering::Relaxed) - before, left(&site, "log_in_per_account", "cyd@example.com").await?);
    println!(
        "20 concurrent guesses, charged first: {} compared, {} attempts left",
        at_once_strictly.0, at_once_strictly.1
    );

    let last = log_in_strictly(&site, "ann@example.com", "192.0.2.9", "xyzzy").await?;
    let after_success = [
        left(&site, "log_in_per_address", "192.0.2.9").await?,
        left(&site, "log_in_per_account", "ann@example.com").await?,
    ];
    println!("ann, charged first: {last:?}; tokens left for her address and account: {after_success:?}");

    let sessions = sqlx::query_scalar("SELECT count(*) FROM sessions").fetch_one(pool).await?;
    site.limiter.close().await;
    Ok(Story { ann, guesser, ann_left, at_once, at_once_strictly, after_success, sessions })
}

async fn left(site: &LoginSite, limit: &str, key: &str) -> Result<f64, BoxError> {
    Ok(site.limiter.peek((limit, key)).await?.remaining().round())
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
