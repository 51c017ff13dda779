//! A gRPC service with tonic. One layer limits every client address, and another one failed log-ins. Messages are limited in
//! the transaction that writes them.
//!
//!     cargo run --features tonic,embedded --example grpc
//!
//! calls the service and prints the statuses. It runs in a temporary database: on the server in `DATABASE_URL`, or on a private
//! PostgreSQL if that is not set.

#[cfg(not(test))]
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use pg_limiter::web::{ClientAddress, HeaderKey, PeerAddress, RateLimitLayer, RequestLimits};
use pg_limiter::{Limit, Limiter, Limits};
use sqlx::PgPool;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::service::InterceptorLayer;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The service, written by hand. `tonic-prost-build` generates such code from a `.proto` file:
///
/// ```proto
/// service Chat {
///   rpc LogIn(LogInRequest) returns (Empty);
///   rpc Send(SendRequest) returns (Empty);
/// }
/// ```
mod chat {
    use http::uri::PathAndQuery;
    use tonic::body::Body;
    use tonic::transport::Channel;
    use tonic::{Request, Response, Status};
    use tonic_prost::ProstCodec;
    use tower::service_fn;

    pub(super) const LOG_IN: &str = "/chat.Chat/LogIn";
    pub(super) const SEND: &str = "/chat.Chat/Send";

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub(super) struct LogInRequest {
        #[prost(string, tag = "1")]
        pub(super) password: String,
    }

    #[derive(Clone, PartialEq, Eq, prost::Message)]
    pub(super) struct SendRequest {
        #[prost(string, tag = "1")]
        pub(super) text: String,
    }

    #[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
    pub(super) struct Empty {}

    pub(super) async fn serve(chat: super::Chat, request: http::Request<Body>) -> http::Response<Body> {
        match request.uri().path() {
            LOG_IN => {
                let mut grpc = tonic::server::Grpc::new(ProstCodec::<Empty, LogInRequest>::default());
                grpc.unary(service_fn(move |request| super::log_in(chat.clone(), request)), request).await
            }
            SEND => {
                let mut grpc = tonic::server::Grpc::new(ProstCodec::<Empty, SendRequest>::default());
                grpc.unary(service_fn(move |request| super::send(chat.clone(), request)), request).await
            }
            _ => Status::unimplemented("").into_http(),
        }
    }

    pub(super) async fn call<M: prost::Message + 'static>(
        channel: &Channel,
        method: &'static str,
        request: Request<M>,
    ) -> Result<Response<Empty>, Status> {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        client.unary(request, PathAndQuery::from_static(method), ProstCodec::<M, Empty>::default()).await
    }
}
use chat::{Empty, LogInRequest, SendRequest};

/// The application.
#[derive(Clone)]
struct Chat {
    pool: PgPool,
}

async fn log_in(_: Chat, request: Request<LogInRequest>) -> Result<Response<Empty>, Status> {
    if request.get_ref().password == "correct horse" {
        Ok(Response::new(Empty {}))
    } else {
        Err(Status::unauthenticated("The password is wrong."))
    }
}

/// The message and its token commit or roll back together.
async fn send(chat: Chat, request: Request<SendRequest>) -> Result<Response<Empty>, Status> {
    let limits = RequestLimits::of(request.extensions())?;
    let mut tx = chat.pool.begin().await.map_err(internal)?;
    let insert = sqlx::query("INSERT INTO messages (body) VALUES ($1)").bind(&request.get_ref().text);
    insert.execute(&mut *tx).await.map_err(internal)?;
    limits.enforce_within(&mut tx).await?; // Take the limits last: their rows stay locked until the commit.
    tx.commit().await.map_err(internal)?;
    Ok(Response::new(Empty {}))
}

fn internal(error: sqlx::Error) -> Status {
    eprintln!("{error}");
    Status::internal("The message is not stored.")
}

/// The peer's address, from which `ClientAddress` reads it.
fn with_peer(mut request: Request<()>) -> Result<Request<()>, Status> {
    if let Some(peer) = request.remote_addr() {
        request.extensions_mut().insert(PeerAddress::from(peer));
    }
    Ok(request)
}

