//! Limits that the layer chooses for each request, one limit in shadow mode beside others, and lists of networks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::request::Parts;
use pg_limiter::web::{ClientAddress, HeaderKey, KeyExtractor, OnFailure, RateLimitLayer, RequestLimits};
use pg_limiter::{Error, InvalidCall, Item, Limit, Limiter, Limits};

use crate::support::web::{Seen, Served};
use crate::support::{Database, Events, watch};

const HOUR: Duration = Duration::from_secs(3600);

fn limits() -> Limits {
    Limits::new()
        .define("requests", Limit::token_bucket(100, HOUR))
        .and_then(|limits| limits.define("new", Limit::token_bucket(2, HOUR)))
        .and_then(|limits| limits.define("newer", Limit::token_bucket(3, HOUR)))
        .and_then(|limits| limits.define("slots", Limit::concurrency(1).lease(HOUR)))
        .expect("limits")
}

fn bucket(rate: u32) -> Limit {
    Limit::token_bucket(rate, HOUR).build().expect("a limit")
}

fn by_user() -> HeaderKey {
    HeaderKey::new("x-user").expect("a name")
}

fn header(request: &Parts, name: &str) -> Option<String> {
    Some(request.headers.get(name)?.to_str().ok()?.to_owned())
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(|| async { "hello" })).layer(layer)
}

async fn limited(change: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> (Database, Limiter, RateLimitLayer, Served) {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = change(RateLimitLayer::new(limiter.clone()));
    let served = Served::start(app(layer.clone())).await;
    (database, limiter, layer, served)
}

async fn statuses(served: &Served, headers: &[(&str, &str)], times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(served.get("/", headers).await.status);
    }
    statuses
}

async fn left(limiter: &Limiter, limit: &str, key: &str) -> f64 {
    limiter.peek((limit, key)).await.expect("a balance").remaining().round()
}

/// Waits for what runs in the background.
async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000 {
        if is_true().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn a_closure_chooses_the_limit_of_each_request() {
    let (_database, _, _, served) = limited(|layer| {
        layer.limit_by(|request| {
            let rate = if header(request, "x-plan")? == "paying" { 4 } else { 2 };
            Some(Item::new(("api", bucket(rate)), header(request, "x-user")?))
        })
    })
    .await;
    assert_eq!(statuses(&served, &[("x-plan", "free"), ("x-user", "u1")], 3).await, [200, 200, 429]);
    assert_eq!(statuses(&served, &[("x-plan", "paying"), ("x-user", "u2")], 5).await, [200, 200, 200, 200, 429]);
    let seen = served.get("/", &[("x-plan", "paying"), ("x-user", "u2")]).await;
    assert_eq!(seen.list("ratelimit-policy")[0].1["q"], 4);
    assert_eq!(seen.problem()["violated-policies"], serde_json::json!(["api"]));
    // Without an item, the request is not limited.
    for _ in 0..5 {
        let seen = served.get("/", &[]).await;
        assert!(seen.status == 200 && seen.is_untouched());
    }
}

/// Limits under one name share a balance.
#[tokio::test]
async fn a_balance_follows_a_change_of_plan() {
    let (_database, limiter, _, served) = limited(|layer| {
        layer.limit_by(|request| {
            let rate: u32 = header(request, "x-rate")?.parse().ok()?;
            Some(Item::new(("api", Limit::fixed_window(rate, HOUR * 24).build().ok()?), "u1"))
        })
    })
    .await;
    assert_eq!(statuses(&served, &[("x-rate", "10")], 8).await, [200; 8]);
    assert_eq!(statuses(&served, &[("x-rate", "1")], 2).await, [200, 429], "the balance is cut to the lower capacity");
    let item = Item::new(("api", Limit::fixed_window(10, HOUR * 24).build().expect("a limit")), "u1");
    assert_eq!(limiter.peek(item).await.expect("a balance").remaining(), 0.0);
}

#[tokio::test]
async fn several_chosen_limits_are_charged_with_the_others_all_or_none() {
    let (_database, limiter, _, served) = limited(|layer| {
        let layer = layer.limit("requests", by_user()).expect("a limit").cost(|_| 3);
        layer.limit_by(|_| [Item::new("newer", "a"), Item::new(("cheap", bucket(10)), "b").count(0.5)])
    })
    .await;
    assert_eq!(statuses(&served, &[("x-user", "u1")], 5).await, [200, 200, 200, 429, 429]);
    assert_eq!(left(&limiter, "requests", "u1").await, 91.0, "the cost is for limits with a key");
    let cheap = limiter.peek(Item::new(("cheap", bucket(10)), "b")).await.expect("a balance").remaining();
    assert!((cheap - 8.5).abs() < 0.1, "{cheap}");
    let seen = served.get("/", &[("x-user", "u1")]).await;
    let names: Vec<String> = seen.list("ratelimit").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["requests", "newer", "cheap"]);
}

