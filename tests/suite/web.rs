//! axum routes behind the layer: real requests over TCP, and their responses.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use pg_limiter::migrate::Use;
use pg_limiter::sqlx::PgPool;
use pg_limiter::web::{
    ClientAddress, HeaderKey, KeyExtractor, PathKey, RateLimitLayer, RequestLimits, RouteKey, key_fn,
};
use pg_limiter::{Calendar, Limit, Limiter, LimiterConfig, Limits};

use crate::support::web::{Seen, Served};
use crate::support::{Database, Events, guide, watch};

const HOUR: Duration = Duration::from_secs(3600);

fn limits() -> Limits {
    Limits::new()
        .define("per_address", Limit::token_bucket(2, HOUR))
        .and_then(|limits| limits.define("per_org", Limit::sliding_window(3, HOUR)))
        .and_then(|limits| limits.define("bytes", Limit::token_bucket(1000, 8766 * HOUR)))
        .and_then(|limits| limits.define("daily", Limit::fixed_window(100, 24 * HOUR)))
        .expect("limits")
}

fn by_org() -> HeaderKey {
    HeaderKey::new("x-org").expect("a name")
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(|| async { "hello" })).route("/health", get(|| async { "well" })).layer(layer)
}

async fn limited(change: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> (Database, Limiter, Served) {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let served = Served::start(app(change(RateLimitLayer::new(limiter.clone())))).await;
    (database, limiter, served)
}

fn numbers(numbers: &[(&str, i64)]) -> BTreeMap<String, i64> {
    numbers.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
}

fn statuses(seen: &[Seen]) -> Vec<u16> {
    seen.iter().map(|seen| seen.status).collect()
}

#[tokio::test]
async fn responses_report_the_balance_and_retry_after() {
    let (_database, _, served) =
        limited(|layer| layer.limit("per_address", ClientAddress::direct()).expect("a limit")).await;
    let policy = vec![("per_address".to_owned(), numbers(&[("q", 2), ("w", 3600)]))];
    for (left, reset) in [(1, 1800), (0, 1800)] {
        let seen = served.get("/", &[]).await;
        assert_eq!((seen.status, seen.body.as_str()), (200, "hello"));
        assert_eq!(seen.list("ratelimit-policy"), policy);
        assert_eq!(seen.list("ratelimit")[0].1["r"], left);
        let told = seen.list("ratelimit")[0].1["t"];
        assert!((reset - 5..=reset).contains(&told), "{told}");
        assert_eq!((seen.header("retry-after"), seen.header("x-ratelimit-limit")), (None, None));
    }
    let seen = served.get("/", &[]).await;
    assert_eq!(seen.status, 429);
    assert_eq!(seen.list("ratelimit-policy"), policy);
    let retry_after = seen.number("retry-after").expect("a time");
    assert!((1790..=1800).contains(&retry_after), "{retry_after}");
    assert_eq!(seen.list("ratelimit"), [("per_address".to_owned(), numbers(&[("r", 0), ("t", retry_after)]))]);
    let problem = seen.problem();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["violated-policies"], serde_json::json!(["per_address"]));
    assert!(!seen.body.contains("127.0.0.1"), "{}", seen.body);
    assert_eq!(seen.number("content-length"), i64::try_from(seen.body.len()).ok());
}

#[tokio::test]
async fn a_request_after_retry_after_is_allowed() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("quick", Limit::token_bucket(1, Duration::from_secs(1))).expect("a limit");
    let layer = RateLimitLayer::new(database.limiter(limits)).limit("quick", ClientAddress::direct()).expect("a limit");
    let served = Served::start(app(layer)).await;
    for _ in 0..3 {
        while served.get("/", &[]).await.status == 200 {}
        let seen = served.get("/", &[]).await;
        if seen.status == 200 {
            continue; // The request took a second.
        }
        let seconds = seen.number("retry-after").expect("a time");
        tokio::time::sleep(Duration::from_secs(seconds.unsigned_abs())).await;
        assert_eq!(served.get("/", &[]).await.status, 200);
    }
}

