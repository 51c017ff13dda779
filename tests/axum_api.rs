//! The example with an API on axum, as its clients see it.
#![cfg(all(feature = "axum", feature = "embedded"))]
#![allow(unreachable_pub, missing_debug_implementations)]

#[path = "../examples/axum_api.rs"]
#[allow(dead_code)]
mod example;

use std::net::SocketAddr;

use pg_limiter::embedded::{Server, ServerConfig};
use reqwest::{Client, Response, StatusCode};
use sqlx::PgPool;

fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
    response.headers().get(name).map(|value| value.to_str().expect("text"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_sends_three_messages_and_an_address_asks_ten_times() {
    let mut config = ServerConfig::default();
    config.version = std::env::var("PG_LIMITER_TEST_VERSION").ok();
    config.container = std::env::var("PG_LIMITER_TEST_SERVER").is_ok_and(|server| server == "container");
    let server = tokio::task::spawn_blocking(move || Server::start(&config)).await.expect("a task").expect("a server");
    let pool = PgPool::connect(&server.url("postgres")).await.expect("connect");
    let app = example::app(&pool, "127.0.0.1".parse().expect("an address")).await.expect("the app");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/messages", listener.local_addr().expect("an address"));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let served = tokio::spawn(async move { axum::serve(listener, app).await });

    let client = Client::new();
    let send = async |account: &'static str, address: &'static str| {
        let request = client.post(&url).header("x-account", account).header("x-forwarded-for", address);
        request.body(format!("from {account}")).send().await.expect("a response")
    };
    for _ in 0..3 {
        let response = send("ada", "192.0.2.1").await;
        assert_eq!(response.status(), StatusCode::CREATED);
        let told: Vec<_> = response.headers().get_all("ratelimit-policy").iter().collect();
        assert_eq!(told, ["\"per_account\";q=3;w=60", "\"per_address\";q=10;w=10"]);
    }
    let refused = send("ada", "192.0.2.1").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = header(&refused, "retry-after").and_then(|text| text.parse().ok()).expect("seconds");
    assert!((1..=20).contains(&seconds), "{seconds}");
    assert_eq!(header(&refused, "content-type"), Some("application/problem+json"));
    assert!(refused.text().await.expect("a body").contains(r#""violated-policies":["per_account"]"#));
    assert_eq!(send("bob", "192.0.2.2").await.status(), StatusCode::CREATED);

    let list = async || client.get(&url).header("x-forwarded-for", "192.0.2.3").send().await.expect("a response");
    let first = list().await;
    assert_eq!(first.text().await.expect("a body"), "from ada\nfrom ada\nfrom ada\nfrom bob");
    // 10 at once, and 1 a second.
    for nth in 0.. {
        if list().await.status() == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
        assert!(nth < 1000, "nobody is refused");
    }
    served.abort();
    pool.close().await;
}
