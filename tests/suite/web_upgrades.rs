//! Connections that are upgraded by a response, which hold the slots and tokens of their request: real WebSockets and tunnels, over
//! HTTP/1.1 and HTTP/2.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{Method, StatusCode};
use http_body_util::Empty;
use hyper::client::conn;
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pg_limiter::web::{HeaderKey, RateLimitLayer, RequestHold, RequestLimits};
use pg_limiter::{Limit, Limiter, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{self, ClientRequestBuilder};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::support::web::Served;
use crate::support::{Database, Events, watch};
use crate::web_settle::YEAR;

/// The messages of a socket so far.
#[derive(Clone, Default)]
struct Messages(Arc<AtomicU64>);

/// Echoes messages until the client closes the socket.
async fn echo(mut socket: WebSocket, hold: RequestHold, messages: Messages) {
    loop {
        let received = tokio::select! {
            received = socket.recv() => received,
            () = hold.lost() => {
                let _ = socket.send(Message::text("lost")).await;
                return;
            }
        };
        match received {
            Some(Ok(Message::Text(text))) if text == "crash" => panic!("the connection's task fails"),
            Some(Ok(message @ Message::Text(_))) => {
                messages.0.fetch_add(1, Ordering::Relaxed);
                if socket.send(message).await.is_err() {
                    return;
                }
            }
            Some(Ok(Message::Close(_))) | None => return hold.finish(),
            Some(Ok(_)) => {}
            Some(Err(_)) => return,
        }
    }
}

async fn chat(upgrade: WebSocketUpgrade, hold: RequestHold) -> Response {
    let messages = Messages::default();
    let counted = messages.clone();
    let mut response = upgrade.on_upgrade(async move |socket| echo(socket, hold, counted).await);
    response.extensions_mut().insert(messages);
    response
}

/// Takes nothing with it into the connection.
async fn careless(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async |mut socket| while let Some(Ok(_)) = socket.recv().await {})
}

/// Takes its own slot in a room first.
async fn room(
    limits: RequestLimits,
    upgrade: WebSocketUpgrade,
    hold: RequestHold,
) -> Result<Response, pg_limiter::Error> {
    limits.and(("rooms", "main")).enforce().await?;
    Ok(upgrade.on_upgrade(async move |socket| echo(socket, hold, Messages::default()).await))
}

/// A tunnel that echoes, as of a proxy.
async fn tunnel(request: Request) -> Response {
    if request.method() != Method::CONNECT {
        return StatusCode::NOT_FOUND.into_response();
    }
    let is_careless = request.headers().contains_key("x-careless");
    let hold = (!is_careless).then(|| RequestHold::of(request.extensions()));
    tokio::spawn(async move {
        let mut stream = TokioIo::new(hyper::upgrade::on(request).await.expect("an upgrade"));
        let mut byte = [0];
        while let Ok(1) = stream.read(&mut byte).await {
            stream.write_all(&byte).await.expect("written");
            stream.flush().await.expect("flushed");
        }
        hold.map(RequestHold::finish)
    });
    StatusCode::OK.into_response()
}

struct Chat {
    _database: Database,
    limiter: Limiter,
    served: Served,
}

