//! Rounds on keys that never refill. In each round, callers try to take more tokens than there are; then the balance is
//! compared with the callers' count.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use pg_limiter::{Call, Error, Item, Limit};
use tokio::task::JoinSet;

use super::call::take;
use super::setup::{Account, SoakSetup};
use super::stats::{Stats, Taken};

/// In tokens. Far fewer are refilled during a round.
pub(super) const TOLERANCE: f64 = 0.01;
/// How often a balance is read until it matches: a call that was dropped may still be running.
const LOOKS: u32 = 50;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The callers' count, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Books {
    pub(super) admitted: f64,
    /// Tokens of calls with an unknown outcome, which may have been taken in addition.
    pub(super) perhaps: f64,
}

#[derive(Default)]
struct Tally {
    admitted: AtomicU64,
    perhaps: AtomicU64,
    /// The tokens that the callers have yet to try to take in this round.
    to_ask: AtomicI64,
}

impl Books {
    /// Compares the count with the tokens that are `spent` from a bucket that can grant at most `most`. Returns the mismatch.
    pub(super) fn wrong(self, spent: f64, most: f64) -> Option<String> {
        let Self { admitted, perhaps } = self;
        if admitted > most + TOLERANCE {
            return Some(format!("admitted {admitted}, but the limit allows at most {most}"));
        }
        if spent > most + TOLERANCE {
            return Some(format!("spent {spent}, but the limit allows at most {most}"));
        }
        if admitted > spent + TOLERANCE {
            return Some(format!("admitted {admitted}, but only {spent} were spent"));
        }
        if spent > admitted + perhaps + TOLERANCE {
            return Some(format!("spent {spent}, but only {admitted} were admitted, and perhaps {perhaps} more"));
        }
        None
    }
}

pub(super) async fn rounds(
    setup: Arc<SoakSetup>,
    stats: Arc<Stats>,
    place: usize,
    account: Account,
    callers: u32,
    faults: bool,
    mut dice: Rng,
) {
    let limits: Vec<_> = account.limits.iter().filter_map(|what| setup.of(what).copied()).collect();
    let largest = |limit: &Limit| if account.reserves { limit.largest_reservation() } else { limit.largest_count() };
    let most: Vec<f64> = limits.iter().map(|limit| largest(limit).min(1e9) - f64::from(account.leave)).collect();
    let least = most.iter().copied().fold(f64::INFINITY, f64::min);
    for round in 1_u64.. {
        let key = format!("{} {round}", account.name);
        let items = |count: u32| -> Vec<Item> {
            account.limits.iter().map(|what| setup.item(what, &key).count(count)).collect()
        };
        setup.is_hot(place, items(1).into());
        let tally = Arc::new(Tally::default());
        tally.to_ask.store((least * 1.3) as i64, Ordering::Relaxed);
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let (setup, stats, tally) = (Arc::clone(&setup), Arc::clone(&stats), Arc::clone(&tally));
            let (mut dice, items) = (dice.fork(), items(1));
            tasks.spawn(async move {
                while !stats.is_stopped() {
                    let count = 1 + dice.usize(..3) as u32;
                    if tally.to_ask.fetch_sub(count.into(), Ordering::Relaxed) <= 0 {
                        break;
                    }
                    let call = Call::from(
                        items.iter().map(|item| item.clone().count(count).leave(account.leave)).collect::<Vec<_>>(),
                    );
                    let call = if account.reserves { call.reserve() } else { call };
                    match take(&setup, &stats, &mut dice, call, faults).await {
                        Taken::Yes => drop(tally.admitted.fetch_add(count.into(), Ordering::Relaxed)),
                        Taken::Perhaps => drop(tally.perhaps.fetch_add(count.into(), Ordering::Relaxed)),
                        Taken::No => {}
                    }
                }
            });
        }
        while let Some(joined) = tasks.join_next().await {
            if let Err(error) = joined {
                stats.violated(format!("{key}: a caller panicked: {error}"));
            }
        }
        let books = Books {
            admitted: tally.admitted.load(Ordering::Relaxed) as f64,
            perhaps: tally.perhaps.load(Ordering::Relaxed) as f64,
        };
        let capacities: Vec<f64> = limits.iter().map(pg_limiter::Limit::capacity).collect();
        match audited(&setup, &items(1), &capacities, |spent| wrong(books, spent, &most)).await {
            Ok(None) => stats.audited(),
            Ok(Some(wrong)) => stats.violated(format!("{key}: {wrong}")),
            Err(error) => stats.violated(format!("{key}: the balance could not be read: {error}")),
        }
        if let Err(error) = setup.audit().reset(items(1)).await {
            stats.violated(format!("{key}: the rows could not be removed: {error}"));
        }
        // The pause ensures some time between two rounds, even on a busy machine.
        if !stats.pause(Duration::from_millis(dice.usize(..100) as u64)).await {
            return;
        }
    }
}

/// Compares the count with each limit of the group, and the limits with each other: all must have spent the same.
fn wrong(books: Books, spent: &[f64], most: &[f64]) -> Option<String> {
    let wrong = spent.iter().zip(most).find_map(|(spent, most)| books.wrong(*spent, *most));
    let first = spent.first()?;
    wrong.or_else(|| {
        let equal = spent.iter().all(|spent| (spent - first).abs() <= TOLERANCE);
        (!equal).then(|| format!("the limits of a group have spent different amounts: {spent:?}"))
    })
}

/// Reads the balances until they match, and returns the mismatch if they still do not after `LOOKS` attempts.
pub(super) async fn audited(
    setup: &SoakSetup,
    items: &[Item],
    capacities: &[f64],
    wrong: impl Fn(&[f64]) -> Option<String>,
) -> Result<Option<String>, Error> {
    let mut found = None;
    for _ in 0..LOOKS {
        let balances = setup.audit().peek(items).await?;
        let spent: Vec<f64> = capacities.iter().zip(balances.iter()).map(|(capacity, left)| capacity - left).collect();
        found = wrong(&spent);
        if found.is_none() {
            break;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(found)
}

#[test]
fn a_count_that_differs_from_the_balance_is_reported() {
    let books = Books { admitted: 10.0, perhaps: 2.0 };
    assert_eq!([10.0, 11.0, 12.0].map(|spent| books.wrong(spent, 12.0)), [None, None, None]);
    assert!([9.0, 13.0].iter().all(|spent| books.wrong(*spent, 20.0).is_some()));
    assert!(books.wrong(10.0, 9.0).is_some() && books.wrong(12.0, 11.0).is_some());
}

#[test]
fn limits_of_a_group_must_have_spent_the_same() {
    let books = Books { admitted: 10.0, perhaps: 2.0 };
    assert_eq!(wrong(books, &[11.0, 11.0], &[20.0, 30.0]), None);
    assert!(wrong(books, &[10.0, 11.0], &[20.0, 30.0]).is_some());
}
