//! A small API on axum: every address is limited by a layer, and what an account writes is limited in the same transaction
//! as it is written.
//!
//!     cargo run --features axum,embedded --example axum_api
//!     curl -i http://127.0.0.1:3000/messages
//!     curl -i http://127.0.0.1:3000/messages -H 'x-account: ada' -d 'hello'
//!
//! On the database of `DATABASE_URL`, or on a private PostgreSQL. `TRUSTED_PROXIES` has the networks of its proxies, as in
//! `10.0.0.0/8, fd00::/8`. The fourth message of an account is answered with 429, and is not in the table.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use pg_limiter::web::{ClientAddress, HeaderKey, RateLimitLayer, RequestLimits, TrustedProxies};
use pg_limiter::{Limit, Limiter, Limits};
use sqlx::PgPool;

/// Why a handler failed. That it can be made of both errors is all that `?` needs.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) enum ApiError {
    /// A denial, too.
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
    limits.enforce_within(&mut tx).await?; // Last, because its rows stay locked until the commit.
    tx.commit().await?;
    Ok(StatusCode::CREATED)
}

/// The routes, with their limits.
pub(crate) async fn app(pool: &PgPool, proxies: TrustedProxies) -> Result<Router, Box<dyn std::error::Error>> {
    pg_limiter::migrate::migrate(pool).await?;
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS messages (id bigint GENERATED ALWAYS AS IDENTITY, body text NOT NULL)")
        .execute(pool)
        .await?;
    let minute = Duration::from_secs(60);
    let limits = Limits::new()
        .define("per_address", Limit::token_bucket(60, minute).capacity(10))?
        .define("per_account", Limit::token_bucket(3, minute))?;
    let limiter = Limiter::new(pool.clone(), limits);

    // An account would come from a layer that authenticates; here it is what the header says.
    let per_account = RateLimitLayer::new(limiter.clone()).limit("per_account", HeaderKey::new("x-account")?)?;
    let per_address = RateLimitLayer::new(limiter).limit("per_address", ClientAddress::behind(proxies))?;
    Ok(Router::new()
        .route("/messages", get(list))
        .route("/messages", post(send).layer(per_account.in_handler()))
        .layer(per_address)
        .with_state(pool.clone()))
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::net::SocketAddr;

    use pg_limiter::embedded::{Server, ServerConfig};

    let private = match std::env::var("DATABASE_URL") {
        Ok(_) => None,
        Err(_) => Some(Server::start(&ServerConfig::default())?),
    };
    let url = match &private {
        Some(server) => server.url("postgres"),
        None => std::env::var("DATABASE_URL")?,
    };
    let pool = PgPool::connect(&url).await?;
    let proxies = std::env::var("TRUSTED_PROXIES").unwrap_or_default().parse()?;
    let app = app(&pool, proxies).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
