//! The effects of a changed limit on a balance, as in the table on the guide's page on kinds.

use pg_limiter::sqlx::{Connection, PgConnection};

use crate::model::{Kind, Rule};
use crate::support::{Database, Step, decide};

const NOW: i64 = 1_767_225_600_000_000;
const SECOND: i64 = 1_000_000;

fn rule(kind: Kind, rate: f64, capacity: f64) -> Rule {
    let capacity = (kind != Kind::SlidingWindow).then_some(capacity);
    let max_reserved = None;
    Rule { kind, rate, period_us: 100 * SECOND, capacity, max_reserved, start_us: 0, resolution: 1, shards: 1 }
}

#[tokio::test]
async fn a_balance_is_kept_and_decided_by_the_limit_of_the_call() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let (bucket, window, sliding) = (Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow);
    // Kind, tokens taken of 10 per 100 s, rate and capacity of the next call, seconds until then, and the balance then.
    let cases = [
        ("a higher rate counts for the time since the last call", bucket, 10.0, (20.0, 10.0), 10, 2.0),
        ("so does a lower rate", bucket, 10.0, (5.0, 10.0), 10, 0.5),
        ("a higher capacity adds nothing at once", bucket, 10.0, (10.0, 20.0), 10, 1.0),
        ("but the balance can grow up to it", bucket, 10.0, (10.0, 20.0), 150, 15.0),
        ("a balance is cut to a lower capacity", bucket, 1.0, (10.0, 5.0), 0, 5.0),
        ("a higher rate comes with the next window", window, 10.0, (20.0, 30.0), 99, 0.0),
        ("and is granted in that", window, 10.0, (20.0, 30.0), 100, 20.0),
        ("a balance is cut to a lower capacity", window, 1.0, (10.0, 5.0), 0, 5.0),
        ("a higher rate of a sliding window is free at once", sliding, 10.0, (15.0, 0.0), 0, 5.0),
        ("a lower one is exceeded at once", sliding, 10.0, (4.0, 0.0), 0, -6.0),
    ];
    for (key, (what, kind, taken, (rate, capacity), seconds, left)) in cases.into_iter().enumerate() {
        let (before, after) = (rule(kind, 10.0, 10.0), rule(kind, rate, capacity));
        let key = key.to_string();
        let step = |op, rule, at, count| Step {
            leaves: Vec::new(),
            op,
            reserve: false,
            at: Some(at),
            items: vec![("a", &*key, rule, count)],
        };
        let took = decide(&mut conn, &[step("limit", &before, NOW, taken)]).await.expect("a decision");
        assert!(took[0].ok, "{what}");
        let peek = [step("check", &after, NOW + seconds * SECOND, 0.0)];
        let answer = &decide(&mut conn, &peek).await.expect("a balance")[0];
        assert!((answer.value - left).abs() < 1e-6, "{what}: {} left", answer.value);
        assert_eq!(answer.ok, left >= 0.0, "{what}");
    }
}
