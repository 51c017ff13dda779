//! Callers in several concurrent processes, all on one key of a limit, with shards or without.

use crate::case::{Case, Id, Job};
use crate::names::{OWN, PROCESSES, READ_COMMITTED, SHARDED, SHARDED_WITHIN, SHARDED_WORK, SHARDS};
use crate::stage::Stage;
use crate::team::{Order, Way};

/// The number of processes, and of callers in each.
pub(crate) const ONE: (usize, usize) = (1, 256);
pub(crate) const FOUR: (usize, usize) = (4, 64);
/// The same for sharded limits, in the limiter's own transactions.
pub(crate) const EIGHT: (usize, usize) = (8, 32);
/// The same for sharded limits, in the callers' transactions.
pub(crate) const EIGHT_AT_WORK: (usize, usize) = (8, 4);

pub(crate) fn cases(stage: &Stage) -> Vec<Case> {
    let case = |work, peer, way, shards, (processes, callers)| {
        let order = Order { url: stage.postgres.url(), way, shards, callers, time: stage.options.time, number: 0 };
        Case { id: Id { work, peer, callers, processes }, job: Job::Processes(order) }
    };
    let mut cases = Vec::new();
    if stage.options.wants(PROCESSES) {
        for (peer, way) in [(OWN, Way::Own), (READ_COMMITTED, Way::ReadCommitted)] {
            cases.extend([ONE, FOUR].map(|team| case(PROCESSES, peer, way, None, team)));
        }
    }
    if stage.options.wants(SHARDS) {
        cases.extend(SHARDED.map(|(shards, peer)| case(SHARDS, peer, Way::Own, Some(shards), EIGHT)));
        cases.extend(SHARDED_WITHIN.map(|(shards, peer)| case(SHARDS, peer, Way::Within, Some(shards), EIGHT_AT_WORK)));
        cases.extend(SHARDED_WORK.map(|(shards, peer)| case(SHARDS, peer, Way::Work, Some(shards), EIGHT_AT_WORK)));
    }
    cases
}
