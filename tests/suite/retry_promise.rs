//! `retry_after` of groups of mixed kinds: the same call is allowed at exactly that time if no other call takes tokens, and
//! not earlier.

use pg_limiter::sqlx::{Connection, PgConnection};

use crate::model::{Kind, Rule};
use crate::support::proxy::xorshift;
use crate::support::{Database, Step, cases, decide};

const START: i64 = 1_767_225_600_000_000;
const DENIALS: u32 = 10_000;
const GROUPS: u64 = 40;
const LANES: u64 = 4;
/// Noticeably earlier, in microseconds.
const EARLIER: i64 = 1_000;

fn rules(random: &mut u64) -> Vec<Rule> {
    let kinds = [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingWindow, Kind::TokenBucket, Kind::SlidingWindow];
    let rule = |(nth, kind): (usize, Kind)| Rule {
        kind,
        rate: (5 + xorshift(random) % 40) as f64 / if xorshift(random).is_multiple_of(3) { 3.0 } else { 1.0 } + 5.0,
        period_us: (1 + xorshift(random) % 90).cast_signed() * 1_000_003,
        capacity: (kind != Kind::SlidingWindow && xorshift(random).is_multiple_of(2))
            .then_some((6 + xorshift(random) % 30) as f64),
        max_reserved: None,
        start_us: (xorshift(random) % 1_000_000).cast_signed(),
        resolution: 1 + (xorshift(random) % 7) as u32,
        shards: if nth == 3 { 4 } else { 1 },
    };
    kinds.into_iter().enumerate().map(rule).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_mixed_kinds_is_allowed_exactly_when_its_denial_promised() {
    let seed = std::env::var("PG_LIMITER_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()) * 7_919);
    let database = Database::migrated().await;
    let lanes = (0..LANES).map(|lane| {
        let url = database.url.clone();
        tokio::spawn(async move { keeps_its_promises(&url, seed + 1_000 * lane, lane).await })
    });
    for lane in futures_util::future::join_all(lanes).await {
        lane.expect("a lane");
    }
}

/// Denials of 40 groups in one statement, then the same calls as checks, which take nothing.
async fn keeps_its_promises(url: &str, seed: u64, lane: u64) {
    let most = cases(DENIALS) / LANES as u32;
    let mut conn = PgConnection::connect(url).await.expect("connect");
    let mut random = seed;
    let (mut denials, mut early, mut round) = (0, 0, 0);
    let names = ["token", "fixed", "sliding", "sharded", "coarse"];
    while denials < most {
        // New limits and keys from time to time.
        let rules = rules(&mut random);
        let mut clock = START + (xorshift(&mut random) % 86_400_000_000).cast_signed();
        let keys: Vec<String> = (0..GROUPS).map(|nth| format!("{lane} {round} {nth}")).collect();
        round += 1;
        for _ in 0..12 {
            let calls: Vec<Vec<(&str, &str, &Rule, f64)>> = keys
                .iter()
                .map(|key| {
                    let mut items: Vec<_> = Vec::new();
                    for (nth, rule) in rules.iter().enumerate() {
                        if xorshift(&mut random).is_multiple_of(2) || (nth == 4 && items.is_empty()) {
                            items.push((names[nth], key.as_str(), rule, (1 + xorshift(&mut random) % 12) as f64 / 2.0));
                        }
                    }
                    items
                })
                .collect();
            let step = |op, at, items: &Vec<_>| Step {
                leaves: Vec::new(),
                op,
                reserve: false,
                at: Some(at),
                items: Vec::clone(items),
            };
            let limits: Vec<Step<'_>> = calls.iter().map(|items| step("limit", clock, items)).collect();
            let answers = decide(&mut conn, &limits).await.expect("answers");
            let denied = || answers.iter().zip(&calls).filter(|(answer, _)| !answer.ok);
            let waits: Vec<i64> = denied().map(|(answer, _)| answer.wait.expect("a wait")).collect();
            let at = |shift: i64| -> Vec<Step<'_>> {
                let of = |((_, items), wait): ((_, &Vec<_>), &i64)| step("check", clock + (wait - shift).max(0), items);
                denied().zip(&waits).map(of).collect()
            };
            if !waits.is_empty() {
                let then = decide(&mut conn, &at(0)).await.expect("answers");
                let before = decide(&mut conn, &at(EARLIER)).await.expect("answers");
                for (((then, before), wait), (answer, items)) in then.iter().zip(&before).zip(&waits).zip(denied()) {
                    let context = format!("seed {seed}: {items:?} at {clock}: {answer:?}");
                    assert!(then.ok, "not allowed when it was promised: {context}, then {then:?}");
                    if *wait > EARLIER {
                        early += 1;
                        assert!(!before.ok, "allowed {EARLIER} us earlier: {context}");
                    }
                }
                denials += u32::try_from(waits.len()).expect("few");
            }
            clock += (xorshift(&mut random) % 8_000_000).cast_signed();
        }
    }
    eprintln!("seed {seed}: {denials} denials, {early} of them checked earlier");
    assert!(early > most / 2);
}
