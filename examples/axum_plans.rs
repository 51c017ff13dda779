//! An API for a language model, with axum. Each account has the tokens of its plan, which a layer looks up in a table. The
//! layer takes the most that a request may use, and gives the rest back when the streamed answer has ended. The limit for
//! addresses is in a file, and changes while the API runs.
//!
//!     cargo run --features axum,embedded --example axum_plans
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.

#[cfg(not(test))]
mod common;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::stream;
use http::request::Parts;
use pg_limiter::web::{ClientAddress, RateLimitLayer};
use pg_limiter::{Item, Limit, Limiter, LimitsFile};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const MONTH: Duration = Duration::from_secs(30 * 86_400);

/// The tokens per month of each account, with a cache of those that were used. The cache belongs to the application, so
/// it decides when an entry is outdated.
#[derive(Clone)]
struct Plans {
    pool: PgPool,
    cache: Arc<RwLock<HashMap<String, i64>>>,
}

impl Plans {
    async fn tokens(&self, account: &str) -> Result<i64, sqlx::Error> {
        if let Some(tokens) = self.cache.read().unwrap_or_else(PoisonError::into_inner).get(account) {
            return Ok(*tokens);
        }
        let select = "SELECT tokens FROM accounts JOIN plans USING (plan) WHERE account = $1";
        let tokens = sqlx::query_scalar(select).bind(account).fetch_one(&self.pool).await?;
        self.cache.write().unwrap_or_else(PoisonError::into_inner).insert(account.to_owned(), tokens);
        Ok(tokens)
    }

    /// All plans have limits of one name, so an account keeps its balance. A higher capacity adds nothing at once: the credit
    /// does, and commits with the new plan.
    async fn upgrade(&self, limiter: &Limiter, account: &str, plan: &str) -> Result<(), BoxError> {
        let former = self.tokens(account).await?;
        let mut tx = self.pool.begin().await?;
        let update = "UPDATE accounts SET plan = $2 WHERE account = $1";
        sqlx::query(update).bind(account).bind(plan).execute(&mut *tx).await?;
        let select = "SELECT tokens FROM plans WHERE plan = $1";
        let tokens: i64 = sqlx::query_scalar(select).bind(plan).fetch_one(&mut *tx).await?;
        limiter.within(&mut tx).credit(item(account, tokens)?.count(tokens - former)).await?;
        tx.commit().await?;
        self.cache.write().unwrap_or_else(PoisonError::into_inner).remove(account);
        Ok(())
    }
}

/// One token of an account. Its plan says how many tokens it has per month.
fn item(account: &str, tokens: i64) -> Result<Item, pg_limiter::InvalidLimit> {
    Ok(Item::new(("llm_tokens", Limit::token_bucket(tokens, MONTH).build()?), account))
}

/// The most tokens that a request may use.
fn max_tokens(request: &Parts) -> u32 {
    let given = request.headers.get("x-max-tokens").and_then(|most| most.to_str().ok()?.parse().ok());
    given.unwrap_or(1000)
}

/// The tokens that an answer has used. Providers report them at its end. If the answer is cut before, they are unknown, and the
/// estimate stays charged.
#[derive(Clone, Default)]
struct Usage(Arc<OnceLock<u64>>);

/// Streams an answer of 15 parts with 10 tokens each.
async fn complete() -> impl IntoResponse {
    let usage = Usage::default();
    let reported = usage.clone();
    let parts = stream::unfold(0, move |part| {
        let reported = reported.clone();
        async move {
            if part == 15 {
                let _ = reported.0.set(150);
                return None;
            }
            Some((Ok::<_, BoxError>(Bytes::from_static(b"ten tokens ")), part + 1))
        }
    });
    (Extension(usage), Body::from_stream(parts))
}

