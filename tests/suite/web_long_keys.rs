//! Keys of more than 1024 bytes, such as long paths: they are counted as their hashes, wherever a layer finds them.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use pg_limiter::web::{
    HeaderKey, KeyExtractor, PathKey, RateLimitLayer, RequestLimits, StoredKeys, key_fn, stored_keys,
};
use pg_limiter::{Error, Item, KeySecret, Limit, Limiter, LimiterConfig, Limits};

use crate::support::web::Served;
use crate::support::{Database, sqlx};

const YEAR: Duration = Duration::from_secs(8766 * 3600);

fn limits() -> Limits {
    Limits::new().define("per_path", Limit::token_bucket(1, YEAR)).expect("a limit")
}

fn by_user() -> HeaderKey {
    HeaderKey::new("x-user").expect("a name")
}

fn long(end: &str) -> String {
    format!("/files/{}/{end}", "a".repeat(1500))
}

async fn charge(limits: RequestLimits) -> Result<&'static str, Error> {
    limits.enforce().await?;
    Ok("hello")
}

/// Adds an item that only the handler knows.
async fn charge_more(request: axum::extract::Request) -> Result<&'static str, Error> {
    let path = request.uri().path().to_owned();
    let limits = RequestLimits::of(request.extensions()).expect("the limits").and(("per_path", path));
    let mut tx = limits.limiter().pool().begin().await.expect("a transaction");
    limits.enforce_within(&mut tx).await?;
    tx.commit().await.expect("a commit");
    Ok("hello")
}

/// The forms that an operator looks for.
fn forms(key: &str) -> Vec<String> {
    let StoredKeys { usual, others, .. } = stored_keys(key);
    [usual].iter().chain(&others).map(|key| key.as_str().to_owned()).collect()
}

async fn keys(database: &Database) -> Vec<String> {
    sqlx::query_scalar("SELECT key FROM rate_limit.rate_limits ORDER BY key COLLATE \"C\"")
        .fetch_all(&database.pool)
        .await
        .expect("keys")
}

#[tokio::test]
async fn a_long_path_is_counted_however_the_layer_finds_it() {
    let path_of = |request: &http::request::Parts| request.uri.path().to_owned();
    type Change = Box<dyn Fn(RateLimitLayer) -> RateLimitLayer>;
    let ways: Vec<(&str, Change)> = vec![
        ("path", Box::new(|layer| layer.limit("per_path", PathKey).expect("a limit"))),
        ("or", Box::new(move |layer| layer.limit("per_path", by_user().or(PathKey)).expect("a limit"))),
        (
            "closure",
            Box::new(move |layer| layer.limit("per_path", key_fn(move |r| Some(path_of(r)))).expect("a limit")),
        ),
        ("chosen", Box::new(move |layer| layer.limit_by(move |request| Some(Item::new("per_path", path_of(request)))))),
        ("handler", Box::new(|layer| layer.limit("per_path", PathKey).expect("a limit").in_handler())),
        ("more", Box::new(|layer| layer.in_handler())),
    ];
    for (way, change) in ways {
        let database = Database::migrated().await;
        let layer = change(RateLimitLayer::new(database.limiter(limits())));
        let app = match way {
            "handler" => Router::new().fallback(get(charge)),
            "more" => Router::new().fallback(get(charge_more)),
            _ => Router::new().fallback(get(|| async { "hello" })),
        };
        let served = Served::start(app.layer(layer)).await;
        // Two long paths that differ at the end only, and a short one.
        for (path, expected) in
            [(long("x"), 200), (long("y"), 200), ("/x".to_owned(), 200), (long("x"), 429), ("/x".to_owned(), 429)]
        {
            assert_eq!(served.get(&path, &[]).await.status, expected, "{way}: {} bytes", path.len());
        }
        let stored = keys(&database).await;
        assert_eq!(stored.iter().filter(|key| key.starts_with("sha256:") && key.len() == 50).count(), 2, "{stored:?}");
        let forms: Vec<_> = [long("x"), long("y"), "/x".to_owned()].iter().flat_map(|path| forms(path)).collect();
        assert!(stored.iter().all(|key| forms.contains(key)), "{stored:?}");
    }
}

/// A client that knows the hash of another one's key, and can send any key.
#[tokio::test]
async fn the_hash_of_a_long_key_is_no_key_that_a_client_can_send() {
    let database = Database::migrated().await;
    let layer = RateLimitLayer::new(database.limiter(limits())).limit("per_path", by_user().or(PathKey));
    let plain = RateLimitLayer::new(database.limiter(limits())).limit("per_path", by_user());
    let app = |layer: RateLimitLayer| Router::new().fallback(get(|| async { "hello" })).layer(layer);
    let served = [Served::start(app(layer.expect("a limit"))).await, Served::start(app(plain.expect("a limit"))).await];
    let path = long("of another client");
    for form in forms(&path) {
        for served in &served {
            assert_eq!(served.get("/", &[("x-user", &form)]).await.status, 200, "{form}");
        }
    }
    assert_eq!(served[0].get(&path, &[]).await.status, 200, "nothing was taken from its bucket");
}

#[tokio::test]
async fn a_long_key_is_hashed_with_the_secret_like_any_other() {
    let database = Database::migrated().await;
    let secret = KeySecret::new("0123456789abcdef").expect("a secret");
    let mut config = LimiterConfig::default();
    config.key_secret = Some(secret.clone());
    let limiter = Limiter::with_config(database.pool.clone(), limits(), config);
    let layer = RateLimitLayer::new(limiter.clone()).limit("per_path", PathKey).expect("a limit");
    let served = Served::start(Router::new().fallback(get(|| async { "hello" })).layer(layer)).await;
    assert_eq!(served.get(&long("x"), &[]).await.status, 200);
    let form = stored_keys(&long("x")).usual;
    assert_eq!(keys(&database).await, [secret.stored_key("per_path", form.as_str())]);
    limiter.reset(Item::new("per_path", form.as_str())).await.expect("reset");
    assert_eq!(served.get(&long("x"), &[]).await.status, 200);
}
