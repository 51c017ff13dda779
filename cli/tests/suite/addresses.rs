//! Operators know addresses and names. The tool finds the keys that a web layer stores for them, or prints what would match.

use std::net::Ipv4Addr;
use std::time::Duration;

use axum::routing::get;
use axum::{Extension, Router};
use pg_limiter::web::{ClientAddress, HeaderKey, KeyExtractor, PeerAddress, RateLimitLayer};
use pg_limiter::{KeySecret, Limit, Limiter, LimiterConfig, Limits};

use crate::binary::{Run, files, run};
use crate::support::Database;

const YEAR: Duration = Duration::from_secs(8766 * 3600);
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A server behind a proxy, with a gate and a limit for each client.
struct App {
    database: Database,
    url: String,
    client: reqwest::Client,
    tool_args: Vec<String>,
}

impl App {
    async fn start<K: KeyExtractor + Clone + 'static>(key: K, secret: Option<&str>, tool_args: Vec<String>) -> Self {
        let database = Database::migrated().await;
        let limits = Limits::new()
            .define("banned", Limit::gate())
            .and_then(|limits| limits.define("requests", Limit::token_bucket(5, YEAR)))
            .expect("limits");
        let mut config = LimiterConfig::default();
        config.key_secret = secret.map(|secret| KeySecret::new(secret).expect("a secret"));
        let limiter = Limiter::with_config(database.pool.clone(), limits, config);
        let layer = RateLimitLayer::new(limiter)
            .limit("banned", key.clone())
            .and_then(|layer| layer.limit("requests", key))
            .expect("limits");
        let app = Router::new().fallback(get(|| async { "hello" })).layer(layer);
        let app = app.layer(Extension(PeerAddress(Ipv4Addr::LOCALHOST.into())));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await.expect("served") });
        Self { database, url, client: reqwest::Client::new(), tool_args }
    }

    async fn ask(&self, address: &str) -> u16 {
        let request = self.client.get(&self.url).header("x-forwarded-for", address);
        request.send().await.expect("a response").status().as_u16()
    }

    fn tool(&self, args: &str) -> Run {
        let args: Vec<&str> = args.split(' ').chain(self.tool_args.iter().map(String::as_str)).collect();
        run(Some(&self.database.url), &args, "")
    }
}

fn behind() -> ClientAddress {
    ClientAddress::behind("127.0.0.1".parse().expect("networks"))
}

const LIMIT: &str = "--rate 5 --period 365d";

/// An address as an operator writes it, and as a proxy reports another address of the same client.
const SAME_CLIENTS: [(&str, &str); 5] = [
    ("2001:db8::1", "2001:db8::2"),
    ("::ffff:203.0.113.7", "203.0.113.7"),
    ("64:ff9b::203.0.113.8", "203.0.113.8:4711"),
    ("[2001:DB8:1::1]:443", "2001:db8:1::1"),
    ("203.0.113.9", "2002:cb00:7109::1"),
];

