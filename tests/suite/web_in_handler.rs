//! Handlers that charge limits in their own transactions, with the limits, keys and responses of a layer.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode};

use pg_limiter::web::{ClientAddress, HeaderKey, OnFailure, RateLimitLayer, RequestLimits};
use pg_limiter::{Error, Limit, Limiter, Limits};

use crate::support::web::Served;
use crate::support::{Database, Events, sqlx, watch};

const YEAR: Duration = Duration::from_secs(8766 * 3600);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum AppError {
    Limit(#[from] Error),
    Database(#[from] sqlx::Error),
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        match self {
            Self::Limit(error) => error.into_response(),
            Self::Database(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

const ORDER: &str = "INSERT INTO orders DEFAULT VALUES";

/// Fails after the limit if the request asks for it.
async fn order(
    State(limiter): State<Limiter>,
    headers: HeaderMap,
    limits: RequestLimits,
) -> Result<&'static str, AppError> {
    let mut tx = limiter.pool().begin().await?;
    sqlx::query(ORDER).execute(&mut *tx).await?;
    limits.enforce_within(&mut tx).await?;
    if headers.contains_key("x-fail") {
        return Err(AppError::Database(sqlx::Error::RowNotFound));
    }
    tx.commit().await?;
    Ok("ordered")
}

/// The same as a unit of work, which is rerun after a conflict.
async fn order_again(State(limiter): State<Limiter>, limits: RequestLimits) -> Result<&'static str, AppError> {
    limiter
        .transaction(async move |tx: &mut sqlx::PgConnection| {
            limits.enforce_within(tx).await?;
            sqlx::query(ORDER).execute(&mut *tx).await?;
            Ok::<_, AppError>(())
        })
        .await?;
    Ok("ordered")
}

struct Shop {
    database: Database,
    limiter: Limiter,
    served: Served,
}

impl Shop {
    async fn open(change: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> Self {
        let database = Database::migrated().await;
        database.execute("CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY)").await;
        let limits = Limits::new()
            .define("orders", Limit::token_bucket(2, YEAR))
            .and_then(|limits| limits.define("per_address", Limit::token_bucket(100, YEAR)))
            .and_then(|limits| limits.define("rooms", Limit::token_bucket(1, YEAR)))
            .expect("limits");
        let limiter = database.limiter(limits);
        let layer = RateLimitLayer::new(limiter.clone())
            .limit("orders", HeaderKey::new("x-account").expect("a name"))
            .expect("a limit");
        let app = Router::new()
            .route("/", post(order))
            .route("/again", post(order_again))
            .route("/room", post(in_a_room))
            .route("/search", post(search))
            .route("/own", post(own_answer))
            .route("/idle", post(|_: RequestLimits| async { "nothing to charge" }))
            .route("/forgetful", post(async || "ordered, without a look at any limit"))
            .route("/fails", post(async || StatusCode::BAD_GATEWAY))
            .route("/waived", post(async |limits: RequestLimits| limits.waive()))
            .layer(change(layer).in_handler())
            .with_state(limiter.clone());
        Self { served: Served::start(app).await, database, limiter }
    }

    async fn orders(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&self.database.pool).await.expect("count")
    }

    async fn left(&self, account: &str) -> f64 {
        self.limiter.peek(("orders", account)).await.expect("a balance").remaining().floor()
    }
}

const ADA: (&str, &str) = ("x-account", "ada");

#[tokio::test]
async fn the_order_and_its_token_commit_or_roll_back_together() {
    let shop = Shop::open(|layer| layer).await;
    let failed = shop.served.post("/", &[ADA, ("x-fail", "")]).await;
    assert_eq!((failed.status, shop.orders().await, shop.left("ada").await), (500, 0, 2.0));
    // The response shows the balance within the transaction.
    assert_eq!(failed.list("ratelimit")[0].1["r"], 1);
    for left in [1, 0] {
        let seen = shop.served.post("/", &[ADA]).await;
        assert_eq!((seen.status, seen.body.as_str()), (200, "ordered"));
        assert_eq!((seen.list("ratelimit")[0].0.as_str(), seen.list("ratelimit")[0].1["r"]), ("orders", left));
        assert_eq!(seen.list("ratelimit-policy")[0].1["q"], 2);
    }
    let seen = shop.served.post("/", &[ADA]).await;
    assert_eq!((seen.status, shop.orders().await), (429, 2));
    let retry_after = seen.number("retry-after").expect("a time");
    assert!(retry_after > 0);
    assert_eq!(seen.list("ratelimit")[0].1["t"], retry_after);
    assert_eq!(seen.problem()["violated-policies"], serde_json::json!(["orders"]));
    assert!(!seen.body.contains("ada"));
    assert_eq!(shop.served.post("/", &[("x-account", "bob")]).await.status, 200);
}

#[tokio::test]
async fn request_limits_work_in_a_unit_of_work() {
    let shop = Shop::open(|layer| layer).await;
    for expected in [200, 200, 429] {
        let seen = shop.served.post("/again", &[ADA]).await;
        assert_eq!(seen.status, expected);
        assert_eq!((seen.list("ratelimit").len(), seen.number("retry-after").is_some()), (1, expected == 429));
    }
    assert_eq!(shop.orders().await, 2);
}

/// Without a key, the handler is not called.
#[tokio::test]
async fn a_handler_uses_the_keys_and_exceptions_of_the_layer() {
    let shop = Shop::open(|layer| layer.skip(|request| request.headers.contains_key("x-monitor"))).await;
    assert_eq!((shop.served.post("/", &[]).await.status, shop.orders().await), (400, 0));
    for _ in 0..3 {
        let seen = shop.served.post("/", &[ADA, ("x-monitor", "")]).await;
        assert!(seen.status == 200 && seen.is_untouched());
    }
    assert_eq!((shop.orders().await, shop.left("ada").await), (3, 2.0));
    let idle = shop.served.post("/idle", &[ADA]).await;
    assert!(idle.status == 200 && idle.is_untouched(), "nothing was decided");
}

/// Otherwise the mistake would go unnoticed, because no request would ever be denied.
#[tokio::test]
async fn a_handler_that_forgets_its_limits_is_traced() {
    let shop = Shop::open(|layer| layer).await;
    let told = async |path: &str, headers: &[(&str, &str)]| {
        let events = Events::default();
        let watched = watch(events.clone());
        let seen = shop.served.post(path, headers).await;
        drop(watched);
        (seen.status, events.told())
    };
    for path in ["/forgetful", "/idle"] {
        let (status, told) = told(path, &[ADA]).await;
        assert!(status == 200 && told.contains("set up wrongly"), "{path}: {told}");
        assert!(told.contains("(orders)") && told.contains("enforce_within()") && !told.contains("ada"), "{told}");
    }
    // No trace if the handler has charged its limits, has declined to, or has failed before.
    for (path, headers, expected) in
        [("/", &[ADA][..], 200), ("/search", &[ADA], 200), ("/waived", &[ADA], 200), ("/fails", &[ADA], 502)]
    {
        let (status, told) = told(path, headers).await;
        assert!(status == expected && !told.contains("set up wrongly"), "{path}: {status} {told}");
    }
}

#[tokio::test]
async fn in_shadow_mode_a_denial_allows_the_request() {
    let database = Database::migrated().await;
    database.execute("CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY)").await;
    let limits = Limits::new().define("orders", Limit::token_bucket(2, YEAR)).expect("a limit");
    let limiter = database.limiter(limits);
    let layer = RateLimitLayer::new(limiter.clone()).limit("orders", ClientAddress::direct()).expect("a limit");
    let layer = layer.in_handler().shadow();
    let served = Served::start(Router::new().route("/", post(order).layer(layer.clone())).with_state(limiter)).await;
    for _ in 0..5 {
        let seen = served.post("/", &[]).await;
        assert!(seen.status == 200 && seen.is_untouched());
    }
    assert_eq!(layer.shadow_denials(), 3);
    // This also holds in the limiter's own transaction.
    let searching = Router::new().route("/search", post(search).layer(layer.clone()));
    assert_eq!(Served::start(searching).await.post("/search", &[]).await.status, 200);
    assert_eq!(layer.shadow_denials(), 4);
    // A database failure is still an error: the transaction has failed.
    database.execute("DROP TABLE rate_limit.rate_limits CASCADE").await;
    assert_eq!(served.post("/", &[]).await.status, 503);
}

/// A limit whose key is in the body.
async fn in_a_room(State(limiter): State<Limiter>, limits: RequestLimits, room: String) -> Result<String, AppError> {
    assert_eq!(limits.items().len(), 1);
    let mut tx = limits.limiter().pool().begin().await?;
    let permit = limits.and(("rooms", room)).enforce_within(&mut tx).await?;
    tx.commit().await?;
    drop(limiter);
    Ok(permit.remaining.floor().to_string())
}

#[tokio::test]
async fn a_handler_can_add_its_own_limits() {
    let shop = Shop::open(|layer| layer).await;
    let seen = shop.served.post("/room", &[ADA]).await;
    assert_eq!((seen.status, seen.body.as_str()), (200, "0"));
    let names: Vec<String> = seen.list("ratelimit").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["orders", "rooms"]);
    let seen = shop.served.post("/room", &[ADA]).await;
    assert_eq!((seen.status, seen.problem()["violated-policies"].clone()), (429, serde_json::json!(["rooms"])));
    assert_eq!(shop.left("ada").await, 1.0, "all or none");
}

/// Without a transaction of its own.
async fn search(headers: HeaderMap, limits: RequestLimits) -> Result<&'static str, AppError> {
    limits.enforce().await?;
    if headers.contains_key("x-fail") {
        return Err(AppError::Database(sqlx::Error::RowNotFound));
    }
    Ok("found")
}

/// `enforce` gives the same statuses and fields as a layer around the handler.
#[tokio::test]
async fn a_handler_without_a_transaction_answers_like_the_layer() {
    let shop = Shop::open(|layer| layer.x_ratelimit_headers()).await;
    let layer = RateLimitLayer::new(shop.limiter.clone())
        .limit("orders", HeaderKey::new("x-account").expect("a name"))
        .expect("a limit")
        .x_ratelimit_headers();
    let around = Served::start(Router::new().route("/search", post(async || "found").layer(layer))).await;
    for (account, served) in [("ada", &shop.served), ("bob", &around)] {
        let account = ("x-account", account);
        for left in [1, 0] {
            let seen = served.post("/search", &[account]).await;
            assert_eq!((seen.status, seen.body.as_str()), (200, "found"));
            assert_eq!((seen.list("ratelimit")[0].0.as_str(), seen.list("ratelimit")[0].1["r"]), ("orders", left));
            assert_eq!(seen.list("ratelimit-policy")[0].1["q"], 2);
            assert_eq!(seen.number("x-ratelimit-remaining"), Some(left));
        }
        let seen = served.post("/search", &[account]).await;
        let retry_after = seen.number("retry-after").expect("a time");
        assert_eq!((seen.status, seen.list("ratelimit")[0].1["t"]), (429, retry_after));
        assert_eq!(seen.problem()["violated-policies"], serde_json::json!(["orders"]));
    }
    // The token is spent whether or not the request succeeds.
    let failed = shop.served.post("/search", &[("x-account", "eve"), ("x-fail", "")]).await;
    assert_eq!((failed.status, shop.left("eve").await), (500, 1.0));
    assert_eq!(failed.list("ratelimit")[0].1["r"], 1);
}

/// A database failure rejects the request, unless the layer is open on failures or in shadow mode.
#[tokio::test]
async fn without_a_database_a_handler_rejects_or_allows_like_the_layer() {
    for (name, expected) in [("closed", 503), ("open", 200), ("shadow", 200)] {
        let shop = Shop::open(|layer| match name {
            "open" => layer.on_failure(OnFailure::Open),
            "shadow" => layer.shadow(),
            _ => layer,
        })
        .await;
        shop.database.execute("DROP TABLE rate_limit.rate_limits CASCADE").await;
        let events = Events::default();
        let watched = watch(events.clone());
        let seen = shop.served.post("/search", &[ADA]).await;
        drop(watched);
        assert_eq!(seen.status, expected, "{name}: {seen:?}");
        assert!(seen.list("ratelimit").is_empty());
        assert_eq!(events.told().contains("let through"), expected == 200, "{name}: {}", events.told());
        // In the caller's transaction it is an error, however the layer is configured.
        assert_eq!(shop.served.post("/", &[ADA]).await.status, 503, "{name}");
    }
}

/// A handler with its own response to a denial.
async fn own_answer(State(limiter): State<Limiter>, limits: RequestLimits) -> Result<Response, AppError> {
    let mut tx = limiter.pool().begin().await?;
    match limits.enforce_within(&mut tx).await {
        Ok(_) => tx.commit().await?,
        Err(Error::Denied(_)) => return Ok((StatusCode::TOO_MANY_REQUESTS, "slow down").into_response()),
        Err(error) => return Err(error.into()),
    }
    Ok("ordered".into_response())
}

#[tokio::test]
async fn a_handlers_own_response_gets_the_fields_and_retry_after() {
    let shop = Shop::open(|layer| layer).await;
    for _ in 0..2 {
        assert_eq!(shop.served.post("/own", &[ADA]).await.status, 200);
    }
    let seen = shop.served.post("/own", &[ADA]).await;
    assert_eq!((seen.status, seen.body.as_str()), (429, "slow down"));
    assert_eq!(seen.list("ratelimit")[0].1["t"], seen.number("retry-after").expect("a time"));
}

#[tokio::test]
async fn a_handler_without_the_layer_is_a_server_error() {
    let app = Router::new().route("/", post(|_: RequestLimits| async { "limited?" }));
    let seen = Served::start(app).await.post("/", &[]).await;
    assert_eq!((seen.status, seen.problem()["title"].as_str()), (500, Some("Internal Server Error")));
}

/// Otherwise the limits of one of the layers would be ignored.
#[tokio::test]
async fn two_in_handler_layers_are_an_error_but_one_beside_a_plain_layer_works() {
    let database = Database::migrated().await;
    let limits = Limits::new()
        .define("orders", Limit::token_bucket(2, YEAR))
        .and_then(|limits| limits.define("per_address", Limit::token_bucket(100, YEAR)))
        .expect("limits");
    let limiter = database.limiter(limits);
    database.execute("CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY)").await;
    let layer =
        |limit: &str| RateLimitLayer::new(limiter.clone()).limit(limit, ClientAddress::direct()).expect("a limit");
    let app = || Router::new().route("/", post(order)).with_state(limiter.clone()).layer(layer("orders").in_handler());
    let both = Served::start(app().layer(layer("per_address").in_handler())).await;
    assert_eq!(both.post("/", &[]).await.status, 500);
    let beside = Served::start(app().layer(layer("per_address"))).await;
    for expected in [200, 200, 429] {
        let seen = beside.post("/", &[]).await;
        assert_eq!((seen.status, seen.list("ratelimit").len()), (expected, 2));
    }
}

/// Errors of this library are responses even without a layer.
#[tokio::test]
async fn errors_and_denials_are_responses() {
    async fn handler(State(limiter): State<Limiter>) -> Result<&'static str, Error> {
        limiter.limit(("orders", "ada")).await?.enforce()?;
        Ok("ordered")
    }
    let database = Database::migrated().await;
    let limits = Limits::new().define("orders", Limit::token_bucket(1, YEAR)).expect("a limit");
    let limiter = database.limiter(limits);
    let served = Served::start(Router::new().route("/", post(handler)).with_state(limiter.clone())).await;
    assert_eq!(served.post("/", &[]).await.status, 200);
    let seen = served.post("/", &[]).await;
    assert_eq!((seen.status, seen.problem()["violated-policies"].clone()), (429, serde_json::json!(["orders"])));
    assert!(seen.number("retry-after").is_some_and(|seconds| seconds > 0));
    let Err(Error::Denied(denied)) = limiter.limit(("orders", "ada")).await.expect("a decision").enforce() else {
        panic!("the limit has only one token");
    };
    let response = denied.into_response();
    assert_eq!(
        (response.status(), response.headers().contains_key("retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, true)
    );
    limiter.close().await;
    assert_eq!(served.post("/", &[]).await.status, 503);
}
