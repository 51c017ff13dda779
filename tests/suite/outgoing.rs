//! Requests to a third party, which is a real server: they take tokens first, and one refusal pauses all processes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use http::header::HeaderValue;
use pg_limiter::outgoing::{OnFailure, OutgoingLimits};
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::{Calendar, Denied, Error, InvalidCall, Item, Limit, Limiter, LimiterConfig, Limits};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};

use crate::support::gate::{self, CENTURY};
use crate::support::web::Served;
use crate::support::{Database, Events, Node, watch};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn limits() -> Limits {
    Limits::new()
        .define("calls", Limit::token_bucket(10, CENTURY))
        .and_then(|limits| limits.define("bytes", Limit::token_bucket(100, CENTURY)))
        .and_then(|limits| limits.define("pause", Limit::gate()))
        .and_then(|limits| limits.define("slots", Limit::concurrency(1)))
        .expect("limits")
}

/// A response of the third party.
type Scripted = (u16, Vec<(&'static str, &'static [u8])>);
pub(crate) type Fields = &'static [(&'static str, &'static [u8])];

/// The next responses of the third party (then 200), and the bodies that it has received.
#[derive(Default)]
struct Script {
    next: VecDeque<Scripted>,
    bodies: Vec<String>,
}

/// A third party on a real port.
pub(crate) struct ThirdParty {
    pub(crate) served: Served,
    script: Arc<Mutex<Script>>,
}

async fn respond(State(script): State<Arc<Mutex<Script>>>, body: Bytes) -> Response {
    let mut script = script.lock().expect("the script");
    script.bodies.push(String::from_utf8(body.to_vec()).expect("text"));
    let (status, fields) = script.next.pop_front().unwrap_or((200, Vec::new()));
    let mut response = Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(name, HeaderValue::from_bytes(value).expect("a value"));
    }
    response.body(Body::from(status.to_string())).expect("a response")
}

impl ThirdParty {
    pub(crate) async fn start() -> Self {
        let script = Arc::<Mutex<Script>>::default();
        let app = Router::new().fallback(respond).with_state(Arc::clone(&script));
        Self { served: Served::start(app).await, script }
    }

    pub(crate) fn next(&self, status: u16, fields: &[(&'static str, &'static [u8])]) {
        self.script.lock().expect("the script").next.push_back((status, fields.to_vec()));
    }

    fn bodies(&self) -> Vec<String> {
        self.script.lock().expect("the script").bodies.clone()
    }

    pub(crate) fn hits(&self) -> usize {
        self.bodies().len()
    }
}

/// A middleware with one limit and a gate, which does not wait.
pub(crate) fn outgoing(limiter: &Limiter) -> OutgoingLimits {
    let outgoing = OutgoingLimits::new(limiter.clone()).limit(("calls", "k")).expect("a limit");
    outgoing.gate(("pause", "k")).expect("a gate").max_wait(Duration::ZERO)
}

pub(crate) fn client(outgoing: OutgoingLimits) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(outgoing).build()
}

/// The limiter's error in the error of a request.
fn limiters_error(error: &reqwest_middleware::Error) -> &Error {
    let reqwest_middleware::Error::Middleware(error) = error else { panic!("{error:?}") };
    error.downcast_ref().unwrap_or_else(|| panic!("{error:?}"))
}

pub(crate) fn denied(result: Result<reqwest::Response, reqwest_middleware::Error>) -> Denied {
    let error = result.expect_err("not sent");
    limiters_error(&error).denied().unwrap_or_else(|| panic!("{error:?}")).clone()
}

async fn left(limiter: &Limiter) -> f64 {
    limiter.peek(("calls", "k")).await.expect("balances").remaining().round()
}

pub(crate) async fn is_blocked(limiter: &Limiter, key: &str) -> Option<Duration> {
    limiter.is_blocked(("pause", key)).await.expect("an answer")
}

/// Asserts that the key is blocked for this time, counted from some moments ago.
pub(crate) async fn assert_blocked(limiter: &Limiter, key: &str, pause: Duration) {
    let rest = is_blocked(limiter, key).await.unwrap_or_else(|| panic!("{key} is not blocked"));
    assert!(rest <= pause && pause - rest < 20 * MINUTE, "{key}: {rest:?}");
}

