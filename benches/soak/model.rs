//! All operations on keys that only one caller uses, so a model predicts the result of each.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use pg_limiter::{Balances, Decision, Error, Limiter};

use super::round::TOLERANCE;
use super::setup::SoakSetup;
use super::stats::{Stats, Taken};

const WHAT: &str = "model";
const OPERATIONS: u32 = 40;

/// The balance that the bucket should have.
struct Model {
    capacity: f64,
    balance: f64,
}

pub(super) async fn model(setup: Arc<SoakSetup>, stats: Arc<Stats>, caller: u32, mut dice: Rng) {
    let capacity = setup.of(WHAT).map_or(0.0, pg_limiter::Limit::capacity);
    for round in 1_u64.. {
        let key = format!("{WHAT} {caller} {round}");
        let mut model = Model { capacity, balance: capacity };
        let mut went_well = true;
        for _ in 0..OPERATIONS {
            if stats.is_stopped() {
                break;
            }
            match model.step(&setup, setup.any_limiter(&mut dice).clone(), &key, &mut dice).await {
                Ok(Ok(())) => stats.decided(),
                Ok(Err(wrong)) => {
                    went_well = false;
                    stats.violated(format!("{key}: {wrong}"));
                    break;
                }
                // After an unknown outcome, the balance is unknown until the call has certainly ended.
                Err(error) if stats.failed(&error) == Taken::Perhaps => break,
                Err(_) => {}
            }
        }
        if went_well {
            stats.audited();
        }
        if let Err(error) = setup.audit().reset(setup.item(WHAT, &key)).await {
            stats.violated(format!("{key}: the rows could not be removed: {error}"));
        }
        if !stats.pause(Duration::from_millis(dice.usize(..100) as u64)).await {
            return;
        }
    }
}

impl Model {
    /// Runs one operation. The inner error describes a wrong result.
    async fn step(
        &mut self,
        setup: &SoakSetup,
        limiter: Limiter,
        key: &str,
        dice: &mut Rng,
    ) -> Result<Result<(), String>, Error> {
        let count = f64::from(1 + dice.usize(..20) as u32);
        let item = setup.item(WHAT, key).count(count);
        Ok(match dice.usize(..12) {
            0..4 => {
                let decision = limiter.limit(item).await?;
                let correct = self.decision("limit", count, &decision);
                if decision.is_allowed() {
                    self.balance -= count;
                }
                correct.and_then(|()| self.left("limit", decision.remaining()))
            }
            4 => {
                let decision = limiter.check(item).await?;
                self.decision("check", count, &decision)
            }
            5 | 6 => self.balances("peek", &limiter.peek(item).await?),
            7 => {
                let balances = limiter.charge(item).await?;
                self.balance -= count;
                self.balances("charge", &balances)
            }
            8..11 => {
                let balances = limiter.credit(item).await?;
                self.balance = (self.balance + count).min(self.capacity);
                self.balances("credit", &balances)
            }
            _ => {
                limiter.reset(item).await?;
                self.balance = self.capacity;
                Ok(())
            }
        })
    }

    fn decision(&self, operation: &str, count: f64, decision: &Decision) -> Result<(), String> {
        // Counts and balances are whole numbers, so the tolerance only evens out the refill.
        let expected = self.balance + TOLERANCE >= count;
        if decision.is_allowed() == expected {
            return Ok(());
        }
        Err(format!("{operation} of {count} tokens with {} left returned {:?}", self.balance, decision.outcome()))
    }

    fn balances(&self, operation: &str, balances: &Balances) -> Result<(), String> {
        self.left(operation, balances.remaining())
    }

    fn left(&self, operation: &str, left: f64) -> Result<(), String> {
        if (left - self.balance).abs() <= TOLERANCE {
            return Ok(());
        }
        Err(format!("{operation} returned {left} tokens left, but {} were expected", self.balance))
    }
}