/// A plan in the application's table, with a cache that the application owns.
#[tokio::test]
async fn an_async_closure_looks_up_the_limit_in_a_table() {
    let database = Database::migrated().await;
    database.execute("CREATE TABLE plans (account text PRIMARY KEY, rate float8 NOT NULL)").await;
    database.execute("INSERT INTO plans VALUES ('a1', 2), ('a2', 3)").await;
    database.execute("GRANT SELECT ON plans TO PUBLIC").await;
    let (pool, cache) = (database.pool.clone(), Arc::<Mutex<HashMap<String, f64>>>::default());
    let plans = Arc::clone(&cache);
    let layer = RateLimitLayer::new(database.limiter(Limits::new())).limit_by_async(move |request| {
        let (account, pool, cache) = (header(request, "x-account"), pool.clone(), Arc::clone(&cache));
        async move {
            let Some(account) = account else { return Ok(None) };
            let known = cache.lock().expect("the cache").get(&account).copied();
            let rate = match known {
                Some(rate) => rate,
                None => {
                    let select = "SELECT rate FROM plans WHERE account = $1";
                    let rate = pg_limiter::sqlx::query_scalar(select).bind(&account).fetch_one(&pool).await?;
                    cache.lock().expect("the cache").insert(account.clone(), rate);
                    rate
                }
            };
            let limit = Limit::token_bucket(rate, HOUR).build()?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Some(Item::new(("api", limit), account)))
        }
    });
    let served = Served::start(app(layer.clone())).await;
    assert_eq!(statuses(&served, &[("x-account", "a1")], 3).await, [200, 200, 429]);
    assert_eq!(statuses(&served, &[("x-account", "a2")], 4).await, [200, 200, 200, 429]);
    assert_eq!(statuses(&served, &[], 3).await, [200, 200, 200]);

    // The upgrade counts once the application has emptied its cache.
    database.execute("UPDATE plans SET rate = 1000000 WHERE account = 'a1'").await;
    assert_eq!(statuses(&served, &[("x-account", "a1")], 1).await, [429]);
    plans.lock().expect("the cache").clear();
    let (served, headers) = (&served, [("x-account", "a1")]);
    until("the balance of the new plan", async || served.get("/", &headers).await.status == 200).await;

    // An account that is not in the table.
    let seen = served.get("/", &[("x-account", "nobody")]).await;
    assert_eq!((seen.status, seen.number("retry-after")), (503, Some(1)));
    let open = Served::start(app(layer.on_failure(OnFailure::Open))).await;
    assert_eq!(open.get("/", &[("x-account", "nobody")]).await.status, 200);
}

#[tokio::test]
async fn limits_that_cannot_be_chosen_leave_the_others() {
    let events = Events::default();
    let (_database, limiter, _, served) = limited(|layer| {
        let layer = layer.limit_by_async(|_| async { Err::<Vec<Item>, _>("no plans today") });
        layer.limit("new", by_user()).expect("a limit").on_failure(OnFailure::Open)
    })
    .await;
    let watched = watch(events.clone());
    assert_eq!(statuses(&served, &[("x-user", "u1")], 3).await, [200, 200, 429]);
    drop(watched);
    assert_eq!(left(&limiter, "new", "u1").await, 0.0);
    assert!(events.told().contains("no plans today"), "{}", events.told());
}