fn app(limiter: &Limiter, plans: &Plans) -> Result<Router, BoxError> {
    let plans = plans.clone();
    let layer = RateLimitLayer::new(limiter.clone())
        .limit("per_address", ClientAddress::direct())?
        .limit_by_async(move |request| {
            // A real API would take the account from an authentication layer. Here the header is trusted.
            let account = request.headers.get("x-account").and_then(|account| account.to_str().ok()).map(str::to_owned);
            let (plans, most) = (plans.clone(), max_tokens(request));
            async move {
                let Some(account) = account else { return Ok(None) };
                let tokens = plans.tokens(&account).await?;
                Ok::<_, BoxError>(Some(item(&account, tokens)?.count(most)))
            }
        })
        .settle_limit("llm_tokens", |_, response| response.extensions().get::<Usage>()?.0.get().copied())?;
    Ok(Router::new().route("/complete", get(complete)).layer(layer))
}

/// The results of the example.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// The statuses of the requests of one account, and the tokens that were left after each.
    pub(crate) ann: Vec<(u16, f64)>,
    /// The statuses before and after the file changed, and after it was wrong.
    pub(crate) addresses: [Vec<u16>; 3],
    /// The error of the wrong file.
    pub(crate) mistake: String,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    sqlx::raw_sql(
        "CREATE TABLE plans (plan text PRIMARY KEY, tokens bigint NOT NULL);
         CREATE TABLE accounts (account text PRIMARY KEY, plan text NOT NULL REFERENCES plans);
         INSERT INTO plans VALUES ('free', 1000), ('paid', 10000);
         INSERT INTO accounts VALUES ('ann', 'free')",
    )
    .execute(pool)
    .await?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("limits.toml");
    let per_address = |rate: i32| {
        std::fs::write(
            &path,
            format!("limits.per_address = {{ kind = \"token_bucket\", rate = {rate}, period = \"30d\" }}"),
        )
    };
    per_address(6)?;
    let file = LimitsFile::new(&path); // A daemon also calls on_sighup().
    let limiter = Limiter::new(pool.clone(), file.read()?);
    let watch = limiter.watch_limits_file(file)?;

    let plans = Plans { pool: pool.clone(), cache: Arc::default() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/complete", listener.local_addr()?);
    let app = app(&limiter, &plans)?.into_make_service_with_connect_info::<std::net::SocketAddr>();
    let served = tokio::spawn(async move { axum::serve(listener, app).await });
    let client = reqwest::Client::new();
    let mut story = Story::default();

    for (max_tokens, used) in [(400, 150), (900, 0)] {
        ask(&client, &url, &limiter, &plans, (max_tokens, used), &mut story).await?;
    }
    plans.upgrade(&limiter, "ann", "paid").await?;
    println!("ann has the plan paid");
    ask(&client, &url, &limiter, &plans, (900, 150), &mut story).await?;

    let statuses = async || {
        let mut statuses = Vec::new();
        for _ in 0..5 {
            statuses.push(client.get(&url).send().await?.status().as_u16());
        }
        Ok::<_, BoxError>(statuses)
    };
    story.addresses[0] = statuses().await?;
    per_address(0)?;
    story.mistake = watch.reload().await.err().map(|error| error.to_string()).unwrap_or_default();
    println!("{}", story.mistake);
    story.addresses[1] = statuses().await?;
    limiter.reset(("per_address", "127.0.0.1")).await?;
    per_address(100)?;
    watch.reload().await?; // Or wait: the file is read every 5 seconds.
    story.addresses[2] = statuses().await?;
    println!("an address is allowed 6 requests, 6 with a wrong file, then 100: {:?}", story.addresses);
    served.abort();
    Ok(story)
}

/// Sends a request of Ann's, and waits until it is settled.
async fn ask(
    client: &reqwest::Client,
    url: &str,
    limiter: &Limiter,
    plans: &Plans,
    (max_tokens, used): (u32, u32),
    story: &mut Story,
) -> Result<(), BoxError> {
    let tokens = plans.tokens("ann").await?;
    let left = async || Ok::<_, BoxError>(limiter.peek(item("ann", tokens)?).await?.remaining().round());
    let before = left().await?;
    let request = client.get(url).header("x-account", "ann").header("x-max-tokens", max_tokens);
    let response = request.send().await?;
    let status = response.status().as_u16();
    response.bytes().await?;
    let mut now = left().await?;
    for _ in 0..500 {
        if now == before - f64::from(used) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        now = left().await?;
    }
    println!("ann may use {max_tokens}: {status}; she had {before} tokens and has {now} now");
    story.ann.push((status, now));
    Ok(())
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
