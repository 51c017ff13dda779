//! Readable and unreadable clients behind trusted proxies: in lists of networks, as keys, in the log and in metrics.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::routing::get;
use http::{HeaderName, Request, header};
use pg_limiter::sqlx::PgPool;
use pg_limiter::web::{ClientAddress, Networks, PeerAddress, RateLimitLayer, TrustedProxies, Unreadable};
use pg_limiter::{Limit, Limiter, LimiterConfig, Limits};
use tower::ServiceExt;

use crate::support::web::Served;
use crate::support::{Database, Events, sqlx, watch};

const HOUR: Duration = Duration::from_secs(3600);
const XFF: HeaderName = HeaderName::from_static("x-forwarded-for");

fn behind(header: HeaderName) -> ClientAddress {
    let proxies: TrustedProxies = "10.0.0.0/8".parse().expect("networks");
    ClientAddress::behind(proxies.with_header(header))
}

fn networks(list: &str) -> Networks {
    list.parse().expect(list)
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(|| async { "hello" })).layer(layer)
}

/// A layer with lists only asks no database.
fn no_database() -> Limiter {
    let pool = PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/none").expect("a pool");
    let limits = Limits::new().define("per_address", Limit::token_bucket(2, HOUR)).expect("a limit");
    let mut config = LimiterConfig::default();
    config.retry.deadline = Duration::from_millis(500);
    Limiter::with_config(pool, limits, config)
}

/// A request of the proxy 10.0.0.1 with this header.
async fn status(app: &Router, header: &HeaderName, entry: &str) -> u16 {
    let peer = PeerAddress("10.0.0.1".parse().expect("an address"));
    let request = Request::get("/").extension(peer).header(header, entry).body(Body::empty()).expect("a request");
    app.clone().oneshot(request).await.expect("a response").status().as_u16()
}

const ENTRIES_OF_DENIED: [&str; 9] = [
    "198.51.100.7",
    "198.51.100.7:",
    "198.51.100.7:_port",
    "::ffff:198.51.100.7",
    "[::ffff:198.51.100.7]:80",
    "64:ff9b::198.51.100.7",
    "2002:c633:6407::1",
    "2001:db8:1:2:3:4:5:6:4711",
    "2001:db8:1:2:3:4:5:6%eth0",
];

#[tokio::test]
async fn a_denied_client_is_denied_in_every_form_of_its_address() {
    for list in ["198.51.100.0/24, 2001:db8:1::/48", "64:ff9b::198.51.100.7, 2001:db8:1:2:3:4:5:6"] {
        let app = app(RateLimitLayer::new(no_database()).deny_networks(behind(XFF), networks(list)));
        for entry in ENTRIES_OF_DENIED {
            assert_eq!(status(&app, &XFF, entry).await, 403, "{list}: {entry}");
        }
        for entry in ["203.0.113.50", "2001:db8:2::1", "64:ff9b::203.0.113.50"] {
            assert_eq!(status(&app, &XFF, entry).await, 200, "{list}: {entry}");
        }
        // It may be in the list.
        for entry in ["unknown", "_hidden", "198.51.100.07", "198.51.100.7 x", ""] {
            assert_eq!(status(&app, &XFF, entry).await, 400, "{list}: {entry}");
        }
        let passing = behind(XFF).unreadable(Unreadable::SharedKey);
        let app = self::app(RateLimitLayer::new(no_database()).deny_networks(passing, networks(list)));
        assert_eq!(status(&app, &XFF, "unknown").await, 200, "as configured");
        let shadow = RateLimitLayer::new(no_database()).deny_networks(behind(XFF), networks(list)).shadow();
        assert_eq!(status(&self::app(shadow), &XFF, "unknown").await, 200, "shadow mode");
    }
}

/// A client that is exempt needs no decision; any other one fails without the database.
#[tokio::test]
async fn an_unreadable_client_is_not_exempt_as_the_proxy_would_be() {
    let layer = |header: &HeaderName, list: &str| {
        let limiter = no_database();
        let layer = RateLimitLayer::new(limiter).limit("per_address", behind(header.clone())).expect("a limit");
        app(layer.allow_networks(behind(header.clone()), networks(list)))
    };
    let proxies = layer(&XFF, "10.0.0.0/8");
    for entry in ["unknown", "_hidden", "198.51.100.07", "", ",", "203.0.113.50", "fe80::1%eth0", "198.51.100.7:"] {
        assert_eq!(status(&proxies, &XFF, entry).await, 503, "{entry}");
    }
    assert_eq!(status(&proxies, &XFF, "10.2.0.1").await, 200, "a proxy's own request");
    let forwarded = layer(&header::FORWARDED, "10.0.0.0/8");
    for entry in ["for=203.0.113.50;host=\"a,b\"", "for=unknown", "proto=https", "for=\"_x:_y\""] {
        assert_eq!(status(&forwarded, &header::FORWARDED, entry).await, 503, "{entry}");
    }
    let allowed = layer(&header::FORWARDED, "203.0.113.50");
    for entry in ["for=203.0.113.50;host=\"a,b\"", "for=\"203.0.113.50:_p\"", "for=\"[64:ff9b::203.0.113.50]\""] {
        assert_eq!(status(&allowed, &header::FORWARDED, entry).await, 200, "{entry}");
    }
}