#[tokio::test]
async fn a_request_takes_its_tokens_before_it_is_sent() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = database.limiter(limits());
    let outgoing = outgoing(&limiter).limit_by(|request| {
        let body = request.body().and_then(|body| body.as_bytes()).unwrap_or_default();
        Some(Item::new("bytes", request.url().path()).count(body.len() as u64))
    });
    let client = client(outgoing);
    let post = |path: &str, bytes: usize| {
        client.post(format!("{}{path}", third_party.served.url)).body("b".repeat(bytes)).send()
    };
    assert_eq!(post("/a", 60).await.expect("sent").status(), 200);
    assert_eq!(post("/b", 60).await.expect("sent").status(), 200);
    let denied = denied(post("/a", 60).await);
    assert_eq!(denied.limits.iter().map(|limit| &**limit).collect::<Vec<_>>(), ["bytes"]);
    assert!(denied.retry_after > HOUR, "{denied:?}");
    // All limits of a request are charged, or none.
    assert_eq!((left(&limiter).await, third_party.hits()), (8.0, 2));
    let error = post("/a", 101).await.expect_err("never possible");
    assert!(matches!(limiters_error(&error), Error::Invalid(_)), "{error:?}");
    assert_eq!((left(&limiter).await, third_party.hits()), (8.0, 2));
}

#[tokio::test]
async fn a_retry_is_another_request_with_the_same_body() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = database.limiter(limits());
    let put = |outgoing| client(outgoing).put(&third_party.served.url).body("the body").send();
    third_party.next(429, &[("retry-after", b"0")]);
    third_party.next(503, &[("retry-after", b"0")]);
    assert_eq!(put(outgoing(&limiter).max_wait(MINUTE)).await.expect("sent").status(), 200);
    assert_eq!((third_party.bodies(), left(&limiter).await), (vec!["the body".to_owned(); 3], 7.0));
    // After the last retry, the caller gets the response.
    (0..3).for_each(|_| third_party.next(429, &[("retry-after", b"0")]));
    for (retries, hits) in [(0, 4), (1, 6)] {
        let response = put(outgoing(&limiter).max_wait(MINUTE).max_retries(retries)).await.expect("sent");
        assert_eq!((response.status().as_u16(), third_party.hits()), (429, hits));
        assert_eq!(response.text().await.expect("its body"), "429");
    }
    assert_eq!(left(&limiter).await, 4.0);
}

/// The same middleware with a gate of its own.
pub(crate) fn with_gate(limiter: &Limiter, key: &'static str) -> OutgoingLimits {
    outgoing(limiter).gate(("pause", key)).expect("a gate")
}

#[tokio::test]
async fn what_cannot_be_repeated_is_sent_once_and_pauses_nevertheless() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = database.limiter(limits());
    let wait = 2 * HOUR;
    let client = |key| client(with_gate(&limiter, key).max_wait(wait));
    let url = &third_party.served.url;
    let half_an_hour: Fields = &[("retry-after", b"1800")];
    // A stream can be read once.
    third_party.next(429, half_an_hour);
    let stream = reqwest::Body::wrap(http_body_util::Full::new(Bytes::from("streamed")));
    let response = client("stream").post(url).body(stream).send().await.expect("sent");
    assert_eq!((response.status().as_u16(), third_party.bodies()), (429, vec!["streamed".to_owned()]));
    assert_blocked(&limiter, "stream", 30 * MINUTE).await;
    // A POST that failed with 503 may have had an effect.
    third_party.next(503, half_an_hour);
    assert_eq!(client("post").post(url).send().await.expect("sent").status(), 503);
    assert_blocked(&limiter, "post", 30 * MINUTE).await;
    // Other failures have nothing to do with limits.
    for (key, status) in [("500", 500), ("403", 403), ("200", 200)] {
        third_party.next(status, half_an_hour);
        assert_eq!(client(key).get(url).send().await.expect("sent").status(), status);
        assert_eq!(is_blocked(&limiter, key).await, None);
    }
    third_party.next(503, &[]);
    assert_eq!(client("503").get(url).send().await.expect("sent").status(), 503);
    // Without a gate, there is no pause to wait for.
    third_party.next(429, half_an_hour);
    let without = self::client(OutgoingLimits::new(limiter.clone()).max_wait(wait));
    assert_eq!(without.get(url).send().await.expect("sent").status(), 429);
    assert_eq!(third_party.hits(), 7);
}