#[tokio::test]
async fn several_limits_of_a_request_are_charged_all_or_none() {
    let (_database, limiter, served) = limited(|layer| {
        let layer = layer.limit("bytes", ClientAddress::direct()).expect("a limit");
        layer.limit("per_org", by_org()).expect("a limit").limit("daily", key_fn(|_| Some(""))).expect("a limit")
    })
    .await;
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(served.get("/", &[("x-org", "o7")]).await);
    }
    assert_eq!(statuses(&seen), [200, 200, 200, 429, 429]);
    assert_eq!(served.get("/", &[("x-org", "o8")]).await.status, 200);
    let left = limiter.peek(("bytes", "127.0.0.1")).await.expect("a balance").remaining();
    assert_eq!(left.floor(), 996.0, "denied requests are not charged");
    assert_eq!(limiter.peek(("daily", "")).await.expect("a balance").remaining(), 96.0);

    let names = |seen: &Seen, field: &str| seen.list(field).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&seen[0], "ratelimit-policy"), ["bytes", "per_org", "daily"]);
    assert_eq!(names(&seen[0], "ratelimit"), ["bytes", "per_org", "daily"]);
    let policies = seen[4].list("ratelimit-policy");
    assert_eq!(policies[1].1, numbers(&[("q", 3), ("w", 3600)]));
    assert_eq!(policies[2].1, numbers(&[("q", 100), ("w", 86_400)]));
    let daily = &seen[0].list("ratelimit")[2].1;
    assert!(daily["r"] == 99 && (1..=86_400).contains(&daily["t"]), "{daily:?}");
    let retry_after = seen[4].number("retry-after").expect("a time");
    assert_eq!(seen[4].list("ratelimit")[1].1, numbers(&[("r", 0), ("t", retry_after)]));
    assert_eq!(seen[4].list("ratelimit")[0].1, numbers(&[("r", 997)]), "no t that is later than Retry-After");
    assert_eq!(seen[4].problem()["violated-policies"], serde_json::json!(["per_org"]));
}

/// The draft requires it, even if `Retry-After` comes from the inner service.
#[tokio::test]
async fn no_layer_reports_a_time_later_than_retry_after() {
    let database = Database::migrated().await;
    let busy = get(|| async { (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "30")]) });
    let limits = Limits::new()
        .define("soon", Limit::token_bucket(1, Duration::from_secs(30)))
        .and_then(|limits| limits.define("later", Limit::token_bucket(1, Duration::from_secs(31))))
        .expect("limits");
    let layer = RateLimitLayer::new(database.limiter(limits))
        .limit("soon", ClientAddress::direct())
        .and_then(|layer| layer.limit("later", ClientAddress::direct()))
        .expect("limits");
    let seen = Served::start(Router::new().route("/", busy).layer(layer)).await.get("/", &[]).await;
    assert_eq!((seen.status, seen.number("retry-after")), (503, Some(30)));
    let told = seen.list("ratelimit");
    assert_eq!((told[0].1.get("t"), told[1].1.get("t")), (Some(&30), None));
}

