//! Calls on keys that are used once, each of which leaves a row, and the `prune` that removes the rows.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use pg_limiter::Call;

use super::setup::SoakSetup;
use super::stats::{Stats, Taken};

const BETWEEN_KEYS: Duration = Duration::from_millis(10);
const BETWEEN_PRUNES: Duration = Duration::from_secs(3);

/// Makes calls on new keys. A call on a new key must be allowed.
pub(super) async fn brief(setup: Arc<SoakSetup>, stats: Arc<Stats>, caller: u32, mut dice: Rng) {
    for nth in 1_u64.. {
        let key = format!("{caller} {nth}");
        let answer = setup.any_quiet_limiter(&mut dice).limit(Call::from(setup.item("brief", &key))).await;
        stats.taken(&answer);
        if answer.is_ok_and(|decision| !decision.is_allowed()) {
            stats.violated(format!("brief {key}: a call on an unused key was denied"));
        }
        if !stats.pause(BETWEEN_KEYS).await {
            return;
        }
    }
}

pub(super) async fn prune(setup: Arc<SoakSetup>, stats: Arc<Stats>, mut dice: Rng) {
    while stats.pause(BETWEEN_PRUNES).await {
        match setup.any_quiet_limiter(&mut dice).prune().await {
            Ok(rows) => stats.pruned(rows),
            // The next call continues with the rest, even if this one failed.
            Err(error) => {
                let _: Taken = stats.failed(&error);
            }
        }
    }
}