/// Serves the application in the background.
async fn serve(pool: &PgPool, limiter: &Limiter) -> Result<(SocketAddr, JoinHandle<()>), BoxError> {
    let layer = || RateLimitLayer::new(limiter.clone());
    let account = || HeaderKey::new("x-account"); // A real service would authenticate it in an outer layer.
    let per_address = layer().limit("per_address", ClientAddress::direct())?;
    let log_ins = layer()
        .limit("failed_log_ins", account()?)?
        .skip(|request| request.uri.path() != chat::LOG_IN)
        .settle(|_, response| response.grpc_code().map(|code| if code == Code::Unauthenticated { 1 } else { 0 }));
    let messages = layer().limit("messages", account()?)?.skip(|request| request.uri.path() != chat::SEND).in_handler();

    let listener = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let address = listener.local_addr()?;
    let chat = Chat { pool: pool.clone() };
    let server =
        Server::builder().layer(InterceptorLayer::new(with_peer)).layer(per_address).layer(log_ins).layer(messages);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let chat = chat.clone();
        async move { Ok::<_, std::convert::Infallible>(chat::serve(chat, request).await) }
    });
    let served = tokio::spawn(async move {
        if let Err(error) = server.serve_with_incoming(service, listener).await {
            eprintln!("{error}");
        }
    });
    Ok((address, served))
}

fn by_ann<M>(message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-account", tonic::metadata::MetadataValue::from_static("ann"));
    request
}

/// The results, which the tests check.
#[derive(Debug, Default)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    /// The status codes of four messages of one account.
    pub(crate) messages: Vec<Code>,
    /// The details of the last status, a denial: the limits, the time to wait, and `RateLimit`.
    pub(crate) violations: Vec<String>,
    pub(crate) retry_delay: Duration,
    pub(crate) ratelimit: Vec<String>,
    /// The messages in the table after that.
    pub(crate) stored: i64,
    /// The status codes of log-ins: right, wrong, right, wrong.
    pub(crate) log_ins: Vec<Code>,
    /// The failed log-ins that are left, of 10.
    pub(crate) failed_log_ins_left: f64,
    /// The status codes of messages without an account, until the limit of the address denies them.
    pub(crate) flood: Vec<Code>,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    sqlx::raw_sql("CREATE TABLE messages (id bigserial PRIMARY KEY, body text NOT NULL)").execute(pool).await?;
    let hour = Duration::from_secs(3600);
    let limits = Limits::new()
        .define("per_address", Limit::token_bucket(60, Duration::from_secs(60)).capacity(20))?
        .define("failed_log_ins", Limit::token_bucket(10, hour * 24 * 365))?
        .define("messages", Limit::token_bucket(3, hour))?;
    let limiter = Limiter::new(pool.clone(), limits);
    let (address, served) = serve(pool, &limiter).await?;
    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let mut story = Story::default();

    for nth in 1..=4 {
        let message = by_ann(SendRequest { text: format!("message {nth}") });
        let code = match chat::call(&channel, chat::SEND, message).await {
            Ok(_) => Code::Ok,
            Err(status) => {
                let details = status.get_error_details();
                let violations = details.quota_failure().into_iter().flat_map(|failure| &failure.violations);
                story.violations = violations.map(|violation| violation.subject.clone()).collect();
                story.retry_delay = details.retry_info().and_then(|info| info.retry_delay).unwrap_or_default();
                let fields = status.metadata().get_all("ratelimit").iter().flat_map(|value| value.to_str());
                story.ratelimit = fields.map(String::from).collect();
                println!("  {}", status.message());
                status.code()
            }
        };
        println!("message {nth} by ann: {code:?}");
        story.messages.push(code);
    }
    println!(
        "  denied by {:?}, retry in {:?}\n  {}",
        story.violations,
        story.retry_delay,
        story.ratelimit.join("\n  ")
    );
    story.stored = sqlx::query_scalar("SELECT count(*) FROM messages").fetch_one(pool).await?;
    println!("{} messages are stored", story.stored);

    for password in ["correct horse", "123456", "correct horse", "password"] {
        let request = by_ann(LogInRequest { password: password.to_owned() });
        let code = chat::call(&channel, chat::LOG_IN, request).await.map_or_else(|status| status.code(), |_| Code::Ok);
        story.log_ins.push(code);
    }
    // The layer gives the tokens of the successful ones back in the background.
    for _ in 0..1000 {
        story.failed_log_ins_left = limiter.peek(("failed_log_ins", "ann")).await?.remaining().round();
        if story.failed_log_ins_left == 8.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("log-ins: {:?}; {} more may fail", story.log_ins, story.failed_log_ins_left);

    while story.flood.last() != Some(&Code::ResourceExhausted) && story.flood.len() < 1000 {
        let request = Request::new(SendRequest { text: "hello".to_owned() });
        let result = chat::call(&channel, chat::SEND, request).await;
        story.flood.push(result.map_or_else(|status| status.code(), |_| Code::Ok));
    }
    println!("without an account: {:?}, denied by the address's limit at call {}", story.flood[0], story.flood.len());
    served.abort();
    Ok(story)
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
