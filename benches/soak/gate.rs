//! Blocks of keys that only one caller uses, so each call's answer is known. A denied call takes no token.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use pg_limiter::{Error, Limiter};

use super::round::TOLERANCE;
use super::setup::{BEHIND_GATE, GATE, SoakSetup};
use super::stats::{Stats, Taken};

const OPERATIONS: u32 = 40;
const HOUR: Duration = Duration::from_secs(3600);

/// The state that the key should have.
struct Model {
    is_blocked: bool,
    balance: f64,
}

pub(super) async fn gate(setup: Arc<SoakSetup>, stats: Arc<Stats>, caller: u32, mut dice: Rng) {
    let capacity = setup.of(BEHIND_GATE).map_or(0.0, pg_limiter::Limit::capacity);
    for round in 1_u64.. {
        let key = format!("{GATE} {caller} {round}");
        let mut model = Model { is_blocked: false, balance: capacity };
        let mut went_well = true;
        for _ in 0..OPERATIONS {
            if stats.is_stopped() {
                break;
            }
            let limiter = setup.any_limiter(&mut dice).clone();
            match model.step(&setup, &limiter, &key, &mut dice).await {
                Ok(Ok(())) => stats.decided(),
                Ok(Err(wrong)) => {
                    went_well = false;
                    stats.violated(format!("{key}: {wrong}"));
                    break;
                }
                // After an unknown outcome, the key may be blocked or not, or a token may be spent.
                Err(error) if stats.failed(&error) == Taken::Perhaps => break,
                Err(_) => {}
            }
        }
        if went_well {
            stats.audited();
        }
        let items = [setup.item(GATE, &key), setup.item(BEHIND_GATE, &key)];
        if let Err(error) = setup.audit().reset(items).await {
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
        limiter: &Limiter,
        key: &str,
        dice: &mut Rng,
    ) -> Result<Result<(), String>, Error> {
        let gate = setup.item(GATE, key);
        Ok(match dice.usize(..10) {
            0 | 1 => {
                let rest = limiter.block(gate, HOUR).await?;
                self.is_blocked = true;
                if rest <= HOUR { Ok(()) } else { Err(format!("a block of {HOUR:?} lasts {rest:?}")) }
            }
            2 | 3 => {
                limiter.unblock(gate).await?;
                self.is_blocked = false;
                Ok(())
            }
            4 => self.compare("is_blocked", limiter.is_blocked(gate).await?.is_some()),
            5 => {
                let left = limiter.peek(setup.item(BEHIND_GATE, key)).await?.remaining();
                if (left - self.balance).abs() <= TOLERANCE {
                    Ok(())
                } else {
                    Err(format!("{left} tokens are left behind the gate, but {} were expected", self.balance))
                }
            }
            _ => {
                let decision = limiter.limit([gate, setup.item(BEHIND_GATE, key)]).await?;
                if decision.is_allowed() {
                    self.balance -= 1.0;
                }
                self.compare("limit", decision.is_denied())
            }
        })
    }

    fn compare(&self, operation: &str, is_blocked: bool) -> Result<(), String> {
        if is_blocked == self.is_blocked {
            return Ok(());
        }
        Err(format!("{operation} found the key blocked: {is_blocked}, but {} was expected", self.is_blocked))
    }
}