/// By default, a client that rotates the header gains nothing. It would if the layer took the first address in it.
#[tokio::test]
async fn a_spoofed_forwarded_header_has_no_effect() {
    let (_database, _, served) =
        limited(|layer| layer.limit("per_address", ClientAddress::direct()).expect("a limit")).await;
    let mut seen = Vec::new();
    for nth in 0..4 {
        let spoof = format!("198.51.100.{nth}");
        let forwarded = format!("for={spoof}");
        let headers = [("x-forwarded-for", &*spoof), ("forwarded", &*forwarded), ("x-real-ip", &*spoof)];
        seen.push(served.get("/", &headers).await);
    }
    assert_eq!(statuses(&seen), [200, 200, 429, 429]);
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_have_separate_keys() {
    let proxies = "127.0.0.0/8, 10.0.0.0/8".parse().expect("networks");
    let (database, _, served) =
        limited(|layer| layer.limit("per_address", ClientAddress::behind(proxies)).expect("a limit")).await;
    let mut seen = Vec::new();
    for spoof in ["1.1.1.1", "2.2.2.2", "3.3.3.3"] {
        let header = format!("{spoof}, 203.0.113.5, 10.0.0.7");
        seen.push(served.get("/", &[("x-forwarded-for", &header)]).await);
    }
    for address in ["203.0.113.6", "2001:db8::1", "2001:db8::2", "2001:db8::3"] {
        seen.push(served.get("/", &[("x-forwarded-for", address)]).await);
    }
    assert_eq!(statuses(&seen), [200, 200, 429, 200, 200, 200, 429]);
    let keys: Vec<String> =
        pg_limiter::sqlx::query_scalar("SELECT key FROM rate_limit.rate_limits ORDER BY key COLLATE \"C\"")
            .fetch_all(&database.pool)
            .await
            .expect("keys");
    assert_eq!(keys, ["2001:db8::/64", "203.0.113.5", "203.0.113.6"]);
}

#[tokio::test]
async fn a_request_without_a_key_is_rejected_unless_configured_otherwise() {
    let (database, limiter, served) = limited(|layer| layer.limit("per_org", by_org()).expect("a limit")).await;
    let seen = served.get("/", &[]).await;
    assert_eq!((seen.status, seen.problem()["title"].as_str()), (400, Some("Bad Request")));
    assert!(seen.body.contains("the header x-org"), "{}", seen.body);
    assert!(seen.is_untouched());
    assert_eq!(served.get("/", &[("x-org", "o7"), ("x-org", "o8")]).await.status, 400);
    assert_eq!(served.get("/", &[("x-org", &"k".repeat(1025))]).await.status, 400);
    assert_eq!(database.rows().await, 0);

    let layer = RateLimitLayer::new(limiter.clone()).limit("per_org", by_org().or_shared()).expect("a limit");
    let shared = Served::start(app(layer)).await;
    for expected in [200, 200, 200, 429] {
        assert_eq!(shared.get("/", &[]).await.status, expected);
    }
    assert_eq!(shared.get("/", &[("x-org", "o7")]).await.status, 200);

    let layer = RateLimitLayer::new(limiter).limit("per_org", by_org().or_unlimited()).expect("a limit");
    let unlimited = Served::start(app(layer)).await;
    for _ in 0..5 {
        let seen = unlimited.get("/", &[]).await;
        assert!(seen.status == 200 && seen.is_untouched());
    }
    for expected in [200, 200, 429] {
        assert_eq!(unlimited.get("/", &[("x-org", "o7")]).await.status, expected);
    }
}

#[tokio::test]
async fn a_request_is_charged_its_configured_cost() {
    let cost = |request: &http::request::Parts| match request.headers.get("x-cost").map(|value| value.to_str()) {
        Some(Ok(text)) => text.parse().unwrap_or(f64::NAN),
        _ => 1.0,
    };
    let (_database, limiter, served) = limited(|layer| {
        let layer = layer.limit("daily", ClientAddress::direct()).expect("a limit").cost(|_| 2.5);
        layer.limit_with_cost("bytes", ClientAddress::direct(), cost).expect("a limit")
    })
    .await;
    let mut seen = Vec::new();
    for cost in ["700", "301", "300", "1001", "0", "-1", "NaN", "inf", "lots"] {
        seen.push(served.get("/", &[("x-cost", cost)]).await);
    }
    // A cost beyond the capacity is the request's fault; an invalid number of tokens is the program's.
    assert_eq!(statuses(&seen), [200, 429, 200, 400, 200, 500, 500, 500, 500]);
    assert!(seen[3].body.contains("bytes") && seen[3].header("retry-after").is_none(), "{}", seen[3].body);
    assert_eq!(seen[5].problem()["detail"], serde_json::Value::Null);
    assert_eq!(seen[1].list("ratelimit")[1].1["r"], 300);
    assert_eq!(limiter.peek(("daily", "127.0.0.1")).await.expect("a balance").remaining(), 92.5);
    assert!(limiter.peek(("bytes", "127.0.0.1")).await.expect("a balance").remaining() < 1.0);
}

#[tokio::test]
async fn skipped_requests_are_not_limited() {
    let (database, _, served) = limited(|layer| {
        let layer = layer.limit("per_org", by_org()).expect("a limit");
        layer.skip(|request| request.uri.path() == "/health")
    })
    .await;
    for _ in 0..5 {
        let seen = served.get("/health", &[]).await;
        assert_eq!((seen.status, seen.body.as_str()), (200, "well"));
        assert!(seen.is_untouched());
    }
    assert_eq!(database.rows().await, 0);
    assert_eq!(served.get("/", &[]).await.status, 400);
}

#[tokio::test]
async fn a_shadow_layer_decides_and_counts_but_never_denies() {
    let events = Events::default();
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = RateLimitLayer::new(limiter.clone())
        .limit("per_address", ClientAddress::direct())
        .and_then(|layer| layer.limit("per_org", by_org()))
        .expect("limits")
        .x_ratelimit_headers()
        .shadow();
    let watched = watch(events.clone());
    let served = Served::start(app(layer.clone())).await;
    for _ in 0..5 {
        let seen = served.get("/", &[("x-org", "org-in-the-shadow")]).await;
        assert_eq!((seen.status, seen.body.as_str()), (200, "hello"));
        assert!(seen.is_untouched(), "{:?}", seen.headers);
    }
    assert_eq!(layer.shadow_denials(), 3);
    // A missing key is no reason for a denial either.
    assert_eq!(served.get("/", &[]).await.status, 200);
    drop(watched);
    let told = events.told();
    assert_eq!(told.matches("shadow mode: let through").count(), 3, "{told}");
    assert!(told.contains(r#"limits=["per_address"]"#) && told.contains("the header x-org"), "{told}");
    assert!(!told.contains("127.0.0.1") && !told.contains("org-in-the-shadow"), "{told}");
    assert!(limiter.peek(("per_address", "127.0.0.1")).await.expect("a balance").remaining() < 1.0, "tokens are taken");
    assert_eq!(limiter.peek(("per_org", "org-in-the-shadow")).await.expect("a balance").remaining().round(), 1.0);
}

/// A limit in shadow mode beside one that is enforced.
#[tokio::test]
async fn a_shadow_layer_works_beside_an_enforcing_one() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let shadow = RateLimitLayer::new(limiter.clone()).limit("per_address", ClientAddress::direct()).expect("a limit");
    let (shadow, holds) = (shadow.shadow(), RateLimitLayer::new(limiter).limit("per_org", by_org()).expect("a limit"));
    let served = Served::start(app(holds).layer(shadow.clone())).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(served.get("/", &[("x-org", "o7")]).await);
    }
    assert_eq!((statuses(&seen), shadow.shadow_denials()), (vec![200, 200, 200, 429], 2));
    assert_eq!(seen[0].list("ratelimit").len(), 1);
}

#[tokio::test]
async fn a_route_key_is_the_same_for_every_path_of_the_route() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let inner = Router::new().route("/{id}/posts", get(|| async { "posts" }));
    let app = Router::new()
        .route("/users/{id}", get(|| async { "user" }))
        .nest("/authors", inner)
        .layer(RateLimitLayer::new(limiter.clone()).limit("daily", RouteKey).expect("a limit"));
    let served = Served::start(app).await;
    for (path, status) in
        [("/users/1", 200), ("/users/2?x", 200), ("/authors/3/posts", 200), ("/nothing", 404), ("/wp-login.php", 404)]
    {
        assert_eq!(served.get(path, &[]).await.status, status, "{path}");
    }
    for (key, used) in [("/users/{id}", 2.0), ("/authors/{id}/posts", 1.0), ("", 2.0)] {
        assert_eq!(limiter.peek(("daily", key)).await.expect("a balance").remaining(), 100.0 - used, "{key}");
    }
    assert_eq!(database.rows().await, 3);
}

