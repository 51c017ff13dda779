//! Which responses of a third party are refusals, which requests are repeated, and which gate closes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{Method, StatusCode};
use pg_limiter::outgoing::OutgoingLimits;
use pg_limiter::{Error, Item, Limit, Limiter, Limits};

use crate::outgoing::{Fields, ThirdParty, assert_blocked, client, is_blocked, limits, with_gate};
use crate::support::Database;
use crate::support::guide::chapter;

const MINUTE: Duration = Duration::from_secs(60);
const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

/// Sends a request that waits for a minute at most, and returns its status and the number of times that it was sent.
async fn send(outgoing: OutgoingLimits, method: Method, third_party: &ThirdParty) -> (u16, usize) {
    let before = third_party.hits();
    let request = client(outgoing.max_wait(MINUTE)).request(method, &third_party.served.url).body("the body");
    let status = request.send().await.expect("sent").status().as_u16();
    (status, third_party.hits() - before)
}

/// A limiter without a limit on the number of requests.
fn limiter(database: &Database) -> Limiter {
    database.limiter(limits())
}

fn only_gate(limiter: &Limiter, key: &'static str) -> OutgoingLimits {
    OutgoingLimits::new(limiter.clone()).gate(("pause", key)).expect("a gate")
}

#[tokio::test]
async fn a_refusal_that_states_no_future_time_pauses_for_the_minimum() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = limiter(&database);
    const PAST: &[u8] = b"Sun, 06 Nov 1994 08:49:37 GMT";
    let cases: [(&'static str, u16, Fields); 8] = [
        ("zero", 429, &[("retry-after", b"0")]),
        ("zero with a fraction", 503, &[("retry-after", b"0.0")]),
        ("a past date", 429, &[("retry-after", PAST)]),
        ("a past date of a 503", 503, &[("retry-after", PAST)]),
        ("the present", 429, &[("retry-after", PAST), ("date", PAST)]),
        ("zero of RateLimit", 429, &[("ratelimit", b"\"a\";r=0;t=0")]),
        ("zero of version 7", 429, &[("ratelimit", b"limit=1, remaining=0, reset=0")]),
        ("zero of older versions", 429, &[("ratelimit-remaining", b"0"), ("ratelimit-reset", b"0")]),
    ];
    for (key, status, fields) in cases {
        third_party.next(status, fields);
        let outgoing = only_gate(&limiter, key).min_pause(HALF_AN_HOUR);
        assert_eq!(send(outgoing, Method::GET, &third_party).await, (status, 1), "{key}");
        assert_blocked(&limiter, key, HALF_AN_HOUR).await;
    }
    // By default, retries are a second apart.
    (0..2).for_each(|_| third_party.next(429, &[("retry-after", b"0")]));
    let began = Instant::now();
    assert_eq!(send(only_gate(&limiter, "default"), Method::GET, &third_party).await, (200, 3));
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_fraction_of_a_second_is_a_second() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = limiter(&database);
    (0..2).for_each(|_| third_party.next(503, &[("retry-after", b"0.001")]));
    let began = Instant::now();
    assert_eq!(send(only_gate(&limiter, "k"), Method::GET, &third_party).await, (200, 3));
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn only_a_refusal_is_repeated() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = limiter(&database);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let reset: &'static [u8] = (now + 1800).to_string().leak().as_bytes();
    let second: Fields = &[("retry-after", b"1")];
    let empty: Fields = &[("ratelimit", b"\"a\";r=0;t=1")];
    let x_empty = vec![("x-ratelimit-remaining", &b"0"[..]), ("x-ratelimit-reset", reset)];
    let configured = |key| only_gate(&limiter, key).x_ratelimit().refuses_with(StatusCode::FORBIDDEN);
    let read = |key| configured(key).pause_for(|_| Some(Duration::from_secs(1)));
    let plain = |key| only_gate(&limiter, key);
    type Make<'m> = &'m dyn Fn(&'static str) -> OutgoingLimits;
    type Case<'m> = (&'static str, Make<'m>, Method, u16, &'m [(&'static str, &'static [u8])], usize);
    let cases: [Case<'_>; 21] = [
        ("429", &plain, Method::POST, 429, second, 2),
        ("429 and an empty quota", &plain, Method::POST, 429, empty, 2),
        ("503", &plain, Method::PUT, 503, second, 2),
        ("503 of a POST", &plain, Method::POST, 503, second, 1),
        ("503 without a time", &plain, Method::GET, 503, &[], 1),
        ("503 and an empty quota", &plain, Method::GET, 503, empty, 1),
        ("503 and a time of its own", &read, Method::GET, 503, &[], 2),
        ("403 that is not configured", &plain, Method::GET, 403, second, 1),
        ("403", &configured, Method::POST, 403, second, 2),
        ("403 and an empty quota", &configured, Method::POST, 403, empty, 2),
        ("403 and a partition", &configured, Method::GET, 403, &[("ratelimit", b"\"a\";r=0;t=1;pk=:AA==:")], 2),
        ("403 and a time of its own", &read, Method::GET, 403, &[], 2),
        ("a plain 403", &configured, Method::GET, 403, &[], 1),
        ("a plain 403 and a quota", &configured, Method::GET, 403, &[("x-ratelimit-remaining", b"9")], 1),
        ("403 and a distant reset", &configured, Method::GET, 403, &x_empty, 1),
        ("422 and an empty quota", &configured, Method::POST, 422, empty, 1),
        ("500 and an empty quota", &configured, Method::POST, 500, empty, 1),
        ("500 and an empty quota of a GET", &configured, Method::GET, 500, empty, 1),
        ("500 and Retry-After", &configured, Method::GET, 500, second, 1),
        ("500 and a time of its own", &read, Method::GET, 500, &[], 1),
        ("404 and a time of its own", &read, Method::GET, 404, &[], 1),
    ];
    for (key, outgoing, method, status, fields, sent) in cases {
        third_party.next(status, fields);
        let expected = (if sent == 1 { status } else { 200 }, sent);
        assert_eq!(send(outgoing(key), method, &third_party).await, expected, "{key}");
    }
    assert_blocked(&limiter, "403 and a distant reset", HALF_AN_HOUR).await;
    for key in ["403 that is not configured", "a plain 403", "a plain 403 and a quota", "500 and Retry-After"] {
        assert_eq!(is_blocked(&limiter, key).await, None, "{key}");
    }
}

