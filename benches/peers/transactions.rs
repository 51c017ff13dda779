//! The caller's READ COMMITTED transaction, with an INSERT of the application and with limits or bare UPDATEs.

use pg_limiter::TransactionLimiter;

use crate::Failure;
use crate::case::Case;
use crate::keys::{self, Picks};
use crate::limiters::{self, AMPLE, SLIDING_HOUR};
use crate::load::{Load, call_each_once};
use crate::names::{TRANSACTION_LIMIT, TRANSACTION_SLIDING, TRANSACTION_TWO, TWO_UPDATES, UPDATE, WITHIN};
use crate::peer::{Means, Part};
use crate::stage::Stage;

/// One caller for each connection of the pool.
pub(crate) const CALLERS: usize = 32;

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    let works = [
        (TRANSACTION_LIMIT, UPDATE, &[AMPLE][..]),
        (TRANSACTION_TWO, TWO_UPDATES, &limiters::FOUR[..2]),
        (TRANSACTION_SLIDING, UPDATE, &[SLIDING_HOUR]),
    ];
    let mut cases = Vec::new();
    for (work, updates, limits) in works.into_iter().filter(|(work, ..)| stage.options.wants(work)) {
        let keys = keys::numbered_of(work, stage.options.size(10_000, 1_000));
        stage.postgres.rows_to_update(&*keys).await?;
        stage.postgres.rows_to_update(keys.iter().map(|key| keys::second(key))).await?;
        let refs = limits.iter().map(|limit| (*limit).into()).collect();
        let within = Part::Limits(TransactionLimiter::new(limiters::limits()?), refs);
        let pool = &stage.postgres.pool;
        let peers = [(updates, Part::Updates(limits.len())), (WITHIN, within)]
            .map(|(name, part)| stage.peer(name, Means::Transaction(pool.clone(), part)));
        call_each_once(stage, &peers, &keys).await?;
        // The application's table is empty at first for each peer.
        let before = Some((pool.clone(), "TRUNCATE messages".to_owned()));
        let load = |peer| Load { peer, callers: CALLERS, picks: Picks::Uniform(keys.clone()), allowed: true };
        cases.extend(peers.map(|peer| Case::calls_after(work, load(peer), before.clone())));
    }
    Ok(cases)
}
