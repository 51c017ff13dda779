//! A small API with axum. A layer limits every client address, and each account's messages are limited in the transaction
//! that writes them.
//!
//!     cargo run --features axum,embedded --example axum_api
//!
//! sends requests to the API and prints the responses. To send your own requests, start the API with `serve`:
//!
//!     cargo run --features axum,embedded --example axum_api -- serve
//!     curl -i http://127.0.0.1:3000/messages
//!     curl -i http://127.0.0.1:3000/messages -H 'x-account: ann' -d 'hello'
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set. If the
//! API is behind proxies, set `TRUSTED_PROXIES` to their networks, as in `10.0.0.0/8, fd00::/8`.

#[cfg(not(test))]
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use pg_limiter::web::{ClientAddress, HeaderKey, RateLimitLayer, RequestLimits, TrustedProxies};
use pg_limiter::{Limit, Limiter, Limits};
use sqlx::PgPool;
use tokio::task::JoinHandle;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a handler failed. `?` converts both errors to it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum ApiError {
    /// An error of the limiter, which includes denials.
    Limit(#[from] pg_limiter::Error),
    Database(#[from] sqlx::Error),
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            Self::Limit(error) => error.into_response(),
            Self::Database(error) => {
                eprintln!("{error}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

async fn list(State(pool): State<PgPool>) -> Result<String, ApiError> {
    let messages: Vec<String> = sqlx::query_scalar("SELECT body FROM messages ORDER BY id").fetch_all(&pool).await?;
    Ok(messages.join("\n"))
}

/// The message and its token commit or roll back together.
async fn send(State(pool): State<PgPool>, limits: RequestLimits, body: String) -> Result<StatusCode, ApiError> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO messages (body) VALUES ($1)").bind(&body).execute(&mut *tx).await?;
    limits.enforce_within(&mut tx).await?; // Take the limits last: their rows stay locked until the commit.
    tx.commit().await?;
    Ok(StatusCode::CREATED)
}

/// The routes, with their limits.
fn app(pool: &PgPool, proxies: TrustedProxies) -> Result<Router, BoxError> {
    let minute = Duration::from_secs(60);
    let limits = Limits::new()
        .define("per_address", Limit::token_bucket(60, minute).capacity(10))?
        .define("per_account", Limit::token_bucket(3, minute))?;
    let limiter = Limiter::new(pool.clone(), limits);

    // A real API would take the account from an authentication layer. Here the header is trusted.
    let per_account = RateLimitLayer::new(limiter.clone()).limit("per_account", HeaderKey::new("x-account")?)?;
    let per_address = RateLimitLayer::new(limiter).limit("per_address", ClientAddress::behind(proxies))?;
    Ok(Router::new()
        .route("/messages", get(list))
        .route("/messages", post(send).layer(per_account.in_handler()))
        .layer(per_address)
        .with_state(pool.clone()))
}

/// Serves the API in the background.
async fn serve(
    pool: &PgPool,
    address: &str,
    proxies: TrustedProxies,
) -> Result<(SocketAddr, JoinHandle<()>), BoxError> {
    sqlx::raw_sql("CREATE TABLE messages (id bigserial PRIMARY KEY, body text NOT NULL)").execute(pool).await?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let app = app(pool, proxies)?.into_make_service_with_connect_info::<SocketAddr>();
    let served = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            eprintln!("{error}");
        }
    });
    Ok((address, served))
}

/// The results, which the tests check.
#[derive(Debug, Default)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// The statuses for four messages of one account.
    pub(crate) ann: Vec<u16>,
    /// The policies, `retry-after` and body in the response to the last of them, which is denied.
    pub(crate) policies: Vec<String>,
    pub(crate) retry_after: u64,
    pub(crate) problem: String,
    /// The messages in the table after that.
    pub(crate) messages: String,
    /// The statuses for a client that forges another address in every request, until it is denied.
    pub(crate) spoofer: Vec<u16>,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    // This program acts as its own trusted proxy, so the last address in X-Forwarded-For is the client's.
    let (address, served) = serve(pool, "127.0.0.1:0", "127.0.0.1".parse()?).await?;
    let url = format!("http://{address}/messages");
    let client = reqwest::Client::new();
    let mut story = Story::default();

    for nth in 1..=4 {
        let request = client.post(&url).header("x-account", "ann").header("x-forwarded-for", "192.0.2.1");
        let response = request.body(format!("message {nth}")).send().await?;
        println!("message {nth} by ann: {}", response.status());
        story.ann.push(response.status().as_u16());
        if nth == 4 {
            let texts =
                |name| response.headers().get_all(name).iter().flat_map(|value| value.to_str()).map(String::from);
            story.policies = texts("ratelimit-policy").collect();
            story.retry_after = texts("retry-after").next().unwrap_or_default().parse()?;
            story.problem = response.text().await?;
        }
    }
    println!("  {}\n  retry after {} s\n  {}", story.policies.join("\n  "), story.retry_after, story.problem);

    let response = client.get(&url).header("x-forwarded-for", "192.0.2.2").send().await?;
    story.messages = response.text().await?;
    println!("in the table: {}", story.messages.replace('\n', ", "));

    while story.spoofer.last() != Some(&429) && story.spoofer.len() < 1000 {
        let forwarded = format!("198.51.100.{}, 192.0.2.3", story.spoofer.len() % 256);
        let response = client.get(&url).header("x-forwarded-for", forwarded).send().await?;
        story.spoofer.push(response.status().as_u16());
    }
    println!("with a forged address in every request: denied at request {}", story.spoofer.len());
    served.abort();
    Ok(story)
}

/// Serves the API until you press Enter.
#[cfg(not(test))]
async fn run_for_curl(pool: &PgPool) -> Result<(), BoxError> {
    let proxies = std::env::var("TRUSTED_PROXIES").unwrap_or_default().parse()?;
    let (address, served) = serve(pool, "127.0.0.1:3000", proxies).await?;
    println!("serving http://{address}/messages; press Enter to stop");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    served.abort();
    Ok(())
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return common::on_a_fresh_database(run_for_curl).await;
    }
    common::on_a_fresh_database(run).await.map(drop)
}
