//! Every example, and what it shows. One binary, one server, a database for each. The rate that `third_party_api` reaches is
//! tested in a binary of its own.
#![cfg(feature = "embedded")]
#![allow(unreachable_pub, clippy::future_not_send)]

#[path = "../../examples/allowances.rs"]
mod allowances;
#[cfg(feature = "axum")]
#[path = "../../examples/axum_api.rs"]
mod axum_api;
#[cfg(feature = "axum")]
#[path = "../../examples/axum_plans.rs"]
mod axum_plans;
#[path = "../../examples/bans.rs"]
mod bans;
#[path = "../../examples/common/mod.rs"]
#[allow(dead_code)]
mod common;
#[path = "../../examples/cooldown.rs"]
mod cooldown;
#[cfg(feature = "tonic")]
#[path = "../../examples/grpc.rs"]
mod grpc;
#[path = "../../examples/in_transaction.rs"]
mod in_transaction;
#[path = "../../examples/llm_tokens.rs"]
mod llm_tokens;
#[path = "../../examples/login_throttle.rs"]
mod login_throttle;
#[path = "../../examples/migrate_by_hand.rs"]
mod migrate_by_hand;
#[cfg(feature = "reqwest")]
#[path = "../../examples/outgoing.rs"]
mod outgoing;
#[path = "../../examples/per_user_and_per_org.rs"]
mod per_user_and_per_org;
#[path = "../../examples/signup_global.rs"]
mod signup_global;
mod sql;
mod stories;
#[path = "../../examples/third_party_api.rs"]
#[allow(dead_code)]
mod third_party_api;
#[path = "../../examples/usage_alerts.rs"]
mod usage_alerts;
#[cfg(feature = "axum")]
#[path = "../../examples/websockets.rs"]
mod websockets;

use std::sync::OnceLock;

use common::BoxError;
use pg_limiter::embedded::{Server, ServerConfig};
use sqlx::PgPool;

/// The server of all of them: that of `DATABASE_URL`, or a private one.
fn server_url() -> String {
    static SERVER: OnceLock<Server> = OnceLock::new();
    if let Ok(url) = std::env::var("DATABASE_URL") {
        return url;
    }
    let start = || {
        let mut config = ServerConfig::default();
        config.version = std::env::var("PG_LIMITER_TEST_VERSION").ok();
        config.container = std::env::var("PG_LIMITER_TEST_SERVER").is_ok_and(|server| server == "container");
        config.durable = false;
        Server::start(&config).unwrap_or_else(|error| panic!("no PostgreSQL for the examples: {error}"))
    };
    SERVER.get_or_init(start).url("postgres")
}

/// Runs an example on a fresh database, and returns its outcome.
async fn outcome_of<T>(story: impl AsyncFnOnce(&PgPool) -> Result<T, BoxError>) -> T {
    let url = tokio::task::spawn_blocking(server_url).await.expect("a server");
    common::on_a_fresh_database_of(&url, story).await.expect("the whole story")
}