#[tokio::test]
async fn unreadable_clients_share_one_key_and_take_nothing_from_the_proxy() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("per_address", Limit::token_bucket(2, 8766 * HOUR)).expect("a limit");
    let limiter = database.limiter(limits);
    let layer = |client| RateLimitLayer::new(limiter.clone()).limit("per_address", client).expect("a limit");
    let shared = app(layer(behind(XFF)));
    for (entry, expected) in [("unknown", 200), ("_hidden", 200), ("198.51.100.07", 429), ("", 429)] {
        assert_eq!(status(&shared, &XFF, entry).await, expected, "{entry}");
    }
    for entry in ["203.0.113.50", "203.0.113.50:80", "10.0.0.9", "2001:db8::1", "64:ff9b::203.0.113.51"] {
        assert_eq!(status(&shared, &XFF, entry).await, 200, "{entry}");
    }
    assert_eq!(status(&shared, &XFF, "64:ff9b::203.0.113.50").await, 429, "the same client");
    let keys: Vec<String> = sqlx::query_scalar("SELECT key FROM rate_limit.rate_limits ORDER BY key COLLATE \"C\"")
        .fetch_all(&database.pool)
        .await
        .expect("keys");
    assert_eq!(keys, ["10.0.0.9", "2001:db8::/64", "203.0.113.50", "203.0.113.51", "unreadable"]);
    let rejecting = app(layer(behind(XFF).unreadable(Unreadable::Reject)));
    assert_eq!(status(&rejecting, &XFF, "unknown").await, 400);
    assert_eq!(database.rows().await, 5);
}

#[tokio::test]
async fn unreadable_clients_are_logged_once_a_minute_without_what_they_sent() {
    let events = Events::default();
    let app = app(RateLimitLayer::new(no_database()).deny_networks(behind(XFF), networks("198.51.100.0/24")));
    let watched = watch(events.clone());
    assert_eq!(status(&app, &XFF, "203.0.113.50").await, 200);
    assert_eq!(events.told(), "");
    for _ in 0..3 {
        assert_eq!(status(&app, &XFF, "_secret-name").await, 400);
    }
    drop(watched);
    let told = events.told();
    assert_eq!(told.matches("cannot be read").count(), 1, "{told}");
    assert!(told.contains("x-forwarded-for") && told.contains("obfuscated") && told.contains("left_out=0"), "{told}");
    assert!(!told.contains("secret-name") && !told.contains("10.0.0.1"), "{told}");
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn unreadable_clients_are_counted_by_the_reason() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    let recorder = DebuggingRecorder::new();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let app = app(RateLimitLayer::new(no_database()).deny_networks(behind(XFF), networks("198.51.100.0/24")));
    for entry in ["unknown", "_a", "_b", "", "x", "y", "z", "203.0.113.50"] {
        let _ = status(&app, &XFF, entry).await;
    }
    let snapshot = recorder.snapshotter().snapshot().into_vec();
    let mut counted: Vec<(String, u64)> = snapshot
        .into_iter()
        .filter(|(key, ..)| key.key().name() == "pg_limiter_unreadable_clients_total")
        .map(|(key, _, _, value)| {
            let reason = key.key().labels().map(|label| label.value().to_owned()).collect();
            let DebugValue::Counter(count) = value else { panic!("no counter") };
            (reason, count)
        })
        .collect();
    counted.sort();
    let expected = [("malformed", 3), ("missing", 1), ("obfuscated", 2), ("unknown", 1)];
    assert_eq!(counted, expected.map(|(reason, count)| (reason.to_owned(), count)));
}

/// A Unix socket has no address, so the application gives the loopback address as the peer's.
#[cfg(unix)]
#[tokio::test]
async fn clients_behind_a_proxy_on_a_unix_socket_have_their_own_keys() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let database = Database::migrated().await;
    let limits = Limits::new().define("per_address", Limit::token_bucket(1, 8766 * HOUR)).expect("a limit");
    let proxies: TrustedProxies = "127.0.0.1".parse().expect("networks");
    let layer = RateLimitLayer::new(database.limiter(limits)).limit("per_address", ClientAddress::behind(proxies));
    let app = app(layer.expect("a limit")).layer(Extension(PeerAddress(std::net::Ipv4Addr::LOCALHOST.into())));
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("app.sock");
    let listener = tokio::net::UnixListener::bind(&path).expect("a socket");
    let serving = tokio::spawn(async move { axum::serve(listener, app).await.expect("served") });
    let ask = async |client: &str| {
        let mut stream = tokio::net::UnixStream::connect(&path).await.expect("a connection");
        let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("a response");
        response[9..12].to_owned()
    };
    for (client, expected) in [("203.0.113.5", "200"), ("203.0.113.6", "200"), ("203.0.113.5", "429")] {
        assert_eq!(ask(client).await, expected, "{client}");
    }
    serving.abort();
}

/// Over TCP, with axum's own peer addresses, which a dual-stack socket reports as mapped ones.
#[tokio::test]
async fn mapped_peers_are_the_proxies_that_are_given_as_ipv4_networks() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("per_address", Limit::token_bucket(1, 8766 * HOUR)).expect("a limit");
    let limiter = database.limiter(limits);
    let proxies: TrustedProxies = "127.0.0.0/8".parse().expect("networks");
    let layer = RateLimitLayer::new(limiter).limit("per_address", ClientAddress::behind(proxies)).expect("a limit");
    let mapped = PeerAddress("::ffff:127.0.0.1".parse().expect("an address"));
    let served = [Served::start(app(layer.clone())).await, Served::start(app(layer).layer(Extension(mapped))).await];
    for (served, expected) in [(&served[0], 200), (&served[1], 429)] {
        assert_eq!(served.get("/", &[("x-forwarded-for", "203.0.113.5")]).await.status, expected);
    }
}
