//! Two limits in one decision, all or none: one for the user and one for the user's organisation.

use pg_limiter::Isolation::{ReadCommitted, Serializable};

use crate::Failure;
use crate::case::Case;
use crate::keys::{self, Picks};
use crate::limiters::{self, HOUR, PLENTY};
use crate::load::{Load, call_each_once};
use crate::names::{GROUPS, OWN, READ_COMMITTED};
use crate::peer::Means;
use crate::stage::Stage;

pub(crate) const CALLERS: usize = 256;

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    if !stage.options.wants(GROUPS) {
        return Ok(Vec::new());
    }
    let users = keys::numbered_of("user", stage.options.size(100_000, 1_000));
    let organisations = keys::numbered_of("organisation", stage.options.size(1_000, 100));
    let mut peers = stage.redis(|redis| redis.two_buckets(PLENTY, HOUR, organisations.clone()));
    // The Redis in memory is measured between the two limiters, so that it is next to each of them in a round.
    for (place, name, isolation) in [(0, OWN, Serializable), (2, READ_COMMITTED, ReadCommitted)] {
        let limiter = limiters::connect(&stage.postgres.url(), isolation, None).await?;
        let limits = ["per_user", "per_org"].map(Into::into);
        let peer = stage.peer(name, Means::Group(limiter, limits, organisations.clone()));
        peers.insert(place.min(peers.len()), peer);
    }
    call_each_once(stage, &peers, &users).await?;
    let load = |peer| Load { peer, callers: CALLERS, picks: Picks::Uniform(users.clone()), allowed: true };
    Ok(peers.into_iter().map(|peer| Case::calls(GROUPS, load(peer))).collect())
}