impl Chat {
    async fn start(lease: Duration, change: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> Self {
        let database = Database::migrated().await;
        let limits = Limits::new()
            .define("sockets", Limit::concurrency(2).lease(lease))
            .and_then(|limits| limits.define("rooms", Limit::concurrency(2).lease(lease)))
            .and_then(|limits| limits.define("messages", Limit::token_bucket(100, YEAR)))
            .expect("limits");
        let limiter = database.limiter(limits);
        let key = || HeaderKey::new("x-user").expect("a name");
        let layer = RateLimitLayer::new(limiter.clone())
            .limit("sockets", key())
            .and_then(|layer| layer.limit_with_cost("messages", key(), |_| 20))
            .expect("limits")
            .settle(|_, response| response.extensions().get::<Messages>().map(|seen| seen.0.load(Ordering::Relaxed)));
        let inner = RateLimitLayer::new(limiter.clone()).in_handler();
        let app = Router::new()
            .route("/chat", any(chat))
            .route("/careless", any(careless))
            .route("/room", any(room).layer(inner))
            .fallback(tunnel)
            .layer(change(layer));
        Self { _database: database, limiter, served: Served::start(app).await }
    }

    fn address(&self) -> &str {
        self.served.url.strip_prefix("http://").expect("an address")
    }

    async fn open(&self, path: &str) -> Result<WebSocketStream<MaybeTlsStream<TcpStream>>, StatusCode> {
        let url = format!("ws://{}{path}", self.address()).parse().expect("a URL");
        let request = ClientRequestBuilder::new(url).with_header("x-user", "u1");
        match tokio_tungstenite::connect_async(request).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(response)) => Err(response.status()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn left(&self, limit: &str, key: &str) -> f64 {
        self.limiter.peek((limit, key)).await.expect("a balance").remaining().round()
    }

    async fn until_left(&self, limit: &str, key: &str, left: f64) {
        for _ in 0..1_000 {
            if self.left(limit, key).await == left {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{} of {limit} are left, and not {left}", self.left(limit, key).await);
    }
}

/// Sends a text, and waits for its echo.
async fn say<S>(socket: &mut WebSocketStream<S>, text: &str)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    socket.send(tungstenite::Message::text(text)).await.expect("sent");
    let answer = socket.next().await.expect("an answer").expect("an answer");
    assert_eq!(answer.into_text().expect("text"), text);
}

#[tokio::test]
async fn a_websocket_holds_its_slot_until_it_ends() {
    let events = Events::default();
    let _watched = watch(events.clone());
    let chat = Chat::start(YEAR, |layer| layer).await;
    let mut first = chat.open("/chat").await.expect("open");
    let mut second = chat.open("/chat").await.expect("open");
    for _ in 0..3 {
        assert_eq!(chat.open("/chat").await.err(), Some(StatusCode::TOO_MANY_REQUESTS));
    }
    say(&mut first, "hello").await;
    say(&mut second, "hello").await;
    assert_eq!(chat.left("sockets", "u1").await, 0.0);
    first.close(None).await.expect("closed");
    chat.until_left("sockets", "u1", 1.0).await;
    // A connection that breaks gives its slot back, too. The same is true if its task panics.
    drop(second);
    chat.until_left("sockets", "u1", 2.0).await;
    let mut third = chat.open("/chat").await.expect("open");
    third.send(tungstenite::Message::text("crash")).await.expect("sent");
    chat.until_left("sockets", "u1", 2.0).await;
    assert!(!events.told().contains("holds nothing"), "{}", events.told());
}

#[tokio::test]
async fn a_websocket_without_a_hold_gives_its_slot_back_and_is_reported() {
    let events = Events::default();
    let _watched = watch(events.clone());
    let chat = Chat::start(YEAR, |layer| layer).await;
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.push(chat.open("/careless").await.expect("open"));
        chat.until_left("sockets", "u1", 2.0).await;
    }
    let told = events.told();
    assert_eq!(told.matches("an upgraded connection holds nothing").count(), 3, "{told}");
    assert!(told.contains(r#"limits=["sockets", "messages"]"#) && !told.contains("u1"), "{told}");
    // The usage of the socket is not known, so the estimate stays.
    assert_eq!(chat.left("messages", "u1").await, 40.0);
}

#[tokio::test]
async fn a_websocket_is_settled_when_it_is_finished() {
    let chat = Chat::start(YEAR, |layer| layer).await;
    let mut socket = chat.open("/chat").await.expect("open");
    for _ in 0..3 {
        say(&mut socket, "hello").await;
        assert_eq!(chat.left("messages", "u1").await, 80.0);
    }
    socket.close(None).await.expect("closed");
    chat.until_left("messages", "u1", 97.0).await;
    chat.until_left("sockets", "u1", 2.0).await;
    // One that breaks keeps its estimate.
    let mut socket = chat.open("/chat").await.expect("open");
    say(&mut socket, "hello").await;
    drop(socket);
    chat.until_left("sockets", "u1", 2.0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(chat.left("messages", "u1").await, 77.0);
    // Unless the closure counts as it goes.
    let chat = Chat::start(YEAR, RateLimitLayer::refund_incomplete).await;
    let mut socket = chat.open("/chat").await.expect("open");
    say(&mut socket, "hello").await;
    socket.send(tungstenite::Message::text("crash")).await.expect("sent");
    chat.until_left("messages", "u1", 99.0).await;
}

#[tokio::test]
async fn a_websocket_learns_that_its_slot_is_lost() {
    let chat = Chat::start(Duration::from_millis(1500), |layer| layer).await;
    let mut socket = chat.open("/chat").await.expect("open");
    say(&mut socket, "hello").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    say(&mut socket, "the lease is renewed").await;
    chat.limiter.reset(("sockets", "u1")).await.expect("reset");
    let answer = socket.next().await.expect("an answer").expect("an answer");
    assert_eq!(answer.into_text().expect("text"), "lost");
}

/// The outer layer decides itself, and the handler takes another slot.
#[tokio::test]
async fn a_websocket_holds_the_slots_of_all_layers_and_of_its_handler() {
    let chat = Chat::start(YEAR, |layer| layer).await;
    let mut socket = chat.open("/room").await.expect("open");
    say(&mut socket, "hello").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((chat.left("sockets", "u1").await, chat.left("rooms", "main").await), (1.0, 1.0));
    socket.close(None).await.expect("closed");
    chat.until_left("sockets", "u1", 2.0).await;
    chat.until_left("rooms", "main", 2.0).await;
}

async fn over_http_1(chat: &Chat, request: http::Request<Empty<Bytes>>) -> Result<TokioIo<Upgraded>, StatusCode> {
    let stream = TcpStream::connect(chat.address()).await.expect("connected");
    let (mut sender, connection) = conn::http1::handshake(TokioIo::new(stream)).await.expect("a connection");
    tokio::spawn(connection.with_upgrades());
    let response = sender.send_request(request).await.expect("a response");
    if !response.status().is_success() {
        return Err(response.status());
    }
    Ok(TokioIo::new(hyper::upgrade::on(response).await.expect("an upgrade")))
}

async fn over_http_2(
    sender: &mut conn::http2::SendRequest<Empty<Bytes>>,
    request: http::Request<Empty<Bytes>>,
) -> Result<TokioIo<Upgraded>, StatusCode> {
    let response = sender.send_request(request).await.expect("a response");
    if !response.status().is_success() {
        return Err(response.status());
    }
    Ok(TokioIo::new(hyper::upgrade::on(response).await.expect("an upgrade")))
}

/// A connection on which the server has allowed extended CONNECT.
async fn http_2(chat: &Chat) -> conn::http2::SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(chat.address()).await.expect("connected");
    let builder = conn::http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.expect("a connection");
    let mut connection = Box::pin(connection);
    while !connection.is_extended_connect_protocol_enabled() {
        let a_while = tokio::time::sleep(Duration::from_millis(5));
        tokio::select! {
            ended = &mut connection => panic!("{ended:?}"),
            () = a_while => {}
        }
    }
    tokio::spawn(connection);
    sender
}

fn connect(careless: bool) -> http::Request<Empty<Bytes>> {
    let request = http::Request::connect("upstream.example.com:443").header("x-user", "u1");
    let request = if careless { request.header("x-careless", "") } else { request };
    request.body(Empty::new()).expect("a request")
}

async fn assert_echo(stream: &mut TokioIo<Upgraded>) {
    let mut byte = [0];
    stream.write_all(b"x").await.expect("written");
    stream.flush().await.expect("flushed");
    stream.read_exact(&mut byte).await.expect("read");
    assert_eq!(byte, *b"x");
}

#[tokio::test]
async fn tunnels_hold_their_slots_over_both_versions_of_http() {
    let events = Events::default();
    let _watched = watch(events.clone());
    let chat = Chat::start(YEAR, |layer| layer).await;
    let mut sender = http_2(&chat).await;
    for (nth, of_http_2) in [(1, false), (2, true)] {
        let open = async |sender: &mut _, careless| match of_http_2 {
            true => over_http_2(sender, connect(careless)).await,
            false => over_http_1(&chat, connect(careless)).await,
        };
        let mut first = open(&mut sender, false).await.expect("open");
        let mut second = open(&mut sender, false).await.expect("open");
        assert_eq!(open(&mut sender, false).await.err(), Some(StatusCode::TOO_MANY_REQUESTS));
        assert_echo(&mut first).await;
        assert_echo(&mut second).await;
        assert_eq!(chat.left("sockets", "u1").await, 0.0);
        assert!(!events.told().contains("holds nothing"), "{}", events.told());
        drop(first);
        chat.until_left("sockets", "u1", 1.0).await;
        second.shutdown().await.expect("shut down");
        chat.until_left("sockets", "u1", 2.0).await;
        let mut open_without = open(&mut sender, true).await.expect("open");
        assert_echo(&mut open_without).await;
        chat.until_left("sockets", "u1", 2.0).await;
        assert_eq!(
            events.told().matches("an upgraded connection holds nothing").count(),
            1,
            "{nth}: {}",
            events.told()
        );
        drop(open_without);
        events.clear();
        chat.limiter.reset(("messages", "u1")).await.expect("reset");
    }
}

#[tokio::test]
async fn websockets_over_http_2_hold_their_slots() {
    let chat = Chat::start(YEAR, |layer| layer).await;
    let mut sender = http_2(&chat).await;
    let mut open = async |path: &str| {
        let request = http::Request::connect(format!("http://{}{path}", chat.address()))
            .extension(hyper::ext::Protocol::from_static("websocket"))
            .header("sec-websocket-version", "13")
            .header("x-user", "u1");
        let stream = over_http_2(&mut sender, request.body(Empty::new()).expect("a request")).await?;
        Ok::<_, StatusCode>(WebSocketStream::from_raw_socket(stream, Role::Client, None).await)
    };
    let mut first = open("/chat").await.expect("open");
    let mut second = open("/chat").await.expect("open");
    assert_eq!(open("/chat").await.err(), Some(StatusCode::TOO_MANY_REQUESTS));
    say(&mut first, "hello").await;
    say(&mut second, "hello").await;
    first.close(None).await.expect("closed");
    chat.until_left("sockets", "u1", 1.0).await;
    drop(second);
    chat.until_left("sockets", "u1", 2.0).await;
    // One message was counted, and the socket that broke keeps its estimate.
    chat.until_left("messages", "u1", 79.0).await;
    let _careless = open("/careless").await.expect("open");
    chat.until_left("sockets", "u1", 2.0).await;
}
