//! Two processes call the same third party, which allows 5 requests and responds 429 to the next one. The middleware pauses both
//! of them until the time that the response demands.
//!
//!     cargo run --features embedded,reqwest --example outgoing
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set. It takes
//! about 3 seconds. The third party is an HTTP server in this process.

#[cfg(not(test))]
mod common;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use pg_limiter::outgoing::OutgoingLimits;
use pg_limiter::{Limit, Limiter, Limits};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The number of requests that the third party serves before it demands a pause, and the pause.
const REQUESTS: usize = 5;
const PAUSE: Duration = Duration::from_secs(2);

/// The requests that the third party has received.
#[derive(Debug, Default)]
pub(crate) struct ThirdParty {
    /// The senders of the requests that it served, in order.
    pub(crate) served: Vec<String>,
    /// The senders of the requests that it refused.
    pub(crate) refused: Vec<String>,
    /// How many of the refused requests came during a pause.
    pub(crate) too_early: usize,
    since_pause: usize,
    pause_ends: Option<Instant>,
}

async fn send_mail(Path(sender): Path<String>, State(third_party): State<Arc<Mutex<ThirdParty>>>) -> Response {
    let mut this = third_party.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let is_paused = this.pause_ends.is_some_and(|end| now < end);
    if is_paused || this.since_pause == REQUESTS {
        this.too_early += usize::from(is_paused);
        (this.since_pause, this.pause_ends) = (0, Some(now + PAUSE));
        this.refused.push(sender);
        return (StatusCode::TOO_MANY_REQUESTS, [("Retry-After", PAUSE.as_secs().to_string())]).into_response();
    }
    this.since_pause += 1;
    this.served.push(sender);
    StatusCode::OK.into_response()
}

/// A client as each process has one, with a pool of its own.
async fn process(pool: &PgPool) -> Result<(Limiter, ClientWithMiddleware), BoxError> {
    let pool = PgPoolOptions::new().max_connections(4).connect_with((*pool.connect_options()).clone()).await?;
    let limits = Limits::new()
        .define("mail_api", Limit::token_bucket(20, Duration::from_secs(1)))?
        .define("mail_api_pause", Limit::gate())?;
    let limiter = Limiter::new(pool, limits);
    let outgoing = OutgoingLimits::new(limiter.clone()).limit(("mail_api", ""))?.gate(("mail_api_pause", ""))?;
    Ok((limiter, ClientBuilder::new(reqwest::Client::new()).with(outgoing).build()))
}

/// The results, which the tests check.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    pub(crate) third_party: ThirdParty,
    /// The statuses that the two processes got.
    pub(crate) statuses: [Vec<u16>; 2],
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    let third_party = Arc::<Mutex<ThirdParty>>::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let router = Router::new().route("/mails/{sender}", post(send_mail)).with_state(Arc::clone(&third_party));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });

    let ((one_limiter, one), (two_limiter, two)) = (process(pool).await?, process(pool).await?);
    let began = Instant::now();
    let send = async |client: &ClientWithMiddleware, name: &str, mails: usize| {
        let mut statuses = Vec::new();
        for nth in 1..=mails {
            let response = client.post(format!("{url}/mails/{name}")).body("hello").send().await?;
            println!("{:.1} s: {name}, request {nth}: {}", began.elapsed().as_secs_f64(), response.status());
            statuses.push(response.status().as_u16());
        }
        Ok::<_, BoxError>(statuses)
    };
    // The second process begins during the pause.
    let is_over = || third_party.lock().unwrap_or_else(PoisonError::into_inner).served.len() > REQUESTS;
    let second = async {
        while two_limiter.is_blocked(("mail_api_pause", "")).await?.is_none() && !is_over() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!("{:.1} s: both processes pause", began.elapsed().as_secs_f64());
        send(&two, "two", 2).await
    };
    let (first, second) = tokio::join!(send(&one, "one", REQUESTS + 1), second);
    let statuses = [first?, second?];

    server.abort();
    for limiter in [one_limiter, two_limiter] {
        limiter.close().await;
        limiter.pool().close().await;
    }
    let third_party = std::mem::take(&mut *third_party.lock().unwrap_or_else(PoisonError::into_inner));
    let ThirdParty { served, refused, too_early, .. } = &third_party;
    println!("served {}, refused {}, of which {too_early} during the pause", served.len(), refused.len());
    Ok(Story { third_party, statuses })
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(async |pool| run(pool).await.map(drop)).await
}
