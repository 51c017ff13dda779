//! Every limit that is valid works, at every time: nothing overflows, and no answer is absurd.

use pg_limiter::sqlx::{Connection, PgConnection};

use crate::model::{Kind, Rule};
use crate::support::{Database, Step, decide};

const CENTURY: i64 = 3_155_760_000_000_000;

#[tokio::test]
async fn nothing_overflows_at_the_edges() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let mut rules = Vec::new();
    for kind in [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow] {
        let sliding = kind == Kind::SlidingWindow;
        for rate in [1e-100, 0.3, 1e100] {
            for period_us in [1, 999_983, CENTURY] {
                for (capacity, max_reserved) in [(None, None), (Some(0.0), Some(1e100)), (Some(1e100), Some(0.0))] {
                    let (capacity, max_reserved) = if sliding { (None, None) } else { (capacity, max_reserved) };
                    for resolution in if sliding { [1, 7, 1000] } else { [1, 1, 1] } {
                        let start_us = period_us / 3;
                        let rule = Rule { kind, rate, period_us, capacity, max_reserved, start_us, resolution };
                        if !rules.contains(&rule) {
                            rules.push(rule);
                        }
                    }
                }
            }
        }
    }
    // The years 1800, 1970, 2026 and 2099, and a century later each.
    let times = [-5_364_662_400_000_000_i64, 0, 1_767_225_600_000_000, 4_070_908_800_000_000];
    let mut decided = 0;
    for (nth, rule) in rules.iter().enumerate() {
        let name = format!("limit {nth}");
        for at in times {
            let most = rule.capacity.unwrap_or(rule.rate);
            let reserve = rule.kind != Kind::SlidingWindow;
            let step = |op: &'static str, reserve: bool, pause: i64, count: f64| Step {
                op,
                reserve,
                at: Some(at + pause),
                items: vec![(name.as_str(), "k", rule, count)],
            };
            let owed = most + rule.max_reserved.unwrap_or(1e100);
            let steps = [
                step("reset", false, 0, 0.0),
                step("limit", false, 0, most),
                step("limit", false, 0, most),
                step("limit", reserve, 1, if reserve { owed.min(1e100) } else { most }),
                step("charge", false, 2, 1e100),
                step("limit", false, 3, 0.0),
                step("credit", false, 4, 1e100),
                step("limit", false, CENTURY, most),
                step("limit", false, 0, most),
            ];
            let mut one_by_one = Vec::new();
            for step in &steps {
                let answers = decide(&mut conn, std::slice::from_ref(step)).await;
                one_by_one.extend(answers.unwrap_or_else(|error| panic!("{step:?}: {error}")));
            }
            let at_once = decide(&mut conn, &steps).await.unwrap_or_else(|error| panic!("{rule:?}: {error}"));
            assert_eq!(one_by_one, at_once, "{rule:?}");
            for answer in at_once {
                assert!(answer.value.is_finite(), "{rule:?}: {answer:?}");
                assert!(answer.wait.is_none_or(|wait| (0..=2_000_000_000_000_000_000).contains(&wait)), "{answer:?}");
                assert!(answer.ok || answer.wait.is_some(), "a denial says when to come back: {answer:?}");
                decided += 1;
            }
        }
    }
    assert!(decided > 2000, "{decided}");
}