#[tokio::test(flavor = "multi_thread")]
async fn addresses_match_what_the_layer_stores() {
    let (_dir, path) = files(&[("secret", SECRET)]);
    let with_secret = vec!["--key-secret-file".to_owned(), path("secret")];
    for (secret, tool_args) in [(None, Vec::new()), (Some(SECRET), with_secret)] {
        let app = App::start(behind(), secret, tool_args).await;
        for (known, reported) in SAME_CLIENTS {
            for expected in [200, 200] {
                assert_eq!(app.ask(reported).await, expected, "{reported}");
            }
            let peeked = app.tool(&format!("peek requests {known} {LIMIT}"));
            assert!(peeked.code == Some(0) && peeked.stdout.starts_with("3"), "{known}: {}", peeked.stdout);
            let blocked = app.tool(&format!("block banned {known} 1h"));
            assert!(blocked.code == Some(0) && blocked.stdout.contains("for 1h"), "{known}: {}", blocked.stdout);
            assert_eq!(app.ask(reported).await, 429, "{known} is blocked");
            let rest = app.tool(&format!("peek banned {known} --kind gate"));
            assert!(rest.stdout.starts_with("blocked for 59m"), "{known}: {}", rest.stdout);
            let unblocked = app.tool(&format!("unblock banned {known}"));
            assert!(unblocked.stdout.starts_with("unblocked"), "{known}: {}", unblocked.stdout);
            assert_eq!(app.ask(reported).await, 200, "{known} is not blocked any more");
            app.tool(&format!("reset requests {known} --must-exist")).says(0, "done, 1 row removed");
            assert_eq!(app.ask(reported).await, 200);
            app.tool(&format!("forget {known}")).says(0, "deleted 1 row of buckets, 0 jobs and 0 answers");
            assert_eq!(app.database.rows().await, 0, "{known}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_with_alternatives_match_or_the_tool_prints_what_would() {
    let key = || HeaderKeyOrAddress::new();
    let app = App::start(key(), None, Vec::new()).await;
    for reported in ["203.0.113.7", "2001:db8::1"] {
        // The layer has not stored a key yet, so the tool does not know its form.
        let blind = app.tool(&format!("block banned {reported} 1h"));
        let usual = if reported.contains(':') { "2001:db8::/64" } else { reported };
        assert!(blind.stderr.contains(&format!("\"2:{usual}\"")), "{}", blind.stderr);
        assert_eq!(app.ask(reported).await, 200, "blocked is {usual}, and the layer asks for 2:{usual}");
        let hinted = app.tool(&format!("block banned {reported} 1h"));
        assert_eq!(hinted.code, Some(0));
        let peeked = app.tool(&format!("peek requests {reported} {LIMIT}"));
        assert!(peeked.stdout.starts_with("4"), "{}", peeked.stdout);
        assert!(peeked.stderr.contains(&format!("\"{reported}\" is stored as \"2:{usual}\"")), "{}", peeked.stderr);
        let json = app.tool(&format!("peek requests {reported} {LIMIT} --json"));
        assert!(json.stdout.contains(&format!("\"key\": \"2:{usual}\"")), "{}", json.stdout);
        app.tool(&format!("unblock banned {usual}"));
        app.tool(&format!("block banned 2:{usual} 1h --json"));
        assert_eq!(app.ask(reported).await, 429, "blocked as it is stored");
        let unblocked = app.tool(&format!("unblock banned {reported}"));
        assert!(unblocked.stdout.starts_with("unblocked"), "{} {}", unblocked.stdout, unblocked.stderr);
        assert_eq!(app.ask(reported).await, 200);
        app.tool(&format!("reset requests {reported}")).says(0, "done, 1 row removed");
        assert_eq!(app.ask(reported).await, 200);
        let forgotten = app.tool(&format!("forget {reported} --json"));
        assert!(forgotten.stdout.contains("\"buckets\": 1"), "{}", forgotten.stdout);
        assert!(forgotten.stdout.contains(&format!("\"other_keys\": [\"2:{usual}\"]")), "{}", forgotten.stdout);
        assert_eq!(app.database.rows().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_of_another_length_is_found_if_it_is_the_only_one() {
    let app = App::start(behind().ipv6_prefix(48).ipv4_prefix(24), None, Vec::new()).await;
    for (known, stored) in [("2001:db8:1:2::1", "2001:db8:1::/48"), ("203.0.113.7", "203.0.113.0/24")] {
        assert_eq!(app.ask(known).await, 200);
        let peeked = app.tool(&format!("peek requests {known} {LIMIT}"));
        assert!(
            peeked.stdout.starts_with("4") && peeked.stderr.contains(stored),
            "{} {}",
            peeked.stdout,
            peeked.stderr
        );
        // The gate has no row yet. The limit beside it has.
        let blocked = app.tool(&format!("block banned {known} 1h"));
        assert!(blocked.stderr.contains(&format!("\"{stored}\" in \"requests\"")), "{}", blocked.stderr);
        assert!(app.tool(&format!("block banned {stored} 1h")).stderr.is_empty(), "it is stored so");
        assert_eq!(app.ask(known).await, 429);
    }
}

/// The key of a header, or else the address of the client.
#[derive(Clone)]
struct HeaderKeyOrAddress(std::sync::Arc<dyn KeyExtractor>);

impl HeaderKeyOrAddress {
    fn new() -> Self {
        Self(std::sync::Arc::new(HeaderKey::new("x-org").expect("a name").or(behind())))
    }
}

impl KeyExtractor for HeaderKeyOrAddress {
    fn key(&self, request: &axum::http::request::Parts) -> Result<Option<pg_limiter::Key>, pg_limiter::web::NoKey> {
        self.0.key(request)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_as_given_comes_first_and_exact_means_no_other() {
    let database = Database::migrated().await;
    let tool = |args: &str| run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
    // An application that counts full addresses itself.
    assert_eq!(tool(&format!("limit own 2001:db8::1 {LIMIT}")).code, Some(0));
    let peeked = tool(&format!("peek own 2001:db8::1 {LIMIT}"));
    assert!(peeked.stdout.starts_with("4") && peeked.stderr.is_empty(), "{} {}", peeked.stdout, peeked.stderr);
    tool("block gate 2001:db8::1 1h --exact").says(0, "blocked for 1h");
    assert!(tool("peek gate 2001:db8::1 --kind gate").stdout.starts_with("blocked for 59m"));
    tool("peek gate 2001:db8::/64 --kind gate").says(0, "open");
    tool("block gate 2001:db8::2 1h").says(0, "blocked \"2001:db8::/64\" for 1h");
    let none = tool(&format!("peek own 2001:db8:f::1 {LIMIT}"));
    assert!(none.stdout.starts_with("5") && none.stderr.contains("2001:db8:f::/64"), "{} {}", none.stdout, none.stderr);
    assert!(tool(&format!("peek own 2001:db8:f::1 {LIMIT} --exact")).stderr.is_empty());
    assert!(tool(&format!("peek own u1 {LIMIT}")).stderr.is_empty(), "no note for a key that is no address");
    // Several forms of one key.
    for key in ["1:u7", "2:u7"] {
        assert_eq!(tool(&format!("limit own {key} {LIMIT}")).code, Some(0));
    }
    tool(&format!("peek own u7 {LIMIT}")).refuses(2, &["\"1:u7\", \"2:u7\"", "--exact"]);
    tool("reset own u7").refuses(2, &["\"1:u7\", \"2:u7\""]);
    tool("reset own u7 --exact --must-exist")
        .says(1, "nothing to reset: the limit \"own\" has no row for this key, so its bucket is full");
    tool("reset own 2:u7").says(0, "done, 1 row removed");
    assert!(tool(&format!("peek own u7 {LIMIT}")).stdout.starts_with("4"), "one is left");
    tool("forget u7 --exact").says(0, "deleted 0 rows of buckets, 0 jobs and 0 answers");
    tool("forget u7").says(0, "deleted 1 row of buckets, 0 jobs and 0 answers");
    // A long path is stored as its hash.
    let long = format!("/{}", "a".repeat(2000));
    tool(&format!("block gate {long} 1h"));
    assert!(tool(&format!("peek gate {long} --kind gate")).stdout.starts_with("blocked for 59m"));
    tool(&format!("peek gate {long} --kind gate --exact")).refuses(2, &["at most 1024"]);
    tool(&format!("forget {long}")).says(0, "deleted 1 row of buckets, 0 jobs and 0 answers");
}

/// A role that may call functions, and may not read the table.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_look_for_rows_the_usual_key_is_used() {
    let database = Database::migrated().await;
    let role = format!("op_{}", database.name);
    database
        .execute(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA rate_limit TO {role}; \
             GRANT EXECUTE ON FUNCTION rate_limit.block, rate_limit._decide, rate_limit._decide_one, rate_limit._take_token_bucket, rate_limit._take_fixed_window, rate_limit._take_sliding_window, rate_limit._decide_sums TO {role}"
        ))
        .await;
    let url = format!("{}?options[role]={role}", database.url);
    let tool = |args: &str| run(Some(&url), &args.split(' ').collect::<Vec<_>>(), "");
    let blocked = tool("block gate 2001:db8::1 1h");
    assert_eq!(
        (blocked.code, blocked.stdout.trim_end()),
        (Some(0), "blocked \"2001:db8::/64\" for 1h"),
        "{}",
        blocked.stderr
    );
    assert!(blocked.stderr.contains("may not read"), "{}", blocked.stderr);
    assert!(tool("peek gate 2001:db8::7 --kind gate").stdout.starts_with("blocked for 59m"));
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
