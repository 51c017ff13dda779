//! gRPC servers on real ports. They serve the health service of the package tonic-health, with handlers of our own.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, stream};
use http::HeaderMap;
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::web::{PeerAddress, RateLimitLayer, RequestLimits};
use pg_limiter::{Item, Limit, Limiter, Limits};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::service::{InterceptorLayer, LayerExt};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// Names of services. Calls select by them how the handlers respond.
pub mod call {
    pub const SUCCEED: &str = "succeed";
    /// A log-in with a wrong password. In `watch`, it fails after a message, so the status is in trailers.
    pub const FAIL: &str = "fail";
    /// Writes an order, and takes the tokens of `RequestLimits` in its transaction.
    pub const ORDER: &str = "order";
    /// The same, and fails before the commit.
    pub const ORDER_AND_FAIL: &str = "order and fail";
    /// Takes the tokens of `RequestLimits` without a transaction, and responds to a denial with a status of its own.
    pub const OWN_STATUS: &str = "own status";
    /// Takes a token of a limit of its own.
    pub const OWN_LIMIT: &str = "own limit";
    /// In `watch`: streams until the test ends it.
    pub const STREAM: &str = "stream";
}

#[derive(Clone)]
pub struct App {
    pool: PgPool,
    /// The number of messages that each stream has sent so far; `u64::MAX` ends them.
    pub messages: watch::Sender<u64>,
}

fn wrong_password() -> Status {
    Status::unauthenticated("wrong password")
}

impl App {
    pub fn new(pool: &PgPool) -> Self {
        Self { pool: pool.clone(), messages: watch::channel(1).0 }
    }

    async fn order(&self, limits: RequestLimits, fails: bool) -> Result<(), Status> {
        let internal = |error: sqlx::Error| Status::internal(error.to_string());
        let mut tx = self.pool.begin().await.map_err(internal)?;
        sqlx::query("INSERT INTO orders DEFAULT VALUES").execute(&mut *tx).await.map_err(internal)?;
        limits.enforce_within(&mut tx).await?;
        if fails {
            return Err(Status::aborted("it failed"));
        }
        tx.commit().await.map_err(internal)
    }
}

#[tonic::async_trait]
impl Health for App {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        match &*request.get_ref().service {
            call::FAIL => return Err(wrong_password()),
            call::ORDER => self.order(RequestLimits::of(request.extensions())?, false).await?,
            call::ORDER_AND_FAIL => self.order(RequestLimits::of(request.extensions())?, true).await?,
            call::OWN_STATUS => {
                let permit = RequestLimits::of(request.extensions())?.enforce().await;
                permit.map_err(|_| Status::resource_exhausted("slow down"))?;
            }
            call::OWN_LIMIT => {
                let own = Limit::token_bucket(1, Duration::from_secs(8766 * 3600)).build().expect("a limit");
                let limiter = Limiter::new(self.pool.clone(), Limits::new());
                limiter.limit(Item::new(("own", own), "k")).await?.enforce()?;
            }
            _ => {}
        }
        Ok(Response::new(HealthCheckResponse::default()))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let message = Ok(HealthCheckResponse::default());
        Ok(Response::new(match &*request.get_ref().service {
            call::STREAM => {
                Box::pin(stream::unfold((0, self.messages.subscribe()), |(sent, mut messages)| async move {
                    let all = *messages.wait_for(|messages| *messages > sent).await.ok()?;
                    (all < u64::MAX).then(|| (Ok(HealthCheckResponse::default()), (sent + 1, messages)))
                }))
            }
            call::FAIL => Box::pin(stream::iter([message, Err(wrong_password())])),
            _ => Box::pin(stream::iter([message])),
        }))
    }
}

/// Where `ClientAddress` finds the peer's address.
fn with_peer(mut request: Request<()>) -> Result<Request<()>, Status> {
    if let Some(peer) = request.remote_addr() {
        request.extensions_mut().insert(PeerAddress::from(peer));
    }
    Ok(request)
}

/// A server that runs until it is dropped.
pub struct GrpcServed {
    pub url: String,
    pub channel: Channel,
    task: JoinHandle<()>,
}

impl GrpcServed {
    /// With the layer around the whole server. It also speaks HTTP/1.1, for requests that are not gRPC.
    pub async fn start(app: &App, layer: RateLimitLayer) -> Self {
        let server = Server::builder().accept_http1(true).layer(InterceptorLayer::new(with_peer)).layer(layer);
        Self::serve(|incoming| server.clone().add_service(HealthServer::new(app.clone())).serve_with_incoming(incoming))
            .await
    }

    /// With the layer around one service. No interceptor finds the peer's address.
    pub async fn start_service(app: &App, layer: RateLimitLayer) -> Self {
        let service = layer.named_layer(HealthServer::new(app.clone()));
        Self::serve(|incoming| Server::builder().add_service(service).serve_with_incoming(incoming)).await
    }

    /// With a layer outside of it that translates gRPC-Web.
    pub async fn start_web(app: &App, layer: RateLimitLayer) -> Self {
        let server = Server::builder().accept_http1(true).layer(tonic_web::GrpcWebLayer::new()).layer(layer);
        Self::serve(|incoming| server.clone().add_service(HealthServer::new(app.clone())).serve_with_incoming(incoming))
            .await
    }

    async fn serve<F>(serve: impl FnOnce(TcpIncoming) -> F) -> Self
    where
        F: Future<Output = Result<(), tonic::transport::Error>> + Send + 'static,
    {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let url = format!("http://{}", incoming.local_addr().expect("an address"));
        let served = serve(incoming);
        let task = tokio::spawn(async move { served.await.expect("served") });
        let channel = Channel::from_shared(url.clone()).expect("a URL").connect().await.expect("a connection");
        Self { url, channel, task }
    }

    pub fn client(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel.clone())
    }

    /// Makes a unary call.
    pub async fn check(&self, what: &str, user: Option<&str>) -> Result<Response<HealthCheckResponse>, Status> {
        self.client().check(request(what, user)).await
    }
}

impl Drop for GrpcServed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn request(what: &str, user: Option<&str>) -> Request<HealthCheckRequest> {
    let mut request = Request::new(HealthCheckRequest { service: what.to_owned() });
    if let Some(user) = user {
        request.metadata_mut().insert("x-user", user.parse().expect("ASCII"));
    }
    request
}

/// A call as it is sent over HTTP.
pub fn raw_request(method: &str, what: &str, user: &str) -> http::Request<tonic::body::Body> {
    use http_body_util::Full;
    use prost::Message;
    let message = HealthCheckRequest { service: what.to_owned() }.encode_to_vec();
    let length = u32::try_from(message.len()).expect("a short message");
    let frame: Vec<u8> = [&[0][..], &length.to_be_bytes(), &message].concat();
    http::Request::post(format!("/grpc.health.v1.Health/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("x-user", user)
        .body(tonic::body::Body::new(Full::from(frame)))
        .expect("a request")
}

/// The metadata as header fields.
pub fn fields(status: &Status) -> HeaderMap {
    status.metadata().clone().into_headers()
}