#[tokio::test]
async fn a_path_key_differs_for_each_path() {
    let (database, _, served) = limited(|layer| layer.limit("daily", PathKey).expect("a limit")).await;
    for path in ["/", "/?x=1", "/health", "/nothing"] {
        let _ = served.get(path, &[]).await;
    }
    assert_eq!(database.rows().await, 3);
}

#[tokio::test]
async fn fields_of_layers_are_merged_and_the_trio_is_of_the_tightest() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = |limit: &str| {
        let layer = RateLimitLayer::new(limiter.clone()).limit(limit, ClientAddress::direct()).expect("a limit");
        layer.x_ratelimit_headers()
    };
    for (inner, outer) in [("per_org", "bytes"), ("bytes", "per_org")] {
        limiter.reset([("per_org", "127.0.0.1").into(), ("bytes", "127.0.0.1").into()]).await.expect("reset");
        let served = Served::start(app(layer(inner)).layer(layer(outer))).await;
        for left in [2, 1, 0] {
            let seen = served.get("/", &[]).await;
            assert_eq!(seen.status, 200);
            let names: Vec<String> = seen.list("ratelimit").into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, [inner, outer]);
            assert_eq!(seen.list("ratelimit-policy").len(), 2);
            let trio = ["limit", "remaining", "reset"].map(|name| seen.number(&format!("x-ratelimit-{name}")));
            let reset = trio[2].expect("a time");
            assert_eq!((trio[0], trio[1]), (Some(3), Some(left)));
            assert!((1..=3600).contains(&reset), "{reset}");
        }
        let seen = served.get("/", &[]).await;
        assert_eq!((seen.status, seen.number("x-ratelimit-remaining")), (429, Some(0)));
        assert_eq!(seen.number("x-ratelimit-limit"), Some(3));
        assert_eq!(seen.number("x-ratelimit-reset"), seen.number("retry-after"));
    }
}

