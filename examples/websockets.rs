//! Limits WebSockets with axum: an account has at most 2 open sockets, over all processes. Each socket takes 100 messages in advance,
//! and gives back those that it has not sent when it is closed.
//!
//!     cargo run --features axum,embedded --example websockets
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.
//!
//! The layer takes the slot before the handler runs. The handler moves a `RequestHold` into the socket: otherwise the slot would
//! be free again with the response that upgrades the connection. A client that goes away, and a process that dies, free the slot.

#[cfg(not(test))]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::any;
use futures_util::{SinkExt, StreamExt};
use pg_limiter::web::{HeaderKey, RateLimitLayer, RequestHold};
use pg_limiter::{Limit, Limiter, Limits};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::{self, ClientRequestBuilder};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The messages that a socket has sent so far.
#[derive(Clone, Default)]
struct Sent(Arc<AtomicU64>);

async fn chat(upgrade: WebSocketUpgrade, hold: RequestHold) -> Response {
    let sent = Sent::default();
    let counted = sent.clone();
    let mut response = upgrade.on_upgrade(async move |socket| {
        tokio::select! {
            is_closed = echo(socket, &counted) => if is_closed { hold.finish() },
            // The database was away for longer than the lease, and others may have the slot: the socket is dropped.
            () = hold.lost() => {}
        }
    });
    response.extensions_mut().insert(sent); // for the closure of `settle`
    response
}

/// Returns whether the client has closed the socket, and not gone away.
async fn echo(mut socket: WebSocket, sent: &Sent) -> bool {
    while let Some(Ok(message)) = socket.recv().await {
        match message {
            Message::Close(_) => return true,
            Message::Text(_) => {
                sent.0.fetch_add(1, Relaxed);
                if socket.send(message).await.is_err() {
                    return false;
                }
            }
            _ => {}
        }
    }
    false
}

fn app(limiter: &Limiter) -> Result<Router, BoxError> {
    // A real API would take the account from an authentication layer. Here the header is trusted.
    let account = || HeaderKey::new("x-account");
    let layer = RateLimitLayer::new(limiter.clone())
        .limit("sockets", account()?)?
        .limit_with_cost("messages", account()?, |_| 100)?
        .settle(|_, response| response.extensions().get::<Sent>().map(|sent| sent.0.load(Relaxed)));
    Ok(Router::new().route("/chat", any(chat)).layer(layer))
}

/// A process with a pool of its own.
struct Process {
    limiter: Limiter,
    address: std::net::SocketAddr,
    served: JoinHandle<std::io::Result<()>>,
}

async fn process(pool: &PgPool) -> Result<Process, BoxError> {
    let pool = PgPoolOptions::new().max_connections(4).connect_with((*pool.connect_options()).clone()).await?;
    let limits = Limits::new()
        .define("sockets", Limit::concurrency(2).lease(Duration::from_secs(30)))?
        .define("messages", Limit::token_bucket(1_000, Duration::from_secs(86_400)))?;
    let limiter = Limiter::new(pool, limits);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let (address, app) = (listener.local_addr()?, app(&limiter)?);
    Ok(Process { limiter, address, served: tokio::spawn(async move { axum::serve(listener, app).await }) })
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Opens a socket, or returns the status of the response that denies it.
async fn open(process: &Process) -> Result<Result<Socket, u16>, BoxError> {
    let url = format!("ws://{}/chat", process.address).parse()?;
    let request = ClientRequestBuilder::new(url).with_header("x-account", "ann");
    match tokio_tungstenite::connect_async(request).await {
        Ok((socket, _)) => Ok(Ok(socket)),
        Err(tungstenite::Error::Http(response)) => {
            let fields: Vec<_> = response.headers().get("ratelimit").iter().map(|field| field.to_str()).collect();
            println!("denied with {}: {fields:?}", response.status());
            Ok(Err(response.status().as_u16()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Sends messages and waits for their echoes.
async fn talk(socket: &mut Socket, messages: u32) -> Result<(), BoxError> {
    for nth in 0..messages {
        socket.send(tungstenite::Message::text(format!("message {nth}"))).await?;
        socket.next().await.ok_or("the server has closed the socket")??;
    }
    Ok(())
}

/// The results, which the tests check.
#[derive(Debug, Default)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// Whether the third socket was denied while two were open, and the one after one of them was closed.
    pub(crate) denied: [Option<u16>; 2],
    /// The free slots while two sockets are open, and after all have ended.
    pub(crate) free: [f64; 2],
    /// The messages left while two sockets are open, and after one of them has sent 3 messages and was closed.
    pub(crate) messages: [f64; 2],
}

async fn left(limiter: &Limiter, limit: &str) -> Result<f64, BoxError> {
    Ok(limiter.peek((limit, "ann")).await?.remaining().round())
}

/// Slots are released, and tokens settled, in the background.
async fn until_left(limiter: &Limiter, limit: &str, expected: f64) -> Result<f64, BoxError> {
    for _ in 0..500 {
        if left(limiter, limit).await? == expected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    left(limiter, limit).await
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    let (one, two) = (process(pool).await?, process(pool).await?);
    let mut story = Story::default();

    let mut first = open(&one).await?.map_err(|status| format!("{status}"))?;
    let mut second = open(&two).await?.map_err(|status| format!("{status}"))?;
    talk(&mut first, 3).await?;
    talk(&mut second, 1).await?;
    story.denied[0] = open(&one).await?.err();
    story.free[0] = left(&two.limiter, "sockets").await?;
    story.messages[0] = left(&two.limiter, "messages").await?;
    println!("two sockets are open: {} slots and {} messages left", story.free[0], story.messages[0]);

    first.close(None).await?;
    story.messages[1] = until_left(&two.limiter, "messages", 897.0).await?;
    until_left(&two.limiter, "sockets", 1.0).await?;
    println!("the first is closed after 3 messages: {} left", story.messages[1]);
    let third = open(&one).await?;
    story.denied[1] = third.as_ref().err().copied();
    drop((second, third)); // These clients go away.
    story.free[1] = until_left(&two.limiter, "sockets", 2.0).await?;
    println!("all have ended: {} slots", story.free[1]);

    for process in [one, two] {
        process.served.abort();
        process.limiter.close().await;
        process.limiter.pool().close().await;
    }
    Ok(story)
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