#[tokio::test]
async fn a_closure_chooses_the_requests_that_may_be_repeated() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = limiter(&database);
    let outgoing = || only_gate(&limiter, "k").repeat_if(|request| request.headers().contains_key("idempotency-key"));
    let client = client(outgoing().max_wait(MINUTE));
    for (status, key, expected) in [(503, Some("1"), (200, 2)), (503, None, (503, 1)), (429, None, (429, 1))] {
        third_party.next(status, &[("retry-after", b"1")]);
        let before = third_party.hits();
        let request = client.post(&third_party.served.url);
        let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
        let status = request.send().await.expect("sent").status().as_u16();
        assert_eq!((status, third_party.hits() - before), expected);
    }
    // It makes nothing else a refusal.
    third_party.next(500, &[("retry-after", b"1")]);
    let request = client.post(&third_party.served.url).header("idempotency-key", "2");
    assert_eq!(request.send().await.expect("sent").status(), 500);
}

#[tokio::test]
async fn an_exhausted_partition_closes_its_own_gate_only() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = limiter(&database);
    let url = &third_party.served.url;
    let exhausted: Fields = &[("ratelimit", b"\"default\";r=0;t=1800;pk=:YW5u:")];
    // One gate for all partitions, and gates that have nothing to do with partitions, stay open.
    for outgoing in [with_gate(&limiter, "all"), with_gate(&limiter, "").gate_by(|_| Some(Item::new("pause", "all")))] {
        for status in [200, 404, 500] {
            third_party.next(status, exhausted);
            assert_eq!(client(outgoing.clone()).get(url).send().await.expect("sent").status(), status);
            assert_eq!(is_blocked(&limiter, "all").await, None, "{status}");
        }
    }
    // An exhausted quota without a partition closes it, whatever partitions the response has besides.
    third_party.next(200, &[("ratelimit", b"\"everybody\";r=0;t=1800, \"default\";r=0;t=9000;pk=:YW5u:")]);
    assert_eq!(client(with_gate(&limiter, "everybody")).get(url).send().await.expect("sent").status(), 200);
    assert_blocked(&limiter, "everybody", HALF_AN_HOUR).await;
    // A refusal pauses in any case.
    third_party.next(429, exhausted);
    assert_eq!(client(with_gate(&limiter, "refused")).get(url).send().await.expect("sent").status(), 429);
    assert_blocked(&limiter, "refused", HALF_AN_HOUR).await;
    // With a gate for each partition, Ann's requests pause, and Bob's do not.
    let by_partition = with_gate(&limiter, "")
        .gate_by_partition(|request| Some(Item::new("pause", request.headers().get("x-tenant")?.to_str().ok()?)));
    let client = client(by_partition);
    let get = |tenant: &str| client.get(url).header("x-tenant", tenant).send();
    third_party.next(200, exhausted);
    assert_eq!(get("ann").await.expect("sent").status(), 200);
    assert_blocked(&limiter, "ann", HALF_AN_HOUR).await;
    assert!(get("ann").await.is_err(), "Ann's partition is exhausted");
    assert_eq!(get("bob").await.expect("sent").status(), 200);
}