#[tokio::test]
async fn an_undefined_chosen_limit_is_a_bug_of_the_program() {
    let (database, _, _, served) = limited(|layer| layer.limit_by(|_| Some(Item::new("nope", "k")))).await;
    assert_eq!(served.get("/", &[]).await.status, 500);
    assert_eq!(database.rows().await, 0);
}

#[tokio::test]
async fn a_handler_charges_chosen_limits() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = RateLimitLayer::new(limiter.clone())
        .limit_by(|request| Some(Item::new(("api", bucket(2)), header(request, "x-user")?)))
        .in_handler();
    let handler = |limits: RequestLimits| async move { limits.enforce().await.map(|_| "done") };
    let served = Served::start(Router::new().route("/", get(handler)).layer(layer)).await;
    assert_eq!(statuses(&served, &[("x-user", "u1")], 3).await, [200, 200, 429]);
}

#[tokio::test]
async fn one_limit_in_shadow_mode_denies_nothing_and_is_counted_apart() {
    let (_database, limiter, layer, served) = limited(|layer| {
        let layer = layer.limit("requests", by_user()).and_then(|layer| layer.limit("new", by_user()));
        let layer = layer.and_then(|layer| layer.limit("newer", by_user().or_shared())).expect("limits");
        layer.shadow_limit("new").and_then(|layer| layer.shadow_limit("newer")).expect("limits")
    })
    .await;
    let mut seen: Vec<Seen> = Vec::new();
    for _ in 0..5 {
        seen.push(served.get("/", &[("x-user", "u1")]).await);
    }
    assert!(seen.iter().all(|seen| seen.status == 200));
    let policies: Vec<String> = seen[4].list("ratelimit-policy").into_iter().map(|(name, _)| name).collect();
    assert_eq!(policies, ["requests"], "no fields for limits in shadow mode");
    until("denials", async || layer.shadow_denials() == 3).await;
    let denials = ["requests", "new", "newer"].map(|limit| layer.shadow_denials_of(limit));
    assert_eq!(denials, [0, 3, 2]);
    let balances = [left(&limiter, "requests", "u1").await, left(&limiter, "new", "u1").await];
    assert_eq!(balances, [95.0, 0.0], "a limit that would deny takes nothing");
    assert_eq!(left(&limiter, "newer", "u1").await, 0.0, "and does not keep another one from taking");
}

/// As if the limit were enforced: with the other limits, it is charged or not.
#[tokio::test]
async fn a_denied_request_is_not_charged_to_a_limit_in_shadow_mode() {
    let (_database, limiter, layer, served) = limited(|layer| {
        let layer = layer.limit("new", by_user()).and_then(|layer| layer.limit("requests", by_user()));
        layer.and_then(|layer| layer.shadow_limit("requests")).expect("limits")
    })
    .await;
    assert_eq!(statuses(&served, &[("x-user", "u1")], 5).await, [200, 200, 429, 429, 429]);
    let limiter = &limiter;
    until("two tokens", async || left(limiter, "requests", "u1").await == 98.0).await;
    assert_eq!(layer.shadow_denials(), 0);
}

#[tokio::test]
async fn a_limit_in_shadow_mode_needs_no_key() {
    let (_database, _, _, served) = limited(|layer| {
        let layer = layer.limit("new", by_user()).and_then(|layer| layer.shadow_limit("new")).expect("a limit");
        layer.limit("newer", ClientAddress::direct()).expect("a limit")
    })
    .await;
    assert_eq!(statuses(&served, &[], 4).await, [200, 200, 200, 429]);
}

