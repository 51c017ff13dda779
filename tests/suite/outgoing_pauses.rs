//! Requests to a third party that wait: for the end of a pause that another process caused, and for tokens.

use std::time::Duration;

use pg_limiter::outgoing::OutgoingLimits;
use pg_limiter::{Limit, Limiter, Limits};
use tokio::task::JoinHandle;

use crate::outgoing::{ThirdParty, client, denied};
use crate::support::{Database, Spans, watch};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// One token per hour, which is available at once.
fn limits() -> Limits {
    Limits::new()
        .define("calls", Limit::token_bucket(1, HOUR).capacity(3))
        .and_then(|limits| limits.define("hourly", Limit::token_bucket(1, HOUR)))
        .and_then(|limits| limits.define("pause", Limit::gate()))
        .expect("limits")
}

/// A limiter with a pool of its own, as another process has.
async fn limiter(database: &Database) -> Limiter {
    Limiter::with_config(Database::pool(&database.app_url, 4).await, limits(), Database::config())
}

fn outgoing(limiter: &Limiter, limit: &str) -> OutgoingLimits {
    let outgoing = OutgoingLimits::new(limiter.clone()).limit((limit, "k")).expect("a limit");
    outgoing.gate(("pause", "k")).expect("a gate")
}

/// Makes a request that waits for hours.
fn request(limiter: &Limiter, limit: &str, third_party: &ThirdParty) -> JoinHandle<u16> {
    let request = client(outgoing(limiter, limit).max_wait(9 * HOUR)).get(&third_party.served.url);
    tokio::spawn(async move { request.send().await.expect("sent").status().as_u16() })
}

/// Fails if it hangs.
async fn within_minutes<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(5 * MINUTE, future).await.expect("it is woken")
}

/// Waits until the key is blocked.
async fn until_blocked(limiter: &Limiter) {
    within_minutes(async {
        while limiter.is_blocked(("pause", "k")).await.expect("an answer").is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn left(limiter: &Limiter, limit: &str) -> f64 {
    limiter.peek((limit, "k")).await.expect("balances").remaining()
}

/// Waits until a token is reserved: the bucket owes more than 0.1.
async fn until_reserved(limiter: &Limiter) {
    within_minutes(async {
        while left(limiter, "hourly").await > -0.1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_429_of_one_process_pauses_all_until_its_end() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let clock = database.test_clock().await;
    let (one, other) = (limiter(&database).await, limiter(&database).await);
    third_party.next(429, &[("retry-after", b"3600")]);
    let first = request(&one, "calls", &third_party);
    until_blocked(&other).await;
    let second = request(&other, "calls", &third_party);
    for _ in 0..2 {
        // Neither process sends, nor takes tokens.
        for limiter in [&one, &other] {
            let client = client(outgoing(limiter, "calls").max_wait(MINUTE));
            let denied = denied(client.get(&third_party.served.url).send().await);
            assert_eq!(denied.limits.iter().map(|limit| &**limit).collect::<Vec<_>>(), ["pause"]);
            assert!(denied.retry_after > MINUTE && denied.retry_after <= HOUR, "{denied:?}");
        }
        assert!(!first.is_finished() && !second.is_finished());
        assert_eq!(third_party.hits(), 1);
        clock.advance(20 * MINUTE).await.expect("advance");
    }
    assert!(left(&one, "calls").await < 3.0 - 0.25, "one request, and no more, has taken a token");
    assert!(left(&one, "calls").await >= 2.0);
    // The wait of a retried call is up to a tenth longer, so that processes do not retry at the same moment.
    clock.advance(30 * MINUTE).await.expect("advance");
    for request in [first, second] {
        assert_eq!(within_minutes(request).await.expect("a task"), 200);
    }
    assert_eq!(third_party.hits(), 3);
    assert!(left(&one, "calls").await < 1.5, "the retry and the other request have taken theirs");
}

#[tokio::test]
async fn a_pause_longer_than_the_wait_returns_the_response() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = limiter(&database).await;
    third_party.next(429, &[("retry-after", b"3600")]);
    let response = client(outgoing(&limiter, "calls")).get(&third_party.served.url).send().await.expect("sent");
    assert_eq!((response.status().as_u16(), third_party.hits()), (429, 1));
}

#[tokio::test]
async fn a_refused_request_without_tokens_for_a_retry_returns_the_response() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = limiter(&database).await;
    third_party.next(429, &[("retry-after", b"1")]);
    let outgoing = outgoing(&limiter, "hourly").max_wait(MINUTE);
    let response = client(outgoing).get(&third_party.served.url).send().await.expect("sent");
    assert_eq!((response.status().as_u16(), third_party.hits()), (429, 1));
}

/// A request that has reserved its token sleeps until then. The block happens meanwhile.
#[tokio::test]
async fn a_request_that_waits_for_tokens_notices_a_pause() {
    let spans = Spans::default();
    let _watched = watch(spans.clone());
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let clock = database.test_clock().await;
    let (one, other) = (limiter(&database).await, limiter(&database).await);
    assert_eq!(within_minutes(request(&one, "hourly", &third_party)).await.expect("a task"), 200);
    let waits = request(&one, "hourly", &third_party);
    until_reserved(&one).await;
    other.block(("pause", "k"), 90 * MINUTE).await.expect("a block");
    clock.advance(HOUR).await.expect("advance");
    // It checks the gate when it wakes, and waits for its end. Then it reserves another token, which arrives after two hours.
    within_minutes(async {
        while spans.named("pg_limiter.call").iter().all(|span| span.number("attempts") != 2.0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    clock.advance(40 * MINUTE).await.expect("advance");
    until_reserved(&one).await;
    assert!(!waits.is_finished() && third_party.hits() == 1);
    clock.advance(20 * MINUTE).await.expect("advance");
    assert_eq!(within_minutes(waits).await.expect("a task"), 200);
    assert_eq!(third_party.hits(), 2);
}

#[tokio::test]
async fn a_dropped_request_leaves_its_reserved_token_spent() {
    let (database, third_party) = (Database::migrated().await, ThirdParty::start().await);
    let limiter = limiter(&database).await;
    assert_eq!(within_minutes(request(&limiter, "hourly", &third_party)).await.expect("a task"), 200);
    let waits = request(&limiter, "hourly", &third_party);
    until_reserved(&limiter).await;
    waits.abort();
    assert!(waits.await.expect_err("dropped").is_cancelled());
    assert!(left(&limiter, "hourly").await < -0.5);
    // Tokens that arrive after the wait are not waited for.
    let denied = denied(client(outgoing(&limiter, "hourly")).get(&third_party.served.url).send().await);
    assert_eq!(denied.limits.iter().map(|limit| &**limit).collect::<Vec<_>>(), ["hourly"]);
    assert!(denied.retry_after > HOUR, "{denied:?}");
    assert_eq!(third_party.hits(), 1);
}