#[tokio::test]
async fn the_fields_of_a_response_determine_the_pause() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = database.limiter(limits());
    let date: Fields = &[
        ("date", b"Sun, 06 Nov 1994 08:49:37 GMT"),
        ("retry-after", b"Sun, 06 Nov 1994 09:19:37 GMT"),
        ("ratelimit", b"\"default\";r=0;t=7200"),
    ];
    let cases: [(&'static str, u16, Fields, Duration); 19] = [
        ("seconds", 429, &[("retry-after", b"1800")], 30 * MINUTE),
        ("a fraction", 429, &[("retry-after", b"1799.997")], 30 * MINUTE),
        ("a fraction of a 503", 503, &[("retry-after", b"1800.0")], 30 * MINUTE),
        (
            "the longest line",
            429,
            &[("retry-after", b"9"), ("retry-after", b"1800"), ("retry-after", b"1e9")],
            30 * MINUTE,
        ),
        ("the longest value", 429, &[("retry-after", b"9, 1800, Sun, 06 Nov 1994 08:49:37 GMT")], 30 * MINUTE),
        ("a fraction of RateLimit", 200, &[("ratelimit", b"\"default\";r=0;t=1799.5")], 30 * MINUTE),
        ("seconds of a 503", 503, &[("retry-after", b"1800")], 30 * MINUTE),
        ("a date wins over RateLimit", 429, date, 30 * MINUTE),
        ("RateLimit of a 200", 200, &[("ratelimit", b"\"default\";r=0;t=1800")], 30 * MINUTE),
        (
            "the longest of the empty members",
            200,
            &[("ratelimit", b"\"a\";r=0;t=60, \"b\";r=9;t=7200"), ("ratelimit", b"\"c\";t=1800;r=0")],
            30 * MINUTE,
        ),
        ("version 7", 200, &[("ratelimit", b"limit=5, remaining=0, reset=1800")], 30 * MINUTE),
        ("older versions", 200, &[("ratelimit-remaining", b"0"), ("ratelimit-reset", b"1800")], 30 * MINUTE),
        ("no field", 429, &[], 40 * MINUTE),
        ("a huge number", 429, &[("retry-after", b"99999999999")], 50 * MINUTE),
        ("a number that overflows", 429, &[("retry-after", b"99999999999999999999999999")], 50 * MINUTE),
        ("a far date", 429, &[("retry-after", b"Fri, 31 Dec 9999 23:59:59 GMT")], 50 * MINUTE),
        ("a huge t", 200, &[("ratelimit", b"\"a\";r=0;t=999999999999999")], 50 * MINUTE),
        (
            "a time since 1970 is ignored",
            429,
            &[("ratelimit-remaining", b"0"), ("ratelimit-reset", b"1800000000")],
            40 * MINUTE,
        ),
        ("X-RateLimit is not read", 429, &[("x-ratelimit-remaining", b"0"), ("x-ratelimit-reset", b"9")], 40 * MINUTE),
    ];
    for (key, status, fields, pause) in cases {
        third_party.next(status, fields);
        let outgoing = with_gate(&limiter, key).default_pause(40 * MINUTE).max_pause(50 * MINUTE);
        let response = client(outgoing).get(&third_party.served.url).send().await.expect("sent");
        assert_eq!(response.status(), status, "{key}");
        assert_blocked(&limiter, key, pause).await;
        limiter.reset(("calls", "k")).await.expect("reset");
    }
}