#[tokio::test]
async fn without_fields_a_denial_has_only_retry_after() {
    let (_database, _, served) = limited(|layer| {
        let layer = layer.limit("per_address", ClientAddress::direct()).expect("a limit");
        layer.without_ratelimit_headers()
    })
    .await;
    for _ in 0..2 {
        assert!(served.get("/", &[]).await.is_untouched());
    }
    let seen = served.get("/", &[]).await;
    assert!(seen.status == 429 && seen.number("retry-after").is_some());
    assert!(seen.list("ratelimit").is_empty() && seen.list("ratelimit-policy").is_empty());
}

/// In a Structured Fields String, which allows printable ASCII only, and in JSON.
#[tokio::test]
async fn any_limit_name_gives_parsable_fields() {
    let database = Database::migrated().await;
    let names = ["z\u{fc}rich", "a \"quoted\" \\ name", "two\nlines\r\n", "\u{1f980}", "50%, or;q=1"];
    let limits = names
        .iter()
        .fold(Limits::new(), |limits, name| limits.define(name, Limit::token_bucket(1, HOUR)).expect("a limit"));
    let layer = names.iter().fold(RateLimitLayer::new(database.limiter(limits)), |layer, name| {
        layer.limit(*name, ClientAddress::direct()).expect("a limit")
    });
    let served = Served::start(app(layer)).await;
    let expected =
        ["z%C3%BCrich", "a \"quoted\" \\ name", "two%0Alines%0D%0A", "%F0%9F%A6%80", "50%, or;q=1"].map(String::from);
    let first = served.get("/", &[]).await;
    assert_eq!(first.status, 200);
    for field in ["ratelimit", "ratelimit-policy"] {
        assert_eq!(first.list(field).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), expected);
    }
    let refused = served.get("/", &[]).await;
    let mut violated: Vec<String> =
        serde_json::from_value(refused.problem()["violated-policies"].clone()).expect("names");
    violated.sort();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!((refused.status, violated), (429, expected));
}

/// The seconds of the present month in Berlin, and those that are left.
fn month_in_berlin() -> (i64, i64) {
    let now = jiff::Zoned::now().in_tz("Europe/Berlin").expect("a zone");
    let start = now.first_of_month().and_then(|day| day.start_of_day()).expect("a time");
    let end = start.checked_add(jiff::Span::new().months(1)).expect("a time");
    (
        end.timestamp().as_second() - start.timestamp().as_second(),
        end.timestamp().as_second() - now.timestamp().as_second(),
    )
}