// The recipe of the guide.
fn github(limiter: Limiter) -> OutgoingLimits {
    OutgoingLimits::new(limiter)
        .limit_by(|_| [Item::new("github", "our-token")])
        // GitHub has quotas of their own for searches and for GraphQL.
        .gate_by(|request| {
            let quota = match request.url().path() {
                "/graphql" => "graphql",
                path if path.starts_with("/search/") => "search",
                _ => "core",
            };
            Some(Item::new("github_pause", format!("our-token/{quota}")))
        })
        .x_ratelimit() // The primary limit: X-RateLimit-Remaining is 0, and X-RateLimit-Reset is a time since 1970.
        .refuses_with(StatusCode::FORBIDDEN) // Both limits respond with 403 or 429.
        .default_pause(Duration::from_secs(60)) // For a 429 that states no time.
        .max_wait(Duration::from_secs(30))
}

fn github_limiter(database: &Database) -> Limiter {
    let limits = Limits::new()
        .define("github", Limit::token_bucket(5_000, Duration::from_secs(3600)))
        .and_then(|limits| limits.define("github_pause", Limit::gate()));
    database.limiter(limits.expect("limits"))
}

#[test]
fn the_guide_has_the_recipe_for_github_that_is_tested() {
    let source = include_str!("outgoing_refusals.rs");
    let recipe = source.split("// The recipe of the guide.\n").nth(1).expect("a recipe").split("\n}\n").next();
    assert!(chapter("outgoing").contains(recipe.expect("a recipe")));
}

#[tokio::test]
async fn the_recipe_for_github_repeats_what_a_limit_refused_and_nothing_else() -> Result<(), Error> {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = github_limiter(&database);
    let reset = |seconds: u64| -> &'static [u8] {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        (now + seconds).to_string().leak().as_bytes()
    };
    let left: (&str, &[u8]) = ("x-ratelimit-remaining", b"4321");
    let none_left: (&str, &[u8]) = ("x-ratelimit-remaining", b"0");
    let cases = [
        ("primary", Method::POST, 403, vec![none_left, ("x-ratelimit-reset", reset(2))], 2),
        (
            "primary with 429, by an earlier clock",
            Method::GET,
            429,
            vec![none_left, ("x-ratelimit-reset", reset(0))],
            2,
        ),
        ("secondary", Method::POST, 403, vec![left, ("x-ratelimit-reset", reset(900)), ("retry-after", b"1")], 2),
        ("secondary with 429", Method::POST, 429, vec![left, ("retry-after", b"1")], 2),
        ("forbidden", Method::GET, 403, vec![left, ("x-ratelimit-reset", reset(900))], 1),
        ("forbidden, without fields", Method::POST, 403, vec![], 1),
        ("not found", Method::GET, 404, vec![left, ("x-ratelimit-reset", reset(900))], 1),
        ("a failed POST", Method::POST, 500, vec![none_left, ("x-ratelimit-reset", reset(1))], 1),
        ("a wrong POST", Method::POST, 422, vec![none_left, ("x-ratelimit-reset", reset(1))], 1),
        ("a failed POST and Retry-After", Method::POST, 502, vec![("retry-after", b"1")], 1),
        ("a POST during an outage", Method::POST, 503, vec![("retry-after", b"1")], 1),
    ];
    for (what, method, status, fields, sent) in cases {
        third_party.next(status, &fields);
        let expected = (if sent == 1 { status } else { 200 }, sent);
        assert_eq!(send(github(limiter.clone()), method, &third_party).await, expected, "{what}");
    }
    for quota in ["core", "search", "graphql"] {
        limiter.unblock(("github_pause", format!("our-token/{quota}"))).await?;
    }

    // The primary limit of searches pauses searches, and no other requests.
    third_party.next(200, &[none_left, ("x-ratelimit-reset", reset(1800))]);
    let client = client(github(limiter.clone()).max_wait(Duration::ZERO));
    let get = |path: &str| client.get(format!("{}{path}", third_party.served.url)).send();
    assert_eq!(get("/search/code").await.expect("sent").status(), 200);
    assert!(get("/search/code").await.is_err(), "no search is left");
    let blocked = limiter.is_blocked(("github_pause", "our-token/search")).await?.expect("a block");
    assert!(blocked > HALF_AN_HOUR - 10 * MINUTE && blocked <= HALF_AN_HOUR + Duration::from_secs(1), "{blocked:?}");
    assert_eq!(get("/repos/o/r").await.expect("sent").status(), 200);
    // A 429 without a time pauses for a minute.
    third_party.next(429, &[]);
    assert_eq!(get("/repos/o/r").await.expect("sent").status(), 429);
    let blocked = limiter.is_blocked(("github_pause", "our-token/core")).await?.expect("a block");
    assert!(blocked > MINUTE / 2 && blocked <= MINUTE, "{blocked:?}");
    Ok(())
}