#[tokio::test]
async fn fields_that_are_not_valid_are_ignored_and_logged() {
    let events = Events::default();
    let _watched = watch(events.clone());
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = database.limiter(limits());
    let values: [&'static [u8]; 11] =
        [b"-1", b"NaN", b"1.5s", b"1e3", b"0x10", b"+5", b"", b"\xff\xfe", b"soon", b"Sun, 06 Nov 1994", b"inf"];
    let one = |name, value| (429, vec![(name, value)]);
    let refused = values.into_iter().map(|value| one("retry-after", value));
    let fine = [
        ("ratelimit", &b"\"default\";r=0"[..]),
        ("ratelimit", b"\"default\";r=-1;t=1800"),
        ("ratelimit", b"\"default\";r=0;t=-1800"),
        ("ratelimit", b"\"default\";r=0;t=?1"),
        ("ratelimit", b"\"default\";r=0;t=\"1800\""),
        ("ratelimit", b"\"default\";r=0;t=9999999999999999"),
        ("ratelimit", b"(\"default\");r=0;t=1800"),
        ("ratelimit", b"\"default"),
        ("ratelimit", b"\xff"),
        ("ratelimit", b"remaining=(0), reset=1800"),
        ("ratelimit-remaining", b"0"),
        ("ratelimit-reset", b"1800"),
    ];
    let fine = fine.into_iter().map(|field| (200, vec![field]));
    for (status, fields) in refused.chain(fine) {
        third_party.next(status, &fields);
        let outgoing = with_gate(&limiter, "k").default_pause(Duration::ZERO).max_retries(0);
        let response = client(outgoing).get(&third_party.served.url).send().await.expect("sent");
        assert_eq!((response.status().as_u16(), is_blocked(&limiter, "k").await), (status, None), "{fields:?}");
        limiter.reset(("calls", "k")).await.expect("reset");
    }
    let told = events.told();
    assert_eq!(told.matches("not valid: ignored").count(), values.len() + 6, "{told}");
    assert!(!told.contains("\u{fffd}") && told.contains(r"\xff"), "{told}");
}

#[tokio::test]
async fn nothing_is_retried_when_the_wait_is_over() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = database.limiter(limits());
    third_party.next(429, &[("retry-after", b"0")]);
    let outgoing = OutgoingLimits::new(limiter).gate(("pause", "k")).expect("a gate").max_wait(Duration::ZERO);
    let response = client(outgoing).get(&third_party.served.url).send().await.expect("sent");
    assert_eq!((response.status().as_u16(), third_party.hits()), (429, 1));
}

#[tokio::test]
async fn a_closure_reads_fields_of_its_own() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = database.limiter(limits());
    let of = |key| {
        client(
            with_gate(&limiter, key)
                .max_wait(MINUTE)
                .pause_for(|response| {
                    let millis = response.headers().get("x-pause")?.to_str().ok()?.parse().ok()?;
                    Some(Duration::from_millis(millis))
                })
                .refuses_with(StatusCode::FORBIDDEN),
        )
    };
    let url = &third_party.served.url;
    third_party.next(200, &[("x-pause", b"1800000"), ("retry-after", b"60")]);
    assert_eq!(of("200").get(url).send().await.expect("sent").status(), 200);
    assert_blocked(&limiter, "200", 30 * MINUTE).await;
    // A 403 is a refusal if it is configured as one and the closure returns a time.
    third_party.next(403, &[("x-pause", b"0")]);
    assert_eq!(of("403").post(url).send().await.expect("sent").status(), 200);
    // Without its field, the standard fields are read.
    third_party.next(429, &[("retry-after", b"1800")]);
    assert_eq!(of("429").get(url).send().await.expect("sent").status(), 429);
    assert_blocked(&limiter, "429", 30 * MINUTE).await;
    assert_eq!(third_party.hits(), 4);
}