#[tokio::test]
async fn the_policy_of_a_calendar_window_has_its_seconds_as_it_is_now() {
    let database = Database::migrated().await;
    let limits = Limits::new()
        .define("monthly", Limit::calendar(3, Calendar::months(1)).zone("Europe/Berlin"))
        .and_then(|limits| limits.define("per_address", Limit::token_bucket(20, HOUR)))
        .expect("limits");
    let limiter = database.limiter(limits);
    let layer = RateLimitLayer::new(limiter.clone()).limit("monthly", ClientAddress::direct()).expect("a limit");
    let layer = layer.limit("per_address", ClientAddress::direct()).expect("a limit").x_ratelimit_headers();
    let charged = async |limits: RequestLimits| limits.enforce().await.map(|_| "charged");
    let in_transaction = async |limits: RequestLimits| {
        let mut tx = limits.limiter().pool().begin().await.expect("a transaction");
        let permit = limits.enforce_within(&mut tx).await;
        tx.commit().await.expect("a commit");
        permit.map(|_| "charged")
    };
    let inner = Router::new().route("/own", get(charged)).route("/within", get(in_transaction));
    let served = [
        Served::start(app(layer.clone())).await,
        Served::start(inner.clone().layer(layer.clone().in_handler())).await,
        Served::start(inner.layer(layer.clone().in_handler())).await,
    ];
    for (served, path) in served.iter().zip(["/", "/own", "/within"]) {
        for _ in 0..2 {
            // The month can end while the request runs.
            let before = month_in_berlin();
            let seen = served.get(path, &[]).await;
            let after = month_in_berlin();
            let policies = seen.list("ratelimit-policy");
            assert_eq!(policies[1], ("per_address".to_owned(), numbers(&[("q", 20), ("w", 3600)])));
            assert_eq!((policies[0].0.as_str(), policies[0].1["q"]), ("monthly", 3));
            let window = policies[0].1["w"];
            assert!(window == before.0 || window == after.0, "{path}: {window}, not {before:?} or {after:?}");
            if seen.status == 200 && before.0 == after.0 {
                let reset = seen.number("x-ratelimit-reset").expect("a time");
                assert!((after.1 - 5..=before.1 + 5).contains(&reset), "{path}: {reset}, not {before:?} to {after:?}");
            }
        }
    }
    // Without the right to ask, the window is left out, and the request is allowed.
    let role = format!("web_{}", database.name);
    let grants = guide::grants(Use::App).replace("rate_limit.window,", "").replace("app_role", &role);
    database.execute(&format!("CREATE ROLE {role} LOGIN; {grants}")).await;
    let options = (*database.pool.connect_options()).clone().options([("role", role.as_str())]);
    let limiter = Limiter::new(PgPool::connect_with(options).await.expect("a pool"), limiter.limits().clone());
    let layer =
        RateLimitLayer::new(limiter).limit("monthly", HeaderKey::new("x-org").expect("a name")).expect("a limit");
    let seen = Served::start(app(layer)).await.get("/", &[("x-org", "o7")]).await;
    assert_eq!((seen.status, seen.list("ratelimit-policy")), (200, vec![("monthly".to_owned(), numbers(&[("q", 3)]))]));
}

/// Numbers at the ends of their ranges are still whole numbers, as parsers require.
#[tokio::test]
async fn any_limit_gives_fields_with_whole_numbers() {
    let database = Database::migrated().await;
    let century = Duration::from_secs(36_525 * 86_400);
    let limits = Limits::new()
        .define("huge", Limit::token_bucket(1e13, Duration::from_micros(1)))
        .and_then(|limits| limits.define("slow", Limit::token_bucket(1e-6, century).capacity(1.5)))
        .and_then(|limits| limits.define("fine", Limit::sliding_window(1.5, Duration::from_millis(10)).resolution(7)))
        .and_then(|limits| limits.define("rolls", Limit::fixed_window(0.3, HOUR).capacity(7.5)))
        .expect("limits");
    let names = ["huge", "slow", "fine", "rolls"];
    let layer = names.iter().fold(RateLimitLayer::new(database.limiter(limits)), |layer, name| {
        layer.limit(*name, ClientAddress::direct()).expect("a limit")
    });
    let served = Served::start(app(layer.x_ratelimit_headers())).await;
    for _ in 0..3 {
        let seen = served.get("/", &[]).await;
        let policies = seen.list("ratelimit-policy");
        assert_eq!(policies[0].1, numbers(&[("q", 10_000_000_000_000)]));
        assert_eq!(policies[1].1, numbers(&[("q", 1), ("w", 999_999_999_999_999)]));
        assert_eq!(policies[2].1, numbers(&[("q", 1)]));
        assert_eq!(policies[3].1, numbers(&[("q", 7), ("w", 25 * 3600)]));
        assert!(seen.number("x-ratelimit-reset").is_some_and(|reset| reset > 0));
        for ((_, now), (_, policy)) in seen.list("ratelimit").iter().zip(&policies) {
            assert!((0..=policy["q"]).contains(&now["r"]), "{now:?} of {policy:?}");
        }
    }
}