#[tokio::test]
async fn slots_in_shadow_mode_are_held_while_the_request_runs() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = RateLimitLayer::new(limiter.clone())
        .limit("slots", by_user())
        .and_then(|layer| layer.shadow_limit("slots"))
        .expect("a limit");
    let inner = limiter.clone();
    let handler = move || {
        let limiter = inner.clone();
        async move {
            for _ in 0..1_000 {
                if limiter.peek(("slots", "u1")).await.expect("a balance").remaining() == 0.0 {
                    return "held";
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            "never held"
        }
    };
    let served = Served::start(Router::new().route("/", get(handler)).layer(layer)).await;
    assert_eq!(served.get("/", &[("x-user", "u1")]).await.body, "held");
    let limiter = &limiter;
    until("free", async || left(limiter, "slots", "u1").await == 1.0).await;
}

#[tokio::test]
async fn a_handler_decides_a_limit_in_shadow_mode_in_its_transaction() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = RateLimitLayer::new(limiter.clone())
        .limit("requests", by_user())
        .and_then(|layer| layer.limit("new", by_user()))
        .and_then(|layer| layer.shadow_limit("new"))
        .expect("limits")
        .in_handler();
    let pool = database.app.clone();
    let handler = |limits: RequestLimits| async move {
        let mut tx = pool.begin().await.expect("begin");
        let permit = limits.enforce_within(&mut tx).await.map(|permit| permit.remaining.round().to_string());
        tx.commit().await.expect("commit");
        permit
    };
    let served = Served::start(Router::new().route("/", get(handler)).layer(layer.clone())).await;
    for remaining in ["99", "98", "97"] {
        let seen = served.get("/", &[("x-user", "u1")]).await;
        assert_eq!((seen.status, &*seen.body), (200, remaining));
    }
    assert_eq!((layer.shadow_denials(), layer.shadow_denials_of("new")), (1, 1));
    assert_eq!(left(&limiter, "new", "u1").await, 0.0);
}

#[tokio::test]
async fn unknown_names_are_rejected_when_the_layer_is_built() {
    let database = Database::migrated().await;
    let layer = || RateLimitLayer::new(database.limiter(limits()));
    let errors = [
        layer().shadow_limit("nope").expect_err("unknown"),
        layer().settle_limit("nope", |_, _| Some(1)).expect_err("unknown"),
    ];
    for error in errors {
        assert!(matches!(error, Error::Invalid(InvalidCall::UnknownLimit { ref limit }) if limit == "nope"), "{error}");
    }
    let inline = layer().limit(("nope", bucket(1)), by_user()).expect("a limit");
    assert!(inline.shadow_limit("nope").is_ok());
    assert!(layer().limit_by(|_| None::<Item>).shadow_limit("nope").is_ok(), "a closure may pass it inline");
}

#[tokio::test]
async fn networks_are_denied_and_allowed() {
    let proxy = "127.0.0.1".parse().expect("a network");
    let client = ClientAddress::behind(proxy);
    let (database, _, layer, served) = limited(|layer| {
        layer
            .limit("new", client.clone())
            .expect("a limit")
            .deny_networks(client.clone(), "203.0.113.0/24\n2001:db8::/32".parse().expect("networks"))
            .allow_networks(client, "198.51.100.7, 203.0.113.9".parse().expect("networks"))
    })
    .await;
    for address in ["203.0.113.5", "2001:db8::1", "203.0.113.9", "::ffff:203.0.113.5"] {
        let seen = served.get("/", &[("x-forwarded-for", address)]).await;
        assert_eq!((seen.status, seen.problem()["title"].as_str()), (403, Some("Forbidden")), "{address}");
        assert!(seen.is_untouched() && !seen.body.contains(address));
    }
    assert_eq!(database.rows().await, 0);
    assert_eq!(statuses(&served, &[("x-forwarded-for", "198.51.100.7")], 4).await, [200; 4]);
    assert_eq!(statuses(&served, &[("x-forwarded-for", "198.51.100.8")], 3).await, [200, 200, 429]);
    // An address that the client wrote itself counts for neither list.
    let forged = ("x-forwarded-for", "198.51.100.7, 198.51.100.8");
    assert_eq!(served.get("/", &[forged]).await.status, 429);
    assert_eq!(served.get("/", &[("x-forwarded-for", "203.0.113.5, 198.51.100.9")]).await.status, 200);

    let tried = layer.clone().shadow();
    let shadow = Served::start(app(tried.clone())).await;
    assert_eq!(shadow.get("/", &[("x-forwarded-for", "203.0.113.5")]).await.status, 200);
    assert_eq!(tried.shadow_denials(), 1);
}