#[tokio::test]
async fn limits_that_cannot_work_are_reported() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = database.limiter(limits());
    let new = || OutgoingLimits::new(limiter.clone());
    let invalid = |result: Result<OutgoingLimits, Error>| match result {
        Err(Error::Invalid(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(invalid(new().limit(("nope", "k"))), InvalidCall::UnknownLimit { .. }));
    assert!(matches!(invalid(new().limit(("calls", "k", 11))), InvalidCall::CountExceedsCapacity { .. }));
    assert!(matches!(invalid(new().limit(("slots", "k"))), InvalidCall::NeedsLease { .. }));
    assert!(matches!(invalid(new().gate(("nope", "k"))), InvalidCall::UnknownLimit { .. }));
    assert!(matches!(invalid(new().gate(("calls", "k"))), InvalidCall::NotAGate { .. }));
    // Those that a closure chooses are known when the request is made.
    let wrong = [
        new().gate_by(|_| Some(Item::new("calls", "k"))),
        new().gate_by(|_| Some(Item::new("nope", "k"))),
        new().limit_by(|_| Some(Item::new("slots", "k"))),
        new().limit_by(|_| Some(Item::new("calls", "k").count(f64::NAN))).on_failure(OnFailure::Open),
    ];
    for outgoing in wrong {
        let error = client(outgoing).get(&third_party.served.url).send().await.expect_err("not sent");
        assert!(matches!(limiters_error(&error), Error::Invalid(_)), "{error:?}");
    }
    // The server knows the zones.
    let calendar = Limit::calendar(5, Calendar::days(1)).zone("Nowhere/Land").build().expect("a limit");
    let outgoing = new().limit_by(move |_| Some(Item::new(("days", calendar), "k"))).on_failure(OnFailure::Open);
    let error = client(outgoing).get(&third_party.served.url).send().await.expect_err("not sent");
    assert!(matches!(limiters_error(&error), Error::InvalidLimit(_)), "{error:?}");
    assert_eq!(third_party.hits(), 0);
    // Without limits and gate, a request is sent as it is.
    assert_eq!(client(new()).get(&third_party.served.url).send().await.expect("sent").status(), 200);
    // The keys are not shown.
    let shown = format!("{:?}", new().limit(("calls", "secret")).expect("a limit").gate(("pause", "secret")));
    assert!(shown.contains("calls") && !shown.contains("secret"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_decision_a_request_is_sent_only_if_it_is_configured_so() {
    let mut node = Node::start(&[]).await;
    let third_party = ThirdParty::start().await;
    let pool = PgPoolOptions::new().max_connections(4).connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let mut config = LimiterConfig::default();
    config.retry.deadline = Duration::from_secs(2);
    let limiter = Limiter::with_config(pool, limits(), config);
    let closed = client(outgoing(&limiter));
    let get = |client: &ClientWithMiddleware| client.get(&third_party.served.url).send();
    assert_eq!(get(&closed).await.expect("sent").status(), 200);
    node.kill();
    // The server's other processes end when they notice.
    let mut hits = third_party.hits();
    let error = loop {
        match get(&closed).await {
            Ok(_) => hits += 1,
            Err(error) => break error,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let error = limiters_error(&error);
    assert!(!matches!(error, Error::Invalid(_) | Error::Denied(_)), "{error:?}");
    assert_eq!(third_party.hits(), hits);
    // Open: it is sent, and it is not retried, because the pause cannot be stored.
    let open = client(outgoing(&limiter).on_failure(OnFailure::Open));
    third_party.next(429, &[("retry-after", b"1")]);
    assert_eq!(get(&open).await.expect("sent").status(), 429);
    assert_eq!(get(&open).await.expect("sent").status(), 200);
    assert_eq!(third_party.hits(), hits + 2);
}

#[tokio::test]
async fn a_dropped_request_is_not_sent_and_reserved_tokens_stay_spent() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = database.limiter(limits());
    let waiting = |key: &'static str| {
        let client = client(with_gate(&limiter, key).max_wait(2 * HOUR));
        let request = client.get(&third_party.served.url);
        tokio::spawn(async move { request.send().await.map(drop) })
    };
    // A request that waits for the end of a pause has taken nothing. The block of the other client shows that it has been denied.
    limiter.block(("pause", "blocked"), HOUR).await.expect("a block");
    let request = waiting("blocked");
    tokio::task::yield_now().await;
    assert_eq!(
        denied(client(with_gate(&limiter, "blocked")).get(&third_party.served.url).send().await).limits.len(),
        1
    );
    request.abort();
    assert!(request.await.expect_err("dropped").is_cancelled());
    limiter.unblock(("pause", "blocked")).await.expect("unblocked");
    assert_eq!((left(&limiter).await, third_party.hits()), (10.0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_refusals_at_once_pause_and_are_all_retried() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    // All of them want the same row, so on a busy machine one may retry for long.
    let limiter = gate::limiter(&database.app, limits(), |_| {});
    let outgoing = OutgoingLimits::new(limiter.clone()).gate(("pause", "k")).expect("a gate");
    let client = client(outgoing.max_wait(5 * MINUTE).max_retries(60));
    (0..60).for_each(|_| third_party.next(429, &[("retry-after", b"1")]));
    let sent = (0..60).map(|_| client.get(&third_party.served.url).send());
    let statuses = futures_util::future::join_all(sent).await;
    assert!(
        statuses.iter().all(|response| response.as_ref().is_ok_and(|response| response.status() == 200)),
        "{statuses:?}"
    );
    assert_eq!(third_party.hits(), 120);
}