/// So failed log-ins count.
#[tokio::test]
async fn a_request_that_fails_in_the_inner_service_is_charged() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = RateLimitLayer::new(limiter).limit("per_address", ClientAddress::direct()).expect("a limit");
    let fails = get(|| async { (StatusCode::INTERNAL_SERVER_ERROR, "broken") });
    let served = Served::start(Router::new().route("/", fails).layer(layer)).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(served.get("/", &[]).await);
    }
    assert_eq!(statuses(&seen), [500, 500, 429]);
    assert_eq!((seen[0].body.as_str(), seen[0].list("ratelimit")[0].1["r"]), ("broken", 1));
}

#[tokio::test]
async fn an_app_without_connect_info_rejects_requests_and_traces_the_mistake() {
    let events = Events::default();
    let database = Database::migrated().await;
    let layer = RateLimitLayer::new(database.limiter(limits()));
    let layer = layer.limit("per_address", ClientAddress::direct()).expect("a limit");
    let watched = watch(events.clone());
    let request = axum::extract::Request::new(axum::body::Body::empty());
    let response = tower::ServiceExt::oneshot(app(layer), request).await.expect("a response");
    drop(watched);
    assert_eq!(response.status(), 500);
    assert!(events.told().contains("into_make_service_with_connect_info"), "{}", events.told());
}

/// Tests of applications use such a mock.
#[tokio::test]
async fn mock_connect_info_gives_the_peer() {
    let database = Database::migrated().await;
    let address = std::net::SocketAddr::from(([192, 0, 2, 1], 4711));
    let layer = RateLimitLayer::new(database.limiter(limits())).limit("per_address", ClientAddress::direct());
    let app = app(layer.expect("a limit")).layer(axum::extract::connect_info::MockConnectInfo(address));
    for expected in [200, 200, 429] {
        let request = axum::extract::Request::new(axum::body::Body::empty());
        let response = tower::ServiceExt::oneshot(app.clone(), request).await.expect("a response");
        assert_eq!(response.status(), expected);
    }
}

#[tokio::test]
async fn a_limit_may_be_given_with_the_layer() {
    let database = Database::migrated().await;
    let given = Limit::token_bucket(1, 8766 * HOUR).build().expect("a limit");
    let layer = RateLimitLayer::new(database.limiter(limits()))
        .limit(("given", given), ClientAddress::direct())
        .and_then(|layer| layer.limit("daily", ClientAddress::direct()))
        .expect("limits");
    let served = Served::start(app(layer)).await;
    for (expected, left) in [(200, 99), (429, 99)] {
        let seen = served.get("/", &[]).await;
        assert_eq!(seen.status, expected);
        assert_eq!(seen.list("ratelimit-policy")[0].1["q"], 1);
        assert_eq!((seen.list("ratelimit")[1].0.as_str(), seen.list("ratelimit")[1].1["r"]), ("daily", left));
    }
}

/// Many concurrent requests through the whole stack get exactly what the limits grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_concurrent_requests_get_exactly_the_capacity() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("forty", Limit::token_bucket(40, 24 * HOUR)).expect("a limit");
    let limiter = Limiter::with_config(database.pool.clone(), limits, LimiterConfig::default());
    let layer = RateLimitLayer::new(limiter).limit("forty", ClientAddress::direct()).expect("a limit");
    let served = Served::start(app(layer)).await;
    let seen = futures_util::future::join_all((0..100).map(|_| served.get("/", &[]))).await;
    let served_ones = seen.iter().filter(|seen| seen.status == 200).count();
    let refused = seen.iter().filter(|seen| seen.status == 429).count();
    assert_eq!((served_ones, refused), (40, 60));
}
